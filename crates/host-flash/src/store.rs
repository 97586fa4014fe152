//! Cache of read pages in host memory: spare bytes, and the units read with them.
//!
//! ```text
//!   Free ── take ──► Taken ── settle ──► Cached ── evict ──► Taken
//!    ▲                 │ free              │ an erase, or a newer read that has its units too
//!    └─────────────────┘                   └──► Free
//! ```
//!
//! There are two kinds of places: *bare* ones for spare bytes only, and *full* ones with space for a page. A
//! call reserves all its places at once, so that no call waits for places while it holds others.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::Poll;

use bus::{Arena, Buffer, OutOfMemory};
use ftl::Page;
use runtime::{Parked, Rt, Signal};
use wire::BusAddr;
use wire::pages::{Answer, SPARE_BYTES_MAX, Spare, Status};

pub(super) const NONE: u16 = u16::MAX;

/// Distance between two places' spare bytes.
const SPARE_STRIDE: usize = 256;

const _: () = assert!(SPARE_BYTES_MAX <= SPARE_STRIDE);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bare = 0,
    Full = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Taken,
    Cached,
}

struct Place {
    stage: Cell<Stage>,
    /// Number of users while it is cached.
    pins: Cell<u16>,
    page: Cell<Page>,
    units: Cell<u32>,
    /// Next place in the same bucket.
    next: Cell<u16>,
    /// True while its command is in flight.
    flying: Cell<bool>,
    /// True if its command has no owner any more.
    orphan: Cell<bool>,
    /// True if the block of its page was erased while the page was being read.
    stale: Cell<bool>,
    answer: Cell<Option<Answer>>,
    owner: Cell<Option<Parked>>,
}

pub(super) struct Store {
    places: Box<[Place]>,
    bare: u16,
    free: [RefCell<Vec<u16>>; 2],
    /// Cached places without users, by kind.
    idle: [Cell<usize>; 2],
    hands: [Cell<u16>; 2],
    buckets: Box<[Cell<u16>]>,
    spare: Buffer,
    data: Buffer,
    page_bytes: usize,
    unit_bytes: usize,
    scratch: RefCell<Vec<u8>>,
    /// Notified when places may have become available.
    room: Signal,
}

const NO_PAGE: Page = Page { die: 0, plane: 0, block: 0, page: 0 };

impl Store {
    pub fn new(
        arena: &Arena,
        bare: u16,
        full: u16,
        (page_bytes, unit_bytes): (usize, usize),
    ) -> Result<Store, OutOfMemory> {
        let count = usize::from(bare) + usize::from(full);
        let place = |_| Place {
            stage: Cell::new(Stage::Free),
            pins: Cell::new(0),
            page: Cell::new(NO_PAGE),
            units: Cell::new(0),
            next: Cell::new(NONE),
            flying: Cell::new(false),
            orphan: Cell::new(false),
            stale: Cell::new(false),
            answer: Cell::new(None),
            owner: Cell::new(None),
        };
        let buckets = (2 * count).next_power_of_two();
        Ok(Store {
            places: (0..count).map(place).collect(),
            bare,
            free: [
                RefCell::new((0..bare).rev().collect()),
                RefCell::new((bare..bare + full).rev().collect()),
            ],
            idle: Default::default(),
            hands: [Cell::new(0), Cell::new(bare)],
            buckets: (0..buckets).map(|_| Cell::new(NONE)).collect(),
            spare: arena.buffer(count * SPARE_STRIDE)?,
            data: arena.buffer((usize::from(full) * page_bytes).max(1))?,
            page_bytes,
            unit_bytes,
            scratch: RefCell::default(),
            room: Signal::default(),
        })
    }

    /// Memory of its table in bytes.
    pub fn table_bytes(&self) -> usize {
        self.places.len() * size_of::<Place>() + self.buckets.len() * 2
    }

    /// Its memory, which an endpoint may write.
    pub fn buffers(&self) -> [&Buffer; 2] {
        [&self.spare, &self.data]
    }

    pub fn room(&self) -> &Signal {
        &self.room
    }

    fn kind(&self, place: u16) -> Kind {
        if place < self.bare { Kind::Bare } else { Kind::Full }
    }

    fn place(&self, place: u16) -> &Place {
        &self.places[usize::from(place)]
    }

