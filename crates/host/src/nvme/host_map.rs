//! Map on the host: the device buffers, places, collects and erases; the host translates, and sends the place
//! of each mapping unit with a read. A device with little memory then reads flash once for a read, and not
//! once more for the map.
//!
//! ```text
//!   read ─► part of the map known? ─ no ─► Read Map
//!             │ yes                           │
//!             ▼                               ▼
//!           Read Placed ─► stale? ─ yes ─► forget the part, ask again; fourth: ordinary read
//!
//!   device: event, units have moved ─► read the log page of moves ─► change the map
//! ```
//!
//! The map is filled on demand, so a host that starts over a device that was in use just asks. It may be
//! wrong at any time, as the device checks every place: a move that was missed costs a stale place. A unit
//! that this host writes has no place until the device reports one.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::ops::RangeInclusive;

use bus::{Buffer, Cost, HostPort, OutOfMemory};
use runtime::{Signal, Span, Stage, Time, stage};
use wire::nvme::admin;
use wire::nvme::entry::DataPointer;
use wire::nvme::features::fid;
use wire::nvme::host_map::{HostMap, MOVES_PER_PAGE, Move, Moves, NO_PLACE};
use wire::nvme::io::{BLOCKS_MAX, read_map, read_placed};
use wire::nvme::log::lid;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};
use zerocopy::FromBytes;

use super::queue::Queue;
use super::state::Core;
use super::{Controller, PAGE_BYTES};
use crate::{BlockDevice, Deallocated, Geometry, InitError, IoError, Kind};

/// Name of its cost: looking up the place of one mapping unit.
pub const MAP_COSTS: &[&str] = &["translate"];

/// Stage recorded in addition to its cost: the wait until the host has a part of the map, and attempts by a
/// stale place.
pub const MAP_STAGES: &[&str] = &["map fetch"];

/// Units of a part of the map: what one memory page of places holds.
const PART_UNITS: u64 = PAGE_BYTES / PLACE_BYTES;
const PLACE_BYTES: u64 = size_of::<u32>() as u64;
/// Largest accepted number of mapping units.
const UNITS_MAX: u64 = 1 << 32;
/// Attempts by place, before the device looks up the places itself.
const ATTEMPTS: u32 = 3;
/// Delay before the log page is read again after a failure.
const PAUSE: Span = Span::ms(1);

/// Statistics of a map on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapCounts {
    /// Reads by place, without further attempts.
    pub reads: u64,
    /// Places sent.
    pub places: u64,
    /// Parts of the map that were asked for.
    pub parts: u64,
    /// Reads that were answered with a stale place.
    pub stale: u64,
    /// Reads that were left to the device after all attempts.
    pub given_up: u64,
    /// Moves that were read.
    pub moves: u64,
    /// Moves that the device dropped because they were not read in time.
    pub dropped: u64,
}

/// The map of a controller's flash. Follows the moves until the controller is shut down or gone; clones share
/// it.
pub struct HostMapping<P: HostPort>(Rc<Inner<P>>);

impl<P: HostPort> Clone for HostMapping<P> {
    fn clone(&self) -> HostMapping<P> {
        HostMapping(self.0.clone())
    }
}

struct Inner<P: HostPort> {
    core: Rc<Core<P>>,
    port: P,
    /// Moves that the device keeps until they are read.
    moves: u32,
    unit_bytes: Cell<u32>,
    /// Parts of the map; `None` if not known.
    parts: RefCell<Vec<Option<Box<[u32]>>>>,
    /// Parts that have been asked for.
    asked: RefCell<Vec<usize>>,
    answered: Signal,
    /// Bounce buffer for the log page; `None` while it is used.
    page: RefCell<Option<Buffer>>,
    costs: (Cost, Cost),
    counts: Cell<MapCounts>,
}

/// A queue whose reads go by place. Clones share the queue.
pub struct PlacedDisk<P: HostPort> {
    queue: Rc<Queue<P>>,
    map: Rc<Inner<P>>,
    /// A list of places for each command slot, and its length in bytes.
    lists: Rc<Buffer>,
    list_bytes: usize,
    translate: Cost,
    wait: Stage,
}

impl<P: HostPort> Clone for PlacedDisk<P> {
    fn clone(&self) -> PlacedDisk<P> {
        let (queue, map, lists) = (self.queue.clone(), self.map.clone(), self.lists.clone());
        PlacedDisk { queue, map, lists, ..*self }
    }
}

