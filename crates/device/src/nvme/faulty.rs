//! Injection of the faults that [`crate::faults`] decides.

use std::future::pending;
use std::rc::Rc;

use bus::DevicePort;
use media::{Extent, Flip, Media};
use runtime::Span;
use wire::Nsid;

use super::Controller;
use super::slot::{Job, Outcome};
use crate::faults::{Disposition, Effect, Order};
use crate::moved::Blocks;

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Injects faults at the beginning of a command. Returns its outcome if it is not executed.
    pub(super) async fn injected(&self, number: u16, job: &Job) -> Option<Outcome> {
        let order = Order::nvme(job.qid.0, &job.sqe);
        // Discard a fault of the previous command in this slot, which may have been cancelled.
        self.faults.spoiled(number);
        self.slots[number].after.take();
        let effect = self.faults.begin(&self.rt, &order);
        if effect == Effect::default() {
            return None;
        }
        if effect.delay > Span::ZERO {
            self.rt.sleep(effect.delay).await;
            self.stages.fault.into_iter().for_each(|stage| self.rt.record(stage));
        }
        match effect.disposition {
            Disposition::Works => {}
            Disposition::Fails(status) => return Some(Outcome::Done(status, 0)),
            Disposition::Hangs => pending().await,
            // The slot becomes free, and nothing remembers the command.
            Disposition::IsLost => return Some(Outcome::Held),
        }
        if let Some(draw) = effect.data {
            self.faults.spoil(number, draw);
        }
        if effect.silent {
            self.faults.silence(&order);
        }
        if effect.twice {
            self.faults.repeat(&order);
        }
        self.slots[number].after.set(effect);
        if order.is_read() {
            self.harm_medium(number, &order, job);
        }
        None
    }

    /// Injects faults after execution, before the completion is posted.
    pub(super) async fn before_completion(&self, number: u16, job: &Job) {
        self.harm_medium(number, &Order::nvme(job.qid.0, &job.sqe), job);
        let effect = self.slots[number].after.take();
        if let Some((behind, at_most)) = effect.reorder {
            self.faults.others(&self.rt, job.qid.0, behind, at_most).await;
            self.stages.fault.into_iter().for_each(|stage| self.rt.record(stage));
        }
        let retrains = self.faults.retrains_for(&self.rt);
        if retrains > Span::ZERO {
            self.rt.sleep(retrains).await;
            self.stages.fault.into_iter().for_each(|stage| self.rt.record(stage));
        }
    }

    /// Flips a bit of the command's blocks on the medium, if that is injected and still due.
    fn harm_medium(&self, number: u16, order: &Order, job: &Job) {
        let slot = &self.slots[number];
        let Effect { medium: Some(draw), .. } = slot.after.get() else { return };
        slot.after.set(Effect { medium: None, ..slot.after.get() });
        let Ok((_, ns)) = self.active_at(Nsid(job.sqe.nsid.get())) else { return };
        let Some(Ok(extent)) = order.lbas.map(|(lba, blocks)| ns.extent(lba, blocks)) else {
            return;
        };
        let (block_bytes, head) = (self.block_bytes, self.head);
        let flip = Flip::drawn(draw, extent.blocks, block_bytes, head);
        let block = extent.block + u64::from(flip.byte / block_bytes);
        self.faults.harm(block, Flip { byte: flip.byte % block_bytes, ..flip });
    }

    /// Takes the bit flip of a command with the blocks `of`, if it is within `piece`.
    fn spoiled(&self, number: u16, of: Extent, piece: Extent) -> Option<Flip> {
        let draw = self.faults.spoiled(number)?;
        let (block_bytes, head) = (self.block_bytes, self.head);
        let flip = Flip::drawn(draw, of.blocks, block_bytes, head);
        let before = (piece.block - of.block) as u32 * block_bytes;
        let here = flip.byte.checked_sub(before).filter(|byte| *byte < piece.blocks * block_bytes);
        if here.is_none() {
            // It is in a later piece.
            self.faults.spoil(number, draw);
        }
        here.map(|byte| Flip { byte, ..flip })
    }

    /// Payload of blocks sent to the host: `at` is part of a read of the blocks `of`.
    #[inline]
    pub(super) fn sent(&self, number: u16, of: Extent, at: Extent) -> Blocks<'_, M> {
        let flip = if self.faults.is_on() { self.spoiled(number, of, at) } else { None };
        Blocks { media: &*self.media, at, flip }
    }

    /// Injects faults into data in transfer: `at` is part of the blocks `of`.
    pub(super) fn carried(&self, number: u16, of: Extent, at: Extent, data: &mut [u8]) {
        if self.faults.is_on()
            && let Some(flip) = self.spoiled(number, of, at)
        {
            data[flip.byte as usize] ^= flip.bits;
        }
    }

    /// Injects faults into the metadata in transfer, those of all blocks of the command.
    pub(super) fn carried_beside(&self, number: u16, metadata: &mut [u8]) {
        if !self.faults.is_on() {
            return;
        }
        let after = &self.slots[number].after;
        let Effect { metadata: Some(draw), .. } = after.get() else { return };
        after.set(Effect { metadata: None, ..after.get() });
        let bit = (draw % (metadata.len() as u64 * 8)) as usize;
        metadata[bit / 8] ^= 1 << (bit % 8);
    }

    /// Task that stops the controller on a fatal fault.
    pub(super) async fn stop_when_fatal(self: Rc<Self>) {
        loop {
            let fault = self.faults.fatal(&self.rt).await;
            self.fail("a fault of the plan", fault);
        }
    }
}
