    // The tail wraps at the depth; the drive is told of an entry once it has been written, and of each exactly once.
    logic [15:0] on_the_way;
    logic [15:0] not_rung;
    logic [15:0] ringing;
    logic [15:0] depth_before;
    logic [15:0] tail_before;
    logic took_before;
    logic began = 1'b0;

    always_ff @(posedge clock) begin
        began <= 1'b1;
        depth_before <= queue_depth;
        tail_before <= tail;
        took_before <= cid_take && !reset;
        if (reset) begin
            on_the_way <= '0;
            not_rung <= '0;
        end else begin
            on_the_way <= on_the_way + 16'(cid_take) - 16'(entry_written);
            not_rung <= (ring_valid && ring_ready ? 16'd0 : not_rung) + 16'(entry_written);
        end
    end

    // Places from one pointer to another.
    function automatic logic [15:0] from_to(input logic [15:0] a, input logic [15:0] b, input logic [15:0] depth);
        from_to = b >= a ? b - a : b + depth - a;
    endfunction

    always_comb begin
        if (!began) assume (reset);
        // Set-up stays; identifiers keep the queue from overflowing; a response is to something.
        assume (queue_depth >= 16'd2 && queue_depth <= 16'd64);
        if (began) assume (queue_depth == depth_before);
        if (on_the_way == '0) assume (!entry_written);
        if (on_the_way + not_rung >= queue_depth - 16'd1) assume (!cid_valid);
        if (began) begin
            assert (tail < queue_depth && written < queue_depth && rung < queue_depth);
            assert (on_the_way + not_rung < queue_depth);
            assert (from_to(written, tail, queue_depth) == on_the_way);
            assert (from_to(rung, written, queue_depth) == not_rung);
            assert (!ring_valid || ring_tail == written);
            assert (ring_valid == (not_rung != '0 && !stop));
            if (took_before) assert (tail == (tail_before == queue_depth - 16'd1 ? 16'd0 : tail_before + 16'd1));
        end
    end
