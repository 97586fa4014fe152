//! The device side of a world: medium, front end and fault injection. The types are the same with and without
//! faults; without faults a command pays a few predictable branches.

mod check;
mod kept;
mod live;
mod retime;
mod stats;

use std::path::Path;
use std::rc::Rc;

use ::device::faults::Faults;
use ::flash::bridge::Bridge;
use ::flash::chips::{ChipState, Chips};
use ::flash::drive::Drive;
use ::flash::trial;
use ftl::{Asleep, Options, Pages};
use media::files::Files;
use media::nand::{Lock, Nand, Spec};
use media::{Contents, Faulty, Harm, Media, Part, Range};
use runtime::Rt;

use crate::error::{CheckError, MediumError, RunError};
use crate::interfaces::{DeviceSide, Extent, Front, Row, Shared, StartDevice};
use crate::medium::{Medium, Reach, chips, software};
use crate::precondition;
pub use check::{check, check_mount};
pub use live::{Copied, DieView, copy_to_file};
use plan::{Flash, MediumPace, Plan, Start};
pub use stats::{FlashStats, StateUse};

/// Time base of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Virtual time: the medium uses its timing model.
    Virtual,
    /// Wall time: the medium has the pace of the plan.
    Wall,
}

/// State of a medium between two devices.
pub enum MediumState {
    /// Blocks in memory or in an image file.
    Blocks(Box<Contents>),
    Flash(Box<FlashState>),
}

pub struct FlashState {
    chip_state: ChipState,
    label: Vec<u8>,
    /// The suspended FTL; none: it is mounted from the chips.
    asleep: Option<Asleep>,
    /// Behind a bridge, the chips of the other controllers.
    others: Vec<ChipState>,
}

enum DeviceBacking {
    Medium(Medium),
    /// Raw flash; the FTL is on the host.
    Bare(Rc<Chips>),
}

/// A running device. Its tasks are on its executor.
pub struct Device {
    backing: DeviceBacking,
    faults: Option<Rc<Faults>>,
    /// One for each part of the medium that front ends reach.
    harms: Vec<Rc<Harm>>,
    rt: Rt,
}

impl MediumState {
    /// Initial state of a plan's medium: from its state file, or preconditioned. The state file of flash is
    /// locked as long as this value or a device built from it lives.
    ///
    /// # Errors
    /// The file cannot be used, another process has locked it, or memory is exhausted.
    pub fn new(plan: &Plan) -> Result<MediumState, RunError> {
        MediumState::on(plan, &Files::default())
    }

    /// As [`new`](MediumState::new), with all accesses to the flash's files through `files`.
    ///
    /// # Errors
    /// As [`new`](MediumState::new).
    pub fn on(plan: &Plan, files: &Files) -> Result<MediumState, RunError> {
        MediumState::locked(plan, Lock::exclusive, true, files)
    }

    /// As [`new`](MediumState::new), for changes in memory only. The lock is shared.
    ///
    /// # Errors
    /// As [`new`](MediumState::new).
    pub fn to_read(plan: &Plan) -> Result<MediumState, RunError> {
        MediumState::locked(plan, Lock::shared, false, &Files::default())
    }

    fn locked(
        plan: &Plan,
        lock: fn(&Path) -> Result<Lock, media::nand::Error>,
        writable: bool,
        files: &Files,
    ) -> Result<MediumState, RunError> {
        let state = plan.medium.flash.as_ref().and_then(|flash| flash.state.as_ref());
        // The lock comes before the first read, because another process may be writing the file.
        let lock = state.map(|path| lock(path)).transpose().map_err(MediumError::from)?;
        let mut medium = MediumState::unlocked(plan, files)?;
        if let (MediumState::Flash(flash), Some(lock), Some(path)) = (&mut medium, lock, state) {
            let nand = flash.chip_state.nand_mut();
            nand.use_files(files.clone());
            nand.hold(lock);
            match plan.medium.resident_bytes {
                Some(bytes) => {
                    nand.keep_pages(path, bytes, writable).map_err(MediumError::from)?;
                }
                None if nand.has_pages() => {
                    let expected = "a size: the drive's pages are in a file beside its state";
                    return Err(CheckError::key(plan, "medium.resident", expected).into());
                }
                None => {}
            }
        }
        Ok(medium)
    }

