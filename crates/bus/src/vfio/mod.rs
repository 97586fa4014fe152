//! User-space driver access to a PCI function through Linux VFIO: a real device behind an IOMMU.
//! docs/real-machines.md describes its use and its limits.
//!
//! The arena is mapped for the function once, at the bus addresses that the driver uses: the address of a
//! buffer is the one that goes into a PRP, and no mapping changes on the path of a command. The function can
//! access nothing else. Registers are a mapping of BAR 0, and an access is one volatile word. Earlier stores
//! to memory precede it because x86 keeps the order of stores; on other processors the port refuses to open.
//!
//! A thread waits for the kernel's event counters and adds them to words that the driver polls, as on the
//! other live buses: MSI-X vectors, hardware errors, and the kernel's request to release the function. After
//! either of the last two the function is *gone*, as is one whose registers read all ones.
//!
//! INTx is disabled in the command register before the function may master the bus: otherwise a controller
//! whose vectors are not in use would assert a pin that no handler serves. When the port is dropped, the
//! function loses bus mastering first. If the process is killed, the kernel does the same, and keeps the
//! pages that the function could still write until it has.
//!
//! The IOMMU model is "type 1" through a group; a kernel with iommufd alone offers the same through its
//! compatible device file. Not supported: INTx and MSI, functions whose registers cannot be mapped from the
//! first on, power management, processors other than x86-64.
//!
//! The dozen system calls are made directly. Existing crates also bring a model of a virtual machine's
//! memory; here memory is one region.

mod abi;
mod error;
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
pub use abi::AnswerError;
pub use error::{VfioError, VfioErrorKind};
use function::Taken;
pub use function::Wanted;

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
