//! A die's time: one operation of its array after the other, and reads that cut in.
//!
//! A turn is reserved at once, as at a [`runtime::Line`]; but what holds a die may be prolonged, and what
//! stands behind it is then moved on. So whoever waits for the end of a turn looks again when it comes.

use media::nand::{Suspend, TORN_OF};
use runtime::{Span, Time};

/// What a die is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    Program(ftl::Row),
    Erase(ftl::Blocks),
}

/// The number of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// Some time of the array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    ticket: Ticket,
    pub(super) work: Work,
    /// Reads that come before this moment go first: its data are still on their way.
    ready: Time,
    pub(super) begin: Time,
    pub(super) end: Time,
    span: Span,
    /// It cuts in on another, and so stands behind nobody.
    inside: bool,
    stops: u32,
    /// What was done of it before it was last stopped, and since when it is under way again.
    ran: Span,
    since: Time,
    /// Reads that cut in on it are over then.
    paused_until: Time,
}

/// The turns at a die, those that do not cut in being in order.
#[derive(Default)]
pub(super) struct Die {
    turns: Vec<Turn>,
    tickets: u64,
}

/// Turns among which nobody looks for those that are over.
const FEW: usize = 32;

impl Turn {
    fn is_read(&self) -> bool {
        self.work == Work::Read
    }

    /// How much of it is done at a moment, in parts of [`TORN_OF`].
    pub(super) fn done_at(&self, now: Time) -> u32 {
        let ran = self.ran + now.since(self.since);
        let parts = u128::from(ran.0) * u128::from(TORN_OF) / u128::from(self.span.0.max(1));
        parts.min(TORN_OF.into()) as u32
    }
}

impl Die {
    /// A read of `span` that is asked for at `now`.
    pub(super) fn read(&mut self, now: Time, span: Span, suspend: Option<&Suspend>) -> Ticket {
        self.forget(now);
        if let Some(suspend) = suspend
            && let Some(at) = self.turns.iter().position(|turn| {
                let paused = now < turn.paused_until;
                let under_way = turn.begin <= now && now < turn.end;
                !turn.is_read() && under_way && (paused || turn.stops < suspend.most)
            })
        {
            return self.cut_in(at, now, span, suspend);
        }
        // Behind all that have begun or could.
        let behind = |turn: &Turn| turn.is_read() || turn.ready <= now;
        let place = self.turns.iter().rposition(|turn| !turn.inside && behind(turn));
        let mut place = place.map_or(0, |at| at + 1);
        // Those that cut in stay with the one that they cut in on.
        place += self.turns[place..].iter().take_while(|turn| turn.inside).count();
        self.reserve(place, now, now, span, Work::Read)
    }

    /// A program or an erase of `span`, not before `ready`, when its data are there.
    pub(super) fn operate(&mut self, now: Time, ready: Time, span: Span, work: Work) -> Ticket {
        self.forget(now);
        self.reserve(self.turns.len(), now, ready, span, work)
    }