    fn unlocked(plan: &Plan, files: &Files) -> Result<MediumState, RunError> {
        let Some(flash) = &plan.medium.flash else {
            let contents =
                Contents::new(plan.medium.contents.clone()).map_err(MediumError::from)?;
            return Ok(MediumState::Blocks(Box::new(contents)));
        };
        let spec = Spec { seed: plan.run.seed, ..flash.spec.clone() };
        if let Some(path) = flash.state.as_ref().filter(|path| path.exists()) {
            let (mut nand, label) =
                Nand::load_with(files.clone(), path).map_err(MediumError::from)?;
            check_chips(path, nand.spec(), &spec)?;
            let replayed = nand.replay(path, flash.held_up).map_err(MediumError::from)?;
            // A device would answer every command with an error.
            let mounted = trial::mount(&nand, &software(plan, flash, false), flash.held_up);
            mounted.map_err(|why| MediumError::not_mounted(path, &why))?;
            return Ok(MediumState::flash(nand, replayed.beside.unwrap_or(label)));
        }
        if flash.start != Start::Fresh {
            let (nand, label, asleep) = precondition::to(plan, flash, spec)?;
            return Ok(MediumState::asleep(nand, label, asleep));
        }
        let others = (1..plan.medium.bridge.map_or(1, |bridge| u64::from(bridge.controllers)))
            .map(|number| Nand::new(Spec { seed: spec.seed + number, ..spec.clone() }))
            .map(|nand| nand.map(ChipState::from).map_err(MediumError::from))
            .collect::<Result<Vec<_>, _>>()?;
        let nand = Nand::new(spec).map_err(MediumError::from)?;
        Ok(MediumState::behind_bridge(nand, Vec::new(), others))
    }

    /// Copy-on-write copy of flash. The write buffer is left out, and the FTL must be mounted.
    ///
    /// # Panics
    /// If the medium is not flash.
    pub fn fork(&self) -> MediumState {
        match self {
            MediumState::Blocks(_) => panic!("only flash can be forked"),
            MediumState::Flash(state) => {
                let fork = |chip_state: &ChipState| ChipState::from(chip_state.nand().fork());
                let others = state.others.iter().map(fork).collect();
                MediumState::behind_bridge(fork(&state.chip_state), state.label.clone(), others)
            }
        }
    }

    /// The flash; none: the medium has blocks.
    pub fn into_flash(self) -> Option<FlashState> {
        match self {
            MediumState::Blocks(_) => None,
            MediumState::Flash(state) => Some(*state),
        }
    }

    fn flash(chip_state: impl Into<ChipState>, label: Vec<u8>) -> MediumState {
        MediumState::asleep(chip_state, label, None)
    }

    fn asleep(
        chip_state: impl Into<ChipState>,
        label: Vec<u8>,
        asleep: Option<Asleep>,
    ) -> MediumState {
        let (chip_state, others) = (chip_state.into(), Vec::new());
        MediumState::Flash(Box::new(FlashState { chip_state, label, asleep, others }))
    }

    fn behind_bridge(
        chip_state: impl Into<ChipState>,
        label: Vec<u8>,
        others: Vec<ChipState>,
    ) -> MediumState {
        let chip_state = chip_state.into();
        MediumState::Flash(Box::new(FlashState { chip_state, label, asleep: None, others }))
    }
}

impl FlashState {
    /// The state after a mount that took no time, so that copies of it need none.
    ///
    /// # Errors
    /// The flash software finds no drive on the flash.
    pub fn mounted(self, plan: &Plan) -> Result<FlashState, RunError> {
        let FlashState { chip_state, label, asleep: None, others } = self else { return Ok(self) };
        let nand = chip_state.into_nand();
        let (nand, label, asleep) = precondition::mounted(plan, flash_of(plan), nand, label)?;
        Ok(FlashState { chip_state: nand.into(), label, asleep, others })
    }

    /// Copy with its suspended FTL: a device on the copy behaves as one on the original. Contents of the
    /// chips and a whole map are shared until they change. The copy has no lock.
    #[must_use]
    pub fn duplicate(&self) -> FlashState {
        FlashState {
            chip_state: self.chip_state.fork(),
            label: self.label.clone(),
            asleep: self.asleep.clone(),
            others: self.others.iter().map(ChipState::fork).collect(),
        }
    }
}

