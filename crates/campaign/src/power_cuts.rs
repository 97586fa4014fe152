//! Power-loss campaign: work runs in virtual time, power fails between two events, operations in progress are
//! torn, a new device mounts the flash, and an independent oracle gives the allowed contents of each block.
//!
//! The oracle is [`workload::verify::Ledger`]. Writes covered by a completed flush, and writes with FUA, must
//! be present. Deallocated blocks read as zeros (DLFEAT 1), permanently once a completed flush has covered
//! them. Any other block may hold an old or a newer version, but never a mixture: Identify reports AWUPF 0,
//! so single blocks are written atomically (NVM command set 1.0, 2.1.4).
//!
//! One power cycle in eight ends in an orderly power-off during the work instead, as at a reset or at the
//! stop of a server. After it every write and deallocation that was acknowledged must be present.
//!
//! Power cuts are grouped into *epochs* of [`EPOCH`], each with its own drive and RNG, so that repeating a
//! cut requires only the earlier ones of its epoch.

mod sequences;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use bus::sim::SimBus;
use bus::{Buffer, OutOfMemory};
use host::{BlockDevice, Deallocated, IoError, Kind};
use runtime::{Either, Log, Rng, Rt, Span, race};
use wire::Lba;
use wire::nvme::dsm::Context;
use workload::verify::{Ledger, Mismatch, Stamps};

use plan::Plan;
use world::device::{self, Clock, Device, MediumState};
use world::interfaces::{Row, of_member};
use world::pci;
use world::{self, CheckError, DriverError, RunError};

use sequences::{End, HostDisk, Left, Process};
pub use sequences::{check_sequences, repro_sequence, run_sequences};

pub const EPOCH: u64 = 100;
/// One power cycle in this many, of those with work, ends in an orderly power-off. None does with raw flash,
/// which has no buffer to flush.
const ORDERLY_EVERY: u64 = 8;

const WRITERS: u64 = 8;
/// Maximum number of blocks per write.
const BLOCKS_MAX: u64 = 32;
/// One operation in this many is a deallocation.
const TRIM_EVERY: u64 = 10;
/// Longest time between two hints, in microseconds.
const HINTS_EVERY_US: u64 = 500;
/// Maximum number of timed events of work before a power cut.
const EVENTS_MAX: u64 = 6_000;
/// The same from the start of the device, for power cuts before it is ready.
const EARLY_EVENTS_MAX: u64 = 3_000;
/// One check in this many, and the last one, reads everything that was ever written; the others read only
/// blocks that the power cut may have affected.
const WHOLE_CHECK: u64 = 4;
/// Maximum length of a check's read, bytes.
const CHECK_BYTES: u32 = 64 * 1024;

/// Range and seed of a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Campaign {
    pub seed: u64,
    /// First power cut that counts; earlier ones of its epoch are repeated.
    pub from: u64,
    pub cuts: u64,
}

/// Statistics of a clean campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survived {
    pub cuts: u64,
    /// Power cuts before the device was ready; included in `cuts`.
    pub early: u64,
    /// Orderly power-offs during the work; included in `cuts`.
    pub orderly: u64,
    pub writes: u64,
    pub trims: u64,
    pub flushes: u64,
    /// Hints given, if the plan has them used.
    pub hints: u64,
    /// Blocks read and verified.
    pub blocks: u64,
    pub collected: u64,
    /// Sequences on a state in a file; of their ends, all included in `cuts`: kills of the process, power
    /// losses of the host, and stops of the process.
    pub sequences: u64,
    pub kills: u64,
    pub hosts: u64,
    pub stops: u64,
    /// Times that the disk of the host was full, or failed to sync, for a while.
    pub disk_failures: u64,
}

/// A verification failure, and the power cut before it.
#[derive(Debug, thiserror::Error)]
#[error("after cut {cut}: {what}")]
pub struct Failure {
    /// Number of the power cut.
    pub cut: u64,
    pub what: Finding,
}

/// Cause of a [`Failure`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// The device could not be started, or the host could not reach it.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The array could not be repaired.
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("read: {0}")]
    Read(IoError),
    #[error("write: {0}")]
    Write(IoError),
    #[error("trim: {0}")]
    Trim(IoError),
    #[error("hint: {0}")]
    Hint(IoError),
    /// A flush failed. The text of the error names it.
    #[error(transparent)]
    Flush(IoError),
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A block has contents that the ledger does not allow.
    #[error(transparent)]
    Contents(#[from] Mismatch),
    /// The device, or its driver, has panicked with this message.
    #[error("the device has panicked: {0}")]
    Panicked(String),
    /// A failure in a sequence, with the ends of the lives before it.
    #[error("after {ends}: {what}")]
    InSequence { ends: String, what: Box<Finding> },
}

