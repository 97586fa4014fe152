//! The bus operations of a case, behind one object-safe trait, so that the cases are compiled once.

use std::future::Future;
use std::pin::Pin;

use bus::{HostPort, Memory};
use runtime::Rt;
use wire::BusAddr;

/// Boxed future of a [`Reach`] operation.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Access to a controller by a host without a driver. Every [`HostPort`] implements it.
pub trait Reach {
    /// The executor of the host's side.
    fn rt(&self) -> &Rt;

    /// Host memory that the controller can access.
    fn memory(&self) -> Memory;

    /// True if the controller is known to be gone.
    fn is_gone(&self) -> bool;

    /// Posts a write to the 32-bit register at offset `register`.
    fn write32(&self, register: u32, value: u32);

    /// Reads the 32-bit register at offset `register`.
    fn read32(&self, register: u32) -> Later<'_, u32>;

    /// Waits until `come` accepts the word of host memory at `at`.
    fn until_word<'a>(&'a self, at: BusAddr, come: &'a dyn Fn(u32) -> bool) -> Later<'a, ()>;

    /// Waits until the count of this vector's interrupts differs from `seen`, and returns it.
    fn interrupt(&self, vector: u16, seen: u32) -> Later<'_, u32>;
}

impl<P: HostPort> Reach for P {
    fn rt(&self) -> &Rt {
        HostPort::rt(self)
    }

    fn memory(&self) -> Memory {
        self.arena().memory().clone()
    }

    fn is_gone(&self) -> bool {
        HostPort::is_gone(self)
    }

    fn write32(&self, register: u32, value: u32) {
        HostPort::write32(self, register, value);
    }

    fn read32(&self, register: u32) -> Later<'_, u32> {
        Box::pin(HostPort::read32(self, register))
    }

    fn until_word<'a>(&'a self, at: BusAddr, come: &'a dyn Fn(u32) -> bool) -> Later<'a, ()> {
        Box::pin(async move {
            let memory = self.arena().memory();
            let look = || come(memory.load_u32(at).ok()?).then_some(());
            self.on_memory(at, 4, look).await;
        })
    }

    fn interrupt(&self, vector: u16, seen: u32) -> Later<'_, u32> {
        Box::pin(self.on_interrupt(vector, seen))
    }
}
