//! The clock of the live world, where there is an operating system.
//!
//! Where the processor's time-stamp counter runs at one rate on all cores and in all states, it is the
//! clock: reading it takes a third of what asking the operating system takes, and a request is timed
//! several times. Its rate is measured once against the system's steady clock.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::rt::WallClock;
use crate::time::{Span, Time};

/// The steady clock that all threads of the process share, from the moment it was first asked.
pub static STD_CLOCK: StdClock = StdClock;

/// See [`STD_CLOCK`].
pub struct StdClock;

/// The counter against the system's clock.
struct Rate {
    epoch: Instant,
    counter: Option<Counter>,
}

#[derive(Clone, Copy)]
struct Counter {
    epoch: u64,
    /// Picoseconds of a tick, times 2^32.
    ps_per_tick_q32: u64,
}

static RATE: OnceLock<Rate> = OnceLock::new();

/// How long the counter is watched for its rate: an error of 100 ns in reading the two clocks is then
/// 5 ppm.
const WATCHED: Duration = Duration::from_millis(20);

/// Looks after which it no longer pauses the processor between them, but yields it: a tenth of a
/// millisecond or two. Where there are more busy threads than cores, the other end may be waiting for
/// this very core.
const SPINS: u32 = 4_000;
/// Looks spent yielding before it sleeps: some tenths of a second, so that a request that comes after a
/// pause does not wait for a sleeper, unless the pause was long.
const YIELDS: u32 = 400_000;
/// Sleeps grow from the first to the second: what a wake-up may cost in latency.
const SLEEP_MIN: Span = Span::us(20);
const SLEEP_MAX: Span = Span::ms(1);
/// A sleep ends about so much too late: Linux gives a thread's timers 50 us of slack (prctl(2),
/// PR_SET_TIMERSLACK), and waking takes a while.
const SLEEP_LATE: Span = Span::us(80);

impl WallClock for StdClock {
    #[inline]
    fn now(&self) -> Time {
        let rate = RATE.get_or_init(measure);
        match rate.counter {
            Some(counter) => {
                let ticks = read_counter().saturating_sub(counter.epoch);
                Time(((u128::from(ticks) * u128::from(counter.ps_per_tick_q32)) >> 32) as u64)
            }
            None => {
                let elapsed = rate.epoch.elapsed();
                Time(
                    elapsed.as_secs() * 1_000_000_000_000
                        + u64::from(elapsed.subsec_nanos()) * 1_000,
                )
            }
        }
    }

    /// Spins, then yields, then sleeps. A sleep ends by itself, so no wake-up is ever lost:
    /// at worst it is late by the length of one sleep.
    fn idle(&self, looks: u32, until: Time) {
        if looks < SPINS {
            std::hint::spin_loop();
        } else if looks < SPINS + YIELDS {
            std::thread::yield_now();
        } else {
            let growth = u64::from((looks - SPINS - YIELDS) / 64 + 1);
            let sleep = (SLEEP_MIN * growth).min(SLEEP_MAX).min(until.since(self.now()));
            std::thread::sleep(Duration::from_nanos(sleep.as_ns()));
        }
    }

    /// Sleeps until shortly before, and spins from there.
    fn sleep_for(&self, until: Time) {
        let left = until.since(self.now());
        if left > SLEEP_LATE {
            let sleep = Span(left.0 - SLEEP_LATE.0).min(SLEEP_MAX);
            std::thread::sleep(Duration::from_nanos(sleep.as_ns()));
        } else {
            std::hint::spin_loop();
        }
    }
}

fn measure() -> Rate {
    let epoch = Instant::now();
    if !counter_is_steady() {
        return Rate { epoch, counter: None };
    }
    let first = read_counter();
    while epoch.elapsed() < WATCHED {
        std::hint::spin_loop();
    }
    let (ticks, elapsed) = (read_counter() - first, epoch.elapsed());
    let ps = u128::from(elapsed.as_nanos() as u64) * 1_000;
    let counter = (ticks > 0).then(|| Counter {
        epoch: first,
        ps_per_tick_q32: ((ps << 32) / u128::from(ticks)) as u64,
    });
    Rate { epoch, counter }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn read_counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and it only reads a counter. An operating
    // system could forbid it to programs; none that `counter_is_steady` is true on does.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Whether the counter runs at one rate, in all states and on all cores (Intel SDM, 18.17.1: CPUID
/// leaf 8000_0007h, EDX bit 8).
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn counter_is_steady() -> bool {
    use core::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & 1 << 8 != 0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn read_counter() -> u64 {
    0
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn counter_is_steady() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_runs_backwards_and_keeps_the_systems_pace() {
        let (system, ours) = (Instant::now(), STD_CLOCK.now());
        let mut last = ours;
        while system.elapsed() < Duration::from_millis(50) {
            let now = STD_CLOCK.now();
            assert!(now >= last);
            last = now;
        }
        // Both were read in one order at the beginning and in another at the end: ours ran for no
        // longer than the system's, but for the rate's own error.
        let (system, ours) = (system.elapsed().as_nanos() as u64, last.since(ours).as_ns());
        assert!(ours <= system + system / 1000, "{ours} ns in {system} ns");
    }
}