/// Runs a campaign; `progress` receives the number of each power cut.
///
/// # Errors
/// The first failure.
///
/// # Panics
/// If the plan's medium is not flash; call [`check`] before.
pub fn run(
    row: &'static Row,
    plan: &Plan,
    campaign: Campaign,
    mut progress: impl FnMut(u64),
) -> Result<Survived, Failure> {
    let first = campaign.from / EPOCH;
    let end = campaign.from + campaign.cuts;
    let members = row.members(plan).map_or(1, |array| array.devices);
    let fresh = (0..members).map(|number| MediumState::to_read(&of_member(plan, number)));
    let fresh: Vec<_> = fresh
        .collect::<Result<_, _>>()
        .map_err(|error| Failure { cut: campaign.from, what: RunError::into(error) })?;
    let mut survived = Survived::default();
    for epoch in first..end.div_ceil(EPOCH) {
        let fresh = fresh.iter().map(MediumState::fork).collect();
        let mut drive = Epoch::new(plan, campaign.seed, epoch, fresh);
        for cut in epoch * EPOCH..end.min((epoch + 1) * EPOCH) {
            progress(cut);
            drive.live(row, false).map_err(|what| Failure { cut: cut.saturating_sub(1), what })?;
        }
        let last = end.min((epoch + 1) * EPOCH) - 1;
        drive.live(row, true).map_err(|what| Failure { cut: last, what })?;
        survived.add(&drive.survived);
    }
    Ok(survived)
}

/// Checks that the plan supports power cuts.
///
/// # Errors
/// The unsupported or missing part of the plan.
pub fn check(row: &'static Row, plan: &Plan) -> Result<(), RunError> {
    device::check(row, plan)?;
    if plan.medium.flash.is_none() {
        let expected = "flash: other media lose nothing with their power";
        return Err(CheckError::key(plan, "medium.kind", expected).into());
    }
    if !plan.faults.is_empty() {
        return Err(CheckError::found(plan, "faults", "some", "none beside the cuts").into());
    }
    Ok(())
}

impl Survived {
    fn add(&mut self, other: &Survived) {
        self.cuts += other.cuts;
        self.early += other.early;
        self.orderly += other.orderly;
        self.writes += other.writes;
        self.trims += other.trims;
        self.flushes += other.flushes;
        self.hints += other.hints;
        self.blocks += other.blocks;
        self.collected += other.collected;
        self.sequences += other.sequences;
        self.kills += other.kills;
        self.hosts += other.hosts;
        self.stops += other.stops;
        self.disk_failures += other.disk_failures;
    }
}

/// One drive over its power cuts.
struct Epoch<'a> {
    plan: &'a Plan,
    rng: Rng,
    ledger: Rc<RefCell<Ledger>>,
    stamps: Stamps,
    /// Medium state of each member.
    kept: Vec<MediumState>,
    /// Number of times that it was powered on.
    lives: u64,
    /// For an array with a journal: the life from which on a member is missing in every other life, and its
    /// number.
    lost: Option<(u64, u32)>,
    /// The process with a state in a file, and how its lives have ended.
    process: Option<Process>,
    ends: Vec<End>,
    survived: Survived,
}

