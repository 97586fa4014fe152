//! Flash that has been used before: filled, or as long use under random writes leaves it.

use std::rc::Rc;

use ::device::drive::Drive;
use ::device::flash::Chips;
use ftl::Ftl;
use media::nand::Nand;
use media::{Extent, Media, MediaError};
use runtime::{Log, Rt};

use crate::RunError;
use crate::device::{MediumState, chips, software};
use plan::{Flash, Plan, Start};

/// Units of one write.
const STEP: u32 = 16;

/// Writes of single units behind the analytic state, which blur what is too regular in it: one for each so
/// many units of the drive.
const UNITS_PER_WARM_UP: u64 = 64;

/// Brings new flash there, in no time: filled, as its software would have, write by write; to the steady
/// state, by laying down what long use leaves. Every block holds zeros. The software is handed over asleep:
/// the drive is ready at once, as one that was never switched off.
pub fn to(plan: &Plan, flash: &Flash, nand: Nand, start: Start) -> Result<MediumState, RunError> {
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, flash, nand.into(), false)?;
    let (software, keep) = (software(plan, flash), plan.medium.contents.keep);
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
        if start == Start::Steady {
            let software = drive.software().await.map_err(RunError::of)?;
            let warm_up = u64::from(units) / UNITS_PER_WARM_UP;
            let laid = software.precondition(warm_up, plan.run.seed).await;
            laid.map_err(RunError::of)?;
        } else {
            for unit in (0..units).step_by(STEP as usize) {
                write(unit, STEP.min(units - unit)).await.map_err(RunError::of)?;
            }
        }
        let software = drive.software().await.map_err(RunError::of)?;
        // So that the first power cut does not make a mount look at every page there is.
        software.checkpoint().await.map_err(RunError::of)?;
        software.settle().await.map_err(RunError::of)?;
        Ok(software.clone())
    });
    rt.drop_tasks();
    let software: Ftl<Chips> = worked?;
    let drive = Rc::try_unwrap(drive).ok().expect("its tasks are gone");
    let label = drive.into_label();
    let asleep = software.sleep();
    let chips = Rc::try_unwrap(chips).ok().expect("the drive is gone");
    Ok(MediumState::asleep(chips.cut().into_nand(), label, asleep))
}
