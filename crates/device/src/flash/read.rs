//! Reads: the array, the wires, the decoder, and again with other thresholds if need be.

use ftl::{Part, Seen};
use media::nand::{Sense, Timing};
use runtime::{Span, Time};

use super::die::Ticket;
use super::{Chips, on_wires};

/// One work of a die's array for a read: a page, or pages of one number in several planes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sensing {
    /// The first of its parts. The others are those of the same die, block and page.
    first: usize,
    /// The try.
    step: u32,
    now: Now,
}

/// A read that is under way: its works, and of each part the first that is sensed with it.
#[derive(Debug, Default)]
pub(super) struct Reading {
    works: Vec<Sensing>,
    firsts: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Now {
    /// The array works on it.
    Array(Ticket),
    /// It is on the wires or being decoded.
    Wires(Time),
}

impl Chips {
    /// Reads without time.
    pub(super) fn read_at_once(&self, parts: &mut [Part]) {
        let retries = self.nand.borrow().spec().errors.retries;
        for part in parts {
            part.seen = Seen::Unreadable;
            for step in 0..=retries {
                self.sense(part, step);
                if part.seen != Seen::Unreadable {
                    break;
                }
            }
            self.count(|counts| counts.uncorrectable += u64::from(part.seen == Seen::Unreadable));
        }
    }

    /// Senses a part once.
    fn sense(&self, part: &mut Part, step: u32) {
        let at = self.at(part.page);
        self.rt.log("flash", "sense", at.block.into(), at.page.into());
        let seen = self.nand.borrow_mut().sense(at, part.units.into(), step);
        self.count(|counts| {
            counts.senses += 1;
            counts.retries += u64::from(step > 0);
        });
        part.seen = match seen {
            Ok(Sense::Erased) => Seen::Erased,
            Ok(Sense::Good { errors }) => Seen::Good { corrected: errors, retries: step },
            Ok(Sense::Uncorrectable) => Seen::Unreadable,
            Err(error) => {
                self.note(error);
                Seen::Unreadable
            }
        };
    }

    /// Reads as the chips do: every die begins at once, and whatever is next due is waited for.
    pub(super) async fn read_in_time(&self, timing: &Timing, parts: &mut [Part]) {
        let mut reading = self.room.reads.borrow_mut().pop().unwrap_or_default();
        reading.works.clear();
        reading.firsts.clear();
        for part in parts.iter_mut() {
            part.seen = Seen::Unreadable;
        }
        for at in 0..parts.len() {
            let first = reading.first_of(timing, parts, at);
            reading.firsts.push(first);
            if first == at {
                // Its ticket comes when all that are sensed with it are known.
                reading.works.push(Sensing { first, step: 0, now: Now::Wires(Time::ZERO) });
            }
        }
        for at in 0..reading.works.len() {
            let ticket = self.begin(timing, parts, &reading, reading.works[at]);
            reading.works[at].now = Now::Array(ticket);
        }
        while let Some((place, due)) = self.next_due(&reading.works, parts) {
            if due > self.rt.now() {
                self.rt.sleep_until(due).await;
                // A turn may have moved on, and another be due before it.
                continue;
            }
            let work = reading.works[place];
            let next = match work.now {
                Now::Array(ticket) => Some(self.sensed(timing, parts, &reading, work, ticket)),
                Now::Wires(_) => self.decoded(timing, parts, &reading, work),
            };
            match next {
                Some(now) => reading.works[place] = now,
                None => drop(reading.works.swap_remove(place)),
            }
        }
        self.room.reads.borrow_mut().push(reading);
    }

    /// Asks the die for the array, for all parts of this work that are still unreadable.
    fn begin(&self, timing: &Timing, parts: &[Part], reading: &Reading, work: Sensing) -> Ticket {
        let longest = reading
            .of(work.first)
            .filter(|at| parts[*at].seen == Seen::Unreadable)
            .map(|at| self.read_span(timing, &parts[at]))
            .max();
        let span = timing.command + longest.unwrap_or_default();
        let mut die = self.dies[parts[work.first].page.die as usize].borrow_mut();
        die.read(self.rt.now(), span, timing.suspend.as_ref())
    }