impl Epoch<'_> {
    fn new(plan: &Plan, seed: u64, epoch: u64, kept: Vec<MediumState>) -> Epoch<'_> {
        let contents = &plan.medium.contents;
        // A lower bound: an array has slightly fewer.
        let blocks = contents.capacity_bytes / u64::from(contents.block_bytes) * kept.len() as u64;
        let mut lost = Rng::for_part(seed, &format!("lost in epoch {epoch}"));
        let array = plan.array.as_ref().filter(|array| array.journal.is_some());
        let array = array.filter(|array| array.out.is_none());
        Epoch {
            plan,
            lost: array.map(|array| {
                let lives = if lost.chance(1, 2) { 3 } else { EPOCH };
                (lost.below(lives), lost.below(array.devices.into()) as u32)
            }),
            rng: Rng::for_part(seed, &format!("epoch {epoch}")),
            ledger: Rc::new(RefCell::new(Ledger::new(blocks))),
            stamps: Stamps::new(seed),
            kept,
            lives: 0,
            process: None,
            ends: Vec::new(),
            survived: Survived::default(),
        }
    }

    /// A drive whose state is in a file.
    fn of_process(
        plan: &Plan,
        seed: u64,
        number: u64,
        first: MediumState,
        process: Process,
    ) -> Epoch<'_> {
        let rng = Rng::for_part(seed, &format!("sequence {number}"));
        let new = Epoch::new(plan, seed, number, vec![first]);
        Epoch { rng, process: Some(process), ..new }
    }

    /// One power cycle: checks the contents, and then, except in the last life, writes until the power fails.
    fn live(&mut self, row: &'static Row, last: bool) -> Result<(), Finding> {
        let lived = catch_unwind(AssertUnwindSafe(|| self.live_once(row, last)));
        lived.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(Finding::Panicked(text.unwrap_or("without a word").to_owned()))
        })
    }

    /// Plan of this life. A lost member is missing at first, and then present with its stale contents, which
    /// the array must not use.
    fn plan_of_life(&self) -> Plan {
        let mut plan = self.plan.clone();
        if let (Some(array), Some((from, member))) = (&mut plan.array, self.lost) {
            let is_missing = self.lives >= from && (self.lives - from).is_multiple_of(2);
            array.out = is_missing.then_some(member);
        }
        plan
    }

    fn live_once(&mut self, row: &'static Row, last: bool) -> Result<(), Finding> {
        let rt = Rt::simulated(None, Log::Off);
        let plan = &self.plan_of_life();
        let buses = world::buses(row, &rt, plan);
        let start = |((number, bus), kept): ((u32, &SimBus), MediumState)| {
            let plan = of_member(plan, number);
            Device::start(row, bus.device(), kept, Clock::Virtual, &plan)
        };
        let devices = (0..).zip(&buses).zip(self.kept.drain(..)).map(start);
        let devices: Vec<_> = devices.collect::<Result<_, RunError>>()?;
        let early = (!last && self.rng.chance(1, 8)).then(|| self.rng.below(EARLY_EVENTS_MAX));
        let events = 1 + self.rng.below(EVENTS_MAX);
        let work_seed = self.rng.next_u64();
        let may_be_orderly = !row.is_bare() && early.is_none();
        let end = match &self.process {
            None if may_be_orderly && self.rng.chance(1, ORDERLY_EVERY) => End::Orderly,
            None => End::Cut,
            Some(_) => End::drawn(&mut self.rng, may_be_orderly),
        };
        let whole = last || self.lives.is_multiple_of(WHOLE_CHECK);
        self.lives += 1;
        let work = self.work(&rt);
        let software = Cell::new(None);
        let was_early = rt.block_on(async {
            let begin = async {
                pci::bring_up(row, &buses, plan).await?;
                let ports = buses.iter().map(|bus| bus.host(0)).collect();
                let driver = row.connect(ports, plan).await.map_err(RunError::from)?;
                driver.recover().await?;
                work.check(&driver.disk_without(work_seed), whole).await?;
                Ok::<_, Finding>(driver)
            };
            let driver = match early {
                None => begin.await?,
                Some(events) => match race(begin, rt.after_events(events)).await {
                    Either::First(driver) => driver?,
                    Either::Second(()) => return Ok::<bool, Finding>(true),
                },
            };
            if !last {
                work.start(&driver.disk(0), work_seed, plan);
                rt.after_events(rt.timed_events() + events).await;
            }
            software.set(driver.software());
            Ok(false)
        })?;
        let stats = world::flash_of(&devices).and_then(|stats| stats.software).or(software.take());
        let collected = stats.map_or(0, |stats| stats.counters.collected);
        self.power_off(devices, end)?;
        if let Some(what) = work.failed.take() {
            return Err(what);
        }
        let survived = &mut self.survived;
        survived.cuts += u64::from(!last);
        survived.early += u64::from(was_early);
        survived.orderly += u64::from(end.is_orderly() && !last);
        survived.kills += u64::from(end == End::Kill && !last);
        survived.hosts += u64::from(end == End::Host && !last);
        survived.stops += u64::from(end == End::Stop && !last);
        survived.writes += work.writes.get();
        survived.trims += work.trims.get();
        survived.flushes += work.flushes.get();
        survived.hints += work.hints.get();
        survived.blocks += work.blocks.get();
        survived.collected += collected;
        Ok(())
    }

    fn work(&self, rt: &Rt) -> Rc<Work> {
        Rc::new(Work {
            rt: rt.clone(),
            ledger: self.ledger.clone(),
            stamps: self.stamps,
            block_bytes: self.plan.medium.contents.block_bytes,
            stamps_only: self.plan.medium.contents.keep == media::contents::Keep::Stamps,
            writes: Cell::new(0),
            trims: Cell::new(0),
            flushes: Cell::new(0),
            hints: Cell::new(0),
            blocks: Cell::new(0),
            failed: RefCell::new(None),
            host_disk: self.process.as_ref().map(|process| process.disk.clone()),
        })
    }

    /// Ends a life. An orderly power-off covers what was acknowledged until it was over, as a flush.
    fn power_off(&mut self, devices: Vec<Device>, end: End) -> Result<(), Finding> {
        self.ends.push(end);
        let mut is_orderly = end.is_orderly();
        self.kept = match &mut self.process {
            Some(process) => {
                let mut end = |device| {
                    let Left { medium, is_orderly: covers } = process.end(device, end)?;
                    is_orderly &= covers;
                    Ok::<_, RunError>(medium)
                };
                devices.into_iter().map(&mut end).collect::<Result<_, _>>()?
            }
            None if is_orderly => Device::switch_off_all(devices).collect(),
            None => devices.into_iter().map(Device::cut).collect(),
        };
        let mut ledger = self.ledger.borrow_mut();
        if is_orderly {
            let all = ledger.start_flush();
            ledger.finish_flush(all);
        }
        ledger.power_cut();
        Ok(())
    }
}

