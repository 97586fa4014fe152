//! The argument of `ftl::space`, on drives so small that every state of theirs can be looked at: whatever
//! the host overwrites, and wherever the power is cut, however often, the keep is there, and with the power
//! on the host can write again in the end.
//!
//! A model: a row is valid or not; superblocks that hold as many valid rows are alike.

use std::collections::BTreeSet;

use ftl::policy::Stream;
use ftl::space::{self, Opening};

/// Superblocks, and rows of each. Valid rows at most.
#[derive(Clone, Copy)]
struct Drive {
    superblocks: u32,
    rows: u32,
    valid: u32,
    /// A mistake: the host may have the last erased superblock.
    greedy_host: bool,
    /// Another: the collector takes it as any other, not on trial.
    no_reserve_copy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    written: u32,
    valid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ReserveCopy {
    /// Valid rows of the victim, of which so many have been copied, and rows of the keep written.
    victim: u32,
    copied: u32,
    written: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// Valid rows of each, fewest first.
    filled: Vec<u32>,
    host: Option<Open>,
    collector: Option<Open>,
    reserve_copy: Option<ReserveCopy>,
    free: u32,
}

impl State {
    fn sorted(mut self) -> State {
        self.filled.sort_unstable();
        self
    }

    fn valid(&self) -> u32 {
        let open = |one: Option<Open>| one.map_or(0, |one| one.valid);
        let tried = self.reserve_copy.map_or(0, |reserve_copy| reserve_copy.victim);
        self.filled.iter().sum::<u32>() + open(self.host) + open(self.collector) + tried
    }
}

impl Drive {
    fn may_open(&self, stream: Stream, free: u32) -> Opening {
        match space::may_open(stream, free, 0) {
            Opening::No if self.greedy_host && free == 1 => Opening::Plain,
            Opening::ReserveCopy if self.no_reserve_copy => Opening::Plain,
            other => other,
        }
    }

    /// A full superblock is no longer open.
    fn close(&self, mut state: State) -> State {
        for open in [&mut state.host, &mut state.collector] {
            if let Some(full) = open.take_if(|one| one.written == self.rows) {
                state.filled.push(full.valid);
            }
        }
        state.sorted()
    }

    /// Superblocks of which nothing counts are erased.
    fn erase(&self, mut state: State) -> State {
        let before = state.filled.len();
        state.filled.retain(|valid| *valid > 0);
        state.free += (before - state.filled.len()) as u32;
        state
    }

    fn host_opens(&self, state: &State) -> bool {
        state.host.is_none() && self.may_open(Stream::Host, state.free) == Opening::Plain
    }

    /// The host has a row to write to: what it writes there was nowhere valid, or anywhere.
    fn host_rows(&self, state: &State) -> Vec<State> {
        let mut next = state.clone();
        if self.host_opens(state) {
            next.free -= 1;
            next.host = Some(Open { written: 0, valid: 0 });
        }
        let Some(open) = &mut next.host else { return Vec::new() };
        open.written += 1;
        open.valid += 1;
        self.overwritten(&next, state.valid()).into_iter().map(|one| self.close(one)).collect()
    }

    /// One valid row less, anywhere; or none, if there is room for another.
    fn overwritten(&self, state: &State, before: u32) -> Vec<State> {
        let mut all = Vec::new();
        if before < self.valid {
            all.push(state.clone());
        }
        for at in 0..state.filled.len() {
            let mut next = state.clone();
            next.filled[at] = match next.filled[at].checked_sub(1) {
                Some(valid) => valid,
                None => continue,
            };
            all.push(next);
        }
        let mut open = |change: &dyn Fn(&mut State) -> Option<&mut u32>| {
            let mut next = state.clone();
            if let Some(valid) = change(&mut next).filter(|valid| **valid > 0) {
                *valid -= 1;
                all.push(next);
            }
        };
        open(&|state| state.host.as_mut().map(|one| &mut one.valid));
        open(&|state| state.collector.as_mut().map(|one| &mut one.valid));
        // What has been copied already dies in both places when the trial ends.
        open(&|state| {
            let reserve_copy = state.reserve_copy.as_mut()?;
            reserve_copy.copied -=
                u32::from(reserve_copy.copied == reserve_copy.victim && reserve_copy.copied > 0);
            Some(&mut reserve_copy.victim)
        });
        all
    }

    /// What the collector may do, whichever victim it takes.
    fn collector_rows(&self, state: &State) -> Vec<State> {
        if let Some(reserve_copy) = state.reserve_copy {
            return self.uncommitted_rows(state, reserve_copy);
        }
        let Some(open) = state.collector else { return self.openings(state) };
        let mut all = Vec::new();
        for at in (0..state.filled.len()).filter(|at| state.filled[*at] < self.rows) {
            let mut next = state.clone();
            next.filled[at] -= 1;
            next.collector = Some(Open { written: open.written + 1, valid: open.valid + 1 });
            all.push(self.erase(self.close(next)));
        }
        all
    }

