//! Memory, slots and state of a queue, and its poller of tags and reports.

use alloc::rc::Rc;
use core::cell::Cell;

use bus::{Buffer, HostPort};
use runtime::{Either, Rt, Span, Stage, StageName, race, stage};
use wire::dcx::command::{Command, Entry, Request};
use wire::dcx::notice;
use wire::dcx::registers::{Control, Grain, Group, Shape, Status};
use wire::dcx::report::Report;

use super::rings::{self, Commands, Reports};
use super::slots::Slots;
use super::tags::Tagger;
use super::{Completion, PROTOCOL_ERRORS_MAX, QueueOptions};
use crate::lifecycle::{HasLifecycle, Lifecycle, State};
use crate::{InitError, quarantine, register};

/// Statistics of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands submitted.
    pub submissions: u64,
    /// Reads that ended by vanished tags.
    pub arrivals: u64,
    /// Reports delivered.
    pub reports: u64,
    /// Invalid reports, which were ignored.
    pub protocol_errors: u64,
    /// Reads that were older than their time-out.
    pub timeouts: u64,
    /// Reads rejected because the device had replaced their tag.
    pub stale_tags: u64,
    /// Reads that were sent through the other driver in the end.
    pub gave_up: u64,
    /// Fences passed.
    pub fences: u64,
    /// Resets of the queue.
    pub resets: u64,
    /// Doorbells rung because the device slept.
    pub doorbells: u64,
}

pub(super) struct PairSpec {
    pub number: u16,
    pub block: u32,
    pub grain: Grain,
    pub entries_log2_max: u8,
    pub transfer_log2: u8,
    pub options: QueueOptions,
}

pub(super) struct Pair<P: HostPort> {
    port: P,
    group: Group,
    pub options: QueueOptions,
    pub transfer_bytes_max: u32,
    pub slots: Slots,
    pub commands: Commands,
    reports: Reports,
    pub notice: Buffer,
    pub tagger: Tagger,
    pub lifecycle: Lifecycle,
    /// Command number of the fence in flight.
    pub fence: Cell<Option<u32>>,
    pub counters: Cell<Counters>,
    recent_errors: Cell<u32>,
    stages: Stages,
}

struct Stages {
    arrival: Stage,
    noticing: Stage,
}

/// Slot number of a fence.
const FENCE_SLOT: u16 = u16::MAX;

impl<P: HostPort> Pair<P> {
    /// Creates a closed pair with its memory, and starts its completion poller.
    pub fn start(port: &P, spec: &PairSpec) -> Result<Rc<Pair<P>>, InitError> {
        let options = spec.options;
        // One entry per slot and one for a fence.
        let entries = (u32::from(options.depth) + 1).next_power_of_two();
        if entries.ilog2() > u32::from(spec.entries_log2_max) {
            return Err(InitError::Unsupported {
                what: "LIMITS.entries_log2",
                found: u64::from(spec.entries_log2_max),
                expected: "a ring for one command more than the queue's depth",
            });
        }
        let arena = port.arena();
        let pair = Rc::new(Pair {
            port: port.clone(),
            group: Group::of(spec.block, u32::from(spec.number)),
            transfer_bytes_max: 1 << spec.transfer_log2.min(30),
            slots: Slots::new(options.depth),
            commands: Commands::new(arena, entries)?,
            reports: Reports::new(arena, entries)?,
            notice: rings::notice(arena)?,
            tagger: Tagger::new(&options, spec.number, spec.grain, port.arrival()),
            options,
            lifecycle: Lifecycle::new(),
            fence: Cell::new(None),
            counters: Cell::default(),
            recent_errors: Cell::new(0),
            stages: Stages {
                arrival: stage!(port.rt(), super::STAGES, "arrival"),
                noticing: port.rt().stage(StageName::of(
                    super::STAGES,
                    match options.completion {
                        Completion::Polled | Completion::Hybrid => "poll",
                        Completion::Interrupt { .. } => "interrupt",
                    },
                )),
            },
        });
        port.rt().spawn(poll_completions(pair.clone()));
        Ok(pair)
    }

    pub fn rt(&self) -> &Rt {
        self.port.rt()
    }

    /// Stores a command. The device finds it by polling, or is woken by the doorbell.
    #[inline]
    pub fn submit(&self, slot: u16, command: Command) {
        let number = self.commands.next();
        self.commands.push(&Entry::new(&Request { number, slot, command }));
        self.rt().log("host", "stores", u64::from(number), u64::from(slot));
        self.count(|counters| counters.submissions += 1);
        if self.options.may_sleep {
            // Dekker-style: the side that checks last sees the other's store. The device has the matching
            // fence.
            self.port.fence();
            if self.notice.load_u32(notice::ASLEEP) != 0 {
                self.port.write32(self.group.doorbell, number);
                self.count(|counters| counters.doorbells += 1);
            }
        }
        self.lifecycle.active.notify(self.rt());
    }

    /// Sends a fence, unless one is in flight.
    pub fn send_fence(&self) {
        if self.fence.get().is_none() && self.lifecycle.is_open() {
            self.fence.set(Some(self.commands.next()));
            self.submit(FENCE_SLOT, Command::Fence);
        }
    }

    /// Returns true if a tag has vanished or a report has arrived.
    #[inline]
    fn has_news(&self) -> bool {
        self.reports.has_next() || self.slots.any_settled(self.port.arena().memory())
    }

    /// Ends the reads whose tags have vanished.
    fn settle(&self) {
        self.slots.settle(self.rt(), self.port.arena().memory(), |slot| {
            self.count(|counters| counters.arrivals += 1);
            self.rt().log("host", "arrived", u64::from(slot), 0);
            self.mark_noticed(slot);
        });
    }

