//! In-memory flash that checks the rules of flash, injects faults, and can lose power.
#![allow(dead_code)]

pub mod lean;
pub mod oracle;

use std::cell::{Cell as Count, RefCell};
use std::rc::Rc;

use ftl::{
    Erase, Failed, Header, Page, PageRead, Pages, Part, Place, Row, Shape, Source, Tag, Unit,
};
use runtime::{Line, Rng, Rt, Span, Time};

/// A small device: few pages, so that every case occurs soon. Units of two blocks.
pub const SMALL: Shape = Shape {
    dies: 2,
    planes: 2,
    blocks: 14,
    pages: 8,
    group: 2,
    units: 2,
    unit_bytes: 1024,
    reach: 0,
};

/// A device small enough for a power cut at every moment.
pub const TINY: Shape = Shape {
    dies: 2,
    planes: 1,
    blocks: 12,
    pages: 4,
    group: 1,
    units: 2,
    unit_bytes: 1024,
    reach: 0,
};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Cell {
    Erased,
    /// An operation was interrupted or failed.
    Torn,
    Done {
        header: Header,
        logicals: Vec<u32>,
        data: Vec<Option<Vec<u8>>>,
    },
}

#[derive(Clone)]
struct Slot {
    tag: Option<Tag>,
    data: Vec<u8>,
    /// Lost at a power cut.
    volatile: bool,
}

/// State that survives a power cut.
#[derive(Clone)]
pub struct Medium {
    shape: Shape,
    cells: Vec<Cell>,
    bad: Vec<bool>,
    slots: Vec<Slot>,
    /// One in this many programs, and erases, fails; 0: none.
    pub program_fails: u64,
    pub erase_fails: u64,
    /// One in this many pages is unreadable when sensed; 0: none.
    pub read_fails: u64,
    pub protected: bool,
    /// Units of data in a protected buffer that survive at most.
    pub nv_slots: Option<u32>,
    /// If false, data are not stored and reads return zeros.
    pub keep: bool,
    /// Corrected bits that the next read reports.
    pub corrected: u32,
    rng: Rng,
    /// Times at which operations began or ended.
    pub moments: Vec<Time>,
    pub programs: u64,
    pub erases: u64,
}

impl Medium {
    pub fn new(shape: Shape, seed: u64) -> Rc<RefCell<Medium>> {
        let pages = shape.dies * shape.planes * shape.blocks * shape.pages;
        Rc::new(RefCell::new(Medium {
            shape,
            cells: vec![Cell::Erased; pages as usize],
            bad: vec![false; (shape.dies * shape.planes * shape.blocks) as usize],
            slots: Vec::new(),
            program_fails: 0,
            erase_fails: 0,
            read_fails: 0,
            protected: false,
            nv_slots: None,
            keep: true,
            corrected: 0,
            rng: Rng::for_part(seed, "medium"),
            moments: Vec::new(),
            programs: 0,
            erases: 0,
        }))
    }

    fn block(&self, page: Page) -> usize {
        ((page.die * self.shape.planes + page.plane) * self.shape.blocks + page.block) as usize
    }

    fn at(&self, page: Page) -> usize {
        self.block(page) * self.shape.pages as usize + page.page as usize
    }

    pub fn set_bad(&mut self, page: Page) {
        let block = self.block(page);
        self.bad[block] = true;
    }

    pub fn bad_blocks(&self) -> usize {
        self.bad.iter().filter(|bad| **bad).count()
    }

    /// Returns true if any page or slot holds host data.
    pub fn holds_data(&self) -> bool {
        let is_data = |logical: &u32| logical & ftl::META == 0;
        let in_slots =
            self.slots.iter().filter_map(|slot| slot.tag).any(|tag| is_data(&tag.logical));
        let in_cell = |cell: &Cell| match cell {
            Cell::Done { logicals, .. } => logicals.iter().any(is_data),
            Cell::Erased | Cell::Torn => false,
        };
        in_slots || self.cells.iter().any(in_cell)
    }

