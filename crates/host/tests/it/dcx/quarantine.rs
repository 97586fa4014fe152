//! Quarantine of read buffers, by model checking: no buffer is reused while a write of a timed-out read may
//! land in it.
//!
//! Breadth-first search of every order of steps. Mirrors `Queue::read` with its retries
//! (crates/host/src/dcx/queue.rs), `Slots::{launch, settle, pass}` and the drop of a `Claim` (slots.rs),
//! `Pair::send_fence` (pair.rs); and, on the device, the poller and `Front::pass` (crates/device/src/dcx). A
//! time-out may come at any moment after a launch, and a device's write may land at any moment after its
//! fetch.

use std::collections::BTreeMap;

/// Number of slots, and of reads.
const READS: usize = 2;
const BUFFERS: u8 = 3;
const TRIES: u8 = 3;

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
    buffer: Option<u8>,
    place: Place,
}

/// A slot with a command in flight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Flight {
    number: usize,
    buffer: u8,
    /// True if it has no owner any more.
    quarantined: bool,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct State {
    /// Commands sent so far, indexed by their number.
    commands: Vec<Command>,
    slots: [Option<Flight>; READS],
    /// Slot that each read waits for, and its number of tries.
    reads: [(Option<usize>, u8); READS],
    free: Vec<u8>,
    /// Number of the fence in flight, and whether its report has arrived.
    fence: Option<(usize, bool)>,
    /// True after a write to a buffer of another owner.
    harmed: bool,
}

#[derive(Clone, Copy)]
struct Quarantine {
    /// A timed-out read keeps its buffer until a fence or its end.
    keeps: bool,
    /// The device reports a fence after the commands before it have landed.
    device_waits: bool,
    /// A fence frees only the commands before it.
    before_only: bool,
}

const BUILT: Quarantine = Quarantine { keeps: true, device_waits: true, before_only: true };

fn start() -> State {
    State {
        commands: Vec::new(),
        slots: [None; READS],
        reads: [(None, 0); READS],
        free: (0..BUFFERS).collect(),
        fence: None,
        harmed: false,
    }
}

impl Quarantine {
    fn host(&self, s: &State, read: usize, then: &mut dyn FnMut(&'static str, State)) {
        let (slot, tries) = s.reads[read];
        match slot {
            None if tries < TRIES => {
                let (Some(slot), false) =
                    (s.slots.iter().position(Option::is_none), s.free.is_empty())
                else {
                    return;
                };
                let mut next = s.clone();
                let buffer = next.free.remove(0);
                let number = next.commands.len();
                next.commands.push(Command { buffer: Some(buffer), place: Place::Ring });
                next.slots[slot] = Some(Flight { number, buffer, quarantined: false });
                next.reads[read] = (Some(slot), tries + 1);
                then("a read is launched", next);
            }
            None => {}
            Some(slot) => {
                let flight = s.slots[slot].expect("it waits for its slot");
                // The watchdog reports a time-out: the retry takes another buffer.
                let mut next = s.clone();
                next.reads[read].0 = None;
                match self.keeps {
                    true => next.slots[slot] = Some(Flight { quarantined: true, ..flight }),
                    false => {
                        next.slots[slot] = None;
                        next.free.push(flight.buffer);
                    }
                }
                if next.fence.is_none() {
                    next.fence = Some((next.commands.len(), false));
                    next.commands.push(Command { buffer: None, place: Place::Ring });
                }
                then("a read times out", next);
                if s.commands[flight.number].place == Place::Landed {
                    let mut next = s.clone();
                    next.reads[read] = (None, TRIES);
                    next.slots[slot] = None;
                    next.free.push(flight.buffer);
                    then("a read's tags have vanished", next);
                }
            }
        }
    }

    /// The fence's report: first settled reads end, then earlier commands are lost.
    fn passed(&self, s: &State, fence: usize) -> State {
        let mut next = s.clone();
        next.fence = None;
        for slot in 0..READS {
            let Some(flight) = next.slots[slot] else { continue };
            let landed = s.commands[flight.number].place == Place::Landed;
            if landed || flight.number < fence || !self.before_only {
                next.slots[slot] = None;
                next.free.push(flight.buffer);
                for read in &mut next.reads {
                    if read.0 == Some(slot) {
                        *read = (None, if landed { TRIES } else { read.1 });
                    }
                }
            }
        }
        next
    }

    fn steps(&self, s: &State, then: &mut dyn FnMut(&'static str, State)) {
        for read in 0..READS {
            self.host(s, read, then);
        }
        for (slot, flight) in s.slots.iter().enumerate() {
            let Some(flight) = flight.filter(|flight| flight.quarantined) else { continue };
            if s.commands[flight.number].place == Place::Landed {
                let mut next = s.clone();
                next.slots[slot] = None;
                next.free.push(flight.buffer);
                then("a buffer in quarantine is written", next);
            }
        }
        if let Some((fence, true)) = s.fence {
            then("the host sees the fence", self.passed(s, fence));
        }
        // The device fetches in order; fetched commands land in any order.
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
                    next.harmed |= !s.slots.iter().flatten().any(owns);
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
}

/// Returns the number of states, or the shortest path to a violation.
fn search(model: &Quarantine) -> Result<usize, String> {
    let mut seen = BTreeMap::from([(start(), None)]);
    let mut order = vec![start()];
    let mut number = 0;
    while number < order.len() {
        let state = order[number].clone();
        if state.harmed {
            let (mut way, mut at) = (Vec::new(), &state);
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
}

#[test]
fn broken_models_write_to_reused_buffer() {
    let broken = [
        Quarantine { keeps: false, ..BUILT },
        Quarantine { device_waits: false, ..BUILT },
        Quarantine { before_only: false, ..BUILT },
    ];
    for model in broken {
        search(&model).expect_err("a buffer that is written after it was given away");
    }
}
