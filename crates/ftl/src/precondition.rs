//! Preconditioning: lays down the steady state of long random or sequential writes without writing.
//!
//! Under uniform random writes the superblocks in use form a queue: each was full of valid units when
//! written, loses them at the same rate as the others, and is collected when it has the fewest. With
//! superblocks evenly spread in age, the valid share falls exponentially from one to that of the victim, and
//! its mean is the share of space in use (Desnoyers, "Analytic Models of SSD Write Performance", ACM
//! Transactions on Storage 2014, for blocks of many pages). That distribution is laid down directly; some
//! random writes then remove its regularity.
//!
//! Sequential overwrites leave the newest superblocks full, and nothing valid in the others. So does one
//! write of each unit in random order, which leaves neighbouring units on any die.
//!
//! The valid units are drawn, and their contents follow from one walk over all units, so a preconditioned
//! block is a few numbers per superpage (`flash/src/chips/laid.rs`) until it is erased.

use alloc::sync::Arc;
use alloc::vec::Vec;

use runtime::{Permutation, Rng};

use crate::ftl::{Ftl, Inner};
use crate::layout::WritePointer;
use crate::nearby::Nearby;
use crate::options::Error;
use crate::pages::{Order, Pages, Steps};
use crate::state::State;
use crate::supers::Phase;

/// Order of the overwrites that precede the steady state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writes {
    Random,
    Sequential,
    /// One of each unit, in random order.
    Scattered,
    /// One of each unit, in order, this many in each plane in turn.
    Striped(u32),
}

impl<P: Pages> Ftl<P> {
    /// Brings a drive that nothing was ever written to into the state in which long uniform random writes
    /// would have left it: every unit is mapped, and reads as zeros. Then `warm_up` units are written at
    /// random, in the ordinary way.
    ///
    /// # Errors
    /// [`Error::InUse`] if anything has been written to the drive.
    pub async fn precondition(&self, warm_up: u64, seed: u64) -> Result<(), Error> {
        self.0.precondition(Writes::Random, warm_up, seed).await
    }

    /// As [`precondition`](Ftl::precondition), for overwrites from the first unit to the last, again and
    /// again, of which the next one begins.
    ///
    /// # Errors
    /// As there.
    pub async fn precondition_sequential(&self, seed: u64) -> Result<(), Error> {
        self.0.precondition(Writes::Sequential, 0, seed).await
    }

    /// As [`precondition`](Ftl::precondition), for one write of each unit, in random order.
    ///
    /// # Errors
    /// As there.
    pub async fn precondition_scattered(&self, seed: u64) -> Result<(), Error> {
        self.0.precondition(Writes::Scattered, 0, seed).await
    }

    /// As [`precondition`](Ftl::precondition), for one write of each unit, in order, `run` units in each
    /// plane of each die in turn: what software leaves that has a superpage of every die open. `run`
    /// divides the units of a plane in a superpage.
    ///
    /// # Errors
    /// As there.
    pub async fn precondition_striped(&self, run: u32, seed: u64) -> Result<(), Error> {
        self.0.precondition(Writes::Striped(run), 0, seed).await
    }
}

impl<P: Pages> Inner<P> {
    async fn precondition(&self, writes: Writes, warm_up: u64, seed: u64) -> Result<(), Error> {
        if !self.state.borrow().is_new() {
            return Err(Error::InUse);
        }
        let mut rng = Rng::for_part(seed, "precondition");
        let plan = self.state.borrow().ages(writes).ok_or(Error::Full)?;
        let units = self.options.units;
        // A walk over all units. The next sequential write is of unit 0, the oldest.
        let (step, first) = match writes {
            Writes::Random => (coprime(units, &mut rng), rng.below(units.into()) as u32),
            Writes::Sequential | Writes::Scattered | Writes::Striped(_) => (1, units - 1),
        };
        let order = match writes {
            Writes::Random | Writes::Sequential => None,
            Writes::Scattered => {
                let order = Permutation::new(units.into(), rng.next_u64());
                Some(Order::Scattered(Arc::new(order)))
            }
            Writes::Striped(run) => {
                let (shape, lane) = (&self.layout.shape, self.layout.plane_units);
                Some(Order::Striped { run, lane, lanes: shape.dies * shape.planes })
            }
        };
        let steps = Steps { step, of: units, order };
        let mut next = steps.after(first, 1);
        let mut map = Nearby::new(units.into());
        if let Some(cached) = self.state.borrow_mut().cached_mut() {
            cached.laid = Some(alloc::vec![0; units as usize]);
        }
        for (superblock, valid) in plan {
            next = self.lay(superblock, valid, (next, &steps), &mut map, &mut rng);
            // Yield between steps of long work.
            self.rt.yield_now().await;
        }
        map.finish(|(logical, unit)| self.state.borrow_mut().put(logical, unit));
        if self.state.borrow().cached().is_some() {
            self.checkpoint().await?;
            if let Some(cached) = self.state.borrow_mut().cached_mut() {
                cached.laid = None;
            }
        }
        let zeros = alloc::vec![0; self.layout.shape.unit_bytes as usize];
        let per_unit = u64::from(self.layout.shape.unit_bytes / self.options.block_bytes);
        for _ in 0..warm_up {
            self.write(rng.below(units.into()) * per_unit, &zeros).await?;
        }
        Ok(())
    }

