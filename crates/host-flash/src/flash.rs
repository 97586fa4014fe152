//! Flash behind endpoints, as the FTL's page store: each page operation is a command with an answer.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::{Buffer, Cost, HostPort};
use ftl::{
    Erase, Failed, Header, Page, PageRead, Pages, Part, Row, Shape, Stats, Steps, Tag, Unit,
};
use runtime::{Pool, Rt, Signal, Stage, stage};
use wire::pages::{Answer, ITEM_BYTES, Operation, PageAt, RowAt, Spare, Status};

use super::endpoint::Endpoint;
use super::store::Store;
use host::quarantine;

/// Flash behind endpoints, with the write buffer and the read pages in host memory.
///
/// If an endpoint is gone, operations on it never end: the driver must watch [`is_gone`](Remote::is_gone).
pub struct Remote<P: HostPort> {
    pub(super) rt: Rt,
    pub(super) ports: Vec<P>,
    /// Port of the task being polled; by default that of the FTL's tasks.
    pub(super) current: Cell<usize>,
    pub(super) endpoints: Vec<Endpoint<P>>,
    pub(super) shape: Shape,
    pub(super) store: Store,
    /// One call at a time reserves places.
    pub(super) turnstile: Pool<()>,
    /// True if copies within an endpoint go through host memory too.
    pub(super) through_host: bool,
    slots: RefCell<Option<Buffer>>,
    bad: RefCell<Vec<u64>>,
    /// Blocks to be marked bad by their endpoints.
    marks: RefCell<VecDeque<Page>>,
    marked: Signal,
    /// During a mount: the spare bytes of all pages read.
    mounting: RefCell<Option<BTreeMap<u64, Spare>>>,
    pub(super) gone: Signal,
    pub(super) lists: RefCell<Vec<Vec<u16>>>,
    scratch: RefCell<Vec<u8>>,
    pub(super) stages: Stages,
    pub(super) costs: Costs,
    pub(super) counts: Cell<Counts>,
}

pub(super) struct Stages {
    pub room: Stage,
    pub completion: Stage,
}

pub(super) struct Costs {
    pub complete: Cost,
    pub collect: Cost,
    pub switch: Option<Cost>,
}

/// Statistics of endpoint commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages read.
    pub reads: u64,
    /// Rows programmed.
    pub programs: u64,
    /// Blocks erased; those of one number in several planes count once.
    pub erases: u64,
    /// Units copied within an endpoint.
    pub copied_there: u64,
    /// Units copied through host memory.
    pub copied_here: u64,
    /// Pages read again after their eviction from host memory.
    pub again: u64,
}

/// Host memory of a driver and its FTL in bytes, by what it grows with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The map: an entry of 4 bytes for each mapping unit of the capacity.
    pub map: u64,
    /// Tables of superblocks, valid units and bad blocks: the flash's size.
    pub tables: u64,
    /// The write buffer and its tables: its configured size.
    pub write_buffer: u64,
    /// Pages that are read: [`Options::read_memory`](crate::Options::read_memory), and spare bytes of as many
    /// pages as dies may have under way. Neither grows with the capacity.
    pub read_pages: u64,
    /// Rings and slots of commands: endpoints, and commands in flight at each.
    pub commands: u64,
    /// Of all of these, memory that the device can access.
    pub reachable: u64,
}

impl Memory {
    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.map + self.tables + self.write_buffer + self.read_pages + self.commands
    }

    /// Memory of two drivers.
    pub fn and(self, other: Memory) -> Memory {
        Memory {
            map: self.map + other.map,
            tables: self.tables + other.tables,
            write_buffer: self.write_buffer + other.write_buffer,
            read_pages: self.read_pages + other.read_pages,
            commands: self.commands + other.commands,
            reachable: self.reachable + other.reachable,
        }
    }
}

pub(super) struct Parts<P: HostPort> {
    pub ports: Vec<P>,
    pub endpoints: Vec<Endpoint<P>>,
    pub shape: Shape,
    pub store: Store,
    /// Port of the FTL's tasks.
    pub first: usize,
    pub through_host: bool,
    pub interrupted: bool,
}

