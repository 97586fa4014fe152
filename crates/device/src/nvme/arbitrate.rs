//! Arbitration: round robin, and weighted round robin with an urgent class (NVMe base 2.0, 3.4.4).

use std::cell::Cell;
use std::ops::Range;

use bus::{DevicePort, Direct, Segment};
use media::Media;
use wire::QueueId;
use wire::nvme::admin::Priority;
use wire::nvme::registers::Cc;

use super::Controller;
use super::limits::QUEUE_GROUPS_MAX;
use super::queue::{Burst, ENTRY, Sq};
use super::slot::QueueKind;

/// Progress of the classes. Plain round robin has one class, [`Priority::Medium`].
#[derive(Debug, Default)]
pub(super) struct Arbiter {
    /// Progress of round robin within each class: see [`Sq::turn`].
    turns: [Cell<u64>; CLASSES],
    /// Service received by each class, in commands divided by its weight.
    had: [Cell<u64>; CLASSES],
    /// Service of the weighted class served last, before it was served.
    now: Cell<u64>,
    /// Urgent commands served while others waited, since one of these was served.
    urgent_run: Cell<u32>,
    /// The queue whose turn is not over; none where a fetch is a whole burst.
    rest: Cell<Option<Rest>>,
}

/// Queues below this have the line of their next entry watched; beyond that many, none: a poll is kept short.
const WATCHED_END: u16 = 4;

const CLASSES: usize = 4;
const URGENT: usize = Priority::Urgent as usize;

/// Resolution of service: this fraction of a command. A weight is at most 256, so a share is accurate to 1 in
/// 2^12, and the range is 2^44 commands.
const SHARE: u64 = 1 << 20;

/// Number of queues with waiting commands in each group.
struct Groups {
    count: u16,
    waiting: [u16; QUEUE_GROUPS_MAX as usize],
}

impl Groups {
    fn new(count: u16) -> Groups {
        Groups { count, waiting: [0; QUEUE_GROUPS_MAX as usize] }
    }

    /// Index of the group of this queue; none: without groups, and of the admin queue.
    fn of(&self, number: u16) -> Option<usize> {
        (self.count > 1 && number > 0).then(|| usize::from((number - 1) % self.count))
    }

    fn add(&mut self, number: u16) {
        if let Some(group) = self.of(number) {
            self.waiting[group] += 1;
        }
    }

    /// Turns that a command of this queue takes: as many as queues of its group wait, so that these share
    /// what the group gets.
    fn turns(&self, number: u16) -> u32 {
        self.of(number).map_or(1, |group| self.waiting[group].into())
    }

    /// The most turns that a command takes.
    fn most(&self) -> u32 {
        if self.count > 1 {
            self.waiting.iter().fold(1, |most, one| most.max(*one)).into()
        } else {
            1
        }
    }
}

/// A queue with commands that may be fetched: turn, identifier, tail.
#[derive(Clone, Copy)]
struct Candidate {
    turn: u64,
    number: u16,
    tail: u32,
}

/// The queues of one class with waiting commands.
#[derive(Clone, Copy)]
struct Waiting {
    /// Smallest turn of these queues, or all ones.
    least: u64,
    /// The one with the smallest turn of those without a fetch in flight.
    first: Option<Candidate>,
}

impl Waiting {
    const NONE: Waiting = Waiting { least: u64::MAX, first: None };

    fn add(&mut self, number: u16, sq: &Sq, tail: u32) {
        self.least = self.least.min(sq.turn);
        if !sq.fetching && self.first.is_none_or(|first| sq.turn < first.turn) {
            self.first = Some(Candidate { turn: sq.turn, number, tail });
        }
    }

    fn any(&self) -> bool {
        self.least != u64::MAX
    }

    /// Start-time fair queueing ("Start-Time Fair Queuing", Goyal, Vin and Cheng): serves the queue with the
    /// smallest turn, and none gets more than a burst ahead of one that waits. With full bursts this is round
    /// robin; a queue that got less, for lack of slots, catches up.
    fn next(&self, limit: u32) -> Option<Candidate> {
        // The fetcher that serves the queue that is behind arbitrates again after its fetch.
        self.first.filter(|first| first.turn < self.least + u64::from(limit))
    }
}

