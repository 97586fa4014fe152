//! User-space driver access to a PCI function through Linux VFIO: a real device behind an IOMMU.
//!
//! Host memory is mapped for the function at the bus addresses that the driver uses; the function can
//! access nothing else. Registers are mapped, so a doorbell is a store; a thread counts MSI-X interrupts. A
//! function that the kernel removes or reports dead is *gone*, as is one whose registers read all ones.
//!
//! The IOMMU model is "type 1" through a group; a kernel with iommufd alone offers the same through its
//! compatible device file. Not supported: INTx and MSI, functions whose registers cannot be mapped from the
//! first on, power management, processors other than x86-64.

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

/// A function opened through VFIO: reset, if it supports that, and with access to the shared memory.
pub struct Function(Rc<Taken>);

impl Function {
    /// Opens a function by its address, as in `0000:01:00.0`.
    ///
    /// # Errors
    /// The missing requirement, with advice: the function is not bound to vfio-pci, there is no IOMMU, the
    /// class differs or vectors are missing, the memory cannot be mapped at its bus address.
    pub fn open(address: &str, wanted: &Wanted) -> Result<Function, VfioError> {
        Ok(Function(Rc::new(Taken::open(address, wanted)?)))
    }

    /// Host port for the thread of `rt`. The function is released when its last clone and this are dropped.
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
