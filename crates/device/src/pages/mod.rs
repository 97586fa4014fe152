//! Endpoints with raw flash: no mapping, GC or cache. These are in the host.
//!
//! ```text
//!              ┌ endpoint ─ ring ─ slots ─┬ upstream buffer ◄─┐
//!   upstream ──┤                          └ downstream rows ──┴─ its dies
//!   port       └ endpoint ─ ...                                  (those whose number leaves its own)
//! ```
//!
//! Myoungsoo Jung and Mahmut Kandemir, "Challenges in Getting Flash Drives Closer to CPU": endpoints behind a
//! switch, each "with independent upstream and downstream buffers, which control the in-bound or out-bound
//! I/O requests in front of the flash memory". Each sends by its port of the device's switch, where there is
//! one; otherwise all share one link. A slot is an entry of the upstream buffer, held from command to answer;
//! a downstream row holds the data of one program.
//! `Endpoints::read`, in `io.rs`, is the read path.
//!
//! The host is untrusted: an operation that flash would reject gets an error answer, and invalid input has no
//! effect.

mod io;
mod program;
mod serve;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::{Cost, DevicePort};
use ftl::{Blocks, Pages};
use runtime::{Pool, Rt, Signal, Stage, stage};
use wire::BusAddr;
use wire::pages::{
    BLOCKS, Command, DIES, ENDPOINT, ENDPOINTS_MAX, ENTRIES_LOG2_MAX, Endpoint as Numbered, GROUP,
    ID, LIMITS, Limits, MAGIC, PAGES, PLANES, REACH, STRIDE, Shape, UNIT_BYTES, UNITS,
};

use crate::worker::Worker;
use flash::chips::Chips;

/// Stages that endpoints record, in addition to their costs and those of chips.
pub const STAGES: &[&str] = &["doorbell", "fetch", "data transfer"];

/// Configuration of the endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of endpoints.
    pub endpoints: u32,
    /// Maximum commands in flight per endpoint: pages of its upstream buffer.
    pub slots: u32,
    /// Rows of an endpoint's downstream buffer: maximum programs in flight.
    pub rows: u32,
    /// Maximum commands per fetch.
    pub fetch_max: u32,
}

/// All endpoints of a device. Created by [`Endpoints::start`]; its tasks own it.
pub struct Endpoints<P> {
    rt: Rt,
    port: P,
    /// By which each endpoint reaches host memory.
    ports: Vec<P>,
    chips: Rc<Chips>,
    options: Options,
    shape: Shape,
    /// Mapping units of the longest superpage.
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
    /// Value of CONTROL when last read.
    control: Cell<u32>,
    open: Cell<Option<Open>>,
    /// Number of commands fetched, and of answers posted (next field).
    head: Cell<u32>,
    answered: Cell<u32>,
    slots: Vec<Slot>,
    idle: Pool<u32>,
    /// Notified when a slot becomes idle.
    quiet: Signal,
    /// Rows of the downstream buffer, numbered over all endpoints.
    rows: Pool<u32>,
    /// Blocks with an erase in progress.
    erasing: RefCell<Vec<Blocks>>,
}

/// Register values of the rings at the time that they were enabled.
#[derive(Clone, Copy, Debug)]
struct Open {
    ring: BusAddr,
    answers: BusAddr,
    entries: u32,
    signals: bool,
    /// Generation, incremented at each enable: results of an earlier generation must not reach the host.
    turn: u64,
}

#[derive(Default)]
struct Slot {
    worker: Worker,
    given: Cell<Option<Given>>,
    /// Scratch buffers, reused from command to command.
    bytes: RefCell<Vec<u8>>,
    segments: RefCell<Vec<bus::Segment>>,
    units: RefCell<Vec<ftl::Unit>>,
}

/// A command, copied from host memory exactly once.
#[derive(Clone, Copy)]
struct Given {
    command: Result<Command, u16>,
    turn: u64,
}

/// Why chips cannot be behind endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The layout of the chips exceeds the fields of commands.
    #[error("found {0:?}, expected chips that commands for pages can name")]
    Shape(Shape),
    /// There are more endpoints than dies, or more than the registers hold.
    #[error("found {found} endpoints, expected at most {most}: one for each die")]
    Endpoints {
        /// Number of endpoints.
        found: u32,
        /// Maximum number for these chips.
        most: u32,
    },
}

/// Checks that endpoints can address chips of this layout.
///
/// # Errors
/// The layout or the number of endpoints is not supported.
pub fn check(shape: &Shape, endpoints: u32) -> Result<(), Unfit> {
    if !shape.is_sense() {
        return Err(Unfit::Shape(*shape));
    }
    let most = shape.dies.min(ENDPOINTS_MAX);
    if endpoints > most {
        return Err(Unfit::Endpoints { found: endpoints, most });
    }
    Ok(())
}

impl<P: DevicePort> Endpoints<P> {
    /// Starts all endpoints on this port, over these chips. The host enables each one.
    ///
    /// # Panics
    /// If [`check`] rejects the chips, or the options are inconsistent.
    pub fn start(port: P, chips: Rc<Chips>, options: Options) -> Rc<Endpoints<P>> {
        assert!(options.endpoints > 0 && options.slots > 0 && options.rows > 0);
        let (rt, shape) = (port.rt().clone(), chips.shape());
        check(&shape, options.endpoints).expect("checked before the world is built");
        let row_units = shape.row_units(shape.all_planes());
        chips.slots(options.endpoints * options.rows * row_units);
        let ends = (0..options.endpoints).map(|number| End::new(number, &options)).collect();
        let all = Rc::new(Endpoints {
            stages: Stages {
                doorbell: stage!(rt, STAGES, "doorbell"),
                fetch: stage!(rt, STAGES, "fetch"),
            },
            costs: Costs { parse: port.cost("parse"), post: port.cost("post completion") },
            ports: (0..options.endpoints).map(|number| port.through(number)).collect(),
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

    /// By which this endpoint reaches host memory.
    fn port_of(&self, end: &End) -> &P {
        &self.ports[end.number as usize]
    }

    /// Sets the host's read-only registers.
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

    /// Returns true if results of this generation may still reach the host.
    fn is_open(&self, turn: u64) -> bool {
        self.open.get().is_some_and(|open| open.turn == turn)
    }

    fn is_idle(&self) -> bool {
        self.idle.available() == self.slots.len()
    }
}
