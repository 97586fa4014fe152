//! Limits of the controller, and their relations.

/// Slots reserved for admin commands, so that an Abort never waits for the command that it aborts.
pub const ADMIN_SLOTS: u16 = 4;
/// Maximum number of slots for I/O commands.
pub const SLOTS_MAX: u16 = 4096;
/// Maximum outstanding Asynchronous Event Requests (AERL + 1).
pub const EVENT_REQUESTS_MAX: usize = 4;
/// Maximum outstanding Aborts (ACL + 1).
pub const ABORTS_MAX: u8 = 4;
/// Minimum of CAP.TO, in units of 500 ms: a host waits at least this long for CSTS.RDY. A medium with a
/// longer start time raises it.
pub const READY_TIMEOUT: u8 = 20;
/// Maximum piece of a data transfer, bytes: long commands are split, so that they do not block short ones on
/// the link.
pub const PIECE_BYTES: u32 = 64 * 1024;
/// Maximum step of a deallocation, bytes: long ones are split, so that they do not block the controller.
pub const DEALLOCATE_BYTES: u32 = 16 << 20;
/// Source ranges of one Copy (MSRC + 1): their list is one page.
pub const COPY_RANGES_MAX: u16 = 128;
/// Maximum length of one Write Uncorrectable, bytes (WUSL).
pub const UNCORRECTABLE_BYTES_MAX: u32 = 64 * 1024;
/// Entries of the error log (ELPE + 1): one page.
pub const ERROR_LOG_ENTRIES: usize = 64;
/// Highest namespace identifier (NN), and maximum number of namespaces.
pub const NAMESPACES_MAX: u32 = 16;
/// Maximum controllers of a subsystem; they are numbered from 1 (CNTLID).
pub const CONTROLLERS_MAX: u16 = 8;
/// Maximum groups of I/O queues, of equal shares.
pub const QUEUE_GROUPS_MAX: u16 = 8;
/// Number of interrupt vectors.
pub const VECTORS: u16 = 64;
/// Zero degrees Celsius, in kelvins.
pub const KELVIN: u16 = 273;

const _: () = {
    // Each outstanding Abort occupies an admin slot.
    assert!(ABORTS_MAX as u16 <= ADMIN_SLOTS);
    assert!(COPY_RANGES_MAX as usize * size_of::<wire::nvme::ranges::CopyRange>() == 4096);
    assert!(ERROR_LOG_ENTRIES * size_of::<wire::nvme::log::ErrorInformation>() == 4096);
    // Controllers of a namespace are bits of a byte.
    assert!(CONTROLLERS_MAX as u32 <= u8::BITS);
    // A piece is whole blocks in every format.
    assert!(PIECE_BYTES.is_multiple_of(4096));
};
