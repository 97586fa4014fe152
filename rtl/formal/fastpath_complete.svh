    // The head wraps at the depth, and the phase turns there and nowhere else; no poll leaves the queue; an address
    // stays until it is taken.
    logic [15:0] depth_before;
    logic [15:0] head_before;
    logic phase_before;
    logic took_before;
    logic offered_before;
    logic [63:0] address_before;
    logic [7:0] length_before;
    logic [15:0] at;
    logic began = 1'b0;

    assign at = 16'((m_axi_araddr - queue_base) >> 4);

    always_ff @(posedge clock) begin
        began <= 1'b1;
        depth_before <= queue_depth;
        head_before <= head;
        phase_before <= phase;
        took_before <= is_taken && !reset;
        offered_before <= m_axi_arvalid && !m_axi_arready && !reset;
        address_before <= m_axi_araddr;
        length_before <= m_axi_arlen;
    end

    always_comb begin
        if (!began) assume (reset);
        assume (queue_depth >= 16'd2 && queue_depth <= 16'd64);
        assume (queue_base == 64'h1000);
        if (began) assume (queue_depth == depth_before);
        if (began) begin
            assert (head < queue_depth);
            if (took_before) begin
                assert (head == (head_before == queue_depth - 16'd1 ? 16'd0 : head_before + 16'd1));
                assert (phase == (phase_before ^ (head_before == queue_depth - 16'd1)));
            end
            if (m_axi_arvalid) begin
                assert (polling);
                assert (32'(at) + ((32'(m_axi_arlen) + 32'd1) >> BEATS_LOG2) <= 32'(queue_depth));
                assert (32'(m_axi_arlen) < 32'd16 << BEATS_LOG2);
            end
            if (offered_before) begin
                assert (m_axi_arvalid && m_axi_araddr == address_before && m_axi_arlen == length_before);
            end
            assert (!(ring_valid && ring_head >= queue_depth));
        end
    end
