//! The ring, its registers and its state: enable, announce, process returned blocks, reset.

use alloc::rc::Rc;
use core::cell::Cell;

use bus::{Buffer, Cost, HostPort};
use runtime::{Pool, Rt, Signal, Stage, StageName, Time, stage};
use wire::BusAddr;
use wire::block::descriptor::{
    BYTES, CONTROL_AT, Command, Control as Word, Descriptor, PAGE_BYTES,
};
use wire::block::registers::{self as register, BLOCK, Block, Limits, OFFSET};
use zerocopy::{FromZeros, IntoBytes};

use super::bios::{Bios, Stage as BioStage};
use super::observed::Observed;
use super::sizing::{Load, Next};
use super::{Completion, Options};
use crate::lifecycle::Lifecycle;
use crate::{Geometry, InitError};

/// Statistics of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Blocks announced.
    pub blocks: u64,
    /// Descriptors announced.
    pub descriptors: u64,
    /// Valid descriptors returned.
    pub returned: u64,
    /// Descriptors that their owner did not leave in the expected state.
    pub protocol_errors: u64,
    /// Resets of the ring.
    pub resets: u64,
    /// Waits for more descriptors, by the sizing policy.
    pub waits: u64,
    /// Number of times that STATUS showed a device that had stopped while it had a block.
    pub stops: u64,
    /// Protocol violation of ours that it reported when it last stopped; `None`: it was not ready, or all
    /// bits read as ones.
    pub violation: Option<register::Violation>,
}

/// Reason why a descriptor is invalid. The number appears in the event log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Violation {
    /// An empty place of the ring was written to.
    Occupied = 1,
    /// A pending descriptor was changed.
    Touched = 2,
    /// The returned descriptor does not match its command.
    Answer = 3,
}

pub(super) struct Spec {
    pub limits: Limits,
    pub geometry: Geometry,
    pub entries: u32,
    pub options: Options,
}

/// The block in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub first: u32,
    pub size: u32,
    pub returned: u32,
    announced: Time,
}

/// Descriptor ring of a device.
pub(super) struct Ring<P: HostPort> {
    pub port: P,
    pub options: Options,
    pub geometry: Geometry,
    limits: Limits,
    pub memory: Buffer,
    /// A bounce page per place, for parts of less than a page.
    pub pages: Buffer,
    pub bios: Bios,
    pub flight: Cell<Option<Flight>>,
    pub announced: Cell<u16>,
    /// True while a block is about to be announced.
    pub announcing: Cell<bool>,
    pub lifecycle: Lifecycle,
    /// Notified when a block is in flight, or pending descriptors wait for an announcement.
    pub rethink: Signal,
    /// Notified when bios have ended.
    pub ended: Signal,
    /// Notified when places have become free.
    pub freed: Signal,
    /// Turn to fill descriptors, in FIFO order.
    pub handler: Pool<()>,
    /// Resets since the last returned descriptor.
    pub barren: Cell<u32>,
    pub counters: Cell<Counters>,
    observed: Cell<Observed>,
    /// Time from which the device could have had the oldest pending descriptor.
    since: Cell<Time>,
    /// Time of the last block's return.
    back_at: Cell<Time>,
    /// End of the sizing policy's wait.
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
    /// Creates a closed ring with its memory.
    pub fn new(port: &P, spec: Spec) -> Result<Rc<Ring<P>>, InitError> {
        let (rt, arena) = (port.rt(), port.arena());
        let memory = arena.buffer(spec.entries as usize * BYTES)?;
        memory.zero();
        Ok(Rc::new(Ring {
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
                block_wait: stage!(rt, super::STAGES, "block wait"),
                announce: stage!(rt, super::COSTS, "announce"),
                completion: stage!(rt, super::STAGES, "completion"),
                noticing: rt.stage(StageName::of(
                    super::STAGES,
                    match spec.options.completion {
                        Completion::Polled | Completion::Hybrid => "poll",
                        Completion::Interrupt { .. } => "interrupt",
                    },
                )),
                order: stage!(rt, super::STAGES, "order wait"),
            },
            costs: Costs { announce: port.cost("announce"), complete: port.cost("complete") },
            port: port.clone(),
            options: spec.options,
            geometry: spec.geometry,
            limits: spec.limits,
        }))
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

