//! Shadow doorbells (NVMe base 2.0, 5.11): the host writes doorbell values to its own memory. There, the
//! controller writes an event index: the value after which it still needs a register write.
//!
//! The controller uses only the register's value; shadow and register hold the same quantity. When a
//! submission queue is empty, or a completion queue is full, the controller requests a register write for the
//! next value, and *then* reads the shadow: if each side writes, fences and reads, at least one sees the
//! other's write. A new shadow value is copied to the register.
//!
//! The host may leave the shadow of a queue unused; Linux does so for the admin queue. A shadow that has
//! never changed is ignored, so until it changes, each register write causes a read of the shadow first:
//! later it could have advanced by a full lap and have its old value again.

use std::cell::Cell;
use std::rc::Rc;

use bus::{DevicePort, DmaError, Looks};
use media::Media;
use runtime::Signal;
use wire::nvme::entry::DataPointer;
use wire::nvme::registers::{DOORBELLS, cq_head_doorbell, sq_tail_doorbell};
use wire::nvme::status::Status;
use wire::{BusAddr, QueueId};

use super::Controller;
use super::data::of_dma;

/// State of one shadow doorbell. Pure: no bus, no time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shadow {
    /// Value of the shadow when last read.
    seen: u32,
    /// True if the value has changed: the host uses the shadow.
    kept: bool,
    /// Doorbell value at which a register write was requested, and the shadow had no new value.
    asked: Option<u32>,
}

impl Shadow {
    /// State for a doorbell with value `known`, and a shadow with value `seen`.
    fn new(known: u32, seen: u32) -> Shadow {
        Shadow { seen, kept: false, asked: Some(known) }
    }

    /// Returns true if the shadow must be read. `known` is the doorbell's value, `is_new` whether it is
    /// unprocessed.
    pub fn is_due(&self, known: u32, is_new: bool) -> bool {
        self.asked != Some(known) && !(is_new && self.kept)
    }

    /// Processes a shadow value read after a register write was requested for changes from `known`. Returns
    /// the new doorbell value, if different.
    fn found(&mut self, known: u32, value: u32) -> Option<u32> {
        self.kept |= value != self.seen;
        self.seen = value;
        let other = (self.kept && value != known).then_some(value);
        self.asked = if other.is_some() { None } else { Some(known) };
        other
    }
}

/// Addresses and state of the shadow doorbells.
pub(super) struct Shadows {
    /// True after Doorbell Buffer Config.
    on: Cell<bool>,
    /// Address of the shadow doorbells, and of the event indices.
    at: Cell<(BusAddr, BusAddr)>,
    /// Generation: changes with every queue created or deleted, and with the configuration.
    life: Cell<u32>,
    /// Queue with a shadow read in flight.
    looking: Cell<Option<QueueId>>,
    /// A shadow must be read.
    due: Cell<bool>,
    noticed: Signal,
}

impl Default for Shadows {
    fn default() -> Shadows {
        Shadows {
            on: Cell::new(false),
            at: Cell::new((BusAddr(0), BusAddr(0))),
            life: Cell::new(0),
            looking: Cell::new(None),
            due: Cell::new(false),
            noticed: Signal::default(),
        }
    }
}

impl Shadows {
    /// Returns true if shadow doorbells are configured.
    #[inline]
    pub fn are_on(&self) -> bool {
        self.on.get()
    }

    /// Disables shadow doorbells: the controller was reset.
    pub fn reset(&self) {
        self.on.set(false);
        self.changed();
    }

    /// A queue was created or deleted: invalidates a shadow read in flight.
    pub fn changed(&self) {
        self.life.set(self.life.get().wrapping_add(1));
    }

    /// Returns true if a shadow read of such a queue is in flight.
    pub fn looks_at(&self, of: impl Fn(QueueId) -> bool) -> bool {
        self.looking.get().is_some_and(of)
    }
}

#[derive(Clone, Copy)]
enum Bell {
    Tail(QueueId),
    Head(QueueId),
}

impl Bell {
    fn qid(self) -> QueueId {
        match self {
            Bell::Tail(qid) | Bell::Head(qid) => qid,
        }
    }

