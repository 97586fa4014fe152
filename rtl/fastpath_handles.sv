// The table of handles: which area of the drive and which buffer each stands for. The owner of the engine writes
// it; requests name an entry and can't change one.
`include "fastpath_check.svh"

module fastpath_handles #(
    parameter int HANDLES = 64
) (
    input  logic        clock,
    input  logic        reset,

    input  logic        write,
    input  logic [15:0] write_id,
    input  logic        write_live,
    input  logic [15:0] write_generation,
    input  logic [63:0] write_area_lba,
    input  logic [63:0] write_area_lbas,
    input  logic [63:0] write_buffer_address,
    input  logic [63:0] write_buffer_bytes,

    // Answered in the same cycle.
    input  logic [15:0] id,
    output logic        live,
    output logic [15:0] generation,
    output logic [63:0] area_lba,
    output logic [63:0] area_lbas,
    output logic [63:0] buffer_address,
    output logic [63:0] buffer_bytes
);
    `FASTPATH_CHECK(g_handles, HANDLES >= 2 && HANDLES <= 65536 && (HANDLES & (HANDLES - 1)) == 0,
        "fastpath_handles: HANDLES must be a power of two from 2 to 65536")

    localparam int BITS = $clog2(HANDLES);

    (* ram_style = "distributed" *)
    logic [    271:0] entries[HANDLES];
    logic [HANDLES-1:0] is_live;
    logic [     15:0] write_above;
    logic [     15:0] above;

    // What an identifier has above the table's size.
    assign write_above = write_id >> BITS;
    assign above = id >> BITS;

    assign live = above == '0 && is_live[id[BITS-1:0]];
    assign {generation, area_lba, area_lbas, buffer_address, buffer_bytes} = entries[id[BITS-1:0]];

    always_ff @(posedge clock) begin
        if (write && write_above == '0) begin
            entries[write_id[BITS-1:0]] <= {
                write_generation, write_area_lba, write_area_lbas, write_buffer_address, write_buffer_bytes
            };
        end
    end

    always_ff @(posedge clock) begin
        if (reset) is_live <= '0;
        else if (write && write_above == '0) is_live[write_id[BITS-1:0]] <= write_live;
    end
endmodule
