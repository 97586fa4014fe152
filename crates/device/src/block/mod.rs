//! Descriptor blocks: the device takes a block of commands, executes all of them, and returns the block.
//!
//! ```text
//!   exchange   the embedded processor: takes blocks, parses descriptors, prefetches
//!   slots      one command each: medium, DMA engine, data
//!   returns    returns descriptors, in the plan's groups, over a DMA engine
//! ```
//!
//! Eleni Bougioukou et al., "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device
//! Driver for PCIe-based SSDs" (RSP 2014). `Front::read` is the read path. The processor and the DMA engines
//! are modelled as resources: queueing results from contention, and no time is computed from another.

mod control;
mod exchange;
mod io;
mod returns;
mod slot;

use std::cell::Cell;
use std::rc::Rc;

use bus::{Cost, DevicePort};
use media::Media;
use runtime::{Pool, Rt, Signal, Stage, stage};
use wire::block::registers::Block;

use control::Open;
use slot::Slot;

/// Configuration of the controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum ring size, log2 of descriptors.
    pub entries_log2: u8,
    /// Maximum descriptors per block.
    pub block_max: u8,
    /// Descriptors returned together: 1 for each by itself; [`block_max`](Options::block_max) for the whole
    /// block.
    pub group: u8,
    /// True if descriptors have a DMA engine of their own.
    pub second_engine: bool,
    /// Descriptors of the next block to prefetch before it is announced; 0: none.
    pub ahead: u8,
    /// Reported to the host: number of channels of the medium.
    pub channels: u8,
    /// Reported to the host: technology of the medium, as in [`wire::block::registers::Medium`].
    pub technology: u8,
    /// Reported to the host: time to the first byte of a page, ns.
    pub read_ns: u32,
    /// Reported to the host: time to write a page, ns.
    pub write_ns: u32,
}

/// Costs of the controller: the last is DMA engine time, the others are time of the embedded processor.
pub const COSTS: &[&str] = &["parse", "post completion", "take block", "return", "dma start"];

/// Stages that the controller records, in addition to its costs.
pub const STAGES: &[&str] =
    &["doorbell", "fetch", "engine wait", "data transfer", "block rest", "give back"];

/// The controller. Created by [`Front::start`]; its tasks own it.
pub struct Front<P, M> {
    rt: Rt,
    port: P,
    media: Rc<M>,
    options: Options,
    /// Value of CONTROL when last read.
    control: Cell<u32>,
    open: Cell<Option<Open>>,
    /// Notified when `open` changes.
    switched: Signal,
    /// The block in flight.
    flight: Cell<Option<Flight>>,
    /// Notified when a command ends, a block starts or ends, or descriptors have obtained an engine.
    turned: Signal,
    slots: Vec<Slot>,
    /// Notified when a slot or a return has become idle.
    quiet: Signal,
    returning: Cell<bool>,
    /// Number of pending descriptor transfers.
    wanted: Cell<u32>,
    /// Serializes the engine requests of prefetched commands.
    ahead_turn: Pool<Turn>,
    data_engine: Pool<Engine>,
    descriptor_engine: Option<Pool<Engine>>,
    stages: Stages,
    costs: Costs,
    counters: Cell<Counts>,
}

/// Permission of a prefetched command to request the engine.
struct Turn;

/// A DMA engine; the holder may transfer.
struct Engine;

/// An announced block.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// Count of its first descriptor.
    first: u32,
    size: u32,
    /// Number of descriptors given to slots.
    given: u32,
    /// Number of its descriptors returned so far.
    returned: u32,
    told: Block,
}

struct Stages {
    doorbell: Stage,
    fetch: Stage,
    engine: Stage,
    transfer: Stage,
    rest: Stage,
    back: Stage,
    take: Stage,
}

struct Costs {
    parse: Cost,
    post: Cost,
    take: Cost,
    back: Cost,
    dma: Cost,
}

