//! Devices that can be members.

use alloc::vec::Vec;

use bus::HostPort;
use host::{BlockDevice, Deallocated, Geometry};

use super::layout::MEMBERS_MAX;
use super::record::RECORD_BYTES;
use super::{Options, Shared, Unfit};

/// Checks the number of members, and that they match.
pub fn validate<D: BlockDevice>(
    disks: &[Vec<D>],
    first: Geometry,
    options: &Options,
) -> Result<(), Unfit> {
    let unfit = |what, found, expected| Err(Unfit { what, found, expected });
    let least = if options.parity { 3 } else { 1 };
    let members = disks.len();
    if !(least..=MEMBERS_MAX).contains(&members) {
        return unfit("members", members as u64, "3 to 16 with a parity, else 1 to 16");
    }
    let chunk = u64::from(options.chunk_bytes);
    for geometry in disks.iter().map(|disks| disks[0].geometry()) {
        if geometry.block_bytes != first.block_bytes {
            return unfit("bytes of a block", geometry.block_bytes.into(), "those of the first");
        }
        let most = u64::from(geometry.transfer_bytes_max);
        if chunk == 0 || !chunk.is_multiple_of(geometry.block_bytes.into()) || chunk > most {
            return unfit("bytes of a chunk", chunk, "whole blocks, one command's at most");
        }
        if options.journal > 0 && most < RECORD_BYTES.into() {
            return unfit("bytes of a transfer", most, "4096 at least, for records of the journal");
        }
    }
    Ok(())
}

impl<P: HostPort, D: BlockDevice + Clone> Shared<P, D> {
    /// Checks that a device can take the place of a member.
    pub fn validate_replacement(&self, disks: &[D]) -> Result<(), Unfit> {
        let unfit = |what, found, expected| Err(Unfit { what, found, expected });
        if disks.len() != self.ports.len() {
            return unfit("disks of a member", disks.len() as u64, "one for each port");
        }
        let own = self.geometry;
        let stripes = self.layout.stripes() * self.layout.chunk();
        let blocks = self.journal.as_ref().map_or(stripes, |journal| journal.region.end());
        let chunk = self.layout.chunk() * u64::from(own.block_bytes);
        let least = if self.journal.is_some() { chunk.max(RECORD_BYTES.into()) } else { chunk };
        for disk in disks {
            let new = disk.geometry();
            if new.block_bytes != own.block_bytes {
                let expected = "those of the other members";
                return unfit("bytes of a block", new.block_bytes.into(), expected);
            }
            if new.blocks < blocks {
                return unfit("blocks of a member", new.blocks, "as many as the array uses");
            }
            if u64::from(new.transfer_bytes_max) < least {
                let expected = "a chunk and a record at least";
                return unfit("bytes of a transfer", new.transfer_bytes_max.into(), expected);
            }
            if new.volatile_cache && !own.volatile_cache {
                return unfit("volatile cache of a member", 1, "0, as of the other members");
            }
            if self.deallocated == Deallocated::Zeros && disk.deallocated() != Deallocated::Zeros {
                return unfit("deallocated blocks of a member that are zeros", 0, "1");
            }
        }
        Ok(())
    }
}
