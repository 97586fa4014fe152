//! Timing of a die: array operations in FIFO order, and reads that suspend them. Reads of planes that are
//! independent overlap: each plane has its own order.
//!
//! A turn is reserved at once, as at a [`runtime::Line`], but may be prolonged later, which delays the turns
//! behind it. A task that waits for the end of a turn must therefore check again when it wakes.

use media::nand::{Suspend, TORN_OF};
use runtime::{Span, Time};

/// Operation of a die's array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    Program(ftl::Row),
    Erase(ftl::Blocks),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// A reserved interval of the array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    ticket: Ticket,
    pub(super) work: Work,
    /// Data arrive at this time; reads requested earlier go first.
    ready: Time,
    pub(super) begin: Time,
    pub(super) end: Time,
    span: Span,
    /// Bit mask of the planes that it takes.
    planes: u32,
    /// A read that suspended another turn: not part of the FIFO order.
    inside: bool,
    stops: u32,
    /// Execution time before the last suspension, and (next field) the time of the last resume.
    ran: Span,
    since: Time,
    /// Begin and end of the reads that suspended this turn.
    paused_from: Time,
    paused_until: Time,
    /// The turn is a GC operation.
    collects: bool,
    /// Value of [`Die::collected`] at the time of the request.
    collected: Span,
}

/// Turns of a die; those outside suspensions are in order.
#[derive(Default)]
pub(super) struct Die {
    turns: Vec<Turn>,
    tickets: u64,
    /// Array time used by GC, up to the time `counted`.
    collected: Span,
    counted: Time,
    /// Some reads have taken single planes.
    overlaps: bool,
}

/// All planes of a die.
pub(super) const WHOLE: u32 = u32::MAX;

/// Below this number of turns, ended ones are not purged.
const FEW: usize = 32;

impl Turn {
    /// Part of the turn's wait in which GC occupied the die, given the total GC time (`collected`) now.
    pub(super) fn waited_for_collector(&self, collected: Span) -> Span {
        collected.saturating_sub(self.collected)
    }

    fn is_read(&self) -> bool {
        self.work == Work::Read
    }

    /// Completed fraction at time `now`, in units of 1/[`TORN_OF`].
    pub(super) fn done_at(&self, now: Time) -> u32 {
        let ran = self.ran + now.since(self.since);
        let parts = u128::from(ran.0) * u128::from(TORN_OF) / u128::from(self.span.0.max(1));
        parts.min(TORN_OF.into()) as u32
    }
}

impl Die {
    /// Reserves a read of these planes, or of [`WHOLE`] dies, of duration `span`, requested at `now`.
    pub(super) fn read(
        &mut self,
        now: Time,
        span: Span,
        suspend: Option<&Suspend>,
        (collects, planes): (bool, u32),
    ) -> Ticket {
        self.forget(now);
        self.overlaps |= planes != WHOLE;
        if let Some(suspend) = suspend
            && let Some(at) = self.turns.iter().position(|turn| {
                let paused = now < turn.paused_until;
                let under_way = turn.begin <= now && now < turn.end;
                !turn.is_read() && under_way && (paused || turn.stops < suspend.most)
            })
        {
            return self.cut_in(at, now, span, suspend, (collects, planes));
        }
        // Behind all turns that have begun or could begin.
        let behind = |turn: &Turn| turn.is_read() || turn.ready <= now;
        let place = self.turns.iter().rposition(|turn| !turn.inside && behind(turn));
        let mut place = place.map_or(0, |at| at + 1);
        // Suspending reads stay next to the turn that they suspended.
        place += self.turns[place..].iter().take_while(|turn| turn.inside).count();
        self.reserve(place, now, now, span, (Work::Read, collects, planes))
    }

    /// Reserves a program or erase of duration `span`, not before its data arrive at `ready`.
    pub(super) fn operate(
        &mut self,
        now: Time,
        ready: Time,
        span: Span,
        (work, collects): (Work, bool),
    ) -> Ticket {
        self.forget(now);
        self.reserve(self.turns.len(), now, ready, span, (work, collects, WHOLE))
    }

