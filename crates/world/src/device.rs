//! The device's end of a world: its medium, its front end and its faults. They are of the same types with
//! faults and without: a plan without any costs a few branches on the way of a command, which always go the
//! same way.

mod stats;

use std::path::Path;
use std::rc::Rc;

use ::device::bridge::Bridge;
use ::device::drive::Drive;
use ::device::faults::{Faults, What};
use ::device::flash::{ChipState, Chips};
use ftl::{Asleep, Options, Pages};
use media::contents::Keep;
use media::nand::{Lock, Nand, Spec};
use media::{Contents, Faulty, Media};
use runtime::Rt;

use crate::RunError;
use crate::interfaces::{DeviceSide, Front, Row, Shared};
use crate::medium::Medium;
use crate::precondition;
use plan::{Flash, MediumPace, Plan, Start};
pub use stats::FlashStats;

/// Which clock a device runs by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Virtual time: its medium takes the time of its model.
    Virtual,
    /// The wall's: as the plan says.
    Wall,
}

/// What a medium holds while no device has it.
pub enum MediumState {
    /// Blocks of memory or of an image.
    Blocks(Contents),
    Flash(Box<FlashState>),
}

pub struct FlashState {
    remains: ChipState,
    label: Vec<u8>,
    /// Its software, if it need not be mounted.
    asleep: Option<Asleep>,
    /// Behind a bridge, that of the other controllers.
    others: Vec<ChipState>,
}

/// What a device stands on.
enum DeviceBacking {
    Medium(Medium),
    /// Flash whose software is the host's.
    Bare(Rc<Chips>),
}

/// A device that runs, in the tasks of its executor.
pub struct Device {
    backing: DeviceBacking,
    faults: Option<Rc<Faults>>,
    rt: Rt,
}

/// What the interface and the plan ask of each other is there.
pub fn check(row: &'static Row, plan: &Plan) -> Result<(), RunError> {
    (row.check)(plan).map_err(RunError)?;
    if plan.array.is_some() && (row.members)(plan).is_none() {
        let (origin, name) = (&plan.origin, row.name);
        return Err(RunError(format!(
            "{origin}: array: found one, expected none: by {name}, here, there is one device"
        )));
    }
    if !plan.faults.is_empty() && !row.faults {
        let (origin, name) = (&plan.origin, row.name);
        let expected = "none: faults strike no commands of this interface";
        return Err(RunError(format!(
            "{origin}: faults: found some, expected {expected} ({name})"
        )));
    }
    if plan.host.queue_depth > row.depth_max {
        let (origin, found, most) = (&plan.origin, plan.host.queue_depth, row.depth_max);
        return Err(RunError(format!(
            "{origin}: host.queue_depth: found {found}, expected at most {most} ({})",
            row.name
        )));
    }
    check_dies(plan)
}

/// The dies that fall ill are there.
fn check_dies(plan: &Plan) -> Result<(), RunError> {
    let dies = plan.medium.flash.as_ref().map_or(0, |flash| flash.spec.geometry.all_dies());
    let dies = dies * plan.medium.bridge.map_or(1, |bridge| bridge.controllers);
    for (number, fault) in plan.faults.iter().enumerate() {
        let What::Die { die, .. } = fault.what else { continue };
        if die >= dies {
            let expected = match dies {
                0 => "a medium of flash: others have no dies".to_owned(),
                dies => format!("0 to {}", dies - 1),
            };
            let origin = &plan.origin;
            return Err(RunError(format!(
                "{origin}: faults.{number}.die: found {die}, expected {expected}"
            )));
        }
    }
    Ok(())
}

/// The software of a plan's flash.
pub fn software(plan: &Plan, flash: &Flash) -> Options {
    Options { seed: plan.run.seed, ..flash.software.clone() }
}

/// Chips of a plan, switched on.
pub fn chips(
    rt: &Rt,
    flash: &Flash,
    remains: ChipState,
    modelled: bool,
) -> Result<Rc<Chips>, RunError> {
    Ok(Rc::new(Chips::new(rt, remains, flash.options(modelled)).map_err(RunError::of)?))
}

