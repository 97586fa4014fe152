//! Flash that stores only spare bytes and the first four bytes of each unit, and takes no time unless
//! configured: for tests that count units. With a cached map, metadata are stored in full, because the layer
//! reads them back.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ftl::{
    Erase, Failed, Header, META, Page, PageRead, Pages, Part, Place, Row, Shape, Source, Tag, Unit,
};

const NEVER: Header = Header { sequence: 0, erases: 0 };

pub struct Lean {
    shape: Shape,
    /// One per superpage and plane; sequence 0: erased.
    headers: RefCell<Vec<Header>>,
    logicals: RefCell<Vec<u32>>,
    /// First bytes of each unit, and of each slot.
    stamps: RefCell<Vec<u32>>,
    slots: RefCell<Vec<u32>>,
    /// Units stored in full, by the number stored as their stamp; `None` if none are.
    whole: Option<RefCell<BTreeMap<u32, Vec<u8>>>>,
    next_whole: Cell<u32>,
    pub programs: Cell<u64>,
}

impl Lean {
    pub fn new(shape: Shape) -> Rc<Lean> {
        Rc::new(Lean::bare(shape))
    }

    /// For tests with a cached map.
    pub fn with_parts(shape: Shape) -> Rc<Lean> {
        Rc::new(Lean { whole: Some(RefCell::default()), ..Lean::bare(shape) })
    }

    fn bare(shape: Shape) -> Lean {
        let pages = (shape.dies * shape.planes * shape.blocks * shape.pages) as usize;
        Lean {
            shape,
            headers: RefCell::new(vec![NEVER; pages]),
            logicals: RefCell::new(vec![0; pages * shape.units as usize]),
            stamps: RefCell::new(vec![0; pages * shape.units as usize]),
            slots: RefCell::default(),
            whole: None,
            // Never equal to a data stamp.
            next_whole: Cell::new(1 << 31),
            programs: Cell::new(0),
        }
    }

    /// Die of each logical unit that a programmed page holds.
    pub fn dies(&self) -> BTreeMap<u32, u32> {
        let pages = (self.shape.planes * self.shape.blocks * self.shape.pages) as usize;
        let (headers, logicals) = (self.headers.borrow(), self.logicals.borrow());
        let units = logicals.chunks_exact(self.shape.units as usize);
        let held =
            headers.iter().zip(units).enumerate().filter(|(_, (header, _))| **header != NEVER);
        let of_page = held.flat_map(|(page, (_, units))| {
            units.iter().map(move |logical| (*logical, (page / pages) as u32))
        });
        of_page.filter(|(logical, _)| *logical != u32::MAX).collect()
    }

    /// Passes all bytes stored under this number to `put`.
    fn lend_whole(&self, stamp: u32, put: &mut dyn FnMut(u32, &[u8])) -> bool {
        let Some(whole) = &self.whole else { return false };
        whole.borrow().get(&stamp).is_some_and(|bytes| {
            put(0, bytes);
            true
        })
    }

    fn at(&self, page: Page) -> usize {
        let Page { die, plane, block, page } = page;
        let block = (die * self.shape.planes + plane) * self.shape.blocks + block;
        (block * self.shape.pages + page) as usize
    }

    fn stamp(&self, from: Source) -> u32 {
        match from {
            Source::Slot(slot) => self.slots.borrow()[slot as usize],
            Source::Flash(at) => {
                let page = self.at(at.page) * self.shape.units as usize;
                self.stamps.borrow()[page + at.unit as usize]
            }
            Source::Nothing => 0,
        }
    }

    fn each_page(&self, row: Row, mut with: impl FnMut(usize, usize)) {
        let mut count = 0;
        for plane in (0..self.shape.planes).filter(|plane| row.blocks.planes >> plane & 1 != 0) {
            for page in row.page..row.page + self.shape.group {
                let page = Page { die: row.blocks.die, plane, block: row.blocks.block, page };
                with(self.at(page), count);
                count += 1;
            }
        }
    }

