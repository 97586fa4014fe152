//! Preconditioned flash: filled sequentially, or in the steady state of random writes.

use std::rc::Rc;

use ::flash::chips::Chips;
use ::flash::drive::Drive;
use ftl::{Asleep, Ftl};
use media::contents::Keep;
use media::nand::{Nand, Spec};
use media::{Extent, Media, MediaError};
use runtime::{Log, Rt};

use crate::medium::{chips, software};
use crate::{MediumError, RunError};
use plan::{Flash, Plan, Start};

/// Chips, label of the drive, and its suspended FTL, if it could be suspended: with it the drive needs no
/// mount.
pub type Awake = (Nand, Vec<u8>, Option<Asleep>);

/// Mapping units of one write.
const STEP: u32 = 16;

/// Random writes of single units follow the analytic steady state to remove its regularity: one for each N
/// units of the drive.
const UNITS_PER_WARM_UP: u64 = 64;

/// Mounts the flash software on flash that was switched off, without simulated time.
pub fn mounted(
    plan: &Plan,
    flash: &Flash,
    mut nand: Nand,
    label: Vec<u8>,
) -> Result<Awake, RunError> {
    nand.load_rows();
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, flash, nand.into(), false)?;
    let (software, keep) = (software(plan, flash), plan.medium.contents.keep);
    let drive = Drive::start(&rt, chips.clone(), software, keep, label);
    let worked = rt.block_on(async {
        let software = drive.software().await.map_err(MediumError::from)?;
        software.settle().await.map_err(MediumError::from)?;
        Ok::<_, MediumError>(software.clone())
    });
    suspended(&rt, worked?, drive, chips)
}

/// Preconditions new flash without simulated time. `Filled` writes through the FTL; `Steady` constructs the
/// state that long random use leaves. Every block holds zeros, so that stamps do until the end: every byte of
/// a large drive would not fit in memory.
pub fn to(plan: &Plan, flash: &Flash, spec: Spec) -> Result<Awake, RunError> {
    let keep = Keep::Stamps;
    let nand = Nand::new(Spec { keep, ..spec }).map_err(MediumError::from)?;
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, flash, nand.into(), false)?;
    let software = software(plan, flash);
    let units = software.units;
    let drive = Drive::start(&rt, chips.clone(), software, keep, Vec::new());
    let unit_bytes = flash.spec.geometry.unit_bytes;
    let worked = rt.block_on(async {
        let zeros = vec![0; (STEP * unit_bytes) as usize];
        let blocks_of = |units: u32| units * (unit_bytes / drive.block_bytes());
        let write = async |unit: u32, count: u32| -> Result<(), MediaError> {
            let block = u64::from(unit) * u64::from(blocks_of(1));
            let bytes = (count * unit_bytes) as usize;
            drive.write(Extent { block, blocks: blocks_of(count) }, &zeros[..bytes]).await
        };
        if flash.start == Start::Steady {
            let software = drive.software().await.map_err(MediumError::from)?;
            let warm_up = u64::from(units) / UNITS_PER_WARM_UP;
            let laid = software.precondition(warm_up, plan.run.seed).await;
            laid.map_err(MediumError::from)?;
        } else {
            for unit in (0..units).step_by(STEP as usize) {
                write(unit, STEP.min(units - unit)).await.map_err(MediumError::from)?;
            }
        }
        let software = drive.software().await.map_err(MediumError::from)?;
        // A checkpoint, so that the mount after the first power cut does not scan every page.
        software.checkpoint().await.map_err(MediumError::from)?;
        software.settle().await.map_err(MediumError::from)?;
        Ok::<_, MediumError>(software.clone())
    });
    let (nand, label, asleep) = suspended(&rt, worked?, drive, chips)?;
    match plan.medium.contents.keep {
        Keep::Stamps => Ok((nand, label, asleep)),
        Keep::Everything => Ok((nand.keep_every_byte().map_err(MediumError::from)?, label, asleep)),
    }
}

/// Takes a drive apart that has nothing in flight.
fn suspended(
    rt: &Rt,
    software: Ftl<Chips>,
    drive: Rc<Drive<Chips>>,
    chips: Rc<Chips>,
) -> Result<Awake, RunError> {
    rt.drop_tasks();
    let drive = Rc::try_unwrap(drive).ok().expect("its tasks are gone");
    let label = drive.into_label();
    let asleep = software.sleep();
    let chips = Rc::try_unwrap(chips).ok().expect("the drive is gone");
    Ok((chips.cut().into_nand(), label, asleep))
}
