//! Injection of the faults that [`crate::faults`] decides. Fences are not affected. The command identifier is
//! the host's slot, and queue numbers count from 1, as for NVMe.

use std::future::pending;

use bus::DevicePort;
use media::{Extent, Flip, Media};
use runtime::Span;
use wire::dcx::command::{Access, Command, Request};
use wire::dcx::report::Code;
use wire::nvme::opcode::io;
use wire::nvme::status::Status;

use super::Front;
use super::io::UnderWay;
use super::queue::Queue;
use crate::faults::{Disposition, Effect, Order};

/// The code nearest to an NVMe status; there are fewer codes.
fn code_of(status: Status, reads: bool) -> Code {
    match status.kind() {
        Status::LBA_OUT_OF_RANGE => Code::OUT_OF_RANGE,
        Status::CAPACITY_EXCEEDED => Code::FULL,
        Status::DATA_TRANSFER_ERROR => Code::BAD_ADDRESS,
        _ if reads => Code::UNREADABLE,
        _ => Code::WRITE_FAULT,
    }
}

impl<P: DevicePort, M: Media> Front<P, M> {
    fn order(&self, queue: &Queue, request: &Request) -> Option<(Order, Access)> {
        let (opcode, access) = match request.command {
            Command::Read { access, .. } => (io::READ, access),
            Command::Write { access, .. } => (io::WRITE, access),
            Command::Fence => return None,
        };
        let blocks = access.bytes.div_ceil(self.media.block_bytes());
        let lbas = Some((access.lba.0, blocks));
        Some((Order { queue: queue.number + 1, cid: request.slot, opcode, lbas }, access))
    }

    /// Injects faults at the beginning of a command. Returns its result if it is not executed.
    pub(super) async fn injected(
        &self,
        queue: &Queue,
        number: u16,
        request: &Request,
    ) -> Option<Result<Option<Code>, Code>> {
        let (order, access) = self.order(queue, request)?;
        let slot = &self.slots[usize::from(number)];
        // Discard a fault of the previous command in this slot, which may have been cancelled.
        self.faults.spoiled(SLOTS_FROM + number);
        slot.after.take();
        let effect = self.faults.begin(&self.rt, &order);
        if effect == Effect::default() {
            return None;
        }
        // While delayed, the read is counted by the pace; the guard ends with the delay.
        let held = order.is_read().then(|| UnderWay::new(&self.rt, queue));
        if effect.delay > Span::ZERO {
            self.rt.sleep(effect.delay).await;
            self.stages.fault.into_iter().for_each(|stage| self.rt.record(stage));
        }
        match effect.disposition {
            Disposition::Works => {}
            Disposition::Fails(status) => return Some(Err(code_of(status, order.is_read()))),
            Disposition::Hangs => pending().await,
            Disposition::IsLost => {
                self.faults.silence(&order);
                return Some(Ok(None));
            }
        }
        held.into_iter().for_each(UnderWay::go_on);
        if let Some(draw) = effect.data {
            self.faults.spoil(SLOTS_FROM + number, draw);
        }
        if effect.silent {
            self.faults.silence(&order);
        }
        if effect.twice {
            self.faults.repeat(&order);
        }
        slot.after.set(effect);
        if order.is_read() {
            self.harm_medium(number, access);
        }
        None
    }

    /// Injects faults after execution, before the report is posted.
    pub(super) async fn before_report(
        &self,
        queue: &Queue,
        number: u16,
        request: &Result<Request, Code>,
    ) {
        let order = request.as_ref().ok().and_then(|request| self.order(queue, request));
        let Some((order, access)) = order else { return };
        self.harm_medium(number, access);
        let effect = self.slots[usize::from(number)].after.take();
        if let Some((behind, at_most)) = effect.reorder {
            self.faults.others(&self.rt, order.queue, behind, at_most).await;
            self.stages.fault.into_iter().for_each(|stage| self.rt.record(stage));
        }
        let retrains = self.faults.retrains_for(&self.rt);
        if retrains > Span::ZERO {
            self.rt.sleep(retrains).await;
            self.stages.fault.into_iter().for_each(|stage| self.rt.record(stage));
        }
    }

    fn harm_medium(&self, number: u16, access: Access) {
        let slot = &self.slots[usize::from(number)];
        let Effect { medium: Some(draw), .. } = slot.after.get() else { return };
        slot.after.set(Effect { medium: None, ..slot.after.get() });
        let block_bytes = self.media.block_bytes();
        let blocks = access.bytes.div_ceil(block_bytes);
        if access.lba.0.checked_add(blocks.into()).is_none_or(|end| end > self.media.blocks()) {
            return;
        }
        let flip = Flip::drawn(draw, blocks, block_bytes, self.media.head());
        let block = access.lba.0 + u64::from(flip.byte / block_bytes);
        self.faults.harm(block, Flip { byte: flip.byte % block_bytes, ..flip });
    }

    /// The injected bit flip of this transfer, within its first `bytes` bytes.
    pub(super) fn spoiled(&self, number: u16, at: Extent, bytes: u32) -> Option<Flip> {
        let draw = self.faults.spoiled(SLOTS_FROM + number)?;
        let block_bytes = self.media.block_bytes();
        let flip = Flip::drawn(draw, at.blocks, block_bytes, self.media.head());
        Some(Flip { byte: flip.byte % bytes, ..flip })
    }
}

/// Offset that separates this controller's slot numbers from those of the NVMe controller on the same device.
const SLOTS_FROM: u16 = 1 << 15;