    /// Returns true if no page holds anything except checkpoint roots.
    pub fn is_erased(&self) -> bool {
        let is_root = |logical: &u32| *logical == u32::MAX || logical >> 28 == ftl::META >> 28 | 2;
        self.cells.iter().all(|cell| match cell {
            Cell::Erased => true,
            Cell::Torn => false,
            Cell::Done { logicals, .. } => logicals.iter().all(is_root),
        })
    }

    /// Makes the page unreadable.
    pub fn spoil(&mut self, page: Page) {
        let at = self.at(page);
        self.cells[at] = Cell::Torn;
    }

    fn fails(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.rng.chance(1, one_in)
    }

    /// Current bytes of each unit, in the order of the superpage.
    fn gather(&self, units: &[Unit]) -> Vec<Option<Vec<u8>>> {
        let gather = |unit: &Unit| match unit.from {
            Source::Slot(slot) => Some(self.slots[slot as usize].data.clone()),
            Source::Flash(place) => match &self.cells[self.at(place.page)] {
                Cell::Done { data, .. } => data[place.unit as usize].clone(),
                other => panic!("a copy from {place:?}, which is {other:?}"),
            },
            Source::Nothing => None,
        };
        let meta = |unit: &Unit| unit.logical & ftl::META != 0;
        units.iter().map(|unit| if self.keep || meta(unit) { gather(unit) } else { None }).collect()
    }
}

pub struct Fake {
    rt: Rt,
    pub medium: Rc<RefCell<Medium>>,
    dies: Vec<Line>,
    /// Durations of a read, a program and an erase.
    spans: Option<[Span; 3]>,
    /// Calls of `read`, and pages that they sensed.
    pub read_calls: Count<u64>,
    pub parts_read: Count<u64>,
}

impl Fake {
    pub fn new(rt: &Rt, medium: &Rc<RefCell<Medium>>) -> Rc<Fake> {
        Fake::with(rt, medium, Some([Span::us(50), Span::us(600), Span::us(3000)]))
    }

    /// Flash that takes no time.
    pub fn immediate(rt: &Rt, medium: &Rc<RefCell<Medium>>) -> Rc<Fake> {
        Fake::with(rt, medium, None)
    }

    fn with(rt: &Rt, medium: &Rc<RefCell<Medium>>, spans: Option<[Span; 3]>) -> Rc<Fake> {
        let dies = medium.borrow().shape.dies;
        let dies = (0..dies).map(|_| Line::default()).collect();
        Rc::new(Fake {
            rt: rt.clone(),
            medium: medium.clone(),
            dies,
            spans,
            read_calls: Count::new(0),
            parts_read: Count::new(0),
        })
    }

    fn mark(&self) {
        self.medium.borrow_mut().moments.push(self.rt.now());
    }

    async fn until(&self, at: Time) {
        if at > self.rt.now() {
            self.rt.sleep_until(at).await;
        }
        if self.spans.is_some() {
            self.mark();
        }
    }

    /// Reserves a die: start, middle and end of the operation.
    fn turn(&self, die: u32, what: usize) -> [Time; 3] {
        let Some(spans) = self.spans else { return [self.rt.now(); 3] };
        let turn = self.dies[die as usize].reserve(self.rt.now(), spans[what]);
        [turn.begin, turn.begin + Span(spans[what].0 / 2), turn.end]
    }

    fn pages_of(&self, row: Row) -> Vec<Page> {
        let shape = self.medium.borrow().shape;
        let planes = (0..shape.planes).filter(|plane| row.blocks.planes >> plane & 1 != 0);
        let page = |plane| {
            (row.page..row.page + shape.group).map(move |page| Page {
                die: row.blocks.die,
                plane,
                block: row.blocks.block,
                page,
            })
        };
        planes.flat_map(page).collect()
    }

    fn set(&self, page: Page, cell: Cell) {
        let mut medium = self.medium.borrow_mut();
        let at = medium.at(page);
        medium.cells[at] = cell;
    }

    fn begin_program(&self, pages: &[Page]) {
        let mut medium = self.medium.borrow_mut();
        let group = medium.shape.group;
        for page in pages {
            let at = medium.at(*page);
            assert_eq!(medium.cells[at], Cell::Erased, "{page:?} is programmed twice");
            if page.page >= group {
                let before = medium.at(Page { page: page.page - group, ..*page });
                assert_ne!(medium.cells[before], Cell::Erased, "{page:?} is out of order");
            }
            let block = medium.block(*page);
            assert!(!medium.bad[block], "{page:?} is in a bad block");
        }
        for page in pages {
            let at = medium.at(*page);
            medium.cells[at] = Cell::Torn;
        }
        medium.programs += 1;
    }
}

