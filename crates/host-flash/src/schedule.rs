//! Commands that wait on the host for their die: at most a given number is outstanding at each.
//!
//! ```text
//!   call ─► queues of a die: reads for callers │ the rest ─► slot of the endpoint ─► ring
//!                                                  └ of the die with the fewest outstanding
//! ```
//!
//! In order of arrival, commands for one busy die can hold all slots of an endpoint while its other dies are
//! idle. Nothing starves: a die that is passed over has more outstanding than others, and is the next when
//! these end; a command that is no caller's read is overtaken by [`OVERTAKEN_MAX`] of them at most. A waiting
//! command is known by the place of its answer, of which there is a fixed number: no queue allocates.

use alloc::boxed::Box;
use core::cell::Cell;
use core::task::{Context, Poll};

use runtime::{Parked, Rt};
use wire::pages::Operation;

use super::store::NONE;

/// Reads that may overtake the first other command of a die.
const OVERTAKEN_MAX: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Nowhere,
    Queued,
    /// It has this slot, and is outstanding.
    Granted(u16),
}

struct Waiting {
    at: Cell<At>,
    next: Cell<u16>,
    die: Cell<usize>,
    owner: Cell<Option<Parked>>,
}

/// Places that wait, oldest first.
struct Queue {
    first: Cell<u16>,
    last: Cell<u16>,
}

struct Die {
    outstanding: Cell<u32>,
    reads: Queue,
    others: Queue,
    /// Reads that have overtaken the first of the others.
    overtaken: Cell<u32>,
}

/// Queues of the dies of an endpoint.
pub(super) struct Schedule {
    /// Most commands outstanding at a die.
    most: u32,
    dies: Box<[Die]>,
    waiting: Box<[Waiting]>,
    queued: Cell<u32>,
    /// The die that is looked at first.
    hand: Cell<usize>,
}

/// Die of a command, and whether a caller waits for what it reads.
pub(super) fn die_of(operation: &Operation) -> (u32, bool) {
    match operation {
        Operation::Read { page, collects, .. } => (page.die, !collects),
        Operation::MarkBad(page) => (page.die, false),
        Operation::Program { row, .. } | Operation::Erase(row) => (row.die, false),
        Operation::ListBad { die, .. } => (*die, false),
    }
}

impl Schedule {
    pub fn new(most: u32, dies: u32, places: u16) -> Schedule {
        let queue = || Queue { first: Cell::new(NONE), last: Cell::new(NONE) };
        let die = |_| Die {
            outstanding: Cell::new(0),
            reads: queue(),
            others: queue(),
            overtaken: Cell::new(0),
        };
        let place = |_| Waiting {
            at: Cell::new(At::Nowhere),
            next: Cell::new(NONE),
            die: Cell::new(0),
            owner: Cell::new(None),
        };
        Schedule {
            most,
            dies: (0..dies).map(die).collect(),
            waiting: (0..places).map(place).collect(),
            queued: Cell::new(0),
            hand: Cell::new(0),
        }
    }

