//! A PCIe switch in virtual time: several downstream links share one upstream link.
//!
//! The switch forwards packet by packet, so a transfer occupies both links at the same time, and its own
//! link until the shared link has taken the last packet: the switch buffers no more than one packet. The
//! forwarding latency is part of each link's latency.
//!
//! The shared link is a schedule with gaps. A transfer that has to wait for its own link reserves a later
//! slot, and a transfer from another link may take an earlier one: no transfer waits while the link is
//! idle. A saturated shared link serves in order of request; arbiters of real switches are round robin over
//! ports, by packets.

use alloc::collections::VecDeque;
use core::cell::{Cell, RefCell};

use runtime::{Span, Time, Turn};
use wire::pcie::{self, Generation};

/// Direction on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the device to the host.
    Up,
    /// From the host to the device.
    Down,
}

/// Parameters of the link above a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchSpec {
    /// Generation: rate and line coding.
    pub generation: Generation,
    /// Number of lanes.
    pub lanes: u8,
}

/// The link above a switch, both directions.
pub struct Switch {
    byte_time: (u64, u64),
    up: Timetable,
    down: Timetable,
}

impl Switch {
    /// A switch whose upstream link is idle.
    pub fn new(spec: SwitchSpec) -> Switch {
        let byte_time = pcie::byte_time(spec.generation, spec.lanes);
        Switch { byte_time, up: Timetable::default(), down: Timetable::default() }
    }

    /// Total time that this direction has been busy.
    pub fn busy(&self, way: Way) -> Span {
        self.timetable(way).busy.get()
    }

    /// Reserves the shared link for `wire_bytes` bytes, headers included. Their own link transmits the
    /// first of them at `begin`. `now` is monotonic.
    pub(crate) fn pass(&self, way: Way, now: Time, begin: Time, wire_bytes: u64) -> Turn {
        let (ps, per) = self.byte_time;
        self.timetable(way).reserve(now, begin, Span((wire_bytes * ps).div_ceil(per)))
    }

    fn timetable(&self, way: Way) -> &Timetable {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }
}

/// Reserved intervals, in order and disjoint. Adjacent ones are merged.
#[derive(Default)]
struct Timetable {
    turns: RefCell<VecDeque<Turn>>,
    busy: Cell<Span>,
}

impl Timetable {
    /// Reserves the first gap of length `service`, not before `from`.
    fn reserve(&self, now: Time, from: Time, service: Span) -> Turn {
        let mut turns = self.turns.borrow_mut();
        while turns.front().is_some_and(|turn| turn.end <= now) {
            turns.pop_front();
        }
        self.busy.set(self.busy.get() + service);
        let mut begin = from.max(now);
        let mut place = turns.partition_point(|turn| turn.end <= begin);
        while let Some(turn) = turns.get(place)
            && turn.begin < begin + service
        {
            begin = begin.max(turn.end);
            place += 1;
        }
        let mine = Turn { begin, end: begin + service };
        put(&mut turns, place, mine);
        mine
    }
}

/// Inserts an interval before the one at index `place`, and merges it with adjacent ones.
fn put(turns: &mut VecDeque<Turn>, place: usize, mine: Turn) {
    let before = place.checked_sub(1).filter(|before| turns[*before].end == mine.begin);
    let after = turns.get(place).is_some_and(|after| after.begin == mine.end);
    match (before, after) {
        (None, false) => turns.insert(place, mine),
        (None, true) => turns[place].begin = mine.begin,
        (Some(before), false) => turns[before].end = mine.end,
        (Some(before), true) => {
            turns[before].end = turns[place].end;
            turns.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::tests::gen2_x4;
    use crate::link::{Flight, Link, Posted};
    use alloc::rc::Rc;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn below(lanes: u8, links: usize) -> Vec<Link> {
        let spec = SwitchSpec { generation: Generation::Gen2, lanes };
        let switch = Rc::new(Switch::new(spec));
        (0..links).map(|_| Link::below(gen2_x4(), 0, switch.clone())).collect()
    }

    fn post(link: &Link, way: Way) -> Flight {
        let posted = Posted { address: 1 << 32, bytes: 4096, relaxed: false, ready: Time::ZERO };
        link.post(way, Time::ZERO, posted, |_, _, _| {})
    }

    /// 4 KiB take 2,432 ns on four lanes, as they do without a switch.
    #[test]
    fn links_share_rate_of_upstream_link() {
        let narrow = below(4, 3);
        let sent: Vec<_> = narrow.iter().map(|link| post(link, Way::Up).sent.0).collect();
        assert_eq!(sent, [2_432_000, 4_864_000, 7_296_000]);
        // The upstream link carries two transfers at full rate, so three take 1.5 times as long.
        let wide = below(8, 3);
        let sent: Vec<_> = wide.iter().map(|link| post(link, Way::Up).sent.0).collect();
        assert_eq!(sent, [2_432_000, 2_432_000, 3_648_000]);
    }

    #[test]
    fn transfer_waiting_for_shared_link_holds_its_own() {
        let links = below(4, 2);
        post(&links[0], Way::Down);
        let first = post(&links[1], Way::Down);
        let second = post(&links[1], Way::Down);
        assert_eq!((first.begin.0, first.sent.0), (0, 4_864_000));
        assert_eq!((second.begin.0, second.sent.0), (4_864_000, 7_296_000));
        assert_eq!(links[0].busy(Way::Down), Span(2_432_000));
    }

    #[test]
    fn later_reservation_leaves_earlier_gap_usable() {
        let table = Timetable::default();
        let later = table.reserve(Time(0), Time(100), Span(10));
        let now = table.reserve(Time(0), Time(0), Span(100));
        let behind = table.reserve(Time(0), Time(0), Span(1));
        assert_eq!((later.begin, now.begin, behind.begin), (Time(100), Time(0), Time(110)));
        assert_eq!(table.busy.get(), Span(111));
        assert_eq!(table.turns.borrow().len(), 1, "they touch");
    }

    proptest! {
        /// Model: one flag for every moment.
        #[test]
        fn reservation_takes_first_gap_that_fits(
            asked in prop::collection::vec((0_u64..3, 0_u64..40, 1_u64..8), 1..60),
        ) {
            let (table, mut taken) = (Timetable::default(), Vec::new());
            taken.resize(2_000, false);
            let mut now = 0;
            for (later, ahead, service) in asked {
                now += later;
                let turn = table.reserve(Time(now), Time(now + ahead), Span(service));
                let free = |at: &u64| (*at..at + service).all(|at| !taken[at as usize]);
                let first = (now + ahead..2_000).find(free).expect("room");
                prop_assert_eq!(turn, Turn { begin: Time(first), end: Time(first + service) });
                (first..first + service).for_each(|at| taken[at as usize] = true);
            }
        }
    }
}
