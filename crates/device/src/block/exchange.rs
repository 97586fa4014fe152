//! The embedded processor: takes announced blocks, parses their descriptors, and prefetches descriptors.

use std::rc::Rc;

use bus::{Carry, DevicePort, Looks};
use media::Media;
use runtime::{Either, race};
use wire::block::descriptor::{BYTES, CONTROL_AT, Control, Descriptor};
use wire::block::registers::{BLOCK, Block, OFFSET, Violation};
use zerocopy::FromBytes;

use super::control::Open;
use super::{Flight, Front};

/// A protocol violation, and the count of the descriptor in question.
pub(super) type Wrong = (Violation, u32);

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Task of the embedded processor: serves the ring each time it is enabled.
    pub(super) async fn exchange(self: Rc<Self>) {
        loop {
            let seen = self.switched.version();
            let switched = self.switched.changed(&self.rt, seen);
            let Some(open) = self.open.get() else {
                switched.await;
                continue;
            };
            // If disabled at any await, the work in progress is dropped there.
            if let Either::Second((violation, count)) = race(switched, self.serve(open)).await {
                self.fault(violation, count);
            }
        }
    }

    /// Processes announced blocks until the host violates the protocol.
    async fn serve(&self, open: Open) -> Wrong {
        // Enabling has cleared the register, so it is zero until the first announcement.
        let (mut told, mut next, mut ahead) = (Block::new(), open.first, 0_u32);
        let most = usize::from(self.options.block_max).max(usize::from(self.options.ahead));
        let mut room = vec![0; most * BYTES];
        loop {
            let block = self.port.on_registers(|| {
                let block = Block::from_bits(self.port.load(BLOCK));
                (block != told).then_some(block)
            });
            let block = block.await;
            if let Err(wrong) = self.validate_block(open, block, told, next) {
                return wrong;
            }
            told = block;
            let size = u32::from(block.size());
            self.rt.log("device", "block", u64::from(next), u64::from(size));
            self.count(|counts| counts.blocks += 1);
            let local = ahead.min(size);
            let rest = next.wrapping_add(local);
            (0..local).for_each(|n| self.slot(next.wrapping_add(n)).ahead.set(false));
            self.mark_all(open, (local..size).map(|n| next.wrapping_add(n)), self.stages.doorbell);
            let flight = Flight { first: next, size, given: local, returned: 0, told };
            self.flight.set(Some(flight));
            self.turned.notify(&self.rt);
            if local < size
                && let Err(wrong) = self.take(open, rest, size - local, &mut room).await
            {
                return wrong;
            }
            next = next.wrapping_add(size);
            ahead -= local;
            ahead += self.look_ahead(open, next.wrapping_add(ahead), ahead, &mut room).await;
            self.until_returned().await;
        }
    }

    fn validate_block(
        &self,
        open: Open,
        block: Block,
        told: Block,
        next: u32,
    ) -> Result<(), Wrong> {
        let size = u32::from(block.size());
        if block.turn() != told.turn().wrapping_add(1) {
            return Err((Violation::Turn, next));
        }
        if size == 0 || size > u32::from(self.options.block_max) || size > open.entries {
            return Err((Violation::Size, next));
        }
        if self.port.load(OFFSET) != next {
            return Err((Violation::Offset, next));
        }
        Ok(())
    }

    /// Fetches announced descriptors into local memory and gives them to slots, one by one as the processor
    /// parses them.
    async fn take(
        &self,
        open: Open,
        from: u32,
        descriptors: u32,
        room: &mut [u8],
    ) -> Result<(), Wrong> {
        let counts = (0..descriptors).map(|n| from.wrapping_add(n));
        self.port.spend(self.costs.take).await;
        self.mark_all(open, counts.clone(), self.stages.take);
        let bytes = &mut room[..descriptors as usize * BYTES];
        let (pieces, number) = open.pieces(from, descriptors);
        {
            let wanted = self.want_engine();
            let _engine = self.engine(self.for_descriptors()).await;
            drop(wanted);
            let read = self.port.read(&pieces[..number], bytes, Carry::All).await;
            read.map_err(|_| (Violation::Unreachable, from))?;
        }
        self.mark_all(open, counts.clone(), self.stages.fetch);
        for (count, bytes) in counts.zip(bytes.chunks_exact(BYTES)) {
            let descriptor = Descriptor::read_from_bytes(bytes).expect("a descriptor's length");
            match descriptor.control() {
                Control::Command { count: of, .. } if of == count as u16 => {}
                Control::Command { .. } => return Err((Violation::Count, count)),
                _ => return Err((Violation::Owner, count)),
            }
            self.begin(open, count, descriptor, false).await;
            let mut flight = self.flight.get().expect("the host waits for it");
            flight.given += 1;
            self.flight.set(Some(flight));
        }
        Ok(())
    }

    /// Spends the processor's time for a command and gives it to its slot.
    async fn begin(&self, open: Open, count: u32, descriptor: Descriptor, ahead: bool) {
        let place = open.place(count);
        self.rt.attach_trace(0, place as u16);
        self.port.spend(self.costs.parse).await;
        self.rt.detach_trace();
        self.count(|counts| counts.commands += 1);
        self.slot(count).give(&self.rt, descriptor, place, ahead);
    }

    /// Prefetches the first commands of the next block while the block in flight is executed. A descriptor
    /// belongs to the device as soon as its last word marks it as a command. Returns the number of commands
    /// taken.
    async fn look_ahead(&self, open: Open, from: u32, already: u32, room: &mut [u8]) -> u32 {
        let flight = self.flight.get().map_or(0, |flight| flight.size);
        // Limit: must not reach the block in flight from behind.
        let free = open.entries.saturating_sub(flight + already);
        let to_end = open.entries - open.place(from);
        let wanted = u32::from(self.options.ahead).saturating_sub(already).min(free).min(to_end);
        if wanted == 0 {
            return 0;
        }
        let bytes = &mut room[..wanted as usize * BYTES];
        let found = match race(self.until_returned(), self.fetch(open, from, bytes)).await {
            Either::First(()) => 0,
            Either::Second(found) => found,
        };
        let counts = (0..found).map(|n| from.wrapping_add(n));
        self.mark_all(open, counts.clone(), self.stages.fetch);
        self.count(|counts| counts.ahead += u64::from(found));
        for (count, bytes) in counts.zip(bytes.chunks_exact(BYTES)) {
            let descriptor = Descriptor::read_from_bytes(bytes).expect("a descriptor's length");
            self.begin(open, count, descriptor, true).await;
        }
        found
    }

    async fn fetch(&self, open: Open, from: u32, bytes: &mut [u8]) -> u32 {
        let _engine = self.engine(self.for_descriptors()).await;
        let (pieces, _) = open.pieces(from, bytes.len() as u32 / BYTES as u32);
        let is_new = |number: u32, word: u32| match Control::parse(word) {
            Control::Command { count, .. } => count == from.wrapping_add(number) as u16,
            _ => false,
        };
        // A single poll, because the block in flight needs the engine. An unreachable address is reported
        // when the block is announced.
        self.port.fetch(pieces[0].at, bytes, BYTES, Looks::Once, is_new).await.unwrap_or(0)
    }

    /// Waits until no block is in flight.
    async fn until_returned(&self) {
        loop {
            let seen = self.turned.version();
            if self.flight.get().is_none() {
                return;
            }
            self.turned.changed(&self.rt, seen).await;
        }
    }
}

const _: () = assert!(CONTROL_AT + 4 == BYTES, "a fetch looks at the last word");
