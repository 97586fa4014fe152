//! Descriptor blocks: the device takes a block of commands, works on all of them, and returns it.
//!
//! ```text
//!   exchange   the embedded processor: takes blocks, goes through their descriptors, looks ahead
//!   slots      one command each: medium, DMA engine, data
//!   returns    gives descriptors back, in the groups of the plan, over a DMA engine
//! ```
//!
//! Eleni Bougioukou et al., "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device
//! Driver for PCIe-based SSDs" (RSP 2014). `Front::read` tells the story of one read. What one waits for,
//! the processor and the DMA engines, is a resource: no time is computed from another.

mod control;
mod exchange;
mod io;
mod returns;
mod slot;

use std::cell::Cell;
use std::rc::Rc;

use bus::{Cost, DevicePort};
use media::Media;
use runtime::{Pool, Rt, Signal, Stage};
use wire::block::registers::Block;

use control::Open;
use slot::Slot;

/// What the plan decides about the front end.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most descriptors of a ring, as a power of two.
    pub entries_log2: u8,
    /// The most descriptors of a block.
    pub block_max: u8,
    /// Descriptors that are returned together: 1, each by itself; [`block_max`](Options::block_max), the
    /// whole block.
    pub group: u8,
    /// Descriptors go over a DMA engine of their own.
    pub second_engine: bool,
    /// Descriptors of the next block that are taken before it is announced; none: 0.
    pub ahead: u8,
    /// What the device says of its medium: channels.
    pub channels: u8,
    /// And what it is made of, as in [`wire::block::registers::Medium`].
    pub technology: u8,
    /// And the time to a page's first byte, ns.
    pub read_ns: u32,
    /// And the time that a page's write takes, ns.
    pub write_ns: u32,
}

/// The costs that the front end spends: the last is a DMA engine's own time, the others the embedded
/// processor's.
pub const COSTS: &[&str] = &["parse", "post completion", "take block", "return", "dma start"];

/// The stages that the front end marks, beside its costs.
pub const STAGES: &[&str] =
    &["doorbell", "fetch", "engine wait", "data transfer", "block rest", "give back"];

/// The front end. Made by [`Front::start`]; lives in its tasks.
pub struct Front<P, M> {
    rt: Rt,
    port: P,
    media: Rc<M>,
    options: Options,
    /// What CONTROL said when it was last looked at.
    control: Cell<u32>,
    open: Cell<Option<Open>>,
    /// `open` has changed.
    switched: Signal,
    /// The block in flight.
    flight: Cell<Option<Flight>>,
    /// A command has ended, a block is in flight, or none is any more, or descriptors have an engine.
    turned: Signal,
    slots: Vec<Slot>,
    /// A slot or a return has come to rest.
    quiet: Signal,
    returning: Cell<bool>,
    /// Who is about to move descriptors.
    wanted: Cell<u32>,
    /// Of the commands that nobody has announced, one at a time asks for the engine.
    ahead_turn: Pool<Turn>,
    data_engine: Pool<Engine>,
    descriptor_engine: Option<Pool<Engine>>,
    stages: Stages,
    costs: Costs,
    counters: Cell<Counts>,
}

/// Whose turn it is to ask for an engine.
struct Turn;

/// A DMA engine: who has it moves something.
struct Engine;

/// A block that the host has announced.
#[derive(Clone, Copy, Debug)]
struct Flight {
    /// The count of its first descriptor.
    first: u32,
    size: u32,
    /// How many of them the slots have got so far.
    given: u32,
    /// How many have been returned.
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

/// What a front end has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that were announced.
    pub blocks: u64,
    /// Commands that were taken.
    pub commands: u64,
    /// Those of them that were taken before they were announced.
    pub ahead: u64,
    /// Writes that brought descriptors back.
    pub returns: u64,
    /// Hosts that broke the protocol.
    pub violations: u64,
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Starts a front end on this port, over this medium. The host enables it.
    ///
    /// # Panics
    /// If the options make no sense: the plan's check comes first.
    pub fn start(port: P, media: Rc<M>, options: Options) -> Rc<Front<P, M>> {
        let ring = 1u32 << options.entries_log2;
        assert!(options.block_max > 0 && options.group > 0 && options.group <= options.block_max);
        assert!(u32::from(options.block_max) <= ring && options.ahead <= options.block_max);
        let rt = port.rt().clone();
        let slots = u16::from(options.block_max) + u16::from(options.ahead);
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
                doorbell: rt.stage("doorbell"),
                fetch: rt.stage("fetch"),
                engine: rt.stage("engine wait"),
                transfer: rt.stage("data transfer"),
                rest: rt.stage("block rest"),
                back: rt.stage("give back"),
                take: rt.stage("take block"),
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

    /// What it has done so far.
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

    /// Waits for an engine, and starts it.
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

    /// Waits for the engine that moves data. A command that nobody has announced does not stand in the way
    /// of the block in flight: with one engine for both, it waits while descriptors are to be moved, and no
    /// more than one such command stands in line before them.
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

    /// Descriptors are to be moved, until this is dropped. Only who looks ahead has anybody to tell.
    fn want_engine(&self) -> Option<Wanted<'_>> {
        (self.options.ahead > 0).then(|| {
            self.wanted.set(self.wanted.get() + 1);
            Wanted { rt: &self.rt, wanted: &self.wanted, turned: &self.turned }
        })
    }

    /// The time since their last mark belongs to this stage, for the descriptors of these counts.
    fn mark_all(&self, open: Open, counts: impl Iterator<Item = u32>, stage: Stage) {
        for count in counts {
            self.rt.attach_trace(0, open.place(count) as u16);
            self.rt.record(stage);
        }
        self.rt.detach_trace();
    }
}

/// An engine or a turn, given back when dropped.
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

/// Somebody is about to move descriptors.
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
