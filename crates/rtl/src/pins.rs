//! Pins of `fastpath_top` at 64 bits, with its names.
#![allow(missing_docs, reason = "they are the ports of rtl/fastpath_top.sv")]

/// Inputs, constant during one clock cycle.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Inputs {
    pub m_axi_rdata: u64,
    pub s_axi_wdata: u32,
    pub s_axi_awaddr: u32,
    pub s_axi_araddr: u32,
    pub reset_n: u8,
    pub s_axi_awvalid: u8,
    pub s_axi_wvalid: u8,
    pub s_axi_wstrb: u8,
    pub s_axi_bready: u8,
    pub s_axi_arvalid: u8,
    pub s_axi_rready: u8,
    pub m_axi_awready: u8,
    pub m_axi_wready: u8,
    pub m_axi_bresp: u8,
    pub m_axi_bvalid: u8,
    pub m_axi_arready: u8,
    pub m_axi_rresp: u8,
    pub m_axi_rlast: u8,
    pub m_axi_rvalid: u8,
}

/// Outputs after the rising clock edge.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Outputs {
    pub m_axi_awaddr: u64,
    pub m_axi_wdata: u64,
    pub m_axi_araddr: u64,
    pub s_axi_rdata: u32,
    pub s_axi_awready: u8,
    pub s_axi_wready: u8,
    pub s_axi_bresp: u8,
    pub s_axi_bvalid: u8,
    pub s_axi_arready: u8,
    pub s_axi_rresp: u8,
    pub s_axi_rvalid: u8,
    pub m_axi_awlen: u8,
    pub m_axi_awvalid: u8,
    pub m_axi_wstrb: u8,
    pub m_axi_wlast: u8,
    pub m_axi_wvalid: u8,
    pub m_axi_bready: u8,
    pub m_axi_arlen: u8,
    pub m_axi_arvalid: u8,
    pub m_axi_rready: u8,
    pub irq: u8,
}

// The sizes match shim.cpp.
const _: () = assert!(size_of::<Inputs>() == 40 && size_of::<Outputs>() == 48);

/// A block with these pins and a clock.
pub trait Block {
    /// Runs one clock cycle and returns the outputs after its rising edge.
    fn cycle(&mut self, inputs: &Inputs) -> Outputs;
}