impl MediumState {
    /// What a plan's medium holds before its first device: what its file says, or what it has been
    /// through. A file of flash is locked as long as this or a device that it has gone into lives.
    ///
    /// # Errors
    /// The file can't be used, or another process uses it, or there is no room.
    pub fn new(plan: &Plan) -> Result<MediumState, RunError> {
        MediumState::locked(plan, Lock::exclusive)
    }

    /// The same, to be changed in memory alone: others may do so at the same time.
    ///
    /// # Errors
    /// As [`new`](MediumState::new).
    pub fn to_read(plan: &Plan) -> Result<MediumState, RunError> {
        MediumState::locked(plan, Lock::shared)
    }

    fn locked(
        plan: &Plan,
        lock: fn(&Path) -> Result<Lock, media::nand::Error>,
    ) -> Result<MediumState, RunError> {
        let state = plan.medium.flash.as_ref().and_then(|flash| flash.state.as_ref());
        // Before anything is looked at: another may be changing it.
        let lock = state.map(|path| lock(path)).transpose().map_err(RunError::of)?;
        let mut kept = MediumState::unlocked(plan)?;
        if let (MediumState::Flash(kept), Some(lock)) = (&mut kept, lock) {
            kept.remains.nand_mut().hold(lock);
        }
        Ok(kept)
    }

    fn unlocked(plan: &Plan) -> Result<MediumState, RunError> {
        let Some(flash) = &plan.medium.flash else {
            let contents = Contents::new(plan.medium.contents.clone()).map_err(RunError::of)?;
            return Ok(MediumState::Blocks(contents));
        };
        let spec = Spec { seed: plan.run.seed, ..flash.spec.clone() };
        if let Some(path) = flash.state.as_ref().filter(|path| path.exists()) {
            let (mut nand, label) = Nand::load_from(path).map_err(RunError::of)?;
            check_chips(path, nand.spec(), &spec)?;
            let replayed = nand.replay(path, flash.held_up).map_err(RunError::of)?;
            return Ok(MediumState::flash(nand, replayed.beside.unwrap_or(label)));
        }
        let others = (1..plan.medium.bridge.map_or(1, |bridge| u64::from(bridge.controllers)))
            .map(|number| Nand::new(Spec { seed: spec.seed + number, ..spec.clone() }))
            .map(|nand| nand.map(ChipState::from).map_err(RunError::of))
            .collect::<Result<Vec<_>, _>>()?;
        let nand = Nand::new(spec).map_err(RunError::of)?;
        match flash.start {
            Start::Fresh => Ok(MediumState::behind_bridge(nand, Vec::new(), others)),
            start => precondition::to(plan, flash, nand, start),
        }
    }

    /// Flash in the same state, for as little memory as they do not share; what a buffer holds beside it is
    /// left out, and its software is to be mounted.
    ///
    /// # Panics
    /// If it is no flash.
    pub fn fork(&self) -> MediumState {
        match self {
            MediumState::Blocks(_) => panic!("only flash can be forked"),
            MediumState::Flash(kept) => {
                let fork = |remains: &ChipState| ChipState::from(remains.nand().fork());
                let others = kept.others.iter().map(fork).collect();
                MediumState::behind_bridge(fork(&kept.remains), kept.label.clone(), others)
            }
        }
    }

    pub(crate) fn flash(remains: impl Into<ChipState>, label: Vec<u8>) -> MediumState {
        MediumState::asleep(remains, label, None)
    }

    pub(crate) fn asleep(
        remains: impl Into<ChipState>,
        label: Vec<u8>,
        asleep: Option<Asleep>,
    ) -> MediumState {
        let (remains, others) = (remains.into(), Vec::new());
        MediumState::Flash(Box::new(FlashState { remains, label, asleep, others }))
    }

    fn behind_bridge(
        remains: impl Into<ChipState>,
        label: Vec<u8>,
        others: Vec<ChipState>,
    ) -> MediumState {
        let remains = remains.into();
        MediumState::Flash(Box::new(FlashState { remains, label, asleep: None, others }))
    }

