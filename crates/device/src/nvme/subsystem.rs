//! NVM subsystem: the medium and namespaces shared by several controllers, and the host of each.
//!
//! All controllers run on one executor. State that other controllers access is here: commands in flight,
//! host, and pending events.
//!
//! A controller that is reset or whose client has gone ends its own tasks (`Rt::end`). Its commands in flight
//! and its host, which other controllers access, are stored apart from it and remain.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bus::DevicePort;
use media::Media;
use runtime::{Rt, Signal};
use wire::Nsid;
use wire::nvme::event::AsyncEvent;
use wire::nvme::reservation::{Notice, Notification};
use zerocopy::FromZeros;

use super::fused::Alone;
use super::namespace::{Initial, Namespaces};
use super::reservations::Host;
use super::slot::{Cut, Slot};
use super::threads::ThreadPlace;
use super::{ADMIN_SLOTS, CONTROLLERS_MAX, Controller, Options};
use crate::faults::Faults;

/// Maximum notifications kept per controller; when exceeded, the oldest are lost, which their counts reveal.
const NOTIFICATIONS_MAX: usize = 64;

/// An NVM subsystem: a medium and its controllers.
pub struct Subsystem<M> {
    media: Rc<M>,
    namespaces: Rc<Namespaces>,
    members: Rc<Members>,
}

pub(super) struct Members {
    all: RefCell<Vec<Rc<Member>>>,
    /// Maximum number of controllers.
    pub most: u16,
    /// Exclusive claims of fused commands.
    pub alone: Alone,
    /// Notified when a slot of any controller becomes idle.
    pub quiet: Rc<Signal>,
}

/// The subsystem as one controller has it.
pub(super) struct Shared {
    pub namespaces: Rc<Namespaces>,
    pub members: Rc<Members>,
    /// State visible to the other controllers, and this one's bit in a controller mask (next field).
    pub member: Rc<Member>,
    pub bit: u8,
    /// Its thread among several; `None`: the only one.
    pub place: Option<ThreadPlace>,
}

/// State of a controller that others access.
pub(super) struct Member {
    /// CNTLID.
    pub id: u16,
    pub slots: Rc<[Slot]>,
    pub host: Cell<Host>,
    inbox: RefCell<Inbox>,
    pub posted: Signal,
}

/// Pending events of a controller.
#[derive(Default)]
struct Inbox {
    events: Vec<AsyncEvent>,
    notifications: VecDeque<Notification>,
    /// Notifications since the controller was enabled.
    count: u64,
}

impl Member {
    /// Bit in a controller mask.
    pub fn bit(&self) -> u8 {
        1 << (self.id - 1)
    }

    /// Posts an event for the controller's host.
    pub fn tell(&self, rt: &Rt, event: AsyncEvent) {
        self.inbox.borrow_mut().events.push(event);
        self.posted.notify(rt);
    }

    /// Posts a reservation notification for the controller's host.
    pub fn notify(&self, rt: &Rt, notice: Notice, nsid: Nsid) {
        let mut inbox = self.inbox.borrow_mut();
        // A count of zero is reserved for an empty log page.
        inbox.count = inbox.count.checked_add(1).unwrap_or(1);
        let mut page = Notification::new_zeroed();
        (page.count, page.kind, page.nsid) = (inbox.count.into(), notice as u8, nsid.0.into());
        if inbox.notifications.len() == NOTIFICATIONS_MAX {
            inbox.notifications.pop_front();
        }
        inbox.notifications.push_back(page);
        drop(inbox);
        self.tell(rt, AsyncEvent::RESERVATION);
    }

    pub fn take_events(&self) -> Vec<AsyncEvent> {
        std::mem::take(&mut self.inbox.borrow_mut().events)
    }

    /// The oldest unread notification, or zeros.
    pub fn notification(&self) -> Notification {
        let inbox = self.inbox.borrow();
        let Some(first) = inbox.notifications.front() else { return Notification::new_zeroed() };
        let more = inbox.notifications.len() - 1;
        Notification { more: more.min(255) as u8, ..*first }
    }

    /// Removes the notification that was read. Returns true if there are more.
    pub fn drop_notification(&self) -> bool {
        let mut inbox = self.inbox.borrow_mut();
        inbox.notifications.pop_front();
        !inbox.notifications.is_empty()
    }