    /// Returns true if `count` places of a kind could be taken now.
    pub fn has(&self, kind: Kind, count: usize) -> bool {
        self.free[kind as usize].borrow().len() + self.idle[kind as usize].get() >= count
    }

    /// Takes a place of this kind, of which there must be one.
    pub fn take(&self, kind: Kind) -> u16 {
        let free = self.free[kind as usize].borrow_mut().pop();
        let taken = free.unwrap_or_else(|| self.evict(kind));
        let place = self.place(taken);
        place.stage.set(Stage::Taken);
        place.answer.set(None);
        place.orphan.set(false);
        taken
    }

    /// Evicts a place by the clock algorithm.
    fn evict(&self, kind: Kind) -> u16 {
        let all = self.places.len() as u16;
        let (first, end) = if kind == Kind::Bare { (0, self.bare) } else { (self.bare, all) };
        let hand = &self.hands[kind as usize];
        for _ in first..end {
            let at = hand.get();
            hand.set(if at + 1 == end { first } else { at + 1 });
            let place = self.place(at);
            if place.stage.get() == Stage::Cached && place.pins.get() == 0 {
                self.unlink(at);
                self.idle[kind as usize].set(self.idle[kind as usize].get() - 1);
                return at;
            }
        }
        unreachable!("one is unused");
    }

    /// Frees a place without useful content.
    pub fn free(&self, rt: &Rt, at: u16) {
        let place = self.place(at);
        assert!(!place.flying.get(), "an endpoint may write there");
        place.stage.set(Stage::Free);
        place.owner.take();
        self.free[self.kind(at) as usize].borrow_mut().push(at);
        self.room.notify(rt);
    }

    /// Frees a taken place, now or when its command has ended.
    pub fn let_go(&self, rt: &Rt, at: u16) {
        let place = self.place(at);
        place.owner.take();
        if place.flying.get() { place.orphan.set(true) } else { self.free(rt, at) }
    }

    /// Marks the place's command as in flight.
    pub fn launch(&self, at: u16) {
        self.place(at).flying.set(true);
    }

    /// Records the end of its command.
    pub fn ended(&self, rt: &Rt, at: u16, answer: Answer) {
        let place = self.place(at);
        place.flying.set(false);
        if place.orphan.get() {
            return self.free(rt, at);
        }
        place.answer.set(Some(answer));
        if let Some(owner) = place.owner.take() {
            rt.hand_over(owner);
        }
    }

    /// Waits for the end of the place's command.
    pub async fn end(&self, rt: &Rt, at: u16) -> Answer {
        let place = self.place(at);
        poll_fn(|cx| match place.answer.get() {
            Some(answer) => Poll::Ready(answer),
            None => {
                place.owner.set(Some(rt.park(cx)));
                Poll::Pending
            }
        })
        .await
    }

    /// Marks a taken place as the target of a read of this page, until [`settle`](Store::settle).
    pub fn begin_read(&self, at: u16, page: Page) {
        let place = self.place(at);
        place.page.set(page);
        place.stale.set(false);
    }

    /// Caches the content of a place: these units of its page, with those that an older read of the page has
    /// brought. Returns false if the page was erased meanwhile; then the place is free.
    pub fn settle(&self, rt: &Rt, at: u16, units: u32) -> bool {
        let place = self.place(at);
        if place.stale.get() {
            self.free(rt, at);
            return false;
        }
        let page = place.page.get();
        place.units.set(units);
        if let Some(older) = self.find(page) {
            if !self.supersede(older, at) {
                self.free(rt, at);
                return true;
            }
            self.forget(rt, page);
        }
        let bucket = self.bucket(page);
        place.pins.set(0);
        place.stage.set(Stage::Cached);
        place.next.set(bucket.replace(at));
        let idle = &self.idle[self.kind(at) as usize];
        idle.set(idle.get() + 1);
        self.room.notify(rt);
        true
    }

