//! Interrupt controllers: the local APIC of each core (Intel SDM, chapter 11), and the 82093AA I/O APIC.

use core::sync::atomic::{AtomicU32, Ordering};

use host::pci::{Line, Message};
use runtime::{Span, WallClock};
use wire::mp::{LOCAL_APIC_AT, Polarity, Trigger};

use crate::clock::CLOCK;
use crate::cpu::{self, Registers};
use crate::interrupts::{self, FIRST_MESSAGE, LINE_VECTOR, SPURIOUS_VECTOR, TICK_VECTOR};

/// Register offsets of the local APIC, bytes.
mod local {
    pub const SPURIOUS: u64 = 0xf0;
    pub const COMMAND: u64 = 0x300;
    pub const COMMAND_HIGH: u64 = 0x310;
    pub const TIMER: u64 = 0x320;
    pub const TIMER_FROM: u64 = 0x380;
    pub const TIMER_NOW: u64 = 0x390;
    pub const TIMER_DIVISOR: u64 = 0x3e0;
    pub const BYTES: u64 = 0x400;
}

/// Period of the timer interrupt: an idle core polls again at the latest after this.
const TICK: Span = Span::ms(1);
const MASKED: u32 = 1 << 16;
const PERIODIC: u32 = 1 << 17;
const BY_16: u32 = 3;
/// Delivery status of the interrupt command register: send pending.
const PENDING: u32 = 1 << 12;

/// Local APIC of a core. Each core sees its own at the same address.
#[derive(Clone, Copy)]
pub struct Local(Registers);

/// Timer counts per tick; 0 until measured.
static COUNTS_OF_A_TICK: AtomicU32 = AtomicU32::new(0);

impl Local {
    /// Enables the local APIC and its periodic timer. `None` if its address is not above memory.
    pub fn begin() -> Option<Local> {
        let own = Local(Registers::new(LOCAL_APIC_AT.into(), local::BYTES)?);
        own.0.write(local::SPURIOUS, u32::from(SPURIOUS_VECTOR) | 1 << 8);
        own.0.write(local::TIMER_DIVISOR, BY_16);
        if COUNTS_OF_A_TICK.load(Ordering::Acquire) == 0 {
            own.0.write(local::TIMER, MASKED);
            own.0.write(local::TIMER_FROM, u32::MAX);
            CLOCK.spin(TICK);
            let counts = u32::MAX - own.0.read(local::TIMER_NOW);
            COUNTS_OF_A_TICK.store(counts.max(1), Ordering::Release);
        }
        own.0.write(local::TIMER, u32::from(TICK_VECTOR) | PERIODIC);
        own.0.write(local::TIMER_FROM, COUNTS_OF_A_TICK.load(Ordering::Acquire));
        Some(own)
    }

    /// Starts another core at a page below 1 MiB: INIT, then two STARTUP IPIs (MultiProcessor Specification
    /// 1.4, B.4).
    pub fn start(&self, core: u8, page: u8) {
        self.send(core, 0x4500);
        CLOCK.spin(Span::ms(10));
        for _ in 0..2 {
            self.send(core, 0x4600 | u32::from(page));
            CLOCK.spin(Span::us(200));
        }
    }

    fn send(&self, core: u8, what: u32) {
        self.0.write(local::COMMAND_HIGH, u32::from(core) << 24);
        self.0.write(local::COMMAND, what);
        let begun = CLOCK.now();
        while self.0.read(local::COMMAND) & PENDING != 0 && CLOCK.now().since(begun) < Span::ms(1) {
            cpu::pause();
        }
    }
}

/// Returns the MSI address and data for message `number` to this core.
pub fn message(core: u8, number: usize) -> Message {
    let data = u32::from(FIRST_MESSAGE) + number as u32;
    Message { at: u64::from(LOCAL_APIC_AT) | u64::from(core) << 12, data }
}

#[derive(Clone, Copy)]
pub struct IoApic(Registers);

/// Memory-mapped offsets: the register number goes to SELECT, its value to or from DATA.
const SELECT: u64 = 0;
const DATA: u64 = 0x10;
const IO_APIC_BYTES: u64 = 0x20;
const VERSION: u32 = 1;
const FIRST_ENTRY: u32 = 0x10;

/// An input of the I/O APIC that is routed to a core.
#[derive(Clone, Copy)]
pub struct Listened {
    controller: IoApic,
    register: u32,
    open: u32,
}

impl IoApic {
    /// Takes the I/O APIC at this address and masks all inputs. `None` if the address is not above memory.
    pub fn begin(at: u64) -> Option<IoApic> {
        let own = IoApic(Registers::new(at, IO_APIC_BYTES)?);
        for input in 0..own.inputs() {
            own.write(FIRST_ENTRY + 2 * input, MASKED);
        }
        Some(own)
    }

    fn inputs(&self) -> u32 {
        self.0.write(SELECT, VERSION);
        (self.0.read(DATA) >> 16 & 0xff) + 1
    }

    fn write(&self, register: u32, value: u32) {
        // The interrupt handler of a line uses SELECT and DATA, too.
        cpu::leave_interrupts();
        self.0.write(SELECT, register);
        self.0.write(DATA, value);
        cpu::take_interrupts();
    }

    /// Routes a line to a core, masked: level-triggered and active low, as on PCI, unless the MP table gives
    /// otherwise. `None` if the controller has no such input.
    pub fn lead(&self, line: &Line, core: u8) -> Option<Listened> {
        let input = u32::from(line.input);
        if input >= self.inputs() {
            return None;
        }
        let low = if line.polarity == Polarity::High { 0 } else { 1 << 13 };
        let level = if line.trigger == Trigger::Edge { 0 } else { 1 << 15 };
        let (register, open) = (FIRST_ENTRY + 2 * input, u32::from(LINE_VECTOR) | low | level);
        self.write(register, open | MASKED);
        self.write(register + 1, u32::from(core) << 24);
        interrupts::listen(self.0.at(), register, open | MASKED);
        Some(Listened { controller: *self, register, open })
    }
}

impl Listened {
    pub fn open(&self) {
        self.controller.write(self.register, self.open);
    }

    pub fn close(&self) {
        self.controller.write(self.register, self.open | MASKED);
    }
}

/// Masks both 8259 controllers, and disconnects them from the processor by the IMCR if the board has one
/// (MultiProcessor Specification 1.4, 3.6.2.1).
pub fn silence_the_old(imcr: bool) {
    cpu::out8(0x21, 0xff);
    cpu::out8(0xa1, 0xff);
    if imcr {
        cpu::out8(0x22, 0x70);
        cpu::out8(0x23, cpu::in8(0x23) | 1);
    }
}
