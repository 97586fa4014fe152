// The block, as calls from C. The structures are those of src/pins.rs.
#include <cstddef>
#include <cstdint>

#include "Vfastpath_top.h"
#include "verilated.h"

struct Inputs {
    uint64_t m_axi_rdata;
    uint32_t s_axi_wdata;
    uint32_t s_axi_awaddr;
    uint32_t s_axi_araddr;
    uint8_t reset_n;
    uint8_t s_axi_awvalid;
    uint8_t s_axi_wvalid;
    uint8_t s_axi_wstrb;
    uint8_t s_axi_bready;
    uint8_t s_axi_arvalid;
    uint8_t s_axi_rready;
    uint8_t m_axi_awready;
    uint8_t m_axi_wready;
    uint8_t m_axi_bresp;
    uint8_t m_axi_bvalid;
    uint8_t m_axi_arready;
    uint8_t m_axi_rresp;
    uint8_t m_axi_rlast;
    uint8_t m_axi_rvalid;
};

struct Outputs {
    uint64_t m_axi_awaddr;
    uint64_t m_axi_wdata;
    uint64_t m_axi_araddr;
    uint32_t s_axi_rdata;
    uint8_t s_axi_awready;
    uint8_t s_axi_wready;
    uint8_t s_axi_bresp;
    uint8_t s_axi_bvalid;
    uint8_t s_axi_arready;
    uint8_t s_axi_rresp;
    uint8_t s_axi_rvalid;
    uint8_t m_axi_awlen;
    uint8_t m_axi_awvalid;
    uint8_t m_axi_wstrb;
    uint8_t m_axi_wlast;
    uint8_t m_axi_wvalid;
    uint8_t m_axi_bready;
    uint8_t m_axi_arlen;
    uint8_t m_axi_arvalid;
    uint8_t m_axi_rready;
    uint8_t irq;
};

static_assert(sizeof(Inputs) == 40, "as in pins.rs");
static_assert(sizeof(Outputs) == 48, "as in pins.rs");

struct Block {
    VerilatedContext context;
    Vfastpath_top top{&context};
};

// Verilator asks for the time of $time, which the block does not use.
double sc_time_stamp() { return 0; }

extern "C" {

Block *fastpath_new() { return new Block(); }

void fastpath_free(Block *block) { delete block; }

// One cycle: what is put in settles, the clock rises, and what comes out is what is there after it.
void fastpath_cycle(Block *block, const Inputs *in, Outputs *out) {
    Vfastpath_top &top = block->top;
    top.clock = 0;
    top.m_axi_rdata = in->m_axi_rdata;
    top.s_axi_wdata = in->s_axi_wdata;
    top.s_axi_awaddr = in->s_axi_awaddr;
    top.s_axi_araddr = in->s_axi_araddr;
    top.reset_n = in->reset_n;
    top.s_axi_awvalid = in->s_axi_awvalid;
    top.s_axi_wvalid = in->s_axi_wvalid;
    top.s_axi_wstrb = in->s_axi_wstrb;
    top.s_axi_bready = in->s_axi_bready;
    top.s_axi_arvalid = in->s_axi_arvalid;
    top.s_axi_rready = in->s_axi_rready;
    top.m_axi_awready = in->m_axi_awready;
    top.m_axi_wready = in->m_axi_wready;
    top.m_axi_bresp = in->m_axi_bresp;
    top.m_axi_bvalid = in->m_axi_bvalid;
    top.m_axi_arready = in->m_axi_arready;
    top.m_axi_rresp = in->m_axi_rresp;
    top.m_axi_rlast = in->m_axi_rlast;
    top.m_axi_rvalid = in->m_axi_rvalid;
    top.eval();
    top.clock = 1;
    top.eval();
    out->m_axi_awaddr = top.m_axi_awaddr;
    out->m_axi_wdata = top.m_axi_wdata;
    out->m_axi_araddr = top.m_axi_araddr;
    out->s_axi_rdata = top.s_axi_rdata;
    out->s_axi_awready = top.s_axi_awready;
    out->s_axi_wready = top.s_axi_wready;
    out->s_axi_bresp = top.s_axi_bresp;
    out->s_axi_bvalid = top.s_axi_bvalid;
    out->s_axi_arready = top.s_axi_arready;
    out->s_axi_rresp = top.s_axi_rresp;
    out->s_axi_rvalid = top.s_axi_rvalid;
    out->m_axi_awlen = top.m_axi_awlen;
    out->m_axi_awvalid = top.m_axi_awvalid;
    out->m_axi_wstrb = top.m_axi_wstrb;
    out->m_axi_wlast = top.m_axi_wlast;
    out->m_axi_wvalid = top.m_axi_wvalid;
    out->m_axi_bready = top.m_axi_bready;
    out->m_axi_arlen = top.m_axi_arlen;
    out->m_axi_arvalid = top.m_axi_arvalid;
    out->m_axi_rready = top.m_axi_rready;
    out->irq = top.irq;
}

}
