//! Message layouts: the header, and the payload of each command.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Protocol version supported: no 1.0 has been published.
pub const VERSION_MAJOR: u16 = 0;
/// See [`VERSION_MAJOR`]; minor version 1.
pub const VERSION_MINOR: u16 = 1;
/// Default maximum of data per message, bytes, unless both sides agree on another limit.
pub const TRANSFER_BYTES_DEFAULT: u64 = 1 << 20;

/// Commands ("Commands").
pub mod command {
    /// Version and capabilities, the first message.
    pub const VERSION: u16 = 1;
    /// Memory that the server may access.
    pub const DMA_MAP: u16 = 2;
    /// Memory that the server may no longer access.
    pub const DMA_UNMAP: u16 = 3;
    /// Number of regions and interrupt types.
    pub const DEVICE_INFO: u16 = 4;
    /// Properties of a region.
    pub const REGION_INFO: u16 = 5;
    /// File descriptors for access to a region.
    pub const REGION_IO_FDS: u16 = 6;
    /// Number of interrupts of a type.
    pub const IRQ_INFO: u16 = 7;
    /// Signalling of interrupts.
    pub const SET_IRQS: u16 = 8;
    /// Reads a region.
    pub const REGION_READ: u16 = 9;
    /// Writes a region.
    pub const REGION_WRITE: u16 = 10;
    /// The server reads the client's memory.
    pub const DMA_READ: u16 = 11;
    /// The server writes the client's memory.
    pub const DMA_WRITE: u16 = 12;
    /// Resets the device.
    pub const RESET: u16 = 13;
}

/// Indices of regions, the same as in the kernel's VFIO for PCI.
pub mod region {
    /// First base address register.
    pub const BAR0: u32 = 0;
    /// Last base address register.
    pub const BAR5: u32 = 5;
    /// The configuration space.
    pub const CONFIG: u32 = 7;
    /// Number of indices.
    pub const COUNT: u32 = 9;
    /// Flag: the region is readable.
    pub const READ: u32 = 1 << 0;
    /// Flag: the region is writable.
    pub const WRITE: u32 = 1 << 1;
    /// Flag: the region, or areas of it, can be mapped.
    pub const MMAP: u32 = 1 << 2;
    /// Flag: capabilities follow.
    pub const CAPS: u32 = 1 << 3;
    /// Capability with the list of areas that can be mapped.
    pub const CAP_SPARSE_MMAP: u16 = 1;
}

/// Indices of interrupt types, the same as in the kernel's VFIO for PCI.
pub mod irq {
    /// Interrupt pin.
    pub const INTX: u32 = 0;
    /// MSI, which no device here has.
    pub const MSI: u32 = 1;
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// Number of indices.
    pub const COUNT: u32 = 5;
    /// Flag: signalled by an eventfd.
    pub const EVENTFD: u32 = 1 << 0;
    /// Flag: can be masked.
    pub const MASKABLE: u32 = 1 << 1;
    /// Flag: masks itself when signalled.
    pub const AUTOMASKED: u32 = 1 << 2;
}

/// Flags of the device.
pub mod device {
    /// Supports reset.
    pub const RESET: u32 = 1 << 0;
    /// A PCI function.
    pub const PCI: u32 = 1 << 1;
}

/// Error numbers in replies, as in Linux.
pub mod errno {
    /// No such object.
    pub const ENOENT: u32 = 2;
    /// I/O error.
    pub const EIO: u32 = 5;
    /// Message too long.
    pub const E2BIG: u32 = 7;
    /// No memory.
    pub const ENOMEM: u32 = 12;
    /// Already exists.
    pub const EEXIST: u32 = 17;
    /// Invalid argument.
    pub const EINVAL: u32 = 22;
    /// No space left.
    pub const ENOSPC: u32 = 28;
    /// Not supported.
    pub const ENOTSUP: u32 = 95;
}

macro_rules! structure {
    ($(#[$doc:meta])* $name:ident, $bytes:literal {
        $($(#[$field_doc:meta])* $field:ident: $of:ty,)+
    }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable,
            KnownLayout, Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $of,)+
        }
        const _: () = assert!(size_of::<$name>() == $bytes);
    };
}

structure! {
    /// Header of every message ("Header").
    Header, 16 {
        /// Message identifier, repeated in the reply.
        id: U16,
        /// [`command`].
        command: U16,
        /// Length of the whole message in bytes, including this header.
        bytes: U32,
        /// Bits 3:0: command or reply; bit 4: no reply; bit 5: error.
        flags: U32,
        /// Error number, in a reply with bit 5.
        error: U32,
    }
}

impl Header {
    /// Length in bytes.
    pub const BYTES: usize = 16;
    const TYPE: u32 = 0xf;
    const REPLY: u32 = 1;
    const NO_REPLY: u32 = 1 << 4;
    const ERROR: u32 = 1 << 5;

    /// Header of a command with `payload_bytes` bytes of payload.
    pub fn command(id: u16, command: u16, payload_bytes: usize) -> Header {
        Header {
            id: id.into(),
            command: command.into(),
            bytes: ((Header::BYTES + payload_bytes) as u32).into(),
            ..Header::default()
        }
    }