impl<P: HostPort> Remote<P> {
    pub(super) fn new(parts: Parts<P>) -> Remote<P> {
        let Parts { ports, endpoints, shape, store, first, through_host, interrupted } = parts;
        let (port, rt) = (ports[0].clone(), ports[0].rt().clone());
        let blocks = shape.dies * shape.planes * shape.blocks;
        Remote {
            stages: Stages {
                room: stage!(rt, crate::STAGES, "room wait"),
                completion: stage!(rt, crate::STAGES, "completion"),
            },
            costs: Costs {
                complete: port.cost("complete"),
                collect: port.cost("collect"),
                switch: interrupted.then(|| port.cost("context switch")),
            },
            rt,
            ports,
            current: Cell::new(first),
            endpoints,
            shape,
            store,
            turnstile: Pool::new([()]),
            through_host,
            slots: RefCell::new(None),
            bad: RefCell::new(alloc::vec![0; (blocks as usize).div_ceil(64)]),
            marks: RefCell::default(),
            marked: Signal::default(),
            mounting: RefCell::new(Some(BTreeMap::new())),
            gone: Signal::default(),
            lists: RefCell::default(),
            scratch: RefCell::default(),
            counts: Cell::default(),
        }
    }

    fn port(&self) -> &P {
        &self.ports[self.current.get()]
    }

    pub(super) fn endpoint(&self, die: u32) -> &Endpoint<P> {
        &self.endpoints[(die % self.endpoints.len() as u32) as usize]
    }

    /// Gives up all endpoints after one is gone or sends invalid answers: nothing it sends is used, and the
    /// memory that it may access is quarantined.
    pub(super) fn give_up(&self) {
        if self.is_gone() {
            return;
        }
        self.rt.log("host", "endpoint gone", 0, 0);
        self.quarantine();
        self.gone.notify(&self.rt);
    }

    pub(super) fn quarantine(&self) {
        self.endpoints.iter().for_each(Endpoint::quarantine);
        self.store.buffers().into_iter().for_each(quarantine);
        self.slots.borrow().iter().for_each(quarantine);
    }

