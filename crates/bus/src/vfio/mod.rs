//! A function of the PCI bus, driven from user space through Linux's VFIO: a real device, behind an
//! IOMMU.
//!
//! Host memory is mapped for the function at the place where the driver's addresses say it is, and the
//! function can reach nothing else. Registers are mapped, so that a doorbell is a store; MSI-X vectors
//! are counted by a thread. What the kernel takes away or reports dead is *gone*, as is a function whose
//! registers read all ones.
//!
//! The IOMMU model is "type 1" by way of a group; a kernel that has only iommufd offers the same through
//! its compatible device file. Left out: INTx and MSI, functions whose registers cannot be mapped from
//! the first on, power management, and other processors than x86-64.

mod abi;
mod events;
mod function;
mod sys;

use alloc::rc::Rc;
use core::sync::atomic::{Ordering, fence};

use runtime::{Rt, Stage, Time};
use wire::BusAddr;

use crate::live::until;
use crate::{Arena, Arrival, Cost, HostPort};
use function::Taken;
pub use function::{VfioError, Wanted};

/// A function that has been taken from the kernel: reset, if it can be, and let into the memory that it
/// is to share.
pub struct Function(Rc<Taken>);

impl Function {
    /// Takes a function by its address, as in `0000:01:00.0`.
    ///
    /// # Errors
    /// What is missing, and how to mend it: VFIO does not have the function, there is no IOMMU, the
    /// function is another than wanted or lacks vectors, its memory cannot be mapped there.
    pub fn open(address: &str, wanted: &Wanted) -> Result<Function, VfioError> {
        Ok(Function(Rc::new(Taken::open(address, wanted)?)))
    }

    /// The driver's end, for the thread of `rt`.
    pub fn host(&self, rt: &Rt) -> VfioHost {
        VfioHost {
            rt: rt.clone(),
            arena: Arena::new(self.0.memory.clone()),
            function: self.0.clone(),
            poll: rt.stage("poll"),
            interrupt: rt.stage("interrupt"),
        }
    }
}

/// The driver's end of a bus with a real function on it. Cheap to clone; the function is given back
/// with the last clone.
#[derive(Clone)]
pub struct VfioHost {
    rt: Rt,
    arena: Arena,
    function: Rc<Taken>,
    poll: Stage,
    interrupt: Stage,
}

impl HostPort for VfioHost {
    fn rt(&self) -> &Rt {
        &self.rt
    }

    fn arena(&self) -> &Arena {
        &self.arena
    }

    #[inline]
    fn write32(&self, register: u32, value: u32) {
        self.function.registers.store(register, value);
    }

    async fn read32(&self, register: u32) -> u32 {
        if self.is_gone() { u32::MAX } else { self.function.registers.load(register) }
    }

    fn is_gone(&self) -> bool {
        self.function.events.seen.is_gone()
    }

    async fn on_memory<T>(&self, _: BusAddr, _: u32, check: impl FnMut() -> Option<T>) -> T {
        let found = until(&self.rt, check).await;
        self.rt.mark(self.poll);
        found
    }

    async fn on_interrupt(&self, vector: u16, seen: u32) -> u32 {
        let count = || self.function.events.seen.interrupts(vector);
        let found = until(&self.rt, || Some(count()).filter(|count| *count != seen)).await;
        self.rt.mark(self.interrupt);
        found
    }

    /// As strictly ordered writes land. A driver that leans on more than an entry's own flag is to see to
    /// it that its device does not set the relaxed-ordering attribute.
    #[inline]
    fn arrival(&self) -> Arrival {
        Arrival::InOrder
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// On a real bus, noticing takes no time of its own.
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
