//! Whether an interface supports a plan, before a device is started.

use std::path::Path;

use ::device::faults::What;
use ::flash::trial;
use media::nand::{Lock, Nand};
use plan::Plan;

use crate::error::{CheckError, MediumError, RunError};
use crate::interfaces::{Row, check_array};

/// Checks that flash software can mount this state and its journal, on a copy in memory.
///
/// # Errors
/// It cannot, or the files cannot be read.
pub fn check_mount(state: &Path) -> Result<(), MediumError> {
    let _lock = Lock::shared(state)?;
    let (mut nand, _) = Nand::load_from(state)?;
    nand.replay(state, false)?;
    trial::mount_any(&nand).map_err(|why| MediumError::not_mounted(state, &why))
}

/// Checks that the interface supports the plan.
///
/// # Errors
/// The first requirement that is not met.
pub fn check(row: &'static Row, plan: &Plan) -> Result<(), RunError> {
    (row.check)(plan)?;
    check_array(row, plan)?;
    crate::pci::check_pin(row, plan)?;
    let name = row.name;
    if plan.array.is_some() && row.members(plan).is_none() {
        let expected = format!("none: interface {name} supports one device here");
        return Err(CheckError::found(plan, "array", "one", expected).into());
    }
    if !plan.faults.is_empty() && !row.faults {
        let expected =
            format!("none: no faults can be injected into commands of this interface ({name})");
        return Err(CheckError::found(plan, "faults", "some", expected).into());
    }
    if plan.host.queue_depth > row.depth_max {
        let expected = format!("at most {} ({name})", row.depth_max);
        let found = plan.host.queue_depth;
        return Err(CheckError::found(plan, "host.queue_depth", found, expected).into());
    }
    Ok(check_dies(plan)?)
}

/// Checks that the dies of all die faults exist.
fn check_dies(plan: &Plan) -> Result<(), CheckError> {
    let dies = plan.medium.flash.as_ref().map_or(0, |flash| flash.spec.geometry.all_dies());
    let dies = dies * plan.medium.bridge.map_or(1, |bridge| bridge.controllers);
    for (number, fault) in plan.faults.iter().enumerate() {
        let What::Die { die, .. } = fault.what else { continue };
        if die >= dies {
            let expected = match dies {
                0 => "a medium of flash: others have no dies".to_owned(),
                dies => format!("0 to {}", dies - 1),
            };
            return Err(CheckError::found(plan, format!("faults.{number}.die"), die, expected));
        }
    }
    Ok(())
}
