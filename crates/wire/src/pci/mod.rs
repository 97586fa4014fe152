//! The configuration space of a PCI function, bytes and their meaning: identity, base addresses,
//! capabilities. Which registers a host may write is part of the structure; what its writing does is the
//! function's own.
//!
//! ```text
//!   000h  header: identity, command, base addresses (PCI local bus 3.0, 6.1)
//!   040h  power management (PCI power management 1.2, 3.2)
//!   050h  MSI-X (PCIe base 5.0, 7.7.2)
//!   060h  PCI Express (PCIe base 5.0, 7.5.3)
//!   100h  device serial number (PCIe base 5.0, 7.9.3)
//! ```

mod config;

pub use config::{
    Bar, CONFIG_BYTES, ConfigSpace, Effects, Identity, MSIX_ENTRY_BYTES, MsixTable, offset,
};