impl<P: HostPort> Controller<P> {
    /// Keeps the map of this controller's flash on the host, with a task on the core of `port` that follows
    /// its moves. The device keeps up to `moves` of these until they are read.
    ///
    /// # Errors
    /// The controller does not support it, or reports an invalid mapping unit.
    pub async fn map_on_host(&self, port: &P, moves: u32) -> Result<HostMapping<P>, InitError> {
        let core = self.core().clone();
        core.running().await?;
        core.identity.must_be_plain()?;
        let inner = Rc::new(Inner {
            port: port.clone(),
            moves,
            unit_bytes: Cell::new(0),
            parts: RefCell::default(),
            asked: RefCell::default(),
            answered: Signal::default(),
            page: RefCell::new(Some(port.arena().buffer(PAGE_BYTES as usize)?)),
            costs: (port.cost("submit"), port.cost("complete")),
            counts: Cell::default(),
            core,
        });
        inner.lead().await?;
        port.rt().spawn(inner.clone().follow());
        Ok(HostMapping(inner))
    }
}

impl<P: HostPort> HostMapping<P> {
    /// A disk on this queue, which reads by place.
    ///
    /// # Errors
    /// No memory for lists of places.
    pub fn disk(&self, queue: &Rc<Queue<P>>) -> Result<PlacedDisk<P>, OutOfMemory> {
        let (port, unit_bytes) = (queue.port(), self.0.unit_bytes.get());
        // An unaligned transfer touches one more, and rounding another.
        let units = queue.geometry().transfer_bytes_max.div_ceil(unit_bytes) as usize + 2;
        let list_bytes = units * PLACE_BYTES as usize;
        let lists = port.arena().buffer(usize::from(queue.depth()) * list_bytes)?;
        Ok(PlacedDisk {
            queue: queue.clone(),
            map: self.0.clone(),
            lists: Rc::new(lists),
            list_bytes,
            translate: port.cost(MAP_COSTS[0]),
            wait: stage!(port.rt(), MAP_STAGES, "map fetch"),
        })
    }

    /// Statistics.
    pub fn counts(&self) -> MapCounts {
        self.0.counts.get()
    }

    /// Bytes of host memory of the map, without DMA memory.
    pub fn memory_bytes(&self) -> u64 {
        let parts = self.0.parts.borrow();
        let known = parts.iter().flatten().count() as u64;
        parts.capacity() as u64 * size_of::<Option<Box<[u32]>>>() as u64 + known * PAGE_BYTES
    }

    /// Changes every known place to another, as a host with a corrupt map would have it. For tests.
    pub fn corrupt(&self, place: impl Fn(u32) -> u32) {
        let mut parts = self.0.parts.borrow_mut();
        let all = parts.iter_mut().flatten().flat_map(|part| part.iter_mut());
        all.for_each(|known| *known = place(*known));
    }
}

impl<P: HostPort> Inner<P> {
    fn geometry(&self) -> Geometry {
        self.core.identity.geometry
    }

