//! Ownership of read buffers, by model checking: no write lands in a buffer that its read has given back, and
//! no read ends by another's data.
//!
//! Breadth-first search of every order of steps. Mirrors `Queue::read` with its retries
//! (crates/host/src/dcx/queue.rs), `Slots::{launch, settle, pass}` and the drop of a `Claim` (slots.rs),
//! `Pair::send_fence` (pair.rs); and, on the device, the poller and `Front::pass` (crates/device/src/dcx). A
//! time-out may come at any moment after a launch, a caller may drop its read at any moment, and a device's
//! write may land at any moment after its fetch, also with data that end with the tag. Callers keep a
//! reference to their buffers, and use them for their next read.

use std::collections::BTreeMap;

/// Reads of each caller, one after the other, in one buffer unless one was dropped.
const READS: [u8; 2] = [2, 1];
const SLOTS: usize = 2;
const BUFFERS: usize = 3;
/// Launches of a read, before it goes by the other driver.
const TRIES: u8 = 2;
const FENCES_MAX: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    /// Stored, not yet fetched by the device.
    Ring,
    /// Fetched: its data may land.
    Fetched,
    Landed,
}

/// A command in the ring or the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Command {
    /// `None` for a fence.
    buffer: Option<usize>,
    place: Place,
}

/// The end of a buffer: the tag or the data of a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Content {
    Old,
    Tag(usize),
    Data(usize),
}

/// A slot with a command in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Flight {
    number: usize,
    buffer: usize,
    /// `None` if its read was dropped.
    caller: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Caller {
    buffer: Option<usize>,
    reads: u8,
    tries: u8,
    in_flight: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    /// Commands sent so far, indexed by their number.
    commands: Vec<Command>,
    contents: [Content; BUFFERS],
    slots: [Option<Flight>; SLOTS],
    callers: [Caller; 2],
    free: Vec<usize>,
    /// Number of the fence in flight, and whether its report has arrived.
    fence: Option<(usize, bool)>,
    harm: Option<&'static str>,
}

#[derive(Clone, Copy)]
struct Quarantine {
    /// A late read keeps its buffer until its end or a fence. Otherwise it is read by other means, and the
    /// slot alone stays.
    keeps: bool,
    /// The device reports a fence after the commands before it have landed.
    device_waits: bool,
    /// A fence frees only the commands before it.
    before_only: bool,
    /// A buffer whose read was dropped is free when that has ended. Otherwise it is its caller's at once.
    drop_keeps: bool,
}

const BUILT: Quarantine =
    Quarantine { keeps: true, device_waits: true, before_only: true, drop_keeps: true };

fn start() -> State {
    let caller = |number| Caller { buffer: Some(number), reads: 0, tries: 0, in_flight: false };
    State {
        commands: Vec::new(),
        contents: [Content::Old; BUFFERS],
        slots: [None; SLOTS],
        callers: [caller(0), caller(1)],
        free: vec![2],
        fence: None,
        harm: None,
    }
}

impl State {
    fn has_vanished(&self, flight: Flight) -> bool {
        self.contents[flight.buffer] != Content::Tag(flight.number)
    }

    /// Ends the command of a slot; a lost one is tried again.
    fn end(&mut self, slot: usize, lost: bool) {
        let flight = self.slots[slot].take().expect("in flight");
        let Some(caller) = flight.caller else { return self.free.push(flight.buffer) };
        let caller = &mut self.callers[caller];
        caller.in_flight = false;
        if lost && caller.tries < TRIES {
            return;
        }
        (caller.reads, caller.tries) = (caller.reads + 1, 0);
        if !lost && self.contents[flight.buffer] != Content::Data(flight.number) {
            self.harm = Some("a read ended with other data");
        }
    }
}

