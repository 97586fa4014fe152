//! Host port of a live bus.

use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{Ordering, fence};

use runtime::{Rt, Stage, Time, stage};
use wire::BusAddr;

use super::{Shared, Window};
use crate::until::until;
use crate::{Arena, Arrival, Cost, HostPort};

/// A function that is not reached by a window of shared words. [`LiveHost`] dispatches to it, so that
/// drivers are compiled once for all live buses.
pub(crate) trait Function: 'static {
    /// As [`HostPort::write32`].
    fn write32(&self, register: u32, value: u32);

    /// As [`HostPort::read32`]. Registers are read during bring-up and on errors only, so a boxed future is
    /// acceptable.
    fn read32(&self, register: u32) -> Pin<Box<dyn Future<Output = u32> + '_>>;

    /// As [`HostPort::is_gone`].
    fn is_gone(&self) -> bool;

    /// Number of interrupts of this vector so far, modulo 2^32.
    fn interrupts(&self, vector: u16) -> u32;
}

/// Host port of a live bus. Cheap to clone; the connection is closed with the last clone.
#[derive(Clone)]
pub struct LiveHost {
    rt: Rt,
    arena: Arena,
    far: Far,
    poll: Stage,
    interrupt: Stage,
}

#[derive(Clone)]
pub(super) enum Far {
    Shared { window: Window, gone: Rc<Cell<bool>> },
    Function(Rc<dyn Function>),
}

impl LiveHost {
    pub(super) fn new(rt: &Rt, arena: Arena, far: Far) -> LiveHost {
        let (poll, interrupt) =
            (stage!(rt, super::STAGES, "poll"), stage!(rt, super::STAGES, "interrupt"));
        LiveHost { rt: rt.clone(), arena, far, poll, interrupt }
    }

    pub(crate) fn before(rt: &Rt, arena: Arena, function: impl Function) -> LiveHost {
        LiveHost::new(rt, arena, Far::Function(Rc::new(function)))
    }

    /// Port of the same host for [another](Shared::another) device, with a common buffer allocator.
    pub fn beside(&self, rt: &Rt, other: &Shared) -> LiveHost {
        let far = Far::Shared { window: other.window.clone(), gone: Rc::default() };
        LiveHost { far, rt: rt.clone(), ..self.clone() }
    }

    /// Marks the device as gone: from now on its registers read all ones, as behind a dead link. Has an
    /// effect on a window of shared words only; other live buses detect it themselves.
    pub fn mark_gone(&self) {
        if let Far::Shared { gone, .. } = &self.far {
            gone.set(true);
        }
    }

    #[inline]
    fn interrupts(&self, vector: u16) -> u32 {
        match &self.far {
            Far::Shared { window, .. } => {
                window.memory.load_u32(window.interrupts(vector)).expect("inside the window")
            }
            Far::Function(function) => function.interrupts(vector),
        }
    }
}

impl HostPort for LiveHost {
    fn rt(&self) -> &Rt {
        &self.rt
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    #[inline]
    fn write32(&self, register: u32, value: u32) {
        match &self.far {
            Far::Shared { window, .. } => window.write(register, value),
            Far::Function(function) => function.write32(register, value),
        }
        // Logged for recordings, after the store.
        self.rt.log("bus", "register", u64::from(register), u64::from(value));
    }

    async fn read32(&self, register: u32) -> u32 {
        match &self.far {
            _ if self.is_gone() => u32::MAX,
            Far::Shared { window, .. } => window.load(register),
            Far::Function(function) => function.read32(register).await,
        }
    }

    #[inline]
    fn is_gone(&self) -> bool {
        match &self.far {
            Far::Shared { gone, .. } => gone.get(),
            Far::Function(function) => function.is_gone(),
        }
    }

    async fn on_memory<T>(&self, _: BusAddr, _: u32, check: impl FnMut() -> Option<T>) -> T {
        let found = until(&self.rt, check).await;
        self.rt.record(self.poll);
        found
    }

    async fn on_interrupt(&self, vector: u16, seen: u32) -> u32 {
        let count =
            || Some(self.interrupts(vector)).filter(|count| *count != seen || self.is_gone());
        let found = until(&self.rt, count).await;
        self.rt.record(self.interrupt);
        found
    }

    /// Every peer makes the last word of a write visible after all others: our device and our vfio-user
    /// server with a release store, QEMU because it is one thread on x86, a real function because strictly
    /// ordered writes land in order. A driver that relies on more than an entry's own flag has to ensure
    /// that a real function does not set the relaxed-ordering attribute.
    fn arrival(&self) -> Arrival {
        Arrival::InOrder
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Detection takes no modelled time on a live bus.
    #[inline]
    fn noticed(&self) -> Time {
        self.rt.now()
    }

    fn cost(&self, _: &str) -> Cost {
        Cost::NONE
    }

    #[inline]
    async fn spend(&self, _: Cost) {}

    #[inline]
    async fn spend_times(&self, _: Cost, _: u32) {}
}
