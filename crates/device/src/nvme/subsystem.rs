//! What several controllers have in common: a medium with its namespaces, and who is behind which of them.
//!
//! All of them live in the tasks of one executor. What one has to look at of another's is here: its commands
//! under way, its host, and what it has to be told.

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
use super::namespace::Namespaces;
use super::reservations::Host;
use super::slot::{Cut, Slot};
use super::{ADMIN_SLOTS, CONTROLLERS_MAX, Controller, Options};
use crate::faults::Faults;

/// The most notifications that a controller keeps for its host; then the oldest are lost, which their
/// numbers show.
const NOTIFICATIONS_MAX: usize = 64;

/// An NVM subsystem: a medium, and the controllers by which hosts reach it.
pub struct Subsystem<M> {
    media: Rc<M>,
    namespaces: Rc<Namespaces>,
    members: Rc<Members>,
}

/// The controllers of a subsystem.
pub(super) struct Members {
    all: RefCell<Vec<Rc<Member>>>,
    /// How many there may be.
    pub most: u16,
    /// Where one command alone may write.
    pub alone: Alone,
    /// A slot of one of them has become idle.
    quiet: Rc<Signal>,
}

/// What others look at of a controller.
pub(super) struct Member {
    /// CNTLID.
    pub id: u16,
    pub slots: Rc<[Slot]>,
    pub host: Cell<Host>,
    inbox: RefCell<Inbox>,
    pub posted: Signal,
}

/// What a controller has to tell its host.
#[derive(Default)]
struct Inbox {
    events: Vec<AsyncEvent>,
    notifications: VecDeque<Notification>,
    /// How many there were since it was enabled.
    count: u64,
}

impl Member {
    /// Its bit in a set of controllers.
    pub fn bit(&self) -> u8 {
        1 << (self.id - 1)
    }

    /// Something happened that its host may want to know.
    pub fn tell(&self, rt: &Rt, event: AsyncEvent) {
        self.inbox.borrow_mut().events.push(event);
        self.posted.notify(rt);
    }

    /// Something happened to a reservation of its host's.
    pub fn notify(&self, rt: &Rt, notice: Notice, nsid: Nsid) {
        let mut inbox = self.inbox.borrow_mut();
        // A number of zero means that there is none.
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

    /// The oldest notification that was not read, or zeros.
    pub fn notification(&self) -> Notification {
        let inbox = self.inbox.borrow();
        let Some(first) = inbox.notifications.front() else { return Notification::new_zeroed() };
        let more = inbox.notifications.len() - 1;
        Notification { more: more.min(255) as u8, ..*first }
    }

    /// It has been read; whether there are others.
    pub fn drop_notification(&self) -> bool {
        let mut inbox = self.inbox.borrow_mut();
        inbox.notifications.pop_front();
        !inbox.notifications.is_empty()
    }

    /// It has been reset: nobody is behind it, and nothing is to be told.
    pub fn forget(&self) {
        self.host.set(Host::Nameless(self.id));
        *self.inbox.borrow_mut() = Inbox::default();
    }
}

impl Members {
    /// Those that there are, by rising number.
    pub fn all(&self) -> Vec<Rc<Member>> {
        self.all.borrow().clone()
    }

    /// Whether the subsystem is one controller's alone.
    pub fn is_alone(&self) -> bool {
        self.most == 1
    }

    /// All commands under way, of all controllers: whether this can be said of each.
    pub fn every_slot(&self, holds: impl Fn(&Slot) -> bool) -> bool {
        self.all.borrow().iter().all(|member| member.slots.iter().all(&holds))
    }

    /// Cuts the commands of which this can be said, and waits until they can do nothing any more.
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

    /// Who looks after what is the subsystem's, and not a controller's.
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

    /// It is no longer one of them.
    pub fn leave(&self, member: &Rc<Member>) {
        self.all.borrow_mut().retain(|other| !Rc::ptr_eq(other, member));
    }
}

impl<M: Media> Subsystem<M> {
    /// Over this medium, for as many controllers as the options say. What else they say of namespaces counts;
    /// the rest is each controller's own.
    ///
    /// # Panics
    /// If the options make no sense: the plan's check comes first.
    pub fn new(media: Rc<M>, options: &Options) -> Subsystem<M> {
        assert!((1..=CONTROLLERS_MAX).contains(&options.controllers), "1 to 8 controllers");
        let namespaces = Namespaces::of(&*media, options.namespaces, options.protection);
        let members = Members {
            all: RefCell::default(),
            most: options.controllers,
            alone: Alone::default(),
            quiet: Rc::default(),
        };
        Subsystem { media, namespaces: Rc::new(namespaces), members: Rc::new(members) }
    }

    /// Starts the controller of this number, from 1 on, on this port, with faults of its own. It is disabled;
    /// its host enables it. All ports are of one executor.
    ///
    /// # Panics
    /// As [`new`](Self::new), and if there is one of this number, or there can't be.
    pub fn start_controller<P: DevicePort>(
        &self,
        id: u16,
        port: P,
        options: Options,
        faults: Rc<Faults>,
    ) -> Rc<Controller<P, M>> {
        let member = self.members.join(id, options.slots + ADMIN_SLOTS);
        let shared = super::Shared {
            media: self.media.clone(),
            namespaces: self.namespaces.clone(),
            quiet: self.members.quiet.clone(),
            members: self.members.clone(),
            member,
        };
        Controller::start_in(port, options, faults, shared)
    }
}
