//! The controller's limits, and how they relate.

/// Slots kept for admin commands, so that an abort never waits behind what it is to abort.
pub const ADMIN_SLOTS: u16 = 4;
/// The most slots for I/O commands.
pub const SLOTS_MAX: u16 = 4096;
/// Asynchronous Event Requests that are held at once.
pub const EVENT_REQUESTS_MAX: usize = 4;
/// Aborts that may be outstanding at once (ACL + 1).
pub const ABORTS_MAX: u8 = 4;
/// How long a host that waits for CSTS.RDY is told to at least, in units of 500 ms (CAP.TO): a medium that
/// takes longer to get ready says so.
pub const READY_TIMEOUT: u8 = 20;
/// A command's data are moved in pieces of at most so many bytes, so that a long one does not keep the
/// link from a short one.
pub const PIECE_BYTES: u32 = 64 * 1024;
/// Blocks are taken back in steps of at most so many bytes, so that a long one does not keep the
/// controller from the others.
pub const DEALLOCATE_BYTES: u32 = 16 << 20;
/// Source ranges of one Copy (MSRC + 1): their list is one page.
pub const COPY_RANGES_MAX: u16 = 128;
/// The most bytes that one Write Uncorrectable marks (WUSL).
pub const UNCORRECTABLE_BYTES_MAX: u32 = 64 * 1024;
/// Entries of the error log (ELPE + 1): one page.
pub const ERROR_LOG_ENTRIES: usize = 64;
/// The highest number of a namespace (NN), and the most that there can be.
pub const NAMESPACES_MAX: u32 = 16;
/// The most controllers of a subsystem; they are numbered from 1 (CNTLID).
pub const CONTROLLERS_MAX: u16 = 8;
/// Interrupt vectors offered.
pub const VECTORS: u16 = 64;
/// Zero degrees Celsius, in kelvins.
pub const KELVIN: u16 = 273;

const _: () = {
    // Each outstanding abort occupies an admin slot.
    assert!(ABORTS_MAX as u16 <= ADMIN_SLOTS);
    assert!(COPY_RANGES_MAX as usize * size_of::<wire::nvme::ranges::CopyRange>() == 4096);
    assert!(ERROR_LOG_ENTRIES * size_of::<wire::nvme::log::ErrorInformation>() == 4096);
    // Controllers of a namespace are bits of a byte.
    assert!(CONTROLLERS_MAX as u32 <= u8::BITS);
    // A piece is whole blocks of every format.
    assert!(PIECE_BYTES.is_multiple_of(4096));
};
