//! The ring, its registers and its state: enabling, announcing, taking back, resetting.

use alloc::rc::Rc;
use core::cell::Cell;

use bus::{Buffer, Cost, HostPort};
use runtime::{Pool, Rt, Signal, Stage, Time};
use wire::BusAddr;
use wire::block::descriptor::{
    BYTES, CONTROL_AT, Command, Control as Word, Descriptor, PAGE_BYTES,
};
use wire::block::registers::{BLOCK, Block, Limits, OFFSET};
use zerocopy::{FromZeros, IntoBytes};

use super::bios::{Bios, Stage as BioStage};
use super::observed::Observed;
use super::sizing::{Load, Next};
use super::{Completion, Options, blocks, responses, watchdog};
use crate::lifecycle::Lifecycle;
use crate::{Geometry, InitError};

/// What a driver has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks that were announced.
    pub blocks: u64,
    /// Descriptors that were announced.
    pub descriptors: u64,
    /// Descriptors that came back and made sense.
    pub returned: u64,
    /// Descriptors that were not as their owner had left them.
    pub protocol_errors: u64,
    /// Times that the ring was reset.
    pub resets: u64,
    /// Waits for more descriptors that the sizing policy asked for.
    pub waits: u64,
}

/// Why a descriptor makes no sense. The number goes into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// An empty place of the ring was written to.
    Occupied = 1,
    /// A pending descriptor is not as it was stored.
    Touched = 2,
    /// What came back is no answer to what was asked.
    Answer = 3,
}

/// How a ring is to be.
pub(super) struct Spec {
    pub limits: Limits,
    pub geometry: Geometry,
    pub entries: u32,
    pub options: Options,
}

/// The block that the device has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub first: u32,
    pub size: u32,
    pub returned: u32,
    announced: Time,
}

pub(super) struct Ring<P: HostPort> {
    pub port: P,
    pub options: Options,
    pub geometry: Geometry,
    limits: Limits,
    pub memory: Buffer,
    /// A page for each place: for what is less than a page.
    pub pages: Buffer,
    pub bios: Bios,
    pub flight: Cell<Option<Flight>>,
    pub announced: Cell<u16>,
    /// Somebody is about to announce a block.
    pub announcing: Cell<bool>,
    pub lifecycle: Lifecycle,
    /// A block is in flight, or nobody has announced what is pending.
    pub rethink: Signal,
    /// Bios have ended.
    pub ended: Signal,
    /// Places have become free.
    pub freed: Signal,
    /// Whoever has it fills descriptors: first come, first served.
    pub handler: Pool<()>,
    /// Resets since something came back.
    pub barren: Cell<u32>,
    pub counters: Cell<Counters>,
    observed: Cell<Observed>,
    /// When the device could have had the oldest pending descriptor.
    since: Cell<Time>,
    /// When the last block came back.
    back_at: Cell<Time>,
    /// Until when the sizing policy waits.
    pub ask_at: Cell<Option<Time>>,
    pub stages: Stages,
    pub costs: Costs,
}

pub(super) struct Stages {
    pub block_wait: Stage,
    pub announce: Stage,
    pub completion: Stage,
    pub noticing: Stage,
    pub order: Stage,
}

pub(super) struct Costs {
    announce: Cost,
    pub complete: Cost,
}

impl<P: HostPort> Ring<P> {
    /// A closed ring with its memory, and the tasks that serve it.
    pub fn start(port: &P, spec: Spec) -> Result<Rc<Ring<P>>, InitError> {
        let (rt, arena) = (port.rt(), port.arena());
        let memory = arena.buffer(spec.entries as usize * BYTES)?;
        memory.zero();
        let ring = Rc::new(Ring {
            memory,
            pages: arena.buffer(spec.entries as usize * PAGE_BYTES as usize)?,
            bios: Bios::new(spec.entries),
            flight: Cell::new(None),
            announced: Cell::new(0),
            announcing: Cell::new(false),
            lifecycle: Lifecycle::new(),
            rethink: Signal::default(),
            ended: Signal::default(),
            freed: Signal::default(),
            handler: Pool::new([()]),
            barren: Cell::new(0),
            counters: Cell::default(),
            observed: Cell::default(),
            since: Cell::new(rt.now()),
            back_at: Cell::new(rt.now()),
            ask_at: Cell::new(None),
            stages: Stages {
                block_wait: rt.stage("block wait"),
                announce: rt.stage("announce"),
                completion: rt.stage("completion"),
                noticing: rt.stage(match spec.options.completion {
                    Completion::Polled | Completion::Hybrid => "poll",
                    Completion::Interrupt { .. } => "interrupt",
                }),
                order: rt.stage("order wait"),
            },
            costs: Costs { announce: port.cost("announce"), complete: port.cost("complete") },
            port: port.clone(),
            options: spec.options,
            geometry: spec.geometry,
            limits: spec.limits,
        });
        rt.spawn(blocks::process(ring.clone()));
        rt.spawn(responses::generate(ring.clone()));
        rt.spawn(watchdog::watch(ring.clone()));
        Ok(ring)
    }

    pub fn rt(&self) -> &Rt {
        self.port.rt()
    }