    fn read_span(&self, timing: &Timing, part: &Part) -> Span {
        timing.read[usize::from(self.nand.borrow().cells(part.page.page).kind)]
    }

    /// The work that is next due, and when.
    fn next_due(&self, works: &[Sensing], parts: &[Part]) -> Option<(usize, Time)> {
        let due = works.iter().enumerate().map(|(place, work)| match work.now {
            Now::Wires(until) => (place, until),
            Now::Array(ticket) => {
                let die = self.dies[parts[work.first].page.die as usize].borrow();
                (place, die.turn(ticket).map_or(Time::ZERO, |turn| turn.end))
            }
        });
        due.min_by_key(|(_, due)| *due)
    }

    /// The array has sensed: what was found, and the wires.
    fn sensed(
        &self,
        timing: &Timing,
        parts: &mut [Part],
        reading: &Reading,
        work: Sensing,
        ticket: Ticket,
    ) -> Sensing {
        let die = parts[work.first].page.die;
        let turn = self.dies[die as usize].borrow().turn(ticket);
        if let Some(turn) = turn {
            self.rt.mark_at(self.waits[0].turn, turn.begin);
            self.rt.mark_at(self.waits[0].service, turn.end);
        }
        let mut bytes = 0;
        for at in reading.of(work.first) {
            if parts[at].seen == Seen::Unreadable {
                self.sense(&mut parts[at], work.step);
                bytes += self.wire_bytes(parts[at].units);
            }
        }
        let wires = self.channel_of(die).reserve(self.rt.now(), on_wires(timing, bytes));
        self.rt.mark_turn(self.waits[1], wires);
        let mut die = self.dies[die as usize].borrow_mut();
        if timing.cache {
            die.finish(ticket);
        } else {
            die.hold(ticket, wires.end);
        }
        Sensing { now: Now::Wires(wires.end + timing.decode), ..work }
    }

    /// It has been decoded: a further try, or none.
    fn decoded(
        &self,
        timing: &Timing,
        parts: &[Part],
        reading: &Reading,
        work: Sensing,
    ) -> Option<Sensing> {
        let lost = reading.of(work.first).filter(|at| parts[*at].seen == Seen::Unreadable);
        let lost = lost.count() as u64;
        if lost == 0 || work.step == self.nand.borrow().spec().errors.retries {
            self.count(|counts| counts.uncorrectable += lost);
            return None;
        }
        let ticket = self.begin(timing, parts, reading, work);
        Some(Sensing { step: work.step + 1, now: Now::Array(ticket), ..work })
    }

    /// What goes over the wires for some units: they and their share of the spare bytes, or the free spare
    /// bytes alone.
    fn wire_bytes(&self, units: u32) -> u64 {
        let nand = self.nand.borrow();
        let geometry = nand.geometry();
        if units == 0 {
            return geometry.free_bytes.into();
        }
        let page = u64::from(geometry.page_bytes + geometry.spare_bytes);
        (u64::from(units.count_ones()) * page).div_ceil(geometry.units().into())
    }
}

impl Reading {
    /// The first part that is sensed together with this one: of the same page number in another plane.
    fn first_of(&self, timing: &Timing, parts: &[Part], at: usize) -> usize {
        let page = parts[at].page;
        let same = |work: &&Sensing| {
            let other = parts[work.first].page;
            (other.die, other.block, other.page) == (page.die, page.block, page.page)
        };
        let found = if timing.multi_plane { self.works.iter().rev().find(same) } else { None };
        found.map_or(at, |work| work.first)
    }

    /// The parts that are sensed with the one at `first`.
    fn of(&self, first: usize) -> impl Iterator<Item = usize> {
        let firsts = self.firsts.iter().enumerate().skip(first);
        firsts.filter(move |(_, one)| **one == first).map(|(at, _)| at)
    }
}