impl Arbiter {
    /// Chooses a queue: by class, then round robin within the class.
    ///
    /// The urgent class has priority over all others, but at most for `urgent_most` commands while others
    /// wait. The others share the remainder by weight: start-time fair queueing again, between classes.
    fn choose(
        &self,
        classes: &[Waiting; CLASSES],
        weights: [u32; 3],
        urgent_most: Option<u32>,
        limit: u32,
    ) -> Option<Candidate> {
        let weighted = || (0..).zip(classes).skip(URGENT + 1).filter(|(_, class)| class.any());
        let others_wait = weighted().next().is_some();
        let others_turn = urgent_most.is_some_and(|most| self.urgent_run.get() >= most);
        if classes[URGENT].any() && !(others_wait && others_turn) {
            return classes[URGENT].next(limit);
        }
        for (had, class) in self.had.iter().zip(classes) {
            // An idle class accumulates no credit.
            let floor = if class.any() { 0 } else { self.now.get() };
            had.set(had.get().max(floor));
        }
        let had = |class: usize| self.had[class].get();
        let least = weighted().map(|(class, _)| had(class)).min()?;
        let ahead = |class: usize| share(limit, weights[class - 1]);
        weighted()
            .filter(|(class, _)| had(*class) < least + ahead(*class))
            .filter_map(|(class, waiting)| Some((had(class), waiting.next(limit)?)))
            .min_by_key(|(had, _)| *had)
            .map(|(_, candidate)| candidate)
    }

    /// Accounts for `entries` commands of this class.
    fn took(&self, class: usize, entries: u32, weights: [u32; 3], others_wait: bool) {
        if class == URGENT {
            let run = self.urgent_run.get().saturating_add(entries);
            self.urgent_run.set(if others_wait { run } else { 0 });
            return;
        }
        self.urgent_run.set(0);
        let had = self.had[class].get();
        self.now.set(had.max(self.now.get()));
        self.had[class].set(had + share(entries, weights[class - 1]));
    }

    /// Ends the turn of this queue: it is being deleted.
    pub fn forget(&self, qid: QueueId) {
        self.rest.set(self.rest.get().filter(|rest| rest.number != qid.0));
    }

    /// Resets all state: the controller was reset.
    pub fn reset(&self) {
        let all = self.turns.iter().chain(&self.had).chain([&self.now]);
        all.for_each(|cell| cell.set(0));
        self.urgent_run.set(0);
        self.rest.set(None);
    }
}

/// Service of `commands` commands at this weight, in units of 1/[`SHARE`].
fn share(commands: u32, weight: u32) -> u64 {
    u64::from(commands) * SHARE / u64::from(weight)
}

/// The rest of a burst that takes more than one fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    number: u16,
    left: u32,
}

/// Answer of a queue whose burst goes on.
enum Held {
    Next(Candidate),
    /// Its last fetch is in flight: the turn is not over, and no other queue is served.
    Fetching,
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// The next burst, if commands and a slot are available. Round robin serves the admin queue as any other
    /// (NVMe base 2.0, 3.4.4.1); weighted arbitration serves it before all (3.4.4.2).
    pub(super) fn arbitrate(&self) -> Option<Burst> {
        let room = |kind| self.slots.idle(kind).available() as u32;
        let (admin_room, room) = (room(QueueKind::Admin), room(QueueKind::Io));
        let mut bad_tail = false;
        let burst = match self.registers.settings.get().ams() == Cc::AMS_WEIGHTED {
            true => self
                .round_robin((admin_room, 0), &mut bad_tail)
                .or_else(|| self.weighted(room, &mut bad_tail)),
            false => self.round_robin((admin_room, room), &mut bad_tail),
        };
        if bad_tail {
            self.tell_bad_doorbell();
            self.tell_events();
        }
        burst
    }

    /// Maximum burst per queue, in commands. Without a limit, it is what a queue has when its turn begins.
    fn burst_max(&self) -> u32 {
        self.features.values.borrow().arbitration.burst().unwrap_or(u32::MAX)
    }

