//! Host-directed GC: the device maps, buffers and places writes, copies and erases; the host reads the number
//! of valid units per superblock and chooses which one to collect, when, and how fast. It chooses by
//! [`ftl::policy`], as an FTL does.
//!
//! ```text
//!   device: event, space is low ──► read the table ──► choose ──► Collect ──► scanned? repeat until
//!                                        ▲                                    there is space enough
//!                                        └───────────────────────────────────────────┘
//! ```
//!
//! Device data is copied once and used as far as it is valid: a wrong count costs a bad choice. The device
//! itself ensures that no write waits for this task: it starts collecting by itself before that.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::{Buffer, Cost, HostPort};
use ftl::policy::{self, Candidate, Choice, Space, Window};
use runtime::{Either, Rng, Span, race};
use wire::BusAddr;
use wire::nvme::admin;
use wire::nvme::collect::{Collect, HostCollection, SuperblockRow, Survey};
use wire::nvme::entry::DataPointer;
use wire::nvme::features::fid;
use wire::nvme::log::lid;
use zerocopy::FromBytes;

use super::Controller;
use super::state::Core;
use crate::InitError;

/// Name of its cost: examining one superblock.
pub const COLLECTOR_COSTS: &[&str] = &["choose"];

/// Largest accepted number of superblocks.
const SUPERBLOCKS_MAX: u32 = 1 << 20;
/// Bytes of one read of the table: a page, which needs no PRP list.
const PIECE_BYTES: u64 = 4096;
const HEADER_BYTES: u64 = size_of::<Survey>() as u64;
const ROW_BYTES: u64 = size_of::<SuperblockRow>() as u64;
/// Delay before a retry when nothing could be collected. Assumed: programming a row takes at least as long.
const PAUSE: Span = Span::us(100);

/// Options of host-directed GC.
#[derive(Clone, Copy, Debug)]
pub struct CollectorOptions {
    /// Victim policy.
    pub choice: Choice,
    /// Number of superblocks' worth of space by which it starts earlier than the device would.
    pub early: u32,
    /// Windows outside of which it works only if writes would wait; none: it works at any time.
    pub window: Option<Window>,
    /// RNG seed.
    pub seed: u64,
}

/// Statistics of the collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorCounts {
    /// Events that started it.
    pub calls: u64,
    /// Bytes of the device's table that were read.
    pub read_bytes: u64,
    /// Superblocks collected at its request.
    pub collected: u64,
    /// Valid units in them.
    pub valid: u64,
    /// Requested superblocks that the device did not collect.
    pub refused: u64,
}

/// Host-directed collector of a controller's flash. It runs until the controller is shut down or gone; clones
/// share its state.
pub struct Collector<P: HostPort>(Rc<Inner<P>>);

impl<P: HostPort> Clone for Collector<P> {
    fn clone(&self) -> Collector<P> {
        Collector(self.0.clone())
    }
}

struct Inner<P: HostPort> {
    core: Rc<Core<P>>,
    port: P,
    options: CollectorOptions,
    /// Collectable superblocks, as last read.
    table: RefCell<Vec<Option<Candidate>>>,
    /// Bounce buffer for admin commands; `None` while one uses it.
    page: RefCell<Option<Buffer>>,
    rng: RefCell<Rng>,
    costs: Costs,
    counts: Cell<CollectorCounts>,
    /// GC parallelism: rows that the device's collector may have in flight.
    gc_parallelism: Cell<u32>,
    /// Threshold of the device's low-space event, in mapping units; 0: none is set.
    below: Cell<u32>,
}

struct Costs {
    submit: Cost,
    complete: Cost,
    choose: Cost,
}

enum Next {
    /// Enough space; the device sends an event when it is short.
    Wait,
    Work(Space),
}

impl<P: HostPort> Controller<P> {
    /// Starts host-directed GC on this controller, as a task on the core of `port`.
    ///
    /// # Errors
    /// The controller does not support it, or reports an invalid geometry.
    pub async fn direct_gc(
        &self,
        port: &P,
        options: CollectorOptions,
    ) -> Result<Collector<P>, InitError> {
        let inner = Rc::new(Inner {
            core: self.core().clone(),
            port: port.clone(),
            options,
            table: RefCell::default(),
            page: RefCell::new(Some(port.arena().buffer(PIECE_BYTES as usize)?)),
            rng: RefCell::new(Rng::for_part(options.seed, "host collector")),
            costs: Costs {
                submit: port.cost("submit"),
                complete: port.cost("complete"),
                choose: port.cost("choose"),
            },
            counts: Cell::default(),
            gc_parallelism: Cell::new(1),
            below: Cell::new(0),
        });
        inner.core.running().await?;
        inner.lead().await?;
        port.rt().spawn(inner.clone().work());
        Ok(Collector(inner))
    }
}