    /// Returns true if an endpoint is gone.
    pub fn is_gone(&self) -> bool {
        self.gone.version() > 0
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    /// Statistics so far.
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// Host memory in use, with an FTL of these statistics.
    pub(super) fn memory(&self, software: &Stats) -> Memory {
        let rings = self.endpoints.iter().map(Endpoint::bytes);
        let (rings, slots) = rings.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let buffer = self.slots.borrow().as_ref().map_or(0, Buffer::bytes);
        let pages: usize = self.store.buffers().into_iter().map(Buffer::bytes).sum();
        let bad = 8 * self.bad.borrow().len();
        Memory {
            map: software.map_bytes,
            tables: software.memory_bytes - software.map_bytes + bad as u64,
            write_buffer: buffer as u64 + software.buffer_bytes,
            read_pages: (pages + self.store.table_bytes()) as u64,
            commands: (rings + slots) as u64,
            reachable: (rings + buffer + pages) as u64,
        }
    }

    /// Discards the spare bytes that were kept for the mount.
    pub(super) fn has_mounted(&self) {
        self.mounting.replace(None);
    }

    fn bad_bit(&self, page: Page) -> (usize, u64) {
        let Shape { planes, blocks, .. } = self.shape;
        let at = ((page.die * planes + page.plane) * blocks + page.block) as usize;
        (at / 64, 1 << (at % 64))
    }

    /// Reads the bad block lists of all endpoints.
    pub(super) async fn list_bad(&self) -> Result<(), Status> {
        let Shape { dies, planes, blocks, unit_bytes, units, .. } = self.shape;
        let bytes = (planes * blocks).div_ceil(8).next_multiple_of(4) as usize;
        let mut bits = alloc::vec![0; bytes];
        if bytes > (units * unit_bytes) as usize {
            return Err(Status::Refused);
        }
        for die in 0..dies {
            let call = self.reserve((0, 1), &[]).await;
            let place = call.places[0];
            let data = self.store.data_at(place);
            let answer = self.ask(place, Operation::ListBad { die, data }).await;
            if answer.status != Status::Done {
                return Err(answer.status);
            }
            self.store.copy_out(place, 0, &mut bits);
            for at in (0..planes * blocks).filter(|at| bits[(at / 8) as usize] >> (at % 8) & 1 != 0)
            {
                let page = Page { die, plane: at / blocks, block: at % blocks, page: 0 };
                let (word, bit) = self.bad_bit(page);
                self.bad.borrow_mut()[word] |= bit;
            }
        }
        Ok(())
    }

    /// Runs one command; returns its answer.
    async fn ask(&self, place: u16, operation: Operation) -> Answer {
        let port = self.port();
        self.submit(port, &[place], |_| operation).await;
        self.answered(port, place).await
    }

    pub(super) async fn answered(&self, port: &P, place: u16) -> Answer {
        let answer = self.store.end(&self.rt, place).await;
        self.rt.record(self.stages.completion);
        if let Some(switch) = self.costs.switch {
            port.spend(switch).await;
        }
        port.spend(self.costs.complete).await;
        answer
    }

    /// Reads parts concurrently; they are in host memory when this returns.
    async fn read_parts(&self, parts: &mut [Part], collects: bool) {
        let stay = collects && !self.goes_through_host();
        let bare = |part: &Part| part.units == 0 || stay;
        let few = parts.iter().filter(|part| bare(part)).count();
        let port = self.port();
        let mut call = self.reserve((few, parts.len() - few), &[]).await;
        let (mut full, mut spare) = (0, parts.len() - few);
        // One place per part, full ones first; reordered to match the parts.
        let mut order = self.list();
        for part in parts.iter() {
            let next = if bare(part) { &mut spare } else { &mut full };
            order.push(call.places[*next]);
            *next += 1;
        }
        core::mem::swap(&mut order, &mut call.places);
        order.clear();
        self.lists.borrow_mut().push(order);
        for (part, place) in parts.iter().zip(&call.places) {
            self.store.begin_read(*place, part.page);
        }
        let read = |at: usize| self.read_of(&parts[at], call.places[at], collects, stay);
        self.submit(port, &call.places, read).await;
        self.count(|counts| counts.reads += parts.len() as u64);
        for (at, part) in parts.iter_mut().enumerate() {
            let answer = self.answered(port, call.places[at]).await;
            part.seen = match answer.status {
                Status::Done => {
                    PageRead::Good { corrected: answer.detail, retries: answer.retries.into() }
                }
                Status::Erased => PageRead::Erased,
                _ => PageRead::Unreadable,
            };
        }
        for (part, place) in parts.iter_mut().zip(call.places.drain(..)) {
            let units = if bare(part) { 0 } else { part.units };
            self.remember(part.page, place);
            if !self.store.settle(&self.rt, place, units) {
                // Its units have moved: the caller looks for them elsewhere.
                part.units = 0;
            }
        }
    }

    /// Removes pages of these blocks from the cache, also those that are being read.
    fn forget(&self, blocks: &[Erase]) {
        for erase in blocks {
            let ftl::Blocks { die, block, planes } = erase.blocks;
            self.store.forget_all(&self.rt, |page| {
                page.die == die && page.block == block && planes >> page.plane & 1 != 0
            });
        }
    }

    pub(super) fn read_of(&self, part: &Part, place: u16, collects: bool, stay: bool) -> Operation {
        let (data, spare) = (self.store.data_at(place), self.store.spare_at(place));
        let page = page_at(part.page);
        Operation::Read { page, units: part.units, data, spare, collects, stay }
    }

    /// Returns true if the GC's reads go to host memory.
    fn goes_through_host(&self) -> bool {
        self.through_host || self.endpoints.len() > 1
    }

    /// During a mount, keeps the spare bytes, which are used long after the read.
    fn remember(&self, page: Page, place: u16) {
        if let Some(seen) = &mut *self.mounting.borrow_mut()
            && let Some(spare) = self.store.spare(place, self.shape.units)
        {
            seen.insert(self.key(page), spare);
        }
    }

    fn key(&self, page: Page) -> u64 {
        let Shape { planes, blocks, pages, .. } = self.shape;
        let block = u64::from(page.die * planes + page.plane) * u64::from(blocks);
        (block + u64::from(page.block)) * u64::from(pages) + u64::from(page.page)
    }

    fn spare_of(&self, page: Page) -> Option<Spare> {
        match self.store.find(page) {
            Some(at) => self.store.spare(at, self.shape.units),
            None => {
                let mounting = self.mounting.borrow();
                mounting.as_ref().and_then(|seen| seen.get(&self.key(page)).copied())
            }
        }
    }

    pub(super) fn slot_at(&self, slot: u32) -> usize {
        slot as usize * self.shape.unit_bytes as usize
    }

    pub(super) fn with_slots<T>(&self, look: impl FnOnce(&Buffer) -> T) -> T {
        look(self.slots.borrow().as_ref().expect("made at the mount, before anything else"))
    }

    /// Passes a scratch buffer of one unit to `work`.
    fn with_scratch<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut scratch = self.scratch.take();
        scratch.resize(self.shape.unit_bytes as usize, 0);
        let done = work(&mut scratch);
        self.scratch.replace(scratch);
        done
    }