    /// Round robin over the queues of each kind that has room in slots.
    fn round_robin(&self, room: (u32, u32), bad_tail: &mut bool) -> Option<Burst> {
        let (admin_room, io_room) = room;
        let numbers =
            u16::from(admin_room == 0)..if io_room == 0 { 1 } else { self.queues.sqs_end.get() };
        let (mut waiting, mut held) = (Waiting::NONE, None);
        let mut groups = Groups::new(self.options.queue_groups);
        self.look(numbers, bad_tail, |number, sq, tail| {
            groups.add(number);
            waiting.add(number, sq, tail);
            held = held.take().or_else(|| self.held(number, sq, tail));
        });
        if !waiting.any() {
            return None;
        }
        let limit = self.burst_max();
        let candidate = match held {
            Some(Held::Next(candidate)) => candidate,
            Some(Held::Fetching) => return None,
            None => waiting.next(limit.saturating_mul(groups.most()))?,
        };
        let room = if candidate.number == 0 { admin_room } else { io_room };
        Some(self.take(candidate, room, limit, groups.turns(candidate.number)))
    }

    fn weighted(&self, room: u32, bad_tail: &mut bool) -> Option<Burst> {
        if room == 0 {
            return None;
        }
        let (mut classes, mut held) = ([Waiting::NONE; CLASSES], None);
        self.look(1..self.queues.sqs_end.get(), bad_tail, |number, sq, tail| {
            classes[sq.priority as usize].add(number, sq, tail);
            held = held.take().or_else(|| self.held(number, sq, tail));
        });
        let (limit, weights) =
            (self.burst_max(), self.features.values.borrow().arbitration.weights());
        let most = self.options.urgent_burst_max;
        let candidate = match held {
            Some(Held::Next(candidate)) => candidate,
            Some(Held::Fetching) => return None,
            None => self.fetching.arbiter.choose(&classes, weights, most, limit)?,
        };
        let class =
            self.queues.sqs.borrow()[usize::from(candidate.number)].as_ref()?.priority as usize;
        // The burst must not exceed the urgent bound, since the others' turn is due then.
        let left = most.filter(|_| class == URGENT).map_or(u32::MAX, |most| {
            most.saturating_sub(self.fetching.arbiter.urgent_run.get()).max(1)
        });
        let burst = self.take(candidate, room.min(left), limit, 1);
        if burst.entries == left {
            self.fetching.arbiter.rest.set(None);
        }
        let others_wait = classes[URGENT + 1..].iter().any(Waiting::any);
        self.fetching.arbiter.took(class, burst.entries, weights, others_wait);
        Some(burst)
    }

    /// Whether the burst of this queue, which has waiting commands, goes on.
    #[inline]
    fn held(&self, number: u16, sq: &Sq, tail: u32) -> Option<Held> {
        let rest = self.fetching.arbiter.rest.get().filter(|rest| rest.number == number)?;
        debug_assert!(rest.left > 0, "a burst that is over");
        Some(match sq.fetching {
            true => Held::Fetching,
            false => Held::Next(Candidate { turn: sq.turn, number, tail }),
        })
    }

    /// Passes every queue with waiting commands to `waits`. Sets `bad_tail` for a newly written invalid
    /// doorbell.
    #[inline(always)]
    fn look(&self, numbers: Range<u16>, bad_tail: &mut bool, mut waits: impl FnMut(u16, &Sq, u32)) {
        if numbers.is_empty() {
            return;
        }
        let watched = if self.queues.sqs_end.get() <= WATCHED_END { 1..WATCHED_END } else { 0..0 };
        let mut sqs = self.queues.sqs.borrow_mut();
        let queues = &mut sqs[usize::from(numbers.start)..usize::from(numbers.end)];
        for (number, sq) in numbers.zip(queues) {
            let Some(sq) = sq.as_mut().filter(|sq| !sq.deleting) else { continue };
            let tail = self.port.load(sq.tail_doorbell);
            if self.queues.shadows.are_on() && sq.shadow.is_due(tail, tail != sq.head) {
                self.notice_shadow();
                if tail != sq.head {
                    continue;
                }
            }
            if tail == sq.head {
                // An idle queue accumulates no credit. Almost every poll ends here.
                sq.turn = sq.turn.max(self.fetching.arbiter.turns[sq.priority as usize].get());
                sq.bad_tail = None;
                if watched.contains(&number)
                    && let Some(direct) = self.port.direct()
                {
                    // Live: the next entry's cache line comes from the host's core beside the doorbell's,
                    // and not after it.
                    direct.watch(Segment { at: sq.next_at(), bytes: ENTRY as u32 });
                }
            } else if tail >= sq.size {
                *bad_tail |= sq.bad_tail.replace(tail) != Some(tail);
            } else {
                sq.bad_tail = None;
                waits(number, sq, tail);
            }
        }
    }