    /// Writes flash into its file, if the plan has one.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn save(&mut self, plan: &Plan) -> Result<(), RunError> {
        let path = plan.medium.flash.as_ref().and_then(|flash| flash.state.as_ref());
        match (self, path) {
            (MediumState::Flash(kept), Some(path)) => {
                kept.remains.nand_mut().save(path, &kept.label).map_err(RunError::of)
            }
            _ => Ok(()),
        }
    }
}

/// A journal beside a state goes into it when it is longer, in bytes.
const JOURNAL_BYTES_MAX: u64 = 256 << 20;

impl MediumState {
    /// Writes flash into its file, if the plan has one, and keeps a journal beside it from now on, so that a
    /// process that is killed leaves what a power cut would. Flash that has such a journal already goes on
    /// with it, and only what has changed is written.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep_journal(&mut self, plan: &Plan) -> Result<(), RunError> {
        let path = plan.medium.flash.as_ref().and_then(|flash| flash.state.as_ref());
        if let (MediumState::Flash(kept), Some(path)) = (self, path) {
            let nand = kept.remains.nand_mut();
            nand.keep_journal(path, &kept.label, JOURNAL_BYTES_MAX).map_err(RunError::of)?;
        }
        Ok(())
    }
}

impl Device {
    /// A device with this medium, at this port.
    ///
    /// # Errors
    /// The medium can't be used as the plan says.
    pub fn start<P: DeviceSide>(
        row: &'static Row,
        port: P,
        kept: MediumState,
        clock: Clock,
        plan: &Plan,
    ) -> Result<Device, RunError> {
        let rt = port.rt().clone();
        let kept = match kept {
            MediumState::Flash(kept) if row.bare => {
                return Device::bare(row, port, *kept, clock, plan);
            }
            kept => kept,
        };
        let front = front::<P>(row)?;
        let (medium, dies) = Device::medium(&rt, kept, clock, plan)?;
        let faults = Faults::start(&rt, &plan.faults, plan.run.seed);
        on_die_fault(&faults, &dies);
        let store = Rc::new(Faulty::new(&rt, Rc::new(medium.clone()), faults.harm.clone()));
        (front.start)(port, store, plan, &faults);
        let faults = (!plan.faults.is_empty()).then_some(faults);
        Ok(Device { backing: DeviceBacking::Medium(medium), faults, rt })
    }

    /// One with this medium for several hosts, so many at most; none of its controllers is there yet.
    ///
    /// # Errors
    /// The medium can't be used as the plan says, or the plan or the interface is of one host.
    pub fn share(
        row: &'static Row,
        rt: &Rt,
        kept: MediumState,
        plan: &Plan,
        hosts: u16,
    ) -> Result<(Device, Shared), RunError> {
        let (medium, _) = Device::medium(rt, kept, Clock::Wall, plan)?;
        let harm = Faults::start(rt, &[], plan.run.seed).harm.clone();
        let store = Rc::new(Faulty::new(rt, Rc::new(medium.clone()), harm));
        let Some(shared) = (row.share)(store, plan, hosts) else {
            return Err(RunError(format!("interface {}: several hosts can't share one", row.name)));
        };
        Ok((
            Device { backing: DeviceBacking::Medium(medium), faults: None, rt: rt.clone() },
            shared,
        ))
    }

    /// Makes what is in its buffers durable, as far as that goes.
    pub async fn flush(&self) {
        // What can't be made durable is lost, as it would be in any SSD.
        if let DeviceBacking::Medium(medium) = &self.backing {
            let _ = media::Media::flush(medium).await;
        }
    }

