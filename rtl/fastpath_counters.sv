// What the engine has done since it was enabled, and how long requests took, in cycles.
module fastpath_counters #(
    parameter int EVENTS = 11,
    parameter int TIME_BITS = 48
) (
    input  logic                 clock,
    input  logic                 reset,
    // One bit an event.
    input  logic [   EVENTS-1:0] events,
    input  logic                 ended,
    input  logic [TIME_BITS-1:0] ended_cycles,

    output logic [EVENTS*32-1:0] counts,
    output logic [         31:0] latency_min,
    output logic [         31:0] latency_max,
    output logic [         31:0] latency_count,
    output logic [         63:0] latency_sum
);
    logic seen;
    logic [31:0] cycles;
    logic [31:0] short_cycles;

    // More than 32 bits of cycles is half a minute at 125 MHz: then all ones.
    assign short_cycles = ended_cycles[TIME_BITS-1:32] != '0 ? '1 : ended_cycles[31:0];

    for (genvar i = 0; i < EVENTS; i = i + 1) begin : g_count
        logic [31:0] count;
        assign counts[i*32+:32] = count;
        always_ff @(posedge clock) begin
            if (reset) count <= '0;
            else if (events[i]) count <= count + 32'd1;
        end
    end

    always_ff @(posedge clock) begin
        if (reset) begin
            seen <= 1'b0;
            latency_min <= '1;
            latency_max <= '0;
            latency_count <= '0;
            latency_sum <= '0;
        end else begin
            seen <= ended;
            if (seen) begin
                if (cycles < latency_min) latency_min <= cycles;
                if (cycles > latency_max) latency_max <= cycles;
                latency_count <= latency_count + 32'd1;
                latency_sum <= latency_sum + {32'd0, cycles};
            end
        end
        cycles <= short_cycles;
    end
endmodule