    fn count(&self, change: impl FnOnce(&mut MapCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Learns the size of a mapping unit, and enables the report of moves.
    async fn lead(&self) -> Result<(), InitError> {
        let header = self.read_moves().await?;
        let geometry = self.core.identity.geometry;
        let unit_bytes = header.unit_bytes.get();
        let bytes = geometry.blocks.saturating_mul(geometry.block_bytes.into());
        let valid = is_unit(unit_bytes, geometry.block_bytes, self.unit_bytes.get());
        let units = if valid { bytes.div_ceil(unit_bytes.into()) } else { u64::MAX };
        if units >= UNITS_MAX {
            return Err(InitError::Unsupported {
                what: "the mapping unit in log page C1h",
                found: unit_bytes.into(),
                expected: "a power of two of 1 to 65536 blocks, fewer than 2^32 of them, always the same",
            });
        }
        self.unit_bytes.set(unit_bytes);
        let parts = units.div_ceil(PART_UNITS) as usize;
        self.parts.borrow_mut().resize_with(parts, || None);
        let value = HostMap::new().with_moves(self.moves).into_bits();
        self.port.spend(self.costs.0).await;
        let build = |cid| admin::set_feature(cid, fid::HOST_MAP, value);
        let done = self.core.admin.execute("Set Features: map on the host", None, build).await;
        self.port.spend(self.costs.1).await;
        done.map(|_| ())
    }

    /// Runs until the controller is gone. The report of moves is enabled again after each reset.
    async fn follow(self: Rc<Self>) {
        self.core
            .keep_on(PAUSE, async || self.lead().await, async || self.take_moves().await)
            .await;
    }

    /// Reads all moves, then waits for an event or a reset.
    async fn take_moves(&self) -> Result<(), InitError> {
        let told = &self.core.events.moves;
        let seen = told.version();
        while self.read_moves().await?.count.get() >= MOVES_PER_PAGE {}
        told.changed(self.core.rt(), seen).await;
        Ok(())
    }

    /// Reads one log page of moves.
    async fn read_moves(&self) -> Result<Moves, InitError> {
        const STEP: &str = "Get Log Page: moves";
        let page = self.page.take();
        let page = match page {
            Some(page) => page,
            None => self.port.arena().buffer(PAGE_BYTES as usize)?,
        };
        let data = DataPointer::Prp { prp1: page.at(), prp2: BusAddr(0) };
        self.port.spend(self.costs.0).await;
        let build = |cid| admin::get_log_part(cid, lid::MOVES, (0, PAGE_BYTES), false, data);
        let done = self.core.admin.execute(STEP, Some(page), build).await;
        self.port.spend(self.costs.1).await;
        let Some(page) = done?.1 else { return Err(InitError::Reset { step: STEP }) };
        let mut bytes = [0; size_of::<Moves>()];
        page.copy_out(0, &mut bytes);
        let header = Moves::read_from_bytes(&bytes).expect("of this length");
        let count = header.count.get().min(MOVES_PER_PAGE) as usize;
        for at in 0..count {
            let mut bytes = [0; size_of::<Move>()];
            page.copy_out(size_of::<Moves>() + at * size_of::<Move>(), &mut bytes);
            let moved = Move::read_from_bytes(&bytes).expect("of this length");
            self.set(moved.unit.get().into(), moved.place.get());
        }
        self.page.replace(Some(page));
        self.count(|counts| {
            counts.moves += count as u64;
            counts.dropped = header.dropped.get();
        });
        Ok(header)
    }

    /// Changes the place of a unit, if its part is known. The unit may come from the device.
    fn set(&self, unit: u64, place: u32) {
        let mut parts = self.parts.borrow_mut();
        if let Some(Some(part)) = parts.get_mut((unit / PART_UNITS) as usize) {
            part[(unit % PART_UNITS) as usize] = place;
        }
    }

    /// Clears the places of units in the parts that are known. By parts: a deallocation may be of a whole
    /// drive.
    fn clear(&self, units: RangeInclusive<u64>) {
        let mut parts = self.parts.borrow_mut();
        let (first, last) = (units.start() / PART_UNITS, units.end() / PART_UNITS);
        for number in first..=last.min((parts.len() as u64).saturating_sub(1)) {
            let Some(part) = parts.get_mut(number as usize).and_then(Option::as_mut) else {
                continue;
            };
            let begin = units.start().saturating_sub(number * PART_UNITS);
            let end = (units.end() + 1 - number * PART_UNITS).min(PART_UNITS);
            part[begin as usize..end as usize].fill(NO_PLACE);
        }
    }

    fn place(&self, unit: u64) -> u32 {
        match self.parts.borrow().get((unit / PART_UNITS) as usize) {
            Some(Some(part)) => part[(unit % PART_UNITS) as usize],
            _ => NO_PLACE,
        }
    }

    /// Units that these blocks touch.
    fn units(&self, lba: Lba, blocks: u32) -> RangeInclusive<u64> {
        let (geometry, unit_bytes) = (self.geometry(), u64::from(self.unit_bytes.get()));
        let unit = |block: u64| block * u64::from(geometry.block_bytes) / unit_bytes;
        unit(lba.0)..=unit(lba.0 + u64::from(blocks.max(1)) - 1)
    }

    fn forget(&self, units: RangeInclusive<u64>) {
        let mut parts = self.parts.borrow_mut();
        for part in units.start() / PART_UNITS..=units.end() / PART_UNITS {
            parts[part as usize] = None;
        }
    }

    /// First part of these units that is not known.
    fn missing(&self, units: &RangeInclusive<u64>) -> Option<usize> {
        let parts = self.parts.borrow();
        let mut all = (units.start() / PART_UNITS) as usize..=(units.end() / PART_UNITS) as usize;
        all.find(|part| parts[*part].is_none())
    }

    /// Asks the device for the parts of these units that are not known, each once at a time.
    async fn fetch(&self, queue: &Queue<P>, units: &RangeInclusive<u64>) -> Result<(), IoError> {
        while let Some(part) = self.missing(units) {
            let seen = self.answered.version();
            if self.asked.borrow().contains(&part) {
                self.answered.changed(self.core.rt(), seen).await;
                continue;
            }
            self.asked.borrow_mut().push(part);
            let asked = Asked { map: self, part };
            let places = self.ask(queue, part).await?;
            self.parts.borrow_mut()[part] = Some(places);
            drop(asked);
        }
        Ok(())
    }

    async fn ask(&self, queue: &Queue<P>, part: usize) -> Result<Box<[u32]>, IoError> {
        let geometry = self.geometry();
        let per_unit = u64::from(self.unit_bytes.get() / geometry.block_bytes);
        let mut places = alloc::vec![NO_PLACE; PART_UNITS as usize].into_boxed_slice();
        // BLOCKS_MAX limits the blocks of a command.
        let step = (u64::from(wire::nvme::io::BLOCKS_MAX) / per_unit).clamp(1, PART_UNITS);
        for first in (0..PART_UNITS).step_by(step as usize) {
            let block = (part as u64 * PART_UNITS + first) * per_unit;
            let blocks = (step * per_unit).min(geometry.blocks.saturating_sub(block)) as u32;
            if blocks == 0 {
                break;
            }
            let here = &mut places[first as usize..];
            queue.read_map(Lba(block), blocks, u64::from(blocks).div_ceil(per_unit), here).await?;
        }
        self.count(|counts| counts.parts += 1);
        Ok(places)
    }
}

/// A part that is being asked for. Dropped, it wakes those that wait for it.
struct Asked<'a, P: HostPort> {
    map: &'a Inner<P>,
    part: usize,
}

impl<P: HostPort> Drop for Asked<'_, P> {
    fn drop(&mut self) {
        self.map.asked.borrow_mut().retain(|part| *part != self.part);
        self.map.answered.notify(self.map.core.rt());
    }
}

