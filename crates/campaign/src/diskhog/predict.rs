//! Prediction of live runs: costs of a lock and of a cache line, measured on this machine, and
//! the cores' shares in virtual time with them.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use host::nvme::{SpinLock, SpinOrder};
use plan::Plan;
use runtime::{STD_CLOCK, Span, WallClock};
use world::Warning;

use super::{Hog, HogError, HogStats, simulated};

/// Batches that are timed, of which the median counts.
const BATCHES: usize = 101;
const BATCH: u32 = 256;
/// Longest time that is predicted: shares hardly change later.
const PREDICTED: Span = Span::ms(100);
/// A core is favoured from this share on, where 1 is even.
const FAVOURED: f64 = 1.1;

/// Costs measured on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockCosts {
    /// Taking and giving back a free lock whose line is in the core's cache.
    pub lock: Span,
    /// The way of a line from one core's cache to another's.
    pub transfer: Span,
}

pub fn measure_locks() -> LockCosts {
    let word = SpinLock::new(SpinOrder::Unfair);
    let lock = median(|| {
        let begun = STD_CLOCK.now();
        (0..BATCH).for_each(|_| drop(word.lock()));
        STD_CLOCK.now().since(begun) / u64::from(BATCH)
    });
    LockCosts { lock, transfer: transfer() }
}

/// Half of the time in which a word goes to another thread and comes back.
fn transfer() -> Span {
    let word = AtomicU32::new(0);
    let last = BATCHES as u32 * BATCH * 2;
    thread::scope(|scope| {
        scope.spawn(|| {
            for turn in (1..last).step_by(2) {
                wait_for(&word, turn);
                word.store(turn + 1, Ordering::Release);
            }
        });
        let mut turn = 0;
        median(|| {
            let begun = STD_CLOCK.now();
            for _ in 0..BATCH {
                word.store(turn + 1, Ordering::Release);
                turn += 2;
                wait_for(&word, turn);
            }
            STD_CLOCK.now().since(begun) / u64::from(2 * BATCH)
        })
    })
}

fn wait_for(word: &AtomicU32, value: u32) {
    let mut spins = 0_u32;
    while word.load(Ordering::Acquire) != value {
        spin_loop();
        spins += 1;
        // On one processor the other thread would not run before this one's time is over.
        if spins.is_multiple_of(1 << 14) {
            thread::yield_now();
        }
    }
}

fn median(mut batch: impl FnMut() -> Span) -> Span {
    let mut all: Vec<Span> = (0..BATCHES).map(|_| batch()).collect();
    all.sort();
    all[BATCHES / 2]
}

/// Runs a live workload in virtual time: as many cores as threads, no write-behind, these costs. All other
/// costs are the plan's.
///
/// # Errors
/// As [`simulated`].
pub fn predict(plan: &Plan, hog: &Hog, costs: LockCosts) -> Result<HogStats, HogError> {
    let mut plan = plan.clone();
    plan.host.cores = hog.threads;
    if let Some(sharing) = &mut plan.host.sharing {
        (sharing.lock, sharing.transfer) = (costs.lock, costs.transfer);
        sharing.home = sharing.home.map(|home| home % hog.threads);
    }
    if let Some(kernel) = &mut plan.host.kernel {
        kernel.write_behind = false;
    }
    let hog = Hog { ramp: Span::ZERO, time: hog.time.min(PREDICTED), ..hog.clone() };
    simulated(&plan, &hog)
}

/// The core whose share is highest, if it is favoured.
pub fn favoured(shares: &[f64]) -> Option<usize> {
    let highest = (0..shares.len()).max_by(|a, b| shares[*a].total_cmp(&shares[*b]))?;
    (shares[highest] >= FAVOURED).then_some(highest)
}

/// Several runs of one workload.
#[derive(Clone, Debug)]
pub struct Runs(Vec<HogStats>);

impl Runs {
    /// Runs in any order.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(mut runs: Vec<HogStats>) -> Runs {
        assert!(!runs.is_empty(), "one run at least");
        runs.sort_by_key(HogStats::bytes);
        Runs(runs)
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The run of the median throughput.
    pub fn median(&self) -> &HogStats {
        &self.0[self.0.len() / 2]
    }

    /// Lowest, median and highest share of each core.
    pub fn shares(&self) -> Vec<[f64; 3]> {
        let by_run: Vec<_> = self.0.iter().map(HogStats::shares_by_core).collect();
        let of_core = |core: usize| {
            let mut shares: Vec<f64> = by_run.iter().map(|shares| shares[core]).collect();
            shares.sort_by(f64::total_cmp);
            [shares[0], shares[shares.len() / 2], shares[shares.len() - 1]]
        };
        (0..by_run[0].len()).map(of_core).collect()
    }

    /// Median share of each core.
    pub fn median_shares(&self) -> Vec<f64> {
        self.shares().iter().map(|[_, median, _]| *median).collect()
    }

    pub fn warnings(&self) -> impl Iterator<Item = &Warning> {
        self.0.iter().flat_map(|run| &run.warnings)
    }

    /// Bytes that were compared in all runs.
    pub fn verified_bytes(&self) -> u64 {
        self.0.iter().flat_map(|run| &run.threads).map(|thread| thread.verified_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn favoured_core_has_a_tenth_more_than_an_even_share() {
        assert_eq!(favoured(&[0.9, 1.2, 0.9]), Some(1));
        assert_eq!(favoured(&[1.05, 0.95]), None);
        assert_eq!(favoured(&[]), None);
    }
}
