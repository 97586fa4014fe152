//! Commands that move no data to the host: zero, compare, verify, copy, mark unreadable (NVM command set 1.0,
//! 3.2.1, 3.2.2 and 3.2.6 to 3.2.8).
//!
//! A request for many blocks is split into commands, sent one after the other. An error holds the first block
//! of the command that failed; the commands before it are done.

use bus::{Buffer, HostPort};
use wire::nvme::entry::Sqe;
use wire::nvme::identify::oncs;
use wire::nvme::io::{self, BLOCKS_MAX};
use wire::nvme::ranges::CopyRange;
use wire::nvme::status::Status;
use wire::{CommandId, Lba};

use super::queue::Queue;
use crate::{BlockDevice, IoError, Kind};

impl<P: HostPort> Queue<P> {
    /// Writes zeros to `blocks` blocks from `lba`. With `may_deallocate` the device may release their space.
    /// Durable after a flush, as a write is.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the controller has no Write Zeroes.
    pub async fn write_zeroes(
        &self,
        lba: Lba,
        blocks: u32,
        may_deallocate: bool,
    ) -> Result<(), IoError> {
        let what = "a controller with Write Zeroes (ONCS)";
        self.abilities.need(oncs::WRITE_ZEROES, lba, what)?;
        self.in_pieces(lba, blocks, |cid, lba, blocks| {
            let sqe = io::write_zeroes(cid, self.nsid(), lba, blocks, false, may_deallocate);
            self.with_pi(sqe, lba, true)
        })
        .await
    }

    /// Compares the blocks from `lba` with a buffer, which is validated like that of a read; returns true if
    /// they are equal.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the controller has no Compare; or the blocks have protection information and
    /// the host does not generate it, which a Compare needs.
    pub async fn compare(&self, lba: Lba, with: Buffer) -> (Buffer, Result<bool, IoError>) {
        let what = "a controller with Compare (ONCS)";
        let able = self.abilities.need(oncs::COMPARE, lba, what);
        let able = able.and_then(|()| self.brings_tags(lba));
        let blocks = match able.and_then(|()| self.validate(lba, &with)) {
            Ok(blocks) => blocks,
            Err(error) => return (with, Err(error)),
        };
        let (slot, held) = self.slot().await;
        let data = self.pair.lists.describe(slot.index(), &with);
        if self.guards_itself() {
            self.make_tags(slot.index(), lba, &with).await;
        }
        slot.keep(with);
        let build = |cid| {
            self.protected(io::compare(cid, self.nsid(), lba, blocks, data), lba, slot.index())
        };
        let done = self.run(&slot, held, &build).await;
        let equal = match done.map_err(|failed| failed.at(Some(lba))) {
            Ok(()) => Ok(true),
            Err(error) if is_miscompare(&error) => Ok(false),
            Err(error) => Err(error),
        };
        (slot.take_back(), equal)
    }

    /// Verifies `blocks` blocks from `lba`: the device reads and checks them without a transfer.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the controller has no Verify. [`Kind::MediaFailed`]: a block cannot be read.
    pub async fn verify(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        self.abilities.need(oncs::VERIFY, lba, "a controller with Verify (ONCS)")?;
        self.in_pieces(lba, blocks, |cid, lba, blocks| {
            self.with_pi(io::verify(cid, self.nsid(), lba, blocks), lba, false)
        })
        .await
    }

    /// Marks `blocks` blocks from `lba` as unreadable until they are written, to test how software handles
    /// media errors.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the controller has no Write Uncorrectable.
    pub async fn write_uncorrectable(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        let what = "a controller with Write Uncorrectable (ONCS)";
        self.abilities.need(oncs::WRITE_UNCORRECTABLE, lba, what)?;
        self.in_pieces(lba, blocks, |cid, lba, blocks| {
            io::write_uncorrectable(cid, self.nsid(), lba, blocks)
        })
        .await
    }

    /// Copies `blocks` blocks from `from` to `to`, inside the device.
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: the controller has no Copy, or the blocks have protection information.
    /// [`Kind::Refused`]: the two ranges overlap.
    pub async fn copy(&self, from: Lba, blocks: u32, to: Lba) -> Result<(), IoError> {
        self.abilities.need(oncs::COPY, from, "a controller with Copy (ONCS)")?;
        let most = self.abilities.copied_max.min(BLOCKS_MAX);
        let refuse = |kind, why| Err(IoError::refused(kind, from, why));
        if most == 0 {
            return refuse(
                Kind::Unsupported,
                "a namespace that takes a range to copy (MSSRL, MCL)",
            );
        }
        self.plain(from)?;
        self.geometry().validate_range(from, blocks.into())?;
        self.geometry().validate_range(to, blocks.into())?;
        if from.0.abs_diff(to.0) < u64::from(blocks) {
            return refuse(Kind::Refused, "a source and a destination that do not overlap");
        }
        for (done, now) in pieces(blocks, most) {
            let (from, to) = (Lba(from.0 + done), Lba(to.0 + done));
            let (slot, held) = self.slot().await;
            let range = CopyRange::new(from, now);
            let data = self.pair.lists.range(slot.index(), &range);
            let build = |cid| io::copy(cid, self.nsid(), to, 1, data);
            let done = self.run(&slot, held, &build).await;
            done.map_err(|failed| failed.at(Some(from)))?;
        }
        Ok(())
    }

    /// Checks that the blocks of a Compare have no protection information, or that the host supplies it.
    pub(super) fn brings_tags(&self, lba: Lba) -> Result<(), IoError> {
        if self.guards_itself() { Ok(()) } else { self.plain(lba) }
    }

    fn plain(&self, lba: Lba) -> Result<(), IoError> {
        if self.guards.is_some() {
            let why = "blocks without protection information";
            return Err(IoError::refused(Kind::Unsupported, lba, why));
        }
        Ok(())
    }

    async fn in_pieces(
        &self,
        lba: Lba,
        blocks: u32,
        build: impl Fn(CommandId, Lba, u32) -> Sqe,
    ) -> Result<(), IoError> {
        self.geometry().validate_range(lba, blocks.into())?;
        for (done, now) in pieces(blocks, self.abilities.blocks_max) {
            let lba = Lba(lba.0 + done);
            let (slot, held) = self.slot().await;
            let done = self.run(&slot, held, &|cid| build(cid, lba, now)).await;
            done.map_err(|failed| failed.at(Some(lba)))?;
        }
        Ok(())
    }
}

/// Splits `blocks` into commands of at most `most` blocks: offset and length of each.
fn pieces(blocks: u32, most: u32) -> impl Iterator<Item = (u64, u32)> {
    (0..blocks).step_by(most as usize).map(move |done| (done.into(), most.min(blocks - done)))
}

fn is_miscompare(error: &IoError) -> bool {
    error.status.is_some_and(|status| status.kind() == Status::COMPARE_FAILURE)
}