impl<P: HostPort> Queue<P> {
    /// Reads the places of `units` mapping units.
    async fn read_map(
        &self,
        lba: Lba,
        blocks: u32,
        units: u64,
        into: &mut [u32],
    ) -> Result<(), IoError> {
        let bytes = (units * PLACE_BYTES) as usize;
        let no_memory = |_| IoError::of(Kind::OutOfMemory, Some(lba));
        let buffer = self.buffer(bytes).map_err(no_memory)?;
        let (slot, held) = self.slot().await;
        let data = self.pair.lists.describe(slot.index(), &buffer);
        slot.keep(buffer);
        let build = |cid| read_map(cid, self.nsid(), lba, blocks, data);
        let done = self.run(&slot, held, &build).await;
        self.port().rt().detach_trace();
        let buffer = slot.take_back();
        done.map_err(|failed| failed.at(Some(lba)))?;
        for (at, place) in into.iter_mut().enumerate().take(units as usize) {
            let mut word = [0; PLACE_BYTES as usize];
            buffer.copy_out(at * word.len(), &mut word);
            *place = u32::from_le_bytes(word);
        }
        Ok(())
    }
}

impl<P: HostPort> PlacedDisk<P> {
    /// Reads blocks by their places. Otherwise as [`Queue::read`].
    pub async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let blocks = match self.queue.geometry().validate(lba, &into) {
            Ok(blocks) => blocks,
            Err(error) => return (into, Err(error)),
        };
        let (map, mut into) = (&*self.map, into);
        let units = map.units(lba, blocks);
        map.count(|counts| counts.reads += 1);
        let begun = map.core.rt().now();
        for attempt in 0..ATTEMPTS {
            let mut since = (attempt > 0).then_some(begun);
            if map.missing(&units).is_some() {
                since = Some(begun);
                if let Err(error) = map.fetch(&self.queue, &units).await {
                    return (into, Err(error));
                }
            }
            let (back, done) = self.read_once((lba, blocks), into, &units, since).await;
            into = back;
            match done {
                Err(error) if is_stale(&error) => map.forget(units.clone()),
                done => return (into, done),
            }
            map.count(|counts| counts.stale += 1);
        }
        map.count(|counts| counts.given_up += 1);
        self.queue.read(lba, into).await
    }

    async fn read_once(
        &self,
        (lba, blocks): (Lba, u32),
        into: Buffer,
        units: &RangeInclusive<u64>,
        since: Option<Time>,
    ) -> (Buffer, Result<(), IoError>) {
        let (queue, rt) = (&*self.queue, self.map.core.rt());
        let (slot, held) = match queue.slot_at_once() {
            Some(slot) => (slot, None),
            None => queue.slot().await,
        };
        if let Some(since) = since
            && rt.is_traced()
        {
            rt.begin_trace(queue.qid().0, slot.next_cid().0, since);
            rt.record(self.wait);
        }
        let count = (units.end() - units.start() + 1) as u32;
        queue.port().spend_times(self.translate, count).await;
        let place = match count {
            1 => (self.map.place(*units.start()), BusAddr(0)),
            _ => {
                let offset = usize::from(slot.index()) * self.list_bytes;
                for (at, unit) in units.clone().enumerate() {
                    let word = self.map.place(unit).to_le_bytes();
                    self.lists.copy_in(offset + at * word.len(), &word);
                }
                (NO_PLACE, BusAddr(self.lists.at().0 + offset as u64))
            }
        };
        self.map.count(|counts| counts.places += u64::from(count));
        let data = queue.pair.lists.describe(slot.index(), &into);
        slot.keep(into);
        let build = |cid| read_placed(cid, queue.nsid(), (lba, blocks), place, data);
        let done = queue.run(&slot, held, &build).await;
        (slot.take_back(), done.map_err(|failed| failed.at(Some(lba))))
    }

    /// Writes blocks, which then have no known place. Otherwise as [`Queue::write`].
    pub async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        let blocks = match self.queue.geometry().validate(lba, &from) {
            Ok(blocks) => blocks,
            Err(error) => return (from, Err(error)),
        };
        self.unplace(lba, blocks);
        self.queue.write(lba, from, fua).await
    }

    /// As [`Queue::flush`].
    pub async fn flush(&self) -> Result<(), IoError> {
        self.queue.flush().await
    }

    /// Deallocates blocks, which then have no known place. Otherwise as [`Queue::deallocate`].
    pub async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        self.queue.geometry().validate_range(lba, blocks.into())?;
        self.unplace(lba, blocks);
        self.queue.deallocate(lba, blocks).await
    }

    fn unplace(&self, lba: Lba, blocks: u32) {
        self.map.clear(self.map.units(lba, blocks));
    }
}

