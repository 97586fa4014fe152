//! I/O Requests Handler: splits requests into bios and descriptors, in FIFO order.

use alloc::rc::Rc;
use core::future::Future;

use bus::{Buffer, Cost, HostPort, OutOfMemory};
use runtime::{Stage, Time, stage};
use wire::Lba;
use wire::block::descriptor::{Command, Operation, PAGE_BYTES};

use super::Completion;
use super::bios::Claim;
use super::ring::Ring;
use crate::lifecycle::State;
use crate::{BlockDevice, Geometry, IoError, Kind};

/// The disk, for callers on one core.
pub struct Disk<P: HostPort> {
    ring: Rc<Ring<P>>,
    port: P,
    submit: Cost,
    /// Only with interrupts.
    context_switch: Option<Cost>,
    slot_wait: Stage,
}

impl<P: HostPort> Clone for Disk<P> {
    fn clone(&self) -> Disk<P> {
        Disk { ring: self.ring.clone(), port: self.port.clone(), ..*self }
    }
}

#[derive(Clone, Copy)]
struct Asked {
    operation: Operation,
    lba: Option<Lba>,
    bytes: u32,
}

impl<P: HostPort> Disk<P> {
    pub(super) fn new(ring: Rc<Ring<P>>, port: &P) -> Disk<P> {
        Disk {
            submit: port.cost("submit"),
            context_switch: match ring.options.completion {
                Completion::Polled | Completion::Hybrid => None,
                Completion::Interrupt { .. } => Some(port.cost("context switch")),
            },
            slot_wait: stage!(port.rt(), super::STAGES, "slot wait"),
            port: port.clone(),
            ring,
        }
    }

    /// Reads blocks from `lba` until `into` is full, page by page. A last part of less than a page uses a
    /// bounce page.
    ///
    /// `into` begins at a multiple of 4 bytes and holds whole blocks, at most
    /// [`Geometry::transfer_bytes_max`]. It comes back with the result. If this future is dropped, it goes
    /// back to its arena when the device can no longer write to it.
    pub fn read(
        &self,
        lba: Lba,
        into: Buffer,
    ) -> impl Future<Output = (Buffer, Result<(), IoError>)> {
        self.transfer(Operation::Read, lba, into)
    }

    /// Writes all of `from` to the blocks from `lba`; with `fua`, through any volatile cache. Otherwise as
    /// [`read`](Self::read).
    ///
    /// Unanswered requests are repeated after a reset: a write may then be done twice with the same data.
    pub fn write(
        &self,
        lba: Lba,
        from: Buffer,
        fua: bool,
    ) -> impl Future<Output = (Buffer, Result<(), IoError>)> {
        self.transfer(Operation::Write { fua }, lba, from)
    }

    /// Makes all writes durable that completed before.
    pub async fn flush(&self) -> Result<(), IoError> {
        let asked = Asked { operation: Operation::Flush, lba: None, bytes: 0 };
        self.perform(asked, None).await.1
    }

    async fn transfer(
        &self,
        operation: Operation,
        lba: Lba,
        buffer: Buffer,
    ) -> (Buffer, Result<(), IoError>) {
        let inside = self.port.arena().memory().holds(buffer.at(), buffer.bytes());
        let validated = match self.ring.geometry.validate(lba, &buffer) {
            Ok(_) if !inside => {
                let why = "a buffer of the memory that this port reaches";
                Err(IoError::refused(Kind::Refused, lba, why))
            }
            validated => validated,
        };
        if let Err(error) = validated {
            return (buffer, Err(error));
        }
        let asked = Asked { operation, lba: Some(lba), bytes: buffer.bytes() as u32 };
        let (buffer, result) = self.perform(asked, Some(buffer)).await;
        (buffer.expect("it was given"), result)
    }

    /// Runs one request, from filling its descriptors to its end.
    async fn perform(
        &self,
        asked: Asked,
        buffer: Option<Buffer>,
    ) -> (Option<Buffer>, Result<(), IoError>) {
        let (ring, rt, begun) = (&*self.ring, self.ring.rt(), self.ring.rt().now());
        let parts = asked.bytes.div_ceil(PAGE_BYTES).max(1);
        let claim = ring.bios.open(rt, asked.lba, buffer, parts);
        if let Err(kind) = self.fill(asked, parts, &claim, begun).await {
            claim.give_up(kind);
        }
        let (result, followed) = claim.end().await;
        match followed {
            true => rt.attach_trace(1, claim.number),
            false => rt.detach_trace(),
        }
        if let Some(context_switch) = self.context_switch {
            self.port.spend(context_switch).await;
        }
        (claim.release(), result)
    }