impl From<FlashState> for MediumState {
    fn from(state: FlashState) -> MediumState {
        MediumState::Flash(Box::new(state))
    }
}

impl Device {
    /// Starts a device with this medium at this port.
    ///
    /// # Errors
    /// The medium can't be used as the plan says.
    pub fn start<P: DeviceSide>(
        row: &'static Row,
        port: P,
        state: MediumState,
        clock: Clock,
        plan: &Plan,
    ) -> Result<Device, RunError> {
        Device::start_with(row, port, state, clock, plan, false)
    }

    /// As [`start`](Device::start). A device that is `watched` counts its commands, and its faults can
    /// change.
    ///
    /// # Errors
    /// As [`start`](Device::start).
    pub fn start_with<P: DeviceSide>(
        row: &'static Row,
        port: P,
        state: MediumState,
        clock: Clock,
        plan: &Plan,
        watched: bool,
    ) -> Result<Device, RunError> {
        let rt = port.rt().clone();
        let (start, state) = match (front::<P>(row)?.start, state) {
            (StartDevice::Medium(start), state) => (start, state),
            (StartDevice::Chips(start), MediumState::Flash(state)) => {
                return Device::bare(start, port, *state, clock, plan);
            }
            (StartDevice::Chips(_), MediumState::Blocks(_)) => {
                return Err(MediumError::NoFrontEnd { interface: row.name }.into());
            }
        };
        let (medium, dies) = Device::medium(&rt, state, clock, plan)?;
        let faults = Faults::start(&rt, &plan.faults, plan.run.seed);
        if watched {
            faults.meter.watch(&rt);
        }
        on_die_fault(&faults, &dies);
        let store = Rc::new(Faulty::new(&rt, Rc::new(Reach::whole(&medium)), faults.harm.clone()));
        start(port, store, plan, &faults);
        let harms = vec![faults.harm.clone()];
        let faults = (watched || !plan.faults.is_empty() || plan.power.is_some()).then_some(faults);
        Ok(Device { backing: DeviceBacking::Medium(medium), faults, harms, rt })
    }

    /// Builds a device for at most `hosts` hosts. None of its controllers is started.
    ///
    /// # Errors
    /// The medium does not fit the plan, or the interface supports only one host.
    pub fn share(
        row: &'static Row,
        rt: &Rt,
        state: MediumState,
        plan: &Plan,
        hosts: u16,
    ) -> Result<(Device, Shared), RunError> {
        let (medium, _) = Device::medium(rt, state, Clock::Wall, plan)?;
        let faults = Faults::start(rt, &[], plan.run.seed);
        let store = Rc::new(Faulty::new(rt, Rc::new(Reach::whole(&medium)), faults.harm.clone()));
        let share = row.share.ok_or(MediumError::OneHost { interface: row.name })?;
        let shared = share(store, plan, hosts);
        let (backing, harms) = (DeviceBacking::Medium(medium), vec![faults.harm.clone()]);
        Ok((Device { backing, faults: Some(faults), harms, rt: rt.clone() }, shared))
    }

    /// Builds a device of which each client reaches one of `ranges`. No controller is started.
    ///
    /// # Errors
    /// The medium does not fit the plan; the interface supports only one client; a range is not on the
    /// medium.
    pub fn divide<P: DeviceSide>(
        row: &'static Row,
        rt: &Rt,
        state: MediumState,
        plan: &Plan,
        ranges: &[Range],
    ) -> Result<(Device, Vec<Extent<P>>), RunError> {
        let (medium, _) = Device::medium(rt, state, Clock::Wall, plan)?;
        let whole = Rc::new(medium.clone());
        let (mut extents, mut harms) = (Vec::new(), Vec::new());
        for range in ranges {
            let part =
                Rc::new(Part::new(whole.clone(), *range).map_err(|_| {
                    MediumError::NotOnMedium { range: *range, blocks: whole.blocks() }
                })?);
            let harm = Faults::start(rt, &[], plan.run.seed).harm.clone();
            harms.push(harm.clone());
            let store = Rc::new(Faulty::new(rt, Rc::new(Reach::Part(part.clone())), harm));
            let plan = &plan.numbered(range.from);
            let divide = front::<P>(row)?.divide;
            let divide = divide.ok_or(MediumError::OneClient { interface: row.name })?;
            let side = divide(store, rt, plan);
            extents.push(Extent { part, side });
        }
        let backing = DeviceBacking::Medium(medium);
        Ok((Device { backing, faults: None, harms, rt: rt.clone() }, extents))
    }

