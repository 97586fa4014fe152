//! Protection information of a queue's commands: fields of the entry, tags generated and checked by the host.

use bus::{Buffer, HostPort};
use wire::Lba;
use wire::nvme::entry::Sqe;
use wire::nvme::io;
use wire::nvme::pi::{self, Tuple};
use zerocopy::{FromZeros, IntoBytes};

use super::protect::UNIT_BYTES;
use super::queue::Queue;
use crate::{Geometry, IoError};

/// Longest supported block in bytes.
const BLOCK_BYTES_MAX: usize = 4096;

impl<P: HostPort> Queue<P> {
    /// Adds the protection fields to a Read, Write or Compare in this slot, if the blocks are protected.
    #[inline]
    pub(super) fn protected(&self, sqe: Sqe, lba: Lba, slot: u16) -> Sqe {
        let Some(guards) = &self.guards else { return sqe };
        match &self.pair.tags {
            None => io::protected(sqe, guards.says(lba, true)),
            Some(tags) => {
                let sqe = io::protected(sqe, guards.says(lba, false));
                io::with_metadata(sqe, tags.at(slot))
            }
        }
    }

    /// Adds the protection fields to a command without a transfer; `act` selects whether the controller
    /// generates protection information or checks it.
    pub(super) fn with_pi(&self, sqe: Sqe, lba: Lba, act: bool) -> Sqe {
        match &self.guards {
            None => sqe,
            Some(guards) => io::protected(sqe, guards.says(lba, act)),
        }
    }

    /// Returns true if the host generates and checks the protection information.
    #[inline]
    pub(super) fn guards_itself(&self) -> bool {
        self.guards.is_some_and(|guards| guards.by.is_by_host())
    }

    /// Generates the protection information for the data of this slot's Write or Compare.
    pub(super) async fn make_tags(&self, slot: u16, lba: Lba, data: &Buffer) {
        self.pay_for(data).await;
        let (Some(guards), Some(tags)) = (&self.guards, &self.pair.tags) else { return };
        let says = guards.says(lba, false);
        let at = tags.offset(slot);
        each_block(&self.geometry, data, |number, block| {
            let tuple = says.tuple(guards.kind, number, block);
            tags.memory().copy_in(at + number as usize * pi::BYTES, tuple.as_bytes());
        });
    }

    /// Checks the data that this slot's command has read; the error holds the first wrong block.
    pub(super) async fn check_tags(
        &self,
        slot: u16,
        lba: Lba,
        data: &Buffer,
    ) -> Result<(), IoError> {
        self.pay_for(data).await;
        let (Some(guards), Some(tags)) = (&self.guards, &self.pair.tags) else { return Ok(()) };
        let says = guards.says(lba, false);
        let (at, mut result) = (tags.offset(slot), Ok(()));
        each_block(&self.geometry, data, |number, block| {
            if result.is_err() {
                return;
            }
            let mut tuple = Tuple::new_zeroed();
            tags.memory().copy_out(at + number as usize * pi::BYTES, tuple.as_mut_bytes());
            let checked = says.check(guards.kind, number, &tuple, block);
            result = checked
                .map_err(|mismatch| IoError::mismatched(mismatch, Lba(lba.0 + u64::from(number))));
        });
        result
    }

    async fn pay_for(&self, data: &Buffer) {
        let units = (data.bytes() / UNIT_BYTES) as u32;
        self.port().spend_times(self.costs.guard, units).await;
    }
}

/// Calls `look` with the number and the data of each block, copied from shared memory first so that the data
/// cannot change during the check.
fn each_block(geometry: &Geometry, data: &Buffer, mut look: impl FnMut(u32, &[u8])) {
    let mut block = [0; BLOCK_BYTES_MAX];
    let block = &mut block[..geometry.block_bytes as usize];
    for number in 0..data.bytes() / block.len() {
        data.copy_out(number * block.len(), block);
        look(number as u32, block);
    }
}
