//! Model of ownership and wrap-around on a small ring: is a descriptor ever changed by a side that does not
//! own it, answered twice, out of order or not at all?
//!
//! Mirrors the driver's three parts (`Disk::fill`, `Ring::{store, announce, take_back, empty_oldest}`) and
//! the front end (`Front::{serve, take, look_ahead, return_group}`). Each step is one store or one load.
//! Stores of each side wait in its own buffer, in order, and reach the other at any later moment (x86-TSO;
//! posted writes on PCIe). Counts run on past the ring, as they do past 2^32.

use crate::search::{Model, search};

const ENTRIES: usize = 2;
/// Total requests: three turns of the ring.
const REQUESTS: u8 = 6;

/// Descriptor: owner, and the count that it carries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Word {
    Empty,
    Command(u8),
    Response(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Store {
    Ring(usize, Word),
    /// First count and size of an announced block.
    Announce(u8, u8),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    ring: [Word; ENTRIES],
    announced: Option<(u8, u8)>,
    from_host: Vec<Store>,
    from_device: Vec<Store>,
    /// The host's counts: answered, next block, free.
    head: u8,
    next: u8,
    free: u8,
    /// The host's block in flight (first, size), and its returned descriptors as bits.
    flight: Option<(u8, u8, u8)>,
    /// Device state: the next count that may be announced, commands taken ahead, the current block,
    /// descriptors taken, and descriptors returned, as bits.
    expected: u8,
    ahead: u8,
    has: Option<(u8, u8)>,
    taken: u8,
    returned: u8,
    /// Times that the device took each request.
    done: [u8; REQUESTS as usize],
    violated: Option<&'static str>,
}

#[derive(Clone, Copy)]
struct Ring {
    /// True if descriptors return one by one in any order, false if the whole block returns at once.
    each: bool,
    /// The device takes commands before they are announced.
    looks_ahead: bool,
    /// The host empties a place before filling it again, and checks that it is empty.
    empties: bool,
    /// The host announces one block at a time.
    one_in_flight: bool,
    /// A descriptor carries its count.
    counts: bool,
    /// The host fills only places that are free.
    minds_room: bool,
    /// The device looks ahead no further than to the block in flight.
    minds_flight: bool,
}

/// The rules that driver and device implement.
const BUILT: Ring = Ring {
    each: false,
    looks_ahead: false,
    empties: true,
    one_in_flight: true,
    counts: true,
    minds_room: true,
    minds_flight: true,
};

/// The implemented rules, with the device looking ahead.
const AHEAD: Ring = Ring { looks_ahead: true, ..BUILT };

fn place(count: u8) -> usize {
    usize::from(count) % ENTRIES
}

impl Ring {
    fn is(&self, word: Word, command: bool, count: u8) -> bool {
        match word {
            Word::Empty => false,
            Word::Command(of) => command && (!self.counts || of == count),
            Word::Response(of) => !command && (!self.counts || of == count),
        }
    }

    /// The host's view of its own memory, including its stores that have not landed.
    fn seen(s: &State, place: usize) -> Word {
        let own = s.from_host.iter().rev().find_map(|store| match store {
            Store::Ring(at, word) if *at == place => Some(*word),
            _ => None,
        });
        own.unwrap_or(s.ring[place])
    }

    fn host(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        // The I/O Requests Handler.
        let has_room = usize::from(s.free - s.head) < ENTRIES;
        if s.free < REQUESTS && (has_room || !self.minds_room) {
            let mut next = s.clone();
            if Ring::seen(s, place(s.free)) != Word::Empty && self.empties {
                next.violated = Some("the host fills a place that is not empty");
            }
            next.from_host.push(Store::Ring(place(s.free), Word::Command(s.free)));
            next.free += 1;
            then("host stores a descriptor", next);
        }
        // The New Descriptors Block Processor: any block size.
        if s.flight.is_none() || !self.one_in_flight {
            for size in 1..=(s.free - s.next).min(ENTRIES as u8) {
                let mut next = s.clone();
                next.flight = Some((s.next, size, 0));
                next.from_host.push(Store::Announce(s.next, size));
                next.next += size;
                then("host announces a block", next);
            }
        }
        if let Some((first, size, back)) = s.flight {
            for n in (0..size).filter(|n| back & 1 << n == 0) {
                let count = first + n;
                let word = Ring::seen(s, place(count));
                if self.is(word, false, count) {
                    let mut next = s.clone();
                    let back = back | 1 << n;
                    next.flight = Some((first, size, back)).filter(|_| back != (1 << size) - 1);
                    then("host takes a descriptor back", next);
                }
            }
        }
        // The I/O Responses Generator: the oldest, if it has come back.
        let is_out = s.flight.is_some_and(|(first, size, back)| {
            (first..first + size).contains(&s.head) && back & 1 << (s.head - first) == 0
        });
        if s.head < s.next && !is_out {
            let mut next = s.clone();
            if self.empties {
                next.from_host.push(Store::Ring(place(s.head), Word::Empty));
            }
            next.head += 1;
            then("host answers the oldest", next);
        }
    }

    fn take(&self, s: &State, count: u8, next: &mut State) {
        if !self.is(s.ring[place(count)], true, count) {
            next.violated = Some("the device takes what is not its own");
        } else if let Word::Command(of) = s.ring[place(count)] {
            next.done[usize::from(of)] += 1;
        }
    }

    fn device(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        if let (Some((first, size)), None) = (s.announced, s.has) {
            let mut next = s.clone();
            next.announced = None;
            if first != s.expected {
                next.violated = Some("the device is told of a block out of turn");
            }
            next.has = Some((first, size));
            next.taken = s.ahead.min(size);
            next.ahead -= next.taken;
            next.returned = 0;
            next.expected = first + size;
            then("device notices a block", next);
        }
        if let Some((first, size)) = s.has
            && s.taken < size
        {
            let mut next = s.clone();
            self.take(s, first + s.taken, &mut next);
            next.taken += 1;
            then("device takes a command", next);
        }
        if self.looks_ahead
            && let Some((_, size)) = s.has
            && s.taken == size
            && (usize::from(size + s.ahead) < ENTRIES || !self.minds_flight)
            && usize::from(s.ahead) < ENTRIES
            && self.is(s.ring[place(s.expected + s.ahead)], true, s.expected + s.ahead)
        {
            let mut next = s.clone();
            self.take(s, s.expected + s.ahead, &mut next);
            next.ahead += 1;
            then("device takes a command ahead", next);
        }
        if let Some((first, size)) = s.has {
            let all = (1u8 << size) - 1;
            let mut give = |which: u8| {
                let mut next = s.clone();
                for n in (0..size).filter(|n| which & 1 << n != 0) {
                    let back = Store::Ring(place(first + n), Word::Response(first + n));
                    next.from_device.push(back);
                }
                next.returned |= which;
                if next.returned == all {
                    next.has = None;
                }
                then("device returns", next);
            };
            if self.each {
                (0..s.taken).filter(|n| s.returned & 1 << n == 0).for_each(|n| give(1 << n));
            } else if s.taken == size {
                give(all);
            }
        }
    }
}

impl Model for Ring {
    type State = State;

    fn start(&self) -> Vec<State> {
        vec![State {
            ring: [Word::Empty; ENTRIES],
            announced: None,
            from_host: Vec::new(),
            from_device: Vec::new(),
            head: 0,
            next: 0,
            free: 0,
            flight: None,
            expected: 0,
            ahead: 0,
            has: None,
            taken: 0,
            returned: 0,
            done: [0; REQUESTS as usize],
            violated: None,
        }]
    }

    fn steps(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        for from_host in [true, false] {
            let mut next = s.clone();
            let buffer = if from_host { &mut next.from_host } else { &mut next.from_device };
            if buffer.is_empty() {
                continue;
            }
            match buffer.remove(0) {
                Store::Ring(place, word) => {
                    let (owner, writer) = (next.ring[place], from_host);
                    let is_hosts = !matches!(owner, Word::Command(_));
                    if is_hosts != writer {
                        next.violated = Some("a side writes what the other owns");
                    }
                    next.ring[place] = word;
                }
                Store::Announce(first, size) => {
                    if next.announced.is_some() {
                        next.violated = Some("a block is announced over another");
                    }
                    next.announced = Some((first, size));
                }
            }
            then("a store lands", next);
        }
        self.host(s, then);
        self.device(s, then);
    }

    fn wrong(&self, s: &State, last: bool) -> Option<String> {
        if let Some(what) = s.violated {
            return Some(what.to_owned());
        }
        if (0..s.head).any(|count| s.done[usize::from(count)] != 1) {
            return Some("a request is answered that was not done once".to_owned());
        }
        (last && s.head < REQUESTS).then(|| format!("request {} is never answered", s.head))
    }
}

#[test]
fn model_ring_ownership_holds_and_answers_each_request_once() {
    let mut states = 0;
    for each in [false, true] {
        for looks_ahead in [false, true] {
            let ring = Ring { each, looks_ahead, ..BUILT };
            states += search(&ring).unwrap_or_else(|way| panic!("{way}"));
        }
    }
    assert!(states > 3_000, "only {states} states");
}

#[test]
fn model_ring_fails_without_each_rule() {
    for (what, ring) in [
        ("two blocks in flight", Ring { one_in_flight: false, ..BUILT }),
        ("places filled that are not free", Ring { minds_room: false, ..BUILT }),
        ("looking ahead too far", Ring { counts: false, minds_flight: false, ..AHEAD }),
    ] {
        assert!(search(&ring).is_err(), "{what} does no harm");
    }
}