    fn register(self) -> u32 {
        match self {
            Bell::Tail(qid) => sq_tail_doorbell(qid, 0),
            Bell::Head(qid) => cq_head_doorbell(qid, 0),
        }
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Returns true if the shadows of all doorbells fit into one page, which is required to support them.
    pub(super) fn doorbells_fit_a_page(&self) -> bool {
        8 * (u32::from(self.options.io_queues) + 1) <= 4096
    }

    /// Doorbell Buffer Config: after its completion, the host updates shadows. Those of existing queues take
    /// effect from their next change on.
    pub(super) async fn configure_shadows(&self, data: DataPointer) -> Result<u32, Status> {
        let (prp1, prp2) = data.prps()?;
        let page_bytes = self.registers.settings.get().page_bytes();
        if [prp1, prp2].iter().any(|at| at.page_offset(page_bytes) != 0) {
            return Err(Status::INVALID_FIELD);
        }
        self.queues.shadows.reset();
        self.queues.shadows.at.set((prp1, prp2));
        let queues = self.queues.sqs.borrow().len() as u16;
        for qid in (0..queues).map(QueueId) {
            for bell in [Bell::Tail(qid), Bell::Head(qid)] {
                if self.shadow_of(bell).is_some() {
                    let known = self.port.load(bell.register());
                    let seen = self.ask_and_look(bell, known).await.map_err(of_dma)?;
                    self.set_shadow(bell, Shadow::new(known, seen));
                }
            }
        }
        self.queues.shadows.on.set(true);
        Ok(0)
    }

    /// State for a submission queue to be created: requests a register write for its first command.
    pub(super) async fn first_of_tail(&self, qid: QueueId) -> Result<Shadow, Status> {
        self.first_of(Bell::Tail(qid)).await
    }

    /// As [`first_of_tail`](Self::first_of_tail), for a completion queue.
    pub(super) async fn first_of_head(&self, qid: QueueId) -> Result<Shadow, Status> {
        self.first_of(Bell::Head(qid)).await
    }

    async fn first_of(&self, bell: Bell) -> Result<Shadow, Status> {
        if !self.queues.shadows.are_on() {
            return Ok(Shadow::default());
        }
        let seen = self.ask_and_look(bell, 0).await.map_err(of_dma)?;
        Ok(Shadow::new(0, seen))
    }

    /// Requests a register write for changes from `known`, then reads the shadow.
    async fn ask_and_look(&self, bell: Bell, known: u32) -> Result<u32, DmaError> {
        let (shadows, asked) = self.queues.shadows.at.get();
        let offset = u64::from(bell.register() - DOORBELLS);
        let place = |base: BusAddr| BusAddr(base.0.wrapping_add(offset));
        self.port.publish(place(asked), &known.to_le_bytes(), false)?;
        self.port.fence();
        let mut word = [0; 4];
        self.port.fetch(place(shadows), &mut word, 4, Looks::Once, |_, _| true).await?;
        Ok(u32::from_le_bytes(word))
    }

    fn shadow_of(&self, bell: Bell) -> Option<Shadow> {
        let at = usize::from(bell.qid().0);
        match bell {
            Bell::Tail(_) => self.queues.sqs.borrow()[at].as_ref().map(|sq| sq.shadow),
            Bell::Head(_) => self.queues.cqs.borrow()[at].as_ref().map(|cq| cq.shadow),
        }
    }

    fn set_shadow(&self, bell: Bell, shadow: Shadow) {
        let at = usize::from(bell.qid().0);
        match bell {
            Bell::Tail(_) => {
                self.queues.sqs.borrow_mut()[at].iter_mut().for_each(|sq| sq.shadow = shadow)
            }
            Bell::Head(_) => {
                self.queues.cqs.borrow_mut()[at].iter_mut().for_each(|cq| cq.shadow = shadow)
            }
        }
    }

    /// Wakes the task that reads shadows.
    pub(super) fn notice_shadow(&self) {
        if !self.queues.shadows.due.replace(true) {
            self.queues.shadows.noticed.notify(&self.rt);
        }
    }

    /// Task that reads shadows, one at a time.
    pub(super) async fn look_at_shadows(self: Rc<Self>) {
        loop {
            let version = self.queues.shadows.noticed.version();
            self.queues.shadows.due.set(false);
            match self.next_due() {
                Some(bell) => self.look_at(bell).await,
                None => self.queues.shadows.noticed.changed(&self.rt, version).await,
            }
        }
    }

    /// A shadow to read: of an empty or full queue, or of one with a register write and a possibly unused
    /// shadow.
    fn next_due(&self) -> Option<Bell> {
        if !self.queues.shadows.are_on() || !self.registers.ready.get() {
            return None;
        }
        let sqs = self.queues.sqs.borrow();
        let dry = (0..).zip(sqs.iter()).find_map(|(qid, sq)| {
            let sq = sq.as_ref().filter(|sq| !sq.deleting)?;
            let tail = self.port.load(sq.tail_doorbell);
            sq.shadow.is_due(tail, tail != sq.head).then_some(Bell::Tail(QueueId(qid)))
        });
        let cqs = self.queues.cqs.borrow();
        let full = || {
            (0..).zip(cqs.iter()).find_map(|(qid, cq)| {
                let cq = cq.as_ref().filter(|cq| cq.is_waited_for)?;
                let head = self.port.load(cq.head_doorbell);
                cq.shadow.is_due(head, head != cq.head()).then_some(Bell::Head(QueueId(qid)))
            })
        };
        dry.or_else(full)
    }

    async fn look_at(&self, bell: Bell) {
        let (life, register) = (self.queues.shadows.life.get(), bell.register());
        let known = self.port.load(register);
        self.queues.shadows.looking.set(Some(bell.qid()));
        let value = self.ask_and_look(bell, known).await;
        self.queues.shadows.looking.set(None);
        self.slots.quiet.notify(&self.rt);
        if life != self.queues.shadows.life.get() {
            // The identifier may belong to another queue now, or to none.
            return;
        }
        let (Ok(value), Some(mut shadow)) = (value, self.shadow_of(bell)) else {
            self.fail("looking at a shadow doorbell", register.into());
            return;
        };
        // A register write in the meantime is at least as recent.
        let other = shadow.found(known, value);
        self.set_shadow(bell, shadow);
        if let Some(value) = other.filter(|_| self.port.load(register) == known) {
            self.rt.log("device", "shadow", u64::from(register), u64::from(value));
            self.port.store(register, value);
        }
        self.port.check_again();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Model of a submission queue with three entries: a host that writes its shadow, reads the event index
    /// and rings if needed, and a controller. Each memory access is one step. Counters do not wrap; memory
    /// and registers hold them modulo the queue size.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct World {
        submitted: u32,
        consumed: u32,
        doorbell: u32,
        memory: u32,
        asked: u32,
        host: Host,
        device: Device,
        kept: bool,
        seen: u32,
        settled: Option<u32>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Host {
        Idle,
        Told { old: u32 },
        Rings,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Device {
        Idle,
        Asked { known: u32 },
        Looked { known: u32, value: u32 },
    }

    const SIZE: u32 = 3;

    impl World {
        fn shadow(&self) -> Shadow {
            Shadow { seen: self.seen, kept: self.kept, asked: self.settled }
        }

        fn with(self, shadow: Shadow) -> World {
            World { seen: shadow.seen, kept: shadow.kept, settled: shadow.asked, ..self }
        }

        /// The host's next step. `keeps`: the host uses the shadow.
        fn host_steps(self, keeps: bool, last: u32) -> Option<World> {
            let tail = self.submitted % SIZE;
            match self.host {
                Host::Idle
                    if self.submitted == last || self.submitted - self.consumed == SIZE - 1 =>
                {
                    None
                }
                Host::Idle => {
                    let next = World { submitted: self.submitted + 1, ..self };
                    let told =
                        World { memory: (tail + 1) % SIZE, host: Host::Told { old: tail }, ..next };
                    Some(if keeps { told } else { World { host: Host::Rings, ..next } })
                }
                Host::Told { old } => {
                    let crossed = tail.wrapping_sub(self.asked).wrapping_sub(1) as u16;
                    let rings = crossed < tail.wrapping_sub(old) as u16;
                    Some(World { host: if rings { Host::Rings } else { Host::Idle }, ..self })
                }
                Host::Rings => Some(World { doorbell: tail, host: Host::Idle, ..self }),
            }
        }

        fn device_steps(self) -> Option<World> {
            match self.device {
                Device::Idle => {
                    let is_new = self.doorbell != self.consumed % SIZE;
                    if self.shadow().is_due(self.doorbell, is_new) {
                        let device = Device::Asked { known: self.doorbell };
                        return Some(World { asked: self.doorbell, device, ..self });
                    }
                    is_new.then(|| World { consumed: self.consumed + 1, ..self })
                }
                Device::Asked { known } => {
                    Some(World { device: Device::Looked { known, value: self.memory }, ..self })
                }
                Device::Looked { known, value } => {
                    let mut shadow = self.shadow();
                    let other = shadow.found(known, value);
                    let doorbell = match other {
                        Some(value) if self.doorbell == known => value,
                        _ => self.doorbell,
                    };
                    Some(World { doorbell, device: Device::Idle, ..self }.with(shadow))
                }
            }
        }
    }

    /// For every interleaving: no command is taken before it is submitted, and none is left when both sides
    /// are idle.
    #[test]
    fn shadow_doorbell_loses_no_command_in_any_order() {
        const LAST: u32 = 9;
        for keeps in [false, true] {
            let first = World {
                submitted: 0,
                consumed: 0,
                doorbell: 0,
                memory: 0,
                asked: 0,
                host: Host::Idle,
                device: Device::Idle,
                kept: false,
                seen: 0,
                settled: Some(0),
            };
            let (mut known, mut waiting) = (HashSet::from([first]), vec![first]);
            while let Some(world) = waiting.pop() {
                assert!(world.consumed <= world.submitted, "taken and not submitted: {world:?}");
                let next = [world.host_steps(keeps, LAST), world.device_steps()];
                if next == [None; 2] {
                    assert_eq!(world.consumed, LAST, "left: {world:?}");
                }
                waiting.extend(next.into_iter().flatten().filter(|world| known.insert(*world)));
            }
            assert!(known.len() > 100, "{} states", known.len());
        }
    }
}
