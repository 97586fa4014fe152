//! Registers: capabilities, enabling and disabling the ring, and protocol violations by the host.

use std::rc::Rc;

use bus::{DevicePort, Segment};
use media::Media;
use wire::BusAddr;
use wire::block::descriptor::BYTES;
use wire::block::registers::{
    BLOCK, CAPACITY, CONTROL, Control, ID, LIMITS, Limits, MAGIC, MEDIUM, Medium, OFFSET, READ_NS,
    RING, SHAPE, STATUS, Shape, Status, Violation, WRITE_NS,
};

use super::Front;

/// Register values of the ring at the time that it was enabled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub ring: BusAddr,
    pub entries: u32,
    /// Count of the first descriptor that the host will announce.
    pub first: u32,
    pub vector: u16,
    pub signals: bool,
}

impl Open {
    /// Ring index of the descriptor with this count.
    pub fn place(&self, count: u32) -> u32 {
        count & (self.entries - 1)
    }

    /// Segments of `descriptors` consecutive descriptors, and the number of segments: two if the ring wraps,
    /// else one.
    pub fn pieces(&self, count: u32, descriptors: u32) -> ([Segment; 2], usize) {
        let place = self.place(count);
        let before = descriptors.min(self.entries - place);
        let piece = |place: u32, descriptors: u32| Segment {
            at: BusAddr(self.ring.0 + u64::from(place) * BYTES as u64),
            bytes: descriptors * BYTES as u32,
        };
        let pieces = [piece(place, before), piece(0, descriptors - before)];
        (pieces, if before < descriptors { 2 } else { 1 })
    }
}

impl<P: DevicePort, M: Media> Front<P, M> {
    /// Sets the host's read-only registers.
    pub(super) fn publish_read_only(&self) {
        let options = &self.options;
        let limits = Limits::new()
            .with_entries_log2(options.entries_log2)
            .with_block_max(options.block_max)
            .with_group(options.group)
            .with_ahead(options.ahead);
        let medium = Medium::new()
            .with_block_log2(self.media.block_bytes().ilog2() as u8)
            .with_channels(options.channels)
            .with_technology(options.technology);
        let blocks = self.media.blocks();
        for (register, value) in [
            (ID, MAGIC),
            (LIMITS, limits.into_bits()),
            (CAPACITY, blocks as u32),
            (CAPACITY + 4, (blocks >> 32) as u32),
            (MEDIUM, medium.into_bits()),
            (READ_NS, options.read_ns),
            (WRITE_NS, options.write_ns),
        ] {
            self.port.store(register, value);
        }
    }

    /// Task of the registers: processes writes to CONTROL.
    pub(super) async fn control(self: Rc<Self>) {
        loop {
            let noticed = || {
                let value = self.port.load(CONTROL);
                (value != self.control.get()).then_some(value)
            };
            let value = self.port.on_registers(noticed).await;
            let before = Control::from_bits(self.control.replace(value));
            match (before.enable(), Control::from_bits(value).enable()) {
                (false, true) => self.enable(Control::from_bits(value)),
                (true, false) => self.disable().await,
                _ => {}
            }
        }
    }

    fn enable(&self, control: Control) {
        // Block numbers restart, so an old value must not be taken for the first announcement.
        self.port.store(BLOCK, 0);
        match self.read_registers(control) {
            Some(open) => {
                self.open.set(Some(open));
                self.port.store(STATUS, Status::new().with_ready(true).into_bits());
                self.rt.log("device", "ring", u64::from(open.entries), open.ring.0);
                self.switched.notify(&self.rt);
            }
            None => self.fault(Violation::Registers, 0),
        }
    }

    fn read_registers(&self, control: Control) -> Option<Open> {
        let shape = Shape::from_bits(self.port.load(SHAPE));
        let low = u64::from(self.port.load(RING));
        let ring = u64::from(self.port.load(RING + 4)) << 32 | low;
        let sense = shape.entries_log2() <= self.options.entries_log2
            && 1 << shape.entries_log2() >= u32::from(self.options.block_max)
            && ring.is_multiple_of(BYTES as u64)
            && ring.checked_add((BYTES as u64) << shape.entries_log2()).is_some();
        sense.then(|| Open {
            ring: BusAddr(ring),
            entries: 1 << shape.entries_log2(),
            first: self.port.load(OFFSET),
            vector: shape.vector(),
            signals: control.signals(),
        })
    }

    /// Once the host reads "not ready", no write of this ring reaches host memory: earlier posted writes
    /// arrive before the read completion.
    async fn disable(&self) {
        self.stop();
        for slot in &self.slots {
            slot.cut(&self.rt);
        }
        loop {
            let seen = self.quiet.version();
            if !self.returning.get() && self.slots.iter().all(super::Slot::is_idle) {
                break;
            }
            self.quiet.changed(&self.rt, seen).await;
        }
        self.rt.log("device", "ring", 0, 0);
        self.port.store(STATUS, Status::new().into_bits());
    }

    fn stop(&self) {
        self.open.set(None);
        self.flight.set(None);
        self.switched.notify(&self.rt);
        self.turned.notify(&self.rt);
    }

    /// Stops the device after a protocol violation and reports it in STATUS.
    pub(super) fn fault(&self, violation: Violation, count: u32) {
        self.count(|counts| counts.violations += 1);
        self.rt.log("device", "violation", violation as u64, u64::from(count));
        self.stop();
        for slot in &self.slots {
            slot.cut(&self.rt);
        }
        let status =
            Status::new().with_ready(true).with_violation(violation as u8).with_count(count as u16);
        self.port.store(STATUS, status.into_bits());
    }
}
