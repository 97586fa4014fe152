//! Shadow doorbells (NVMe base 2.0, 5.11): the host says in its own memory what it would tell a doorbell,
//! and the controller says there behind which values it wants to be told all the same.
//!
//! The register stays what the controller goes by, as what a host tells a doorbell and what it writes into
//! the shadow are one value. When a submission queue has run dry, or a completion queue is full, the
//! controller asks to be rung for whatever comes next, and *then* looks at the shadow: of two sides that
//! each write, fence and look, one at least sees what the other wrote. What it finds goes into the
//! register.
//!
//! A host may leave the shadow of a queue alone; Linux does so with those of the admin queue. A shadow that
//! has never changed says nothing, so until it has, each ring of the doorbell is a reason to look at it
//! first: later it might have gone all the way round the queue and have its old value again.

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

/// What is known of the shadow of one doorbell. Pure: no bus, no time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shadow {
    /// Its value when it was last looked at.
    seen: u32,
    /// It has changed: the host keeps it.
    kept: bool,
    /// The doorbell's value at which the host was asked to ring and the shadow had nothing new.
    asked: Option<u32>,
}

impl Shadow {
    /// That of a doorbell which says this, with this value at first.
    fn new(known: u32, seen: u32) -> Shadow {
        Shadow { seen, kept: false, asked: Some(known) }
    }

    /// Whether it is to be looked at: the doorbell says this, and that is new or not.
    pub fn is_due(&self, known: u32, is_new: bool) -> bool {
        self.asked != Some(known) && !(is_new && self.kept)
    }

    /// It was looked at after the host had been asked to ring for whatever comes behind `known`. Gives what
    /// the doorbell should say, if that is something else.
    fn found(&mut self, known: u32, value: u32) -> Option<u32> {
        self.kept |= value != self.seen;
        self.seen = value;
        let other = (self.kept && value != known).then_some(value);
        self.asked = if other.is_some() { None } else { Some(known) };
        other
    }
}

/// Where the host keeps them.
pub(super) struct Shadows {
    on: Cell<bool>,
    /// The shadows, and what the controller asks for.
    at: Cell<(BusAddr, BusAddr)>,
    /// Which queues there are, and where the shadows are, has changed so often.
    life: Cell<u32>,
    /// One of this queue is being looked at.
    looking: Cell<Option<QueueId>>,
    /// One is due, as somebody has noticed.
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
    /// Whether there are any.
    #[inline]
    pub fn are_on(&self) -> bool {
        self.on.get()
    }

    /// The controller was reset: nothing is looked at any more.
    pub fn reset(&self) {
        self.on.set(false);
        self.changed();
    }

    /// A queue has come or gone: what is being looked at says nothing any more.
    pub fn changed(&self) {
        self.life.set(self.life.get().wrapping_add(1));
    }

    /// Whether one of such a queue is being looked at.
    pub fn looks_at(&self, of: impl Fn(QueueId) -> bool) -> bool {
        self.looking.get().is_some_and(of)
    }
}

