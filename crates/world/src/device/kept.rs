//! A medium in its files: journal and state of flash, or the file of blocks.

use plan::Plan;

use super::MediumState;
use crate::error::{MediumError, RunError};

/// A journal longer than this number of bytes is merged into the state file.
const JOURNAL_BYTES_MAX: u64 = 256 << 20;

impl MediumState {
    /// Saves flash to its state file, if the plan has one, and starts a journal next to it. A killed process
    /// then leaves the state of a power cut. With an existing journal only changes are written.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep_journal(&mut self, plan: &Plan) -> Result<(), RunError> {
        let path = plan.medium.flash.as_ref().and_then(|flash| flash.state.as_ref());
        if let (MediumState::Flash(state), Some(path)) = (self, path) {
            let nand = state.chip_state.nand_mut();
            nand.keep_journal(path, &state.label, JOURNAL_BYTES_MAX).map_err(MediumError::from)?;
        }
        Ok(())
    }

    /// True if the file system does not accept what its journal has to record.
    pub fn is_behind_its_file(&self) -> bool {
        match self {
            MediumState::Blocks(_) => false,
            MediumState::Flash(state) => state.chip_state.nand().is_stuck(),
        }
    }

    /// Saves flash to its state file, if the plan has one; flushes the file of blocks.
    ///
    /// # Errors
    /// The file cannot be written or flushed.
    pub fn save(&mut self, plan: &Plan) -> Result<(), RunError> {
        let path = plan.medium.flash.as_ref().and_then(|flash| flash.state.as_ref());
        let saved = match (self, path) {
            (MediumState::Blocks(contents), _) => contents.flush().map_err(MediumError::from),
            (MediumState::Flash(state), Some(path)) => {
                let saved = state.chip_state.nand_mut().save(path, &state.label);
                saved.map_err(MediumError::from)
            }
            (MediumState::Flash(_), None) => Ok(()),
        };
        Ok(saved?)
    }
}