    /// Reports to the endpoints the blocks that the FTL found bad.
    pub(super) async fn mark(self: Rc<Self>) {
        loop {
            let seen = self.marked.version();
            let next = self.marks.borrow_mut().pop_front();
            match next {
                Some(page) => {
                    let call = self.reserve((1, 0), &[]).await;
                    let operation = Operation::MarkBad(page_at(page));
                    self.ask(call.places[0], operation).await;
                }
                None => self.marked.changed(&self.rt, seen).await,
            }
        }
    }
}

pub(super) fn page_at(page: Page) -> PageAt {
    PageAt { die: page.die, plane: page.plane, block: page.block, page: page.page }
}

fn row_at(blocks: ftl::Blocks, page: u32) -> RowAt {
    RowAt { die: blocks.die, block: blocks.block, planes: blocks.planes, page }
}

impl<P: HostPort> Pages for Remote<P> {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn is_bad(&self, block: Page) -> bool {
        let (word, bit) = self.bad_bit(block);
        self.bad.borrow()[word] & bit != 0
    }

    /// Effective at once; the endpoint is notified later. A power cut before that loses nothing: a block with
    /// a failed erase was marked by the endpoint itself, and one with a failed program was erased, and fails
    /// again.
    fn mark_bad(&self, block: Page) {
        let (word, bit) = self.bad_bit(block);
        self.bad.borrow_mut()[word] |= bit;
        self.marks.borrow_mut().push_back(block);
        self.marked.notify(&self.rt);
    }

    async fn read(&self, parts: &mut [Part]) {
        self.read_parts(parts, false).await;
    }

    async fn read_for_collector(&self, parts: &mut [Part]) {
        let units = parts.iter().map(|part| part.units.count_ones()).sum();
        self.port().spend_times(self.costs.collect, units).await;
        self.read_parts(parts, true).await;
    }

    async fn program(&self, row: Row, header: Header, units: &[Unit]) -> Result<(), Failed> {
        let (port, die) = (self.port(), row.blocks.die);
        let wanted = self.foreign(die, units);
        let call = self.reserve((0, 1), &wanted).await;
        self.bring(port, &call, &wanted).await;
        let place = call.places[0];
        for (at, unit) in units.iter().enumerate() {
            let Some(item) = self.item(&call, &wanted, die, unit) else {
                return Err(Failed { planes: row.blocks.planes });
            };
            self.store.copy_in(place, at * ITEM_BYTES, &item.to_bytes());
        }
        let row = row_at(row.blocks, row.page);
        let (list, Header { sequence, erases }) = (self.store.data_at(place), header);
        self.count(|counts| counts.programs += 1);
        let operation = Operation::Program { row, sequence, erases, list };
        let answer = self.ask(place, operation).await;
        match answer.status {
            Status::Done => Ok(()),
            Status::Failed => Err(Failed { planes: answer.detail & row.planes }),
            _ => Err(Failed { planes: row.planes }),
        }
    }

