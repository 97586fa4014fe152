//! Flash chips of a device: [`media::nand`] with timing and a write buffer.
//!
//! ```text
//!                       ┌ die ── planes: one operation at a time, or one on several of them
//!   channel ── wires ───┤
//!     ▲                 └ die ── a read may stop a program or an erase
//!     │ in turn
//!   reads: die, then wires, then decoder      programs: wires, then die      erases: die
//! ```
//!
//! [`Chips`] implements [`ftl::Pages`]. It enforces the rules of flash and none of the translation layer: an
//! operation that a chip would reject is a bug in the caller, and panics.
//!
//! # Exact
//!
//! - The array of a die does one operation at a time, on one plane or on pages of one number in several; with
//!   independent planes, a read in each plane. A channel's wires carry one transfer at a time, spare bytes
//!   included. A read is array, wires, decoder; each retry is the same again. A program is wires, then array;
//!   with a second register the wires are used while the array is busy.
//! - A read suspends a program or an erase, at the plan's cost and at most as often as the plan allows. Reads
//!   that arrive meanwhile join it; later turns of the die move back. No event is cancelled: a task checks
//!   the end of its turn again when that time comes (`die.rs`).
//!
//! # Simplified
//!
//! - Commands and status take no wires beside a program's own transfer. Decoders do not queue. The write
//!   buffer has no bandwidth.

mod buffer;
mod die;
mod die_fault;
mod inspect;
mod journal;
mod laid;
mod read;
mod state;
mod write;

use std::cell::{Cell, RefCell};

use ftl::{Header, Page, Pages, Part, Place, Row, Shape, Source, Steps, Tag, Unit, Unkept};
use media::nand::{Error, Geometry, Nand, PageAt, Sense, TORN_OF, Timing};
use runtime::{Line, Rt, Span, Stage, StageName, Waits, stage};

use buffer::Buffer;
use die::Die;
pub use die_fault::DieFault;
pub use inspect::DieView;
pub use state::ChipState;

/// Stages recorded by chips: waiting for a die that is busy with host operations, or with GC; the array
/// operation; waiting for a channel; the transfer; the decoder.
pub const STAGES: &[&str] =
    &["die wait", "collector at die", "die", "channel wait", "channel", "decode"];

/// Spare bytes of a page used for its header; four per unit follow.
pub const HEADER_BYTES: u32 = 12;

const PS_PER_S: u64 = 1_000_000_000_000;

/// Timing of the chips, and power-loss properties.
#[derive(Clone, Debug)]
pub struct Options {
    /// Timing model. `None`: operations take no time.
    pub timing: Option<Timing>,
    /// True if the contents of the write buffer survive a power cut.
    pub protected_buffer: bool,
    /// Slots of data that survive at most, in units. `None`: all.
    pub nv_slots: Option<u32>,
    /// True if capacitors power the chips until operations in progress complete, so that nothing is torn.
    /// Otherwise, chips with operations smaller than a word line may lose pages programmed long before: see
    /// [`media::nand::Geometry::reach`].
    pub held_up: bool,
}

/// Chips on channels, with a write buffer.
pub struct Chips {
    rt: Rt,
    options: Options,
    shape: Shape,
    nand: RefCell<Nand>,
    buffer: RefCell<Buffer>,
    /// Age of the flash at power-on, seconds.
    age_s: Cell<u32>,
    channels: Vec<Line>,
    dies: Vec<RefCell<Die>>,
    health: Vec<die_fault::Health>,
    waits: [Waits; 2],
    collector: Stage,
    decode: Stage,
    room: Room,
    filling: RefCell<laid::Filling>,
    trouble: RefCell<Option<Error>>,
    /// A page could not be read from its file.
    unread: Cell<bool>,
    /// Writes rejected since the flash journal became unwritable. `None`: it is writable.
    refused: Cell<Option<u32>>,
    /// A completed program or erase survives a power cut: the flash software has no flush.
    durable: Cell<bool>,
    counts: Cell<Counts>,
}

/// Scratch lists, reused from call to call.
#[derive(Default)]
struct Room {
    reads: RefCell<Vec<read::Reading>>,
    erases: RefCell<Vec<Vec<(u32, die::Ticket)>>>,
    page: RefCell<Vec<u8>>,
}

