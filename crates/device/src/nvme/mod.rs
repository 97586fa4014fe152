//! The NVMe controller.
//!
//! ```text
//!   registers ──► fetchers     one watches; arbitrate, fetch entries, hand them to slots
//!                 control      enable, disable, shutdown
//!                 slots        parse, move data, complete: one command each; some for admin only
//! ```
//!
//! Every command in flight occupies a slot of a fixed table; the slot's task lives as long as the controller.
//! Aborting a command, deleting its queue or disabling the controller cancels the command at its current
//! await: after that it does not access host memory.
//!
//! A request from the host is copied once and parsed once; after that it is valid or an error. A bad tail
//! doorbell is an asynchronous event, a bad entry a status, a queue outside host memory a fatal status.
//!
//! Write Zeroes without deallocation and Copy take the time of their writes and reads at the medium, and none
//! of the link's except for the list of ranges. Format NVM deallocates all blocks, in steps between which the
//! controller works on.

mod access;
mod admin;
mod arbitrate;
mod at_once;
mod collect;
mod commands;
mod complete;
mod control;
mod data;
mod errors;
mod faulty;
mod features;
mod fetch;
mod format;
mod fused;
mod health;
mod host_map;
mod identify;
mod interleaved;
mod interrupt;
mod io;
mod keep_alive;
mod limits;
mod manage;
mod marks;
mod namespace;
mod power;
mod protect;
mod queue;
mod ranges;
mod reservations;
mod reserve;
mod sanitize;
mod self_test;
mod shadow;
mod slot;
mod stages;
mod subsystem;
mod threads;
mod uncorrectable;

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use bus::DevicePort;
use media::{Head, Media};
use runtime::{Rt, TaskId};
use wire::Nsid;
use wire::nvme::event::AsyncEvent;
use wire::nvme::pi::Kind;
use wire::nvme::status::Status;

use crate::faults::Faults;
use crate::life::Life;
use control::Registers;
use features::Features;
use fetch::Fetching;
use health::Health;
pub use identify::serial_of;
pub use limits::*;
use namespace::{Namespace, Place};
pub use power::{POWER_STATES_MAX, PowerState};
use queue::Queues;
use slot::Slots;
use stages::Stages;
pub use stages::{COSTS, STAGES};
use subsystem::Shared;
pub use subsystem::Subsystem;
pub use threads::{DeviceThread, Threads};

/// Names of a drive and its namespaces. `None`: as the number of the drive has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Serial number: at most 20 ASCII characters.
    pub serial: Option<String>,
    /// Model number: at most 40 ASCII characters.
    pub model: Option<String>,
    /// EUI-64 of the first namespace created; those of the others follow consecutively.
    pub eui64: Option<u64>,
    /// NGUID, likewise.
    pub nguid: Option<u128>,
}

/// Configuration of a controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// PCI vendor and subsystem vendor ID of the function; 0 for none.
    pub pci_vendors: (u16, u16),
    /// Maximum I/O commands in flight; admin commands have slots of their own.
    pub slots: u16,
    /// Maximum concurrent fetches of queue entries, each of a different queue.
    pub fetchers: u16,
    /// Maximum entries per fetch.
    pub fetch_max: u32,
    /// I/O queue pairs.
    pub io_queues: u16,
    /// Maximum entries of a queue.
    pub queue_entries_max: u32,
    /// Maximum transfer size of a command, bytes; a power of two, at least 4096.
    pub transfer_bytes_max: u32,
    /// Default arbitration burst: entries taken from one queue before the next has its turn. `None`: no
    /// limit.
    pub arbitration_burst: Option<u32>,
    /// Groups that I/O queues are dealt to by number, which round robin serves in equal shares: at most
    /// [`QUEUE_GROUPS_MAX`]. 1: queues themselves have equal shares.
    pub queue_groups: u16,
    /// Under weighted round robin, the number of urgent commands after which one of another class is served.
    /// `None`: the urgent class has strict priority, as in NVMe. At least 1.
    pub urgent_burst_max: Option<u32>,
    /// Number of the drive among those of its kind, in its serial number, NQN and the EUI-64 of namespaces: a
    /// host rejects a drive with the names of another.
    pub number: u64,
    /// Names in place of those that follow from the number.
    pub names: Names,
    /// Counts over the life of the drive.
    pub life: Arc<Life>,
    /// Controllers of the subsystem: 1 to [`CONTROLLERS_MAX`].
    pub controllers: u16,
    /// Namespaces to create on a medium without namespaces: 1 to [`NAMESPACES_MAX`].
    pub namespaces: u16,
    /// Each of these namespaces is attached to the controller of its number alone. There is no namespace
    /// management and no sanitize, by which a controller could reach another's.
    pub own_namespaces: bool,
    /// Protection type of these namespaces, if the medium stores metadata. `None`: unprotected.
    pub protection: Option<Kind>,
    /// True if data writes carry the relaxed-ordering attribute.
    pub relaxed_ordering: bool,
    /// Power states, at most [`POWER_STATES_MAX`]; the first is operational. Empty: a single state that
    /// reports only the maximum power of the PCI slot.
    pub power_states: Vec<PowerState>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            pci_vendors: (0, 0),
            slots: 256,
            fetchers: 4,
            fetch_max: 16,
            io_queues: 16,
            queue_entries_max: 4096,
            transfer_bytes_max: 1 << 20,
            arbitration_burst: None,
            queue_groups: 1,
            urgent_burst_max: None,
            number: 0,
            names: Names::default(),
            life: Arc::default(),
            controllers: 1,
            namespaces: 1,
            own_namespaces: false,
            protection: None,
            relaxed_ordering: false,
            power_states: Vec::new(),
        }
    }
}

