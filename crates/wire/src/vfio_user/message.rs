//! The layouts: the header, and what follows it for each command.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The version that is spoken: no 1.0 has been published.
pub const VERSION_MAJOR: u16 = 0;
/// See [`VERSION_MAJOR`]; minor version 1.
pub const VERSION_MINOR: u16 = 1;
/// Bytes of data that one message carries, unless both sides agree on another limit.
pub const TRANSFER_BYTES_DEFAULT: u64 = 1 << 20;

/// What a message asks for ("Commands").
pub mod command {
    /// Version and capabilities, the first message.
    pub const VERSION: u16 = 1;
    /// Memory that the server may access.
    pub const DMA_MAP: u16 = 2;
    /// Memory that it may access no more.
    pub const DMA_UNMAP: u16 = 3;
    /// How many regions and kinds of interrupts there are.
    pub const DEVICE_INFO: u16 = 4;
    /// What a region is like.
    pub const REGION_INFO: u16 = 5;
    /// Descriptors through which a region may be accessed.
    pub const REGION_IO_FDS: u16 = 6;
    /// How many interrupts of a kind there are.
    pub const IRQ_INFO: u16 = 7;
    /// How interrupts are signalled.
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

/// The indices of regions: those of the kernel's VFIO for PCI.
pub mod region {
    /// The first of six base addresses.
    pub const BAR0: u32 = 0;
    /// The last of them.
    pub const BAR5: u32 = 5;
    /// The configuration space.
    pub const CONFIG: u32 = 7;
    /// How many indices there are.
    pub const COUNT: u32 = 9;
    /// A region may be read.
    pub const READ: u32 = 1 << 0;
    /// A region may be written.
    pub const WRITE: u32 = 1 << 1;
    /// A region, or areas of it, may be mapped.
    pub const MMAP: u32 = 1 << 2;
    /// Capabilities follow.
    pub const CAPS: u32 = 1 << 3;
    /// The capability that lists the areas that may be mapped.
    pub const CAP_SPARSE_MMAP: u16 = 1;
}

/// The indices of kinds of interrupts: those of the kernel's VFIO for PCI.
pub mod irq {
    /// The pin.
    pub const INTX: u32 = 0;
    /// MSI, which nothing here has.
    pub const MSI: u32 = 1;
    /// MSI-X.
    pub const MSIX: u32 = 2;
    /// How many indices there are.
    pub const COUNT: u32 = 5;
    /// Signalled by a descriptor.
    pub const EVENTFD: u32 = 1 << 0;
    /// May be masked.
    pub const MASKABLE: u32 = 1 << 1;
    /// Masks itself when signalled.
    pub const AUTOMASKED: u32 = 1 << 2;
}

/// Flags of the device.
pub mod device {
    /// It can be reset.
    pub const RESET: u32 = 1 << 0;
    /// It is a PCI function.
    pub const PCI: u32 = 1 << 1;
}

/// Numbers of errors in replies: those of Linux.
pub mod errno {
    /// No such thing.
    pub const ENOENT: u32 = 2;
    /// Input or output has failed.
    pub const EIO: u32 = 5;
    /// Too long.
    pub const E2BIG: u32 = 7;
    /// No memory.
    pub const ENOMEM: u32 = 12;
    /// It is there already.
    pub const EEXIST: u32 = 17;
    /// Makes no sense.
    pub const EINVAL: u32 = 22;
    /// No room.
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
    /// Before every message ("Header").
    Header, 16 {
        /// Echoed in the reply.
        id: U16,
        /// [`command`].
        command: U16,
        /// Of the whole message, this header included.
        bytes: U32,
        /// Bits 3:0: command or reply; bit 4: no reply wanted; bit 5: an error.
        flags: U32,
        /// The error, in a reply with bit 5.
        error: U32,
    }
}

impl Header {
    /// Its length in bytes.
    pub const BYTES: usize = 16;
    const TYPE: u32 = 0xf;
    const REPLY: u32 = 1;
    const NO_REPLY: u32 = 1 << 4;
    const ERROR: u32 = 1 << 5;

    /// Of a command with so many bytes behind it.
    pub fn command(id: u16, command: u16, payload_bytes: usize) -> Header {
        Header {
            id: id.into(),
            command: command.into(),
            bytes: ((Header::BYTES + payload_bytes) as u32).into(),
            ..Header::default()
        }
    }

    /// Of the reply to this command, with so many bytes behind it.
    pub fn reply(&self, payload_bytes: usize) -> Header {
        Header {
            bytes: ((Header::BYTES + payload_bytes) as u32).into(),
            flags: Header::REPLY.into(),
            error: 0.into(),
            ..*self
        }
    }