/// Counters of chips since power-on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages sensed, including retries.
    pub senses: u64,
    /// Read retries.
    pub retries: u64,
    /// Uncorrectable parts of reads.
    pub uncorrectable: u64,
    /// Pages programmed.
    pub programs: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Failed page programs and block erases.
    pub failures: u64,
}

impl Counts {
    /// Sum of two sets of counters.
    pub fn and(self, other: Counts) -> Counts {
        self.zip(&other, |one, two| one + two)
    }

    /// Counts after `before`.
    pub fn since(&self, before: &Counts) -> Counts {
        self.zip(before, u64::saturating_sub)
    }

    fn zip(&self, other: &Counts, of: fn(u64, u64) -> u64) -> Counts {
        Counts {
            senses: of(self.senses, other.senses),
            retries: of(self.retries, other.retries),
            uncorrectable: of(self.uncorrectable, other.uncorrectable),
            programs: of(self.programs, other.programs),
            erases: of(self.erases, other.erases),
            failures: of(self.failures, other.failures),
        }
    }
}

impl Chips {
    /// Powers on chips, all idle: new ones, or in the state after a power cut.
    ///
    /// # Errors
    /// Of [`Nand::undo_partial_programs`]. [`Error::BadSpec`]: a time is invalid; there are more than 32
    /// units or planes; or the free spare bytes of a page are fewer than [`HEADER_BYTES`] plus four per unit.
    pub fn new(rt: &Rt, state: impl Into<ChipState>, options: Options) -> Result<Chips, Error> {
        let ChipState { mut nand, buffer } = state.into();
        nand.undo_partial_programs()?;
        let shape = shape_of(&nand, options.held_up)?;
        if let Some(timing) = &options.timing {
            timing.check()?;
        }
        let waits = |turn, service| {
            let stage = |name| rt.stage(StageName::of(STAGES, name));
            Waits { turn: stage(turn), service: stage(service) }
        };
        let channels = nand.geometry().channels;
        Ok(Chips {
            rt: rt.clone(),
            options,
            shape,
            buffer: RefCell::new(buffer.unwrap_or_else(|| Buffer::new(&nand))),
            age_s: Cell::new(nand.age_s()),
            nand: RefCell::new(nand),
            channels: (0..channels).map(|_| Line::default()).collect(),
            dies: (0..shape.dies).map(|_| RefCell::default()).collect(),
            health: (0..shape.dies).map(|_| die_fault::Health::default()).collect(),
            waits: [waits("die wait", "die"), waits("channel wait", "channel")],
            collector: stage!(rt, STAGES, "collector at die"),
            decode: stage!(rt, STAGES, "decode"),
            room: Room::default(),
            filling: RefCell::default(),
            trouble: RefCell::new(None),
            unread: Cell::new(false),
            refused: Cell::new(None),
            durable: Cell::new(false),
            counts: Cell::default(),
        })
    }

    /// Inspects the current flash. Programs in progress have already taken effect, erases in progress have
    /// not.
    pub fn with_nand<T>(&self, look: impl FnOnce(&Nand) -> T) -> T {
        look(&self.nand.borrow())
    }

    /// Operations so far.
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    /// The first error of the file behind the flash, which reads then report as unreadable.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.borrow().as_ref().map(ToString::to_string)
    }

    /// Updates the age of the flash.
    fn come_of_age(&self) {
        let seconds = (self.rt.now().0 / PS_PER_S) as u32;
        self.nand.borrow_mut().age_to(self.age_s.get().saturating_add(seconds));
    }

    fn count(&self, change: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Keeps the first error that is not a chip's.
    fn note(&self, error: Error) {
        self.trouble.borrow_mut().get_or_insert(error);
    }

    fn at(&self, page: Page) -> PageAt {
        page_at(self.shape, page)
    }

    fn channel_of(&self, die: u32) -> &Line {
        &self.channels[die as usize % self.channels.len()]
    }

    /// Waits for the end of a turn, which may be delayed meanwhile. Its task has no request trace.
    async fn turn_of(&self, die: u32, ticket: die::Ticket) {
        loop {
            let turn = self.dies[die as usize].borrow().turn(ticket);
            let Some(turn) = turn else { return };
            if turn.end <= self.rt.now() {
                return self.dies[die as usize].borrow_mut().finish(self.rt.now(), ticket);
            }
            self.rt.sleep_until(turn.end).await;
        }
    }
}