    /// Fills descriptors for all parts, in this request's turn and as places become free.
    async fn fill(
        &self,
        asked: Asked,
        parts: u32,
        claim: &Claim<'_>,
        begun: Time,
    ) -> Result<(), Kind> {
        let (ring, rt) = (&*self.ring, self.ring.rt());
        if ring.handler.try_take().is_none() {
            ring.handler.take(rt).await;
        }
        let _turn = Turn { ring };
        let mut part = 0;
        while part < parts {
            let chunk = self.room().await?.min(parts - part);
            let last = part + chunk == parts;
            let row = ring.bios.place(ring.bios.free.get().wrapping_add(chunk - 1)) as u16;
            if last {
                // A request is traced by its last part.
                rt.begin_trace(0, row, begun);
                rt.record(self.slot_wait);
            }
            self.port.spend_times(self.submit, chunk).await;
            self.state()?;
            for _ in 0..chunk {
                if !self.fill_one(asked, part, claim) {
                    break;
                }
                part += 1;
                ring.consider(&self.port, parts - part).await;
                if last {
                    rt.attach_trace(0, row);
                }
            }
        }
        Ok(())
    }

    /// Fills one part: a page of the buffer, or less than that on a bounce page. Returns false if the ring's
    /// place was not empty.
    fn fill_one(&self, asked: Asked, part: u32, claim: &Claim<'_>) -> bool {
        let (ring, from) = (&*self.ring, part * PAGE_BYTES);
        let count = ring.bios.free.get();
        let bytes = (asked.bytes - from).min(PAGE_BYTES);
        let padded = asked.lba.is_some() && bytes < PAGE_BYTES;
        let at = ring.bios.with_buffer(claim.number, |buffer| match buffer {
            Some(buffer) if padded => {
                let page = ring.page(count);
                if asked.operation != Operation::Read {
                    let mut room = [0; PAGE_BYTES as usize];
                    let room = &mut room[..bytes as usize];
                    buffer.copy_out(from as usize, room);
                    page.copy_in(0, room);
                }
                page.at()
            }
            Some(buffer) => wire::BusAddr(buffer.at().0 + u64::from(from)),
            None => wire::BusAddr(0),
        });
        let lba = asked.lba.map_or(0, |lba| lba.0);
        let offset = lba * u64::from(ring.geometry.block_bytes) + u64::from(from);
        let command = Command { operation: asked.operation, at, offset, bytes };
        if !ring.store(&command) {
            return false;
        }
        let bio = ring.bios.bio(count);
        bio.request.set(claim.number);
        bio.padded_at.set(padded.then_some(from));
        ring.bios.filled(claim.number);
        true
    }

    /// Waits until the ring is open and has free places; returns their number.
    async fn room(&self) -> Result<u32, Kind> {
        let ring = &*self.ring;
        loop {
            let observed = ring.freed.version();
            match self.state()? {
                State::Open if ring.bios.room() > 0 && !ring.lifecycle.distrusted.get() => {
                    return Ok(ring.bios.room());
                }
                _ => ring.freed.changed(ring.rt(), observed).await,
            }
        }
    }

    fn state(&self) -> Result<State, Kind> {
        match self.ring.lifecycle.state() {
            State::Gone => Err(Kind::Gone),
            State::Closed => Err(Kind::Closed),
            state => Ok(state),
        }
    }

    /// Number of requests that the driver holds: zero once the device can write to no buffer any more.
    pub fn requests(&self) -> usize {
        self.ring.bios.requests()
    }

    /// Number of descriptors of the ring.
    pub fn entries(&self) -> u32 {
        self.ring.bios.entries()
    }
}

/// Turn to fill descriptors; released on drop.
struct Turn<'a, P: HostPort> {
    ring: &'a Ring<P>,
}

impl<P: HostPort> Drop for Turn<'_, P> {
    fn drop(&mut self) {
        self.ring.handler.give(self.ring.rt(), ());
    }
}

impl<P: HostPort> BlockDevice for Disk<P> {
    fn geometry(&self) -> Geometry {
        self.ring.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.port.arena().buffer(bytes)
    }

    crate::carried_out!(self => self, read, write, flush);
}