    /// Of the reply that says why this command failed.
    pub fn failure(&self, error: u32) -> Header {
        let flags = (Header::REPLY | Header::ERROR).into();
        Header { flags, error: error.into(), ..self.reply(0) }
    }

    /// Whether it begins a command; neither that nor a reply makes no sense.
    pub fn is_command(&self) -> bool {
        self.flags.get() & Header::TYPE == 0
    }

    /// Whether it begins a reply.
    pub fn is_reply(&self) -> bool {
        self.flags.get() & Header::TYPE == Header::REPLY
    }

    /// Whether the sender wants a reply.
    pub fn wants_reply(&self) -> bool {
        self.flags.get() & Header::NO_REPLY == 0
    }

    /// The error that a reply carries.
    pub fn failed(&self) -> Option<u32> {
        (self.flags.get() & Header::ERROR != 0).then(|| self.error.get())
    }
}

structure! {
    /// The beginning of [`command::VERSION`]; capabilities follow as JSON, with a zero at its end.
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
        /// The length of this structure.
        argsz: U32,
        /// Bit 0: may be read; bit 1: may be written.
        flags: U32,
        /// Where it begins in its descriptor's file.
        offset: U64,
        /// Where it begins on the bus.
        address: U64,
        /// Its length.
        size: U64,
    }
}

structure! {
    /// [`command::DMA_UNMAP`], and its reply.
    DmaUnmap, 24 {
        /// The longest reply that is wanted.
        argsz: U32,
        /// Bit 1: everything.
        flags: U32,
        /// Where it begins on the bus.
        address: U64,
        /// Its length.
        size: U64,
    }
}

structure! {
    /// [`command::DEVICE_INFO`], and its reply.
    DeviceInfo, 16 {
        /// The longest reply that is wanted; in the reply, its length.
        argsz: U32,
        /// [`device`].
        flags: U32,
        /// How many regions.
        regions: U32,
        /// How many kinds of interrupts.
        irqs: U32,
    }
}

structure! {
    /// [`command::REGION_INFO`], and its reply; capabilities may follow.
    RegionInfo, 32 {
        /// The longest reply that is wanted; in the reply, the length that it would have in full.
        argsz: U32,
        /// [`region`].
        flags: U32,
        /// Which region.
        index: U32,
        /// Where the first capability begins, from the start of this structure.
        capabilities: U32,
        /// Its length.
        size: U64,
        /// What to add to a place in it, to have the place in the descriptor's file.
        offset: U64,
    }
}

structure! {
    /// The areas of a region that may be mapped: a capability, with [`SparseArea`]s behind it.
    SparseMmap, 16 {
        /// [`region::CAP_SPARSE_MMAP`].
        id: U16,
        /// 1.
        version: U16,
        /// Where the next capability begins; zero: nowhere.
        next: U32,
        /// How many areas follow.
        areas: U32,
        /// Zero.
        reserved: U32,
    }
}

structure! {
    /// An area that may be mapped.
    SparseArea, 16 {
        /// Where it begins in the region.
        offset: U64,
        /// Its length.
        size: U64,
    }
}

structure! {
    /// [`command::IRQ_INFO`], and its reply.
    IrqInfo, 16 {
        /// The longest reply that is wanted; in the reply, its length.
        argsz: U32,
        /// [`irq`].
        flags: U32,
        /// Which kind.
        index: U32,
        /// How many there are.
        count: U32,
    }
}

structure! {
    /// [`command::SET_IRQS`]; data may follow, and descriptors come beside it.
    IrqSet, 20 {
        /// The length of this structure with its data.
        argsz: U32,
        /// Bits 2:0: what data; bits 5:3: what to do.
        flags: U32,
        /// Which kind.
        index: U32,
        /// The first.
        start: U32,
        /// How many.
        count: U32,
    }
}

structure! {
    /// [`command::REGION_READ`] and [`command::REGION_WRITE`]; data follow what writes, and the
    /// reply to what reads.
    RegionAccess, 16 {
        /// Where in the region.
        offset: U64,
        /// Which region.
        region: U32,
        /// How many bytes.
        count: U32,
    }
}

structure! {
    /// [`command::DMA_READ`] and [`command::DMA_WRITE`]; data follow as for [`RegionAccess`].
    DmaAccess, 16 {
        /// Where on the bus.
        address: U64,
        /// How many bytes.
        count: U64,
    }
}