    async fn erase(&self, blocks: &mut [Erase]) {
        self.forget(blocks);
        let port = self.port();
        let call = self.reserve((blocks.len(), 0), &[]).await;
        self.count(|counts| counts.erases += blocks.len() as u64);
        let erase = |at: usize| Operation::Erase(row_at(blocks[at].blocks, 0));
        self.submit(port, &call.places, erase).await;
        for (erase, place) in blocks.iter_mut().zip(&call.places) {
            let answer = self.answered(port, *place).await;
            erase.failed = match answer.status {
                Status::Done => 0,
                Status::Failed => answer.detail & erase.blocks.planes,
                _ => erase.blocks.planes,
            };
        }
        // Again: a read that began while the erase waited may have been served before it.
        self.forget(blocks);
    }

    fn header(&self, page: Page) -> Option<Header> {
        let Spare { sequence, erases, .. } = self.spare_of(page)?;
        Some(Header { sequence, erases })
    }

    fn logical(&self, at: ftl::Place) -> u32 {
        self.spare_of(at.page).map_or(0, |spare| spare.logicals[at.unit as usize])
    }

    fn lend(&self, at: ftl::Place, put: &mut dyn FnMut(u32, &[u8])) -> bool {
        let Some(place) = self.store.find_units(at.page, 1 << at.unit) else { return false };
        if self.store.spare(place, self.shape.units).is_none() {
            return false;
        }
        self.with_scratch(|unit| {
            self.store.copy_out(place, self.slot_at(at.unit), unit);
            put(0, unit);
        });
        true
    }

    fn slots(&self, count: u32) {
        let bytes = count as usize * self.shape.unit_bytes as usize;
        let room = self.ports[0].arena().buffer(bytes);
        *self.slots.borrow_mut() = Some(room.expect("looked for before the mount"));
    }

    fn stage(&self, slot: u32, _: Tag, offset: u32, data: &[u8]) {
        let at = self.slot_at(slot) + offset as usize;
        self.with_slots(|slots| slots.copy_in(at, data));
    }

    fn stage_copy(&self, slot: u32, _: Tag, from: Option<ftl::Place>) {
        let at = self.slot_at(slot);
        self.with_scratch(|unit| {
            unit.fill(0);
            if let Some(from) = from {
                let found = self.store.find_units(from.page, 1 << from.unit);
                let place = found.expect("it was read just now");
                self.store.copy_out(place, self.slot_at(from.unit), unit);
            }
            self.with_slots(|slots| slots.copy_in(at, unit));
        });
    }

    fn stage_slot(&self, slot: u32, _: Tag, from: u32) {
        let (at, from) = (self.slot_at(slot), self.slot_at(from));
        self.with_scratch(|unit| {
            self.with_slots(|slots| {
                slots.copy_out(from, unit);
                slots.copy_in(at, unit);
            });
        });
    }

    fn release(&self, _: u32) {}

    /// None: host memory is lost at a power cut.
    fn kept(&self, _: u32) -> Option<Tag> {
        None
    }

    fn lend_slot(&self, slot: u32, put: &mut dyn FnMut(u32, &[u8])) {
        let at = self.slot_at(slot);
        self.with_scratch(|unit| {
            self.with_slots(|slots| slots.copy_out(at, unit));
            put(0, unit);
        });
    }

    /// # Panics
    /// Always: untimed setup is done where the chips are.
    fn lay(&self, _: Row, _: Header, _: &[u32]) {
        panic!("flash behind a bus can't be laid down without time");
    }

    /// # Panics
    /// As [`lay`](Pages::lay).
    fn lay_steps(&self, row: Row, header: Header, _: &[u64], _: u32, _: Steps) {
        self.lay(row, header, &[]);
    }
}