    /// The controller was reset: clears host identity and events.
    pub fn forget(&self) {
        self.host.set(Host::Nameless(self.id));
        *self.inbox.borrow_mut() = Inbox::default();
    }
}

impl Members {
    /// All controllers, in ascending order.
    pub fn all(&self) -> Vec<Rc<Member>> {
        self.all.borrow().clone()
    }

    /// Returns true if the subsystem supports a single controller only.
    pub fn is_alone(&self) -> bool {
        self.most == 1
    }

    /// Returns true if `holds` is true for every slot of every controller.
    pub fn every_slot(&self, holds: impl Fn(&Slot) -> bool) -> bool {
        self.all.borrow().iter().all(|member| member.slots.iter().all(&holds))
    }

    /// Cancels the commands selected by `inside`, and waits until they have no further effect.
    pub async fn drain(&self, rt: &Rt, why: Cut, inside: impl Fn(&Member, &Slot) -> bool) {
        for member in self.all.borrow().iter() {
            let inside = member.slots.iter().filter(|slot| inside(member, slot));
            inside.for_each(|slot| slot.cut(rt, why));
        }
        loop {
            let version = self.quiet.version();
            let busy = |member: &Rc<Member>| {
                member.slots.iter().any(|slot| inside(member, slot) && !slot.completing.get())
            };
            if !self.all.borrow().iter().any(busy) {
                return;
            }
            self.quiet.changed(rt, version).await;
        }
    }

    /// Returns true if this controller executes the subsystem's background tasks.
    pub fn is_first(&self, member: &Rc<Member>) -> bool {
        self.all.borrow().first().is_some_and(|first| Rc::ptr_eq(first, member))
    }

    fn join(&self, id: u16, slots: u16) -> Rc<Member> {
        let mut all = self.all.borrow_mut();
        assert!((1..=self.most).contains(&id), "controllers 1 to {}", self.most);
        assert!(all.iter().all(|other| other.id != id), "there is a controller {id}");
        let member = Rc::new(Member {
            id,
            slots: (0..slots).map(|_| Slot::default()).collect(),
            host: Cell::new(Host::Nameless(id)),
            inbox: RefCell::default(),
            posted: Signal::default(),
        });
        let place = all.partition_point(|other| other.id < id);
        all.insert(place, member.clone());
        member
    }

    /// Removes a controller.
    pub fn leave(&self, member: &Rc<Member>) {
        self.all.borrow_mut().retain(|other| !Rc::ptr_eq(other, member));
    }
}

impl<M: Media> Subsystem<M> {
    /// Creates a subsystem over this medium. Only the number of controllers and the options of namespaces
    /// apply; the others are per controller.
    ///
    /// # Panics
    /// If the options are inconsistent; the plan is validated earlier.
    pub fn new(media: Rc<M>, options: &Options) -> Subsystem<M> {
        assert!((1..=CONTROLLERS_MAX).contains(&options.controllers), "1 to 8 controllers");
        let to = Initial {
            namespaces: options.namespaces,
            protection: options.protection,
            are_own: options.own_namespaces,
        };
        let namespaces = Namespaces::of(&*media, to);
        let members = Members {
            all: RefCell::default(),
            most: options.controllers,
            alone: Alone::default(),
            quiet: Rc::default(),
        };
        Subsystem { media, namespaces: Rc::new(namespaces), members: Rc::new(members) }
    }

    /// Starts a controller, numbered from 1, on this port, with its own faults. It is disabled; its host
    /// enables it. All ports must use the same executor.
    ///
    /// # Panics
    /// As [`new`](Self::new), and if the number is in use or out of range.
    pub fn start_controller<P: DevicePort>(
        &self,
        id: u16,
        port: P,
        options: Options,
        faults: Rc<Faults>,
    ) -> Rc<Controller<P, M>> {
        self.start_on(id, port, options, faults, None)
    }

    /// As [`start_controller`](Self::start_controller), in this place among the controller's threads.
    pub(super) fn start_on<P: DevicePort>(
        &self,
        id: u16,
        port: P,
        options: Options,
        faults: Rc<Faults>,
        place: Option<ThreadPlace>,
    ) -> Rc<Controller<P, M>> {
        let member = self.members.join(id, options.slots + ADMIN_SLOTS);
        let (namespaces, members) = (self.namespaces.clone(), self.members.clone());
        let shared = Shared { namespaces, members, bit: member.bit(), member, place };
        Controller::start_in(port, self.media.clone(), options, faults, shared)
    }
}