impl Pages for Fake {
    fn shape(&self) -> Shape {
        self.medium.borrow().shape
    }

    fn is_bad(&self, block: Page) -> bool {
        let medium = self.medium.borrow();
        medium.bad[medium.block(block)]
    }

    fn mark_bad(&self, block: Page) {
        self.medium.borrow_mut().set_bad(block);
    }

    async fn read(&self, parts: &mut [Part]) {
        self.read_calls.set(self.read_calls.get() + 1);
        self.parts_read.set(self.parts_read.get() + parts.len() as u64);
        let mut last = Time::ZERO;
        for part in parts.iter() {
            last = last.max(self.turn(part.page.die, 0)[2]);
        }
        self.until(last).await;
        let mut medium = self.medium.borrow_mut();
        for part in parts {
            let one_in = medium.read_fails;
            let failed = medium.fails(one_in);
            part.seen = match &medium.cells[medium.at(part.page)] {
                Cell::Erased => PageRead::Erased,
                Cell::Torn => PageRead::Unreadable,
                Cell::Done { .. } if failed => PageRead::Unreadable,
                Cell::Done { .. } => PageRead::Good { corrected: medium.corrected, retries: 0 },
            };
            if failed && part.seen == PageRead::Unreadable {
                medium.spoil(part.page);
            }
        }
    }

    async fn program(&self, row: Row, header: Header, units: &[Unit]) -> Result<(), Failed> {
        let pages = self.pages_of(row);
        let per_page = self.shape().units as usize;
        assert_eq!(units.len(), pages.len() * per_page);
        let data = self.medium.borrow().gather(units);
        let [begin, middle, end] = self.turn(row.blocks.die, 1);
        self.until(begin).await;
        self.begin_program(&pages);
        let cell = |at: usize| {
            let of = at * per_page..(at + 1) * per_page;
            let logicals = units[of.clone()].iter().map(|unit| unit.logical).collect();
            Cell::Done { header, logicals, data: data[of].to_vec() }
        };
        // Some pages are done before others.
        self.until(middle).await;
        for (at, page) in pages.iter().enumerate() {
            let early = self.medium.borrow_mut().rng.chance(1, 3);
            if early {
                self.set(*page, cell(at));
            }
        }
        self.until(end).await;
        let failed = {
            let mut medium = self.medium.borrow_mut();
            let one_in = medium.program_fails;
            let plane = 1 << pages[0].plane;
            if medium.fails(one_in) { plane } else { 0 }
        };
        for (at, page) in pages.iter().enumerate() {
            let torn = failed >> page.plane & 1 != 0;
            self.set(*page, if torn { Cell::Torn } else { cell(at) });
        }
        if failed == 0 { Ok(()) } else { Err(Failed { planes: failed }) }
    }

    async fn erase(&self, blocks: &mut [Erase]) {
        let mut last = Time::ZERO;
        let mut begin = Time::NEVER;
        for one in blocks.iter() {
            let turn = self.turn(one.blocks.die, 2);
            (begin, last) = (begin.min(turn[0]), last.max(turn[2]));
        }
        self.until(begin).await;
        let rows = self.shape().rows();
        let group = self.shape().group;
        let all: Vec<Page> = blocks
            .iter()
            .flat_map(|one| (0..rows).map(|at| Row { blocks: one.blocks, page: at * group }))
            .flat_map(|row| self.pages_of(row))
            .collect();
        for page in &all {
            self.set(*page, Cell::Torn);
        }
        self.until(last).await;
        self.medium.borrow_mut().erases += 1;
        for one in blocks {
            let mut medium = self.medium.borrow_mut();
            let one_in = medium.erase_fails;
            if medium.fails(one_in) {
                one.failed = one.blocks.planes & one.blocks.planes.wrapping_neg();
            }
        }
        for page in &all {
            self.set(*page, Cell::Erased);
        }
    }

