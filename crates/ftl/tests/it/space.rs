//! Model check of the proof in `ftl::space`, on drives so small that every state can be visited: with any
//! overwrites by the host and any number of power cuts at any moment, the reserve superblock exists, and with
//! power on the host can eventually write again.
//!
//! In the model a superpage is valid or not; superblocks with equal numbers of valid superpages are
//! equivalent.

use std::collections::BTreeSet;

use ftl::policy::Stream;
use ftl::space::{self, Opening};

/// Number of superblocks, superpages in each, and maximum number of valid superpages.
#[derive(Clone, Copy)]
struct Drive {
    superblocks: u32,
    rows: u32,
    valid: u32,
    /// Deliberate bug: the host may take the last erased superblock.
    greedy_host: bool,
    /// Deliberate bug: the collector commits to the reserve superblock at once.
    no_reserve_copy: bool,
    /// Placement by hints: the host and the collector write a class to a stream of its own, if it is open or
    /// may be opened.
    hinted: bool,
    /// Deliberate bug: a class may take the last erased superblock.
    greedy_class: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    written: u32,
    valid: u32,
}

/// The reserve superblock while it is uncommitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ReserveCopy {
    /// Valid superpages of the victim, the number copied, and superpages written to the reserve superblock.
    victim: u32,
    copied: u32,
    written: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    /// Valid superpages of each filled superblock, fewest first.
    filled: Vec<u32>,
    host: Option<Open>,
    /// The stream of a class.
    class: Option<Open>,
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
        self.filled.iter().sum::<u32>()
            + open(self.host)
            + open(self.class)
            + open(self.collector)
            + tried
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

    fn close(&self, mut state: State) -> State {
        for open in [&mut state.host, &mut state.class, &mut state.collector] {
            if let Some(full) = open.take_if(|one| one.written == self.rows) {
                state.filled.push(full.valid);
            }
        }
        state.sorted()
    }

    /// Erases superblocks without live data.
    fn erase(&self, mut state: State) -> State {
        let before = state.filled.len();
        state.filled.retain(|valid| *valid > 0);
        state.free += (before - state.filled.len()) as u32;
        state
    }

    fn host_opens(&self, state: &State) -> bool {
        state.host.is_none() && self.may_open(Stream::Host, state.free) == Opening::Plain
    }

    /// True if `actor` may open a superblock for the class.
    fn class_opens(&self, actor: Stream, state: &State) -> bool {
        let may = self.may_open(actor, state.free) == Opening::Plain;
        let greedy = self.greedy_class && state.free == 1;
        self.hinted && state.class.is_none() && (may || greedy)
    }

    /// States after the host writes a superpage, whose data were unmapped before or valid anywhere. If its
    /// class has no superblock, it goes to the other stream.
    fn host_rows(&self, state: &State) -> Vec<State> {
        let (mut plain, mut of_class) = (state.clone(), state.clone());
        if self.host_opens(state) {
            plain.free -= 1;
            plain.host = Some(Open { written: 0, valid: 0 });
        }
        if self.class_opens(Stream::Host, state) {
            of_class.free -= 1;
            of_class.class = Some(Open { written: 0, valid: 0 });
        }
        let mut all = Vec::new();
        for (mut next, to_class) in [(plain, false), (of_class, true)] {
            let open = if to_class { &mut next.class } else { &mut next.host };
            let Some(open) = open else { continue };
            open.written += 1;
            open.valid += 1;
            let states = self.overwritten(&next, state.valid());
            all.extend(states.into_iter().map(|one| self.close(one)));
        }
        all
    }

    /// States after the collector copies a superpage to the stream of its class.
    fn class_rows(&self, state: &State) -> Vec<State> {
        let mut begun = state.clone();
        if self.class_opens(Stream::Collector, state) {
            begun.free -= 1;
            begun.class = Some(Open { written: 0, valid: 0 });
        }
        let Some(open) = begun.class.filter(|_| state.reserve_copy.is_none()) else {
            return Vec::new();
        };
        let victims =
            (0..begun.filled.len()).filter(|at| (1..self.rows).contains(&begun.filled[*at]));
        let copied = |at: usize| {
            let mut next = begun.clone();
            next.filled[at] -= 1;
            next.class = Some(Open { written: open.written + 1, valid: open.valid + 1 });
            self.erase(self.close(next))
        };
        victims.map(copied).collect()
    }

    /// States with one valid superpage less, anywhere; or with none less, if there is space for another.
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
        open(&|state| state.class.as_mut().map(|one| &mut one.valid));
        open(&|state| state.collector.as_mut().map(|one| &mut one.valid));
        // Data that have been copied become invalid in both locations at the commit.
        open(&|state| {
            let reserve_copy = state.reserve_copy.as_mut()?;
            reserve_copy.copied -=
                u32::from(reserve_copy.copied == reserve_copy.victim && reserve_copy.copied > 0);
            Some(&mut reserve_copy.victim)
        });
        all
    }

    /// States after a step of the collector, for every choice of victim.
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
        // With trim records or without, then the committing superpage.
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

    /// States after a power cut: open superblocks may have lost superpages, and get padding.
    fn cuts(&self, state: &State) -> Vec<State> {
        let mut after = state.clone();
        if let Some(reserve_copy) = after.reserve_copy.take() {
            after.free += 1;
            after.filled.push(reserve_copy.victim);
        }
        for open in [&mut after.host, &mut after.class, &mut after.collector] {
            after.free += u32::from(open.take_if(|one| one.valid == 0).is_some());
        }
        let padded = |open: Option<Open>| -> Vec<Option<Open>> {
            let most = open.map_or(0, |one| self.rows - one.written);
            let pad = |rows| open.map(|one| Open { written: one.written + rows, ..one });
            (0..=most).map(pad).collect()
        };
        let mut all = Vec::new();
        for host in padded(after.host) {
            for class in padded(after.class) {
                for collector in padded(after.collector) {
                    let padded = State { host, class, collector, ..after.clone() };
                    all.push(self.erase(self.close(padded)));
                }
            }
        }
        all
    }

    /// Returns true if, with power on and greedy collection, the host can eventually write again.
    fn goes_on(&self, state: &State) -> bool {
        let mut state = state.clone();
        // Each step copies or erases; a round that frees no space returns to an earlier state.
        for _ in 0..10 * self.superblocks * self.rows {
            if state.host.is_some() || state.class.is_some() || self.host_opens(&state) {
                return true;
            }
            match self.collector_rows(&state).into_iter().min_by_key(|next| next.filled.clone()) {
                // The committing superpage takes host data.
                Some(next) if state.reserve_copy.is_some() && next.reserve_copy.is_none() => {
                    return true;
                }
                Some(next) => state = next,
                None => return false,
            }
        }
        false
    }

    /// Visits every reachable state. `Err`: a state that violates the proof.
    fn explore(&self) -> Result<usize, State> {
        let new = State {
            filled: Vec::new(),
            host: None,
            class: None,
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
            let next = [
                self.host_rows(&state),
                self.collector_rows(&state),
                self.class_rows(&state),
                self.cuts(&state),
            ];
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
    Drive {
        superblocks,
        rows,
        valid,
        greedy_host: false,
        no_reserve_copy: false,
        hinted: false,
        greedy_class: false,
    }
}

#[test]
fn space_invariant_holds_in_every_state_of_small_drives() {
    let heavy = std::env::var_os("DOORBELL_HEAVY").is_some();
    let sizes: &[(u32, u32)] =
        if heavy { &[(4, 4), (5, 4), (5, 5), (6, 5), (6, 6)] } else { &[(4, 4), (5, 4)] };
    for (superblocks, rows) in sizes {
        let one = drive(*superblocks, *rows);
        let states =
            one.explore().unwrap_or_else(|state| panic!("{superblocks} × {rows}: {state:?}"));
        let hinted = Drive { hinted: true, ..one }.explore();
        let hinted = hinted.unwrap_or_else(|state| panic!("{superblocks} × {rows}: {state:?}"));
        println!("{superblocks} superblocks of {rows} rows: {states} states, {hinted} with hints");
        assert!(states > 500 && hinted > 2 * states, "{states} and {hinted} states");
    }
}

#[test]
fn space_model_detects_deadlock_without_each_rule() {
    assert!(Drive { greedy_host: true, ..drive(5, 4) }.explore().is_err());
    assert!(Drive { no_reserve_copy: true, ..drive(5, 4) }.explore().is_err());
    assert!(Drive { hinted: true, greedy_class: true, ..drive(5, 4) }.explore().is_err());
    let full = drive(5, 4);
    assert!(Drive { valid: full.valid + 6, ..full }.explore().is_err());
}