    fn openings(&self, state: &State) -> Vec<State> {
        let mut next = state.clone();
        match self.may_open(Stream::Collector, state.free) {
            Opening::No => Vec::new(),
            Opening::Plain => {
                next.free -= 1;
                next.collector = Some(Open { written: 0, valid: 0 });
                vec![next]
            }
            Opening::ReserveCopy => {
                next.free -= 1;
                let fits = |valid: &u32| space::fits(*valid, self.rows, 1, space::UNCOMMITTED_ROWS);
                let uncommitted = |at: usize| {
                    let mut next = next.clone();
                    let victim = next.filled.remove(at);
                    next.reserve_copy = Some(ReserveCopy { victim, copied: 0, written: 0 });
                    next
                };
                (0..state.filled.len())
                    .filter(|at| fits(&state.filled[*at]))
                    .map(uncommitted)
                    .collect()
            }
        }
    }

    fn uncommitted_rows(&self, state: &State, reserve_copy: ReserveCopy) -> Vec<State> {
        let mut next = state.clone();
        if reserve_copy.copied < reserve_copy.victim {
            let copied = reserve_copy.copied + 1;
            next.reserve_copy =
                Some(ReserveCopy { copied, written: reserve_copy.written + 1, ..reserve_copy });
            return vec![next];
        }
        // With notes of trims or without, then the row that ends it.
        let end = |notes: u32| {
            let mut next = state.clone();
            next.reserve_copy = None;
            next.free += 1;
            let written = reserve_copy.written + notes + 1;
            assert!(written <= self.rows, "a trial has run out of rows: {state:?}");
            next.collector = Some(Open { written, valid: reserve_copy.victim });
            self.close(next)
        };
        vec![end(0), end(1)]
    }

    /// The power is cut: what was open may have lost rows, and gets padding.
    fn cuts(&self, state: &State) -> Vec<State> {
        let mut after = state.clone();
        if let Some(reserve_copy) = after.reserve_copy.take() {
            after.free += 1;
            after.filled.push(reserve_copy.victim);
        }
        for open in [&mut after.host, &mut after.collector] {
            after.free += u32::from(open.take_if(|one| one.valid == 0).is_some());
        }
        let padded = |open: Option<Open>| -> Vec<Option<Open>> {
            let most = open.map_or(0, |one| self.rows - one.written);
            let pad = |rows| open.map(|one| Open { written: one.written + rows, ..one });
            (0..=most).map(pad).collect()
        };
        let mut all = Vec::new();
        for host in padded(after.host) {
            for collector in padded(after.collector) {
                all.push(self.erase(self.close(State { host, collector, ..after.clone() })));
            }
        }
        all
    }

    /// With the power on, the collector taking whatever has fewest valid rows: the host can write again.
    fn goes_on(&self, state: &State) -> bool {
        let mut state = state.clone();
        // Each step copies or erases something; a round that gains nothing comes back to where it was.
        for _ in 0..10 * self.superblocks * self.rows {
            if state.host.is_some() || self.host_opens(&state) {
                return true;
            }
            match self.collector_rows(&state).into_iter().min_by_key(|next| next.filled.clone()) {
                // The row that ends a trial takes what the host has written.
                Some(next) if state.reserve_copy.is_some() && next.reserve_copy.is_none() => {
                    return true;
                }
                Some(next) => state = next,
                None => return false,
            }
        }
        false
    }

    /// Every state that can be reached. `Err`: one in which the argument fails.
    fn explore(&self) -> Result<usize, State> {
        let new = State {
            filled: Vec::new(),
            host: None,
            collector: None,
            reserve_copy: None,
            free: self.superblocks,
        };
        let mut seen = BTreeSet::from([new.clone()]);
        let mut open = vec![new];
        while let Some(state) = open.pop() {
            let keeps = state.free > 0 || state.reserve_copy.is_some();
            if !keeps || !self.goes_on(&state) {
                return Err(state);
            }
            let next = [self.host_rows(&state), self.collector_rows(&state), self.cuts(&state)];
            for next in next.into_iter().flatten().map(|next| self.erase(next)) {
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        Ok(seen.len())
    }
}

fn drive(superblocks: u32, rows: u32) -> Drive {
    let valid = space::most_valid(superblocks, rows, 1, space::UNCOMMITTED_ROWS) as u32;
    Drive { superblocks, rows, valid, greedy_host: false, no_reserve_copy: false }
}

#[test]
fn every_state_of_small_drives_keeps_the_keep_and_goes_on() {
    let heavy = std::env::var_os("DOORBELL_HEAVY").is_some();
    let sizes: &[(u32, u32)] =
        if heavy { &[(4, 4), (5, 4), (5, 5), (6, 5), (6, 6)] } else { &[(4, 4), (5, 4)] };
    for (superblocks, rows) in sizes {
        let one = drive(*superblocks, *rows);
        let states =
            one.explore().unwrap_or_else(|state| panic!("{superblocks} × {rows}: {state:?}"));
        println!("{superblocks} superblocks of {rows} rows: {states} states");
        assert!(states > 500, "{states} states");
    }
}

#[test]
fn without_the_rules_the_model_finds_a_drive_that_stands_still() {
    assert!(Drive { greedy_host: true, ..drive(5, 4) }.explore().is_err());
    assert!(Drive { no_reserve_copy: true, ..drive(5, 4) }.explore().is_err());
    let full = drive(5, 4);
    assert!(Drive { valid: full.valid + 6, ..full }.explore().is_err());
}
