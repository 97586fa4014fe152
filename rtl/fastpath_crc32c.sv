// A near-data function: the CRC-32C of what streams by, which the paper's outlook calls a user-defined function
// between drive and memory. It stands in the way of data and neither holds them up nor changes them: a beat in is the
// same beat out, and the checksum of a packet is there with its last beat.
//
// Castagnoli's polynomial, reflected, ones before and complemented after (RFC 3720, section 12.1 and appendix B.4).
// Packets are whole beats.
`include "fastpath_check.svh"

module fastpath_crc32c #(
    parameter int DATA_WIDTH = 64
) (
    input  logic                  clock,
    input  logic                  reset,

    input  logic [DATA_WIDTH-1:0] s_axis_tdata,
    input  logic                  s_axis_tlast,
    input  logic                  s_axis_tvalid,
    output logic                  s_axis_tready,

    output logic [DATA_WIDTH-1:0] m_axis_tdata,
    output logic                  m_axis_tlast,
    output logic                  m_axis_tvalid,
    input  logic                  m_axis_tready,

    // With the beat that m_axis_tlast marks.
    output logic [          31:0] crc
);
    `FASTPATH_CHECK(g_width, DATA_WIDTH >= 8 && DATA_WIDTH % 8 == 0,
        "fastpath_crc32c: DATA_WIDTH must be whole bytes")

    localparam logic [31:0] POLYNOMIAL = 32'h82F6_3B78;

    logic [31:0] state;
    logic [31:0] next;
    logic        take;

    // One beat is held, so that no ready hangs on what comes in.
    assign s_axis_tready = !m_axis_tvalid || m_axis_tready;
    assign take = s_axis_tvalid && s_axis_tready;
    assign crc = ~state;

    // All bits of a beat, the first byte's lowest first: Yosys makes of it one exclusive or for each bit.
    always_comb begin
        next = m_axis_tvalid && m_axis_tlast ? '1 : state;
        for (int i = 0; i < DATA_WIDTH; i = i + 1) begin
            next = (next >> 1) ^ ((next[0] ^ s_axis_tdata[i]) ? POLYNOMIAL : 32'd0);
        end
    end

    always_ff @(posedge clock) begin
        if (reset) begin
            m_axis_tvalid <= 1'b0;
            m_axis_tlast <= 1'b0;
            state <= '1;
        end else begin
            if (take) begin
                m_axis_tvalid <= 1'b1;
                m_axis_tlast <= s_axis_tlast;
                state <= next;
            end else if (m_axis_tready) begin
                m_axis_tvalid <= 1'b0;
                if (m_axis_tvalid && m_axis_tlast) state <= '1;
            end
        end
        if (take) m_axis_tdata <= s_axis_tdata;
    end
endmodule
