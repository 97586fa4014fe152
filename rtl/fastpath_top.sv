// FastPath: takes requests through AXI4-Lite, makes NVMe commands of them, and drives one pair of queues of a
// drive through one AXI master.
//
//                 ┌───────────┐  ┌─────────┐  ┌────────┐  ┌────────┐
//   AXI4-Lite ──► │ registers ├─►│ control ├─►│ submit ├─►│ writer ├──► AXI master: AW, W, B
//                 │           │  └────┬────┘  └───┬────┘  └────────┘
//                 │           │  ┌────┴────┐  ┌───┴────┐      ▲ head
//                 │           │◄─┤ tracker │  │  cids  │  ┌───┴──────┐
//                 └───────────┘  └────▲────┘  └───▲────┘  │ complete │◄── AXI master: AR, R
//                                     └───────────┴───────┴──────────┘
//
// Any failure halts it, with a cause: a request that is too old, an error on the bus, a completion of no sense.
// Every request is then answered, and nothing more is asked of the drive until the owner disables the engine,
// which empties it as soon as the bus is quiet.
`include "fastpath_check.svh"

module fastpath_top #(
    parameter int DATA_WIDTH = 64,
    parameter int REQUESTS = 16,
    parameter int RESPONSES = 16,
    parameter int SLOTS = 8,
    parameter int COMMANDS = 4,
    parameter int QUEUE_ENTRIES = 64,
    parameter int HANDLES = 64,
    parameter int WRITES = 16
) (
    input  logic                    clock,
    input  logic                    reset_n,

    input  logic [            11:0] s_axi_awaddr,
    input  logic                    s_axi_awvalid,
    output logic                    s_axi_awready,
    input  logic [            31:0] s_axi_wdata,
    input  logic [             3:0] s_axi_wstrb,
    input  logic                    s_axi_wvalid,
    output logic                    s_axi_wready,
    output logic [             1:0] s_axi_bresp,
    output logic                    s_axi_bvalid,
    input  logic                    s_axi_bready,
    input  logic [            11:0] s_axi_araddr,
    input  logic                    s_axi_arvalid,
    output logic                    s_axi_arready,
    output logic [            31:0] s_axi_rdata,
    output logic [             1:0] s_axi_rresp,
    output logic                    s_axi_rvalid,
    input  logic                    s_axi_rready,

    output logic [            63:0] m_axi_awaddr,
    output logic [             7:0] m_axi_awlen,
    output logic [             2:0] m_axi_awsize,
    output logic [             1:0] m_axi_awburst,
    output logic                    m_axi_awvalid,
    input  logic                    m_axi_awready,
    output logic [  DATA_WIDTH-1:0] m_axi_wdata,
    output logic [DATA_WIDTH/8-1:0] m_axi_wstrb,
    output logic                    m_axi_wlast,
    output logic                    m_axi_wvalid,
    input  logic                    m_axi_wready,
    input  logic [             1:0] m_axi_bresp,
    input  logic                    m_axi_bvalid,
    output logic                    m_axi_bready,
    output logic [            63:0] m_axi_araddr,
    output logic [             7:0] m_axi_arlen,
    output logic [             2:0] m_axi_arsize,
    output logic [             1:0] m_axi_arburst,
    output logic                    m_axi_arvalid,
    input  logic                    m_axi_arready,
    input  logic [  DATA_WIDTH-1:0] m_axi_rdata,
    input  logic [             1:0] m_axi_rresp,
    input  logic                    m_axi_rlast,
    input  logic                    m_axi_rvalid,
    output logic                    m_axi_rready,

    // High while a response waits, if CONTROL asks for it.
    output logic                    irq
);
    localparam int TIME_BITS = 48;
    localparam int SLOT_BITS = $clog2(SLOTS);
    localparam int EVENTS = 11;
    localparam int COMMAND_BITS = 8 + SLOT_BITS + 64 + 4 + 64 + 1;
    localparam logic [1:0] INCREMENTING = 2'b01;

    logic reset;
    logic core_reset;
    logic enable;
    logic stop;
    logic quiet;
    logic halted;
    logic [3:0] cause;
    logic [TIME_BITS-1:0] now;

    // Set-up.
    logic [63:0] submission_base;
    logic [63:0] completion_base;
    logic [63:0] submission_doorbell;
    logic [63:0] completion_doorbell;
    logic [15:0] queue_depth;
    logic [31:0] namespace_id;
    logic [3:0] lba_shift;
    logic [15:0] queue_id;
    logic [15:0] batch;
    logic [15:0] poll_interval;
    logic [47:0] timeout;

    // Requests and responses.
    logic posted_valid;
    logic posted_ready;
    logic [255:0] posted;
    logic [$clog2(REQUESTS):0] requests;
    logic overrun;
    logic request_valid;
    logic request_ready;
    logic [255:0] request;
    logic response_valid;
    logic response_ready;
    logic [127:0] response;
    logic [$clog2(RESPONSES):0] responses;

    // The table of handles.
    logic handle_write;
    logic [15:0] written_id;
    logic [15:0] written_generation;
    logic written_live;
    logic [255:0] written_bounds;
    logic [15:0] handle_id;
    logic handle_live;
    logic [15:0] handle_generation;
    logic [63:0] handle_area_lba;
    logic [63:0] handle_area_lbas;
    logic [63:0] handle_buffer_address;
    logic [63:0] handle_buffer_bytes;

    // Control to tracker.
    logic can_begin;
    logic begin_valid;
    logic begin_ready;
    logic [SLOT_BITS-1:0] begin_slot;
    logic [15:0] begin_tag;
    logic [15:0] begin_status;
    logic [11:0] begin_commands;
    logic [TIME_BITS-1:0] begin_at;
    logic control_idle;
    logic [SLOTS-1:0] failed;
    logic [SLOT_BITS-1:0] cut_slot;
    logic drop_valid;
    logic drop_ready;
    logic [11:0] drop_commands;

    // Control to submit.
    logic cut_valid;
    logic cut_ready;
    logic [COMMAND_BITS-1:0] cut;
    logic command_valid;
    logic command_ready;
    logic [7:0] command_opcode;
    logic [SLOT_BITS-1:0] command_slot;
    logic [63:0] command_lba;
    logic [3:0] command_blocks;
    logic [63:0] command_address;
    logic command_two_pages;

    // Identifiers.
    logic cid_valid;
    logic cid_take;
    logic [15:0] free_cid;
    logic [SLOT_BITS-1:0] cid_slot;
    logic [15:0] done_cid;
    logic cid_is_out;
    logic [SLOT_BITS-1:0] out_slot;
    logic cid_give_back;
    logic any_out;

    // To the writer.
    logic entry_valid;
    logic entry_ready;
    logic [63:0] entry_address;
    logic [511:0] entry_data;
    logic entry_written;
    logic tail_valid;
    logic tail_ready;
    logic [63:0] tail_address;
    logic [15:0] tail;
    logic head_valid;
    logic head_ready;
    logic [63:0] head_address;
    logic [15:0] head;

    // What happens.
    logic done_valid;
    logic [SLOT_BITS-1:0] done_slot;
    logic [14:0] done_status;
    logic write_error;
    logic read_error;
    logic no_sense;
    logic polled;
    logic timed_out;
    logic ended;
    logic [TIME_BITS-1:0] ended_cycles;
    logic any_in_flight;
    logic writer_quiet;
    logic complete_quiet;
    logic [EVENTS-1:0] events;
    logic [EVENTS*32-1:0] counts;
    logic [31:0] latency_min;
    logic [31:0] latency_max;
    logic [31:0] latency_count;
    logic [63:0] latency_sum;
    logic was_enabled;
    logic working;
    // One less than the queue has entries: as many as it can hold.
    logic [$clog2(QUEUE_ENTRIES):0] limit;

    assign reset = !reset_n;
    assign stop = halted || !enable;
    assign quiet = writer_quiet && complete_quiet;
    // Disabled, it empties as soon as the bus is quiet.
    assign core_reset = reset || (!enable && quiet);
    assign working = any_in_flight || !control_idle || request_valid;
    assign m_axi_awburst = INCREMENTING;
    assign m_axi_arburst = INCREMENTING;

    // Of what is set up only while the engine is disabled.
    always_ff @(posedge clock) limit <= queue_depth[$clog2(QUEUE_ENTRIES):0] - 1'b1;

    always_ff @(posedge clock) begin
        if (reset) begin
            now <= '0;
            was_enabled <= 1'b0;
        end else begin
            now <= now + 1'b1;
            was_enabled <= enable;
        end
    end

    // The first cause stays. They are numbered as wire::fastpath::Refusal numbers them.
    always_ff @(posedge clock) begin
        if (core_reset) begin
            halted <= 1'b0;
            cause <= '0;
        end else if (!halted && (write_error || read_error || no_sense || timed_out)) begin
            halted <= 1'b1;
            cause <= write_error || read_error ? 4'd8 : no_sense ? 4'd9 : 4'd7;
        end
    end

    assign events = {
        polled,
        head_valid && head_ready,
        tail_valid && tail_ready,
        overrun,
        no_sense,
        write_error || read_error,
        done_valid && done_status != '0,
        done_valid,
        entry_valid && entry_ready,
        begin_valid && begin_ready && begin_status != '0,
        begin_valid && begin_ready && begin_status == '0
    };

    fastpath_registers #(
        .DATA_WIDTH(DATA_WIDTH),
        .REQUESTS(REQUESTS),
        .RESPONSES(RESPONSES),
        .SLOTS(SLOTS),
        .QUEUE_ENTRIES(QUEUE_ENTRIES),
        .HANDLES(HANDLES),
        .EVENTS(EVENTS)
    ) registers (
        .clock(clock),
        .reset(reset),
        .s_axi_awaddr(s_axi_awaddr),
        .s_axi_awvalid(s_axi_awvalid),
        .s_axi_awready(s_axi_awready),
        .s_axi_wdata(s_axi_wdata),
        .s_axi_wstrb(s_axi_wstrb),
        .s_axi_wvalid(s_axi_wvalid),
        .s_axi_wready(s_axi_wready),
        .s_axi_bresp(s_axi_bresp),
        .s_axi_bvalid(s_axi_bvalid),
        .s_axi_bready(s_axi_bready),
        .s_axi_araddr(s_axi_araddr),
        .s_axi_arvalid(s_axi_arvalid),
        .s_axi_arready(s_axi_arready),
        .s_axi_rdata(s_axi_rdata),
        .s_axi_rresp(s_axi_rresp),
        .s_axi_rvalid(s_axi_rvalid),
        .s_axi_rready(s_axi_rready),
        .enable(enable),
        .quiet(quiet),
        .halted(halted),
        .cause(cause),
        .working(working),
        .interrupt(irq),
        .submission_base(submission_base),
        .completion_base(completion_base),
        .submission_doorbell(submission_doorbell),
        .completion_doorbell(completion_doorbell),
        .queue_depth(queue_depth),
        .namespace_id(namespace_id),
        .lba_shift(lba_shift),
        .queue_id(queue_id),
        .batch(batch),
        .poll_interval(poll_interval),
        .timeout(timeout),
        .request_valid(posted_valid),
        .request_ready(posted_ready),
        .request(posted),
        .requests(requests),
        .overrun(overrun),
        .response_valid(response_valid),
        .response_ready(response_ready),
        .response(response),
        .responses(responses),
        .handle_write(handle_write),
        .handle_id(written_id),
        .handle_generation(written_generation),
        .handle_live(written_live),
        .handle_bounds(written_bounds),
        .counts(counts),
        .latency_min(latency_min),
        .latency_max(latency_max),
        .latency_count(latency_count),
        .latency_sum(latency_sum)
    );

    fastpath_fifo #(
        .WIDTH(256),
        .DEPTH(REQUESTS)
    ) request_queue (
        .clock(clock),
        .reset(core_reset),
        .in_valid(posted_valid),
        .in_ready(posted_ready),
        .in_data(posted),
        .out_valid(request_valid),
        .out_ready(request_ready),
        .out_data(request),
        .count(requests)
    );

    fastpath_handles #(
        .HANDLES(HANDLES)
    ) handles (
        .clock(clock),
        .reset(reset),
        .write(handle_write),
        .write_id(written_id),
        .write_live(written_live),
        .write_generation(written_generation),
        .write_area_lba(written_bounds[63:0]),
        .write_area_lbas(written_bounds[127:64]),
        .write_buffer_address(written_bounds[191:128]),
        .write_buffer_bytes(written_bounds[255:192]),
        .id(handle_id),
        .live(handle_live),
        .generation(handle_generation),
        .area_lba(handle_area_lba),
        .area_lbas(handle_area_lbas),
        .buffer_address(handle_buffer_address),
        .buffer_bytes(handle_buffer_bytes)
    );

    fastpath_control #(
        .SLOT_BITS(SLOT_BITS),
        .TIME_BITS(TIME_BITS)
    ) control (
        .clock(clock),
        .reset(core_reset),
        .stop(!enable),
        .halted(halted),
        .now(now),
        .idle(control_idle),
        .lba_shift(lba_shift),
        .request_valid(request_valid),
        .request_ready(request_ready),
        .request(request),
        .handle_id(handle_id),
        .handle_live(handle_live),
        .handle_generation(handle_generation),
        .handle_area_lba(handle_area_lba),
        .handle_area_lbas(handle_area_lbas),
        .handle_buffer_address(handle_buffer_address),
        .handle_buffer_bytes(handle_buffer_bytes),
        .can_begin(can_begin),
        .begin_valid(begin_valid),
        .begin_ready(begin_ready),
        .begin_slot(begin_slot),
        .begin_tag(begin_tag),
        .begin_status(begin_status),
        .begin_commands(begin_commands),
        .begin_at(begin_at),
        .slot_failed(failed[cut_slot]),
        .cut_slot(cut_slot),
        .drop_valid(drop_valid),
        .drop_ready(drop_ready),
        .drop_commands(drop_commands),
        .command_valid(cut_valid),
        .command_ready(cut_ready),
        .command_opcode(cut[COMMAND_BITS-1-:8]),
        .command_slot(cut[133+:SLOT_BITS]),
        .command_lba(cut[132:69]),
        .command_blocks(cut[68:65]),
        .command_address(cut[64:1]),
        .command_two_pages(cut[0])
    );

    fastpath_tracker #(
        .SLOTS(SLOTS),
        .RESPONSES(RESPONSES),
        .TIME_BITS(TIME_BITS)
    ) tracker (
        .clock(clock),
        .reset(core_reset),
        .now(now),
        .timeout(timeout),
        .halted(halted),
        .halt_status({12'h800, cause}),
        .can_begin(can_begin),
        .begin_valid(begin_valid),
        .begin_ready(begin_ready),
        .begin_slot(begin_slot),
        .begin_tag(begin_tag),
        .begin_status(begin_status),
        .begin_commands(begin_commands),
        .begin_at(begin_at),
        .done_valid(done_valid),
        .done_slot(done_slot),
        .done_status(done_status),
        .failed(failed),
        .drop_valid(drop_valid),
        .drop_ready(drop_ready),
        .drop_slot(cut_slot),
        .drop_commands(drop_commands),
        .timed_out(timed_out),
        .any_in_flight(any_in_flight),
        .ended(ended),
        .ended_cycles(ended_cycles),
        .response_valid(response_valid),
        .response_ready(response_ready),
        .response(response),
        .responses(responses)
    );

    fastpath_fifo #(
        .WIDTH(COMMAND_BITS),
        .DEPTH(COMMANDS)
    ) command_queue (
        .clock(clock),
        .reset(core_reset),
        .in_valid(cut_valid),
        .in_ready(cut_ready),
        .in_data(cut),
        .out_valid(command_valid),
        .out_ready(command_ready),
        .out_data({
            command_opcode,
            command_slot,
            command_lba,
            command_blocks,
            command_address,
            command_two_pages
        }),
        .count()
    );

    fastpath_submit #(
        .SLOT_BITS(SLOT_BITS)
    ) submit (
        .clock(clock),
        .reset(core_reset),
        .stop(stop),
        .queue_base(submission_base),
        .doorbell_address(submission_doorbell),
        .queue_depth(queue_depth),
        .namespace_id(namespace_id),
        .command_valid(command_valid),
        .command_ready(command_ready),
        .command_opcode(command_opcode),
        .command_slot(command_slot),
        .command_lba(command_lba),
        .command_blocks(command_blocks),
        .command_address(command_address),
        .command_two_pages(command_two_pages),
        .cid_valid(cid_valid),
        .cid_take(cid_take),
        .cid(free_cid),
        .cid_slot(cid_slot),
        .entry_valid(entry_valid),
        .entry_ready(entry_ready),
        .entry_address(entry_address),
        .entry_data(entry_data),
        .entry_written(entry_written),
        .ring_valid(tail_valid),
        .ring_ready(tail_ready),
        .ring_address(tail_address),
        .ring_tail(tail)
    );

    fastpath_cids #(
        .ENTRIES(QUEUE_ENTRIES),
        .SLOT_BITS(SLOT_BITS)
    ) cids (
        .clock(clock),
        .reset(core_reset),
        .limit(limit),
        .free_valid(cid_valid),
        .take(cid_take),
        .free_cid(free_cid),
        .take_slot(cid_slot),
        .looked_up(done_cid),
        .is_out(cid_is_out),
        .slot(out_slot),
        .give_back(cid_give_back),
        .any_out(any_out)
    );

    fastpath_complete #(
        .DATA_WIDTH(DATA_WIDTH),
        .SLOT_BITS(SLOT_BITS)
    ) complete (
        .clock(clock),
        .reset(core_reset),
        .stop(stop),
        .quiet(complete_quiet),
        .queue_base(completion_base),
        .doorbell_address(completion_doorbell),
        .queue_depth(queue_depth),
        .submission_queue_id(queue_id),
        .batch(batch),
        .poll_interval(poll_interval),
        .cid(done_cid),
        .cid_is_out(cid_is_out),
        .cid_slot(out_slot),
        .cid_give_back(cid_give_back),
        .any_out(any_out),
        .done_valid(done_valid),
        .done_slot(done_slot),
        .done_status(done_status),
        .bus_error(read_error),
        .no_sense(no_sense),
        .polled(polled),
        .ring_valid(head_valid),
        .ring_ready(head_ready),
        .ring_address(head_address),
        .ring_head(head),
        .m_axi_araddr(m_axi_araddr),
        .m_axi_arlen(m_axi_arlen),
        .m_axi_arsize(m_axi_arsize),
        .m_axi_arvalid(m_axi_arvalid),
        .m_axi_arready(m_axi_arready),
        .m_axi_rdata(m_axi_rdata),
        .m_axi_rresp(m_axi_rresp),
        .m_axi_rlast(m_axi_rlast),
        .m_axi_rvalid(m_axi_rvalid),
        .m_axi_rready(m_axi_rready)
    );

    fastpath_writer #(
        .DATA_WIDTH(DATA_WIDTH),
        .OUTSTANDING(WRITES)
    ) writer (
        .clock(clock),
        .reset(core_reset),
        .stop(stop),
        .quiet(writer_quiet),
        .command_valid(entry_valid),
        .command_ready(entry_ready),
        .command_address(entry_address),
        .command_data(entry_data),
        .command_written(entry_written),
        .submission_valid(tail_valid),
        .submission_ready(tail_ready),
        .submission_address(tail_address),
        .submission_tail(tail),
        .completion_valid(head_valid),
        .completion_ready(head_ready),
        .completion_address(head_address),
        .completion_head(head),
        .bus_error(write_error),
        .m_axi_awaddr(m_axi_awaddr),
        .m_axi_awlen(m_axi_awlen),
        .m_axi_awsize(m_axi_awsize),
        .m_axi_awvalid(m_axi_awvalid),
        .m_axi_awready(m_axi_awready),
        .m_axi_wdata(m_axi_wdata),
        .m_axi_wstrb(m_axi_wstrb),
        .m_axi_wlast(m_axi_wlast),
        .m_axi_wvalid(m_axi_wvalid),
        .m_axi_wready(m_axi_wready),
        .m_axi_bresp(m_axi_bresp),
        .m_axi_bvalid(m_axi_bvalid),
        .m_axi_bready(m_axi_bready)
    );

    fastpath_counters #(
        .EVENTS(EVENTS),
        .TIME_BITS(TIME_BITS)
    ) counters (
        .clock(clock),
        .reset(reset || (enable && !was_enabled)),
        .events(events),
        .ended(ended),
        .ended_cycles(ended_cycles),
        .counts(counts),
        .latency_min(latency_min),
        .latency_max(latency_max),
        .latency_count(latency_count),
        .latency_sum(latency_sum)
    );
endmodule
