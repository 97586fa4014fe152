// A queue of DEPTH words. The oldest is on out_data as soon as out_valid says so; it goes with out_ready.
//
// in_ready comes out of a register: it does not hang on out_ready, so a full queue that gives a word in this cycle
// takes one from the next on.
`include "fastpath_check.svh"

module fastpath_fifo #(
    parameter int WIDTH = 32,
    parameter int DEPTH = 4
) (
    input  logic                   clock,
    input  logic                   reset,
    input  logic                   in_valid,
    output logic                   in_ready,
    input  logic [      WIDTH-1:0] in_data,
    output logic                   out_valid,
    input  logic                   out_ready,
    output logic [      WIDTH-1:0] out_data,
    output logic [$clog2(DEPTH):0] count
);
    `FASTPATH_CHECK(g_width, WIDTH >= 1, "fastpath_fifo: WIDTH must be at least 1")
    `FASTPATH_CHECK(g_depth, DEPTH >= 2 && (DEPTH & (DEPTH - 1)) == 0,
        "fastpath_fifo: DEPTH must be a power of two, at least 2")

    localparam int BITS = $clog2(DEPTH);
    localparam logic [BITS:0] FULL = (BITS + 1)'(DEPTH);

    (* ram_style = "distributed" *)
    logic [WIDTH-1:0] words[DEPTH];
    logic [ BITS-1:0] first;
    logic [ BITS-1:0] next;
    logic             put;
    logic             take;

    assign in_ready = count != FULL;
    assign out_valid = count != '0;
    assign out_data = words[first];
`ifdef FASTPATH_MUTANT_FIFO_OVERFLOWS
    assign put = in_valid;
`else
    assign put = in_valid && in_ready;
`endif
    assign take = out_valid && out_ready;

    always_ff @(posedge clock) begin
        if (put) words[next] <= in_data;
    end

    always_ff @(posedge clock) begin
        if (reset) begin
            first <= '0;
            next  <= '0;
            count <= '0;
        end else begin
            if (put) next <= next + 1'b1;
            if (take) first <= first + 1'b1;
            if (put && !take) count <= count + 1'b1;
            else if (take && !put) count <= count - 1'b1;
        end
    end

`ifdef FORMAL
`include "formal/fastpath_fifo.svh"
`endif
endmodule