    /// Copies to `newer` the units that only `older` has of the same page. Returns false if `older` has all
    /// that `newer` has. A page that is not erased doesn't change, so the two agree.
    fn supersede(&self, older: u16, newer: u16) -> bool {
        let (old, new) = (self.place(older), self.place(newer));
        let good =
            |place: &Place| place.answer.get().is_some_and(|answer| answer.status == Status::Done);
        if !good(old) {
            return true;
        }
        let (has, brings) = (old.units.get(), new.units.get());
        if !good(new) || brings & !has == 0 {
            return false;
        }
        let mut unit = self.scratch.take();
        unit.resize(self.unit_bytes, 0);
        for number in (0..u32::BITS).filter(|number| (has & !brings) >> number & 1 != 0) {
            let offset = number as usize * self.unit_bytes;
            self.copy_out(older, offset, &mut unit);
            self.copy_in(newer, offset, &unit);
        }
        self.scratch.replace(unit);
        new.units.set(has | brings);
        true
    }

    /// Removes a page from the cache.
    pub fn forget(&self, rt: &Rt, page: Page) {
        let Some(at) = self.find(page) else { return };
        self.unlink(at);
        let place = self.place(at);
        if place.pins.get() > 0 {
            // Its last user frees it.
            return place.stage.set(Stage::Taken);
        }
        let idle = &self.idle[self.kind(at) as usize];
        idle.set(idle.get() - 1);
        self.free(rt, at);
    }

    /// Like [`forget`](Store::forget), for all pages that match `which`, because they are erased; also for
    /// those that are being read.
    pub fn forget_all(&self, rt: &Rt, which: impl Fn(Page) -> bool) {
        for place in self.places.iter().filter(|place| which(place.page.get())) {
            match place.stage.get() {
                Stage::Cached => self.forget(rt, place.page.get()),
                Stage::Taken => place.stale.set(true),
                Stage::Free => {}
            }
        }
    }

    /// Place of this page, if it is cached.
    pub fn find(&self, page: Page) -> Option<u16> {
        let mut at = self.bucket(page).get();
        while at != NONE {
            let place = self.place(at);
            if place.page.get() == page {
                return Some(at);
            }
            at = place.next.get();
        }
        None
    }

    /// Place of this page, if it is cached with these units.
    pub fn find_units(&self, page: Page, units: u32) -> Option<u16> {
        self.find(page).filter(|at| units & !self.place(*at).units.get() == 0)
    }

    /// Pins a place until `unpin`.
    pub fn pin(&self, at: u16) {
        let place = self.place(at);
        assert_eq!(place.stage.get(), Stage::Cached, "what is cached is used");
        if place.pins.get() == 0 {
            let idle = &self.idle[self.kind(at) as usize];
            idle.set(idle.get() - 1);
        }
        place.pins.set(place.pins.get() + 1);
    }

    pub fn unpin(&self, rt: &Rt, at: u16) {
        let place = self.place(at);
        place.pins.set(place.pins.get() - 1);
        if place.pins.get() > 0 {
            return;
        }
        if place.stage.get() == Stage::Cached {
            let idle = &self.idle[self.kind(at) as usize];
            idle.set(idle.get() + 1);
            self.room.notify(rt);
        } else {
            self.free(rt, at);
        }
    }

