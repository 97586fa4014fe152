//! Plain reads and writes that nothing delays: executed where they are fetched, without their slot's task.
//!
//! Live, on a medium without timing, a command is two copies of some lines and its completion. All that can
//! make a command wait, fail or be cancelled stays with the slots: whatever is unusual about a command is
//! found here before anything is done, and the command goes to its slot.

use bus::{DevicePort, Direct};
use media::{Extent, Media};
use wire::nvme::entry::{Cqe, Sqe};
use wire::nvme::io::{self, Command};
use wire::nvme::status::Status;
use wire::{CommandId, QueueId};

use super::access::Door;
use super::complete::Room;
use super::data::of_dma;
use super::fetch::EXECUTED_MIN;
use super::slot::Slot;
use super::{Controller, PIECE_BYTES};
use crate::moved::Blocks;

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Executes a command if it is a plain read or write, and neither medium nor bus takes time. Returns its
    /// status; `None`, with nothing done, if it needs its slot, whose number is `number`.
    #[inline]
    pub(super) fn at_once(&self, number: u16, sqe: &Sqe) -> Option<Status> {
        if self.faults.is_on() || self.faults.meter.is_watched() || self.features.power.gate.get() {
            return None;
        }
        let parsed = io::parse(sqe);
        let request = parsed.as_ref().ok()?;
        let (access, reads) = match &request.command {
            Command::Read(access) => (access, true),
            Command::Write(access) => (access, false),
            _ => return None,
        };
        let (place, ns) = self.active_at(request.nsid).ok()?;
        if place.door.get() != Door::Open || ns.metadata.is_some() || access.fua {
            return None;
        }
        let (bytes, extent) = self.validate(ns, access).ok()?;
        let whole = bytes <= PIECE_BYTES
            && matches!(self.locate_named(number, &request.data, bytes), Ok(None));
        if !whole {
            return None;
        }
        self.fetching
            .executed
            .set(self.fetching.executed.get().saturating_add(bytes.max(EXECUTED_MIN)));
        let slot = &self.slots[number];
        if reads { self.read_at_once(slot, extent) } else { self.write_at_once(slot, extent) }
    }

    #[inline]
    fn read_at_once(&self, slot: &Slot, at: Extent) -> Option<Status> {
        self.must_be_readable(at).ok()?;
        let blocks = Blocks { media: &*self.media, at, flip: None };
        let sent =
            self.port.direct()?.write_at_once(&slot.segments.borrow(), &blocks, self.posting());
        match sent {
            Ok(false) => return None,
            Ok(true) => {}
            Err(error) => return Some(of_dma(error)),
        }
        self.count_read(at);
        Some(Status::SUCCESS)
    }

    #[inline]
    fn write_at_once(&self, slot: &Slot, at: Extent) -> Option<Status> {
        if self.has_claims() || !self.features.values.borrow().write_cache {
            return None;
        }
        match self.stored_at_once(slot, at) {
            Ok(false) => return None,
            Ok(true) => {}
            Err(status) => return Some(status),
        }
        self.count_write(at);
        Some(Status::SUCCESS)
    }

    /// Posts the completion of a command that has succeeded. Returns false if there is no room for it.
    #[inline]
    pub(super) fn completed_at_once(&self, qid: QueueId, cid: CommandId) -> bool {
        let Room::At(place) = self.place_for(qid) else { return false };
        self.post(qid, Cqe::new(cid, Status::SUCCESS), place);
        true
    }
}
