//! Reads: array, wires, decoder, and retries with other thresholds.

use ftl::{PageRead, Part};
use media::nand::{Sense, Timing};
use runtime::{Span, Time};

use super::die::{Ticket, Turn, WHOLE};
use super::{Chips, on_wires};

/// One array operation of a read: a page, or pages of equal number in several planes.
#[derive(Clone, Copy, Debug)]
struct Sensing {
    /// First and last of its parts, which have the same die, block and page.
    first: usize,
    last: usize,
    /// Retry number; 0: first try.
    step: u32,
    now: Now,
    /// End of the current phase, or earlier, because turns may be delayed.
    due: Time,
}

/// State of a read: its array operations, and for each part the next part sensed with it.
#[derive(Debug, Default)]
pub(super) struct Reading {
    works: Vec<Sensing>,
    nexts: Vec<usize>,
    /// The read is a GC operation.
    collects: bool,
}

/// End of a list of parts.
const NONE: usize = usize::MAX;

#[derive(Clone, Copy, Debug)]
enum Now {
    /// Waiting for, or in, the array.
    Array(Ticket),
    /// On the wires or in the decoder.
    Wires,
}

impl Chips {
    pub(super) fn read_at_once(&self, parts: &mut [Part]) {
        let retries = self.nand.borrow().spec().errors.retries;
        for part in parts {
            part.seen = PageRead::Unreadable;
            for step in 0..=retries {
                self.sense(part, step);
                if part.seen != PageRead::Unreadable {
                    break;
                }
            }
            self.count(|counts| {
                counts.uncorrectable += u64::from(part.seen == PageRead::Unreadable)
            });
        }
    }

    fn sense(&self, part: &mut Part, step: u32) {
        let at = self.at(part.page);
        self.rt.log("flash", "sense", at.block.into(), at.page.into());
        let seen = self.nand.borrow_mut().sense(at, part.units.into(), step);
        self.count(|counts| {
            counts.senses += 1;
            counts.retries += u64::from(step > 0);
        });
        part.seen = match seen {
            Ok(_) if self.is_unreadable(part.page.die) => PageRead::Unreadable,
            Ok(Sense::Erased) => PageRead::Erased,
            Ok(Sense::Good { errors }) => PageRead::Good { corrected: errors, retries: step },
            Ok(Sense::Uncorrectable) => PageRead::Unreadable,
            Err(error) => {
                self.unread.set(true);
                self.note(error);
                PageRead::Unreadable
            }
        };
    }

    /// Reads with timing: all dies begin in parallel, and the earliest event is awaited.
    pub(super) async fn read_in_time(&self, timing: &Timing, parts: &mut [Part], collects: bool) {
        let mut reading = self.room.reads.borrow_mut().pop().unwrap_or_default();
        reading.collects = collects;
        reading.gather(timing, parts);
        for at in 0..reading.works.len() {
            let work = reading.works[at];
            reading.works[at] = self.begin(timing, parts, &reading, work);
        }
        while let Some(place) = reading.next_due() {
            let work = reading.works[place];
            if work.due > self.rt.now() {
                self.rt.sleep_until(work.due).await;
            }
            if let Now::Array(ticket) = work.now
                && let Some(turn) = self.turn(parts[work.first].page.die, ticket)
                && turn.end > self.rt.now()
            {
                // The turn was delayed; another may be earlier now.
                reading.works[place].due = turn.end;
                continue;
            }
            let next = match work.now {
                Now::Array(ticket) => Some(self.sensed(timing, parts, &reading, work, ticket)),
                Now::Wires => self.decoded(timing, parts, &reading, work),
            };
            match next {
                Some(work) => reading.works[place] = work,
                None => drop(reading.works.swap_remove(place)),
            }
        }
        self.room.reads.borrow_mut().push(reading);
    }

    fn turn(&self, die: u32, ticket: Ticket) -> Option<Turn> {
        self.dies[die as usize].borrow().turn(ticket)
    }

