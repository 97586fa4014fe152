//! Changes of timing while a device runs.

use media::Blocks;
use plan::Plan;

use super::{Device, DeviceBacking};
use crate::error::ChangeError;
use crate::medium::Medium;

impl Device {
    /// Changes the timing of the medium while it runs.
    ///
    /// # Errors
    /// The key of the plan that cannot change, or that the medium lacks.
    pub fn retime(&self, plan: &Plan) -> Result<(), ChangeError> {
        let (DeviceBacking::Medium(Medium::Blocks(Blocks::Banked(medium))), Some(timing)) =
            (&self.backing, plan.medium.timing())
        else {
            return Err(ChangeError::NoTiming);
        };
        medium.retime(timing).map_err(|key| match key {
            "pace" => ChangeError::Immediate,
            key => ChangeError::Fixed(key),
        })
    }
}
