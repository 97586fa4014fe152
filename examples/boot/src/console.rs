//! The first serial line: what is said, a verdict or a remark a line, as the other hardware tools say it.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::cpu;
use crate::lock::Lock;

/// COM1, and two of its registers.
const PORT: u16 = 0x3f8;
const LINE_STATUS: u16 = PORT + 5;
const READY: u8 = 1 << 5;
/// Nobody listens to a line that is not ready after so many looks.
const LOOKS: u32 = 100_000;
/// QEMU's `isa-debug-exit`: it ends with twice the value and one.
const EXIT: u16 = 0xf4;
const PASSED: u32 = 0x10;
const FAILED: u32 = 0x11;

static LINE: Lock<Serial> = Lock::new(Serial);
static FAILURES: AtomicU32 = AtomicU32::new(0);
static VERDICTS: AtomicU32 = AtomicU32::new(0);
/// Somebody has panicked: others say nothing more.
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
    // A serial line fails in no way that anybody could be told of.
    let _ = LINE.lock().write_fmt(format_args!("{text}\n"));
}

/// Says whether something is as it is to be.
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

/// Ends the machine, with a status that says whether all was as it is to be.
pub fn end() -> ! {
    let (failed, all) = (FAILURES.load(Ordering::Relaxed), VERDICTS.load(Ordering::Relaxed));
    say(format_args!("{} passed, {failed} failed", all - failed));
    cpu::out32(EXIT, if failed == 0 && all > 0 { PASSED } else { FAILED });
    cpu::stop()
}

/// The same, with something that must not happen: no lock is waited for, as whoever holds it may be this
/// core.
pub fn end_badly(why: fmt::Arguments<'_>) -> ! {
    if !ENDING.swap(true, Ordering::Relaxed) {
        let _ = Serial.write_fmt(format_args!("\nnot ok the program: {why}\n"));
        cpu::out32(EXIT, FAILED);
    }
    cpu::stop()
}