    fn bucket(&self, page: Page) -> &Cell<u16> {
        let Page { die, plane, block, page } = page;
        let mut mixed = u64::from(die) << 40 ^ u64::from(plane) << 32 ^ u64::from(block) << 12;
        mixed = (mixed ^ u64::from(page)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.buckets[(mixed >> 32) as usize & (self.buckets.len() - 1)]
    }

    /// Removes a place from its bucket.
    fn unlink(&self, at: u16) {
        let mut link = self.bucket(self.place(at).page.get());
        while link.get() != at {
            link = &self.place(link.get()).next;
        }
        link.set(self.place(at).next.get());
    }

    /// Bus address of a full place's page.
    pub fn data_at(&self, at: u16) -> BusAddr {
        match self.kind(at) {
            Kind::Bare => BusAddr(0),
            Kind::Full => BusAddr(self.data.at().0 + self.offset(at) as u64),
        }
    }

    fn offset(&self, at: u16) -> usize {
        usize::from(at - self.bare) * self.page_bytes
    }

    /// Bus address of a place's spare bytes.
    pub fn spare_at(&self, at: u16) -> BusAddr {
        BusAddr(self.spare.at().0 + (usize::from(at) * SPARE_STRIDE) as u64)
    }

    /// Spare bytes of a place, if its read succeeded.
    pub fn spare(&self, at: u16, units: u32) -> Option<Spare> {
        self.place(at).answer.get().filter(|answer| answer.status == Status::Done)?;
        let mut bytes = [0; SPARE_BYTES_MAX];
        let bytes = &mut bytes[..Spare::bytes(units)];
        self.spare.copy_out(usize::from(at) * SPARE_STRIDE, bytes);
        Some(Spare::parse(bytes))
    }

    /// Copies bytes from a full place's page.
    pub fn copy_out(&self, at: u16, offset: usize, to: &mut [u8]) {
        self.data.copy_out(self.offset(at) + offset, to);
    }

    /// Copies bytes to a full place's page.
    pub fn copy_in(&self, at: u16, offset: usize, from: &[u8]) {
        self.data.copy_in(self.offset(at) + offset, from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bus::Memory;
    use runtime::Log;

    fn page(page: u32) -> Page {
        Page { page, ..NO_PAGE }
    }

    const DONE: Answer = Answer { id: 0, status: Status::Done, retries: 0, detail: 0, lap: 1 };

    /// A store of pages of two units of 2 KiB.
    fn store(bare: u16, full: u16) -> Store {
        let arena = Arena::new(Memory::private(1 << 20, BusAddr(0x10_0000)));
        Store::new(&arena, bare, full, (4096, 2048)).unwrap()
    }

    /// Reads units of a page, whose bytes are all `byte`.
    fn read(store: &Store, rt: &Rt, of: Page, units: u32, byte: u8) -> (u16, bool) {
        let at = store.take(Kind::Full);
        store.begin_read(at, of);
        store.launch(at);
        store.copy_in(at, 0, &[byte; 4096]);
        store.ended(rt, at, DONE);
        (at, store.settle(rt, at, units))
    }

    #[test]
    fn newer_read_keeps_units_of_older_and_pinned_pages_stay() {
        let rt = Rt::simulated(None, Log::Off);
        let store = store(1, 3);
        let (first, _) = read(&store, &rt, page(1), 0b10, 7);
        store.pin(first);
        let (second, _) = read(&store, &rt, page(1), 0b01, 8);
        assert_eq!(store.find_units(page(1), 0b11), Some(second), "both units in one place");
        let mut bytes = [0; 4096];
        store.copy_out(second, 0, &mut bytes);
        assert!(bytes[..2048] == [8; 2048] && bytes[2048..] == [7; 2048]);
        // Nothing that the older read lacks: it stays.
        let (third, settled) = read(&store, &rt, page(1), 0b10, 9);
        assert!(settled && third != second);
        assert_eq!(store.find_units(page(1), 0b11), Some(second));
        // The superseded place is in use until it is unpinned.
        assert!(store.has(Kind::Full, 2) && !store.has(Kind::Full, 3));
        store.unpin(&rt, first);
        store.pin(second);
        assert!(store.has(Kind::Full, 2) && !store.has(Kind::Full, 3));
        // A forgotten page in use is not found, and is freed by its last user.
        store.forget(&rt, page(1));
        assert_eq!(store.find(page(1)), None);
        store.unpin(&rt, second);
        assert!(store.has(Kind::Full, 3));
    }

    #[test]
    fn read_that_an_erase_overtakes_is_not_cached() {
        let rt = Rt::simulated(None, Log::Off);
        let store = store(1, 2);
        let at = store.take(Kind::Full);
        store.begin_read(at, page(1));
        store.launch(at);
        store.forget_all(&rt, |erased| erased == page(1));
        store.ended(&rt, at, DONE);
        assert!(!store.settle(&rt, at, 0b1), "the page has been erased since");
        assert_eq!(store.find(page(1)), None);
        assert!(store.has(Kind::Full, 2));
        // The next read of the page is a new one.
        assert!(read(&store, &rt, page(1), 0b1, 1).1);
    }

    #[test]
    fn orphan_place_freed_when_command_ends() {
        let rt = Rt::simulated(None, Log::Off);
        let store = store(1, 0);
        let at = store.take(Kind::Bare);
        store.launch(at);
        store.let_go(&rt, at);
        assert!(!store.has(Kind::Bare, 1));
        store.ended(&rt, at, DONE);
        assert!(store.has(Kind::Bare, 1));
    }
}
