    // An offer stays as it is until it is taken; a burst has as many beats as its address said; a response is taken
    // for each write, and for nothing else.
    logic offered_address;
    logic offered_data;
    logic [63:0] address_before;
    logic [7:0] length_before;
    logic [DATA_WIDTH-1:0] data_before;
    logic [BYTES-1:0] strobe_before;
    logic last_before;
    logic began = 1'b0;

    always_ff @(posedge clock) begin
        began <= 1'b1;
        offered_address <= m_axi_awvalid && !m_axi_awready && !reset;
        offered_data <= m_axi_wvalid && !m_axi_wready && !reset;
        address_before <= m_axi_awaddr;
        length_before <= m_axi_awlen;
        data_before <= m_axi_wdata;
        strobe_before <= m_axi_wstrb;
        last_before <= m_axi_wlast;
    end

    always_comb begin
        if (!began) assume (reset);
        if (began) begin
            if (offered_address) begin
                assert (m_axi_awvalid && m_axi_awaddr == address_before && m_axi_awlen == length_before);
            end
            if (offered_data) begin
                assert (m_axi_wvalid && m_axi_wdata == data_before && m_axi_wstrb == strobe_before);
                assert (m_axi_wlast == last_before);
            end
            // An address that waits is that of the burst whose beats are going, or have gone.
            if (m_axi_awvalid && m_axi_wvalid) assert (8'(left) <= m_axi_awlen);
            assert (!(load && !room));
            assert (!(command_written && !m_axi_bready));
            assert (3'(command_ready && command_valid) + 3'(submission_ready && submission_valid)
                + 3'(completion_ready && completion_valid) <= 3'd1);
        end
    end
