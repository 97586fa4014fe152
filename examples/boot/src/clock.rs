//! The time: the processors' counter, by the rate that a timer of known frequency shows.

use core::sync::atomic::{AtomicU64, Ordering};

use runtime::{Span, Time, WallClock};

use crate::cpu;

/// The frequency of the 8254 interval timer, hertz.
const TIMER_HZ: u64 = 1_193_182;
/// Its channel 2, its command register, and the port that lets it count.
const CHANNEL: u16 = 0x42;
const COMMAND: u16 = 0x43;
const GATE: u16 = 0x61;
/// How far it counts while it is watched: 10 ms.
const COUNTS: u64 = TIMER_HZ / 100;
/// The odd one out is where another program had our processor.
const WATCHED: usize = 5;
/// A timer that does not count is no timer.
const LOOKS: u32 = 1_000_000;

pub static CLOCK: Counter = Counter { begun: AtomicU64::new(0), ps_q32: AtomicU64::new(0) };

/// The processors' counter, which runs at one rate on all of them.
pub struct Counter {
    begun: AtomicU64,
    /// Picoseconds a tick, times 2^32. Zero: nobody has looked yet.
    ps_q32: AtomicU64,
}

impl Counter {
    /// Learns its rate.
    ///
    /// # Errors
    /// There is no timer to compare it with.
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

/// Ticks while the timer counts [`COUNTS`].
fn watch() -> Option<u64> {
    cpu::out8(GATE, cpu::in8(GATE) & !3 | 1);
    // Channel 2, low byte then high, at a rate: it counts down from 65,536 again and again.
    for value in [0xb4, 0, 0] {
        cpu::out8(if value == 0xb4 { COMMAND } else { CHANNEL }, value);
    }
    let (first, begun) = (count(), cpu::ticks());
    for _ in 0..LOOKS {
        let (now, ticks) = (count(), cpu::ticks());
        let counted = u64::from(first.wrapping_sub(now));
        if counted >= COUNTS {
            // As far as it came, not as far as it was meant to.
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

    /// Halts until the next interrupt, which is the tick's at the latest.
    fn idle(&self, _: u32, _: Time) {
        cpu::idle();
    }
}
