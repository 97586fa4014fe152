//! Sequences of power cuts, kills, stops and power losses of the host on a state in a file, whose disk is
//! full at times or fails to sync: each finds the result of the one before.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use media::files::{Fault, Faults, Files};
use media::nand::power_loss;
use runtime::{Rng, Rt, Span};

use ftl::Cache;
use plan::{Plan, Start};
use world::device::{Device, MediumState};
use world::interfaces::Row;
use world::{CheckError, RunError};

use super::{Campaign, Epoch, Failure, Finding, Survived};

/// Maximum number of lives in a sequence, after the first two.
const LIVES_MAX: u64 = 5;

/// Memory for the pages of a drive whose pages are in a file.
const RESIDENT_BYTES: u64 = 1 << 20;

/// End of a life: of the drive alone, or of its process or host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The power of the drive is cut; its process goes on.
    Cut,
    /// An orderly power-off; the process goes on.
    Orderly,
    /// An orderly power-off, and the end of the process.
    Stop,
    /// The process is killed: the files have all that it wrote.
    Kill,
    /// The host loses its power: the files have all that was synced, and any part of the rest.
    Host,
}

impl End {
    pub(super) fn is_orderly(self) -> bool {
        matches!(self, End::Orderly | End::Stop)
    }

    pub(super) fn drawn(rng: &mut Rng, may_be_orderly: bool) -> End {
        match rng.below(10) {
            8 if may_be_orderly => End::Orderly,
            9 if may_be_orderly => End::Stop,
            3..6 => End::Kill,
            6..8 => End::Host,
            _ => End::Cut,
        }
    }
}

/// One life in this many has a disk that fails at times.
const FAILING_EVERY: u64 = 3;
/// Longest time between two changes of a failing disk, in microseconds.
const FAILING_US: u64 = 2_000;
/// Calls that succeed before the first that fails, at most.
const CALLS_MAX: u64 = 40;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The disk that the files of a drive are on.
#[derive(Default)]
pub(super) struct HostDisk {
    faults: Arc<Faults>,
    fails: Cell<bool>,
    failures: Cell<u64>,
    /// It has failed since the start of this process.
    pub(super) has_failed: Cell<bool>,
    /// The result of the last power cut is in memory alone.
    pub(super) is_behind: Cell<bool>,
}

impl HostDisk {
    fn fail(&self, rng: &mut Rng) {
        let fault = if rng.chance(2, 3) { Fault::Full(ENOSPC) } else { Fault::Sync(EIO) };
        self.faults.fail(rng.below(CALLS_MAX), u64::MAX, fault);
        self.fails.set(true);
        self.failures.set(self.failures.get() + 1);
        self.has_failed.set(true);
    }

    fn heal(&self) {
        self.faults.heal();
        self.fails.set(false);
    }

    /// Fails and heals at random times until the power fails, in some lives.
    pub(super) fn start(self: &Rc<Self>, rt: &Rt, seed: u64) {
        let mut rng = Rng::for_part(seed, "disk of the host");
        if !rng.chance(1, FAILING_EVERY) {
            return;
        }
        let (disk, task) = (self.clone(), rt.clone());
        rt.spawn(async move {
            loop {
                task.sleep(Span::us(rng.below(FAILING_US))).await;
                if !disk.fails.get() {
                    disk.fail(&mut rng);
                } else if rng.chance(2, 3) {
                    disk.heal();
                }
            }
        });
    }
}

/// Result of the end of a life.
pub(super) struct Left {
    pub(super) medium: MediumState,
    /// An orderly end that covers all that was acknowledged, as a flush.
    pub(super) is_orderly: bool,
}

