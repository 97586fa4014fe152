//! Memory functions that the compiler calls and that are otherwise in the C library.
//!
//! They use string instructions, so that the compiler cannot turn a loop into a recursive call.
#![allow(unsafe_code)]

use core::arch::asm;

/// Eight bytes of any alignment.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Word(u64);

/// Copies `bytes` bytes that do not overlap.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's promise. Eight bytes at a time, then the rest.
    unsafe {
        asm!(
            "rep movsq", "mov ecx, {rest:e}", "rep movsb",
            rest = in(reg) bytes & 7,
            inout("rcx") bytes >> 3 => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags)
        );
    }
    to
}

/// Copies `bytes` bytes that may overlap.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= bytes {
        // SAFETY: upwards, no byte is written before it was read.
        return unsafe { memcpy(to, from, bytes) };
    }
    // SAFETY: the caller's promise; downwards, as `to` lies inside what is read. `bytes` is not zero.
    unsafe {
        asm!(
            "std", "rep movsb", "cld",
            inout("rcx") bytes => _,
            inout("rdi") to.wrapping_add(bytes).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(bytes).wrapping_sub(1) => _,
            options(nostack)
        );
    }
    to
}

/// Sets `bytes` bytes.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    let word = u64::from(value as u8) * 0x0101_0101_0101_0101;
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "rep stosq", "mov ecx, {rest:e}", "rep stosb",
            rest = in(reg) bytes & 7,
            inout("rcx") bytes >> 3 => _, inout("rdi") to => _, in("rax") word,
            options(nostack, preserves_flags)
        );
    }
    to
}

/// Compares bytes: returns the difference of the first two that differ, or 0.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    let mut at = 0;
    // By words while they are equal. Volatile, so that the compiler does not turn a loop into a call of
    // memcmp.
    while bytes - at >= 8 {
        let (a, b) = (one.wrapping_add(at).cast::<Word>(), other.wrapping_add(at).cast::<Word>());
        // SAFETY: the caller's promise, and words of any alignment.
        if unsafe { a.read_volatile().0 != b.read_volatile().0 } {
            break;
        }
        at += 8;
    }
    while at < bytes {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (one.add(at).read_volatile(), other.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
        at += 1;
    }
    0
}

/// Compares bytes: returns 0 if they are equal.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, bytes: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(one, other, bytes) }
}