    /// What it stands on, and the chips whose dies may fall ill.
    fn medium(
        rt: &Rt,
        kept: MediumState,
        clock: Clock,
        plan: &Plan,
    ) -> Result<(Medium, Vec<Rc<Chips>>), RunError> {
        Ok(match kept {
            MediumState::Flash(kept) if plan.medium.bridge.is_some() => {
                bridged(rt, *kept, clock, plan)?
            }
            MediumState::Blocks(contents) => {
                let blocks = plan.start_blocks(rt, contents, is_modelled(clock, plan));
                (Medium::Blocks(blocks.map_err(RunError::of)?), Vec::new())
            }
            MediumState::Flash(kept) => {
                let flash = flash_of(plan);
                let FlashState { remains, label, asleep, others: _ } = *kept;
                let chips = chips(rt, flash, remains, is_modelled(clock, plan))?;
                let (software, keep) = (software(plan, flash), plan.medium.contents.keep);
                let on = chips.clone();
                let drive = match asleep {
                    None => Drive::start(rt, on, software, keep, label),
                    Some(asleep) => Drive::wake(rt, on, software, keep, label, asleep),
                };
                (Medium::Flash { drive, chips: chips.clone() }, vec![chips])
            }
        })
    }

    /// Bare flash: its software is the host's, and so is what it may have known of it.
    fn bare<P: DeviceSide>(
        row: &'static Row,
        port: P,
        kept: FlashState,
        clock: Clock,
        plan: &Plan,
    ) -> Result<Device, RunError> {
        let rt = port.rt().clone();
        let chips = chips(&rt, flash_of(plan), kept.remains, is_modelled(clock, plan))?;
        chips.make_operations_durable();
        (front(row)?.start_bare)(port, chips.clone(), plan);
        Ok(Device { backing: DeviceBacking::Bare(chips), faults: None, rt })
    }

    /// Its faults, if the plan has any.
    pub fn faults(&self) -> Option<&Rc<Faults>> {
        self.faults.as_ref()
    }

    /// How often each of its faults has struck.
    pub fn fault_counts(&self) -> Vec<(String, u64)> {
        self.faults.as_ref().map_or_else(Vec::new, |faults| faults.counts())
    }

    /// What its flash has done; none: it is none, or was never mounted.
    pub fn flash_stats(&self) -> Option<FlashStats> {
        match &self.backing {
            DeviceBacking::Medium(Medium::Blocks(_)) => None,
            DeviceBacking::Medium(Medium::Flash { drive, chips }) => {
                Some(FlashStats::of(chips, Some(drive.mounted()?.stats())))
            }
            DeviceBacking::Medium(Medium::Bridged { bridge, chips }) => {
                let each = bridge.controllers().zip(chips);
                let mut all = each.map(|(drive, chips)| {
                    Some(FlashStats::of(chips, Some(drive.mounted()?.stats())))
                });
                let first = all.next().flatten()?;
                all.try_fold(first, |sum, one| Some(sum.and(one?)))
            }
            DeviceBacking::Bare(chips) => Some(FlashStats::of(chips, None)),
        }
    }

    /// Whether its link has gone down.
    pub fn is_down(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.is_down())
    }

    /// Waits until its link goes down: for ever, where nothing takes it down.
    pub async fn link_down(&self, rt: &Rt) {
        match &self.faults {
            Some(faults) => faults.link_down(rt).await,
            None => core::future::pending().await,
        }
    }

    /// Switches it off in order: what is in its buffers becomes durable first. Gives what its medium
    /// holds.
    pub fn switch_off(self) -> MediumState {
        if let DeviceBacking::Medium(Medium::Flash { drive, .. }) = &self.backing {
            // What can't be made durable is lost, as it would be in any SSD.
            let _ = self.rt.block_on(drive.flush());
        }
        if let DeviceBacking::Medium(Medium::Bridged { bridge, .. }) = &self.backing {
            let _ = self.rt.block_on(bridge.flush());
        }
        self.cut()
    }

    /// Takes its power away, now. Gives what its medium holds then.
    ///
    /// # Panics
    /// If something outside its executor holds a part of it.
    pub fn cut(self) -> MediumState {
        self.rt.drop_tasks();
        const HELD: &str = "the device's tasks are gone";
        match self.backing {
            DeviceBacking::Medium(Medium::Blocks(medium)) => {
                MediumState::Blocks(medium.into_contents().expect(HELD))
            }
            DeviceBacking::Medium(Medium::Flash { drive, chips }) => {
                let label = Rc::try_unwrap(drive).ok().expect(HELD).into_label();
                let chips = Rc::try_unwrap(chips).ok().expect(HELD);
                MediumState::flash(chips.cut(), label)
            }
            DeviceBacking::Medium(Medium::Bridged { bridge, chips }) => {
                let drives = Rc::try_unwrap(bridge).ok().expect(HELD).into_controllers();
                let labels = drives
                    .into_iter()
                    .map(|drive| Rc::try_unwrap(drive).ok().expect(HELD).into_label());
                let label = labels.collect::<Vec<_>>().swap_remove(0);
                let cut = |chips: Rc<Chips>| Rc::try_unwrap(chips).ok().expect(HELD).cut();
                let mut remains: Vec<ChipState> = chips.into_iter().map(cut).collect();
                let first = remains.remove(0);
                MediumState::behind_bridge(first, label, remains)
            }
            DeviceBacking::Bare(chips) => {
                let chips = Rc::try_unwrap(chips).ok().expect(HELD);
                MediumState::flash(chips.cut(), Vec::new())
            }
        }
    }
}