impl Options {
    /// Asserts what the plan's validation has already checked.
    fn must_make_sense(&self) {
        assert!(self.slots > 0 && self.fetchers > 0 && self.fetch_max > 0);
        assert!(self.io_queues > 0, "at least one pair of I/O queues");
        assert!((1..=QUEUE_GROUPS_MAX).contains(&self.queue_groups), "1 to 8 groups");
        assert!(self.urgent_burst_max != Some(0), "the urgent class has its turn");
        assert!((1..=NAMESPACES_MAX).contains(&u32::from(self.namespaces)), "1 to 16 namespaces");
        let states = &self.power_states;
        assert!(states.len() <= POWER_STATES_MAX && !states.first().is_some_and(|one| one.idle));
        assert!(self.slots <= SLOTS_MAX, "at most {SLOTS_MAX} slots");
        assert!(self.transfer_bytes_max.is_power_of_two() && self.transfer_bytes_max >= 4096);
        assert!((2..=65_536).contains(&self.queue_entries_max));
    }

    /// Widest doorbell stride (CAP.DSTRD) of the register window, at most a cache line: threads that serve
    /// different queues then poll different lines.
    pub fn widest_stride(&self) -> u8 {
        const LINE_LOG2: u8 = 6;
        let queues = u32::from(self.io_queues) + 1;
        let room = self.register_bytes() - wire::nvme::registers::DOORBELLS;
        let fits = |stride: &u8| 2 * queues * (4 << stride) <= room;
        (0..=LINE_LOG2 - 2).rev().find(fits).unwrap_or(0)
    }

    /// Size of the controller's register window, bytes.
    pub fn register_bytes(&self) -> u32 {
        let doorbells = 8 * (u32::from(self.io_queues) + 1);
        (wire::nvme::registers::DOORBELLS + doorbells).next_multiple_of(4096)
    }
}

/// The controller. Created by [`Controller::start`]; its tasks own it.
pub struct Controller<P, M> {
    rt: Rt,
    port: P,
    media: Rc<M>,
    /// Block size of the medium in bytes, and the part of each block that is kept (next field).
    block_bytes: u32,
    head: Option<Head>,
    options: Options,
    faults: Rc<Faults>,
    shared: Shared,
    registers: Registers,
    queues: Queues,
    fetching: Fetching,
    slots: Slots,
    features: Features,
    health: Health,
    stages: Stages,
    /// All tasks of the controller; none ends by itself.
    tasks: RefCell<Vec<TaskId>>,
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Starts a controller on this port, over this medium, as the only one of its subsystem. It is disabled;
    /// the host enables it.
    ///
    /// # Panics
    /// If the options are inconsistent; the plan is validated earlier.
    pub fn start(port: P, media: Rc<M>, options: Options) -> Rc<Controller<P, M>> {
        Controller::start_with(port, media, options, Faults::none())
    }

    /// As [`start`](Controller::start), with fault injection.
    ///
    /// # Panics
    /// As [`start`](Controller::start).
    pub fn start_with(port: P, media: Rc<M>, options: Options, faults: Rc<Faults>) -> Rc<Self> {
        let alone = Options { controllers: 1, ..options };
        Subsystem::new(media, &alone).start_controller(1, port, alone, faults)
    }

