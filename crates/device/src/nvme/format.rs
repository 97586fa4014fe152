//! Format NVM (NVMe base 2.0, 5.14, and NVM command set 1.0, 4.1.2).

use std::cell::Cell;

use bus::DevicePort;
use media::Media;
use wire::Nsid;
use wire::nvme::admin::FormatNvm;
use wire::nvme::status::Status;

use super::Controller;
use super::data::of_media;
use super::identify::NAMESPACE;
use crate::faults::Hook;

/// SES: no erase asked for, and an erase of user data. Erasing by forgetting a key is not offered (FNA).
const ERASES: [u8; 2] = [0, 1];

/// While it lives, I/O commands are answered by Format In Progress.
struct Formatting<'a>(&'a Cell<bool>);

impl Drop for Formatting<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl<P: DevicePort, M: Media, H: Hook> Controller<P, M, H> {
    /// Afterwards every block reads as zeros, whichever erase was asked for, and the blocks have the
    /// length of the format, for good. What is in flight in the meantime may come before or after; a
    /// reset in the middle leaves some blocks erased and others not, and the format as it was.
    pub(super) async fn format_nvm(&self, nsid: Nsid, format: FormatNvm) -> Result<u32, Status> {
        if ![NAMESPACE, Nsid::BROADCAST].contains(&nsid) {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT);
        }
        let there_is = usize::from(format.format) < self.lba_formats().0.len();
        if !there_is || format.protection != 0 || format.metadata_inline {
            return Err(Status::INVALID_FORMAT);
        }
        if !ERASES.contains(&format.erase) {
            return Err(Status::INVALID_FIELD);
        }
        if self.formatting.replace(true) {
            return Err(Status::FORMAT_IN_PROGRESS);
        }
        let formatting = Formatting(&self.formatting);
        self.deallocate(0, self.media.blocks()).await?;
        self.media.flush().await.map_err(of_media)?;
        self.set_format(format.format)?;
        drop(formatting);
        Ok(0)
    }
}
