// The second role of FastPath_Control: requests that are in flight, counted down command by command, and their
// responses.
//
// A request that is begun reserves a place in the queue of responses: that queue never overflows, and nothing that
// the drive completes ever waits for whoever reads it. When a command fails, the first status stays, and Control
// cuts no more of the request. When a request is too old the engine halts, and every request in flight is answered with the cause.
`include "fastpath_check.svh"

module fastpath_tracker #(
    parameter int SLOTS = 8,
    parameter int RESPONSES = 16,
    parameter int TIME_BITS = 48
) (
    input  logic                     clock,
    input  logic                     reset,
    input  logic [    TIME_BITS-1:0] now,
    input  logic [    TIME_BITS-1:0] timeout,
    input  logic                     halted,
    input  logic [             15:0] halt_status,

    // A request: begun, or refused if it has a status.
    output logic                     can_begin,
    input  logic                     begin_valid,
    output logic                     begin_ready,
    output logic [$clog2(SLOTS)-1:0] begin_slot,
    input  logic [             15:0] begin_tag,
    input  logic [             15:0] begin_status,
    input  logic [             11:0] begin_commands,
    input  logic [    TIME_BITS-1:0] begin_at,

    // A command of it has completed.
    input  logic                     done_valid,
    input  logic [$clog2(SLOTS)-1:0] done_slot,
    input  logic [             14:0] done_status,

    // The slots of which a command has failed. So many of its commands are not submitted any more.
    output logic [        SLOTS-1:0] failed,
    input  logic                     drop_valid,
    output logic                     drop_ready,
    input  logic [$clog2(SLOTS)-1:0] drop_slot,
    input  logic [             11:0] drop_commands,

    output logic                     timed_out,
    output logic                     any_in_flight,

    // A request has ended that was begun: how long it took.
    output logic                     ended,
    output logic [    TIME_BITS-1:0] ended_cycles,

    output logic                     response_valid,
    input  logic                     response_ready,
    output logic [            127:0] response,
    output logic [$clog2(RESPONSES):0] responses
);
    `FASTPATH_CHECK(g_slots, SLOTS >= 2 && SLOTS <= 256 && (SLOTS & (SLOTS - 1)) == 0,
        "fastpath_tracker: SLOTS must be a power of two from 2 to 256")
    `FASTPATH_CHECK(g_time, TIME_BITS >= 32 && TIME_BITS <= 64,
        "fastpath_tracker: TIME_BITS must be from 32 to 64")

    localparam int BITS = $clog2(SLOTS);
    localparam int PLACE_BITS = $clog2(RESPONSES);
    localparam logic [PLACE_BITS:0] PLACES = (PLACE_BITS + 1)'(RESPONSES);

    logic [         SLOTS-1:0] busy;
    (* ram_style = "distributed" *)
    logic [              55:0] counts[SLOTS];
    (* ram_style = "distributed" *)
    logic [     TIME_BITS-1:0] starts[SLOTS];

    logic [      PLACE_BITS:0] reserved;
    logic                      has_free;
    logic                      begins;
    logic                      refuses;

    // The walk over the slots: for the oldest, and when halted for all.
    logic [          BITS-1:0] walk;
    logic                      walk_ends;
    logic                      seen_busy;
    logic [     TIME_BITS-1:0] seen_start;
    logic                      aged_busy;
    logic [     TIME_BITS-1:0] age;

    logic                      counts_down;
    logic                      drops;
    logic [              11:0] new_left;
    logic [          BITS-1:0] slot;
    logic [              15:0] tag;
    logic [              15:0] status;
    logic [              15:0] new_status;
    logic [              11:0] left;
    logic [              11:0] completed;
    logic [              11:0] new_completed;
    logic [     TIME_BITS-1:0] start;
    logic                      is_last;
    logic                      ends;

    // What goes to the queue of responses, a cycle after it was found.
    logic                      answers;
    logic [              63:0] answer;

    // The free slot with the lowest number.
    logic [          BITS-1:0] free_slot;
    always_comb begin
        free_slot = '0;
        for (int i = SLOTS - 1; i >= 0; i = i - 1) begin
            if (!busy[i]) free_slot = BITS'(i);
        end
    end

    assign has_free = busy != '1;
    assign any_in_flight = busy != '0 || answers;
    assign can_begin = has_free && reserved != PLACES;
    assign begin_slot = free_slot;
    assign begin_ready = can_begin && !counts_down && !walk_ends;
    assign drop_ready = !counts_down && !halted;
    assign drops = drop_valid && drop_ready;
    assign begins = begin_valid && begin_ready && begin_status == '0;
    assign refuses = begin_valid && begin_ready && begin_status != '0;

    assign counts_down = done_valid && !halted;
    assign walk_ends = halted && busy[walk];
    assign slot = halted ? walk : done_valid ? done_slot : drop_slot;
    assign {tag, status, left, completed} = counts[slot];
    assign start = starts[slot];
    assign new_left = drops ? left - drop_commands : left - 12'd1;
    assign is_last = new_left == '0;
    assign new_status = halted ? halt_status : drops || status != '0 ? status : {1'b0, done_status};
    assign new_completed = halted || drops ? completed : completed + 12'd1;
    assign ends = walk_ends || ((counts_down || drops) && is_last);

    always_ff @(posedge clock) begin
        ended <= ends && !reset;
        answers <= (ends || refuses) && !reset;
        ended_cycles <= now - start;
        answer <= ends ? {20'd0, new_completed, new_status, tag} : {32'd0, begin_status, begin_tag};
    end

    always_ff @(posedge clock) begin
        if (begins) starts[begin_slot] <= begin_at;
        if (begins) counts[begin_slot] <= {begin_tag, 16'd0, begin_commands, 12'd0};
`ifdef FASTPATH_MUTANT_FORGETS_BAD_STATUS
        else if (counts_down || drops) counts[slot] <= {tag, 16'd0, new_left, new_completed};
`else
        else if (counts_down || drops) counts[slot] <= {tag, new_status, new_left, new_completed};
`endif
    end

    always_ff @(posedge clock) begin
        if (reset) begin
            busy <= '0;
            failed <= '0;
            reserved <= '0;
        end else begin
            if (begins) busy[begin_slot] <= 1'b1;
            if (begins) failed[begin_slot] <= 1'b0;
            if (counts_down && done_status != '0) failed[slot] <= 1'b1;
            if (ends) busy[slot] <= 1'b0;
            if ((begins || refuses) && !(response_valid && response_ready)) reserved <= reserved + 1'b1;
            else if (!(begins || refuses) && response_valid && response_ready) reserved <= reserved - 1'b1;
        end
    end

    // Age, in three steps: read, subtract, compare.
    always_ff @(posedge clock) begin
        if (reset) begin
            walk <= '0;
            seen_busy <= 1'b0;
            aged_busy <= 1'b0;
            timed_out <= 1'b0;
        end else begin
            walk <= walk + 1'b1;
            seen_busy <= busy[walk];
            aged_busy <= seen_busy;
            timed_out <= aged_busy && age > timeout;
        end
        seen_start <= starts[walk];
        age <= now - seen_start;
    end

    fastpath_fifo #(
        .WIDTH(128),
        .DEPTH(RESPONSES)
    ) queue (
        .clock(clock),
        .reset(reset),
        .in_valid(answers),
        // Its place is reserved.
        .in_ready(),
        .in_data({ended ? 64'(ended_cycles) : 64'd0, answer}),
        .out_valid(response_valid),
        .out_ready(response_ready),
        .out_data(response),
        .count(responses)
    );

`ifdef FORMAL
`include "formal/fastpath_tracker.svh"
`endif
endmodule