    /// Flushes the buffers of the medium. Errors are ignored.
    pub async fn flush(&self) {
        // Data that cannot be flushed are lost, as in any SSD at power-off.
        if let DeviceBacking::Medium(medium) = &self.backing {
            let _ = media::Media::flush(medium).await;
        }
    }

    /// Makes all that was written durable, also under a fault by which the host's flushes do nothing.
    ///
    /// # Errors
    /// The medium cannot be flushed.
    pub async fn save(&self) -> Result<(), String> {
        if let DeviceBacking::Medium(medium) = &self.backing {
            let failed = |error: media::MediaError| format!("the flush has failed: {error}");
            media::Media::flush(medium).await.map_err(failed)?;
        }
        if let Some(faults) = &self.faults {
            faults.harm.forget_volatile();
        }
        Ok(())
    }

    /// Builds the medium, and returns its chips for die faults.
    fn medium(
        rt: &Rt,
        state: MediumState,
        clock: Clock,
        plan: &Plan,
    ) -> Result<(Medium, Vec<Rc<Chips>>), RunError> {
        Ok(match state {
            MediumState::Flash(state) if plan.medium.bridge.is_some() => {
                bridged(rt, *state, clock, plan)?
            }
            MediumState::Blocks(contents) => {
                let blocks = plan.start_blocks(rt, *contents, is_modelled(clock, plan));
                (Medium::Blocks(blocks.map_err(MediumError::from)?), Vec::new())
            }
            MediumState::Flash(state) => {
                let flash = flash_of(plan);
                let FlashState { chip_state, label, asleep, others: _ } = *state;
                let modelled = is_modelled(clock, plan);
                let chips = chips(rt, flash, chip_state, modelled)?;
                let software = software(plan, flash, modelled);
                let keep = plan.medium.contents.keep;
                let on = chips.clone();
                let drive = match asleep {
                    None => Drive::start(rt, on, software, keep, label),
                    Some(asleep) => Drive::wake(rt, on, software, keep, label, asleep),
                };
                (Medium::Flash { drive, chips: chips.clone() }, vec![chips])
            }
        })
    }

    /// Starts a device with raw flash. The FTL is on the host, so its state is dropped here.
    fn bare<P: DeviceSide>(
        start: fn(P, Rc<Chips>, &Plan),
        port: P,
        state: FlashState,
        clock: Clock,
        plan: &Plan,
    ) -> Result<Device, RunError> {
        let rt = port.rt().clone();
        let chips = chips(&rt, flash_of(plan), state.chip_state, is_modelled(clock, plan))?;
        chips.make_operations_durable();
        start(port, chips.clone(), plan);
        let backing = DeviceBacking::Bare(chips);
        Ok(Device { backing, faults: None, harms: Vec::new(), rt })
    }

    /// Fault injection, if the plan has faults.
    pub fn faults(&self) -> Option<&Rc<Faults>> {
        self.faults.as_ref()
    }

    /// Number of injections of each fault, by name.
    pub fn fault_counts(&self) -> Vec<(String, u64)> {
        self.faults.as_ref().map_or_else(Vec::new, |faults| faults.counts())
    }

    /// Statistics of flash; none: the medium is not flash, or was never mounted.
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

    /// Orderly power-off with a flush of the buffers. Returns the state of the medium.
    pub fn switch_off(self) -> MediumState {
        Device::switch_off_all(vec![self]).next().expect("one")
    }

    /// As [`Device::switch_off`], for devices on one executor: a cut ends the tasks of all of them.
    pub fn switch_off_all(devices: Vec<Device>) -> impl Iterator<Item = MediumState> {
        devices.iter().for_each(Device::flush_buffers);
        devices.into_iter().map(Device::cut)
    }