    /// Reserves the array for all parts of this operation that are still unreadable.
    fn begin(&self, timing: &Timing, parts: &[Part], reading: &Reading, work: Sensing) -> Sensing {
        let longest = reading
            .of(work)
            .filter(|at| parts[*at].seen == PageRead::Unreadable)
            .map(|at| self.read_span(timing, &parts[at]))
            .max();
        let die = parts[work.first].page.die;
        let span = self.stretched(die, timing.command + longest.unwrap_or_default());
        let mut die = self.dies[die as usize].borrow_mut();
        let now = self.rt.now();
        let of_planes = |mask, at: usize| mask | 1 << parts[at].page.plane;
        let planes = match timing.independent_planes {
            true => reading.of(work).fold(0, of_planes),
            false => WHOLE,
        };
        let ticket = die.read(now, span, timing.suspend.as_ref(), (reading.collects, planes));
        let due = die.turn(ticket).map_or(now, |turn| turn.end);
        Sensing { now: Now::Array(ticket), due, ..work }
    }

    fn read_span(&self, timing: &Timing, part: &Part) -> Span {
        let nand = self.nand.borrow();
        // Its contents are looked at when the array is done; other work comes before.
        nand.prefetch(self.at(part.page));
        let types = match &timing.read_unit {
            Some(of_unit) if part.units.is_power_of_two() => of_unit,
            _ => &timing.read,
        };
        types[usize::from(nand.cells(part.page.page).kind)]
    }

    /// The array operation has ended: evaluates the result and reserves the wires.
    fn sensed(
        &self,
        timing: &Timing,
        parts: &mut [Part],
        reading: &Reading,
        work: Sensing,
        ticket: Ticket,
    ) -> Sensing {
        let die = parts[work.first].page.die;
        if let Some(turn) = self.turn(die, ticket) {
            let collected = self.dies[die as usize].borrow().collected(self.rt.now());
            let part = (self.collector, turn.waited_for_collector(collected));
            self.rt.record_split(self.waits[0].turn, part, turn.begin);
            self.rt.record_at(self.waits[0].service, turn.end);
        }
        let mut bytes = 0;
        for at in reading.of(work) {
            if parts[at].seen == PageRead::Unreadable {
                self.sense(&mut parts[at], work.step);
                bytes += self.wire_bytes(parts[at].units);
            }
        }
        let wires = self.channel_of(die).reserve(self.rt.now(), on_wires(timing, bytes));
        self.rt.record_turn(self.waits[1], wires);
        let mut die = self.dies[die as usize].borrow_mut();
        if timing.cache {
            die.finish(self.rt.now(), ticket);
        } else {
            die.hold(ticket, wires.end);
        }
        Sensing { now: Now::Wires, due: wires.end + timing.decode, ..work }
    }

    /// Decoding has ended: starts a retry if needed.
    fn decoded(
        &self,
        timing: &Timing,
        parts: &[Part],
        reading: &Reading,
        work: Sensing,
    ) -> Option<Sensing> {
        self.rt.record(self.decode);
        let lost = reading.of(work).filter(|at| parts[*at].seen == PageRead::Unreadable);
        let lost = lost.count() as u64;
        if lost == 0 || work.step == self.nand.borrow().spec().errors.retries {
            self.count(|counts| counts.uncorrectable += lost);
            return None;
        }
        Some(self.begin(timing, parts, reading, Sensing { step: work.step + 1, ..work }))
    }

    /// Bytes transferred for the units in the mask, including their share of the spare bytes. Without units,
    /// the free spare bytes only.
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
    /// Groups the parts that are sensed together: equal page number in several planes.
    fn gather(&mut self, timing: &Timing, parts: &mut [Part]) {
        self.works.clear();
        self.nexts.clear();
        for at in 0..parts.len() {
            parts[at].seen = PageRead::Unreadable;
            self.nexts.push(NONE);
            let page = parts[at].page;
            let same = |work: &&mut Sensing| {
                let other = parts[work.first].page;
                (other.block, other.page, other.die) == (page.block, page.page, page.die)
            };
            let together = timing.multi_plane && !timing.independent_planes;
            let found = if together { self.works.iter_mut().rev().find(same) } else { None };
            if let Some(work) = found {
                self.nexts[work.last] = at;
                work.last = at;
            } else {
                // The array is reserved later, when all parts of the operation are known.
                let (now, due) = (Now::Wires, Time::ZERO);
                self.works.push(Sensing { first: at, last: at, step: 0, now, due });
            }
        }
    }

    /// The operation with the earliest due time.
    fn next_due(&self) -> Option<usize> {
        let due = self.works.iter().enumerate().min_by_key(|(_, work)| work.due);
        due.map(|(place, _)| place)
    }

    /// The parts of an operation.
    fn of(&self, work: Sensing) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(work.first), |at| {
            Some(self.nexts[*at]).filter(|next| *next != NONE)
        })
    }
}