    pub fn count(&self, add: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        add(&mut counters);
        self.counters.set(counters);
    }

    fn at(&self, count: u32) -> usize {
        self.bios.place(count) as usize * BYTES
    }

    /// The ring's memory: where returned descriptors are seen.
    pub fn place(&self) -> (BusAddr, u32) {
        (self.memory.at(), self.memory.bytes() as u32)
    }

    /// The page of padding of a place.
    pub fn page(&self, count: u32) -> Buffer {
        self.pages.part(self.bios.place(count) as usize * PAGE_BYTES as usize, PAGE_BYTES as usize)
    }

    /// Stores the next descriptor, which is the device's from its last word on. False if its place was not
    /// as we had left it.
    pub fn store(&self, command: &Command) -> bool {
        let count = self.bios.free.get();
        if self.word(count) != Word::Empty {
            self.violated(Violation::Occupied, count);
            return false;
        }
        self.bios.bio(count).stage.set(BioStage::Filled);
        self.bios.bio(count).command.set(*command);
        self.write(count, command);
        if self.bios.pending() == 0 {
            self.since.set(self.rt().now());
        }
        self.bios.free.set(count.wrapping_add(1));
        let now = self.rt().now();
        self.see(|observed| observed.came(now));
        self.rt().log("host", "stores", u64::from(self.bios.place(count)), command.offset);
        true
    }

    fn see(&self, note: impl FnOnce(&mut Observed)) {
        let mut observed = self.observed.get();
        note(&mut observed);
        self.observed.set(observed);
    }

    pub fn write(&self, count: u32, command: &Command) {
        let (at, descriptor) = (self.at(count), Descriptor::command(count, command));
        let bytes = descriptor.as_bytes();
        self.memory.copy_in(at, &bytes[..CONTROL_AT]);
        let [.., a, b, c, d] = *bytes else { unreachable!("a descriptor has 32 bytes") };
        self.memory.store_u32(at + CONTROL_AT, u32::from_le_bytes([a, b, c, d]));
    }

    fn word(&self, count: u32) -> Word {
        Word::parse(self.memory.load_u32(self.at(count) + CONTROL_AT))
    }

    /// A descriptor that is not as its owner left it: the watchdog will reset the ring.
    fn violated(&self, violation: Violation, count: u32) {
        self.count(|counters| counters.protocol_errors += 1);
        self.rt().log("host", "violation", violation as u64, u64::from(self.bios.place(count)));
        self.lifecycle.distrust(self.rt());
    }

    /// What to do now, if the device has no block and somebody has to decide.
    fn decide(&self, coming: u32) -> Option<Next> {
        let pending = self.bios.pending();
        let is_free = self.flight.get().is_none() && self.lifecycle.is_open();
        if pending == 0 || !is_free || self.lifecycle.distrusted.get() {
            return None;
        }
        let (since, observed) = (self.since.get().max(self.back_at.get()), self.observed.get());
        let load = Load {
            pending,
            coming,
            block_max: u32::from(self.limits.block_max()),
            population: observed.population(),
            waited: self.rt().now().since(since),
            takes: observed.takes(),
            last: observed.last(),
            turnaround: observed.turnaround(),
        };
        let sizing = self.options.sizing;
        Some(match (sizing.rule)(&load, sizing.setting) {
            Next::Send(size) => Next::Send(size.clamp(1, pending.min(load.block_max))),
            wait => wait,
        })
    }

    /// Announces the next block, on this port's core, if the sizing policy sends one.
    pub async fn consider(&self, port: &P, coming: u32) {
        if self.announcing.get() {
            return;
        }
        match self.decide(coming) {
            None => return self.ask_at.set(None),
            Some(Next::Wait(span)) => {
                let ask_at = span.map(|span| self.rt().now() + span);
                if self.ask_at.get() != ask_at {
                    self.count(|counters| counters.waits += 1);
                    self.ask_at.set(ask_at);
                    self.rethink.notify(self.rt());
                }
                return;
            }
            Some(Next::Send(_)) => {
                // Taken: who looks again meanwhile has nothing to ask for.
                if self.ask_at.take().is_some_and(|at| at <= self.rt().now()) {
                    self.see(|observed| observed.gave_up(self.bios.pending()));
                }
            }
        }
        let announcing = Announcing::begin(self);
        self.mark_pending(self.stages.block_wait);
        port.spend(self.costs.announce).await;
        drop(announcing);
        // More may be pending by now.
        if let Some(Next::Send(size)) = self.decide(0) {
            self.announce(size);
        }
    }

    fn mark_pending(&self, stage: Stage) {
        let most = self.bios.pending().min(u32::from(self.limits.block_max()));
        self.mark_from(self.bios.next.get(), most, stage);
    }

    fn mark_from(&self, first: u32, descriptors: u32, stage: Stage) {
        for n in 0..descriptors {
            self.rt().attach_trace(0, self.bios.place(first.wrapping_add(n)) as u16);
            self.rt().record(stage);
        }
        self.rt().detach_trace();
    }