    /// Controllers continue during the flush, and could acknowledge what it does not cover: so drives are
    /// closed first. Data that cannot be flushed are lost, as in any SSD at power-off.
    fn flush_buffers(&self) {
        match &self.backing {
            DeviceBacking::Medium(Medium::Flash { drive, .. }) => {
                drive.close();
                let _ = self.rt.block_on(drive.flush());
            }
            DeviceBacking::Medium(Medium::Bridged { bridge, .. }) => {
                bridge.controllers().for_each(|drive| drive.close());
                let _ = self.rt.block_on(bridge.flush());
            }
            DeviceBacking::Medium(Medium::Blocks(_)) | DeviceBacking::Bare(_) => {}
        }
        if let Some(faults) = &self.faults {
            faults.harm.forget_volatile();
        }
    }

    /// Ends the device as the end of its process does: files have what was written to them.
    pub fn abandon(self) {
        self.rt.drop_tasks();
    }

    /// Cuts the power. Returns the state of the medium.
    ///
    /// # Panics
    /// If a task of another executor holds a part of the device.
    pub fn cut(self) -> MediumState {
        if let (DeviceBacking::Medium(medium), Some(faults)) = (&self.backing, &self.faults)
            && faults.harm.has_volatile()
        {
            self.rt.block_on(faults.harm.lose(medium));
        }
        self.rt.drop_tasks();
        const HELD: &str = "the device's tasks are gone";
        match self.backing {
            DeviceBacking::Medium(Medium::Blocks(medium)) => {
                MediumState::Blocks(Box::new(medium.into_contents().expect(HELD)))
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
                let mut others: Vec<ChipState> = chips.into_iter().map(cut).collect();
                let first = others.remove(0);
                MediumState::behind_bridge(first, label, others)
            }
            DeviceBacking::Bare(chips) => {
                let chips = Rc::try_unwrap(chips).ok().expect(HELD);
                MediumState::flash(chips.cut(), Vec::new())
            }
        }
    }
}

/// Checks that the state file has the chips of the plan.
fn check_chips(state: &Path, found: &Spec, plan: &Spec) -> Result<(), MediumError> {
    let state = state.to_owned();
    match found {
        found if found == plan => Ok(()),
        found if *found == (Spec { keep: found.keep, ..plan.clone() }) => {
            Err(MediumError::OtherKeep { state, found: found.keep, expected: plan.keep })
        }
        _ => Err(MediumError::OtherChips { state }),
    }
}

/// Builds the controllers behind the plan's bridge, each with its own chips and FTL.
fn bridged(
    rt: &Rt,
    state: FlashState,
    clock: Clock,
    plan: &Plan,
) -> Result<(Medium, Vec<Rc<Chips>>), RunError> {
    let of = plan.medium.bridge.expect("the caller has checked for a bridge");
    let (flash, keep) = (flash_of(plan), plan.medium.contents.keep);
    let modelled = is_modelled(clock, plan);
    let FlashState { chip_state, label, others, .. } = state;
    let (mut all, mut drives) = (Vec::new(), Vec::new());
    for (number, chip_state) in (0..).zip(std::iter::once(chip_state).chain(others)) {
        let chips = chips(rt, flash, chip_state, modelled)?;
        let software = software(plan, flash, modelled);
        let software = Options { seed: software.seed + number, ..software };
        let label = if number == 0 { label.clone() } else { Vec::new() };
        drives.push(Drive::start(rt, chips.clone(), software, keep, label));
        all.push(chips);
    }
    let bridge = Rc::new(Bridge::new(rt, drives, of.options(modelled)));
    Ok((Medium::Bridged { bridge, chips: all.clone() }, all))
}

/// Routes die faults to the chips. Dies are numbered across the controllers in order.
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

/// The interface's front end for this type of port.
fn front<P: DeviceSide>(row: &Row) -> Result<Front<P>, MediumError> {
    P::front(row).ok_or(MediumError::NoFrontEnd { interface: row.name })
}

fn flash_of(plan: &Plan) -> &Flash {
    plan.medium.flash.as_ref().expect("flash state belongs to a plan with flash")
}

/// Whether the medium uses its timing model.
fn is_modelled(clock: Clock, plan: &Plan) -> bool {
    clock == Clock::Virtual || plan.medium.pace == MediumPace::Modelled
}