    fn reserve(
        &mut self,
        place: usize,
        now: Time,
        ready: Time,
        span: Span,
        (work, collects, planes): (Work, bool, u32),
    ) -> Ticket {
        let earlier = self.turns[..place].iter().filter(|turn| turn.planes & planes != 0);
        let before = earlier.map(|turn| turn.end).max().unwrap_or(now);
        let begin = before.max(ready);
        let ticket = self.ticket();
        self.turns.insert(
            place,
            Turn {
                ticket,
                work,
                ready,
                begin,
                end: begin + span,
                span,
                planes,
                inside: false,
                stops: 0,
                ran: Span::ZERO,
                since: begin,
                paused_from: Time::ZERO,
                paused_until: Time::ZERO,
                collects,
                collected: self.collected,
            },
        );
        self.move_on(place);
        ticket
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// Suspends the turn at index `at` for a read, or queues behind the reads that already have.
    fn cut_in(
        &mut self,
        at: usize,
        now: Time,
        span: Span,
        suspend: &Suspend,
        (collects, planes): (bool, u32),
    ) -> Ticket {
        let (ticket, collected) = (self.ticket(), self.collected);
        let joined = match planes {
            WHOLE => self.turns[at].paused_until,
            _ => {
                let inside = self.turns[at + 1..].iter().take_while(|turn| turn.inside);
                let of_planes = inside.filter(|turn| turn.planes & planes != 0);
                of_planes.map(|turn| turn.end).fold(self.turns[at].paused_from.max(now), Time::max)
            }
        };
        let turn = &mut self.turns[at];
        let begin = if now >= turn.paused_until {
            turn.ran += now.since(turn.since);
            turn.stops += 1;
            let erases = matches!(turn.work, Work::Erase(_));
            turn.paused_from = now + if erases { suspend.erase } else { suspend.program };
            turn.paused_from
        } else {
            joined
        };
        let end = begin + span;
        turn.paused_until = turn.paused_until.max(end);
        turn.since = turn.paused_until + suspend.resume;
        turn.end = turn.since + turn.span.saturating_sub(turn.ran);
        let mut read = Turn { ticket, work: Work::Read, begin, end, span, inside: true, ..*turn };
        (read.collects, read.collected, read.planes) = (collects, collected, planes);
        self.turns.insert(at + 1, read);
        self.move_on(at);
        ticket
    }

    /// Delays the turns behind `place` that would overlap it.
    fn move_on(&mut self, place: usize) {
        let mut last = self.turns[place].end;
        if self.overlaps {
            let before = self.turns[..place].iter().filter(|turn| !turn.inside);
            last = before.map(|turn| turn.end).fold(last, Time::max);
        }
        for at in place + 1..self.turns.len() {
            let Turn { inside, planes, begin, end, .. } = self.turns[at];
            if inside {
                continue;
            }
            let free = if planes == WHOLE { last } else { self.free_before(at) };
            if begin >= free {
                if planes == WHOLE {
                    // All behind it begin after it.
                    break;
                }
                last = last.max(end);
                continue;
            }
            let turn = &mut self.turns[at];
            turn.begin = free;
            turn.since = free;
            turn.end = free + turn.span;
            last = last.max(turn.end);
        }
    }

    /// End of the turns before this one that take some of its planes.
    fn free_before(&self, at: usize) -> Time {
        let planes = self.turns[at].planes;
        let before = self.turns[..at].iter().filter(|turn| !turn.inside);
        let before = before.filter(|turn| turn.planes & planes != 0);
        before.map(|turn| turn.end).max().unwrap_or_default()
    }

    /// Extends a read to `end`, while its page is transferred from the array's register.
    pub(super) fn hold(&mut self, ticket: Ticket, end: Time) {
        let Some(at) = self.place(ticket) else { return };
        let turn = self.turns[at];
        if end <= turn.end {
            return;
        }
        let longer = end.since(turn.end);
        self.turns[at].end = end;
        if !turn.inside {
            self.turns[at].span = end.since(turn.begin);
            return self.move_on(at);
        }
        // Delay the later reads of the same suspension, then the suspended turn.
        let host = (0..at).rev().find(|place| !self.turns[*place].inside).expect("it cut in");
        let mut paused_until = self.turns[host].paused_until;
        for other in host + 1..self.turns.len() {
            let other = &mut self.turns[other];
            if !other.inside {
                break;
            }
            let shared = other.planes & turn.planes != 0;
            if shared && other.begin >= turn.end && other.ticket != ticket {
                other.begin += longer;
                other.end += longer;
            }
            paused_until = paused_until.max(other.end);
        }
        let stopped = &mut self.turns[host];
        let longer = paused_until.since(stopped.paused_until);
        stopped.paused_until = paused_until;
        stopped.since += longer;
        stopped.end += longer;
        self.move_on(host);
    }

    fn place(&self, ticket: Ticket) -> Option<usize> {
        self.turns.iter().position(|turn| turn.ticket == ticket)
    }

    /// End of all turns reserved so far.
    pub(super) fn free_at(&self) -> Time {
        self.turns.iter().map(|turn| turn.end).max().unwrap_or_default()
    }

    /// The turn, unless it has ended and been removed.
    pub(super) fn turn(&self, ticket: Ticket) -> Option<Turn> {
        self.place(ticket).map(|place| self.turns[place])
    }

    /// Removes a turn whose end has been observed.
    pub(super) fn finish(&mut self, now: Time, ticket: Ticket) {
        self.count(now);
        if let Some(place) = self.place(ticket) {
            self.turns.remove(place);
        }
    }

    /// Array time used by GC operations, up to `now`. The time to suspend and to resume a turn counts for the
    /// suspended turn.
    pub(super) fn collected(&self, now: Time) -> Span {
        self.collected + self.collected_between(self.counted, now)
    }

    /// Accumulates past time, before any change: the past is final.
    fn count(&mut self, now: Time) {
        self.collected = self.collected(now);
        self.counted = self.counted.max(now);
    }

    fn collected_between(&self, from: Time, to: Time) -> Span {
        if self.overlaps {
            let of_host = self.covered((from, to), |turn, in_collection| {
                turn.inside && in_collection && !turn.collects
            });
            let all = self.covered((from, to), |turn, in_collection| {
                turn.collects && !(turn.inside && in_collection)
            });
            return all.saturating_sub(of_host);
        }
        let (mut sum, mut stopped) = (Span::ZERO, false);
        let mut scratch_guard = Span::ZERO;
        for turn in &self.turns {
            let (begin, end) = (turn.begin.max(from), turn.end.min(to));
            let within = if begin < end { end.since(begin) } else { Span::ZERO };
            match (turn.inside, turn.collects) {
                (false, collects) => {
                    stopped = collects;
                    sum += if collects { within } else { Span::ZERO };
                }
                (true, true) if !stopped => sum += within,
                (true, false) if stopped => scratch_guard += within,
                (true, _) => {}
            }
        }
        sum.saturating_sub(scratch_guard)
    }

    /// Time within an interval that is covered by some of the turns that `of` picks: it is given each turn,
    /// and whether the turn that a read suspends is of the collector.
    fn covered(&self, (from, to): (Time, Time), of: impl Fn(&Turn, bool) -> bool) -> Span {
        let (mut sum, mut now) = (Span::ZERO, from);
        while now < to {
            // The turn that covers this moment and ends last, or else the first to begin after it.
            let (mut in_collection, mut end, mut next) = (false, now, to);
            for turn in &self.turns {
                if !turn.inside {
                    in_collection = turn.collects;
                }
                if !of(turn, in_collection) {
                    continue;
                }
                if turn.begin <= now {
                    end = end.max(turn.end);
                } else {
                    next = next.min(turn.begin);
                }
            }
            let end = end.min(to);
            sum += end.since(now);
            now = if end > now { end } else { next };
        }
        sum
    }

    /// Purges reads and programs that have ended. Most are removed by `finish`; the rest belong to futures
    /// that were dropped.
    fn forget(&mut self, now: Time) {
        self.count(now);
        if self.turns.len() < FEW {
            return;
        }
        self.turns.retain(|turn| now <= turn.end || matches!(turn.work, Work::Erase(_)));
    }

    /// The operation of the array at `now`, whether it is of the collector, and the operations that wait.
    pub(super) fn look(&self, now: Time) -> (&'static str, bool, u32) {
        let current = |turn: &&Turn| {
            turn.begin <= now && now < turn.end && (turn.inside || now >= turn.paused_until)
        };
        let waiting = self.turns.iter().filter(|turn| turn.begin > now).count() as u32;
        match self.turns.iter().find(current) {
            None => ("idle", false, waiting),
            Some(turn) => {
                let doing = match turn.work {
                    Work::Read => "read",
                    Work::Program(_) => "program",
                    Work::Erase(_) => "erase",
                };
                (doing, turn.collects, waiting)
            }
        }
    }

    /// Programs and erases whose end has not been observed, the last reserved first.
    pub(super) fn under_way(&self) -> impl Iterator<Item = &Turn> {
        self.turns.iter().rev().filter(|turn| !turn.is_read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ftl::{Blocks, Row};
    use proptest::prelude::*;

    const PROGRAM: Work =
        Work::Program(Row { blocks: Blocks { die: 0, block: 0, planes: 1 }, page: 0 });
    const ERASE: Work = Work::Erase(Blocks { die: 0, block: 0, planes: 1 });

    #[derive(Clone, Debug)]
    enum Op {
        /// Its time, and its planes.
        Read(u64, u32),
        Program(u64, u64),
        Erase(u64),
        /// The latest read holds the array longer by this time.
        Hold(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (1..80_u64, 1..4_u32).prop_map(|(span, planes)| Op::Read(span, planes)),
            2 => (0..60_u64, 1..500_u64).prop_map(|(load, span)| Op::Program(load, span)),
            1 => (1..900_u64).prop_map(Op::Erase),
            1 => (1..40_u64).prop_map(Op::Hold),
        ]
    }

    /// Checks that turns of a plane do not overlap and that each gets its full duration.
    fn check(die: &Die) {
        for plane in 0..2 {
            let mut free = Time::ZERO;
            let takes = |turn: &&Turn| !turn.inside && turn.planes >> plane & 1 != 0;
            for turn in die.turns.iter().filter(takes) {
                assert!(turn.begin >= free, "{:?}", die.turns);
                free = turn.end;
            }
        }
        for turn in die.turns.iter().filter(|turn| !turn.inside) {
            assert!(turn.begin >= turn.ready);
            let left = turn.end.since(turn.since);
            assert_eq!(turn.ran + left, turn.span, "{turn:?}");
        }
        let mut host = None;
        let mut within: Vec<Turn> = Vec::new();
        for turn in &die.turns {
            if !turn.inside {
                host = Some(*turn);
                within.clear();
                continue;
            }
            let host: Turn = host.expect("it cut in on one");
            assert!(turn.begin >= host.begin && turn.end <= host.paused_until, "{:?}", die.turns);
            let apart = |other: &Turn| {
                let shared = turn.planes & other.planes != 0;
                !shared || turn.end <= other.begin || other.end <= turn.begin
            };
            assert!(within.iter().all(apart), "{:?}", die.turns);
            within.push(*turn);
        }
    }

    #[test]
    fn die_wait_separates_gc_from_host_time() {
        let at = |us| Time::ZERO + Span::us(us);
        let suspend =
            Suspend { program: Span::us(10), erase: Span::us(20), resume: Span::us(5), most: 1 };
        let waited = |die: &Die, ticket, now| {
            die.turn(ticket).expect("not over").waited_for_collector(die.collected(now))
        };
        let mut die = Die::default();
        die.operate(at(0), at(0), Span::us(100), (ERASE, true));
        // It suspends the erase within 20 us, and has the array from 50 to 90.
        let first = die.read(at(30), Span::us(40), Some(&suspend), (false, WHOLE));
        assert_eq!(waited(&die, first, at(50)), Span::us(20));
        // Waits behind it for 30 us, which counts for the host.
        let second = die.read(at(60), Span::us(40), Some(&suspend), (false, WHOLE));
        assert_eq!(die.turn(second).unwrap().begin, at(90));
        assert_eq!(waited(&die, first, at(90)), Span::us(20));
        assert_eq!(waited(&die, second, at(130)), Span::ZERO);
        die.finish(at(90), first);
        die.finish(at(130), second);
        // The erase has 70 us left and 5 to resume: to 205. The host's program is next, then a GC read
        // without suspension.
        let third = die.operate(at(140), at(140), Span::us(200), (PROGRAM, false));
        assert_eq!(die.turn(third).unwrap().begin, at(205));
        assert_eq!(waited(&die, third, at(205)), Span::us(65));
        let fourth = die.read(at(190), Span::us(40), None, (true, WHOLE));
        assert_eq!(die.turn(fourth).unwrap().begin, at(405));
        assert_eq!(waited(&die, third, at(405)), Span::us(65));
        assert_eq!(die.collected(at(500)), Span::us(50 + 75 + 40));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        #[test]
        fn die_turns_never_overlap_and_run_fully(
            ops in proptest::collection::vec((0..120_u64, op()), 1..60),
            most in 0..3_u32,
            independent: bool,
        ) {
            let us = Span::us;
            let suspend = Suspend { program: us(10), erase: us(20), resume: us(5), most };
            let suspend = (most > 0).then_some(&suspend);
            let (mut die, mut now, mut latest) = (Die::default(), Time::ZERO, None);
            let (mut had, mut before) = (Span::ZERO, Time::ZERO);
            for (wait, op) in ops {
                now += us(wait);
                match op {
                    Op::Read(span, planes) => {
                        let planes = if independent { planes } else { WHOLE };
                        let of = (span % 3 == 0, planes);
                        latest = Some(die.read(now, us(span), suspend, of));
                    }
                    Op::Program(load, span) => {
                        die.operate(now, now + us(load), us(span), (PROGRAM, span % 2 == 0));
                    }
                    Op::Erase(span) => drop(die.operate(now, now, us(span), (ERASE, true))),
                    Op::Hold(longer) => {
                        let turn = latest.and_then(|ticket| die.turn(ticket));
                        if let (Some(turn), Some(ticket)) = (turn, latest.take()) {
                            // The hold is requested when the sense has ended.
                            now = now.max(turn.end);
                            let end = die.turn(ticket).expect("its ticket is taken once").end;
                            die.hold(ticket, end + us(longer));
                        }
                    }
                }
                check(&die);
                let has_had = die.collected(now);
                let more = has_had.saturating_sub(had);
                assert!(has_had >= had && more <= now.since(before), "{:?}", die.turns);
                (had, before) = (has_had, now);
            }
        }
    }
}