/// Host work between two power cuts.
struct Work {
    rt: Rt,
    ledger: Rc<RefCell<Ledger>>,
    stamps: Stamps,
    block_bytes: u32,
    stamps_only: bool,
    writes: Cell<u64>,
    trims: Cell<u64>,
    flushes: Cell<u64>,
    hints: Cell<u64>,
    blocks: Cell<u64>,
    failed: RefCell<Option<Finding>>,
    host_disk: Option<Rc<HostDisk>>,
}

impl Work {
    /// Reads blocks that the last power cut may have affected, or everything that was ever written. The
    /// contents must be allowed by the ledger, and are taken as current.
    async fn check<D: BlockDevice>(&self, disk: &D, whole: bool) -> Result<(), Finding> {
        let most = CHECK_BYTES.min(disk.geometry().transfer_bytes_max) / self.block_bytes;
        let bytes = (most * self.block_bytes) as usize;
        let (mut from, mut scratch) = (0, vec![0; bytes]);
        let mut buffer = disk.buffer(bytes)?;
        loop {
            let next = match whole {
                true => self.ledger.borrow().next_written(from, most),
                false => self.ledger.borrow().next_uncertain(from, most),
            };
            let Some((lba, blocks)) = next else { return Ok(()) };
            let ticket = self.ledger.borrow().start_read(lba, blocks);
            let length = (blocks * self.block_bytes) as usize;
            let (_, result) = disk.read(Lba(lba), buffer.part(0, length)).await;
            result.map_err(Finding::Read)?;
            let found = &mut scratch[..length];
            buffer.copy_out(0, found);
            let mut ledger = self.ledger.borrow_mut();
            let (stamps, each) = (&self.stamps, self.block_bytes);
            ledger.check_read(&ticket, stamps, found, each, self.stamps_only)?;
            // Contents that are in memory alone are not what a kill leaves.
            if self.host_disk.as_ref().is_none_or(|disk| !disk.is_behind.get()) {
                for (lba, block) in (lba..).zip(found.chunks_exact(self.block_bytes as usize)) {
                    ledger.settle(lba, &self.stamps, block, self.stamps_only);
                }
            }
            drop(ledger);
            self.blocks.set(self.blocks.get() + u64::from(blocks));
            from = lba + u64::from(blocks);
            buffer = disk.buffer(bytes)?;
        }
    }

