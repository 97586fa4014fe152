//! Queue: reads that end when their tags vanish, and the other block operations.

use alloc::rc::Rc;
use core::future::Future;

use bus::{Buffer, Cost, HostPort, OutOfMemory};
use runtime::{Stage, Time, stage};
use wire::Lba;
use wire::dcx::command::{Access, Command};
use wire::dcx::report::Code;

use super::pair::{Counters, Pair};
use super::slots::{Claim, End};
use super::tags::Marks;
use super::watchdog::looks_within;
use super::{Completion, TICKS_PER_TIMEOUT};
use crate::lifecycle::{HasLifecycle, State};
use crate::{BlockDevice, Geometry, IoError, Kind};

/// Number of replaced tags under one read after which it is sent through the other driver.
const STALE_TAGS_MAX: u32 = 16;

/// Queue of a DC Express device, over another driver of the same device.
pub struct Queue<P: HostPort, W> {
    pair: Rc<Pair<P>>,
    beneath: W,
    geometry: Geometry,
    costs: Costs,
    stages: Stages,
    patience: Patience,
}

struct Costs {
    mark: Cost,
    submit: Cost,
    complete: Cost,
    /// Only with interrupts.
    context_switch: Option<Cost>,
}

struct Stages {
    slot_wait: Stage,
    retry: Stage,
    arrival: Stage,
}

/// Watchdog checks after which a command is late.
struct Patience {
    read: u32,
    write: u32,
}

impl<P: HostPort, W: BlockDevice> Queue<P, W> {
    pub(super) fn new(pair: Rc<Pair<P>>, beneath: W) -> Queue<P, W> {
        let (port, rt) = (pair.port(), pair.rt());
        let below = beneath.geometry();
        let transfer_bytes_max = below.transfer_bytes_max.min(pair.transfer_bytes_max);
        Queue {
            geometry: Geometry { transfer_bytes_max, ..below },
            costs: Costs {
                mark: port.cost("mark"),
                submit: port.cost("submit"),
                complete: port.cost("complete"),
                context_switch: match pair.options.completion {
                    Completion::Polled | Completion::Hybrid => None,
                    Completion::Interrupt { .. } => Some(port.cost("context switch")),
                },
            },
            stages: Stages {
                slot_wait: stage!(rt, super::STAGES, "slot wait"),
                retry: stage!(rt, super::STAGES, "tag retry"),
                arrival: stage!(rt, super::STAGES, "arrival"),
            },
            patience: Patience {
                read: TICKS_PER_TIMEOUT as u32,
                write: looks_within(&pair, pair.options.timeout),
            },
            pair,
            beneath,
        }
    }

    /// Reads blocks from `lba` until `into` is full.
    ///
    /// `into` begins at a multiple of 4 bytes and holds whole blocks, at most
    /// [`Geometry::transfer_bytes_max`]. It comes back with the result, when the device can no longer write
    /// to it. If this future is dropped, it goes back to its arena then.
    ///
    /// Takes at most `retries + 1` time-outs (each up to an eighth longer than
    /// [`read_timeout`](super::QueueOptions::read_timeout)), with a fence or a reset behind each, and one
    /// read through the other driver.
    pub fn read(
        &self,
        lba: Lba,
        into: Buffer,
    ) -> impl Future<Output = (Buffer, Result<(), IoError>)> {
        self.read_validated(lba, self.validate(lba, &into), into)
    }

    /// Reads the first `into.bytes()` bytes of a block: a multiple of four, at most one block. Otherwise as
    /// [`read`](Self::read), but fails instead of using the other driver.
    pub fn read_head(
        &self,
        lba: Lba,
        into: Buffer,
    ) -> impl Future<Output = (Buffer, Result<(), IoError>)> {
        let bytes = into.bytes();
        let refused = if bytes == 0 || !bytes.is_multiple_of(4) {
            Some("a multiple of four bytes")
        } else if bytes > self.geometry.block_bytes as usize {
            Some("no more than a block")
        } else if lba.0 >= self.geometry.blocks {
            Some("a block below the capacity")
        } else {
            self.misplaced(&into)
        };
        let validated = match refused {
            Some(why) => Err(IoError::refused(Kind::Refused, lba, why)),
            None => Ok(()),
        };
        self.read_validated(lba, validated, into)
    }

