//! Field offsets in fio's structures, by version of fio, on x86-64: as a C compiler computes them from the
//! headers of each version. Only the fields that the engine uses are here.

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) const READ: c_int = 0;
pub(crate) const WRITE: c_int = 1;
pub(crate) const SYNC: c_int = 3;
pub(crate) const DATASYNC: c_int = 4;

/// Return values of `queue`: FIO_Q_COMPLETED and FIO_Q_QUEUED.
pub(crate) const COMPLETED: c_int = 0;
pub(crate) const QUEUED: c_int = 1;

/// Flags of the engine: FIO_RAWIO, FIO_NOEXTEND and FIO_NODISKUTIL.
pub(crate) const FLAGS: c_int = 1 << 1 | 1 << 3 | 1 << 4;

/// Flag of a file: FIO_FILE_size_known.
pub(crate) const SIZE_KNOWN: c_uint = 1 << 4;

/// Field offsets, in bytes from the start of their structure.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Minor versions of fio 3 with this layout.
    pub minors: std::ops::RangeInclusive<u32>,
    /// FIO_IOOPS_VERSION: fio compares it with its own.
    pub version: c_int,
    pub io_u: IoU,
    /// Offset of `flags` in `struct fio_file`.
    pub file_flags: usize,
    /// Offset of `cleanup` in `struct ioengine_ops`. It is followed by one pointer each for `open_file`,
    /// `close_file`, `invalidate`, `unlink_file` and `get_file_size`.
    pub cleanup: usize,
}

/// Field offsets in `struct io_u` that differ between versions.
#[derive(Debug)]
pub(crate) struct IoU {
    pub offset: usize,
    pub xfer_buf: usize,
    pub xfer_buflen: usize,
    pub resid: usize,
    pub error: usize,
}

/// Offset of `ddir` in `struct io_u`, the same in all versions.
pub(crate) const DDIR: usize = 44;
/// Offset of `real_file_size` in `struct fio_file`, the same in all versions.
pub(crate) const REAL_FILE_SIZE: usize = 48;

/// Offsets in `struct ioengine_ops`, the same in all versions.
pub(crate) const NAME: usize = 16;
pub(crate) const VERSION: usize = 24;
pub(crate) const ENGINE_FLAGS: usize = 28;
pub(crate) const INIT: usize = 48;
pub(crate) const QUEUE: usize = 72;
pub(crate) const GETEVENTS: usize = 88;
pub(crate) const EVENT: usize = 96;

/// Size of the longest `struct ioengine_ops`, bytes.
pub(crate) const OPS_BYTES_MAX: usize = 296;

const OLDER: IoU = IoU { offset: 72, xfer_buf: 104, xfer_buflen: 112, resid: 136, error: 144 };
const NEWER: IoU = IoU { offset: 80, xfer_buf: 112, xfer_buflen: 120, resid: 144, error: 152 };

const fn layout(
    minors: std::ops::RangeInclusive<u32>,
    version: c_int,
    file_flags: usize,
) -> Layout {
    Layout { minors, version, io_u: OLDER, file_flags, cleanup: 120 }
}

/// Layouts of all supported versions of fio.
pub(crate) static LAYOUTS: [Layout; 7] = [
    layout(30..=30, 31, 356),
    layout(31..=33, 31, 364),
    layout(34..=35, 32, 372),
    layout(36..=37, 33, 372),
    layout(38..=39, 36, 380),
    layout(40..=40, 37, 380),
    Layout { minors: 41..=42, version: 39, io_u: NEWER, file_flags: 372, cleanup: 112 },
];

/// Returns the layout for the version string `name`: `fio-3.33`, or `fio-3.33-5-gabc` for a commit between
/// two versions, which is treated as the older one.
pub(crate) fn layout_of(name: &str) -> Option<&'static Layout> {
    let minor = name.strip_prefix("fio-3.")?;
    let digits = minor.split('-').next()?;
    let minor: u32 = digits.parse().ok()?;
    LAYOUTS.iter().find(|layout| layout.minors.contains(&minor))
}

/// `struct thread_data`, opaque to the engine.
#[repr(C)]
pub(crate) struct Thread {
    _opaque: [u8; 0],
}

pub(crate) type OfThread = unsafe extern "C" fn(*mut Thread) -> c_int;
pub(crate) type Cleanup = unsafe extern "C" fn(*mut Thread);
pub(crate) type Queue = unsafe extern "C" fn(*mut Thread, *mut c_void) -> c_int;
pub(crate) type Getevents =
    unsafe extern "C" fn(*mut Thread, c_uint, c_uint, *const libc::timespec) -> c_int;
pub(crate) type Event = unsafe extern "C" fn(*mut Thread, c_int) -> *mut c_void;
pub(crate) type OfFile = unsafe extern "C" fn(*mut Thread, *mut c_void) -> c_int;

/// Name and callbacks of the engine, for `struct ioengine_ops`.
pub(crate) struct Engine {
    pub name: *const c_char,
    pub init: OfThread,
    pub queue: Queue,
    pub getevents: Getevents,
    pub event: Event,
    pub cleanup: Cleanup,
    /// Callback for opening, closing, invalidating and unlinking a file: returns 0.
    pub nothing: OfFile,
    pub get_file_size: OfFile,
}

/// `struct ioengine_ops` as 8-byte words.
pub(crate) type Ops = [usize; OPS_BYTES_MAX / size_of::<usize>()];

impl Layout {
    /// Builds `struct ioengine_ops` of the engine in this layout.
    pub fn ops(&self, engine: &Engine) -> Ops {
        let mut ops: Ops = [0; OPS_BYTES_MAX / size_of::<usize>()];
        let mut put = |at: usize, word: usize| ops[at / size_of::<usize>()] |= word;
        put(NAME, engine.name.expose_provenance());
        put(VERSION, self.version as usize);
        put(ENGINE_FLAGS, (FLAGS as usize) << 32);
        put(INIT, engine.init as usize);
        put(QUEUE, engine.queue as usize);
        put(GETEVENTS, engine.getevents as usize);
        put(EVENT, engine.event as usize);
        put(self.cleanup, engine.cleanup as usize);
        for n in 1..=4 {
            put(self.cleanup + 8 * n, engine.nothing as usize);
        }
        put(self.cleanup + 40, engine.get_file_size as usize);
        ops
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_of_accepts_only_supported_fio_versions() {
        let version = |name| layout_of(name).map(|layout| layout.version);
        assert_eq!(version("fio-3.33"), Some(31));
        assert_eq!(version("fio-3.33-5-gabc"), Some(31));
        assert_eq!(version("fio-3.42"), Some(39));
        for name in ["fio-3.29", "fio-3.43", "fio-2.33", "fio-4.33", "3.33", "no name", ""] {
            assert_eq!(version(name), None, "{name}");
        }
    }

    #[test]
    fn layouts_cover_contiguous_fio_versions() {
        let mut next = *LAYOUTS[0].minors.start();
        for layout in &LAYOUTS {
            assert_eq!(*layout.minors.start(), next);
            next = layout.minors.end() + 1;
        }
    }
}
