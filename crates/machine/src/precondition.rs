//! Flash that has been used before: filled, and overwritten until its collector works steadily.

use std::rc::Rc;

use ::device::drive::Drive;
use media::nand::Nand;
use media::{Extent, Media, MediaError};
use runtime::{Dice, Log, Rt};

use crate::device::{Kept, chips, software};
use crate::plan::{Flash, Plan, Start};
use crate::world::RunError;

/// Units of one write.
const STEP: u32 = 16;

/// How often a drive is overwritten on its way to the steady state, in tenths of its capacity: the valid
/// share of superblocks then hardly changes any more.
const OVERWRITES_TENTHS: u64 = 30;

/// Brings new flash there, in no time: as its software would have, write by write. Every block holds
/// zeros.
pub(crate) fn to(plan: &Plan, flash: &Flash, nand: Nand, start: Start) -> Result<Kept, RunError> {
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
        for unit in (0..units).step_by(STEP as usize) {
            write(unit, STEP.min(units - unit)).await?;
        }
        if start == Start::Steady {
            let mut dice = Dice::for_part(plan.run.seed, "precondition");
            for _ in 0..u64::from(units) * OVERWRITES_TENTHS / 10 {
                write(dice.below(units.into()) as u32, 1).await?;
            }
        }
        drive.flush().await
    });
    rt.drop_tasks();
    worked.map_err(RunError::of)?;
    let drive = Rc::try_unwrap(drive).ok().expect("its tasks are gone");
    let label = drive.into_label();
    let chips = Rc::try_unwrap(chips).ok().expect("the drive is gone");
    Ok(Kept::flash(chips.cut().into_nand(), label))
}