/// The chips of a state are those of the plan.
fn check_chips(state: &Path, found: &Spec, plan: &Spec) -> Result<(), RunError> {
    let word = |keep| if keep == Keep::Stamps { "stamps" } else { "everything" };
    let why = match found {
        found if found == plan => return Ok(()),
        found if *found == (Spec { keep: found.keep, ..plan.clone() }) => format!(
            "medium.keep: found {0}, expected {1} by the plan; to run with this state: --set medium.keep={0}",
            word(found.keep),
            word(plan.keep)
        ),
        _ => "found other chips, expected those of the plan, its seed included".to_owned(),
    };
    Err(RunError(format!("{}: {why}", state.display())))
}

/// Controllers behind the plan's bridge, each with chips and software of its own.
fn bridged(
    rt: &Rt,
    kept: FlashState,
    clock: Clock,
    plan: &Plan,
) -> Result<(Medium, Vec<Rc<Chips>>), RunError> {
    let of = plan.medium.bridge.expect("asked before");
    let (flash, keep) = (flash_of(plan), plan.medium.contents.keep);
    let modelled = is_modelled(clock, plan);
    let FlashState { remains, label, others, .. } = kept;
    let (mut all, mut drives) = (Vec::new(), Vec::new());
    for (number, remains) in (0..).zip(std::iter::once(remains).chain(others)) {
        let chips = chips(rt, flash, remains, modelled)?;
        let software = software(plan, flash);
        let software = Options { seed: software.seed + number, ..software };
        let label = if number == 0 { label.clone() } else { Vec::new() };
        drives.push(Drive::start(rt, chips.clone(), software, keep, label));
        all.push(chips);
    }
    let bridge = Rc::new(Bridge::new(rt, drives, of.options(modelled)));
    Ok((Medium::Bridged { bridge, chips: all.clone() }, all))
}

/// Dies that fall ill are those of the controllers one after the other.
fn on_die_fault(faults: &Faults, chips: &[Rc<Chips>]) {
    let chips: Vec<_> = chips.iter().map(Rc::downgrade).collect();
    faults.on_die_fault(move |die, of| {
        let mut die = die;
        for chips in chips.iter().filter_map(std::rc::Weak::upgrade) {
            let dies = chips.shape().dies;
            if die < dies {
                return chips.fail_die(die, of);
            }
            die -= dies;
        }
    });
}

/// How the interface starts a device at such a port.
fn front<P: DeviceSide>(row: &'static Row) -> Result<&'static Front<P>, RunError> {
    let why = || format!("interface {}: its device has no such port", row.name);
    P::front(row).ok_or_else(|| RunError(why()))
}

fn flash_of(plan: &Plan) -> &Flash {
    plan.medium.flash.as_ref().expect("flash comes from a plan of flash")
}

/// Whether flash takes the time of its model.
fn is_modelled(clock: Clock, plan: &Plan) -> bool {
    clock == Clock::Virtual || plan.medium.pace == MediumPace::Modelled
}