    /// Header of the reply to this command, with `payload_bytes` bytes of payload.
    pub fn reply(&self, payload_bytes: usize) -> Header {
        Header {
            bytes: ((Header::BYTES + payload_bytes) as u32).into(),
            flags: Header::REPLY.into(),
            error: 0.into(),
            ..*self
        }
    }

    /// Header of an error reply to this command.
    pub fn failure(&self, error: u32) -> Header {
        let flags = (Header::REPLY | Header::ERROR).into();
        Header { flags, error: error.into(), ..self.reply(0) }
    }

    /// True for a command.
    pub fn is_command(&self) -> bool {
        self.flags.get() & Header::TYPE == 0
    }

    /// True for a reply.
    pub fn is_reply(&self) -> bool {
        self.flags.get() & Header::TYPE == Header::REPLY
    }

    /// True if the sender expects a reply.
    pub fn wants_reply(&self) -> bool {
        self.flags.get() & Header::NO_REPLY == 0
    }

    /// Error number of an error reply.
    pub fn failed(&self) -> Option<u32> {
        (self.flags.get() & Header::ERROR != 0).then(|| self.error.get())
    }
}

structure! {
    /// Start of [`command::VERSION`]; capabilities follow as JSON, zero-terminated.
    Version, 4 {
        /// Major version.
        major: U16,
        /// Minor version.
        minor: U16,
    }
}

structure! {
    /// [`command::DMA_MAP`].
    DmaMap, 32 {
        /// Length of this structure.
        argsz: U32,
        /// Bit 0: readable; bit 1: writable.
        flags: U32,
        /// Offset in the file of the descriptor, bytes.
        offset: U64,
        /// Bus address.
        address: U64,
        /// Length in bytes.
        size: U64,
    }
}

structure! {
    /// [`command::DMA_UNMAP`], and its reply.
    DmaUnmap, 24 {
        /// Maximum length of the reply.
        argsz: U32,
        /// Bit 1: unmap all.
        flags: U32,
        /// Bus address.
        address: U64,
        /// Length in bytes.
        size: U64,
    }
}

structure! {
    /// [`command::DEVICE_INFO`], and its reply.
    DeviceInfo, 16 {
        /// Maximum length of the reply; in the reply, its length.
        argsz: U32,
        /// [`device`].
        flags: U32,
        /// Number of regions.
        regions: U32,
        /// Number of interrupt types.
        irqs: U32,
    }
}

structure! {
    /// [`command::REGION_INFO`], and its reply; capabilities may follow.
    RegionInfo, 32 {
        /// Maximum length of the reply; in the reply, its full length.
        argsz: U32,
        /// [`region`].
        flags: U32,
        /// Region index.
        index: U32,
        /// Offset of the first capability from the start of this structure.
        capabilities: U32,
        /// Length in bytes.
        size: U64,
        /// Offset of the region in the file of the descriptor, bytes.
        offset: U64,
    }
}

structure! {
    /// Capability: areas of a region that can be mapped, followed by [`SparseArea`]s.
    SparseMmap, 16 {
        /// [`region::CAP_SPARSE_MMAP`].
        id: U16,
        /// Version, 1.
        version: U16,
        /// Offset of the next capability; zero for none.
        next: U32,
        /// Number of areas that follow.
        areas: U32,
        /// Reserved; zero.
        reserved: U32,
    }
}

structure! {
    /// An area that can be mapped.
    SparseArea, 16 {
        /// Offset in the region, bytes.
        offset: U64,
        /// Length in bytes.
        size: U64,
    }
}

structure! {
    /// [`command::IRQ_INFO`], and its reply.
    IrqInfo, 16 {
        /// Maximum length of the reply; in the reply, its length.
        argsz: U32,
        /// [`irq`].
        flags: U32,
        /// Interrupt type.
        index: U32,
        /// Number of interrupts.
        count: U32,
    }
}

structure! {
    /// [`command::SET_IRQS`]; data may follow, and file descriptors are passed with the message.
    IrqSet, 20 {
        /// Length of this structure with its data.
        argsz: U32,
        /// Bits 2:0: type of data; bits 5:3: action.
        flags: U32,
        /// Interrupt type.
        index: U32,
        /// First interrupt.
        start: U32,
        /// Number of interrupts.
        count: U32,
    }
}

structure! {
    /// [`command::REGION_READ`] and [`command::REGION_WRITE`]; data follow in a write command and in the
    /// reply to a read.
    RegionAccess, 16 {
        /// Offset in the region, bytes.
        offset: U64,
        /// Region index.
        region: U32,
        /// Length in bytes.
        count: U32,
    }
}

structure! {
    /// [`command::DMA_READ`] and [`command::DMA_WRITE`]; data follow as for [`RegionAccess`].
    DmaAccess, 16 {
        /// Bus address.
        address: U64,
        /// Length in bytes.
        count: U64,
    }
}
