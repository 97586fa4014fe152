// The write half of the AXI master: who may write next, and the three channels of a write.
//
// Three writers share it. Doorbells go first, that of the submission queue before that of the completion queue:
// each is one beat, and a drive waits for it. A command is a burst of 64 bytes. All bear one identifier, so that
// responses come in order, and a queue of what was written says whose each is.
//
// A write is loaded when its address register is free and the last beat before it is being taken: bursts follow
// each other without a gap.
`include "fastpath_check.svh"

module fastpath_writer #(
    parameter int DATA_WIDTH = 64,
    parameter int OUTSTANDING = 16
) (
    input  logic                    clock,
    input  logic                    reset,
    // Nothing new is begun; what has begun is ended.
    input  logic                    stop,
    output logic                    quiet,

    input  logic                    command_valid,
    output logic                    command_ready,
    input  logic [            63:0] command_address,
    input  logic [           511:0] command_data,
    output logic                    command_written,

    input  logic                    submission_valid,
    output logic                    submission_ready,
    input  logic [            63:0] submission_address,
    input  logic [            15:0] submission_tail,

    input  logic                    completion_valid,
    output logic                    completion_ready,
    input  logic [            63:0] completion_address,
    input  logic [            15:0] completion_head,

    output logic                    bus_error,

    output logic [            63:0] m_axi_awaddr,
    output logic [             7:0] m_axi_awlen,
    output logic [             2:0] m_axi_awsize,
    output logic                    m_axi_awvalid,
    input  logic                    m_axi_awready,
    output logic [  DATA_WIDTH-1:0] m_axi_wdata,
    output logic [DATA_WIDTH/8-1:0] m_axi_wstrb,
    output logic                    m_axi_wlast,
    output logic                    m_axi_wvalid,
    input  logic                    m_axi_wready,
    input  logic [             1:0] m_axi_bresp,
    input  logic                    m_axi_bvalid,
    output logic                    m_axi_bready
);
    `FASTPATH_CHECK(g_width, DATA_WIDTH == 64 || DATA_WIDTH == 128,
        "fastpath_writer: DATA_WIDTH must be 64 or 128")

    localparam int BYTES = DATA_WIDTH / 8;
    localparam int BEATS = 64 / BYTES;
    localparam int BEAT_BITS = $clog2(BEATS);
    localparam logic [7:0] BURST = 8'(BEATS - 1);
    localparam logic [2:0] BEAT_SIZE = 3'($clog2(BYTES));

    logic                 free;
    logic                 load;
    logic                 doorbell;
    logic                 is_command;
    logic [         63:0] doorbell_address;
    logic [         15:0] doorbell_value;

    // What is being written.
    logic [        511:0] data;
    logic [    BYTES-1:0] strobe;
    logic [BEAT_BITS-1:0] left;
    logic                 was_command;
    logic                 room;
    logic                 expected;

    assign free = (!m_axi_awvalid || m_axi_awready)
        && (!m_axi_wvalid || (m_axi_wready && m_axi_wlast)) && room && !stop;
    assign submission_ready = free;
    assign completion_ready = free && !submission_valid;
    assign command_ready = free && !submission_valid && !completion_valid;
    assign doorbell = submission_valid || completion_valid;
    assign is_command = !doorbell;
    assign load = free && (doorbell || command_valid);

    assign doorbell_address = submission_valid ? submission_address : completion_address;
    assign doorbell_value = submission_valid ? submission_tail : completion_head;

    assign m_axi_wdata = data[DATA_WIDTH-1:0];
    assign m_axi_wstrb = strobe;
    assign m_axi_wlast = left == '0;

    always_ff @(posedge clock) begin
        if (reset) begin
            m_axi_awvalid <= 1'b0;
            m_axi_wvalid  <= 1'b0;
        end else begin
            if (load) m_axi_awvalid <= 1'b1;
            else if (m_axi_awready) m_axi_awvalid <= 1'b0;
            if (load) m_axi_wvalid <= 1'b1;
            else if (m_axi_wready && m_axi_wlast) m_axi_wvalid <= 1'b0;
        end
    end

    always_ff @(posedge clock) begin
        if (load) begin
            m_axi_awaddr <= doorbell ? doorbell_address : command_address;
            m_axi_awlen <= doorbell ? 8'd0 : BURST;
            m_axi_awsize <= doorbell ? 3'd2 : BEAT_SIZE;
            // A word of 32 bits lies on every lane; the strobes say which is meant.
            data <= doorbell ? {16{16'd0, doorbell_value}} : command_data;
            strobe <= doorbell ? BYTES'(15) << doorbell_address[$clog2(BYTES)-1:0] : '1;
            left <= doorbell ? '0 : BURST[BEAT_BITS-1:0];
        end else if (m_axi_wvalid && m_axi_wready) begin
            data <= data >> DATA_WIDTH;
            left <= left - 1'b1;
        end
    end

    fastpath_fifo #(
        .WIDTH(1),
        .DEPTH(OUTSTANDING)
    ) written (
        .clock(clock),
        .reset(reset),
        .in_valid(load),
        .in_ready(room),
        .in_data(is_command),
        .out_valid(expected),
        .out_ready(m_axi_bvalid),
        .out_data(was_command),
        .count()
    );

    assign m_axi_bready = expected;
    assign command_written = m_axi_bvalid && expected && was_command && !m_axi_bresp[1];
    assign bus_error = m_axi_bvalid && expected && m_axi_bresp[1];
    assign quiet = !m_axi_awvalid && !m_axi_wvalid && !expected;

    // OKAY and EXOKAY are told from errors by the upper bit alone.
    logic unused;
    assign unused = &{1'b0, m_axi_bresp[0]};

`ifdef FORMAL
`include "formal/fastpath_writer.svh"
`endif
endmodule