/// A doorbell: which, and of which queue.
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
    /// Whether the shadows of all doorbells fit a page, so that they can be offered.
    pub(super) fn doorbells_fit_a_page(&self) -> bool {
        8 * (u32::from(self.options.io_queues) + 1) <= 4096
    }

    /// Doorbell Buffer Config: when it completes, the host keeps shadows. Those of queues that there are
    /// count from their next change on.
    pub(super) async fn configure_shadows(&self, data: DataPointer) -> Result<u32, Status> {
        let (prp1, prp2) = data.prps()?;
        let page_bytes = self.settings.get().page_bytes();
        if [prp1, prp2].iter().any(|at| at.page_offset(page_bytes) != 0) {
            return Err(Status::INVALID_FIELD);
        }
        self.shadows.reset();
        self.shadows.at.set((prp1, prp2));
        let queues = self.sqs.borrow().len() as u16;
        for qid in (0..queues).map(QueueId) {
            for bell in [Bell::Tail(qid), Bell::Head(qid)] {
                if self.shadow_of(bell).is_some() {
                    let known = self.port.load(bell.register());
                    let seen = self.ask_and_look(bell, known).await.map_err(of_dma)?;
                    self.set_shadow(bell, Shadow::new(known, seen));
                }
            }
        }
        self.shadows.on.set(true);
        Ok(0)
    }

    /// Of a submission queue that is about to be made: asks to be rung for its first command.
    pub(super) async fn first_of_tail(&self, qid: QueueId) -> Result<Shadow, Status> {
        self.first_of(Bell::Tail(qid)).await
    }

    /// As [`first_of_tail`](Self::first_of_tail), of a completion queue.
    pub(super) async fn first_of_head(&self, qid: QueueId) -> Result<Shadow, Status> {
        self.first_of(Bell::Head(qid)).await
    }

    async fn first_of(&self, bell: Bell) -> Result<Shadow, Status> {
        if !self.shadows.are_on() {
            return Ok(Shadow::default());
        }
        let seen = self.ask_and_look(bell, 0).await.map_err(of_dma)?;
        Ok(Shadow::new(0, seen))
    }

    /// Asks the host to ring for whatever comes behind this value, and looks at the shadow then.
    async fn ask_and_look(&self, bell: Bell, known: u32) -> Result<u32, DmaError> {
        let (shadows, asked) = self.shadows.at.get();
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
            Bell::Tail(_) => self.sqs.borrow()[at].as_ref().map(|sq| sq.shadow),
            Bell::Head(_) => self.cqs.borrow()[at].as_ref().map(|cq| cq.shadow),
        }
    }

    fn set_shadow(&self, bell: Bell, shadow: Shadow) {
        let at = usize::from(bell.qid().0);
        match bell {
            Bell::Tail(_) => self.sqs.borrow_mut()[at].iter_mut().for_each(|sq| sq.shadow = shadow),
            Bell::Head(_) => self.cqs.borrow_mut()[at].iter_mut().for_each(|cq| cq.shadow = shadow),
        }
    }

    /// Somebody has noticed that a shadow is due.
    pub(super) fn notice_shadow(&self) {
        if !self.shadows.due.replace(true) {
            self.shadows.noticed.notify(&self.rt);
        }
    }

    /// The life of whoever looks at shadows: one after the other.
    pub(super) async fn look_at_shadows(self: Rc<Self>) {
        loop {
            let version = self.shadows.noticed.version();
            self.shadows.due.set(false);
            match self.next_due() {
                Some(bell) => self.look_at(bell).await,
                None => self.shadows.noticed.changed(&self.rt, version).await,
            }
        }
    }

    /// One that is due: of a queue that has run dry or is full, or whose host has rung and may not keep it.
    fn next_due(&self) -> Option<Bell> {
        if !self.shadows.are_on() || !self.ready.get() {
            return None;
        }
        let dry = |(qid, sq): (u16, &Option<super::Sq>)| {
            let sq = sq.as_ref().filter(|sq| !sq.deleting)?;
            let tail = self.port.load(sq.tail_doorbell);
            sq.shadow.is_due(tail, tail != sq.head).then_some(Bell::Tail(QueueId(qid)))
        };
        let full = |(qid, cq): (u16, &Option<super::Cq>)| {
            let cq = cq.as_ref().filter(|cq| cq.is_waited_for)?;
            let head = self.port.load(cq.head_doorbell);
            cq.shadow.is_due(head, head != cq.head()).then_some(Bell::Head(QueueId(qid)))
        };
        let of_dry = (0..).zip(self.sqs.borrow().iter()).find_map(dry);
        of_dry.or_else(|| (0..).zip(self.cqs.borrow().iter()).find_map(full))
    }

    async fn look_at(&self, bell: Bell) {
        let (life, register) = (self.shadows.life.get(), bell.register());
        let known = self.port.load(register);
        self.shadows.looking.set(Some(bell.qid()));
        let value = self.ask_and_look(bell, known).await;
        self.shadows.looking.set(None);
        self.quiet.notify(&self.rt);
        if life != self.shadows.life.get() {
            // Another queue may have the number now, or nobody.
            return;
        }
        let (Ok(value), Some(mut shadow)) = (value, self.shadow_of(bell)) else {
            self.fail("looking at a shadow doorbell", register.into());
            return;
        };
        // What was rung meanwhile is at least as new.
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

    /// A submission queue of three entries: a host that writes its shadow, looks, and rings if it is to,
    /// and a controller; each step can be read and written by itself. All values are counted without end,
    /// and stand in memory and registers as a queue has them.
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

        /// What the host may do next; `keeps`: it keeps the shadow.
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

    /// In every order of steps: no command that was not submitted is taken, and none is left when nobody has
    /// anything to do.
    #[test]
    fn no_command_is_lost_in_any_order() {
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