    /// Processes vanished tags and reports.
    fn drain(&self) {
        self.settle();
        let mut taken = 0;
        while taken < self.reports.entries()
            && self.lifecycle.is_open()
            && let Some(report) = self.reports.take()
        {
            taken += 1;
            self.validate(&report);
        }
    }

    fn validate(&self, report: &Report) {
        if report.slot() == FENCE_SLOT && self.fence.get() == Some(report.command()) {
            self.fence.set(None);
            self.count(|counters| counters.fences += 1);
            // Data that landed before the fence's report is complete.
            self.settle();
            self.slots.pass(self.rt(), report.command());
            return;
        }
        let (slot, code) = (report.slot(), report.code());
        match self.slots.deliver(self.rt(), slot, report.command(), code) {
            Ok(()) => {
                self.count(|counters| counters.reports += 1);
                self.mark_noticed(slot);
            }
            Err(violation) => {
                self.count(|counters| counters.protocol_errors += 1);
                self.rt().log("host", "bad-report", violation as u64, u64::from(slot));
                self.recent_errors.set(self.recent_errors.get() + 1);
                if self.recent_errors.get() >= PROTOCOL_ERRORS_MAX {
                    self.lifecycle.distrust(self.rt());
                }
            }
        }
    }

    /// Records the stages of a completion: data transfer to the host, and the delay until it was noticed.
    fn mark_noticed(&self, slot: u16) {
        let rt = self.rt();
        rt.attach_trace(self.options.traces, slot);
        if rt.is_traced() {
            rt.record_at(self.stages.arrival, self.port.noticed());
            rt.record(self.stages.noticing);
            rt.detach_trace();
        }
    }

    pub fn count(&self, add: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        add(&mut counters);
        self.counters.set(counters);
    }
}

impl<P: HostPort> HasLifecycle<P> for Pair<P> {
    fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    fn port(&self) -> &P {
        &self.port
    }

    fn timeout(&self) -> Span {
        self.options.timeout
    }

    fn status(&self) -> u32 {
        self.group.status
    }

    async fn enable(&self) -> Result<(), InitError> {
        let group = &self.group;
        let places = [
            (group.commands, self.commands.memory().at()),
            (group.reports, self.reports.memory().at()),
            (group.notice, self.notice.at()),
        ];
        for (register, at) in places {
            self.port.write32(register, at.0 as u32);
            self.port.write32(register + 4, (at.0 >> 32) as u32);
        }
        let vector = match self.options.completion {
            Completion::Polled | Completion::Hybrid => None,
            Completion::Interrupt { vector } => Some(vector),
        };
        let packet_log2 = self.tagger.packet_bytes().map_or(0, |bytes| bytes.ilog2() as u8);
        let shape = Shape::new()
            .with_entries_log2(self.reports.entries().ilog2() as u8)
            .with_packet_log2(packet_log2)
            .with_vector(vector.unwrap_or(0));
        self.port.write32(group.shape, shape.into_bits());
        let control = Control::new()
            .with_enable(true)
            .with_may_sleep(self.options.may_sleep)
            .with_signals(vector.is_some());
        self.port.write32(group.control, control.into_bits());
        let ready = |value: u32| {
            let status = Status::from_bits(value);
            (status.ready() && value != u32::MAX).then_some(status)
        };
        match register::until(&self.port, group.status, self.ready_within(), ready).await {
            Ok(status) if !status.fault() => {
                self.recent_errors.set(0);
                self.open();
                Ok(())
            }
            Ok(status) => Err(self.not_ready(status.into_bits(), 1)),
            Err(found) => Err(self.not_ready(found, 1)),
        }
    }

    fn request_disable(&self) {
        self.port.write32(self.group.control, 0);
    }

    fn on_disabled(&self) {
        self.slots.abandon(self.rt());
        self.fence.set(None);
        self.commands.clear();
        self.reports.clear();
        self.notice.zero();
    }

    fn quarantine(&self) {
        for memory in [self.commands.memory(), self.reports.memory(), &self.notice] {
            quarantine(memory);
        }
        self.slots.quarantine_buffers();
        self.set_state(State::Gone);
        self.slots.abandon(self.rt());
    }

    fn record_reset(&self) {
        self.count(|counters| counters.resets += 1);
    }

    fn log_id(&self) -> u64 {
        self.options.traces.into()
    }
}

/// Processes vanished tags and reports, as long as the pair has tasks.
async fn poll_completions<P: HostPort>(pair: Rc<Pair<P>>) {
    let mut interrupts = 0;
    while !pair.lifecycle.has_ended() {
        let mut turned =
            pair.lifecycle.changed.changed(pair.rt(), pair.lifecycle.changed.version());
        while pair.lifecycle.is_open() {
            let noticed = match pair.options.completion {
                Completion::Polled | Completion::Hybrid => race(&mut turned, on_news(&pair)).await,
                Completion::Interrupt { vector } => {
                    match race(&mut turned, pair.port.on_interrupt(vector, interrupts)).await {
                        Either::First(()) => Either::First(()),
                        Either::Second(count) => {
                            interrupts = count;
                            Either::Second(())
                        }
                    }
                }
            };
            match noticed {
                Either::First(()) => break,
                Either::Second(()) if pair.is_dead() => pair.give_up(),
                Either::Second(()) => pair.drain(),
            }
        }
        turned.await;
    }
}

/// Waits for a vanished tag or a report.
async fn on_news<P: HostPort>(pair: &Pair<P>) {
    let memory = pair.port.arena().memory();
    let bytes = u32::try_from(memory.bytes()).unwrap_or(u32::MAX);
    let check = || (pair.has_news() || pair.is_dead()).then_some(());
    pair.port.on_memory(memory.base(), bytes, check).await;
}
