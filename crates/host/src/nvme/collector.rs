//! The collector of a device's flash, led by the host: the device maps, buffers and places what is written,
//! and copies and erases; the host knows how many units of each superblock are valid, and says which is
//! collected, when, and how fast. It decides as flash software does, by [`ftl::policy`].
//!
//! ```text
//!   device: event, space is short ──► read the table ──► choose ──► Collect ──► gone over? again, until
//!                                        ▲                                      there is space enough
//!                                        └───────────────────────────────────────────┘
//! ```
//!
//! What the device says is copied once and believed as far as it makes sense: a wrong count costs a bad
//! choice. That no write waits for this task is the device's to see to: it collects by itself before that.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::{Buffer, Cost, HostPort};
use ftl::policy::{self, Candidate, Choice, Space};
use runtime::{Rng, Span};
use wire::BusAddr;
use wire::nvme::admin;
use wire::nvme::collect::{Collect, HostCollection, SuperblockRow, Survey};
use wire::nvme::entry::DataPointer;
use wire::nvme::features::fid;
use wire::nvme::log::lid;
use zerocopy::FromBytes;

use super::Controller;
use super::controller::Core;
use crate::InitError;

/// The costs that it is asked for: a superblock that is looked at.
pub const COLLECTOR_COSTS: &[&str] = &["choose"];

/// The most superblocks of a device that is believed.
const SUPERBLOCKS_MAX: u32 = 1 << 20;
/// Bytes of one read of the table: a page, which needs no list.
const PIECE_BYTES: u64 = 4096;
const HEADER_BYTES: u64 = size_of::<Survey>() as u64;
const ROW_BYTES: u64 = size_of::<SuperblockRow>() as u64;
/// Before it is tried again where nothing could be collected. Assumed: a row is programmed in no less.
const PAUSE: Span = Span::us(100);

/// How the host leads.
#[derive(Clone, Copy, Debug)]
pub struct CollectorOptions {
    /// How it chooses.
    pub choice: Choice,
    /// Superblocks' worth of space by which it begins sooner than the device would.
    pub early: u32,
    /// The seed of its chance.
    pub seed: u64,
}

/// What it has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectorCounts {
    /// Events that called it.
    pub calls: u64,
    /// Bytes of the device's table that were read.
    pub read_bytes: u64,
    /// Superblocks that were collected as it said.
    pub collected: u64,
    /// Units that were valid in them.
    pub valid: u64,
    /// Superblocks that it named and the device did not collect.
    pub refused: u64,
}

/// The collector of a controller's flash, led by its host. It works until the controller is shut down or
/// gone; clones are the same.
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
    /// What could be collected, as it was last read.
    table: RefCell<Vec<Option<Candidate>>>,
    /// Where the device writes what it is asked for, while nobody asks.
    page: RefCell<Option<Buffer>>,
    rng: RefCell<Rng>,
    costs: Costs,
    counts: Cell<CollectorCounts>,
    /// Rows of the device's collector that may be under way.
    gc_parallelism: Cell<u32>,
}

struct Costs {
    submit: Cost,
    complete: Cost,
    choose: Cost,
}

/// What is to be done next.
enum Next {
    /// There is space enough, and the device tells when there is not.
    Wait,
    Work(Space),
}

impl<P: HostPort> Controller<P> {
    /// Leads the collector of this controller's flash from now on, as a task on this port's core.
    ///
    /// # Errors
    /// The controller has nothing to be led, or says of it what makes no sense.
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
        });
        inner.core.running().await?;
        inner.lead().await?;
        port.rt().spawn(inner.clone().work());
        Ok(Collector(inner))
    }
}

impl<P: HostPort> Collector<P> {
    /// What it has done so far.
    pub fn counts(&self) -> CollectorCounts {
        self.0.counts.get()
    }

    /// Bytes of host memory that its table takes, beside a page that the device can reach.
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

    /// Until the controller is gone. After a reset the device has to be told anew that somebody leads.
    async fn work(self: Rc<Self>) {
        let core = &self.core;
        let mut resets = core.health.resets.get();
        while core.running().await.is_ok() {
            let now = core.health.resets.get();
            let led = if now == resets { Ok(()) } else { self.lead().await };
            resets = now;
            let done = match led {
                Ok(()) => self.collect().await,
                Err(error) => Err(error),
            };
            match done {
                // The next round waits until the controller is back.
                Ok(()) | Err(InitError::Reset { .. }) => {}
                Err(InitError::Refused { .. } | InitError::TimedOut { .. }) => {
                    core.rt().sleep(PAUSE).await;
                }
                Err(_) => return,
            }
        }
    }

    /// Tells the device that the host leads, and from when on it wants to be told that space is short.
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
        let below = u32::try_from(self.space(&survey).start).unwrap_or(u32::MAX).max(1);
        let value = HostCollection::new().with_below(below).into_bits();
        let build = |cid| admin::set_feature(cid, fid::HOST_COLLECTION, value);
        self.command("Set Features: who leads the collector", None, build).await.map(|_| ())
    }

    /// Space as it is, and from when on to collect.
    fn space(&self, survey: &Survey) -> Space {
        let early = u64::from(self.options.early) * u64::from(survey.superblock_units.get());
        let (left, hold) = (survey.left.get(), survey.hold.get());
        Space { left, hold, start: survey.start.get().saturating_add(early).max(hold) }
    }

    /// Collects until there is space enough, then waits for the device to call, or for a reset.
    async fn collect(&self) -> Result<(), InitError> {
        let told = &self.core.events.space;
        let seen = told.version();
        match self.look().await? {
            Next::Work(space) => self.collect_one(space).await,
            Next::Wait => {
                told.changed(self.core.rt(), seen).await;
                self.count(|counts| counts.calls += 1);
                Ok(())
            }
        }
    }

    /// Reads the table as far as it is needed.
    async fn look(&self) -> Result<Next, InitError> {
        let all = HEADER_BYTES + ROW_BYTES * self.table.borrow().len() as u64;
        let survey = self.read(true, all).await?;
        let space = self.space(&survey);
        if space.left < space.start {
            return Ok(Next::Work(space));
        }
        // From here on the device may call; what came before is seen by this.
        let space = self.space(&self.read(false, HEADER_BYTES).await?);
        Ok(if space.left < space.start { Next::Work(space) } else { Next::Wait })
    }

    /// The one that gains most, by the policy.
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

    /// Reads `bytes` bytes of the table, rounded up to whole pages where it is more than one; `retain`: the
    /// device is not to tell anew that space is short.
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

    /// Takes over the rows of a piece of the table that lies in these bytes of a page.
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

    /// A command of the admin queue, and what it costs its core.
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
