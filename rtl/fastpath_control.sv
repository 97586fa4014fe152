// The first role of FastPath_Control: takes a request, judges it, and cuts it into commands.
//
//   TAKE    the request, and its handle's entry
//   MEASURE sizes as shifts, sums that the bounds are compared with
//   JUDGE   the first thing that is wrong: opcode, sizes, handle, generation, area, buffer
//   BEGIN   a slot, or a refusal
//   CUT     the other commands, one a cycle, until one of them has failed
//
// A request of one command takes four cycles, as many as writing one at 128 bits.
module fastpath_control #(
    parameter int SLOT_BITS = 3,
    parameter int TIME_BITS = 48
) (
    input  logic                 clock,
    input  logic                 reset,
    input  logic                 stop,
    input  logic                 halted,
    input  logic [TIME_BITS-1:0] now,
    output logic                 idle,

    // Set-up: the size of an LBA as a power of two, 9 to 13.
    input  logic [          3:0] lba_shift,

    input  logic                 request_valid,
    output logic                 request_ready,
    input  logic [        255:0] request,

    output logic [         15:0] handle_id,
    input  logic                 handle_live,
    input  logic [         15:0] handle_generation,
    input  logic [         63:0] handle_area_lba,
    input  logic [         63:0] handle_area_lbas,
    input  logic [         63:0] handle_buffer_address,
    input  logic [         63:0] handle_buffer_bytes,

    input  logic                 can_begin,
    output logic                 begin_valid,
    input  logic                 begin_ready,
    input  logic [SLOT_BITS-1:0] begin_slot,
    output logic [         15:0] begin_tag,
    output logic [         15:0] begin_status,
    output logic [         11:0] begin_commands,
    output logic [TIME_BITS-1:0] begin_at,

    input  logic                 slot_failed,
    output logic [SLOT_BITS-1:0] cut_slot,
    output logic                 drop_valid,
    input  logic                 drop_ready,
    output logic [         11:0] drop_commands,

    output logic                 command_valid,
    input  logic                 command_ready,
    output logic [          7:0] command_opcode,
    output logic [SLOT_BITS-1:0] command_slot,
    output logic [         63:0] command_lba,
    output logic [          3:0] command_blocks,
    output logic [         63:0] command_address,
    output logic                 command_two_pages
);
    localparam logic [7:0] FLUSH = 8'h00;
    localparam logic [7:0] WRITE = 8'h01;
    localparam logic [7:0] READ = 8'h02;

    localparam logic [31:0] SIZE_MAX = 32'h0010_0000;

    // As wire::fastpath::Refusal numbers them.
    localparam logic [15:0] REFUSED = 16'h8000;
    localparam logic [15:0] BAD_HANDLE = REFUSED | 16'd1;
    localparam logic [15:0] STALE = REFUSED | 16'd2;
    localparam logic [15:0] OUTSIDE_AREA = REFUSED | 16'd3;
    localparam logic [15:0] OUTSIDE_BUFFER = REFUSED | 16'd4;
    localparam logic [15:0] BAD_SIZE = REFUSED | 16'd5;
    localparam logic [15:0] BAD_OPCODE = REFUSED | 16'd6;
    localparam logic [15:0] FAILED = REFUSED | 16'd9;

    typedef enum logic [2:0] {
        TAKE,
        MEASURE,
        JUDGE,
        BEGIN,
        CUT
    } state_t;
    state_t state;

    // The request.
    logic [7:0] opcode;
    logic [7:0] zero;
    logic [15:0] tag;
    logic [15:0] generation;
    logic [63:0] offset;
    logic [31:0] size;
    logic [31:0] block_size;
    logic [63:0] buffer_offset;
    logic [TIME_BITS-1:0] taken_at;

    // Its handle.
    logic live;
    logic [15:0] live_generation;
    logic [63:0] area_lba;
    logic [63:0] area_lbas;
    logic [63:0] buffer_address;
    logic [63:0] buffer_bytes;

    // Measured.
    logic is_flush;
    logic known_opcode;
    logic good_size;
    logic good_generation;
    logic [64:0] end_lba;
    logic [64:0] end_byte;
    logic [63:0] first_lba;
    logic [11:0] commands;

    // The block's size as a power of two.
    logic [3:0] block_shift;
    logic block_known;
    logic [63:0] offset_lbas;
    logic [31:0] size_lbas;
    logic [31:0] size_blocks;
    logic [31:0] block_lbas;
    logic [63:0] below_lba;
    logic [63:0] below_block;
    logic sizes_make_sense;

    logic [15:0] status;
    logic [11:0] left;
    logic [63:0] lba;
    logic [63:0] address;
    logic [SLOT_BITS-1:0] slot;
    logic begins;
    logic sends;

    assign handle_id = request[47:32];
    assign request_ready = state == TAKE && can_begin && !stop;
    assign idle = state == TAKE;

    assign block_known = block_size == 32'd512 || block_size == 32'd1024 || block_size == 32'd2048
        || block_size == 32'd4096 || block_size == 32'd8192;
    assign block_shift = block_size[13] ? 4'd13 : block_size[12] ? 4'd12 : block_size[11] ? 4'd11
        : block_size[10] ? 4'd10 : 4'd9;
    assign offset_lbas = offset >> lba_shift;
    assign size_lbas = size >> lba_shift;
    assign size_blocks = size >> block_shift;
    assign block_lbas = block_size >> lba_shift;
    // Ones where an offset must have none.
    assign below_lba = (64'd1 << lba_shift) - 64'd1;
    assign below_block = {32'd0, block_size} - 64'd1;
    assign sizes_make_sense = block_known && block_shift >= lba_shift && size != '0 && size <= SIZE_MAX
        && (size & below_block[31:0]) == '0 && (offset & below_lba) == '0
        && (buffer_offset & below_block) == '0;

    always_ff @(posedge clock) begin
        if (state == TAKE) begin
            {buffer_offset, block_size, size, offset} <= request[255:64];
            generation <= request[63:48];
            tag <= request[31:16];
            zero <= request[15:8];
            opcode <= request[7:0];
            taken_at <= now;
            live <= handle_live;
            live_generation <= handle_generation;
            area_lba <= handle_area_lba;
            area_lbas <= handle_area_lbas;
            buffer_address <= handle_buffer_address;
            buffer_bytes <= handle_buffer_bytes;
        end
    end

    always_ff @(posedge clock) begin
        if (state == MEASURE) begin
            is_flush <= opcode == FLUSH;
            known_opcode <= (opcode == FLUSH || opcode == WRITE || opcode == READ) && zero == '0;
            good_size <= opcode == FLUSH ? size == '0 : sizes_make_sense;
            good_generation <= generation == live_generation;
            end_lba <= {1'b0, offset_lbas} + {33'd0, size_lbas};
            end_byte <= {1'b0, buffer_offset} + {33'd0, size};
            first_lba <= area_lba + offset_lbas;
            commands <= opcode == FLUSH ? 12'd1 : size_blocks[11:0];
        end
    end

    always_ff @(posedge clock) begin
        if (state == JUDGE) begin
            if (!known_opcode) status <= BAD_OPCODE;
            else if (!good_size) status <= BAD_SIZE;
            else if (!live) status <= BAD_HANDLE;
`ifndef FASTPATH_MUTANT_ANY_GENERATION
            else if (!good_generation) status <= STALE;
`endif
`ifdef FASTPATH_MUTANT_AREA_OFF_BY_ONE
            else if (!is_flush && end_lba > {1'b0, area_lbas} + 65'd1) status <= OUTSIDE_AREA;
`else
            else if (!is_flush && end_lba > {1'b0, area_lbas}) status <= OUTSIDE_AREA;
`endif
            else if (!is_flush && end_byte > {1'b0, buffer_bytes}) status <= OUTSIDE_BUFFER;
            else status <= '0;
        end
    end

    assign begin_valid = state == BEGIN && (command_ready || status != '0 || halted) && !stop;
    assign begin_tag = tag;
    assign begin_status = status != '0 ? status : halted ? FAILED : 16'd0;
    assign begin_commands = commands;
    assign begin_at = taken_at;
    assign begins = begin_valid && begin_ready && begin_status == '0;

    // When one has failed, the others are dropped.
    assign cut_slot = slot;
    assign drop_valid = state == CUT && slot_failed && !stop;
    assign drop_commands = left;

    // The first goes with the beginning, the others follow.
    assign command_valid = begins || (state == CUT && !slot_failed && !halted && !stop);
    assign command_opcode = opcode;
    assign command_slot = state == BEGIN ? begin_slot : slot;
    assign command_lba = lba;
    assign command_blocks = block_lbas[3:0] - 4'd1;
    assign command_address = address;
    assign command_two_pages = block_size[13];
    assign sends = command_valid && command_ready;

    always_ff @(posedge clock) begin
        if (state == JUDGE) begin
            lba <= first_lba;
            address <= buffer_address + buffer_offset;
            left <= commands;
        end else if (sends) begin
            lba <= lba + {32'd0, block_lbas};
            address <= address + {32'd0, block_size};
            left <= left - 12'd1;
        end
        if (state == BEGIN) slot <= begin_slot;
    end

    always_ff @(posedge clock) begin
        if (reset) begin
            state <= TAKE;
        end else begin
            case (state)
                TAKE: if (request_valid && request_ready) state <= MEASURE;
                MEASURE: state <= JUDGE;
                JUDGE: state <= BEGIN;
                BEGIN: if (begin_valid && begin_ready) state <= begins && left != 12'd1 ? CUT : TAKE;
                // When the engine has halted the tracker answers for what is not cut yet.
                CUT: if (halted || (drop_valid && drop_ready) || (sends && left == 12'd1)) state <= TAKE;
                default: state <= TAKE;
            endcase
        end
    end

    logic unused;
    assign unused = &{1'b0, request[47:32], size_blocks[31:12], block_lbas[31:4], live_generation};
endmodule
