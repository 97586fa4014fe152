//! Where faults meet commands: [`crate::faults`] says what strikes, here it happens.

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
    /// A command begins: whatever strikes it first. Gives how it ends, if it is not carried out.
    pub(super) async fn injected(&self, number: u16, job: &Job) -> Option<Outcome> {
        let order = Order::nvme(job.qid.0, &job.sqe);
        // What struck a command that was cut is not for the next in its slot.
        self.faults.spoiled(number);
        self.slots[usize::from(number)].after.take();
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
            // Nothing is held, and nothing remembers it: its slot is free.
            Disposition::IsLost => return Some(Outcome::Held),
        }
        if let Some(draw) = effect.data {
            self.faults.spoil(number, draw);
        }
        if effect.silent {
            self.faults.silence(&order);
        }
        self.slots[usize::from(number)].after.set(effect);
        if order.is_read() {
            self.harm_medium(number, &order, job);
        }
        None
    }

    /// The command has been carried out: whatever strikes it before its completion leaves.
    pub(super) async fn before_completion(&self, number: u16, job: &Job) {
        self.harm_medium(number, &Order::nvme(job.qid.0, &job.sqe), job);
        let effect = self.slots[usize::from(number)].after.take();
        if let Some((behind, at_most)) = effect.reorder {
            self.faults.others(&self.rt, job.qid.0, behind, at_most).await;
            self.stages.fault.into_iter().for_each(|stage| self.rt.record(stage));
        }
    }

    /// Turns a bit of the command's blocks over on the medium, if that strikes it and is yet to come.
    fn harm_medium(&self, number: u16, order: &Order, job: &Job) {
        let slot = &self.slots[usize::from(number)];
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

    /// The bit that turns over among these blocks of a command of `of` blocks on their way, if it is
    /// one of theirs.
    fn spoiled(&self, number: u16, of: Extent, piece: Extent) -> Option<Flip> {
        let draw = self.faults.spoiled(number)?;
        let (block_bytes, head) = (self.block_bytes, self.head);
        let flip = Flip::drawn(draw, of.blocks, block_bytes, head);
        let before = (piece.block - of.block) as u32 * block_bytes;
        let here = flip.byte.checked_sub(before).filter(|byte| *byte < piece.blocks * block_bytes);
        if here.is_none() {
            // It is for a later piece.
            self.faults.spoil(number, draw);
        }
        here.map(|byte| Flip { byte, ..flip })
    }

    /// Blocks on their way to the host: part of a read of the blocks `of`.
    #[inline]
    pub(super) fn sent(&self, number: u16, of: Extent, at: Extent) -> Blocks<'_, M> {
        let flip = if self.faults.is_on() { self.spoiled(number, of, at) } else { None };
        Blocks { media: &*self.media, at, flip }
    }

    /// Data on their way between the controller and the host: part of those of the blocks `of`.
    pub(super) fn carried(&self, number: u16, of: Extent, at: Extent, data: &mut [u8]) {
        if self.faults.is_on()
            && let Some(flip) = self.spoiled(number, of, at)
        {
            data[flip.byte as usize] ^= flip.bits;
        }
    }

    /// Metadata on their way between the controller and the host: those of all of the command's blocks.
    pub(super) fn carried_beside(&self, number: u16, metadata: &mut [u8]) {
        if !self.faults.is_on() {
            return;
        }
        let after = &self.slots[usize::from(number)].after;
        let Effect { metadata: Some(draw), .. } = after.get() else { return };
        after.set(Effect { metadata: None, ..after.get() });
        let bit = (draw % (metadata.len() as u64 * 8)) as usize;
        metadata[bit / 8] ^= 1 << (bit % 8);
    }

    /// Stops the controller when a fault says so.
    pub(super) async fn stop_when_fatal(self: Rc<Self>) {
        loop {
            let fault = self.faults.fatal(&self.rt).await;
            self.fail("a fault of the plan", fault);
        }
    }
}