    /// As [`start_with`](Controller::start_with), for one of several threads of the controller, with a port,
    /// a medium and faults of its own: all reach the same registers, memory and blocks. The first thread's is
    /// the controller that the host sees; the others' owners call [`serve_queues`](Controller::serve_queues).
    ///
    /// # Panics
    /// As [`start`](Controller::start).
    pub fn start_on(
        port: P,
        media: Rc<M>,
        options: Options,
        faults: Rc<Faults>,
        thread: &DeviceThread,
    ) -> Rc<Self> {
        let alone = Options { controllers: 1, ..options };
        Subsystem::new(media, &alone).start_on(1, port, alone, faults, Some(thread.place()))
    }

    /// As [`Subsystem::start_controller`].
    fn start_in(
        port: P,
        media: Rc<M>,
        options: Options,
        faults: Rc<Faults>,
        shared: Shared,
    ) -> Rc<Self> {
        options.must_make_sense();
        let rt = port.rt().clone();
        faults.meter.power.start(options.power_states.len(), rt.now());
        let threads = shared.place.is_some();
        let ready_within = media.capabilities().start.map(|start| start.ready_within());
        let controller = Rc::new(Controller {
            block_bytes: media.block_bytes(),
            head: media.head(),
            registers: Registers::new(&options, threads, ready_within),
            queues: Queues::new(options.io_queues),
            fetching: Fetching::default(),
            slots: Slots::new(shared.member.slots.clone(), shared.members.quiet.clone()),
            features: Features::new(&options),
            health: Health::new(shared.place.as_ref()),
            stages: Stages::new(&port, &options, &faults),
            tasks: RefCell::default(),
            rt,
            port,
            media,
            options,
            faults,
            shared,
        });
        controller.begin();
        controller
    }

    /// Counts for the drive's life: the first thread for all of them.
    fn join_life(&self) {
        let life = &self.options.life;
        match &self.shared.place {
            _ if self.is_other() => return,
            Some(place) => {
                place.each_counters().for_each(|one| life.add(one.clone(), self.block_bytes));
            }
            None => life.add(self.health.counters.clone(), self.block_bytes),
        }
        let errors = life.counts(self.rt.now()).errors;
        self.with_errors(|log| log.count = log.count.max(errors));
    }

    fn begin(self: &Rc<Self>) {
        self.join_life();
        if !self.is_other() {
            self.publish_read_only();
        }
        for (number, slot) in (0..).zip(self.slots.iter()) {
            slot.worker.bind(self.spawn(self.clone().work(number)));
        }
        for _ in 0..self.options.fetchers {
            self.spawn(self.clone().fetch());
        }
        self.spawn(self.clone().tell_late());
        if self.is_other() {
            return;
        }
        self.spawn(self.clone().control());
        if self.port.pin().is_some() {
            self.spawn(self.clone().follow_heads());
        }
        self.spawn(self.clone().run_self_tests());
        self.spawn(self.clone().run_sanitizes());
        self.spawn(self.clone().look_at_shadows());
        self.spawn(self.clone().tell_of_others());
        if self.may_idle() {
            self.spawn(self.clone().follow_transitions());
        }
        if self.faults.may_be_on() {
            self.spawn(self.clone().stop_when_fatal());
        }
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) -> TaskId {
        let id = self.rt.spawn(task);
        self.tasks.borrow_mut().push(id);
        id
    }

    /// Ends all tasks at once, as for a function-level reset: no further access to host memory. The
    /// controller leaves the subsystem. Must not be called from a task of the controller.
    pub fn stop(&self) {
        self.tasks.take().into_iter().for_each(|task| self.rt.end(task));
        self.slots.iter().for_each(|slot| self.unclaim(slot));
        self.forget_nameless_host();
        self.shared.members.leave(&self.shared.member);
        // Wakes tasks that waited for its commands, and a controller that takes over a Sanitize.
        self.slots.quiet.notify(&self.rt);
        self.shared.namespaces.sanitizing.changed.notify(&self.rt);
    }

    /// A namespace that is attached to this controller: see [`Namespaces::active_at`].
    #[inline]
    fn active_at(&self, nsid: Nsid) -> Result<(&Place, Namespace), Status> {
        self.shared.namespaces.active_at(nsid, self.shared.bit)
    }

    /// Attached namespaces, in ascending order.
    fn active(&self) -> impl Iterator<Item = Nsid> + '_ {
        self.shared.namespaces.active(self.shared.bit)
    }

    /// Queues an event and reports it if a request is outstanding.
    fn event(&self, event: AsyncEvent) {
        self.health.events.borrow_mut().note(event);
        self.tell_events();
    }
}
