// FastPath_Complete: polls the completion queue through the read half of the AXI master.
//
// It reads from the head to the end of the group of four entries that it is in, or of sixteen if the last poll took
// all that it read, and takes entries until one bears the phase tag of the turn before. An entry's second half holds all that matters here,
// phase tag included, and is one beat at 64 bits and part of one at 128: the halves of an entry may be of
// different moments, and only the one is looked at.
//
// While nothing is in flight nothing is read. The drive is told the head after `batch` entries, or when a poll
// finds nothing, or when nothing is in flight any more.
`include "fastpath_check.svh"

module fastpath_complete #(
    parameter int DATA_WIDTH = 64,
    parameter int SLOT_BITS = 3
) (
    input  logic                  clock,
    input  logic                  reset,
    input  logic                  stop,
    output logic                  quiet,

    // Set-up.
    input  logic [          63:0] queue_base,
    input  logic [          63:0] doorbell_address,
    input  logic [          15:0] queue_depth,
    input  logic [          15:0] submission_queue_id,
    input  logic [          15:0] batch,
    input  logic [          15:0] poll_interval,

    // Identifiers.
    output logic [          15:0] cid,
    input  logic                  cid_is_out,
    input  logic [ SLOT_BITS-1:0] cid_slot,
    output logic                  cid_give_back,
    input  logic                  any_out,

    // A command has completed.
    output logic                  done_valid,
    output logic [ SLOT_BITS-1:0] done_slot,
    output logic [          14:0] done_status,

    output logic                  bus_error,
    output logic                  no_sense,
    output logic                  polled,

    // To the writer.
    output logic                  ring_valid,
    input  logic                  ring_ready,
    output logic [          63:0] ring_address,
    output logic [          15:0] ring_head,

    output logic [          63:0] m_axi_araddr,
    output logic [           7:0] m_axi_arlen,
    output logic [           2:0] m_axi_arsize,
    output logic                  m_axi_arvalid,
    input  logic                  m_axi_arready,
    input  logic [DATA_WIDTH-1:0] m_axi_rdata,
    input  logic [           1:0] m_axi_rresp,
    input  logic                  m_axi_rlast,
    input  logic                  m_axi_rvalid,
    output logic                  m_axi_rready
);
    `FASTPATH_CHECK(g_width, DATA_WIDTH == 64 || DATA_WIDTH == 128,
        "fastpath_complete: DATA_WIDTH must be 64 or 128")

    localparam int BEATS_LOG2 = DATA_WIDTH == 64 ? 1 : 0;

    logic [15:0] head;
    logic        phase;
    logic [15:0] unrung;
    logic [15:0] last;

    // A poll: from the address to the last beat.
    logic        polling;
    logic        has_stopped;
    logic        has_taken;
    logic        was_empty;
    logic        was_full;
    logic        is_second_half;
    logic [15:0] wait_left;
    logic [15:0] to_end;
    logic [ 4:0] to_group;
    logic [ 4:0] entries;

    logic        beat;
    logic        ends_entry;
    logic [63:0] half;
    logic        is_new;
    logic        is_taken;

    // The entry that is being looked up; what it means is told a cycle later.
    logic        entry_valid;
    logic [63:0] entry;
    logic        makes_sense;

    assign last = queue_depth - 16'd1;
    assign to_end = queue_depth - head;
    assign to_group = was_full ? 5'd16 - {1'b0, head[3:0]} : 5'd4 - {3'd0, head[1:0]};
    assign entries = to_end < {11'd0, to_group} ? to_end[4:0] : to_group;

    assign m_axi_rready = polling && !m_axi_arvalid;
    assign beat = m_axi_rvalid && m_axi_rready;
    assign half = m_axi_rdata[DATA_WIDTH-1-:64];
    assign ends_entry = DATA_WIDTH == 128 || is_second_half;
`ifdef FASTPATH_MUTANT_IGNORES_PHASE
    assign is_new = 1'b1;
`else
    assign is_new = half[48] == phase;
`endif
    assign is_taken = beat && ends_entry && is_new && !has_stopped && !m_axi_rresp[1] && !stop;
    assign bus_error = beat && m_axi_rresp[1];
    assign polled = m_axi_arvalid && m_axi_arready;
    assign quiet = !polling;

    always_ff @(posedge clock) begin
        if (reset) begin
            polling <= 1'b0;
            m_axi_arvalid <= 1'b0;
            wait_left <= '0;
            was_empty <= 1'b0;
            was_full <= 1'b0;
        end else begin
            if (wait_left != '0) wait_left <= wait_left - 16'd1;
            if (is_taken) was_empty <= 1'b0;
            if (!polling) begin
                // What the last poll took is counted before the next begins.
                if (any_out && !stop && wait_left == '0 && !entry_valid) begin
                    polling <= 1'b1;
                    m_axi_arvalid <= 1'b1;
                end
            end else begin
                if (m_axi_arready) m_axi_arvalid <= 1'b0;
                if (beat && m_axi_rlast) begin
                    polling <= 1'b0;
                    was_empty <= !(has_taken || is_taken);
                    was_full <= is_taken;
                    if (!(has_taken || is_taken)) wait_left <= poll_interval;
                end
            end
        end
    end

    always_ff @(posedge clock) begin
        if (!polling) begin
            m_axi_araddr <= queue_base + {44'd0, head, 4'd0};
            m_axi_arlen <= {3'd0, entries} * 8'(1 << BEATS_LOG2) - 8'd1;
            is_second_half <= 1'b0;
            has_stopped <= 1'b0;
            has_taken <= 1'b0;
        end else if (beat) begin
            is_second_half <= !is_second_half;
            if (ends_entry && !is_taken) has_stopped <= 1'b1;
            if (is_taken) has_taken <= 1'b1;
        end
    end

    assign m_axi_arsize = 3'($clog2(DATA_WIDTH / 8));

    always_ff @(posedge clock) begin
        if (reset) begin
            head <= '0;
            phase <= 1'b1;
        end else if (is_taken) begin
            if (head == last) begin
                head <= '0;
`ifndef FASTPATH_MUTANT_PHASE_STAYS
                phase <= !phase;
`endif
            end else begin
                head <= head + 16'd1;
            end
        end
    end

    always_ff @(posedge clock) begin
        entry_valid <= is_taken && !reset;
        if (is_taken) entry <= half;
    end

    // Double word 2: head of the submission queue, and which. Double word 3: identifier, phase tag, status.
    assign cid = entry[47:32];
    assign makes_sense = cid_is_out && entry[31:16] == submission_queue_id && entry[15:0] < queue_depth;
    assign cid_give_back = entry_valid && makes_sense;

    always_ff @(posedge clock) begin
        done_valid <= cid_give_back && !reset;
        no_sense <= entry_valid && !makes_sense && !reset;
        done_slot <= cid_slot;
        done_status <= entry[63:49];
    end

    assign ring_valid = unrung != '0 && !stop && (unrung >= batch || was_empty || !any_out);
    assign ring_address = doorbell_address;
    assign ring_head = head;

    always_ff @(posedge clock) begin
        if (reset) unrung <= '0;
        else if (ring_valid && ring_ready) unrung <= is_taken ? 16'd1 : '0;
        else if (is_taken) unrung <= unrung + 16'd1;
    end

    logic unused;
    assign unused = &{1'b0, m_axi_rresp[0], entry[48], m_axi_rdata};

`ifdef FORMAL
`include "formal/fastpath_complete.svh"
`endif
endmodule
