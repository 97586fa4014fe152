//! DC Express: the device polls for commands, and completes reads without a completion entry.
//!
//! ```text
//!   poller   one per queue: fetches the ring continuously and hands commands to slots
//!   slots    one command each: medium, data, and a report unless overwritten tags signal completion
//!   pace     time of the next fetch
//!   tagged   a tag value that no data ends with
//! ```
//!
//! Dejan Vučinić et al., "DC Express: Shortest Latency Protocol for Reading Phase Change Memory over PCI
//! Express" (FAST 2014). [`Front::read`](Front) is the read path. The controller runs alongside an NVMe
//! controller, on the same port and medium, with its own register block.
//!
//! A transfer is one reservation of the link. If a fetch is due to leave among the data, the transfer is
//! split in two; the data are copied before the first part, so that both parts are of one moment.

mod absent;
mod at_once;
mod control;
mod ends;
mod faulty;
mod intervals;
mod io;
mod load;
mod pace;
mod poller;
mod queue;
mod slot;
mod tagged;
#[cfg(test)]
mod wrap;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::{Cost, DevicePort};
use media::Media;
use runtime::{Pool, Rt, Signal, Span, Stage, TaskId, stage};
use wire::dcx::registers::block_bytes;

use crate::faults::Faults;
pub use intervals::Intervals;
pub use pace::{Next, Pace};
use queue::Queue;
use slot::Slot;
pub use tagged::{Choice, Reader, TagSource, TagSpec, Tagged};

/// Configuration of the controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// Offset of the register block in the device's register window, bytes.
    pub block: u32,
    /// Number of queues.
    pub queues: u16,
    /// Maximum ring size, log2 of entries.
    pub entries_log2: u8,
    /// Maximum commands in flight.
    pub slots: u16,
    /// Maximum entries per fetch.
    pub fetch_max: u32,
    /// True if fetches are timed so that they reach host memory just after the next command is stored.
    pub anticipate: bool,
    /// Consecutive empty fetches after which a queue goes to sleep, if the host permits.
    pub sleep_after: u32,
    /// Mean time between commands above which a queue sleeps between them, if the host permits: at that load
    /// it is rung instead of polling. None: it polls at any load.
    pub poll_gap_max: Option<Span>,
    /// Maximum transfer size of a command, bytes; a power of two.
    pub transfer_bytes_max: u32,
    /// True if data writes carry the relaxed-ordering attribute, for hosts with a tag per packet.
    pub relaxed_ordering: bool,
    /// Added to the queue number (from 0) to give the queue number of its request traces.
    pub traces_from: u16,
}

impl Options {
    /// Length of the register block, bytes.
    pub fn block_bytes(&self) -> u32 {
        block_bytes(u32::from(self.queues))
    }
}

/// Costs that the controller spends on the device's processor.
pub const COSTS: &[&str] = &["parse", "post completion"];

/// Stages that the controller records, in addition to its costs.
pub const STAGES: &[&str] =
    &["pickup", "dispatch", "fault", "tag wait", "link wait", "data transfer"];

/// The controller. Created by [`Front::start`]; its tasks own it.
pub struct Front<P, M> {
    rt: Rt,
    port: P,
    media: Rc<Tagged<M>>,
    faults: Rc<Faults>,
    options: Options,
    queues: Vec<Queue>,
    slots: Vec<Slot>,
    idle: Pool<u16>,
    /// Permission to send data, one command at a time, so that a fetch can be inserted between packets.
    sender: Pool<Sender>,
    /// Notified when a slot becomes idle, or a fetch has returned.
    quiet: Signal,
    /// All tasks of the controller; none ends by itself.
    tasks: RefCell<Vec<TaskId>>,
    stages: Stages,
    costs: Costs,
    counters: Counters,
}

/// Permission to send data; a single token.
struct Sender;

struct Stages {
    pickup: Stage,
    dispatch: Stage,
    /// `None` if fault injection is off.
    fault: Option<Stage>,
    turn: Stage,
    transfer: Stage,
}

struct Costs {
    parse: Cost,
    post: Cost,
}

#[derive(Default)]
struct Counters {
    fetches: Cell<u64>,
    empty: Cell<u64>,
    commands: Cell<u64>,
    at_once: Cell<u64>,
    sleeps: Cell<u64>,
}

/// Counters of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Fetches that returned.
    pub fetches: u64,
    /// Fetches that returned no command.
    pub empty: u64,
    /// Commands fetched.
    pub commands: u64,
    /// Reads among them that were served where they were fetched.
    pub at_once: u64,
    /// Number of times a queue went to sleep.
    pub sleeps: u64,
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Starts a controller on this port, over this medium. Its queues are disabled until the host enables
    /// them.
    ///
    /// # Panics
    /// If the options are inconsistent; the plan is validated earlier.
    pub fn start(port: P, media: Rc<Tagged<M>>, options: Options) -> Rc<Front<P, M>> {
        Front::start_with(port, media, options, Faults::none())
    }

    /// As [`start`](Front::start), with fault injection.
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
        // Live, a fetch reads memory at once: there is no round trip to anticipate. Memory that is reached by
        // messages, over vfio-user, is treated alike.
        let anticipate = options.anticipate && port.direct().is_none();
        let options = Options { anticipate, ..options };
        let rt = port.rt().clone();
        let front = Rc::new(Front {
            queues: (0..options.queues).map(|number| Queue::new(number, &options)).collect(),
            slots: (0..options.slots).map(|_| Slot::default()).collect(),
            idle: Pool::new((0..options.slots).rev()),
            sender: Pool::new([Sender]),
            quiet: Signal::default(),
            tasks: RefCell::default(),
            stages: Stages {
                pickup: stage!(rt, STAGES, "pickup"),
                dispatch: stage!(rt, STAGES, "dispatch"),
                fault: faults.may_be_on().then(|| stage!(rt, STAGES, "fault")),
                turn: stage!(rt, STAGES, "link wait"),
                transfer: stage!(rt, STAGES, "data transfer"),
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
            let task = front.spawn(front.clone().work(number));
            front.slots[usize::from(number)].worker.bind(task);
        }
        for number in 0..front.options.queues {
            front.spawn(front.clone().poll(number));
        }
        front.spawn(front.clone().control());
        front.spawn(front.clone().tell_tags());
        front.spawn(front.clone().keep_tags());
        front
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) -> TaskId {
        let id = self.rt.spawn(task);
        self.tasks.borrow_mut().push(id);
        id
    }

    /// Ends all tasks at once, as for a function-level reset: no further access to host memory. Must not be
    /// called from a task of the controller.
    pub fn stop(&self) {
        self.tasks.take().into_iter().for_each(|task| self.rt.end(task));
    }

    /// Current counters.
    pub fn counts(&self) -> Counts {
        Counts {
            fetches: self.counters.fetches.get(),
            empty: self.counters.empty.get(),
            commands: self.counters.commands.get(),
            at_once: self.counters.at_once.get(),
            sleeps: self.counters.sleeps.get(),
        }
    }
}

fn count(counter: &Cell<u64>) {
    counter.set(counter.get() + 1);
}
