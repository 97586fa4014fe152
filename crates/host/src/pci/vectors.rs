//! MSI-X: vector table in a function's window (PCIe base 5.0, 7.7.2).

use bus::pci::{ConfigAccess, MemoryAccess};
use wire::pci::capability::Msix;
use wire::pci::{Bdf, MSIX_ENTRY_BYTES, Space};

use super::Function;

/// Message of a vector: a dword write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Address, a multiple of four.
    pub at: u64,
    /// Data.
    pub data: u32,
}

/// Why a function's vectors cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VectorError {
    /// It has no MSI-X capability.
    #[error("the function has no MSI-X capability")]
    None,
    /// The table does not lie in a window that has a place.
    #[error(
        "a table of {vectors} vectors at {at:#x} of BAR {bar}, expected one inside a memory window"
    )]
    Table {
        /// Number of the window.
        bar: u8,
        /// Offset of the table in the window.
        at: u32,
        /// Number of vectors.
        vectors: u16,
    },
    /// There is no such vector.
    #[error("vector {asked}, expected one below {vectors}")]
    Vector {
        /// Vector requested.
        asked: u16,
        /// Number of vectors.
        vectors: u16,
    },
}

/// The vectors of a function. They may be set in any order, before and after they are put to use.
#[derive(Debug)]
pub struct Vectors<'a, B> {
    bus: &'a B,
    of: Bdf,
    msix: Msix,
    table: u64,
}

impl<'a, B: ConfigAccess + MemoryAccess> Vectors<'a, B> {
    /// Finds the table of an enabled function.
    ///
    /// # Errors
    /// [`VectorError`] if the function has none, or it is not inside a window with an address.
    pub fn find(bus: &'a B, function: &Function) -> Result<Vectors<'a, B>, VectorError> {
        let msix = function.msix.ok_or(VectorError::None)?;
        let Msix { vectors, table_bar: bar, table: at, .. } = msix;
        let bytes = u64::from(vectors) * u64::from(MSIX_ENTRY_BYTES);
        let window = function.bar(bar).filter(|own| {
            own.request.space != Space::Io && u64::from(at) + bytes <= own.request.bytes
        });
        match window.and_then(|own| own.at) {
            Some(base) => Ok(Vectors { bus, of: function.at, msix, table: base + u64::from(at) }),
            None => Err(VectorError::Table { bar, at, vectors }),
        }
    }

    /// Number of vectors.
    pub fn count(&self) -> u16 {
        self.msix.vectors
    }

    /// Sets a vector's message and unmasks it. It is masked during the update, so that no partial message is
    /// sent.
    ///
    /// # Errors
    /// [`VectorError::Vector`] if there is no such vector.
    pub async fn set(&self, vector: u16, message: Message) -> Result<(), VectorError> {
        let entry = self.entry(vector)?;
        self.bus.memory_write(entry + 12, Msix::MASKED);
        self.bus.memory_write(entry, message.at as u32);
        self.bus.memory_write(entry + 4, (message.at >> 32) as u32);
        self.bus.memory_write(entry + 8, message.data);
        self.bus.memory_write(entry + 12, 0);
        // Read back to flush the posted writes.
        self.bus.memory_read(entry + 12).await;
        Ok(())
    }

    /// Masks or unmasks a vector. A pending message is sent when it is unmasked.
    ///
    /// # Errors
    /// [`VectorError::Vector`] if there is no such vector.
    pub async fn mask(&self, vector: u16, masked: bool) -> Result<(), VectorError> {
        let entry = self.entry(vector)?;
        self.bus.memory_write(entry + 12, u32::from(masked));
        self.bus.memory_read(entry + 12).await;
        Ok(())
    }

    fn entry(&self, vector: u16) -> Result<u64, VectorError> {
        let vectors = self.msix.vectors;
        if vector >= vectors {
            return Err(VectorError::Vector { asked: vector, vectors });
        }
        Ok(self.table + u64::from(vector) * u64::from(MSIX_ENTRY_BYTES))
    }

    /// Enables MSI-X instead of the pin, or the pin again.
    pub async fn use_them(&self, on: bool) {
        let control = if on { u32::from(Msix::ENABLE) << 16 } else { 0 };
        self.bus.config_write(self.of, self.msix.at, control).await;
    }
}