    fn announce(&self, size: u32) {
        let first = self.bios.next.get();
        for count in (0..size).map(|n| first.wrapping_add(n)) {
            let command = Descriptor::command(count, &self.bios.bio(count).command.get());
            if self.word(count) != command.control() {
                return self.violated(Violation::Touched, count);
            }
        }
        self.mark_from(first, size, self.stages.announce);
        let now = self.rt().now();
        let turn = self.announced.get().wrapping_add(1);
        self.announced.set(turn);
        self.flight.set(Some(Flight { first, size, returned: 0, announced: now }));
        self.bios.next.set(first.wrapping_add(size));
        self.since.set(now);
        self.ask_at.set(None);
        self.rt().log("host", "announces", u64::from(self.bios.place(first)), u64::from(size));
        self.port.write32(OFFSET, first);
        let block = Block::new().with_size(size as u16).with_turn(turn);
        self.port.write32(BLOCK, block.into_bits());
        self.count(|counters| {
            counters.blocks += 1;
            counters.descriptors += u64::from(size);
        });
        self.rethink.notify(self.rt());
        self.lifecycle.active.notify(self.rt());
    }

    /// The groups of the block in flight that have not come back: the first count, and how many.
    fn groups(&self, flight: Flight) -> impl Iterator<Item = (u32, u32)> + use<'_, P> {
        let group = u32::from(self.limits.group());
        (0..flight.size).step_by(group as usize).filter_map(move |at| {
            let first = flight.first.wrapping_add(at);
            let out = self.bios.bio(first).stage.get() == BioStage::Filled;
            // What was answered to its caller already may be another's by now.
            let answered = self.bios.head.get().wrapping_sub(first).wrapping_sub(1) < flight.size;
            (out && !answered).then_some((first, group.min(flight.size - at)))
        })
    }

    fn is_back(&self, first: u32, descriptors: u32) -> bool {
        let last = first.wrapping_add(descriptors - 1);
        !matches!(self.word(last), Word::Command { count, .. } if count == last as u16)
    }

    /// Whether anything has come back.
    pub fn has_news(&self) -> bool {
        let Some(flight) = self.flight.get().filter(|_| !self.lifecycle.distrusted.get()) else {
            return false;
        };
        self.groups(flight).any(|(first, descriptors)| self.is_back(first, descriptors))
    }

    /// Takes in what has come back: each descriptor is copied once, and judged.
    pub fn take_back(&self) {
        let Some(mut flight) = self.flight.get() else { return };
        if self.lifecycle.distrusted.get() {
            return;
        }
        let before = flight.returned;
        let present = flight.size - before + self.bios.pending();
        for (first, descriptors) in self.groups(flight) {
            if !self.is_back(first, descriptors) {
                continue;
            }
            for count in (0..descriptors).map(|n| first.wrapping_add(n)) {
                let bio = self.bios.bio(count);
                let mut found = Descriptor::new_zeroed();
                self.memory.copy_out(self.at(count), found.as_mut_bytes());
                match found.answers(count, &bio.command.get()) {
                    Some(status) => bio.stage.set(BioStage::Ended(Ok(status))),
                    None => return self.violated(Violation::Answer, count),
                }
                self.mark_noticed(count);
            }
            flight.returned += descriptors;
        }
        let returned = flight.returned - before;
        self.count(|counters| counters.returned += u64::from(returned));
        if returned > 0 {
            self.barren.set(0);
            let now = self.rt().now();
            self.see(|observed| observed.returned(now, returned, present));
        }
        self.flight.set(Some(flight));
        if flight.returned == flight.size {
            self.has_ended(flight);
        }
    }

    fn has_ended(&self, flight: Flight) {
        let now = self.rt().now();
        self.see(|observed| observed.has_ended(flight.size, now.since(flight.announced)));
        self.back_at.set(now);
        self.flight.set(None);
    }

    /// A command's time goes to its descriptor's way here, and to our noticing it.
    fn mark_noticed(&self, count: u32) {
        let rt = self.rt();
        rt.attach_trace(0, self.bios.place(count) as u16);
        if rt.is_traced() {
            rt.record_at(self.stages.completion, self.port.noticed());
            rt.record(self.stages.noticing);
            rt.detach_trace();
        }
    }

    /// The oldest bio has been answered: its place is empty again.
    pub fn empty_oldest(&self) {
        let head = self.bios.head.get();
        self.memory.store_u32(self.at(head) + CONTROL_AT, Word::Empty.word());
        self.bios.bio(head).stage.set(BioStage::Free);
        self.bios.head.set(head.wrapping_add(1));
        self.freed.notify(self.rt());
    }
}

/// Somebody is about to announce. Given up half-way, it is the New Descriptors Block Processor's affair.
struct Announcing<'a, P: HostPort>(&'a Ring<P>);

impl<'a, P: HostPort> Announcing<'a, P> {
    fn begin(ring: &'a Ring<P>) -> Announcing<'a, P> {
        ring.announcing.set(true);
        Announcing(ring)
    }
}

impl<P: HostPort> Drop for Announcing<'_, P> {
    fn drop(&mut self) {
        self.0.announcing.set(false);
        self.0.rethink.notify(self.0.rt());
    }
}