    fn reserve(&mut self, place: usize, now: Time, ready: Time, span: Span, work: Work) -> Ticket {
        let before = self.turns[..place].iter().map(|turn| turn.end).max().unwrap_or(now);
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
                inside: false,
                stops: 0,
                ran: Span::ZERO,
                since: begin,
                paused_until: Time::ZERO,
            },
        );
        self.move_on(place);
        ticket
    }

    fn ticket(&mut self) -> Ticket {
        self.tickets += 1;
        Ticket(self.tickets)
    }

    /// A read stops the turn at `at`, or joins those that have.
    fn cut_in(&mut self, at: usize, now: Time, span: Span, suspend: &Suspend) -> Ticket {
        let ticket = self.ticket();
        let turn = &mut self.turns[at];
        let begin = if now < turn.paused_until {
            turn.paused_until
        } else {
            turn.ran += now.since(turn.since);
            turn.stops += 1;
            let erases = matches!(turn.work, Work::Erase(_));
            now + if erases { suspend.erase } else { suspend.program }
        };
        let end = begin + span;
        turn.paused_until = end;
        turn.since = end + suspend.resume;
        turn.end = turn.since + turn.span.saturating_sub(turn.ran);
        let read = Turn { ticket, work: Work::Read, begin, end, span, inside: true, ..*turn };
        self.turns.insert(at + 1, read);
        self.move_on(at);
        ticket
    }

    /// Moves on what stands behind a turn and overlaps it.
    fn move_on(&mut self, place: usize) {
        let mut free = self.turns[place].end;
        for turn in self.turns[place + 1..].iter_mut().filter(|turn| !turn.inside) {
            if turn.begin >= free {
                break;
            }
            turn.begin = free;
            turn.since = free;
            turn.end = free + turn.span;
            free = turn.end;
        }
    }

    /// The read keeps the array until `end`: its page is still on the wires.
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
        // Those that cut in after it, and then the turn that it cut in on.
        let host = (0..at).rev().find(|place| !self.turns[*place].inside).expect("it cut in");
        for other in host + 1..self.turns.len() {
            let other = &mut self.turns[other];
            if !other.inside {
                break;
            }
            if other.begin >= turn.end && other.ticket != ticket {
                other.begin += longer;
                other.end += longer;
            }
        }
        let stopped = &mut self.turns[host];
        stopped.paused_until += longer;
        stopped.since += longer;
        stopped.end += longer;
        self.move_on(host);
    }

    fn place(&self, ticket: Ticket) -> Option<usize> {
        self.turns.iter().position(|turn| turn.ticket == ticket)
    }

    /// When all turns reserved so far are over.
    pub(super) fn free_at(&self) -> Time {
        self.turns.iter().map(|turn| turn.end).max().unwrap_or_default()
    }

    /// A turn that is not yet over and forgotten.
    pub(super) fn turn(&self, ticket: Ticket) -> Option<Turn> {
        self.place(ticket).map(|place| self.turns[place])
    }

    /// Whoever waited for the turn has seen its end.
    pub(super) fn finish(&mut self, ticket: Ticket) {
        if let Some(place) = self.place(ticket) {
            self.turns.remove(place);
        }
    }

    /// Reads and programs that are over need nobody to see it. Most take themselves off; what is left by
    /// those that were dropped is cleared away at times.
    fn forget(&mut self, now: Time) {
        if self.turns.len() < FEW {
            return;
        }
        self.turns.retain(|turn| now <= turn.end || matches!(turn.work, Work::Erase(_)));
    }

    /// Programs and erases that nobody has seen the end of, the last reserved first.
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
        Read(u64),
        Program(u64, u64),
        Erase(u64),
        /// The latest read keeps the array for so much longer.
        Hold(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (1..80_u64).prop_map(Op::Read),
            2 => (0..60_u64, 1..500_u64).prop_map(|(load, span)| Op::Program(load, span)),
            1 => (1..900_u64).prop_map(Op::Erase),
            1 => (1..40_u64).prop_map(Op::Hold),
        ]
    }

    /// One array does one thing at a time, and all of it.
    fn check(die: &Die) {
        let mut free = Time::ZERO;
        for turn in die.turns.iter().filter(|turn| !turn.inside) {
            assert!(turn.begin >= free, "{:?}", die.turns);
            assert!(turn.begin >= turn.ready);
            free = turn.end;
            let left = turn.end.since(turn.since);
            assert_eq!(turn.ran + left, turn.span, "{turn:?}");
        }
        let mut host = None;
        let mut within: Vec<(Time, Time)> = Vec::new();
        for turn in &die.turns {
            if !turn.inside {
                host = Some(*turn);
                within.clear();
                continue;
            }
            let host: Turn = host.expect("it cut in on one");
            assert!(turn.begin >= host.begin && turn.end <= host.paused_until, "{:?}", die.turns);
            let apart = |(begin, end): &(Time, Time)| turn.end <= *begin || *end <= turn.begin;
            assert!(within.iter().all(apart), "{:?}", die.turns);
            within.push((turn.begin, turn.end));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
        #[test]
        fn an_array_does_one_thing_at_a_time_and_all_of_it(
            ops in proptest::collection::vec((0..120_u64, op()), 1..60),
            most in 0..3_u32,
        ) {
            let us = Span::us;
            let suspend = Suspend { program: us(10), erase: us(20), resume: us(5), most };
            let suspend = (most > 0).then_some(&suspend);
            let (mut die, mut now, mut latest) = (Die::default(), Time::ZERO, None);
            for (wait, op) in ops {
                now += us(wait);
                match op {
                    Op::Read(span) => latest = Some(die.read(now, us(span), suspend)),
                    Op::Program(load, span) => {
                        die.operate(now, now + us(load), us(span), PROGRAM);
                    }
                    Op::Erase(span) => drop(die.operate(now, now, us(span), ERASE)),
                    Op::Hold(longer) => {
                        let turn = latest.and_then(|ticket| die.turn(ticket));
                        if let (Some(turn), Some(ticket)) = (turn, latest.take()) {
                            // Its sense is over: then whoever waits for it says so.
                            now = now.max(turn.end);
                            let end = die.turn(ticket).expect("nobody has taken it").end;
                            die.hold(ticket, end + us(longer));
                        }
                    }
                }
                check(&die);
            }
        }
    }
}
