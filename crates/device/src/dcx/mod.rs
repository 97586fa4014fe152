//! DC Express: the device fetches commands unasked, and says nothing when their data have arrived.
//!
//! ```text
//!   poller   one for each queue: fetches the ring, over and over, and hands commands to slots
//!   slots    one command each: medium, data, and a report where no vanishing tag can tell
//!   pace     when the next fetch leaves
//!   tagged   which tag no data end with
//! ```
//!
//! Dejan Vučinić et al., "DC Express: Shortest Latency Protocol for Reading Phase Change Memory over
//! PCI Express" (FAST 2014). [`Front::read`](Front) tells the story of one read. It stands beside an
//! NVMe controller on the same port and medium, in a register block of its own.

mod control;
mod faulty;
mod intervals;
mod io;
mod pace;
mod poller;
mod queue;
mod slot;
mod tagged;
#[cfg(test)]
mod wrap;

use std::cell::Cell;
use std::rc::Rc;

use bus::{Cost, DevicePort};
use media::Media;
use runtime::{Pool, Rt, Signal, Stage};
use wire::dcx::registers::block_bytes;

use crate::faults::Faults;
pub use intervals::Intervals;
pub use pace::{Next, Pace};
use queue::Queue;
use slot::Slot;
pub use tagged::{Choice, Reader, Tagged};

/// What the plan decides about the front end.
#[derive(Clone, Debug)]
pub struct Options {
    /// Offset of its register block in the device's window, bytes.
    pub block: u32,
    /// Queues that it offers.
    pub queues: u16,
    /// The most entries of a ring, as a power of two.
    pub entries_log2: u8,
    /// Commands that it works on at once.
    pub slots: u16,
    /// The most entries it takes with one fetch.
    pub fetch_max: u32,
    /// Fetches are timed, so that commands arrive when they can be served.
    pub anticipate: bool,
    /// Fetches in a row that bring nothing after which a queue that may sleep does.
    pub sleep_after: u32,
    /// The most bytes of one command; a power of two.
    pub transfer_bytes_max: u32,
    /// Whether data writes carry the relaxed-ordering attribute, to hosts that tag each packet.
    pub relaxed_ordering: bool,
    /// Added to a queue's number, from 0, it gives that of its journeys.
    pub traces_from: u16,
}

impl Options {
    /// The length of the register block, bytes.
    pub fn block_bytes(&self) -> u32 {
        block_bytes(u32::from(self.queues))
    }
}

/// The costs that the front end spends on the device's processor.
pub const COSTS: &[&str] = &["parse", "post completion"];

/// The stages that the front end marks, beside its costs.
pub const STAGES: &[&str] = &["pickup", "dispatch", "tag wait", "link wait", "data transfer"];

/// The front end. Made by [`Front::start`]; lives in its tasks.
pub struct Front<P, M> {
    rt: Rt,
    port: P,
    media: Rc<Tagged<M>>,
    faults: Rc<Faults>,
    options: Options,
    queues: Vec<Queue>,
    slots: Vec<Slot>,
    idle: Pool<u16>,
    /// Whoever has it sends data: one command's at a time, so that a fetch can leave among them.
    sender: Pool<Sender>,
    /// A slot has become idle, or a fetch has come back.
    quiet: Signal,
    stages: Stages,
    costs: Costs,
    counters: Counters,
}

/// The right to send data; there is one.
struct Sender;

struct Stages {
    pickup: Stage,
    dispatch: Stage,
    /// None where there are no faults.
    fault: Option<Stage>,
    turn: Stage,
    transfer: Stage,
}

struct Costs {
    parse: Cost,
    post: Cost,
}

/// What the front end has done so far.
#[derive(Default)]
struct Counters {
    fetches: Cell<u64>,
    empty: Cell<u64>,
    commands: Cell<u64>,
    sleeps: Cell<u64>,
}

/// What a front end has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Fetches that have come back.
    pub fetches: u64,
    /// Those of them that brought nothing.
    pub empty: u64,
    /// Commands that were fetched.
    pub commands: u64,
    /// Times that a queue went to sleep.
    pub sleeps: u64,
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Starts a front end on this port, over this medium. Its queues are disabled; the host enables
    /// them.
    ///
    /// # Panics
    /// If the options make no sense: the plan's check comes first.
    pub fn start(port: P, media: Rc<Tagged<M>>, options: Options) -> Rc<Front<P, M>> {
        Front::start_with(port, media, options, Faults::none())
    }

    /// As [`start`](Front::start), with faults.
    ///
    /// # Panics
    /// As [`start`](Front::start).
    pub fn start_with(
        port: P,
        media: Rc<Tagged<M>>,
        options: Options,
        faults: Rc<Faults>,
    ) -> Rc<Self> {
        assert!(options.queues > 0 && options.slots >= options.queues && options.fetch_max > 0);
        assert!(options.transfer_bytes_max.is_power_of_two() && options.block.is_multiple_of(4));
        let rt = port.rt().clone();
        let front = Rc::new(Front {
            queues: (0..options.queues).map(|number| Queue::new(number, &options)).collect(),
            slots: (0..options.slots).map(|_| Slot::default()).collect(),
            idle: Pool::new((0..options.slots).rev()),
            sender: Pool::new([Sender]),
            quiet: Signal::default(),
            stages: Stages {
                pickup: rt.stage("pickup"),
                dispatch: rt.stage("dispatch"),
                fault: faults.is_on().then(|| rt.stage("fault")),
                turn: rt.stage("link wait"),
                transfer: rt.stage("data transfer"),
            },
            costs: Costs { parse: port.cost("parse"), post: port.cost("post completion") },
            counters: Counters::default(),
            rt,
            port,
            media,
            faults,
            options,
        });
        front.publish_read_only();
        for number in 0..front.options.slots {
            let task = front.rt.spawn(front.clone().work(number));
            front.slots[usize::from(number)].worker.bind(task);
        }
        for number in 0..front.options.queues {
            front.rt.spawn(front.clone().poll(number));
        }
        front.rt.spawn(front.clone().control());
        front.rt.spawn(front.clone().tell_tags());
        front
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        Counts {
            fetches: self.counters.fetches.get(),
            empty: self.counters.empty.get(),
            commands: self.counters.commands.get(),
            sleeps: self.counters.sleeps.get(),
        }
    }
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}
