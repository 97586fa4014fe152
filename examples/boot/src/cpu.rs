//! The processor: its instructions that the language has no words for, ports, and registers that are mapped
//! into memory.
//!
//! Everything here is safe to call, because of what this program is: nobody else is on the machine, all
//! memory below 4 GiB is mapped as itself, and [`Registers`] refuses what is not above [the end of
//! memory](set_memory_end). What a port or a register makes a device do is said where it is used; a device
//! that writes to memory does so only into what the bus's `Memory` was given.
#![allow(unsafe_code)]

use core::arch::asm;
use core::arch::x86_64::{__cpuid, _mm_pause, _rdtsc};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Writes a byte to a port.
pub fn out8(port: u16, value: u8) {
    // SAFETY: ports reach devices and no memory of ours.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) }
}

/// Reads a byte from a port.
pub fn in8(port: u16) -> u8 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack)) }
    value
}

/// Writes a word to a port.
pub fn out32(port: u16, value: u32) {
    // SAFETY: as above. What was stored before is in memory first, should a device be told to look there.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack)) }
}

/// Reads a word from a port.
pub fn in32(port: u16) -> u32 {
    let value;
    // SAFETY: as above.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nostack)) }
    value
}

#[inline]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and nobody has forbidden it.
    unsafe { _rdtsc() }
}

/// For who looks again and again.
pub fn pause() {
    _mm_pause();
}

/// The number of this processor's local interrupt controller (CPUID leaf 1, EBX bits 31 to 24).
pub fn apic_number() -> u8 {
    (__cpuid(1).ebx >> 24) as u8
}

/// The base of the segment that a core's own words are reached by (`%gs`).
const GS_BASE: u32 = 0xc000_0101;

/// A core's own words: how many interrupts it has taken, and how many it had when it last was idle.
pub type Own = [AtomicU32; 2];

/// They are this core's from now on.
pub fn set_own(words: &'static Own) {
    let at = words.as_ptr().expose_provenance() as u64;
    // SAFETY: nothing that the compiler makes for a program without threads uses that segment.
    unsafe {
        asm!("wrmsr", in("ecx") GS_BASE, in("eax") at as u32, in("edx") (at >> 32) as u32,
             options(nostack));
    }
}

/// Waits for an interrupt, unless one has come since this was last called: what it told of may not have been
/// looked at. `sti` lets none in before the instruction behind it, so none is missed.
pub fn idle() {
    // SAFETY: interrupts are taken already, and the words are this core's (`interrupts::use_them`).
    unsafe {
        asm!(
            "cli", "mov {seen:e}, gs:[0]", "cmp {seen:e}, gs:[4]", "mov gs:[4], {seen:e}", "jne 2f",
            "sti", "hlt", "2:", "sti",
            seen = out(reg) _, options(nostack)
        );
    }
}

/// Takes interrupts from now on.
pub fn take_interrupts() {
    // SAFETY: the table of interrupts is loaded before this is called first (`interrupts::use_them`), and
    // what it leads to keeps all registers, on stacks of its own.
    unsafe { asm!("sti", options(nostack)) }
}

/// Takes none until [`take_interrupts`].
pub fn leave_interrupts() {
    // SAFETY: it only puts off.
    unsafe { asm!("cli", options(nostack)) }
}

/// Takes no interrupts, and does nothing, ever.
pub fn stop() -> ! {
    loop {
        leave_interrupts();
        // SAFETY: it only waits.
        unsafe { asm!("hlt", options(nomem, nostack)) }
    }
}

/// Where memory ends that lies below 4 GiB: registers lie behind it.
static MEMORY_END: AtomicU64 = AtomicU64::new(u64::MAX);
/// What is mapped: the first 4 GiB.
const MAPPED: u64 = 4 << 30;

/// Says where memory ends. Called once, before any registers are reached.
pub fn set_memory_end(end: u64) {
    MEMORY_END.store(end, Ordering::Release);
}

/// Registers of a device, as they lie in memory's address space.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    at: u64,
    bytes: u64,
}

impl Registers {
    /// Those at these addresses; none: there may be memory, or nothing is mapped there.
    pub fn new(at: u64, bytes: u64) -> Option<Registers> {
        let inside = at >= MEMORY_END.load(Ordering::Acquire)
            && at.is_multiple_of(4)
            && at.checked_add(bytes).is_some_and(|end| end <= MAPPED);
        inside.then_some(Registers { at, bytes })
    }

    pub fn at(&self) -> u64 {
        self.at
    }

    /// The word at this offset. All ones where there is none.
    #[inline]
    pub fn read(&self, offset: u64) -> u32 {
        match self.place(offset) {
            // SAFETY: mapped, aligned, and no memory that Rust knows of: `new` and `place` have seen to it.
            Some(place) => unsafe { place.read_volatile() },
            None => u32::MAX,
        }
    }

    /// Stores a word. x86 keeps the order of stores, and so what was stored before it is in memory first.
    #[inline]
    pub fn write(&self, offset: u64, value: u32) {
        core::sync::atomic::fence(Ordering::Release);
        if let Some(place) = self.place(offset) {
            // SAFETY: as above.
            unsafe { place.write_volatile(value) }
        }
    }

    #[inline]
    fn place(&self, offset: u64) -> Option<*mut u32> {
        let inside = offset.is_multiple_of(4) && offset < self.bytes && self.bytes - offset >= 4;
        inside.then(|| core::ptr::with_exposed_provenance_mut((self.at + offset) as usize))
    }
}
