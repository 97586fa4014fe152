//! Interrupt descriptor table, one for all cores, and the task state segment of each core. Interrupts run on
//! a separate stack, since the compiler uses bytes below the stack pointer (the red zone of the System V ABI)
//! that an interrupt on the same stack would overwrite.
#![allow(unsafe_code)]

use alloc::boxed::Box;
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::{console, cpu};

/// Vector of the I/O APIC line in use.
pub const LINE_VECTOR: u8 = 0x2f;
/// Vector of the first message; [`MESSAGES_MAX`] consecutive vectors are for messages.
pub const FIRST_MESSAGE: u8 = 0x30;
/// Vector of each core's timer.
pub const TICK_VECTOR: u8 = 0xf0;
/// Vector of spurious interrupts from a local APIC.
pub const SPURIOUS_VECTOR: u8 = 0xff;
pub const MESSAGES_MAX: usize = 64;

/// Number of interrupts by each message. Written by `start.s`.
#[unsafe(export_name = "MESSAGES")]
static MESSAGES: [AtomicU32; MESSAGES_MAX] = [const { AtomicU32::new(0) }; MESSAGES_MAX];

/// The line in use. The layout is known to `start.s`.
#[repr(C)]
struct Line {
    /// Register number of its entry in the I/O APIC.
    register: AtomicU32,
    masked: AtomicU32,
    /// Address of the I/O APIC's registers.
    controller: AtomicU64,
    /// Number of interrupts by the line.
    count: AtomicU32,
}

#[unsafe(export_name = "LINE")]
static LINE: Line = Line {
    register: AtomicU32::new(0),
    masked: AtomicU32::new(0),
    controller: AtomicU64::new(0),
    count: AtomicU32::new(0),
};

unsafe extern "C" {
    /// Handlers in `start.s`, never called from here.
    fn exception_0();
    fn message_0();
    fn line();
    fn tick();
    fn spurious();
}

/// Distance between the handlers of consecutive exceptions or messages, bytes.
const STEP: u64 = 16;
const EXCEPTIONS: usize = 32;
const CODE_SEGMENT: u16 = 8;
/// Selector of the task state segment, which takes two entries of a core's GDT.
const TASK_SEGMENT: u16 = 0x18;
const STACK_BYTES: usize = 16 << 10;

/// Returns the number of interrupts by message `number`.
pub fn messages(number: usize) -> u32 {
    MESSAGES[number].load(Ordering::Acquire)
}

/// Returns the number of interrupts by the line.
pub fn lines() -> u32 {
    LINE.count.load(Ordering::Acquire)
}

/// Sets the line in use: its I/O APIC, the register of its entry, and the value that masks it. The line must
/// be masked during the call.
pub fn listen(controller: u64, register: u32, masked: u32) {
    LINE.controller.store(controller, Ordering::Release);
    LINE.register.store(register, Ordering::Release);
    LINE.masked.store(masked, Ordering::Release);
}

/// Encodes a descriptor: an interrupt gate to `entry` on the core's stack IST1 (Intel SDM, 6.14.1).
fn gate(entry: u64) -> [u64; 2] {
    let low = entry & 0xffff | u64::from(CODE_SEGMENT) << 16 | 1 << 32 | 0x8e << 40;
    [low | (entry >> 16 & 0xffff) << 48, entry >> 32]
}

/// Interrupt descriptor table, immutable once built.
pub struct Table(Box<[[u64; 2]; 256]>);

impl Table {
    pub fn new() -> &'static Table {
        let address = |code: unsafe extern "C" fn()| code as usize as u64;
        let mut gates = Box::new([[0; 2]; 256]);
        for vector in 0..EXCEPTIONS {
            gates[vector] = gate(address(exception_0) + STEP * vector as u64);
        }
        for number in 0..MESSAGES_MAX {
            let entry = address(message_0) + STEP * number as u64;
            gates[usize::from(FIRST_MESSAGE) + number] = gate(entry);
        }
        for (vector, code) in
            [(LINE_VECTOR, line as _), (TICK_VECTOR, tick as _), (SPURIOUS_VECTOR, spurious as _)]
        {
            gates[usize::from(vector)] = gate(address(code));
        }
        Box::leak(Box::new(Table(gates)))
    }
}

/// Per-core data: GDT, task state segment with its stack, and words.
#[repr(C, align(16))]
struct Own {
    segments: [u64; 5],
    /// Task state segment, 104 bytes (Intel SDM, 8.7); IST1 is at byte 36.
    task: [u32; 26],
    words: cpu::Own,
}

#[repr(C, packed)]
struct Pointer {
    limit: u16,
    at: u64,
}

/// Loads the table on this core, with a new GDT, task state segment and interrupt stack.
pub fn use_them(table: &'static Table) {
    let stack = Box::leak(alloc::vec![0_u128; STACK_BYTES / 16].into_boxed_slice());
    let top = stack.as_ptr_range().end.expose_provenance() as u64;
    let own = Box::leak(Box::new(Own {
        segments: [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0, 0],
        task: [0; 26],
        words: Default::default(),
    }));
    (own.task[9], own.task[10]) = (top as u32, (top >> 32) as u32);
    // No I/O permission bitmap: its offset is past the end of the segment.
    own.task[25] = 104 << 16;
    let at = (&raw const own.task).expose_provenance() as u64;
    own.segments[3] = 103 | (at & 0xff_ffff) << 16 | 0x89 << 40 | (at >> 24 & 0xff) << 56;
    own.segments[4] = at >> 32;
    let own: &'static Own = own;
    let segments = Pointer { limit: 39, at: own.segments.as_ptr().expose_provenance() as u64 };
    let gates = Pointer { limit: 4095, at: table.0.as_ptr().expose_provenance() as u64 };
    // SAFETY: all operands are leaked. The segments 08h and 10h equal those that the core uses already.
    unsafe {
        asm!(
            "lgdt [{segments}]", "ltr {task:x}", "lidt [{gates}]",
            segments = in(reg) &segments, task = in(reg) TASK_SEGMENT, gates = in(reg) &gates,
            options(nostack)
        );
    }
    cpu::set_own(&own.words);
}

#[unsafe(export_name = "exception")]
extern "C" fn exception(number: u64, error: u64, at: u64, address: u64) -> ! {
    console::end_badly(format_args!(
        "exception {number} with {error:#x} at {at:#x}, address {address:#x}, core {}",
        cpu::apic_number()
    ))
}