    /// Takes the next fetch of the chosen queue: at most a burst of `limit` commands, what a fetch brings,
    /// and what there is room for. A burst that is larger than a fetch goes on with the next one. Each
    /// command is `turns` turns of its queue.
    fn take(&self, chosen: Candidate, room: u32, limit: u32, turns: u32) -> Burst {
        let mut sqs = self.queues.sqs.borrow_mut();
        let sq = sqs[usize::from(chosen.number)].as_mut().expect("it was chosen");
        let is_admin = chosen.number == 0;
        let held = self.fetching.arbiter.rest.get();
        let rest = held.filter(|rest| rest.number == chosen.number);
        let left = rest.map_or_else(|| limit.min(sq.waiting(chosen.tail)), |rest| rest.left);
        let most = room.min(left).min(self.options.fetch_max);
        let burst = sq.take(QueueId(chosen.number), chosen.tail, most);
        let left = left - burst.entries;
        let goes_on = left > 0 && limit > self.options.fetch_max;
        let rest = goes_on.then_some(Rest { number: chosen.number, left });
        // The admin queue may go between the fetches of another's burst, which it does not end.
        self.fetching.arbiter.rest.set(held.filter(|held| is_admin && held.number != 0).or(rest));
        // Live: the entries' cache lines arrive from the host's core while slots are allocated.
        if let Some(direct) = self.port.direct() {
            direct.prefetch(Segment { at: burst.at, bytes: burst.entries * ENTRY as u32 });
        }
        // By weight, the admin queue is in no class.
        if !is_admin || self.registers.settings.get().ams() != Cc::AMS_WEIGHTED {
            let turn = &self.fetching.arbiter.turns[sq.priority as usize];
            turn.set(chosen.turn.max(turn.get()));
            sq.turn = chosen.turn + u64::from(burst.entries) * u64::from(turns);
        }
        burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Commands served per class, one at a time, if the classes of `backlogged` always have commands.
    fn shares(
        backlogged: [bool; CLASSES],
        weights: [u32; 3],
        most: Option<u32>,
        commands: u32,
    ) -> [u32; 4] {
        let arbiter = Arbiter::default();
        let mut got = [0; CLASSES];
        for _ in 0..commands {
            let classes = [0, 1, 2, 3].map(|class| match backlogged[class] {
                true => Waiting {
                    least: 0,
                    first: Some(Candidate { turn: 0, number: class as u16, tail: 0 }),
                },
                false => Waiting::NONE,
            });
            let chosen = arbiter.choose(&classes, weights, most, 1).expect("one of them");
            let class = usize::from(chosen.number);
            let others_wait = backlogged[1..].contains(&true);
            arbiter.took(class, 1, weights, others_wait);
            got[class] += 1;
        }
        got
    }

    #[test]
    fn wrr_urgent_class_starves_others_unless_bounded() {
        assert_eq!(shares([true; 4], [4, 2, 1], None, 700), [700, 0, 0, 0]);
        assert_eq!(shares([true; 4], [4, 2, 1], Some(9), 700), [630, 40, 20, 10]);
        assert_eq!(shares([true, false, false, false], [4, 2, 1], Some(9), 700), [700, 0, 0, 0]);
    }

    proptest! {
        /// No class is more than two commands off its weighted share.
        #[test]
        fn wrr_classes_share_by_weight(
            high in 1_u32..=256, medium in 1_u32..=256, low in 1_u32..=256, commands in 1_u32..4000,
        ) {
            let weights = [high, medium, low];
            let got = shares([false, true, true, true], weights, None, commands);
            let all: u32 = weights.iter().sum();
            for (class, weight) in (1..).zip(weights) {
                let due = f64::from(commands) * f64::from(weight) / f64::from(all);
                let off = f64::from(got[class]) - due;
                prop_assert!((-2.0..=2.0).contains(&off), "{got:?} of {weights:?}");
            }
        }
    }
}
