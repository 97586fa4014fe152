// A parameter that makes no sense ends elaboration. Icarus 11 knows no $error outside a process: there it ends
// the simulation before it begins.
`ifndef FASTPATH_CHECK_SVH
`define FASTPATH_CHECK_SVH
`ifdef __ICARUS__
`define FASTPATH_CHECK(LABEL, CONDITION, TEXT) \
    if (!(CONDITION)) begin : LABEL \
        initial begin \
            $display("error: %s", TEXT); \
            $finish(1); \
        end \
    end
`else
`define FASTPATH_CHECK(LABEL, CONDITION, TEXT) \
    if (!(CONDITION)) begin : LABEL \
        $error(TEXT); \
    end
`endif
`endif
