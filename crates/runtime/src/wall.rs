//! Clock of the live world on an operating system.
//!
//! If the processor's time-stamp counter runs at one rate on all cores and in all power states, it is the
//! clock: reading it takes a third of the time of a system clock read, and a request is timed several
//! times. Its rate is measured once against the system's monotonic clock.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::clock::WallClock;
use crate::time::{Span, Time};

/// Monotonic clock shared by all threads of the process; its epoch is the first use.
pub static STD_CLOCK: StdClock = StdClock;

/// See [`STD_CLOCK`].
pub struct StdClock;

/// The counter's rate against the system clock.
struct Rate {
    epoch: Instant,
    counter: Option<Counter>,
}

#[derive(Clone, Copy)]
struct Counter {
    epoch: u64,
    /// Picoseconds per tick, times 2^32.
    ps_per_tick_q32: u64,
}

static RATE: OnceLock<Rate> = OnceLock::new();

/// Duration of the rate measurement: an error of 100 ns in reading the two clocks is then 5 ppm.
const WATCHED: Duration = Duration::from_millis(20);

/// Checks after which the thread yields between checks instead of pausing the processor: 100 to 200 us.
/// With more busy threads than cores, the peer may be waiting for this core.
const SPINS: u32 = 4_000;
/// The longest sleep if no task waits for memory.
const SLEEP_MAX: Span = Span::ms(1);
/// Typical overrun of a sleep: Linux gives a thread's timers 50 us of slack (prctl(2), PR_SET_TIMERSLACK),
/// and waking takes time.
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

    fn idle(&self, looks: u32) {
        if looks < SPINS {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    /// [`unpark`](std::thread::Thread::unpark) ends the sleep, also if it is called before. Without it the
    /// sleep ends by itself, so no wake-up is lost: at worst it is late by one sleep.
    fn sleep(&self, span: Span) {
        std::thread_local!(static IS_EXACT: () = be_exact());
        IS_EXACT.with(|()| ());
        std::thread::park_timeout(Duration::from_nanos(span.as_ns()));
    }

    /// Sleeps until shortly before `until`, then spins.
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

/// Ends this thread's sleeps when they are over: Linux lets them take 50 us longer, to end several at once.
fn be_exact() {
    #[cfg(all(target_os = "linux", not(miri)))]
    // Otherwise sleeps are longer, and nothing else.
    let _ = rustix::thread::set_current_timer_slack(core::num::NonZeroU64::new(1));
}

/// Pairs of reads of both clocks: on a busy machine a thread may lose its core between two, for longer than
/// the measurement takes.
const READS: u32 = 32;

/// The system clock and the counter at one time: of several pairs, the one that was read in the fewest ticks.
fn read_both<T>(mut system: impl FnMut() -> T, mut counter: impl FnMut() -> u64) -> (T, u64) {
    let mut read = || {
        let begin = counter();
        let system = system();
        let ticks = counter().saturating_sub(begin);
        (ticks, system, begin + ticks / 2)
    };
    let mut closest = read();
    for _ in 1..READS {
        let next = read();
        if next.0 < closest.0 {
            closest = next;
        }
    }
    (closest.1, closest.2)
}

fn measure() -> Rate {
    if !counter_is_steady() {
        return Rate { epoch: Instant::now(), counter: None };
    }
    let (epoch, first) = read_both(Instant::now, read_counter);
    while epoch.elapsed() < WATCHED {
        std::hint::spin_loop();
    }
    let (end, last) = read_both(Instant::now, read_counter);
    let (ticks, elapsed) = (last.saturating_sub(first), end.duration_since(epoch));
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
    // SAFETY: every x86-64 processor has the instruction, and it only reads a counter. An operating system
    // could disable it in user mode; none for which `counter_is_steady` is true does.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Returns true if the counter runs at one rate in all power states and on all cores (Intel SDM, 18.17.1:
/// CPUID leaf 8000_0007h, EDX bit 8).
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

    /// Between most reads the thread loses its core for 100 ms, of which the rate must have nothing.
    #[test]
    fn clocks_are_read_together_on_a_busy_machine() {
        for lost in [0, 1, 2] {
            let (time, reads) = (std::cell::Cell::new(1_000_000_u64), std::cell::Cell::new(0_u32));
            let step = |kind: u32| {
                reads.set(reads.get() + 1);
                let is_calm = (reads.get() - 1) / 3 == 20;
                let more = if kind == lost && !is_calm { 100_000_000 } else { 0 };
                time.set(time.get() + 20 + more);
                time.get()
            };
            let (system, counter) =
                read_both(|| step(1), || step(if reads.get().is_multiple_of(3) { 0 } else { 2 }));
            assert!(system.abs_diff(counter) <= 40, "lost before {lost}: {system} {counter}");
        }
    }

    #[test]
    fn tsc_clock_is_monotonic_and_matches_system_rate() {
        let (system, ours) = (Instant::now(), STD_CLOCK.now());
        let mut last = ours;
        while system.elapsed() < Duration::from_millis(50) {
            let now = STD_CLOCK.now();
            assert!(now >= last);
            last = now;
        }
        // The two clocks are read in opposite orders at the beginning and at the end, so ours ran no longer
        // than the system's, except for the error of the rate.
        let (system, ours) = (system.elapsed().as_nanos() as u64, last.since(ours).as_ns());
        assert!(ours <= system + system / 1000, "{ours} ns in {system} ns");
    }
}
