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

use alloc::boxed::Box;
use alloc::rc::Rc;
use core::future::Future;
use core::pin::Pin;

use runtime::Rt;

use crate::Arena;
use crate::live::{self, LiveHost};
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

    /// The driver's end, for the thread of `rt`. The function is given back with its last clone, and this.
    pub fn host(&self, rt: &Rt) -> LiveHost {
        LiveHost::before(rt, Arena::new(self.0.memory.clone()), self.0.clone())
    }
}

impl live::Function for Rc<Taken> {
    #[inline]
    fn write32(&self, register: u32, value: u32) {
        self.registers.store(register, value);
    }

    fn read32(&self, register: u32) -> Pin<Box<dyn Future<Output = u32> + '_>> {
        Box::pin(core::future::ready(self.registers.load(register)))
    }

    fn is_gone(&self) -> bool {
        self.events.seen.is_gone()
    }

    fn interrupts(&self, vector: u16) -> u32 {
        self.events.seen.interrupts(vector)
    }
}