impl<P: HostPort> Collector<P> {
    /// Statistics.
    pub fn counts(&self) -> CollectorCounts {
        self.0.counts.get()
    }

    /// Bytes of host memory of its table, without the DMA page.
    pub fn memory_bytes(&self) -> u64 {
        (self.0.table.borrow().capacity() * size_of::<Option<Candidate>>()) as u64
    }
}

impl<P: HostPort> Inner<P> {
    fn count(&self, change: impl FnOnce(&mut CollectorCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    /// Runs until the controller is gone. Host-directed GC is enabled again after each reset.
    async fn work(self: Rc<Self>) {
        self.core.keep_on(PAUSE, async || self.lead().await, async || self.collect().await).await;
    }

    /// Enables host-directed GC, with the device's low-space event.
    async fn lead(&self) -> Result<(), InitError> {
        let survey = self.read(true, HEADER_BYTES).await?;
        let superblocks = survey.superblocks.get();
        if !(1..=SUPERBLOCKS_MAX).contains(&superblocks) {
            return Err(InitError::Unsupported {
                what: "the number of superblocks in log page C0h",
                found: superblocks.into(),
                expected: "1 to 1048576",
            });
        }
        {
            let mut table = self.table.borrow_mut();
            table.clear();
            table.resize(superblocks as usize, None);
        }
        self.below.set(0);
        self.notify_below(self.space(&survey).start).await
    }

    /// Sets the threshold of the device's low-space event, if it is another one. It follows the window: with
    /// that of an open window the event would be reported outside of it again after each read of the table.
    async fn notify_below(&self, start: u64) -> Result<(), InitError> {
        let below = u32::try_from(start).unwrap_or(u32::MAX).max(1);
        if self.below.get() == below {
            return Ok(());
        }
        let value = HostCollection::new().with_below(below).into_bits();
        let build = |cid| admin::set_feature(cid, fid::HOST_COLLECTION, value);
        self.command("Set Features: host-directed GC", None, build).await?;
        self.below.set(below);
        Ok(())
    }

    /// Current space and the threshold below which to collect now.
    fn space(&self, survey: &Survey) -> Space {
        let (left, hold) = (survey.left.get(), survey.hold.get());
        let window =
            self.options.window.map(|window| (window.at(self.core.rt().now()).0, window.early));
        let start = match window {
            None => self.start(survey, self.options.early),
            Some((true, early)) => self.start(survey, self.options.early + early),
            Some((false, _)) => hold,
        };
        Space { left, hold, start }
    }

    fn start(&self, survey: &Survey, early: u32) -> u64 {
        let early = u64::from(early) * u64::from(survey.superblock_units.get());
        survey.start.get().saturating_add(early).max(survey.hold.get())
    }

    /// Collects until there is enough space, then waits for an event, a reset, or a change of its windows.
    async fn collect(&self) -> Result<(), InitError> {
        let told = &self.core.events.space;
        let seen = told.version();
        match self.look().await? {
            Next::Work(space) => self.collect_one(space).await,
            Next::Wait => {
                let rt = self.core.rt();
                let event = told.changed(rt, seen);
                let is_called = match self.options.window {
                    None => {
                        event.await;
                        true
                    }
                    Some(window) => {
                        let until = window.at(rt.now()).1;
                        matches!(race(event, rt.sleep_until(until)).await, Either::First(()))
                    }
                };
                if is_called {
                    self.count(|counts| counts.calls += 1);
                }
                Ok(())
            }
        }
    }

    /// Reads as much of the table as needed.
    async fn look(&self) -> Result<Next, InitError> {
        let all = HEADER_BYTES + ROW_BYTES * self.table.borrow().len() as u64;
        let survey = self.read(true, all).await?;
        let space = self.space(&survey);
        self.notify_below(space.start).await?;
        if space.left < space.start {
            return Ok(Next::Work(space));
        }
        // This read re-arms the device's event, and its result covers what happened before.
        let space = self.space(&self.read(false, HEADER_BYTES).await?);
        Ok(if space.left < space.start { Next::Work(space) } else { Next::Wait })
    }

    /// Collects the best victim of the policy.
    async fn collect_one(&self, space: Space) -> Result<(), InitError> {
        let superblocks = self.table.borrow().len() as u32;
        self.port.spend_times(self.costs.choose, superblocks).await;
        let chosen = {
            let table = self.table.borrow();
            let rng = &mut *self.rng.borrow_mut();
            policy::victim(self.options.choice, table.iter().copied(), rng)
                .and_then(|at| Some((at as u32, table[at]?)))
        };
        let Some((superblock, Candidate { erases, .. })) = chosen else {
            self.core.rt().sleep(PAUSE).await;
            return Ok(());
        };
        let what =
            Collect { superblock, erases, rows: space.gc_parallelism(self.gc_parallelism.get()) };
        let done = self.command("Collect Superblock", None, |cid| admin::collect(cid, what)).await;
        match &done {
            Ok((result, _)) => self.count(|counts| {
                counts.collected += 1;
                counts.valid += u64::from(*result);
            }),
            Err(InitError::Refused { .. }) => self.count(|counts| counts.refused += 1),
            Err(_) => {}
        }
        done.map(|_| ())
    }

    /// Reads `bytes` bytes of the table, rounded up to whole pages if it is more than one. With `retain` the
    /// device does not re-arm its low-space event.
    async fn read(&self, retain: bool, bytes: u64) -> Result<Survey, InitError> {
        let mut header = None;
        for offset in (0..bytes).step_by(PIECE_BYTES as usize) {
            let piece = PIECE_BYTES.min(bytes - offset);
            let page = self.page.take();
            let page = match page {
                Some(page) => page,
                None => self.port.arena().buffer(PIECE_BYTES as usize)?,
            };
            let data = DataPointer::Prp { prp1: page.at(), prp2: BusAddr(0) };
            let part = (offset, piece);
            let build = |cid| admin::get_log_part(cid, lid::SUPERBLOCKS, part, retain, data);
            let (_, page) = self.command("Get Log Page: superblocks", Some(page), build).await?;
            let Some(page) = page else { continue };
            let mut from = 0;
            if offset == 0 {
                let mut bytes = [0; HEADER_BYTES as usize];
                page.copy_out(0, &mut bytes);
                let survey = Survey::read_from_bytes(&bytes).expect("of this length");
                self.gc_parallelism.set(survey.gc_parallelism.get());
                header = Some(survey);
                from = HEADER_BYTES;
            }
            self.take_rows(&page, offset, (from, piece));
            self.page.replace(Some(page));
            self.count(|counts| counts.read_bytes += piece);
        }
        header.ok_or(InitError::Reset { step: "Get Log Page: superblocks" })
    }

    /// Copies the rows of the table in this range of a page.
    fn take_rows(&self, page: &Buffer, offset: u64, (from, to): (u64, u64)) {
        let mut table = self.table.borrow_mut();
        for at in (from..to).step_by(ROW_BYTES as usize) {
            let mut bytes = [0; ROW_BYTES as usize];
            page.copy_out(at as usize, &mut bytes);
            let row = SuperblockRow::read_from_bytes(&bytes).expect("of this length");
            let superblock = (offset + at - HEADER_BYTES) / ROW_BYTES;
            if let Some(place) = table.get_mut(superblock as usize) {
                *place = (row.units.get() > 0).then(|| Candidate {
                    valid: row.valid.get(),
                    units: row.units.get(),
                    age: row.age.get().into(),
                    erases: row.erases.get(),
                });
            }
        }
    }

    /// Runs an admin command and pays its costs on this core.
    async fn command(
        &self,
        step: &'static str,
        buffer: Option<Buffer>,
        build: impl Fn(wire::CommandId) -> wire::nvme::entry::Sqe,
    ) -> Result<(u32, Option<Buffer>), InitError> {
        self.port.spend(self.costs.submit).await;
        let done = self.core.admin.execute(step, buffer, build).await;
        self.port.spend(self.costs.complete).await;
        done.map(|(cqe, buffer)| (cqe.dw0.get(), buffer))
    }
}
