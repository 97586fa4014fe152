// FastPath_Submit: makes a command of 64 bytes, has it written where the tail of the submission queue is, and
// rings.
//
// The doorbell follows the response to the command's last beat, never the beat itself: until then nobody has
// promised that the bytes are in memory. Meanwhile the next commands are written. One doorbell speaks for all
// that were written since the last.
module fastpath_submit #(
    parameter int SLOT_BITS = 3
) (
    input  logic                 clock,
    input  logic                 reset,
    input  logic                 stop,

    // Set-up.
    input  logic [         63:0] queue_base,
    input  logic [         63:0] doorbell_address,
    input  logic [         15:0] queue_depth,
    input  logic [         31:0] namespace_id,

    // From Control.
    input  logic                 command_valid,
    output logic                 command_ready,
    input  logic [          7:0] command_opcode,
    input  logic [SLOT_BITS-1:0] command_slot,
    input  logic [         63:0] command_lba,
    input  logic [          3:0] command_blocks,
    input  logic [         63:0] command_address,
    input  logic                 command_two_pages,

    // Identifiers.
    input  logic                 cid_valid,
    output logic                 cid_take,
    input  logic [         15:0] cid,
    output logic [SLOT_BITS-1:0] cid_slot,

    // To the writer.
    output logic                 entry_valid,
    input  logic                 entry_ready,
    output logic [         63:0] entry_address,
    output logic [        511:0] entry_data,
    input  logic                 entry_written,
    output logic                 ring_valid,
    input  logic                 ring_ready,
    output logic [         63:0] ring_address,
    output logic [         15:0] ring_tail
);
    localparam logic [7:0] FLUSH = 8'h00;

    // The tail as commands are made, as they have been written, and as the drive was told.
    logic [15:0] tail;
    logic [15:0] written;
    logic [15:0] rung;
    logic [15:0] last;

    logic        moves_data;
    logic [63:0] prp1;
    logic [63:0] prp2;

    assign last = queue_depth - 16'd1;

    assign entry_valid = command_valid && cid_valid && !stop;
    assign command_ready = entry_ready && cid_valid && !stop;
    assign cid_take = entry_valid && entry_ready;
    assign cid_slot = command_slot;
    assign entry_address = queue_base + {42'd0, tail, 6'd0};

    assign moves_data = command_opcode != FLUSH;
    assign prp1 = moves_data ? command_address : 64'd0;
    // A block is aligned to its size: only one of 8 KiB has a second page.
    assign prp2 = moves_data && command_two_pages ? command_address + 64'd4096 : 64'd0;
    assign entry_data = {
        // Double words 15 to 13.
        96'd0,
        // 12: the number of blocks, less one.
        28'd0, moves_data ? command_blocks : 4'd0,
        // 11 and 10.
        moves_data ? command_lba : 64'd0,
        // 9 and 8, 7 and 6.
        prp2, prp1,
        // 5 to 2.
        128'd0,
        namespace_id,
        cid, 8'd0, command_opcode
    };

    assign ring_valid = written != rung && !stop;
    assign ring_address = doorbell_address;
    assign ring_tail = written;

    always_ff @(posedge clock) begin
        if (reset) begin
            tail <= '0;
            written <= '0;
            rung <= '0;
        end else begin
`ifdef FASTPATH_MUTANT_TAIL_DOES_NOT_WRAP
            if (cid_take) tail <= tail + 16'd1;
`else
            if (cid_take) tail <= tail == last ? '0 : tail + 16'd1;
`endif
`ifdef FASTPATH_MUTANT_RINGS_BEFORE_WRITTEN
            if (cid_take) written <= written == last ? '0 : written + 16'd1;
`else
            if (entry_written) written <= written == last ? '0 : written + 16'd1;
`endif
            if (ring_valid && ring_ready) rung <= written;
        end
    end

`ifdef FORMAL
`include "formal/fastpath_submit.svh"
`endif
endmodule