    fn header(&self, page: Page) -> Option<Header> {
        let medium = self.medium.borrow();
        match &medium.cells[medium.at(page)] {
            Cell::Done { header, .. } => Some(*header),
            _ => None,
        }
    }

    fn logical(&self, at: Place) -> u32 {
        let medium = self.medium.borrow();
        match &medium.cells[medium.at(at.page)] {
            Cell::Done { logicals, .. } => logicals[at.unit as usize],
            other => panic!("spare bytes of {at:?}, which is {other:?}"),
        }
    }

    fn lend(&self, at: Place, put: &mut dyn FnMut(u32, &[u8])) -> bool {
        let medium = self.medium.borrow();
        match &medium.cells[medium.at(at.page)] {
            Cell::Done { data, .. } => {
                if let Some(bytes) = &data[at.unit as usize] {
                    put(0, bytes);
                }
                true
            }
            _ => false,
        }
    }

    fn slots(&self, count: u32) {
        let mut medium = self.medium.borrow_mut();
        let unit_bytes = medium.shape.unit_bytes as usize;
        if !medium.protected {
            medium.slots.clear();
        }
        let mut kept = 0;
        for slot in &mut medium.slots {
            if std::mem::take(&mut slot.volatile) {
                slot.tag = None;
            }
            kept += u32::from(slot.tag.is_some_and(|tag| tag.logical & ftl::META == 0));
        }
        assert!(medium.nv_slots.is_none_or(|most| kept <= most), "{kept} units in NV-SRAM");
        let empty = || Slot { tag: None, data: vec![0xee; unit_bytes], volatile: false };
        medium.slots.resize_with(count as usize, empty);
    }

    fn stage(&self, slot: u32, tag: Tag, offset: u32, data: &[u8]) {
        let mut medium = self.medium.borrow_mut();
        let keep = medium.keep || tag.logical & ftl::META != 0;
        let slot = &mut medium.slots[slot as usize];
        slot.tag = Some(tag);
        if keep {
            slot.data[offset as usize..][..data.len()].copy_from_slice(data);
        }
    }

    fn stage_copy(&self, slot: u32, tag: Tag, from: Option<Place>) {
        let mut medium = self.medium.borrow_mut();
        let bytes = match from {
            None => None,
            Some(place) => match &medium.cells[medium.at(place.page)] {
                Cell::Done { data, .. } => data[place.unit as usize].clone(),
                other => panic!("a copy of {place:?}, which is {other:?}"),
            },
        };
        let slot = &mut medium.slots[slot as usize];
        slot.tag = Some(tag);
        match bytes {
            Some(bytes) => slot.data.copy_from_slice(&bytes),
            None => slot.data.fill(0),
        }
    }

    fn stage_slot(&self, slot: u32, tag: Tag, from: u32) {
        let mut medium = self.medium.borrow_mut();
        let bytes = medium.slots[from as usize].data.clone();
        let slot = &mut medium.slots[slot as usize];
        (slot.tag, slot.data) = (Some(tag), bytes);
    }

    fn release(&self, slot: u32) {
        let mut medium = self.medium.borrow_mut();
        let slot = &mut medium.slots[slot as usize];
        (slot.tag, slot.volatile) = (None, false);
        slot.data.fill(0xee);
    }

    fn preserve(&self, slot: u32, preserved: bool) {
        self.medium.borrow_mut().slots[slot as usize].volatile = !preserved;
    }

    fn kept(&self, slot: u32) -> Option<Tag> {
        self.medium.borrow().slots.get(slot as usize)?.tag
    }

    fn lend_slot(&self, slot: u32, put: &mut dyn FnMut(u32, &[u8])) {
        put(0, &self.medium.borrow().slots[slot as usize].data);
    }

    fn lay(&self, row: Row, header: Header, logicals: &[u32]) {
        let per_page = self.shape().units as usize;
        for (at, page) in self.pages_of(row).into_iter().enumerate() {
            let logicals = logicals[at * per_page..(at + 1) * per_page].to_vec();
            self.set(page, Cell::Done { header, logicals, data: vec![None; per_page] });
        }
    }
}
