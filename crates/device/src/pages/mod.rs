//! Endpoints with bare flash behind them: no map, no collector, no cache. The host has all of that.
//!
//! ```text
//!              ┌ endpoint ─ ring ─ slots ─┬ upstream buffer ◄─┐
//!   upstream ──┤                          └ downstream rows ──┴─ its dies
//!   port       └ endpoint ─ ...                                  (those whose number leaves its own)
//! ```
//!
//! Myoungsoo Jung and Mahmut Kandemir, "Challenges in Getting Flash Drives Closer to CPU": endpoints behind a
//! switch, each "with independent upstream and downstream buffers, which control the in-bound or out-bound
//! I/O requests in front of the flash memory". All share the port's link, and so contend for it. A slot is a
//! place of the upstream buffer, taken from the command to its answer; a downstream row holds what one
//! program writes. `Endpoints::read`, in `io.rs`, tells the story of a read.
//!
//! A host may be anybody: what flash would refuse is an answer, and what makes no sense harms nobody.

mod io;
mod program;
mod serve;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::{Cost, DevicePort};
use ftl::{Blocks, Pages};
use runtime::{Pool, Rt, Signal, Stage};
use wire::BusAddr;
use wire::pages::{
    BLOCKS, Command, DIES, ENDPOINT, ENDPOINTS_MAX, ENTRIES_LOG2_MAX, Endpoint as Numbered, GROUP,
    ID, LIMITS, Limits, MAGIC, PAGES, PLANES, REACH, STRIDE, Shape, UNIT_BYTES, UNITS,
};

use crate::flash::Chips;
use crate::worker::Worker;

/// The stages that endpoints mark, beside their costs and those of chips.
pub const STAGES: &[&str] = &["doorbell", "fetch", "data transfer"];

/// What the plan decides about endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many there are.
    pub endpoints: u32,
    /// Commands that each works on at once: pages of its upstream buffer.
    pub slots: u32,
    /// Rows of each one's downstream buffer: programs under way at once.
    pub rows: u32,
    /// Commands that one fetch brings, at most.
    pub fetch_max: u32,
}

/// All endpoints of a device. Made by [`Endpoints::start`]; lives in their tasks.
pub struct Endpoints<P> {
    rt: Rt,
    port: P,
    chips: Rc<Chips>,
    options: Options,
    shape: Shape,
    /// Units of the longest row.
    row_units: u32,
    ends: Vec<End>,
    stages: Stages,
    costs: Costs,
}

struct Stages {
    doorbell: Stage,
    fetch: Stage,
}

struct Costs {
    parse: Cost,
    post: Cost,
}

struct End {
    number: u32,
    /// What CONTROL said when it was last looked at.
    control: Cell<u32>,
    open: Cell<Option<Open>>,
    /// Commands that were fetched, and answers that were posted.
    head: Cell<u32>,
    answered: Cell<u32>,
    slots: Vec<Slot>,
    idle: Pool<u32>,
    /// A slot has come to rest.
    quiet: Signal,
    /// Rows of the downstream buffer, by number over all endpoints.
    rows: Pool<u32>,
    /// Blocks whose erase is under way.
    erasing: RefCell<Vec<Blocks>>,
}

/// The rings, as the registers said when they were enabled.
#[derive(Clone, Copy, Debug)]
struct Open {
    ring: BusAddr,
    answers: BusAddr,
    entries: u32,
    signals: bool,
    /// Which time they are open: what belongs to an earlier one never reaches the host.
    turn: u64,
}

/// A place for one command.
#[derive(Default)]
struct Slot {
    worker: Worker,
    given: Cell<Option<Given>>,
    /// Room that is kept from command to command.
    bytes: RefCell<Vec<u8>>,
    segments: RefCell<Vec<bus::Segment>>,
    units: RefCell<Vec<ftl::Unit>>,
}

/// A command, copied out of host memory once.
#[derive(Clone, Copy)]
struct Given {
    command: Result<Command, u16>,
    turn: u64,
}

/// Whether endpoints can have chips of this layout.
///
/// # Errors
/// What of it they can't, and what they could.
pub fn check(shape: &Shape, endpoints: u32) -> Result<(), String> {
    let dies = shape.dies;
    if !shape.is_sense() {
        return Err(format!("found {shape:?}, expected chips that commands for pages can name"));
    }
    if endpoints > dies.min(ENDPOINTS_MAX) {
        let most = dies.min(ENDPOINTS_MAX);
        return Err(format!(
            "found {endpoints} endpoints, expected at most {most}: one for each die"
        ));
    }
    Ok(())
}

impl<P: DevicePort> Endpoints<P> {
    /// Starts all endpoints on this port, over these chips. The host enables each.
    ///
    /// # Panics
    /// If [`check`] would refuse the chips, or the options make no sense.
    pub fn start(port: P, chips: Rc<Chips>, options: Options) -> Rc<Endpoints<P>> {
        assert!(options.endpoints > 0 && options.slots > 0 && options.rows > 0);
        let (rt, shape) = (port.rt().clone(), chips.shape());
        check(&shape, options.endpoints).expect("checked before the world is built");
        let row_units = shape.row_units(shape.all_planes());
        chips.slots(options.endpoints * options.rows * row_units);
        let ends = (0..options.endpoints).map(|number| End::new(number, &options)).collect();
        let all = Rc::new(Endpoints {
            stages: Stages { doorbell: rt.stage("doorbell"), fetch: rt.stage("fetch") },
            costs: Costs { parse: port.cost("parse"), post: port.cost("post completion") },
            rt,
            port,
            chips,
            options,
            shape,
            row_units,
            ends,
        });
        for number in 0..options.endpoints as usize {
            all.publish(number as u32);
            for slot in 0..options.slots as usize {
                let task = all.rt.spawn(all.clone().work(number, slot));
                all.ends[number].slots[slot].worker.bind(task);
            }
            all.rt.spawn(all.clone().serve(number));
        }
        all
    }

    /// Sets what the host may only read.
    fn publish(&self, number: u32) {
        let own = Numbered::new().with_number(number as u8).with_of(self.options.endpoints as u8);
        let limits = Limits::new().with_entries_log2(ENTRIES_LOG2_MAX);
        let Shape { dies, planes, blocks, pages, group, units, unit_bytes, reach } = self.shape;
        for (register, value) in [
            (ID, MAGIC),
            (LIMITS, limits.into_bits()),
            (ENDPOINT, own.into_bits()),
            (DIES, dies),
            (PLANES, planes),
            (BLOCKS, blocks),
            (PAGES, pages),
            (GROUP, group),
            (UNITS, units),
            (UNIT_BYTES, unit_bytes),
            (REACH, reach),
        ] {
            self.port.store(number * STRIDE + register, value);
        }
    }
}

impl End {
    fn new(number: u32, options: &Options) -> End {
        End {
            number,
            control: Cell::new(0),
            open: Cell::new(None),
            head: Cell::new(0),
            answered: Cell::new(0),
            slots: (0..options.slots).map(|_| Slot::default()).collect(),
            idle: Pool::new((0..options.slots).rev()),
            quiet: Signal::default(),
            rows: Pool::new(number * options.rows..(number + 1) * options.rows),
            erasing: RefCell::default(),
        }
    }

    /// The register at this offset.
    fn register(&self, offset: u32) -> u32 {
        self.number * STRIDE + offset
    }

    /// Whether a command of this turn may still reach the host.
    fn is_open(&self, turn: u64) -> bool {
        self.open.get().is_some_and(|open| open.turn == turn)
    }

    fn is_idle(&self) -> bool {
        self.idle.available() == self.slots.len()
    }
}