    fn put(&self, row: Row, header: Header, unit: impl Fn(usize) -> (u32, u32)) {
        let units = self.shape.units as usize;
        let (mut headers, mut logicals) = (self.headers.borrow_mut(), self.logicals.borrow_mut());
        let mut stamps = self.stamps.borrow_mut();
        self.each_page(row, |at, count| {
            assert_eq!(headers[at], NEVER, "programmed twice");
            headers[at] = header;
            for of in 0..units {
                (logicals[at * units + of], stamps[at * units + of]) = unit(count * units + of);
            }
        });
    }
}

impl Pages for Lean {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn is_bad(&self, _: Page) -> bool {
        false
    }

    fn mark_bad(&self, _: Page) {}

    async fn read(&self, parts: &mut [Part]) {
        for part in parts {
            let erased = self.headers.borrow()[self.at(part.page)] == NEVER;
            part.seen =
                if erased { PageRead::Erased } else { PageRead::Good { corrected: 0, retries: 0 } };
        }
    }

    async fn program(&self, row: Row, header: Header, units: &[Unit]) -> Result<(), Failed> {
        for unit in units {
            if let Source::Flash(place) = unit.from {
                assert_eq!(self.logical(place), unit.logical);
            }
        }
        let stamps: Vec<u32> = units.iter().map(|unit| self.stamp(unit.from)).collect();
        self.put(row, header, |at| (units[at].logical, stamps[at]));
        self.programs.set(self.programs.get() + 1);
        Ok(())
    }

    async fn erase(&self, blocks: &mut [Erase]) {
        let mut headers = self.headers.borrow_mut();
        let (units, logicals) = (self.shape.units as usize, self.logicals.borrow());
        for one in blocks {
            for group in 0..self.shape.rows() {
                let row = Row { blocks: one.blocks, page: group * self.shape.group };
                self.each_page(row, |at, _| {
                    headers[at] = NEVER;
                    for unit in at * units..(at + 1) * units {
                        if let (Some(whole), true) = (&self.whole, logicals[unit] & META != 0) {
                            whole.borrow_mut().remove(&self.stamps.borrow()[unit]);
                        }
                    }
                });
            }
        }
    }

    fn header(&self, page: Page) -> Option<Header> {
        Some(self.headers.borrow()[self.at(page)]).filter(|header| *header != NEVER)
    }

    fn logical(&self, at: Place) -> u32 {
        self.logicals.borrow()[self.at(at.page) * self.shape.units as usize + at.unit as usize]
    }

    fn lend(&self, at: Place, put: &mut dyn FnMut(u32, &[u8])) -> bool {
        if self.logical(at) & META != 0 && self.whole.is_some() {
            return self.lend_whole(self.stamp(Source::Flash(at)), put);
        }
        put(0, &self.stamp(Source::Flash(at)).to_le_bytes());
        // Metadata are not stored here, so a mount must not rely on them.
        self.logical(at) & META == 0
    }

    fn slots(&self, count: u32) {
        self.slots.borrow_mut().resize(count as usize, 0);
    }

    fn stage(&self, slot: u32, tag: Tag, offset: u32, data: &[u8]) {
        if let (Some(whole), true) = (&self.whole, tag.logical & META != 0) {
            if data.len() == self.shape.unit_bytes as usize {
                let stamp = self.next_whole.get();
                self.next_whole.set(stamp + 1);
                self.slots.borrow_mut()[slot as usize] = stamp;
                whole.borrow_mut().insert(stamp, data.to_vec());
            }
            return;
        }
        if let (0, Some(stamp)) = (offset, data.first_chunk()) {
            self.slots.borrow_mut()[slot as usize] = u32::from_le_bytes(*stamp);
        }
    }

    fn stage_copy(&self, _: u32, _: Tag, _: Option<Place>) {}
    fn stage_slot(&self, _: u32, _: Tag, _: u32) {}
    fn release(&self, _: u32) {}

    fn kept(&self, _: u32) -> Option<Tag> {
        None
    }

    fn lend_slot(&self, slot: u32, put: &mut dyn FnMut(u32, &[u8])) {
        let stamp = self.stamp(Source::Slot(slot));
        if !self.lend_whole(stamp, put) {
            put(0, &stamp.to_le_bytes());
        }
    }

    fn lay(&self, row: Row, header: Header, logicals: &[u32]) {
        self.put(row, header, |at| (logicals[at], 0));
    }
}
