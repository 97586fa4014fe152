//! Configuration space of a PCI function: identity, base addresses, windows of bridges, capabilities,
//! interrupt pins.
//!
//! [`ConfigSpace`] is the function's side: the structure includes the mask of writable bits; the function
//! implements the side effects of writes. The rest is the driver's side: views of words ([`Words`]),
//! validated as they are read.
//!
//! ```text
//!   000h  header: identity, command, base addresses (PCI local bus 3.0, 6.1), or a bridge's buses and
//!         windows (PCI-to-PCI bridge 1.2, 3.2)
//!   040h  power management (PCI power management 1.2, 3.2)
//!   050h  MSI-X (PCIe base 5.0, 7.7.2)
//!   060h  PCI Express (PCIe base 5.0, 7.5.3)
//!   100h  device serial number (PCIe base 5.0, 7.9.3)
//! ```

mod address;
pub mod bar;
pub mod capability;
mod config;
mod header;
mod kind;

pub use address::{BUSES, Bdf, DEVICES, FUNCTIONS, Pin};
pub use config::{
    Bar, BridgeIdentity, CONFIG_BYTES, ConfigSpace, Effects, Identity, MSIX_ENTRY_BYTES, MsixTable,
    offset,
};
pub use header::{
    Buses, Header, Layout, STATUS_CAPABILITIES, Space, Window, Words, class, command,
};
pub use kind::{FunctionKind, NAMED_BYTES, WrongFunction};