/// Planes per operation; 0: all.
fn planes_at_once(timing: &Timing) -> u32 {
    u32::from(!timing.multi_plane)
}

/// Duration of an erase on `planes` planes of a die.
fn erase_time(timing: &Timing, planes: u32) -> Span {
    let times = if timing.multi_plane { 1 } else { u64::from(planes) };
    timing.command + timing.erase * times
}

/// Duration of a mount per block number: dies work in parallel, those of a channel share its wires.
fn mount_times(timing: &Timing, nand: &Nand, channels: u32) -> ftl::MountTimes {
    let geometry = nand.geometry();
    let (planes, sharing) = (geometry.planes, geometry.all_dies().div_ceil(channels));
    let turns = if timing.multi_plane { 1 } else { u64::from(planes) };
    let on_wires = |bytes: u32| on_wires(timing, u64::from(bytes * planes * sharing));
    let spare = on_wires(geometry.free_bytes) + timing.decode;
    let page = on_wires(geometry.page_bytes + geometry.spare_bytes);
    let (mut read, mut fill) = (Span::ZERO, Span::ZERO);
    for number in 0..geometry.pages() {
        let kind = usize::from(nand.cells(number).kind);
        read += (timing.command + timing.read[kind]) * turns + spare;
        fill += timing.command + timing.program[kind] * turns + page;
    }
    let tries = u64::from(nand.spec().errors.retries) + 1;
    ftl::MountTimes { read, reread: read * tries, fill }
}

/// Transfer time of `bytes` bytes on the wires.
fn on_wires(timing: &Timing, bytes: u64) -> Span {
    match bytes.checked_mul(PS_PER_S) {
        Some(ps) => Span(ps.div_ceil(timing.bytes_per_s)),
        None => {
            let ps = u128::from(bytes) * u128::from(PS_PER_S);
            Span(ps.div_ceil(u128::from(timing.bytes_per_s)) as u64)
        }
    }
}

fn page_at(shape: Shape, page: Page) -> PageAt {
    let good = page.die < shape.dies && page.plane < shape.planes && page.block < shape.blocks;
    assert!(good && page.page < shape.pages, "there is no {page:?}");
    PageAt {
        block: (page.die * shape.planes + page.plane) * shape.blocks + page.block,
        page: page.page,
    }
}

/// The layout of these chips for flash software. `held_up`: capacitors complete the operations in progress.
pub fn shape(geometry: &Geometry, held_up: bool) -> Shape {
    Shape {
        dies: geometry.all_dies(),
        planes: geometry.planes,
        blocks: geometry.blocks,
        pages: geometry.pages(),
        group: geometry.group,
        units: geometry.units(),
        unit_bytes: geometry.unit_bytes,
        reach: if held_up { 0 } else { geometry.reach().div_ceil(geometry.group) },
    }
}

/// Spare bytes of a page that the flash software uses, with `units` units per page.
pub fn spare_bytes(units: u32) -> u32 {
    HEADER_BYTES + 4 * units
}

fn shape_of(nand: &Nand, held_up: bool) -> Result<Shape, Error> {
    let geometry = nand.geometry();
    let shape = shape(geometry, held_up);
    let refuse =
        |key, found: u32, expected| Err(Error::BadSpec { key, found: found.into(), expected });
    if shape.units > 32 {
        return refuse("units of a page", shape.units, "at most 32");
    }
    if geometry.free_bytes < spare_bytes(shape.units) {
        return refuse("free_bytes", geometry.free_bytes, "12, and 4 for each unit of a page");
    }
    Ok(shape)
}

/// The planes in a mask.
fn planes_of(planes: u32) -> impl DoubleEndedIterator<Item = u32> + Clone {
    (0..32).filter(move |plane| planes >> plane & 1 != 0)
}

/// The pages of a superpage in one plane.
fn pages_of(shape: Shape, row: Row, plane: u32) -> impl DoubleEndedIterator<Item = PageAt> + Clone {
    let (die, block) = (row.blocks.die, row.blocks.block);
    (row.page..row.page + shape.group)
        .map(move |page| page_at(shape, Page { die, plane, block, page }))
}

