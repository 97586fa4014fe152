//! The block's two AXI ports, cycle by cycle: registers on one side, memory and doorbells on the other.

use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use bus::HostPort;
use wire::BusAddr;

use crate::pins::{Inputs, Outputs};

/// AXI responses OKAY and SLVERR.
const OKAY: u8 = 0;
const SLVERR: u8 = 2;
const ERROR: u8 = 2;

/// Bytes per beat.
const BEAT: u64 = 8;

/// Memory latency in cycles of the block's clock. The time of the bus comes on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the last beat of a write to its response. Its bytes are in memory by then.
    pub write: u32,
    /// From the address of a read to its first beat.
    pub read: u32,
}

/// One register access of the owner.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    Write(u32, u32),
    Read(u32),
}

/// Accesses in order, and their results.
pub struct Sequence {
    pub accesses: Vec<Access>,
    /// Values read, until the first error.
    pub values: Vec<u32>,
    /// Offset of the access that was answered with an error.
    pub error: Option<u32>,
    pub is_done: bool,
}

/// The owner's side: one access at a time.
#[derive(Default)]
pub struct Lite {
    waiting: VecDeque<Rc<RefCell<Sequence>>>,
    next: usize,
    address_taken: bool,
    data_taken: bool,
}

impl Lite {
    pub fn push(&mut self, sequence: Rc<RefCell<Sequence>>) {
        self.waiting.push_back(sequence);
    }

    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    fn current(&self) -> Option<Access> {
        Some(self.waiting.front()?.borrow().accesses[self.next])
    }

    pub fn drive(&self, inputs: &mut Inputs) {
        match self.current() {
            Some(Access::Write(offset, value)) => {
                (inputs.s_axi_awaddr, inputs.s_axi_wdata, inputs.s_axi_wstrb) = (offset, value, 15);
                inputs.s_axi_awvalid = u8::from(!self.address_taken);
                inputs.s_axi_wvalid = u8::from(!self.data_taken);
                inputs.s_axi_bready = 1;
            }
            Some(Access::Read(offset)) => {
                inputs.s_axi_araddr = offset;
                inputs.s_axi_arvalid = u8::from(!self.address_taken);
                inputs.s_axi_rready = 1;
            }
            None => {}
        }
    }

    /// Processes the transfers at the clock edge between `before` and now. Returns true if a sequence has
    /// ended.
    pub fn crossed(&mut self, inputs: &Inputs, before: &Outputs) -> bool {
        let both = |valid: u8, ready: u8| valid & ready & 1 == 1;
        self.address_taken |= both(inputs.s_axi_awvalid, before.s_axi_awready)
            || both(inputs.s_axi_arvalid, before.s_axi_arready);
        self.data_taken |= both(inputs.s_axi_wvalid, before.s_axi_wready);
        if both(before.s_axi_bvalid, inputs.s_axi_bready) {
            return self.answered(before.s_axi_bresp, None);
        }
        if both(before.s_axi_rvalid, inputs.s_axi_rready) {
            return self.answered(before.s_axi_rresp, Some(before.s_axi_rdata));
        }
        false
    }

    fn answered(&mut self, response: u8, value: Option<u32>) -> bool {
        (self.address_taken, self.data_taken) = (false, false);
        let front = self.waiting.front().expect("an answer is to an access").clone();
        let mut sequence = front.borrow_mut();
        if response & ERROR != 0 {
            let (Access::Write(offset, _) | Access::Read(offset)) = sequence.accesses[self.next];
            sequence.error = Some(offset);
        } else if let Some(value) = value {
            sequence.values.push(value);
        }
        self.next += 1;
        sequence.is_done = sequence.error.is_some() || self.next == sequence.accesses.len();
        if sequence.is_done {
            self.next = 0;
            self.waiting.pop_front();
        }
        sequence.is_done
    }
}

/// A write whose response is due at cycle `due`.
struct Written {
    due: u64,
    at: u64,
    bytes: Vec<u8>,
}

/// A beat of a read, due at cycle `due`.
struct Beat {
    due: u64,
    at: u64,
    last: bool,
}

/// The side of memory and drive: always ready, and in order.
pub struct Master<P: HostPort> {
    port: P,
    timing: Timing,
    /// Address of the drive's registers as seen by the block.
    registers: u64,
    addresses: VecDeque<(u64, u8)>,
    beats: VecDeque<Vec<u8>>,
    burst: Vec<u8>,
    written: VecDeque<Written>,
    reads: VecDeque<Beat>,
}