impl Quarantine {
    fn host(&self, s: &State, caller: usize, then: &mut dyn FnMut(&'static str, State)) {
        let Caller { buffer, reads, in_flight, .. } = s.callers[caller];
        if !in_flight {
            let slot = s.slots.iter().position(Option::is_none);
            let (Some(buffer), Some(slot)) = (buffer.or(s.free.first().copied()), slot) else {
                return;
            };
            if reads == READS[caller] {
                return;
            }
            let mut next = s.clone();
            let number = next.commands.len();
            next.free.retain(|free| *free != buffer);
            next.contents[buffer] = Content::Tag(number);
            next.commands.push(Command { buffer: Some(buffer), place: Place::Ring });
            next.slots[slot] = Some(Flight { number, buffer, caller: Some(caller) });
            let own = &mut next.callers[caller];
            (own.buffer, own.tries, own.in_flight) = (Some(buffer), own.tries + 1, true);
            return then("a read is launched", next);
        }
        let of = |flight: &Option<Flight>| flight.is_some_and(|f| f.caller == Some(caller));
        let slot = s.slots.iter().position(of).expect("in flight");
        let mut next = s.clone();
        next.slots[slot].as_mut().expect("in flight").caller = None;
        let own = &mut next.callers[caller];
        (own.reads, own.tries, own.in_flight) = (own.reads + 1, 0, false);
        if self.drop_keeps {
            own.buffer = None;
        }
        then("a read is dropped", next.clone());
        if !self.keeps {
            next.callers[caller].buffer = buffer;
            then("a read times out", next);
        }
    }

    fn slots(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        for slot in 0..SLOTS {
            let Some(flight) = s.slots[slot] else { continue };
            if s.has_vanished(flight) {
                let mut next = s.clone();
                next.end(slot, false);
                then("a tag has vanished", next);
            }
        }
        let fences = s.commands.iter().filter(|command| command.buffer.is_none()).count();
        let any = s.slots.iter().any(Option::is_some);
        if any && s.fence.is_none() && fences < FENCES_MAX {
            let mut next = s.clone();
            next.fence = Some((next.commands.len(), false));
            next.commands.push(Command { buffer: None, place: Place::Ring });
            then("a command is late: a fence is sent", next);
        }
        if let Some((fence, true)) = s.fence {
            // First settled reads end, then earlier commands are lost.
            let mut next = s.clone();
            next.fence = None;
            for slot in 0..SLOTS {
                let Some(flight) = next.slots[slot] else { continue };
                if next.has_vanished(flight) {
                    next.end(slot, false);
                } else if flight.number < fence || !self.before_only {
                    next.end(slot, true);
                }
            }
            then("the host sees the fence", next);
        }
    }

    /// The device fetches in order; fetched commands land in any order.
    fn device(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        if let Some(number) = s.commands.iter().position(|c| c.place == Place::Ring) {
            let mut next = s.clone();
            next.commands[number].place = Place::Fetched;
            then("the device fetches", next);
        }
        for (number, command) in s.commands.iter().enumerate() {
            if command.place != Place::Fetched {
                continue;
            }
            let mut next = s.clone();
            next.commands[number].place = Place::Landed;
            match command.buffer {
                Some(buffer) => {
                    let owns = |f: &Flight| f.buffer == buffer && f.number == number;
                    if !s.slots.iter().flatten().any(owns) {
                        next.harm = Some("data landed in a buffer that was given back");
                    }
                    next.contents[buffer] = Content::Tag(number);
                    then("data land that end with the tag", next.clone());
                    next.contents[buffer] = Content::Data(number);
                    then("data land", next);
                }
                None => {
                    let before = &s.commands[..number];
                    let waits = before.iter().any(|c| c.place != Place::Landed);
                    if !(waits && self.device_waits) {
                        next.fence = Some((number, true));
                        then("the device reports a fence", next);
                    }
                }
            }
        }
    }

    fn steps(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        (0..READS.len()).for_each(|caller| self.host(s, caller, then));
        self.slots(s, then);
        self.device(s, then);
    }
}

/// Returns the number of states, or the shortest path to a violation.
fn search(model: &Quarantine) -> Result<usize, String> {
    let mut seen = BTreeMap::from([(start(), None)]);
    let mut order = vec![start()];
    let mut number = 0;
    while number < order.len() {
        let state = order[number].clone();
        if let Some(harm) = state.harm {
            let (mut way, mut at) = (vec![harm.to_owned()], &state);
            while let Some((before, name)) = seen[at] {
                way.push(format!("{name:<36} {at:?}"));
                at = &order[before];
            }
            way.reverse();
            return Err(way.join("\n"));
        }
        model.steps(&state, &mut |name, next| {
            if !seen.contains_key(&next) {
                seen.insert(next.clone(), Some((number, name)));
                order.push(next);
            }
        });
        number += 1;
    }
    Ok(order.len())
}

#[test]
fn model_has_no_write_to_reused_buffer() {
    let states = search(&BUILT).unwrap_or_else(|way| panic!("harm, after\n{way}"));
    assert!(states > 1000, "only {states} states");
    println!("{states} states");
}

#[test]
fn broken_models_write_to_reused_buffer() {
    let broken = [
        Quarantine { keeps: false, ..BUILT },
        Quarantine { device_waits: false, ..BUILT },
        Quarantine { before_only: false, ..BUILT },
        Quarantine { drop_keeps: false, ..BUILT },
    ];
    for model in broken {
        search(&model).expect_err("a buffer that is written after it was given away");
    }
}
