//! Host port of the modelled bus.

use alloc::rc::Rc;
use core::cell::Cell;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use runtime::{Processor, Rt, Span, Spend, Stage, Time, Urgency, Waits};
use wire::BusAddr;

use super::Bus;
use super::landing::Item;
use crate::link::{PacketKind, Posted, Way};
use crate::{Arena, Arrival, Cost, HostPort};

/// Host port, used from one core. Cheap to clone.
#[derive(Clone)]
pub struct SimHost {
    bus: Rc<Bus>,
    core: u32,
    noticed: Cell<Time>,
}

/// Bus address of the registers on a bus without configuration space: below 4 GiB, as 32-bit BARs are.
pub(super) const REGISTERS_AT: u64 = 0xf000_0000;

impl SimHost {
    pub(super) fn new(bus: Rc<Bus>, core: u32) -> SimHost {
        assert!(
            (core as usize) < bus.host.cores.len(),
            "the host has {} cores",
            bus.host.cores.len()
        );
        SimHost { bus, core, noticed: Cell::new(Time::ZERO) }
    }

    /// The same port, used from another core.
    ///
    /// # Panics
    /// If the host has no such core.
    pub fn on_core(&self, core: u32) -> SimHost {
        SimHost::new(self.bus.clone(), core)
    }

    fn core(&self) -> &Processor {
        &self.bus.host.cores[self.core as usize]
    }
}

impl HostPort for SimHost {
    fn rt(&self) -> &Rt {
        &self.bus.rt
    }

    fn arena(&self) -> &Arena {
        &self.bus.host.arena
    }

    fn write32(&self, register: u32, value: u32) {
        let address = self.bus.registers_at() + u64::from(register);
        let posted = Posted { address, bytes: 4, relaxed: false, ready: self.bus.rt.now() };
        let link = self.bus.link_to(register);
        let flight = link.post(Way::Down, self.bus.rt.now(), posted, |_, _, _| {});
        self.bus.land(flight.landed, Item::Register { register, value });
    }

    async fn read32(&self, register: u32) -> u32 {
        let (bus, rt) = (&self.bus, &self.bus.rt);
        if !bus.is_reached() {
            return u32::MAX;
        }
        let (address, link) = (bus.registers_at() + u64::from(register), bus.link_to(register));
        let size = link.read_requests(address, 4);
        let asked = link.send(Way::Down, PacketKind::ReadRequest, rt.now(), size);
        rt.sleep_until(asked.landed + link.spec().device_read).await;
        let value = bus.registers.borrow().get(register as usize / 4).copied();
        let size = link.completions(address, 4);
        let answer = link.send(Way::Up, PacketKind::Completion, rt.now(), size);
        rt.sleep_until(answer.landed).await;
        if bus.is_reached() { value.unwrap_or(u32::MAX) } else { u32::MAX }
    }

    fn is_gone(&self) -> bool {
        self.bus.down.get()
    }

    async fn on_memory<T>(
        &self,
        at: BusAddr,
        bytes: u32,
        mut check: impl FnMut() -> Option<T>,
    ) -> T {
        let bus = &self.bus;
        self.noticed.set(bus.rt.now());
        if let Some(found) = check() {
            return found;
        }
        let since = bus.rt.now();
        let mut watching = Watching::begin(bus, self.core);
        let found = poll_fn(|cx| match check() {
            Some(found) => Poll::Ready(found),
            None => {
                watching.watch(at, bytes, cx);
                Poll::Pending
            }
        })
        .await;
        drop(watching);
        self.noticed.set(bus.rt.now());
        // The polling loop was inside an iteration when the bytes landed.
        let turn = self.core().spend(&bus.rt, bus.poll_rest(since), Urgency::Task).await;
        bus.rt.record_at(bus.stages.core, turn.begin);
        bus.rt.record_at(bus.stages.poll, turn.end);
        found
    }