impl<P: HostPort> Master<P> {
    pub fn new(port: P, timing: Timing, registers: u64) -> Master<P> {
        Master {
            port,
            timing,
            registers,
            addresses: VecDeque::new(),
            beats: VecDeque::new(),
            burst: Vec::new(),
            written: VecDeque::new(),
            reads: VecDeque::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.addresses.is_empty()
            && self.burst.is_empty()
            && self.written.is_empty()
            && self.reads.is_empty()
    }

    /// Drives the inputs from memory in this cycle. Each beat of a read is loaded in its own cycle.
    pub fn drive(&self, cycle: u64, inputs: &mut Inputs) {
        (inputs.m_axi_awready, inputs.m_axi_wready, inputs.m_axi_arready) = (1, 1, 1);
        if let Some(write) = self.written.front()
            && write.due <= cycle
        {
            inputs.m_axi_bvalid = 1;
            inputs.m_axi_bresp = if self.reaches(write) { OKAY } else { SLVERR };
        }
        if let Some(beat) = self.reads.front()
            && beat.due <= cycle
        {
            let mut bytes = [0; BEAT as usize];
            let read = self.port.arena().memory().read(BusAddr(beat.at), &mut bytes);
            inputs.m_axi_rdata = u64::from_le_bytes(bytes);
            inputs.m_axi_rresp = if read.is_ok() { OKAY } else { SLVERR };
            inputs.m_axi_rlast = u8::from(beat.last);
            inputs.m_axi_rvalid = 1;
        }
    }

    /// Returns the register offset of a four-byte write, if it addresses a register.
    fn register(&self, write: &Written) -> Option<u32> {
        let offset = write.at.checked_sub(self.registers)?;
        (write.bytes.len() == 4).then_some(u32::try_from(offset).ok()?)
    }

    fn reaches(&self, write: &Written) -> bool {
        let memory = self.port.arena().memory();
        self.register(write).is_some() || memory.holds(BusAddr(write.at), write.bytes.len())
    }

    /// Processes the transfers at the clock edge between `before` and now.
    pub fn crossed(&mut self, cycle: u64, inputs: &Inputs, before: &Outputs) {
        if before.m_axi_bready & inputs.m_axi_bvalid == 1 {
            self.written.pop_front();
        }
        if before.m_axi_rready & inputs.m_axi_rvalid == 1 {
            self.reads.pop_front();
        }
        if before.m_axi_awvalid == 1 {
            self.addresses.push_back((before.m_axi_awaddr, before.m_axi_awlen));
        }
        if before.m_axi_wvalid == 1 {
            let lanes = before.m_axi_wdata.to_le_bytes();
            let kept =
                lanes.iter().enumerate().filter(|(lane, _)| before.m_axi_wstrb >> lane & 1 == 1);
            self.burst.extend(kept.map(|(_, byte)| *byte));
            if before.m_axi_wlast == 1 {
                self.beats.push_back(core::mem::take(&mut self.burst));
            }
        }
        while !self.addresses.is_empty() && !self.beats.is_empty() {
            let (at, _) = self.addresses.pop_front().expect("it was just looked at");
            let bytes = self.beats.pop_front().expect("it was just looked at");
            self.land(Written { due: cycle + u64::from(self.timing.write), at, bytes });
        }
        if before.m_axi_arvalid == 1 {
            for beat in 0..=u64::from(before.m_axi_arlen) {
                self.reads.push_back(Beat {
                    due: cycle + u64::from(self.timing.read),
                    at: before.m_axi_araddr + BEAT * beat,
                    last: beat == u64::from(before.m_axi_arlen),
                });
            }
        }
    }

    /// Performs a write: bytes are in memory, or on their way to a register, before the response.
    fn land(&mut self, write: Written) {
        match self.register(&write) {
            Some(register) => {
                let bytes = write.bytes.as_slice().try_into().expect("a register has four bytes");
                self.port.write32(register, u32::from_le_bytes(bytes));
            }
            // A write outside memory is dropped and gets an error response.
            None => drop(self.port.arena().memory().write(BusAddr(write.at), &write.bytes)),
        }
        self.written.push_back(write);
    }
}
