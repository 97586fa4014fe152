// Command identifiers: which are free, and what those in flight stand for.
//
// An identifier is an index below and a number above that differs from use to use, so that a completion of an
// earlier use is told from one of this. At most `limit` are out at once: one less than the queue has entries,
// which is as many as a queue can hold. Completions may come in any order.
`include "fastpath_check.svh"

module fastpath_cids #(
    parameter int ENTRIES = 64,
    parameter int SLOT_BITS = 3
) (
    input  logic                       clock,
    input  logic                       reset,
    input  logic [  $clog2(ENTRIES):0] limit,

    output logic                       free_valid,
    input  logic                       take,
    output logic [               15:0] free_cid,
    input  logic [      SLOT_BITS-1:0] take_slot,

    // What this identifier stands for, if it is out: answered in the same cycle.
    input  logic [               15:0] looked_up,
    output logic                       is_out,
    output logic [      SLOT_BITS-1:0] slot,
    // It comes back.
    input  logic                       give_back,

    output logic                       any_out
);
    `FASTPATH_CHECK(g_entries, ENTRIES >= 4 && ENTRIES <= 4096 && (ENTRIES & (ENTRIES - 1)) == 0,
        "fastpath_cids: ENTRIES must be a power of two from 4 to 4096")

    localparam int BITS = $clog2(ENTRIES);
    localparam int USE_BITS = 16 - BITS;

    (* ram_style = "distributed" *)
    logic [USE_BITS+SLOT_BITS-1:0] meanings[ENTRIES];
    logic [           ENTRIES-1:0] out;
    logic [                BITS:0] out_count;
    // Those from here on were never used; whether there are any, under this limit, which stays.
    logic [                BITS:0] fresh;
    logic [          USE_BITS-1:0] this_use;
    logic                          has_fresh;
    logic                          returned_valid;
    logic [              BITS-1:0] returned;
    logic [              BITS-1:0] index;
    logic [              BITS-1:0] looked_up_index;
    logic [USE_BITS+SLOT_BITS-1:0] meaning;

    assign free_valid = has_fresh || returned_valid;
    assign index = has_fresh ? fresh[BITS-1:0] : returned;
    assign free_cid = {this_use, index};

    assign looked_up_index = looked_up[BITS-1:0];
    assign meaning = meanings[looked_up_index];
    assign slot = meaning[SLOT_BITS-1:0];
`ifdef FASTPATH_MUTANT_STALE_IDENTIFIERS
    assign is_out = out[looked_up_index];
`else
    assign is_out = out[looked_up_index] && meaning[SLOT_BITS+:USE_BITS] == looked_up[15:BITS];
`endif
    assign any_out = out_count != '0;

    fastpath_fifo #(
        .WIDTH(BITS),
        .DEPTH(ENTRIES)
    ) returns (
        .clock(clock),
        .reset(reset),
        .in_valid(give_back),
        // There are no more of them than it has room for.
        .in_ready(),
        .in_data(looked_up_index),
        .out_valid(returned_valid),
        .out_ready(take && !has_fresh),
        .out_data(returned),
        .count()
    );

    // Bit by bit: an index on the left of an assignment becomes a shift of the whole.
    always_ff @(posedge clock) begin
        for (int i = 0; i < ENTRIES; i = i + 1) begin
            if (reset || (give_back && looked_up_index == BITS'(i))) out[i] <= 1'b0;
            else if (take && index == BITS'(i)) out[i] <= 1'b1;
        end
    end

    always_ff @(posedge clock) begin
        if (take) meanings[index] <= {this_use, take_slot};
    end

    always_ff @(posedge clock) begin
        if (reset) begin
            out_count <= '0;
            fresh <= '0;
            has_fresh <= 1'b1;
            this_use <= '0;
        end else begin
            if (take && has_fresh) begin
                fresh <= fresh + 1'b1;
                has_fresh <= fresh + 1'b1 < limit;
            end
            if (take) this_use <= this_use + 1'b1;
            if (take && !give_back) out_count <= out_count + 1'b1;
            else if (give_back && !take) out_count <= out_count - 1'b1;
        end
    end

`ifdef FORMAL
`include "formal/fastpath_cids.svh"
`endif
endmodule