    /// Fills a superblock with this many valid units at random locations, the next ones of the walk. Returns
    /// the unit that comes after them.
    fn lay(
        &self,
        superblock: u32,
        valid: u32,
        (mut next, steps): (u32, &Steps),
        map: &mut Nearby<(u32, u32)>,
        rng: &mut Rng,
    ) -> u32 {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        let opened = state.next_sequence;
        let (mut wanted, mut left) = (valid, state.supers.all[superblock as usize].units);
        state.supers.lay(superblock, opened);
        let mut chosen = alloc::vec![0_u64; self.layout.row_units.div_ceil(64) as usize];
        for group in 0..self.layout.groups {
            for die in 0..self.layout.shape.dies {
                let write_pointer = WritePointer { superblock, group, die };
                let planes = state.supers.members(superblock, die);
                if planes == 0 {
                    continue;
                }
                let job = state.job(write_pointer, planes, false);
                let first = next;
                chosen.fill(0);
                for (at, (_, unit)) in job.targets(&self.layout).enumerate() {
                    // Selection sampling (Knuth, volume 2, 3.4.2): exact count, all locations equally likely.
                    let is_chosen = wanted == left || rng.chance(wanted.into(), left.into());
                    left -= 1;
                    if is_chosen {
                        wanted -= 1;
                        chosen[at / 64] |= 1 << (at % 64);
                        let logical = steps.unit(next);
                        let put = |(logical, unit)| state.put(logical, unit);
                        map.put(logical, (logical, unit), put);
                        state.supers.set_valid(unit);
                        next = steps.after(next, 1);
                    }
                }
                let row = self.layout.row(write_pointer, planes);
                self.pages.lay_steps(row, job.header, &chosen, first, steps.clone());
                state.recycle(job);
            }
        }
        state.supers.all[superblock as usize].filled = state.next_sequence;
        next
    }
}

/// A step that is coprime to `of`, so that the walk visits every unit.
fn coprime(of: u32, rng: &mut Rng) -> u32 {
    let gcd = |mut a: u32, mut b: u32| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    // A step near the golden ratio puts neighbours far apart.
    let golden = (u64::from(of) * 618_034 / 1_000_000) as u32;
    let mut step = golden.saturating_sub(rng.below(1000) as u32).max(1);
    while gcd(step, of) != 1 {
        step += 1;
    }
    step
}

const ONE: u64 = 1 << 32;

/// e to the power of -x / 2^32, in fixed point with 32 fraction bits, by series and squaring.
fn exp_minus(x: u64) -> u64 {
    // Halved until small, then squared equally often.
    let halvings = 64 - x.leading_zeros().min(64);
    let halvings = halvings.saturating_sub(28);
    let small = x >> halvings;
    let (mut term, mut sum) = (ONE as i128, ONE as i128);
    for n in 1..8 {
        term = -(term * i128::from(small)) / (ONE as i128 * n);
        sum += term;
    }
    let mut result = sum as u128;
    for _ in 0..halvings {
        result = (result * result) >> 32;
    }
    result as u64
}

/// Decay from the newest superblock to the oldest, in fixed point with 32 fraction bits, for which the mean
/// valid share is `mean`: (1 - e^-d) / d = mean.
fn decay(mean: u64) -> u64 {
    let (mut low, mut high) = (1, 64 * ONE);
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        let share = ((u128::from(ONE - exp_minus(middle))) << 32) / u128::from(middle);
        if share > u128::from(mean) { low = middle } else { high = middle }
    }
    low
}

impl State {
    fn is_new(&self) -> bool {
        let unused = |one: &crate::supers::Super| {
            matches!(one.phase, Phase::Gone | Phase::Free { clean: true })
        };
        self.supers.all.iter().all(unused) && self.buffer.waiting() == 0
    }

