//! Identify data structures, 4096 bytes each (NVMe base 2.0, 5.17).

mod ascii;
mod controller;
mod descriptors;
mod list;
mod namespace;

pub use ascii::{ascii_padded, ascii_text};
pub use controller::{
    IdentifyController, PowerState, cmic, ctratt, fuses, lpa, oacs, oncs, sgls, vwc,
};
pub use descriptors::{BadDescriptors, IdDescriptors};
pub use list::NamespaceList;
pub use namespace::{IdentifyNamespace, LbaFormat, nsfeat};

/// Structure to identify (CNS).
pub mod cns {
    /// [`super::IdentifyNamespace`] of an active namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// [`super::IdentifyController`].
    pub const CONTROLLER: u8 = 0x01;
    /// [`super::NamespaceList`] of the active namespaces above the given one.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// [`super::IdDescriptors`] of a namespace.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// A namespace, specific to a command set.
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    /// The controller, specific to a command set.
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    /// Active namespaces of one command set.
    pub const COMMAND_SET_ACTIVE_NAMESPACES: u8 = 0x07;
    /// [`super::NamespaceList`] of the allocated namespaces above the given one.
    pub const ALLOCATED_NAMESPACES: u8 = 0x10;
    /// [`super::IdentifyNamespace`] of an allocated namespace.
    pub const ALLOCATED_NAMESPACE: u8 = 0x11;
    /// Controllers that have a namespace attached.
    pub const CONTROLLERS_OF_NAMESPACE: u8 = 0x12;
    /// Controllers of the subsystem.
    pub const CONTROLLERS: u8 = 0x13;
}

/// Command set identifiers (CSI).
pub mod csi {
    /// The NVM command set: logical blocks.
    pub const NVM: u8 = 0x00;
}

/// Bytes of every Identify structure.
pub const IDENTIFY_BYTES: usize = 4096;