/// The files of a drive, removed at its end.
pub(super) struct Process {
    folder: PathBuf,
    plan: Plan,
    rng: Rng,
    pub(super) disk: Rc<HostDisk>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Left-overs among temporary files must not hide a failure.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Process {
    /// Plan and files of a sequence. In one of two, pages are in a file.
    fn new(plan: &Plan, seed: u64, number: u64) -> Result<Process, RunError> {
        let mut rng = Rng::for_part(seed, &format!("files of sequence {number}"));
        let name = format!("doorbell-sequences-{}-{seed}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).map_err(RunError::of)?;
        let mut plan = plan.clone();
        if let Some(flash) = &mut plan.medium.flash {
            flash.state = Some(folder.join("drive"));
        }
        if plan.medium.resident_bytes.is_none() && rng.chance(1, 2) {
            plan.medium.resident_bytes = Some(RESIDENT_BYTES);
        }
        Ok(Process { folder, plan, rng, disk: Rc::default() })
    }

    /// Starts a process on the files.
    fn start(&self) -> Result<MediumState, RunError> {
        let files = Files::failing(self.disk.faults.clone());
        let mut kept = MediumState::on(&self.plan, &files)?;
        kept.keep_journal(&self.plan)?;
        Ok(kept)
    }

    /// Ends a life, and returns the medium of the next one. A new process finds a disk that works.
    pub(super) fn end(&mut self, device: Device, end: End) -> Result<Left, RunError> {
        let (disk, mut is_orderly) = (self.disk.clone(), end.is_orderly());
        // Work goes on while the drive is switched off, and so do the failures of the disk.
        let may_fail = |done: Result<(), RunError>| match done {
            Err(_) if disk.has_failed.get() => Ok(false),
            done => done.map(|()| true),
        };
        let medium = match end {
            End::Cut => Some(device.cut()),
            End::Orderly => {
                let mut kept = device.switch_off();
                is_orderly &= may_fail(kept.keep_journal(&self.plan))?;
                Some(kept)
            }
            End::Stop => {
                is_orderly &= may_fail(device.switch_off().save(&self.plan))?;
                None
            }
            End::Kill => {
                device.abandon();
                None
            }
            End::Host => {
                device.abandon();
                // A sync may have succeeded whose record had no room.
                if !disk.has_failed.get() {
                    power_loss(&self.folder.join("drive"), &mut self.rng).map_err(RunError::of)?;
                }
                None
            }
        };
        disk.is_behind.set(medium.as_ref().is_some_and(MediumState::is_behind_its_file));
        if medium.is_none() || self.rng.chance(1, 2) {
            disk.heal();
        }
        disk.has_failed.set(disk.has_failed.get() && medium.is_some());
        let medium = medium.map_or_else(|| self.start(), Ok)?;
        Ok(Left { medium, is_orderly })
    }
}

/// Checks that the plan's drive can have a state in a file.
///
/// # Errors
/// The key that prevents it.
pub fn check_sequences(row: &'static Row, plan: &Plan) -> Result<(), RunError> {
    let refuse = |key, expected| Err(CheckError::key(plan, key, expected).into());
    let flash = plan.medium.flash.as_ref();
    if plan.medium.bridge.is_some() {
        return refuse("medium.bridge", "none: its state has no file");
    }
    if row.members(plan).is_some_and(|array| array.devices > 1) {
        return refuse("array", "one device");
    }
    if flash.is_some_and(|flash| flash.software.cache == Cache::Protected) {
        return refuse(
            "medium.flash.cache",
            "volatile or through: the state lacks the write buffer",
        );
    }
    if flash.is_some_and(|flash| flash.state.is_some() || flash.start != Start::Fresh) {
        return refuse("medium.flash", "no state, and start = \"fresh\"");
    }
    Ok(())
}

/// Repro arguments of a failure.
pub fn repro_sequence(plan: &str, interface: &str, seed: u64, number: u64) -> String {
    format!(
        "doorbell power-cuts {plan} --interface {interface} --seed {seed} --from {number} --sequences 1"
    )
}

/// Runs sequences; `progress` receives the number of each. A sequence has the same lives in every campaign of
/// this seed.
///
/// # Errors
/// The first failure.
pub fn run_sequences(
    row: &'static Row,
    plan: &Plan,
    campaign: Campaign,
    mut progress: impl FnMut(u64),
) -> Result<Survived, Failure> {
    let mut survived = Survived::default();
    for number in campaign.from..campaign.from + campaign.cuts {
        progress(number);
        let failed = |what| Failure { cut: number, what };
        let begun = Process::new(plan, campaign.seed, number)
            .and_then(|process| Ok((process.start()?, process)));
        let (first, process) = begun.map_err(|error| failed(error.into()))?;
        let plan = process.plan.clone();
        let mut drive = Epoch::of_process(&plan, campaign.seed, number, first, process);
        let lives = 2 + drive.rng.below(LIVES_MAX);
        for life in 0..=lives {
            let lived = drive.live(row, life == lives);
            lived.map_err(|what| failed(drive.after(what)))?;
        }
        survived.add(&drive.survived);
        let disk = drive.process.as_ref().map(|process| process.disk.failures.get());
        survived.disk_failures += disk.unwrap_or_default();
        survived.sequences += 1;
    }
    Ok(survived)
}

impl Epoch<'_> {
    /// The failure, with the ends of the lives before it.
    fn after(&self, what: Finding) -> Finding {
        let ends = self.ends.iter().map(|end| format!("{end:?}").to_lowercase());
        Finding::InSequence { ends: ends.collect::<Vec<_>>().join(", "), what: Box::new(what) }
    }
}