    async fn on_interrupt(&self, vector: u16, seen: u32) -> u32 {
        let bus = &self.bus;
        let count = &bus.interrupts[vector as usize];
        if count.get() == seen
            && let Some((_ending, reads_back)) = bus.ending()
            && reads_back
        {
            self.read32(0).await;
        }
        while count.get() == seen {
            let version = bus.interrupted.version();
            bus.interrupted.changed(&bus.rt, version).await;
        }
        let turn = match bus.last_by_pin() {
            Some((arrived, turn)) => {
                self.noticed.set(arrived);
                turn
            }
            None => {
                self.noticed.set(bus.rt.now());
                self.core().spend(&bus.rt, bus.spec.interrupt, Urgency::Interrupt).await
            }
        };
        bus.rt.record_at(bus.stages.core, turn.begin);
        bus.rt.record_at(bus.stages.interrupt, turn.end);
        count.get()
    }

    /// A timer interrupt costs as much as a device's.
    async fn woken(&self) {
        let bus = &self.bus;
        self.noticed.set(bus.rt.now());
        self.core().spend(&bus.rt, bus.spec.interrupt, Urgency::Interrupt).await;
    }

    /// Without relaxed ordering, writes land in the order in which they were posted.
    fn arrival(&self) -> Arrival {
        let bus = &self.bus;
        if bus.spec.relaxed_ordering {
            Arrival::ByPacket(bus.spec.link.mps)
        } else {
            Arrival::InOrder
        }
    }

    /// No-op: nothing happens between two events.
    fn fence(&self) {}

    fn noticed(&self) -> Time {
        self.noticed.get()
    }

    fn cost(&self, name: &str) -> Cost {
        Bus::cost(&self.bus.host.costs, name)
    }

    fn spend(&self, cost: Cost) -> impl Future<Output = ()> {
        self.spend_times(cost, 1)
    }

    fn spend_times(&self, cost: Cost, times: u32) -> impl Future<Output = ()> {
        let (named, stage) = &self.bus.host.costs[cost.0 as usize];
        let span = Span(named.span.0 * u64::from(times));
        Spent {
            bus: &self.bus,
            spend: self.core().spend(&self.bus.rt, span, Urgency::Task),
            stage: *stage,
        }
    }
}

/// Future of a cost of the host. Written by hand: every command waits for several, and each nested future
/// adds to the time of every poll.
struct Spent<'a> {
    bus: &'a Bus,
    spend: Spend<'a>,
    stage: Stage,
}

impl Future for Spent<'_> {
    type Output = ();
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let turn = ready!(Pin::new(&mut self.spend).poll(cx));
        let Bus { rt, stages, .. } = self.bus;
        rt.record_turn(Waits { turn: stages.core, service: self.stage }, turn);
        Poll::Ready(())
    }
}

/// An entry in the list of waits for memory, removed when dropped. The core polls meanwhile.
struct Watching<'a> {
    bus: &'a Bus,
    core: u32,
    slot: Option<usize>,
}

impl<'a> Watching<'a> {
    fn begin(bus: &'a Bus, core: u32) -> Watching<'a> {
        bus.host.poll_accountings[core as usize]
            .begin(bus.rt.now(), &bus.host.cores[core as usize]);
        Watching { bus, core, slot: None }
    }

    fn watch(&mut self, at: BusAddr, bytes: u32, cx: &Context<'_>) {
        match self.slot {
            None => self.slot = Some(self.bus.host.watch(at, bytes, self.bus.rt.park(cx))),
            Some(slot) => {
                let mut watches = self.bus.host.watches.borrow_mut();
                let watch = watches[slot].as_mut().expect("our own place");
                if watch.parked.is_none() {
                    watch.parked = Some(self.bus.rt.park(cx));
                }
            }
        }
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        let (host, core) = (&self.bus.host, self.core as usize);
        host.poll_accountings[core].end(self.bus.rt.now(), &host.cores[core]);
        if let Some(slot) = self.slot {
            host.watches.borrow_mut()[slot] = None;
        }
    }
}

/// Address of interrupt messages: posted writes of one word, the vector's number, claimed by the root
/// complex.
pub const INTERRUPTS_AT: u64 = 0xfee0_0000;
