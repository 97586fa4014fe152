// The AXI4-Lite face: set-up, the windows through which requests, responses and handles go, counters.
//
// wire::fastpath::registers has the same map. A request and a handle take effect with their last word, whole; a
// response goes when its last word is read. Words are written whole. What can't be done is answered with SLVERR
// and changes nothing: an address that is no register, a byte alone, a request that finds no room, a response
// that is not there, a set-up while the engine runs or one that makes no sense.
`include "fastpath_check.svh"

module fastpath_registers #(
    parameter int DATA_WIDTH = 64,
    parameter int REQUESTS = 16,
    parameter int RESPONSES = 16,
    parameter int SLOTS = 8,
    parameter int QUEUE_ENTRIES = 64,
    parameter int HANDLES = 64,
    parameter int EVENTS = 11
) (
    input  logic                        clock,
    input  logic                        reset,

    input  logic [                11:0] s_axi_awaddr,
    input  logic                        s_axi_awvalid,
    output logic                        s_axi_awready,
    input  logic [                31:0] s_axi_wdata,
    input  logic [                 3:0] s_axi_wstrb,
    input  logic                        s_axi_wvalid,
    output logic                        s_axi_wready,
    output logic [                 1:0] s_axi_bresp,
    output logic                        s_axi_bvalid,
    input  logic                        s_axi_bready,
    input  logic [                11:0] s_axi_araddr,
    input  logic                        s_axi_arvalid,
    output logic                        s_axi_arready,
    output logic [                31:0] s_axi_rdata,
    output logic [                 1:0] s_axi_rresp,
    output logic                        s_axi_rvalid,
    input  logic                        s_axi_rready,

    output logic                        enable,
    input  logic                        quiet,
    input  logic                        halted,
    input  logic [                 3:0] cause,
    input  logic                        working,
    output logic                        interrupt,

    output logic [                63:0] submission_base,
    output logic [                63:0] completion_base,
    output logic [                63:0] submission_doorbell,
    output logic [                63:0] completion_doorbell,
    output logic [                15:0] queue_depth,
    output logic [                31:0] namespace_id,
    output logic [                 3:0] lba_shift,
    output logic [                15:0] queue_id,
    output logic [                15:0] batch,
    output logic [                15:0] poll_interval,
    output logic [                47:0] timeout,

    output logic                        request_valid,
    input  logic                        request_ready,
    output logic [               255:0] request,
    input  logic [  $clog2(REQUESTS):0] requests,
    output logic                        overrun,

    input  logic                        response_valid,
    output logic                        response_ready,
    input  logic [               127:0] response,
    input  logic [ $clog2(RESPONSES):0] responses,

    output logic                        handle_write,
    output logic [                15:0] handle_id,
    output logic [                15:0] handle_generation,
    output logic                        handle_live,
    output logic [               255:0] handle_bounds,

    input  logic [       EVENTS*32-1:0] counts,
    input  logic [                31:0] latency_min,
    input  logic [                31:0] latency_max,
    input  logic [                31:0] latency_count,
    input  logic [                63:0] latency_sum
);
    `FASTPATH_CHECK(g_events, EVENTS == 11, "fastpath_registers: the map has places for 11 events")

    localparam logic [31:0] MAGIC = 32'h4850_5446;
    localparam logic [31:0] VERSION = 32'd1;
    localparam logic [1:0] OKAY = 2'b00;
    localparam logic [1:0] SLVERR = 2'b10;

    // Numbers of words, four bytes each.
    localparam logic [9:0] CONTROL = 10'h005;
    localparam logic [9:0] SETUP = 10'h010;
    localparam logic [9:0] COUNTERS = 10'h020;
    localparam logic [9:0] LATENCY = 10'h02b;
    localparam logic [9:0] REQUEST = 10'h040;
    localparam logic [9:0] RESPONSE = 10'h050;
    localparam logic [9:0] HANDLE = 10'h060;

    // A write.
    logic address_held;
    logic [9:0] write_word;
    logic data_held;
    logic [31:0] data;
    logic whole;
    logic writes;
    logic accepted;
    logic is_request;
    logic is_handle;
    logic is_setup;
    logic setup_makes_sense;
    logic commits_request;
    logic commits_handle;
    logic interrupt_enable;
    logic [223:0] request_words;
    logic [287:0] handle_words;
    logic [3:0] part;

    // A read.
    logic read_held;
    logic [9:0] read_word;
    logic answers;
    logic [31:0] read_value;
    logic read_known;
    logic is_response;
    logic [31:0] sum_above;
    logic askew;
    logic read_askew;

    // Writes: address and data come in any order, and are held until both are there and the last response is gone.
    assign s_axi_awready = !address_held;
    assign s_axi_wready = !data_held;
    assign writes = address_held && data_held && !s_axi_bvalid;

    always_ff @(posedge clock) begin
        if (reset) begin
            address_held <= 1'b0;
            data_held <= 1'b0;
            s_axi_bvalid <= 1'b0;
        end else begin
            if (writes) begin
                address_held <= 1'b0;
                data_held <= 1'b0;
                s_axi_bvalid <= 1'b1;
            end else begin
                if (s_axi_awvalid) address_held <= 1'b1;
                if (s_axi_wvalid) data_held <= 1'b1;
                if (s_axi_bready) s_axi_bvalid <= 1'b0;
            end
        end
        if (s_axi_awready) {write_word, askew} <= {s_axi_awaddr[11:2], s_axi_awaddr[1:0] != '0};
        if (s_axi_wready) {data, whole} <= {s_axi_wdata, s_axi_wstrb == '1};
        if (writes) s_axi_bresp <= accepted ? OKAY : SLVERR;
    end

    assign part = write_word[3:0];
    assign is_request = write_word >= REQUEST && write_word < REQUEST + 10'd8;
    assign is_handle = write_word >= HANDLE && write_word < HANDLE + 10'd10;
    assign is_setup = write_word >= SETUP && write_word < SETUP + 10'd16;
    assign commits_request = is_request && part == 4'd7;
    assign commits_handle = is_handle && part == 4'd9;

    always_comb begin
        case (part)
            // Pages for the queues, words for the doorbells.
            4'd0, 4'd2: setup_makes_sense = data[11:0] == '0;
            4'd4, 4'd6: setup_makes_sense = data[1:0] == '0;
            4'd8: setup_makes_sense = data >= 32'd2 && data <= 32'(QUEUE_ENTRIES);
            4'd9: setup_makes_sense = data != '0;
            4'd10: setup_makes_sense = data >= 32'd9 && data <= 32'd13;
            4'd12: setup_makes_sense = data != '0 && data[31:16] == '0;
            4'd11, 4'd13: setup_makes_sense = data[31:16] == '0;
            4'd15: setup_makes_sense = data[31:16] == '0;
            default: setup_makes_sense = 1'b1;
        endcase
    end

    assign accepted = whole && !askew && (
        (write_word == CONTROL && data[31:2] == '0 && (!data[0] || enable || quiet))
        || (is_setup && !enable && quiet && setup_makes_sense)
        || (is_request && (!commits_request || (request_ready && enable)))
        || is_handle);

    assign request_valid = writes && commits_request && whole && !askew && enable;
    assign request = {data, request_words};
    assign overrun = writes && commits_request && !accepted;

    assign handle_write = writes && commits_handle && accepted;
    assign handle_id = handle_words[15:0];
    assign {handle_live, handle_generation} = handle_words[48:32];
    assign handle_bounds = {data, handle_words[287:64]};

    always_ff @(posedge clock) begin
        if (writes && accepted) begin
            for (int i = 0; i < 7; i = i + 1) begin
                if (is_request && part == 4'(i)) request_words[i*32+:32] <= data;
            end
            for (int i = 0; i < 9; i = i + 1) begin
                if (is_handle && part == 4'(i)) handle_words[i*32+:32] <= data;
            end
        end
    end

    always_ff @(posedge clock) begin
        if (reset) begin
            enable <= 1'b0;
            interrupt_enable <= 1'b0;
            submission_base <= '0;
            completion_base <= '0;
            submission_doorbell <= '0;
            completion_doorbell <= '0;
            queue_depth <= 16'd2;
            namespace_id <= 32'd1;
            lba_shift <= 4'd9;
            queue_id <= 16'd1;
            batch <= 16'd1;
            poll_interval <= '0;
            timeout <= '1;
        end else if (writes && accepted) begin
            if (write_word == CONTROL) {interrupt_enable, enable} <= data[1:0];
            if (is_setup) begin
                case (part)
                    4'd0: submission_base[31:0] <= data;
                    4'd1: submission_base[63:32] <= data;
                    4'd2: completion_base[31:0] <= data;
                    4'd3: completion_base[63:32] <= data;
                    4'd4: submission_doorbell[31:0] <= data;
                    4'd5: submission_doorbell[63:32] <= data;
                    4'd6: completion_doorbell[31:0] <= data;
                    4'd7: completion_doorbell[63:32] <= data;
                    4'd8: queue_depth <= data[15:0];
                    4'd9: namespace_id <= data;
                    4'd10: lba_shift <= data[3:0];
                    4'd11: queue_id <= data[15:0];
                    4'd12: batch <= data[15:0];
                    4'd13: poll_interval <= data[15:0];
                    4'd14: timeout[31:0] <= data;
                    default: timeout[47:32] <= data[15:0];
                endcase
            end
        end
    end

    assign interrupt = interrupt_enable && response_valid;

    logic unused;
    assign unused = &{1'b0, handle_words[63:49], handle_words[31:16]};

    // Reads.
    assign s_axi_arready = !read_held;
    assign answers = read_held && !s_axi_rvalid;
    assign is_response = read_word >= RESPONSE && read_word < RESPONSE + 10'd4;
    assign response_ready = answers && read_word == RESPONSE + 10'd3 && !read_askew;

    always_ff @(posedge clock) begin
        if (reset) begin
            read_held <= 1'b0;
            s_axi_rvalid <= 1'b0;
        end else begin
            if (answers) read_held <= 1'b0;
            else if (s_axi_arvalid) read_held <= 1'b1;
            if (answers) s_axi_rvalid <= 1'b1;
            else if (s_axi_rready) s_axi_rvalid <= 1'b0;
        end
        if (s_axi_arready) {read_word, read_askew} <= {s_axi_araddr[11:2], s_axi_araddr[1:0] != '0};
        if (answers) begin
            s_axi_rdata <= read_value;
            s_axi_rresp <= read_known && !read_askew ? OKAY : SLVERR;
            // The halves of a sum are of one moment: reading the lower keeps the upper.
            if (read_word == LATENCY + 10'd3) sum_above <= latency_sum[63:32];
        end
    end

    always_comb begin
        read_known = 1'b1;
        read_value = '0;
        case (read_word)
            10'h000: read_value = MAGIC;
            10'h001: read_value = VERSION;
            10'h002: read_value = {16'(DATA_WIDTH), 16'(QUEUE_ENTRIES)};
            10'h003: read_value = {16'(HANDLES), 16'(SLOTS)};
            10'h004: read_value = {16'(REQUESTS), 16'(RESPONSES)};
            CONTROL: read_value = {30'd0, interrupt_enable, enable};
            10'h006: read_value = {20'd0, cause, 4'd0, working, halted, !quiet, enable};
            10'h007: read_value = {16'(responses), 16'(REQUESTS) - 16'(requests)};
            10'h010: read_value = submission_base[31:0];
            10'h011: read_value = submission_base[63:32];
            10'h012: read_value = completion_base[31:0];
            10'h013: read_value = completion_base[63:32];
            10'h014: read_value = submission_doorbell[31:0];
            10'h015: read_value = submission_doorbell[63:32];
            10'h016: read_value = completion_doorbell[31:0];
            10'h017: read_value = completion_doorbell[63:32];
            10'h018: read_value = {16'd0, queue_depth};
            10'h019: read_value = namespace_id;
            10'h01a: read_value = {28'd0, lba_shift};
            10'h01b: read_value = {16'd0, queue_id};
            10'h01c: read_value = {16'd0, batch};
            10'h01d: read_value = {16'd0, poll_interval};
            10'h01e: read_value = timeout[31:0];
            10'h01f: read_value = {16'd0, timeout[47:32]};
            LATENCY: read_value = latency_min;
            LATENCY + 10'd1: read_value = latency_max;
            LATENCY + 10'd2: read_value = latency_count;
            LATENCY + 10'd3: read_value = latency_sum[31:0];
            LATENCY + 10'd4: read_value = sum_above;
            default: begin
                if (read_word >= COUNTERS && read_word < LATENCY) begin
                    read_value = counts[(read_word-COUNTERS)*32+:32];
                end else if (is_response && response_valid) begin
                    read_value = response[read_word[1:0]*32+:32];
                end else begin
                    read_known = 1'b0;
                end
            end
        endcase
    end
endmodule
