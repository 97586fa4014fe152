//! Changes of timing while a device runs.

use media::Blocks;
use plan::Plan;

use super::{Device, DeviceBacking};
use crate::medium::Medium;

impl Device {
    /// Changes the timing of the medium while it runs.
    ///
    /// # Errors
    /// The key of the plan that cannot change, or that the medium lacks.
    pub fn retime(&self, plan: &Plan) -> Result<(), String> {
        let (DeviceBacking::Medium(Medium::Blocks(Blocks::Banked(medium))), Some(timing)) =
            (&self.backing, plan.medium.timing())
        else {
            return Err("medium.kind: expected a medium with the table medium.timing".into());
        };
        medium.retime(timing).map_err(|key| match key {
            "pace" => "medium.pace: found immediate, expected modelled".into(),
            key => format!("medium.timing.{key}: cannot change while the drive runs"),
        })
    }
}
