//! Limits of this crate, and the relations between them.

/// The longest job file that is read, in bytes.
pub const JOB_FILE_BYTES_MAX: usize = 1 << 20;
/// The longest recording of a live run that is read, in bytes: several times the longest one written.
pub const RECORDING_BYTES_MAX: u64 = 1 << 30;
/// Maximum number of clones of one job, and of all jobs that run at the same time.
pub const NUMJOBS_MAX: u64 = 1 << 12;
/// Maximum `iodepth`.
pub const IODEPTH_MAX: u64 = 1 << 16;
/// The largest single read or write, in bytes.
pub const IO_BYTES_MAX: u64 = 1 << 30;
/// The most entries in one `bssplit`, as in fio.
pub const BLOCK_SPLIT_MAX: usize = 64;
/// The most zones in one `random_distribution`, as in fio.
pub const ZONES_MAX: usize = 256;

/// The longest line of a trace, in bytes.
pub const TRACE_LINE_BYTES_MAX: u64 = 4096;
/// The most devices or files in one trace.
pub const TRACE_DEVICES_MAX: usize = 1 << 16;
/// The longest file name in an iolog, in bytes: fio scans it into a field of this size.
pub const IOLOG_NAME_BYTES_MAX: usize = 256;
/// Devices of a concatenated trace begin at multiples of this, in bytes.
pub const TRACE_EXTENT_BYTES: u64 = 1 << 20;

/// Bits of a stamp that hold the LBA; the rest holds the version.
pub const STAMP_LBA_BITS: u32 = 40;
/// Number of LBAs that a stamp can name: 512 TiB in blocks of 512 bytes.
pub const STAMP_LBAS: u64 = 1 << STAMP_LBA_BITS;

/// The most stages of a latency breakdown.
pub const STAGES_MAX: usize = 60;
/// Maximum number of half-second windows in a bandwidth series: six days.
pub const WINDOWS_MAX: usize = 1 << 20;

const _: () = {
    // Every block size of a job fits the 32 bits of an operation.
    assert!(IO_BYTES_MAX <= u32::MAX as u64);
    // A line of an iolog must have room for the longest name it may carry.
    assert!(TRACE_LINE_BYTES_MAX as usize > 2 * IOLOG_NAME_BYTES_MAX);
    // The version has the remaining bits of 64, and must not wrap within any sensible window.
    assert!(64 - STAMP_LBA_BITS >= 24);
};
