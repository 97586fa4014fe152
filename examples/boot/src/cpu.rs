//! Processor access: special instructions, I/O ports, and memory-mapped registers.
//!
//! All functions here are safe to call, because no other program runs on the machine, all memory below 4 GiB
//! is identity-mapped, and [`Registers`] rejects addresses that are not above [the end of
//! memory](set_memory_end). The effects of a port or a register on a device are described at its use; a
//! device writes only to memory that was given to the bus's `Memory`.
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
    // SAFETY: as above. No `nomem`: the write may make a device read memory, so earlier stores come first.
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
    // SAFETY: every x86-64 processor has the instruction, and CPL 0 may always use it.
    unsafe { _rdtsc() }
}

/// Hint for spin loops (PAUSE).
pub fn pause() {
    _mm_pause();
}

/// Returns the number of this processor's local APIC (CPUID leaf 1, EBX bits 31 to 24).
pub fn apic_number() -> u8 {
    (__cpuid(1).ebx >> 24) as u8
}

/// MSR of the `%gs` base, which points to a core's own words.
const GS_BASE: u32 = 0xc000_0101;

/// Per-core words: number of interrupts taken, and that number at the last call of [`idle`].
pub type Own = [AtomicU32; 2];

/// Sets this core's own words.
pub fn set_own(words: &'static Own) {
    let at = words.as_ptr().expose_provenance() as u64;
    // SAFETY: the compiler does not use `%gs` in a program without threads.
    unsafe {
        asm!("wrmsr", in("ecx") GS_BASE, in("eax") at as u32, in("edx") (at >> 32) as u32,
             options(nostack));
    }
}

/// Halts until an interrupt, unless one has arrived since the last call, whose event may not have been
/// processed. `sti` takes effect after the next instruction, `hlt`, so no interrupt is missed.
pub fn idle() {
    // SAFETY: interrupts are enabled already, and the words are this core's (`interrupts::use_them`).
    unsafe {
        asm!(
            "cli", "mov {seen:e}, gs:[0]", "cmp {seen:e}, gs:[4]", "mov gs:[4], {seen:e}", "jne 2f",
            "sti", "hlt", "2:", "sti",
            seen = out(reg) _, options(nostack)
        );
    }
}

/// Enables interrupts on this core.
pub fn take_interrupts() {
    // SAFETY: the interrupt descriptor table is loaded before the first call (`interrupts::use_them`), and
    // its handlers preserve all registers and run on their own stacks.
    unsafe { asm!("sti", options(nostack)) }
}

/// Disables interrupts until [`take_interrupts`].
pub fn leave_interrupts() {
    // SAFETY: it only defers interrupts.
    unsafe { asm!("cli", options(nostack)) }
}

/// Halts this core for ever, with interrupts disabled.
pub fn stop() -> ! {
    loop {
        leave_interrupts();
        // SAFETY: it only waits.
        unsafe { asm!("hlt", options(nomem, nostack)) }
    }
}

/// End of the memory below 4 GiB. Registers are above it.
static MEMORY_END: AtomicU64 = AtomicU64::new(u64::MAX);
/// End of the identity map: 4 GiB.
const MAPPED: u64 = 4 << 30;

/// Sets the end of memory. Called once, before any access to registers.
pub fn set_memory_end(end: u64) {
    MEMORY_END.store(end, Ordering::Release);
}

/// Memory-mapped registers of a device.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    at: u64,
    bytes: u64,
}

impl Registers {
    /// `None` if the range is below the end of memory, above 4 GiB, or not aligned to 4 bytes.
    pub fn new(at: u64, bytes: u64) -> Option<Registers> {
        let inside = at >= MEMORY_END.load(Ordering::Acquire)
            && at.is_multiple_of(4)
            && at.checked_add(bytes).is_some_and(|end| end <= MAPPED);
        inside.then_some(Registers { at, bytes })
    }

    pub fn at(&self) -> u64 {
        self.at
    }

    /// Reads the word at this offset; all ones if the offset is out of range.
    #[inline]
    pub fn read(&self, offset: u64) -> u32 {
        match self.place(offset) {
            // SAFETY: mapped, aligned, and not Rust's memory, as `new` and `place` check.
            Some(place) => unsafe { place.read_volatile() },
            None => u32::MAX,
        }
    }

    /// Stores a word. x86 keeps stores in order, so earlier stores are in memory first.
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