    async fn read_validated(
        &self,
        lba: Lba,
        validated: Result<(), IoError>,
        into: Buffer,
    ) -> (Buffer, Result<(), IoError>) {
        if let Err(error) = validated {
            return (into, Err(error));
        }
        let (pair, port, bytes) = (&self.pair, self.pair.port(), into.bytes());
        let (mut buffer, mut begun) = (into, None);
        let (mut lost, mut stale) = (0, 0);
        while lost <= pair.options.retries && stale <= STALE_TAGS_MAX {
            let slot = self.slot(&mut begun).await;
            let (at, marks) = (buffer.at(), pair.tagger.choose(&buffer, &pair.notice));
            // First the tags, then the command; from here on the device may write.
            port.spend_times(self.costs.mark, marks.mark(&buffer)).await;
            slot.keep(buffer);
            let access = Access { lba, bytes: bytes as u32, at };
            let command =
                Command::Read { access, tag_version: marks.version, wide: marks.tag.is_wide() };
            let end = self.run(&slot, command, Some((at, marks))).await;
            // From here on the device writes no more, unless it is gone.
            buffer = slot.release().expect("kept since this call");
            match end {
                Ok(Ok(())) => return (buffer, Ok(())),
                Ok(Err(Code::STALE_TAG)) => {
                    pair.count(|counters| counters.stale_tags += 1);
                    stale += 1;
                }
                Ok(Err(code)) => return (buffer, Err(IoError::reported(code, Some(lba)))),
                // Its tags were still present when a fence was passed, or it was lost in a reset.
                Err(Kind::TimedOut | Kind::Reset) => {
                    pair.tagger.draw();
                    lost += 1;
                }
                Err(kind) => return (buffer, Err(IoError::of(kind, Some(lba)))),
            }
        }
        pair.count(|counters| counters.gave_up += 1);
        if bytes < self.geometry.block_bytes as usize {
            return (buffer, Err(IoError::of(Kind::TimedOut, Some(lba))));
        }
        self.beneath.read(lba, buffer).await
    }

