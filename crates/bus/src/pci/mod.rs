//! PCI as seen by a processor: configuration space by ports or mapped into memory (ECAM), and a model of
//! bridges and functions ([`Topology`]).
//!
//! Accesses are 32-bit words; bridges route them by their registers: bus numbers and windows. An access
//! that no bridge forwards or no function claims reads all ones, and a write is dropped. Every access may
//! take time, so each is a future; it is ready at once if there is nothing to wait for.

mod topology;

use core::future::Future;

use wire::pci::{Bdf, CONFIG_BYTES};

pub use topology::{Claim, Fabric, NodeId, Place, Registers, Topology};

/// Access to configuration space.
pub trait ConfigAccess {
    /// Reads the word at offset `at`, a multiple of 4. Returns all ones if no function answers.
    fn config_read(&self, of: Bdf, at: u16) -> impl Future<Output = u32>;

    /// Writes that word; read-only bits keep their value.
    fn config_write(&self, of: Bdf, at: u16, value: u32) -> impl Future<Output = ()>;
}

/// Access to the memory windows of functions.
pub trait MemoryAccess {
    /// Reads the word at address `at`, a multiple of 4. Returns all ones if no function claims it.
    fn memory_read(&self, at: u64) -> impl Future<Output = u32>;

    /// Posts a write of a word.
    fn memory_write(&self, at: u64, value: u32);
}

/// Access to I/O ports.
pub trait PortAccess {
    /// Reads the word at this port. Returns all ones if no device claims it.
    fn port_read(&self, at: u16) -> impl Future<Output = u32>;

    /// Writes a word to this port.
    fn port_write(&self, at: u16, value: u32) -> impl Future<Output = ()>;
}

impl<T: ConfigAccess> ConfigAccess for &T {
    async fn config_read(&self, of: Bdf, at: u16) -> u32 {
        T::config_read(self, of, at).await
    }

    async fn config_write(&self, of: Bdf, at: u16, value: u32) {
        T::config_write(self, of, at, value).await;
    }
}

/// Configuration mechanism #1 (PCI local bus 3.0, 3.2.2.3.2): the first 256 bytes of each function.
#[derive(Clone, Copy, Debug)]
pub struct Ports<P>(pub P);

/// `CONFIG_ADDRESS` and `CONFIG_DATA`, with the enable bit of the former.
const ADDRESS: u16 = 0xcf8;
const DATA: u16 = 0xcfc;
const ENABLE: u32 = 1 << 31;
/// Bytes of configuration space that the ports reach.
const PORT_BYTES: u16 = 256;

impl<P: PortAccess> Ports<P> {
    async fn point(&self, of: Bdf, at: u16) -> bool {
        let reachable = at < PORT_BYTES;
        if reachable {
            let address = ENABLE | u32::from(of.bits()) << 8 | u32::from(at & !3);
            self.0.port_write(ADDRESS, address).await;
        }
        reachable
    }
}

impl<P: PortAccess> ConfigAccess for Ports<P> {
    async fn config_read(&self, of: Bdf, at: u16) -> u32 {
        if self.point(of, at).await { self.0.port_read(DATA).await } else { u32::MAX }
    }

    async fn config_write(&self, of: Bdf, at: u16, value: u32) {
        if self.point(of, at).await {
            self.0.port_write(DATA, value).await;
        }
    }
}

/// Enhanced configuration access mechanism (PCIe base 5.0, 7.2.2): 4 KiB for each function.
#[derive(Clone, Copy, Debug)]
pub struct Ecam<M> {
    /// Access to memory.
    pub memory: M,
    /// Address of the configuration space of bus 0.
    pub at: u64,
}

impl<M> Ecam<M> {
    fn address(&self, of: Bdf, at: u16) -> Option<u64> {
        let inside = usize::from(at) < CONFIG_BYTES;
        inside.then(|| self.at + (u64::from(of.bits()) << 12) + u64::from(at & !3))
    }
}

impl<M: MemoryAccess> ConfigAccess for Ecam<M> {
    async fn config_read(&self, of: Bdf, at: u16) -> u32 {
        match self.address(of, at) {
            Some(address) => self.memory.memory_read(address).await,
            None => u32::MAX,
        }
    }

    /// A configuration write is non-posted. Memory writes are posted, so a read of the same word, which no
    /// posted write can pass, waits until the function has it.
    async fn config_write(&self, of: Bdf, at: u16, value: u32) {
        if let Some(address) = self.address(of, at) {
            self.memory.memory_write(address, value);
            self.memory.memory_read(address).await;
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use alloc::collections::BTreeMap;
    use core::cell::{Cell, RefCell};
    use runtime::{Log, Rt};

    /// A machine with one function, 03:02.1, accessible by both mechanisms.
    #[derive(Default)]
    struct Board {
        address: Cell<u32>,
        space: RefCell<BTreeMap<u16, u32>>,
    }

    const THERE: Bdf = Bdf::new(3, 2, 1);

    impl PortAccess for &Board {
        async fn port_read(&self, at: u16) -> u32 {
            assert_eq!(at, 0xcfc);
            match self.address.get() {
                address if address >> 8 == 0x80_0311 => {
                    self.space.borrow().get(&(address as u16 & 0xff)).copied().unwrap_or(0)
                }
                _ => u32::MAX,
            }
        }

        async fn port_write(&self, at: u16, value: u32) {
            match at {
                0xcf8 => self.address.set(value),
                _ => drop(self.space.borrow_mut().insert(self.address.get() as u16 & 0xff, value)),
            }
        }
    }

    impl MemoryAccess for &Board {
        async fn memory_read(&self, at: u64) -> u32 {
            match at.checked_sub(0xb031_1000) {
                Some(at @ 0..4096) => self.space.borrow().get(&(at as u16)).copied().unwrap_or(0),
                _ => u32::MAX,
            }
        }

        fn memory_write(&self, at: u64, value: u32) {
            self.space.borrow_mut().insert(at as u16 & 0xfff, value);
        }
    }

    #[test]
    fn config_ports_and_ecam_reach_same_function() {
        let board = Board::default();
        Rt::simulated(None, Log::Off).block_on(async {
            let ports = Ports(&board);
            let mapped = Ecam { memory: &board, at: 0xb000_0000 };
            ports.config_write(THERE, 0x3c, 0x1234).await;
            assert_eq!(mapped.config_read(THERE, 0x3c).await, 0x1234);
            mapped.config_write(THERE, 0x10, 7).await;
            assert_eq!(ports.config_read(THERE, 0x10).await, 7);
            assert_eq!(ports.config_read(Bdf::new(3, 2, 0), 0x10).await, u32::MAX);
            assert_eq!(mapped.config_read(Bdf::new(3, 2, 0), 0x10).await, u32::MAX);
            // Beyond the first 256 bytes, and beyond the configuration space.
            mapped.config_write(THERE, 0x104, 9).await;
            assert_eq!(mapped.config_read(THERE, 0x104).await, 9);
            assert_eq!(ports.config_read(THERE, 0x104).await, u32::MAX);
            assert_eq!(mapped.config_read(THERE, 0x1000).await, u32::MAX);
        });
    }
}