    /// Starts writers that run until the power fails.
    fn start<D: BlockDevice + Clone + 'static>(self: &Rc<Self>, disk: &D, seed: u64, plan: &Plan) {
        if plan.medium.flash.as_ref().is_some_and(|flash| flash.software.hints) {
            self.start_hints(disk, seed);
        }
        if let Some(disk) = &self.host_disk {
            disk.start(&self.rt, seed);
        }
        for writer in 0..WRITERS {
            let (work, disk) = (self.clone(), disk.clone());
            let rng = Rng::for_part(seed, &format!("writer {writer}"));
            self.rt.spawn(async move {
                if let Err(what) = work.write(&disk, rng, writer).await {
                    work.failed.borrow_mut().get_or_insert(what);
                }
            });
        }
    }

    /// Starts a task that gives hints for ranges at random.
    fn start_hints<D: BlockDevice + Clone + 'static>(self: &Rc<Self>, disk: &D, seed: u64) {
        let (work, disk, all) = (self.clone(), disk.clone(), disk.geometry().blocks);
        let mut rng = Rng::for_part(seed, "hints");
        self.rt.spawn(async move {
            loop {
                let lba = rng.below(all);
                let blocks = 1 + rng.below((all - lba).min(all / 8)) as u32;
                let context = Context::from_bits(rng.below(1 << 32) as u32);
                match disk.hint(Lba(lba), blocks, context).await {
                    Ok(()) => {}
                    // Not every interface has hints.
                    Err(error) if error.kind == Kind::Unsupported => return,
                    Err(error) => _ = work.failed.borrow_mut().get_or_insert(Finding::Hint(error)),
                }
                work.hints.set(work.hints.get() + 1);
                work.rt.sleep(Span::us(rng.below(HINTS_EVERY_US))).await;
            }
        });
    }

    async fn write<D: BlockDevice>(
        &self,
        disk: &D,
        mut rng: Rng,
        writer: u64,
    ) -> Result<(), Finding> {
        let all = disk.geometry().blocks;
        let longest = disk.geometry().transfer_bytes_max / self.block_bytes;
        let most = BLOCKS_MAX.min(longest.into());
        let trims = disk.deallocated() != Deallocated::Unsupported;
        let mut scratch = vec![0; BLOCKS_MAX as usize * self.block_bytes as usize];
        let buffer = disk.buffer(scratch.len())?;
        loop {
            // Many are single mapping units, some single blocks; half of them in an eighth of the drive.
            let blocks = match rng.below(4) {
                0 => 1,
                1 => 1 + rng.below(most),
                _ => (4096 / u64::from(self.block_bytes)).max(1),
            };
            let region = if rng.chance(1, 2) { all / 8 } else { all };
            let lba = rng.below((region - blocks).max(1)) / blocks * blocks;
            if rng.chance(1, TRIM_EVERY) && trims {
                // Some are long: they create superblocks that are collected without copies.
                let blocks = if rng.chance(1, 8) { rng.below(all / 16).max(1) } else { blocks };
                self.trim(disk, lba.min(all - blocks), blocks as u32).await?;
            } else {
                let bytes = &mut scratch[..blocks as usize * self.block_bytes as usize];
                self.write_once(disk, lba, bytes, &buffer, rng.chance(1, 16)).await?;
            }
            if rng.chance(1, if writer == 0 { 4 } else { 64 }) {
                let flush = self.ledger.borrow_mut().start_flush();
                match disk.flush().await {
                    Err(_) if self.may_fail() => self.ledger.borrow_mut().fail_flush(flush),
                    done => {
                        done.map_err(Finding::Flush)?;
                        self.ledger.borrow_mut().finish_flush(flush);
                        self.flushes.set(self.flushes.get() + 1);
                    }
                }
            }
        }
    }

    async fn write_once<D: BlockDevice>(
        &self,
        disk: &D,
        lba: u64,
        bytes: &mut [u8],
        buffer: &Buffer,
        fua: bool,
    ) -> Result<(), Finding> {
        let blocks = bytes.len() as u32 / self.block_bytes;
        let write = self.ledger.borrow_mut().start_write(lba, blocks);
        self.stamps.fill(bytes, lba, self.block_bytes, write.version);
        let part = buffer.part(0, bytes.len());
        part.copy_in(0, bytes);
        let (_, result) = disk.write(Lba(lba), part, fua).await;
        if result.is_err() && self.may_fail() {
            self.ledger.borrow_mut().fail_write(write);
            return Ok(());
        }
        result.map_err(Finding::Write)?;
        self.ledger.borrow_mut().finish_write(write, fua);
        self.writes.set(self.writes.get() + 1);
        Ok(())
    }

    /// True if commands may fail: the disk of the host has failed in this life.
    fn may_fail(&self) -> bool {
        self.host_disk.as_ref().is_some_and(|disk| disk.has_failed.get())
    }

    async fn trim<D: BlockDevice>(&self, disk: &D, lba: u64, blocks: u32) -> Result<(), Finding> {
        let trim = self.ledger.borrow_mut().start_trim(lba, blocks);
        let done = disk.deallocate(Lba(lba), blocks).await;
        if done.is_err() && self.may_fail() {
            self.ledger.borrow_mut().fail_write(trim);
            return Ok(());
        }
        done.map_err(Finding::Trim)?;
        self.ledger.borrow_mut().finish_write(trim, false);
        self.trims.set(self.trims.get() + 1);
        Ok(())
    }
}

/// Repro arguments of a failure: the power cut before it was found, and the following life up to its own cut.
pub fn repro_arguments(plan: &str, interface: &str, seed: u64, cut: u64) -> String {
    format!(
        "doorbell power-cuts {plan} --interface {interface} --seed {seed} --from {cut} --cuts 2"
    )
}
