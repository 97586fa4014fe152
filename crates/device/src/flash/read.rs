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
        let mut works = self.room.senses.borrow_mut().pop().unwrap_or_default();
        works.clear();
        for part in parts.iter_mut() {
            part.seen = Seen::Unreadable;
        }
        for first in 0..parts.len() {
            if first_of(timing, parts, first) == first {
                let now = Now::Array(self.begin(timing, parts, first, 0));
                works.push(Sensing { first, step: 0, now });
            }
        }
        while let Some((place, due)) = self.next_due(&works, parts) {
            if due > self.rt.now() {
                self.rt.sleep_until(due).await;
                // A turn may have moved on, and another be due before it.
                continue;
            }
            let work = works[place];
            match self.go_on(timing, parts, work) {
                Some(now) => works[place] = now,
                None => drop(works.swap_remove(place)),
            }
        }
        self.room.senses.borrow_mut().push(works);
    }

    /// Asks the die for the array, for all parts of this work that are still unreadable.
    fn begin(&self, timing: &Timing, parts: &[Part], first: usize, step: u32) -> Ticket {
        let longest = with(timing, parts, first)
            .filter(|part| step == 0 || part.seen == Seen::Unreadable)
            .map(|part| self.read_span(timing, part))
            .max();
        let span = timing.command + longest.unwrap_or_default();
        let mut die = self.dies[parts[first].page.die as usize].borrow_mut();
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

    /// What comes after what is over now. None: nothing.
    fn go_on(&self, timing: &Timing, parts: &mut [Part], work: Sensing) -> Option<Sensing> {
        let Sensing { first, step, .. } = work;
        let die = parts[first].page.die;
        let Now::Array(ticket) = work.now else {
            let retries = self.nand.borrow().spec().errors.retries;
            let open = with(timing, parts, first).any(|part| part.seen == Seen::Unreadable);
            if !open || step == retries {
                let lost = with(timing, parts, first).filter(|p| p.seen == Seen::Unreadable);
                let lost = lost.count() as u64;
                self.count(|counts| counts.uncorrectable += lost);
                return None;
            }
            let ticket = self.begin(timing, parts, first, step + 1);
            return Some(Sensing { step: step + 1, now: Now::Array(ticket), ..work });
        };
        let turn = self.dies[die as usize].borrow().turn(ticket);
        if let Some(turn) = turn {
            self.rt.mark_at(self.waits[0].turn, turn.begin);
            self.rt.mark_at(self.waits[0].service, turn.end);
        }
        let mut bytes = 0;
        for at in first..parts.len() {
            let mine = first_of(timing, parts, at) == first;
            if mine && (step == 0 || parts[at].seen == Seen::Unreadable) {
                self.sense(&mut parts[at], step);
                bytes += self.wire_bytes(parts[at].units);
            }
        }
        let wires = self.channel_of(die).reserve(self.rt.now(), on_wires(timing, bytes));
        self.rt.mark_turn(self.waits[1], wires);
        let mut die = self.dies[die as usize].borrow_mut();
        if !timing.cache {
            die.hold(ticket, wires.end);
        } else {
            die.finish(ticket);
        }
        Some(Sensing { now: Now::Wires(wires.end + timing.decode), ..work })
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

/// The first part that is sensed together with this one.
fn first_of(timing: &Timing, parts: &[Part], at: usize) -> usize {
    if !timing.multi_plane {
        return at;
    }
    let page = parts[at].page;
    let same = |other: &Part| {
        let other = other.page;
        (other.die, other.block, other.page) == (page.die, page.block, page.page)
    };
    parts[..at].iter().position(same).unwrap_or(at)
}

/// The parts that are sensed with the one at `first`.
fn with<'a>(timing: &'a Timing, parts: &'a [Part], first: usize) -> impl Iterator<Item = &'a Part> {
    (first..parts.len())
        .filter(move |at| first_of(timing, parts, *at) == first)
        .map(|at| &parts[at])
}
