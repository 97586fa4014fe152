//! Returning descriptors: the whole block, or the plan's groups of it.

use std::cell::Cell;
use std::rc::Rc;

use bus::{DevicePort, Flags, Posting};
use media::Media;
use runtime::{Either, race};
use wire::block::descriptor::BYTES;
use wire::block::registers::{BLOCK, Violation};
use zerocopy::IntoBytes;

use super::control::Open;
use super::exchange::Wrong;
use super::slot::Stage;
use super::{Flight, Front};

/// A flag that is cleared when dropped.
struct Raised<'a>(&'a Cell<bool>);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Task that returns completed descriptors each time the ring is enabled.
    pub(super) async fn give_back(self: Rc<Self>) {
        let mut room = Vec::with_capacity(usize::from(self.options.block_max) * BYTES);
        loop {
            let seen = self.switched.version();
            let switched = self.switched.changed(&self.rt, seen);
            let Some(open) = self.open.get() else {
                switched.await;
                continue;
            };
            match race(switched, self.return_all(open, &mut room)).await {
                Either::First(()) => self.quiet.notify(&self.rt),
                Either::Second((violation, count)) => self.fault(violation, count),
            }
        }
    }

    /// Returns groups as they complete, until the host violates the protocol.
    async fn return_all(&self, open: Open, room: &mut Vec<u8>) -> Wrong {
        loop {
            let seen = self.turned.version();
            let Some((flight, first, descriptors)) = self.ended_group() else {
                self.turned.changed(&self.rt, seen).await;
                continue;
            };
            if let Err(wrong) = self.return_group(open, flight, first, descriptors, room).await {
                return wrong;
            }
        }
    }

    /// A group of the block in flight whose commands have all ended. Groups are aligned to the block's first
    /// descriptor. The slots of a returned group are idle, so it is not found again.
    fn ended_group(&self) -> Option<(Flight, u32, u32)> {
        let flight = self.flight.get()?;
        let group = u32::from(self.options.group);
        let groups = (0..flight.given).step_by(group as usize).map(|at| {
            let descriptors = group.min(flight.size - at);
            (at, descriptors)
        });
        let has_ended = |&(at, descriptors): &(u32, u32)| {
            at + descriptors <= flight.given
                && (at..at + descriptors)
                    .all(|n| self.slot(flight.first.wrapping_add(n)).stage.get() == Stage::Ended)
        };
        let (at, descriptors) = groups.into_iter().find(has_ended)?;
        Some((flight, flight.first.wrapping_add(at), descriptors))
    }

    async fn return_group(
        &self,
        open: Open,
        flight: Flight,
        first: u32,
        descriptors: u32,
        room: &mut Vec<u8>,
    ) -> Result<(), Wrong> {
        let counts = (0..descriptors).map(|n| first.wrapping_add(n));
        self.mark_all(open, counts.clone(), self.stages.rest);
        let wanted = self.want_engine();
        self.port.spend(self.costs.back).await;
        if self.port.load(BLOCK) != flight.told.into_bits() {
            // The host announced the next block before this one was returned.
            return Err((Violation::Turn, first));
        }
        room.clear();
        for count in counts.clone() {
            room.extend_from_slice(self.slot(count).descriptor.get().as_bytes());
        }
        let (pieces, number) = open.pieces(first, descriptors);
        let how = Posting { flags: Flags::Last, ..Posting::STRICT };
        let engine = self.engine(self.for_descriptors()).await;
        drop(wanted);
        self.returning.set(true);
        let raised = Raised(&self.returning);
        let place = u64::from(open.place(first));
        self.rt.log("device", "returns", place, u64::from(descriptors));
        // After the descriptors arrive, the host may reuse their ring entries and request traces.
        self.mark_all(open, counts.clone(), self.stages.back);
        let left = self.port.write(&pieces[..number], &room[..], how, runtime::Time::ZERO).await;
        drop((raised, engine));
        left.map_err(|_| (Violation::Unreachable, first))?;
        let mut flight = self.flight.get().expect("one block at a time");
        flight.returned += descriptors;
        let over = flight.returned == flight.size;
        counts.for_each(|count| self.slot(count).stage.set(Stage::Idle));
        self.flight.set(Some(flight).filter(|_| !over));
        self.count(|counts| counts.returns += 1);
        if open.signals {
            self.port.interrupt(open.vector);
        }
        self.turned.notify(&self.rt);
        Ok(())
    }
}