    /// Superblocks that are left when `kept` units are free, and their units. Free ones are whole, so that
    /// more may be free.
    fn all_but(&self, mut kept: u64) -> (Vec<u32>, u64) {
        let (mut laid, mut space) = (Vec::new(), 0);
        for (at, one) in (0..).zip(&self.supers.all) {
            let units = u64::from(one.units);
            if kept > 0 {
                kept = kept.saturating_sub(units);
            } else if units > 0 {
                laid.push(at);
                space += units;
            }
        }
        (laid, space)
    }

    /// Superblocks to lay down with their numbers of valid units, oldest first. `None` if they are too few
    /// for all units.
    fn ages(&self, writes: Writes) -> Option<Vec<(u32, u32)>> {
        let all = &self.supers.all;
        let owed = u64::from(self.owed()) * u64::from(self.layout.super_units);
        let units = u64::from(self.options.units);
        // As much is free as when the collector begins; on a drive of few superblocks, of which it begins in
        // the middle of one, what the host's writes must leave.
        let free = [self.space().start, self.space().hold];
        let mut left = free.iter().map(|free| self.all_but(free + owed));
        let (laid, space) = left.find(|(_, space)| *space >= units)?;
        if writes != Writes::Random {
            let mut left = units;
            let fill = |at: &u32| {
                let valid = left.min(all[*at as usize].units.into());
                left -= valid;
                (*at, valid as u32)
            };
            let mut plan: Vec<_> = match writes {
                // The newest is not full, so that rows of stripes begin with superpages.
                Writes::Striped(_) => laid.iter().map(fill).collect(),
                _ => {
                    let mut newest_first: Vec<_> = laid.iter().rev().map(fill).collect();
                    newest_first.reverse();
                    newest_first
                }
            };
            if matches!(writes, Writes::Scattered | Writes::Striped(_)) {
                // The rest was never written, so that the collector has nothing to erase.
                plan.retain(|(_, valid)| *valid > 0);
            }
            return Some(plan);
        }
        let decay = decay(((u128::from(units) << 32) / u128::from(space)) as u64);
        let count = laid.len() as u64;
        let share = |age: u64| {
            exp_minus((u128::from(decay) * u128::from(2 * age + 1) / u128::from(2 * count)) as u64)
        };
        let mut plan: Vec<(u32, u32)> = laid
            .iter()
            .zip((0..count).rev())
            .map(|(at, age)| {
                let units = all[*at as usize].units;
                (*at, ((u64::from(units) * share(age)) >> 32).min(units.into()) as u32)
            })
            .collect();
        // Spread the rounding error over all superblocks.
        let mut planned: u64 = plan.iter().map(|(_, valid)| u64::from(*valid)).sum();
        // There is room: `space` is no less than `units`.
        while planned != units {
            for (at, valid) in &mut plan {
                if planned < units && *valid < all[*at as usize].units {
                    (*valid, planned) = (*valid + 1, planned + 1);
                } else if planned > units && *valid > 0 {
                    (*valid, planned) = (*valid - 1, planned - 1);
                }
            }
        }
        Some(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_minus_matches_table_to_six_digits() {
        for (x, expected) in [(0, 1_000_000), (ONE / 2, 606_531), (ONE, 367_879), (5 * ONE, 6_738)]
        {
            let got = (exp_minus(x) * 1_000_000 + ONE / 2) >> 32;
            assert!(got.abs_diff(expected) <= 1, "{got} instead of {expected}");
        }
    }

    #[test]
    fn decay_yields_requested_mean_valid_share() {
        for percent in [50, 78, 87, 93, 99] {
            let d = decay(ONE * percent / 100);
            let mean = (u128::from(ONE - exp_minus(d)) << 32) / u128::from(d);
            let got = (mean as u64 * 10_000) >> 32;
            assert!(got.abs_diff(percent * 100) <= 1, "{got} for {percent} %");
        }
    }

    #[test]
    fn coprime_step_visits_every_unit_once() {
        for of in [1, 2, 97, 1000, 4096] {
            let step = coprime(of, &mut Rng::new(of.into()));
            let mut seen: Vec<u32> = (0..of)
                .map(|at| (u64::from(at) * u64::from(step) % u64::from(of)) as u32)
                .collect();
            seen.sort_unstable();
            assert!(seen.iter().zip(0..).all(|(a, b)| *a == b));
        }
    }
}
