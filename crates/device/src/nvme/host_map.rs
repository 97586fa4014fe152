//! Map on the host: reads by place, the commands that report places and moves, and the feature that enables
//! the report of moves (`wire::nvme::host_map`).
//!
//! A malicious host cannot cause harm: places are numbers until the translation layer has checked them
//! against the spare bytes of the page, which name the unit. Blocks are validated as those of an ordinary
//! read are, so a place never reaches beyond them. The device needs no host: its own map is on flash, and a
//! new host asks for it.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use bus::{Carry, DevicePort, Payload, Segment, Unreadable};
use media::{Extent, Flip, Media, Placed};
use runtime::{Either, Signal, race};
use wire::nvme::entry::DataPointer;
use wire::nvme::event::AsyncEvent;
use wire::nvme::host_map::{HostMap, MOVES_PER_PAGE, Move, Moves, NO_PLACE, PlacedRead};
use wire::nvme::io::Access;
use wire::nvme::sgl::Flow;
use wire::nvme::status::Status;
use zerocopy::IntoBytes;

use super::Controller;
use super::data::of_dma;
use super::namespace::Namespace;
use crate::moved::with_flip;
use crate::scratch_guard::Scratch;
use flash::mapping::Mapping;

#[derive(Default)]
pub(super) struct HostMapping {
    map: OnceCell<Rc<dyn Mapping>>,
    /// Moves that are kept for the host; 0: none.
    moves: Cell<u32>,
    /// Notified when the feature is set, or the event is unmasked.
    changed: Signal,
}

/// Blocks that were read by these places of their mapping units, as a DMA payload.
struct PlacedBlocks<'a> {
    placed: &'a dyn Placed,
    at: Extent,
    places: &'a [u32],
    flip: Option<Flip>,
}