/// Counters of a controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks announced.
    pub blocks: u64,
    /// Commands taken.
    pub commands: u64,
    /// Commands prefetched before their block was announced.
    pub ahead: u64,
    /// Writes that returned descriptors.
    pub returns: u64,
    /// Protocol violations by the host.
    pub violations: u64,
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Starts a controller on this port, over this medium. The host enables it.
    ///
    /// # Panics
    /// If the options are inconsistent; the plan is validated earlier.
    pub fn start(port: P, media: Rc<M>, options: Options) -> Rc<Front<P, M>> {
        let ring = 1u32 << options.entries_log2;
        assert!(options.block_max > 0 && options.group > 0 && options.group <= options.block_max);
        assert!(u32::from(options.block_max) <= ring && options.ahead <= options.block_max);
        let rt = port.rt().clone();
        // A slot's number is its count modulo their number, and counts wrap at 2^32: only a power of two
        // keeps consecutive counts apart across the wrap, which the host places by OFFSET.
        let slots = (u16::from(options.block_max) + u16::from(options.ahead)).next_power_of_two();
        let front = Rc::new(Front {
            control: Cell::new(0),
            open: Cell::new(None),
            switched: Signal::default(),
            flight: Cell::new(None),
            turned: Signal::default(),
            slots: (0..slots).map(|_| Slot::default()).collect(),
            quiet: Signal::default(),
            returning: Cell::new(false),
            wanted: Cell::new(0),
            ahead_turn: Pool::new([Turn]),
            data_engine: Pool::new([Engine]),
            descriptor_engine: options.second_engine.then(|| Pool::new([Engine])),
            stages: Stages {
                doorbell: stage!(rt, STAGES, "doorbell"),
                fetch: stage!(rt, STAGES, "fetch"),
                engine: stage!(rt, STAGES, "engine wait"),
                transfer: stage!(rt, STAGES, "data transfer"),
                rest: stage!(rt, STAGES, "block rest"),
                back: stage!(rt, STAGES, "give back"),
                take: stage!(rt, COSTS, "take block"),
            },
            costs: Costs {
                parse: port.cost("parse"),
                post: port.cost("post completion"),
                take: port.cost("take block"),
                back: port.cost("return"),
                dma: port.cost("dma start"),
            },
            counters: Cell::default(),
            rt,
            port,
            media,
            options,
        });
        front.publish_read_only();
        for number in 0..slots {
            let task = front.rt.spawn(front.clone().work(usize::from(number)));
            front.slots[usize::from(number)].worker.bind(task);
        }
        front.rt.spawn(front.clone().exchange());
        front.rt.spawn(front.clone().give_back());
        front.rt.spawn(front.clone().control());
        front
    }

    /// Current counters.
    pub fn counts(&self) -> Counts {
        self.counters.get()
    }

    fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counters = self.counters.get();
        add(&mut counters);
        self.counters.set(counters);
    }

    /// The engine that moves descriptors.
    fn for_descriptors(&self) -> &Pool<Engine> {
        self.descriptor_engine.as_ref().unwrap_or(&self.data_engine)
    }

    /// Waits for an engine and spends its start time.
    async fn engine<'a>(&'a self, of: &'a Pool<Engine>) -> Held<'a, Engine> {
        let engine = match of.try_take() {
            Some(engine) => engine,
            None => of.take(&self.rt).await,
        };
        let held = Held { rt: &self.rt, of, held: Some(engine) };
        self.rt.record(self.stages.engine);
        self.port.elapse(self.costs.dma).await;
        held
    }

    /// Waits for the engine that moves data. A prefetched command must not delay the block in flight: with a
    /// single engine, it waits while descriptor transfers are pending, and at most one such command is queued
    /// for the engine ahead of them.
    async fn engine_for_data(&self, number: usize) -> Held<'_, Engine> {
        let yields = || self.slots[number].ahead.get() && self.descriptor_engine.is_none();
        if !yields() {
            return self.engine(&self.data_engine).await;
        }
        let of = &self.ahead_turn;
        let _turn = Held { rt: &self.rt, of, held: Some(of.take(&self.rt).await) };
        loop {
            let seen = self.turned.version();
            if !yields() || self.wanted.get() == 0 {
                return self.engine(&self.data_engine).await;
            }
            self.turned.changed(&self.rt, seen).await;
        }
    }

    /// Announces a descriptor transfer until dropped. `None` without prefetch, which is the only user.
    fn want_engine(&self) -> Option<Wanted<'_>> {
        (self.options.ahead > 0).then(|| {
            self.wanted.set(self.wanted.get() + 1);
            Wanted { rt: &self.rt, wanted: &self.wanted, turned: &self.turned }
        })
    }

    /// Records this stage in the request traces of the descriptors with these counts.
    fn mark_all(&self, open: Open, counts: impl Iterator<Item = u32>, stage: Stage) {
        for count in counts {
            self.rt.attach_trace(0, open.place(count) as u16);
            self.rt.record(stage);
        }
        self.rt.detach_trace();
    }
}

/// An engine or a permission; returned when dropped.
struct Held<'a, T> {
    rt: &'a Rt,
    of: &'a Pool<T>,
    held: Option<T>,
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.of.give(self.rt, held);
        }
    }
}

struct Wanted<'a> {
    rt: &'a Rt,
    wanted: &'a Cell<u32>,
    turned: &'a Signal,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.wanted.set(self.wanted.get() - 1);
        self.turned.notify(self.rt);
    }
}