fn is_stale(error: &IoError) -> bool {
    error.status.is_some_and(|status| status.kind() == Status::STALE_PLACE)
}

impl<P: HostPort> BlockDevice for PlacedDisk<P> {
    fn geometry(&self) -> Geometry {
        self.queue.geometry()
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.queue.buffer(bytes)
    }

    fn deallocated(&self) -> Deallocated {
        self.queue.deallocated()
    }

    crate::carried_out!(self => self, read, write, flush, deallocate);
    crate::carried_out!(self => self.queue, hint);
}

/// Whether a device may have a mapping unit of `unit_bytes` bytes. Lists and reads in flight are of the
/// unit that the first look found, 0 before.
fn is_unit(unit_bytes: u32, block_bytes: u32, known: u32) -> bool {
    unit_bytes.is_power_of_two()
        && (1..=BLOCKS_MAX).contains(&(unit_bytes / block_bytes.max(1)))
        && [0, unit_bytes].contains(&known)
}

#[cfg(test)]
mod tests {
    use super::is_unit;

    #[test]
    fn mapping_unit_fits_a_command_and_never_changes() {
        assert!(is_unit(4096, 512, 0) && is_unit(4096, 512, 4096) && is_unit(32 << 20, 512, 0));
        for (unit_bytes, known) in [(64 << 20, 0), (256, 0), (0, 0), (4097, 0), (8192, 4096)] {
            assert!(!is_unit(unit_bytes, 512, known), "{unit_bytes} after {known}");
        }
    }
}
