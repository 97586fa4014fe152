//! Console on COM1: one verdict or remark per line, in the format of the other hardware tools.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::cpu;
use crate::lock::Lock;

/// COM1, and its line status register.
const PORT: u16 = 0x3f8;
const LINE_STATUS: u16 = PORT + 5;
const READY: u8 = 1 << 5;
/// Polls of the line status after which a byte is sent anyway.
const LOOKS: u32 = 100_000;
/// Port of QEMU's `isa-debug-exit`: QEMU exits with status 2 * value + 1.
const EXIT: u16 = 0xf4;
const PASSED: u32 = 0x10;
const FAILED: u32 = 0x11;

static LINE: Lock<Serial> = Lock::new(Serial);
static FAILURES: AtomicU32 = AtomicU32::new(0);
static VERDICTS: AtomicU32 = AtomicU32::new(0);
/// True after a panic: later failures print no more.
static ENDING: AtomicBool = AtomicBool::new(false);

struct Serial;

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let mut looks = 0;
            while cpu::in8(LINE_STATUS) & READY == 0 && looks < LOOKS {
                looks += 1;
            }
            cpu::out8(PORT, byte);
        }
        Ok(())
    }
}

/// 115,200 baud, eight bits, no parity.
pub fn begin() {
    for (register, value) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)] {
        cpu::out8(PORT + register, value);
    }
}

pub fn say(text: fmt::Arguments<'_>) {
    // `Serial` never fails.
    let _ = LINE.lock().write_fmt(format_args!("{text}\n"));
}

/// Prints the result of a check, and counts it.
pub fn verdict(name: fmt::Arguments<'_>, result: Result<impl fmt::Display, impl fmt::Display>) {
    VERDICTS.fetch_add(1, Ordering::Relaxed);
    match result {
        Ok(more) => say(format_args!("ok {name}: {more}")),
        Err(why) => {
            FAILURES.fetch_add(1, Ordering::Relaxed);
            say(format_args!("not ok {name}: {why}"));
        }
    }
}

/// Prints the totals and exits QEMU: with PASSED if there were checks and none failed, else FAILED.
pub fn end() -> ! {
    let (failed, all) = (FAILURES.load(Ordering::Relaxed), VERDICTS.load(Ordering::Relaxed));
    say(format_args!("{} passed, {failed} failed", all - failed));
    cpu::out32(EXIT, if failed == 0 && all > 0 { PASSED } else { FAILED });
    cpu::stop()
}

/// Exits QEMU with FAILED after a fatal error. Takes no lock, as this core may hold it.
pub fn end_badly(why: fmt::Arguments<'_>) -> ! {
    if !ENDING.swap(true, Ordering::Relaxed) {
        let _ = Serial.write_fmt(format_args!("\nnot ok the program: {why}\n"));
        cpu::out32(EXIT, FAILED);
    }
    cpu::stop()
}