    /// Writes all of `from` to the blocks from `lba`; with `fua`, through any volatile cache.
    ///
    /// A write that is lost in a reset is submitted again, up to `retries` times: it may then be done twice
    /// with the same data.
    pub async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        if !self.pair.options.writes {
            return self.beneath.write(lba, from, fua).await;
        }
        if let Err(error) = self.validate(lba, &from) {
            return (from, Err(error));
        }
        let (mut buffer, mut begun, mut lost) = (from, None, 0);
        loop {
            let slot = self.slot(&mut begun).await;
            let access = Access { lba, bytes: buffer.bytes() as u32, at: buffer.at() };
            slot.keep(buffer);
            let end = self.run(&slot, Command::Write { access, fua }, None).await;
            buffer = slot.release().expect("kept since this call");
            let kind = match end {
                Ok(end) => return (buffer, end.map_err(|code| IoError::reported(code, Some(lba)))),
                Err(kind) => kind,
            };
            // A fence was passed or the queue was reset, and the device is done with it: repeating the same
            // write is safe.
            let again = matches!(kind, Kind::Reset | Kind::TimedOut);
            if !again || lost == self.pair.options.retries {
                return (buffer, Err(IoError::of(kind, Some(lba))));
            }
            lost += 1;
        }
    }

    /// Runs one command to its end: its tags vanish, it is reported, or it is lost. A late command is lost
    /// when the fence behind it is passed or the queue is reset: until then the device may still write.
    async fn run(
        &self,
        slot: &Claim<'_>,
        command: Command,
        marks: Option<(wire::BusAddr, Marks)>,
    ) -> Result<Result<(), Code>, Kind> {
        let (pair, port) = (&self.pair, self.pair.port());
        port.spend(self.costs.submit).await;
        self.ready().await?;
        let patience = if marks.is_some() { self.patience.read } else { self.patience.write };
        slot.launch(pair.commands.next(), marks, patience);
        pair.submit(slot.name(), command);
        let end = slot.end().await;
        pair.rt().record(self.stages.arrival);
        if let Some(context_switch) = self.costs.context_switch {
            port.spend(context_switch).await;
        }
        port.spend(self.costs.complete).await;
        match end {
            End::Done(end) => Ok(end),
            End::Lost if slot.is_late() => Err(self.why_lost(Kind::TimedOut)),
            End::Lost => Err(self.why_lost(Kind::Reset)),
        }
    }

    /// Waits for a command slot. The request trace begins with the first slot; a retry's slot continues it.
    async fn slot(&self, begun: &mut Option<Time>) -> Claim<'_> {
        let (rt, pair) = (self.pair.rt(), &self.pair);
        let waits_since = (pair.slots.available() == 0).then(|| rt.now());
        let slot = pair.slots.claim(rt).await;
        let traces = pair.options.traces;
        if rt.follows(traces, slot.name()) {
            let retry = begun.is_some();
            let since = begun.or(waits_since).unwrap_or_else(|| rt.now());
            *begun = Some(since);
            rt.begin_trace(traces, slot.name(), since);
            rt.record(if retry { self.stages.retry } else { self.stages.slot_wait });
        }
        slot
    }

    /// Waits while the queue is being reset.
    #[inline]
    async fn ready(&self) -> Result<(), Kind> {
        if self.pair.is_dead() {
            self.pair.give_up();
        }
        match self.pair.lifecycle.state() {
            State::Open => Ok(()),
            _ => match self.pair.lifecycle.settled(self.pair.rt()).await {
                State::Open => Ok(()),
                State::Closed => Err(Kind::Closed),
                State::Gone | State::Resetting => Err(Kind::Gone),
            },
        }
    }

    fn why_lost(&self, otherwise: Kind) -> Kind {
        match self.pair.lifecycle.state() {
            State::Gone => Kind::Gone,
            State::Closed => Kind::Closed,
            State::Open | State::Resetting => otherwise,
        }
    }

    fn validate(&self, lba: Lba, buffer: &Buffer) -> Result<(), IoError> {
        self.geometry.validate(lba, buffer)?;
        match self.misplaced(buffer) {
            Some(why) => Err(IoError::refused(Kind::Refused, lba, why)),
            None => Ok(()),
        }
    }

    /// Requirement that a buffer violates; `None` if the device can use it.
    fn misplaced(&self, buffer: &Buffer) -> Option<&'static str> {
        let (at, memory) = (buffer.at(), self.pair.port().arena().memory());
        if !at.0.is_multiple_of(4) {
            Some("a buffer that begins at a multiple of 4 bytes")
        } else if !memory.holds(at, buffer.bytes()) {
            Some("a buffer of the memory that this port reaches")
        } else {
            None
        }
    }

    /// Queue depth: most commands in flight.
    pub fn depth(&self) -> u16 {
        self.pair.slots.depth()
    }

    /// Number of free command slots: all of them, once the device can write to no buffer any more.
    pub fn slots_free(&self) -> usize {
        self.pair.slots.available()
    }

    /// Statistics.
    pub fn counters(&self) -> Counters {
        self.pair.counters.get()
    }
}

impl<P: HostPort, W: BlockDevice> BlockDevice for Queue<P, W> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.pair.port().arena().buffer(bytes)
    }

    crate::carried_out!(self => self, read, write);
    // Through the other driver: DC Express queues have no such commands, and their writes go to the same
    // medium.
    crate::carried_out!(self => self.beneath, flush, deallocated, deallocate, hint);
}