impl Payload for PlacedBlocks<'_> {
    fn runs(&self, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), Unreadable> {
        let lend =
            |put: &mut dyn FnMut(u32, &[u8])| self.placed.runs_placed(self.at, self.places, put);
        with_flip(self.flip.as_ref(), lend, put)
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Lets the host keep the map of the controller's medium.
    ///
    /// # Panics
    /// If called twice.
    pub fn offer_map(self: &Rc<Self>, map: Rc<dyn Mapping>) {
        assert!(self.features.host_map.map.set(map).is_ok(), "one map");
        self.rt.spawn(self.clone().tell_of_moves());
    }

    pub(super) fn offers_host_map(&self) -> bool {
        self.features.host_map.map.get().is_some()
    }

    fn map(&self, otherwise: Status) -> Result<&Rc<dyn Mapping>, Status> {
        self.features.host_map.map.get().ok_or(otherwise)
    }

    /// Number of the mapping unit that holds this block.
    fn unit_of(&self, unit_bytes: u32, block: u64) -> u64 {
        block * u64::from(self.block_bytes) / u64::from(unit_bytes)
    }

    fn units(&self, unit_bytes: u32, at: Extent) -> u32 {
        let last = at.block + u64::from(at.blocks.max(1)) - 1;
        (self.unit_of(unit_bytes, last) - self.unit_of(unit_bytes, at.block) + 1) as u32
    }

    /// Reads the places of the command's units into the slot: from the command, or from its list.
    async fn bring_places(&self, number: u16, read: &PlacedRead, units: u32) -> Result<(), Status> {
        let slot = &self.slots[number];
        slot.places.borrow_mut().clear();
        if units == 1 {
            slot.places.borrow_mut().push(read.place);
            return Ok(());
        }
        let (at, bytes) = (read.access.metadata, units * size_of::<u32>() as u32);
        if !at.0.is_multiple_of(4) || at.offset(u64::from(bytes) - 1).is_none() {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let mut buffer = Scratch::with_room(&slot.data, bytes);
        let list = &mut buffer[..bytes as usize];
        self.port.read(&[Segment { at, bytes }], list, Carry::All).await.map_err(of_dma)?;
        self.rt.record(self.stages.place_list);
        let words = list
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("chunks of four bytes")));
        slot.places.borrow_mut().extend(words);
        Ok(())
    }

    /// A read whose host names the place of each mapping unit. Otherwise as an ordinary read.
    pub(super) async fn read_placed(
        &self,
        number: u16,
        ns: Namespace,
        read: &PlacedRead,
        data: &DataPointer,
    ) -> Result<(), Status> {
        let unit_bytes = self.map(Status::INVALID_OPCODE.with_dnr())?.unit_bytes();
        let placed = self.media.capabilities().placed.ok_or(Status::INVALID_OPCODE.with_dnr())?;
        if ns.metadata.is_some() {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let (bytes, extent) = self.validate(ns, &read.access)?;
        self.locate(number, data, bytes, Flow::ToHost).await?;
        self.bring_places(number, read, self.units(unit_bytes, extent)).await?;
        if read.access.fua {
            self.flush().await?;
        }
        let places = Scratch::from(&self.slots[number].places);
        let first = self.unit_of(unit_bytes, extent.block);
        for (offset, at) in self.pieces(extent) {
            let piece = (offset, at.blocks * self.block_bytes);
            self.must_be_readable(at)?;
            let skipped = (self.unit_of(unit_bytes, at.block) - first) as usize;
            let here = &places[skipped..][..self.units(unit_bytes, at) as usize];
            let ready = placed.read_placed(at, here).await;
            // A stale place is no failure of the medium.
            let ready = ready.map_err(|error| match error {
                media::MediaError::Stale => Status::STALE_PLACE,
                error => self.failed(error),
            })?;
            let flip = self.sent(number, extent, at).flip;
            let blocks = PlacedBlocks { placed, at, places: here, flip };
            self.send(number, piece, &blocks, ready).await?;
        }
        self.count_read(extent);
        Ok(())
    }

    /// Returns the place of each mapping unit that these blocks touch.
    pub(super) async fn read_map(
        &self,
        number: u16,
        ns: Namespace,
        access: &Access,
        data: &DataPointer,
    ) -> Result<(), Status> {
        let map = self.map(Status::INVALID_OPCODE.with_dnr())?;
        let extent = ns.extent(access.lba.0, access.blocks)?;
        let units = self.units(map.unit_bytes(), extent);
        if units > self.options.transfer_bytes_max / size_of::<u32>() as u32 {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let mut places = Scratch::from(&self.slots[number].places);
        places.clear();
        let read = map.places(extent.block, extent.blocks, &mut places).await;
        read.map_err(|_| Status::UNRECOVERED_READ_ERROR)?;
        let bytes: Vec<u8> = places.iter().flat_map(|place| place.to_le_bytes()).collect();
        self.answer(number, *data, &bytes).await
    }

    /// The log page of moves, which it takes.
    pub(super) fn moves_page(&self) -> Result<Vec<u8>, Status> {
        let map = self.map(Status::INVALID_LOG_PAGE)?;
        let taken = std::iter::from_fn(|| map.take_move()).take(MOVES_PER_PAGE as usize);
        let moves: Vec<_> =
            taken.map(|(unit, place)| Move { unit: unit.into(), place: place.into() }).collect();
        let header = Moves {
            dropped: map.dropped_moves().into(),
            unit_bytes: map.unit_bytes().into(),
            count: (moves.len() as u32).into(),
        };
        let mut page = header.as_bytes().to_vec();
        page.extend(moves.as_bytes());
        Ok(page)
    }

    /// Set Features: keeps moves for the host, or none.
    pub(super) fn set_host_map(&self, map: HostMap) -> Result<u32, Status> {
        self.map(Status::INVALID_FIELD)?.keep_moves(map.moves());
        self.features.host_map.moves.set(map.moves());
        self.features.host_map.changed.notify(&self.rt);
        Ok(0)
    }

    pub(super) fn host_map(&self) -> Result<HostMap, Status> {
        self.map(Status::INVALID_FIELD)?;
        Ok(HostMap::new().with_moves(self.features.host_map.moves.get()))
    }

    /// After a controller reset, no host keeps the map.
    pub(super) fn revoke_host_map(&self) {
        if self.features.host_map.moves.get() > 0 {
            // Cannot fail: moves are only kept if the map is offered.
            let _ = self.set_host_map(HostMap::new());
        }
    }

    /// The host has read the log page: the event may be reported again.
    pub(super) fn tell_of_moves_again(&self) {
        self.features.host_map.changed.notify(&self.rt);
    }

    /// Reports that moves wait to be read, once until the host reads the page.
    async fn tell_of_moves(self: Rc<Self>) {
        let Some(map) = self.features.host_map.map.get() else { return };
        loop {
            let seen = self.features.host_map.changed.version();
            let changed = self.features.host_map.changed.changed(&self.rt, seen);
            let knows = self.health.events.borrow().knows_of(AsyncEvent::MOVED);
            if self.features.host_map.moves.get() == 0 || knows {
                changed.await;
                continue;
            }
            if let Either::First(()) = race(map.moves_due(), changed).await {
                self.event(AsyncEvent::MOVED);
            }
        }
    }
}

const _: () = assert!(NO_PLACE == u32::MAX, "as ftl::Ftl::read_placed");
