//! Registers: capabilities, enabling and disabling queues.

use std::rc::Rc;

use bus::DevicePort;
use media::Media;
use wire::dcx::registers::{Control, GRAIN, Grain, ID, LIMITS, Limits, MAGIC, Status};

use super::Front;
use super::queue::Queue;
use wire::dcx::tag::WORD_BITS;

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Sets the host's read-only registers.
    pub(super) fn publish_read_only(&self) {
        let limits = Limits::new()
            .with_queues(self.options.queues.min(255) as u8)
            .with_entries_log2(self.options.entries_log2)
            .with_transfer_log2(self.options.transfer_bytes_max.ilog2() as u8)
            .with_block_log2(self.media.block_bytes().ilog2() as u8);
        let block = self.options.block;
        self.port.store(block + ID, MAGIC);
        self.port.store(block + LIMITS, limits.into_bits());
        let grain = self.media.grain().unwrap_or(0);
        let grain = Grain::new()
            .with_bytes(grain as u16)
            .with_more_bits((self.media.tag_bits() - WORD_BITS) as u8);
        self.port.store(block + GRAIN, grain.into_bits());
    }

    /// Task of the register block: processes register writes.
    pub(super) async fn control(self: Rc<Self>) {
        loop {
            let number = self.port.on_registers(|| self.notice()).await;
            let queue = &self.queues[usize::from(number)];
            let control = Control::from_bits(self.port.load(queue.group.control));
            let before = queue.seen.replace(control);
            if before.enable() == control.enable() {
                queue.turned.notify(&self.rt);
            } else if control.enable() {
                self.enable(queue, control);
            } else {
                self.disable(queue).await;
            }
        }
    }

    /// Returns a queue whose CONTROL has changed, or whose doorbell was written.
    fn notice(&self) -> Option<u16> {
        let noticed = |queue: &&Queue| {
            let doorbell = self.port.load(queue.group.doorbell);
            self.port.load(queue.group.control) != queue.seen.get().into_bits()
                || queue.doorbell.replace(doorbell) != doorbell
        };
        self.queues.iter().find(noticed).map(|queue| queue.number)
    }

    fn enable(&self, queue: &Queue, control: Control) {
        match self.read_registers(queue, control) {
            Some(open) => {
                // Command numbers restart, so an old number must not hide the next doorbell write.
                self.port.store(queue.group.doorbell, 0);
                queue.doorbell.set(0);
                queue.open(&self.rt, open, &self.options);
                self.tell_tag(queue);
                // The notice address may be outside host memory; then the queue has already faulted.
                if queue.open.get().is_some() {
                    self.port.store(queue.group.status, Status::new().with_ready(true).into_bits());
                }
            }
            None => self.fault(queue),
        }
        self.rt.log(
            "device",
            "queue",
            u64::from(queue.number),
            u64::from(queue.open.get().is_some()),
        );
    }

    /// Once the host reads "not ready", no write of this queue reaches host memory: earlier posted writes
    /// arrive before the read completion.
    async fn disable(&self, queue: &Queue) {
        queue.switch(&self.rt, None);
        for slot in &self.slots {
            slot.cut(&self.rt, queue.number);
        }
        loop {
            let seen = self.quiet.version();
            if !queue.fetching.get() && !self.slots.iter().any(|slot| slot.is_of(queue.number)) {
                break;
            }
            self.quiet.changed(&self.rt, seen).await;
        }
        self.rt.log("device", "queue", u64::from(queue.number), 0);
        self.port.store(queue.group.status, Status::new().into_bits());
    }

    /// Closes a queue with invalid registers or bad addresses, and sets the fault bit in its STATUS.
    pub(super) fn fault(&self, queue: &Queue) {
        queue.switch(&self.rt, None);
        self.rt.log("device", "queue fault", u64::from(queue.number), 0);
        let status = Status::new().with_ready(true).with_fault(true);
        self.port.store(queue.group.status, status.into_bits());
    }

    /// Task that keeps tags in reserve.
    pub(super) async fn keep_tags(self: Rc<Self>) {
        self.media.keep_absent().await;
    }

    /// Task that announces each new tag to all queues.
    pub(super) async fn tell_tags(self: Rc<Self>) {
        let mut seen = self.media.changed().version();
        loop {
            self.media.changed().changed(&self.rt, seen).await;
            seen = self.media.changed().version();
            self.queues.iter().for_each(|queue| self.tell_tag(queue));
        }
    }
}