fn undo(nand: &mut Nand, shape: Shape, row: Row) {
    for plane in planes_of(row.blocks.planes) {
        undo_plane(nand, shape, row, plane);
    }
}

fn undo_plane(nand: &mut Nand, shape: Shape, row: Row, plane: u32) {
    for at in pages_of(shape, row, plane).rev() {
        // Not programmed if its block was lost with its file.
        let _ = nand.undo_program(at);
    }
}

/// Completed fraction of the operation on the `place`-th plane of `count`, given `done` of the whole
/// operation.
fn share(done: u32, place: usize, count: u32, at_once: u32) -> u32 {
    if at_once == 0 {
        return done;
    }
    let all = u64::from(done) * u64::from(count);
    all.saturating_sub(place as u64 * u64::from(TORN_OF)).min(TORN_OF.into()) as u32
}

fn tear(nand: &mut Nand, shape: Shape, row: Row, done: u32, at_once: u32) {
    let count = row.blocks.planes.count_ones();
    for (place, plane) in planes_of(row.blocks.planes).enumerate() {
        match share(done, place, count, at_once) {
            TORN_OF => {}
            0 if at_once == 1 => undo_plane(nand, shape, row, plane),
            done => pages_of(shape, row, plane).for_each(|at| {
                // As in `undo_plane`.
                let _ = nand.tear_program(at, done);
            }),
        }
    }
}

fn tear_erase(nand: &mut Nand, shape: Shape, blocks: ftl::Blocks, done: u32, at_once: u32) {
    let count = blocks.planes.count_ones();
    for (place, plane) in planes_of(blocks.planes).enumerate() {
        let (die, block) = (blocks.die, blocks.block);
        let PageAt { block, .. } = page_at(shape, Page { die, plane, block, page: 0 });
        match share(done, place, count, at_once) {
            0 if at_once == 1 => {}
            // A failure is not reported to anyone.
            TORN_OF => drop(nand.erase(block)),
            // Has no effect on an empty bad block.
            done => drop(nand.tear_erase(block, done)),
        }
    }
}

impl Pages for Chips {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn is_bad(&self, block: Page) -> bool {
        let at = self.at(Page { page: 0, ..block });
        self.nand.borrow().is_bad(at.block)
    }

    fn mark_bad(&self, block: Page) {
        let at = self.at(Page { page: 0, ..block });
        self.nand.borrow_mut().mark_bad(at.block);
        self.commit();
    }

    async fn read(&self, parts: &mut [Part]) {
        self.come_of_age();
        match &self.options.timing {
            None => self.read_at_once(parts),
            Some(timing) => self.read_in_time(timing, parts, false).await,
        }
    }

    async fn read_for_collector(&self, parts: &mut [Part]) {
        self.come_of_age();
        match &self.options.timing {
            None => self.read_at_once(parts),
            Some(timing) => self.read_in_time(timing, parts, true).await,
        }
    }

    fn collected(&self, die: u32) -> Span {
        self.dies[die as usize].borrow().collected(self.rt.now())
    }

    async fn program(&self, row: Row, header: Header, units: &[Unit]) -> Result<(), ftl::Failed> {
        self.come_of_age();
        let mut failed = self.write_row(row, header, units);
        if self.options.timing.is_none() {
            self.programs_ended(row.blocks);
        }
        let mut kept = self.commit();
        if let Some(timing) = &self.options.timing {
            let collects = units.iter().any(|unit| matches!(unit.from, Source::Flash(_)));
            self.program_time(timing, row, collects).await;
            self.programs_ended(row.blocks);
            kept &= self.commit();
        }
        if !kept {
            failed = row.blocks.planes;
        }
        if failed == 0 { Ok(()) } else { Err(ftl::Failed { planes: failed }) }
    }

    async fn erase(&self, blocks: &mut [ftl::Erase]) {
        match &self.options.timing {
            None => blocks.iter_mut().for_each(|erase| self.erase_now(erase)),
            Some(timing) => self.erase_in_time(timing, blocks).await,
        }
    }

    fn erase_time(&self) -> Option<Span> {
        let timing = self.options.timing.as_ref()?;
        Some(erase_time(timing, self.shape.planes))
    }

    fn mount_times(&self) -> Option<ftl::MountTimes> {
        let timing = self.options.timing.as_ref()?;
        Some(mount_times(timing, &self.nand.borrow(), self.channels.len() as u32))
    }