    /// Address and length of the ring's memory, where returned descriptors appear.
    pub fn place(&self) -> (BusAddr, u32) {
        (self.memory.at(), self.memory.bytes() as u32)
    }

    /// Bounce page of a place.
    pub fn page(&self, count: u32) -> Buffer {
        self.pages.part(self.bios.place(count) as usize * PAGE_BYTES as usize, PAGE_BYTES as usize)
    }

    /// Stores the next descriptor; its last word passes ownership to the device. Returns false if its place
    /// was not empty.
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

    /// Records an invalid descriptor; the watchdog will reset the ring.
    fn violated(&self, violation: Violation, count: u32) {
        self.count(|counters| counters.protocol_errors += 1);
        self.rt().log("host", "violation", violation as u64, u64::from(self.bios.place(count)));
        self.lifecycle.distrust(self.rt());
    }

    /// Next action if the device has no block. `None` if there is nothing to decide.
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

    /// Announces the next block on the core of `port`, if the sizing policy sends one.
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
                // Taken, so that a concurrent check does not count the same wait.
                if self.ask_at.take().is_some_and(|at| at <= self.rt().now()) {
                    self.see(|observed| observed.gave_up(self.bios.pending()));
                }
            }
        }
        let announcing = Announcing::begin(self);
        self.mark_pending(self.stages.block_wait);
        port.spend(self.costs.announce).await;
        drop(announcing);
        // More descriptors may be pending by now.
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

    /// Groups of the block in flight that have not been returned: first count and length of each.
    fn groups(&self, flight: Flight) -> impl Iterator<Item = (u32, u32)> + use<'_, P> {
        let group = u32::from(self.limits.group());
        (0..flight.size).step_by(group as usize).filter_map(move |at| {
            let first = flight.first.wrapping_add(at);
            let out = self.bios.bio(first).stage.get() == BioStage::Filled;
            // The place of an answered descriptor may be in use again.
            let answered = self.bios.head.get().wrapping_sub(first).wrapping_sub(1) < flight.size;
            (out && !answered).then_some((first, group.min(flight.size - at)))
        })
    }

    fn is_back(&self, first: u32, descriptors: u32) -> bool {
        let last = first.wrapping_add(descriptors - 1);
        !matches!(self.word(last), Word::Command { count, .. } if count == last as u16)
    }

    /// Returns true if a group has been returned.
    pub fn has_news(&self) -> bool {
        let Some(flight) = self.flight.get().filter(|_| !self.lifecycle.distrusted.get()) else {
            return false;
        };
        self.groups(flight).any(|(first, descriptors)| self.is_back(first, descriptors))
    }

    /// Processes returned descriptors: copies each one once, and validates it.
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

    /// Records the stages of a completion: the descriptor's transfer to the host, and the delay until it was
    /// noticed.
    fn mark_noticed(&self, count: u32) {
        let rt = self.rt();
        rt.attach_trace(0, self.bios.place(count) as u16);
        if rt.is_traced() {
            rt.record_at(self.stages.completion, self.port.noticed());
            rt.record(self.stages.noticing);
            rt.detach_trace();
        }
    }

    /// Empties the place of the oldest bio after its answer.
    pub fn empty_oldest(&self) {
        let head = self.bios.head.get();
        self.memory.store_u32(self.at(head) + CONTROL_AT, Word::Empty.word());
        self.bios.bio(head).stage.set(BioStage::Free);
        self.bios.head.set(head.wrapping_add(1));
        self.freed.notify(self.rt());
    }
}

/// Guard of an announcement. If it is dropped half-way, the New Descriptors Block Processor decides again.
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
