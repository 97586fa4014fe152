//! Clock: the time-stamp counter, calibrated against the 8254 interval timer.

use core::sync::atomic::{AtomicU64, Ordering};

use runtime::{Span, Time, WallClock};

use crate::cpu;

/// Frequency of the 8254 interval timer, Hz.
const TIMER_HZ: u64 = 1_193_182;
/// Ports of the timer's channel 2, its command register, and the gate of channel 2.
const CHANNEL: u16 = 0x42;
const COMMAND: u16 = 0x43;
const GATE: u16 = 0x61;
/// Timer counts of one calibration: 10 ms.
const COUNTS: u64 = TIMER_HZ / 100;
/// Number of calibrations. The median excludes those where another program had the processor.
const WATCHED: usize = 5;
/// Timer reads after which a timer that does not count is an error.
const LOOKS: u32 = 1_000_000;

pub static CLOCK: Counter = Counter { begun: AtomicU64::new(0), ps_q32: AtomicU64::new(0) };

/// The time-stamp counter, which has one rate on all processors.
pub struct Counter {
    begun: AtomicU64,
    /// Picoseconds per tick, times 2^32; 0 until calibrated.
    ps_q32: AtomicU64,
}

impl Counter {
    /// Calibrates the counter. Returns its frequency, Hz.
    ///
    /// # Errors
    /// The interval timer does not count.
    pub fn begin(&self) -> Result<u64, &'static str> {
        let mut seen = [0; WATCHED];
        for ticks in &mut seen {
            *ticks = watch().ok_or("the interval timer does not count")?;
        }
        seen.sort_unstable();
        let ticks = seen[WATCHED / 2].max(1);
        let ps = u128::from(COUNTS) * 1_000_000_000_000 / u128::from(TIMER_HZ);
        self.begun.store(cpu::ticks(), Ordering::Release);
        self.ps_q32.store(((ps << 32) / u128::from(ticks)) as u64, Ordering::Release);
        Ok(ticks * TIMER_HZ / COUNTS)
    }

    pub fn spin(&self, span: Span) {
        let begun = self.now();
        while self.now().since(begun) < span {
            cpu::pause();
        }
    }
}

/// Measures the ticks for [`COUNTS`] timer counts; `None` if the timer does not count.
fn watch() -> Option<u64> {
    cpu::out8(GATE, cpu::in8(GATE) & !3 | 1);
    // Channel 2, low byte then high, mode 2: it counts down from 65,536 periodically.
    for value in [0xb4, 0, 0] {
        cpu::out8(if value == 0xb4 { COMMAND } else { CHANNEL }, value);
    }
    let (first, begun) = (count(), cpu::ticks());
    for _ in 0..LOOKS {
        let (now, ticks) = (count(), cpu::ticks());
        let counted = u64::from(first.wrapping_sub(now));
        if counted >= COUNTS {
            // Scaled by the actual count, which may exceed COUNTS.
            return Some((ticks - begun) * COUNTS / counted);
        }
    }
    None
}

fn count() -> u16 {
    cpu::out8(COMMAND, 0x80);
    u16::from_le_bytes([cpu::in8(CHANNEL), cpu::in8(CHANNEL)])
}

impl WallClock for Counter {
    #[inline]
    fn now(&self) -> Time {
        let ticks = cpu::ticks().saturating_sub(self.begun.load(Ordering::Relaxed));
        let ps_q32 = self.ps_q32.load(Ordering::Relaxed);
        Time(((u128::from(ticks) * u128::from(ps_q32)) >> 32) as u64)
    }

    /// Halts until the next interrupt, at the latest the timer's.
    fn idle(&self, _: u32) {
        cpu::idle();
    }

    /// As [`idle`](Self::idle): a shorter sleep than asked for is allowed.
    fn sleep(&self, _: Span) {
        cpu::idle();
    }
}