    fn has_unread(&self) -> bool {
        self.unread.get()
    }

    fn header(&self, page: Page) -> Option<Header> {
        let at = self.at(page);
        let nand = self.nand.borrow();
        if !is_readable(&nand, at, 0) {
            return None;
        }
        let mut bytes = [0; HEADER_BYTES as usize];
        let found = nand.spare(at, 0, &mut bytes);
        self.unread.set(self.unread.get() || !found && nand.row_error(at).is_some());
        found.then(|| {
            let (sequence, erases) = bytes.split_at(8);
            Header {
                sequence: u64::from_le_bytes(sequence.try_into().expect("eight bytes")),
                erases: u32::from_le_bytes(erases.try_into().expect("four bytes")),
            }
        })
    }

    #[inline]
    fn logical(&self, at: Place) -> u32 {
        let mut bytes = [0; 4];
        let (page, nand) = (self.at(at.page), self.nand.borrow());
        let found = nand.spare(page, HEADER_BYTES + 4 * at.unit, &mut bytes);
        stop_without_row(&nand, page, found);
        u32::from_le_bytes(bytes)
    }

    fn lend(&self, at: Place, put: &mut dyn FnMut(u32, &[u8])) -> bool {
        let (page, nand) = (self.at(at.page), self.nand.borrow());
        is_readable(&nand, page, 1 << at.unit) && nand.runs(page, at.unit, put)
    }

    fn slots(&self, count: u32) {
        self.buffer.borrow_mut().slots(count);
    }

    fn stage(&self, slot: u32, tag: Tag, offset: u32, data: &[u8]) {
        self.buffer.borrow_mut().stage(slot, tag, offset, data);
    }

    fn stage_copy(&self, slot: u32, tag: Tag, from: Option<Place>) {
        let from = from.map(|place| (self.at(place.page), place.unit));
        self.buffer.borrow_mut().stage_copy(slot, tag, &self.nand.borrow(), from);
    }

    fn stage_slot(&self, slot: u32, tag: Tag, from: u32) {
        self.buffer.borrow_mut().stage_slot(slot, tag, from);
    }

    fn release(&self, slot: u32) {
        self.buffer.borrow_mut().release(slot);
    }

    fn preserve(&self, slot: u32, preserved: bool) {
        self.buffer.borrow_mut().preserve(slot, preserved);
    }

    fn kept(&self, slot: u32) -> Option<Tag> {
        self.buffer.borrow().tag(slot)
    }

    fn lend_slot(&self, slot: u32, put: &mut dyn FnMut(u32, &[u8])) {
        self.buffer.borrow().lend(slot, put);
    }

    #[inline]
    fn admits(&self) -> Result<(), Unkept> {
        self.refused.get().map_or(Ok(()), |refused| self.retry(refused))
    }

    fn persist(&self) -> Result<(), Unkept> {
        let done = self.nand.borrow_mut().sync();
        self.took(done)
    }

    fn keep_beside(&self, bytes: &[u8]) -> Result<(), Unkept> {
        self.nand.borrow_mut().keep_beside(bytes);
        self.persist()
    }

    fn percent_used(&self) -> u8 {
        self.mean_wear_percent()
    }

    fn lay(&self, row: Row, header: Header, logicals: &[u32]) {
        self.lay_row(row, header, logicals);
    }

    fn lay_steps(&self, row: Row, header: Header, chosen: &[u64], first: u32, steps: Steps) {
        let (filling, nand) = (&mut *self.filling.borrow_mut(), &mut *self.nand.borrow_mut());
        filling.lay(nand, (self.shape, row, header), chosen, first, steps);
    }
}

/// Stops the drive if a page that was sensed has left memory and can't be read again from the file of pages:
/// any other contents would be wrong data. The state has all data flushed before.
#[inline]
fn stop_without_row(nand: &Nand, at: PageAt, found: bool) {
    if !found && let Some(error) = nand.row_error(at) {
        panic!("{error}: the drive stops; flushed data are in its state; see doorbell state");
    }
}

/// Returns true if a page is readable with the maximum number of retries.
fn is_readable(nand: &Nand, at: PageAt, units: u128) -> bool {
    matches!(nand.validate(at, units, nand.spec().errors.retries), Sense::Good { .. })
}