    /// Its memory in bytes.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.dies[..]) + size_of_val(&self.waiting[..])
    }

    fn waiting(&self, place: u16) -> &Waiting {
        &self.waiting[usize::from(place)]
    }

    /// Queues a command.
    pub fn enter(&self, die: usize, read: bool, place: u16) {
        let waiting = self.waiting(place);
        assert_eq!(waiting.at.get(), At::Nowhere, "a place has one command");
        waiting.at.set(At::Queued);
        waiting.next.set(NONE);
        waiting.die.set(die);
        let queue = if read { &self.dies[die].reads } else { &self.dies[die].others };
        match queue.last.replace(place) {
            NONE => queue.first.set(place),
            last => self.waiting(last).next.set(place),
        }
        self.queued.set(self.queued.get() + 1);
    }

    /// The die whose command gets the next slot: of those that may have more outstanding, the one with the
    /// fewest.
    pub fn next(&self) -> Option<usize> {
        if self.queued.get() == 0 {
            return None;
        }
        let count = self.dies.len();
        let all = (self.hand.get()..self.hand.get() + count).map(|at| at % count);
        let waits = |at: &usize| {
            let die = &self.dies[*at];
            let any = die.reads.first.get() != NONE || die.others.first.get() != NONE;
            any && die.outstanding.get() < self.most
        };
        all.filter(waits).min_by_key(|at| self.dies[*at].outstanding.get())
    }

    /// Gives the slot to the first command of this die, which must have one: a read, unless too many have
    /// overtaken another.
    pub fn grant(&self, rt: &Rt, die: usize, slot: u16) {
        self.hand.set((die + 1) % self.dies.len());
        let die = &self.dies[die];
        let (read, other) = (die.reads.first.get(), die.others.first.get());
        let reads = read != NONE && (other == NONE || die.overtaken.get() < OVERTAKEN_MAX);
        die.overtaken.set(if reads && other != NONE { die.overtaken.get() + 1 } else { 0 });
        let (queue, place) = if reads { (&die.reads, read) } else { (&die.others, other) };
        self.unlink(queue, place);
        die.outstanding.set(die.outstanding.get() + 1);
        let waiting = self.waiting(place);
        waiting.at.set(At::Granted(slot));
        if let Some(owner) = waiting.owner.take() {
            rt.unpark(owner);
        }
    }

    /// Die and slot of a queued command. The caller has the slot from here on.
    pub fn poll(&self, rt: &Rt, cx: &Context<'_>, place: u16) -> Poll<(usize, u16)> {
        let waiting = self.waiting(place);
        match waiting.at.get() {
            At::Granted(slot) => {
                waiting.at.set(At::Nowhere);
                Poll::Ready((waiting.die.get(), slot))
            }
            At::Queued => {
                waiting.owner.set(Some(rt.park(cx)));
                Poll::Pending
            }
            At::Nowhere => Poll::Pending,
        }
    }

    /// Withdraws a command. Returns its die and slot, if it has one: it is outstanding until
    /// [`ended`](Schedule::ended).
    pub fn leave(&self, place: u16) -> Option<(usize, u16)> {
        let waiting = self.waiting(place);
        waiting.owner.take();
        match waiting.at.replace(At::Nowhere) {
            At::Nowhere => None,
            At::Granted(slot) => Some((waiting.die.get(), slot)),
            At::Queued => {
                let die = &self.dies[waiting.die.get()];
                let _ = self.unlink(&die.reads, place) || self.unlink(&die.others, place);
                None
            }
        }
    }

    /// A command of this die is no longer outstanding.
    pub fn ended(&self, die: usize) {
        let outstanding = &self.dies[die].outstanding;
        outstanding.set(outstanding.get() - 1);
    }

    /// Takes a place out of a queue; returns false if it is not there.
    fn unlink(&self, queue: &Queue, place: u16) -> bool {
        let (mut before, mut at) = (NONE, queue.first.get());
        while at != place {
            if at == NONE {
                return false;
            }
            (before, at) = (at, self.waiting(at).next.get());
        }
        let next = self.waiting(at).next.get();
        match before {
            NONE => queue.first.set(next),
            before => self.waiting(before).next.set(next),
        }
        if next == NONE {
            queue.last.set(before);
        }
        self.queued.set(self.queued.get() - 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use runtime::Log;

    /// Places in the order in which slots are granted, as far as the limit allows.
    fn granted(schedule: &Schedule) -> Vec<u16> {
        let rt = Rt::simulated(None, Log::Off);
        let mut order = Vec::new();
        while let Some(die) = schedule.next() {
            schedule.grant(&rt, die, 0);
            let is_granted =
                |place: &u16| matches!(schedule.waiting(*place).at.get(), At::Granted(_));
            let place = (0..schedule.waiting.len() as u16).find(is_granted).unwrap();
            assert_eq!(schedule.leave(place), Some((die, 0)));
            order.push(place);
        }
        order
    }

    #[test]
    fn dies_with_fewest_outstanding_commands_come_first() {
        let schedule = Schedule::new(2, 3, 16);
        for place in 0..8 {
            schedule.enter(0, true, place);
        }
        assert_eq!(granted(&schedule), [0, 1], "the limit of a die");
        schedule.enter(2, true, 8);
        assert_eq!(granted(&schedule), [8]);
        // The next in turn is die 0, which has one outstanding.
        schedule.ended(0);
        schedule.enter(1, true, 9);
        assert_eq!(granted(&schedule), [9, 2], "the idle one first");
        schedule.ended(0);
        schedule.enter(1, true, 10);
        schedule.enter(2, true, 11);
        assert_eq!(granted(&schedule), [10, 11, 3], "in turn, where they have as many");
    }

    #[test]
    fn reads_overtake_others_a_bounded_number_of_times() {
        let schedule = Schedule::new(64, 1, 32);
        schedule.enter(0, false, 30);
        schedule.enter(0, false, 31);
        for place in 0..20 {
            schedule.enter(0, true, place);
        }
        let order = granted(&schedule);
        let place_of = |place| order.iter().position(|at| *at == place);
        assert_eq!(place_of(30), Some(OVERTAKEN_MAX as usize), "{order:?}");
        assert_eq!(place_of(31), Some(2 * OVERTAKEN_MAX as usize + 1), "{order:?}");
        assert_eq!(order.len(), 22);
    }

    #[test]
    fn withdrawn_commands_leave_their_queue_in_order() {
        let schedule = Schedule::new(64, 1, 8);
        for place in 0..5 {
            schedule.enter(0, true, place);
        }
        for place in [4, 0, 2] {
            assert_eq!(schedule.leave(place), None);
        }
        schedule.enter(0, true, 5);
        assert_eq!(granted(&schedule), [1, 3, 5]);
        assert_eq!(schedule.queued.get(), 0);
    }
}
