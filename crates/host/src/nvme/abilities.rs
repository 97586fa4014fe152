//! Optional commands of a controller.

use wire::Lba;
use wire::nvme::identify::{IdentifyController, IdentifyNamespace, fuses, nsfeat};
use wire::nvme::io::BLOCKS_MAX;

use super::PAGE_BYTES;
use crate::{Geometry, IoError, Kind};

/// Optional commands that a controller supports, and the most blocks of each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abilities {
    oncs: u16,
    /// The limit of a transfer (MDTS). A controller may allow more for commands without a transfer, but need
    /// not.
    pub blocks_max: u32,
    /// Most blocks of one range of a Copy; 0 if the namespace does not support copies.
    pub copied_max: u32,
    /// Most blocks of a fused Compare and Write; 0 if the controller fuses none.
    pub fused_max: u32,
}

impl Abilities {
    /// Abilities from Identify data.
    pub fn of(
        controller: &IdentifyController,
        namespace: &IdentifyNamespace,
        geometry: &Geometry,
    ) -> Abilities {
        let most = controller.transfer_bytes_max(PAGE_BYTES).unwrap_or(u64::MAX);
        let blocks_max = (most / u64::from(geometry.block_bytes)).clamp(1, u64::from(BLOCKS_MAX));
        let copied_max = u32::from(namespace.mssrl.get()).min(namespace.mcl.get());
        let own = namespace.nsfeat & nsfeat::OWN_ATOMICITY != 0;
        let fused_max = match controller.fuses.get() & fuses::COMPARE_AND_WRITE {
            0 => 0,
            _ if own => u32::from(namespace.nacwu.get()) + 1,
            _ => u32::from(controller.acwu.get()) + 1,
        };
        let (oncs, blocks_max) = (controller.oncs.get(), blocks_max as u32);
        Abilities { oncs, blocks_max, copied_max, fused_max }
    }

    pub fn need(&self, bit: u16, lba: Lba, what: &'static str) -> Result<(), IoError> {
        if self.oncs & bit == 0 {
            return Err(IoError::refused(Kind::Unsupported, lba, what));
        }
        Ok(())
    }
}
