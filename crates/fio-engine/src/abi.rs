//! Words of fio's structures, as fio 3.30 to 3.33 has them on x86-64: version 31 of its engines.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The version of the interface: fio compares it with its own.
pub(crate) const VERSION: c_int = 31;

/// Versions of fio whose structures these are.
pub(crate) const KNOWN: [&str; 4] = ["fio-3.30", "fio-3.31", "fio-3.32", "fio-3.33"];

/// fio's directions.
pub(crate) const READ: c_int = 0;
pub(crate) const WRITE: c_int = 1;
pub(crate) const SYNC: c_int = 3;
pub(crate) const DATASYNC: c_int = 4;

/// What `queue` returns: it has ended, or will.
pub(crate) const COMPLETED: c_int = 0;
pub(crate) const QUEUED: c_int = 1;

/// Flags of an engine: FIO_RAWIO, FIO_NOEXTEND and FIO_NODISKUTIL.
pub(crate) const FLAGS: c_int = 1 << 1 | 1 << 3 | 1 << 4;

/// Flag of a file: FIO_FILE_size_known.
pub(crate) const SIZE_KNOWN: c_uint = 1 << 4;

/// `struct thread_data`, of which nothing is known here.
#[repr(C)]
pub(crate) struct Thread {
    _opaque: [u8; 0],
}

/// `struct io_u`, as far as it is touched.
#[repr(C)]
pub(crate) struct IoU {
    _before: [u8; 44],
    pub ddir: c_int,
    _a: [u8; 24],
    pub offset: u64,
    _b: [u8; 24],
    pub xfer_buf: *mut c_void,
    pub xfer_buflen: u64,
    _c: [u8; 16],
    pub resid: u64,
    pub error: c_uint,
}

const _: () = {
    assert!(std::mem::offset_of!(IoU, ddir) == 44);
    assert!(std::mem::offset_of!(IoU, offset) == 72);
    assert!(std::mem::offset_of!(IoU, xfer_buf) == 104);
    assert!(std::mem::offset_of!(IoU, xfer_buflen) == 112);
    assert!(std::mem::offset_of!(IoU, resid) == 136);
    assert!(std::mem::offset_of!(IoU, error) == 144);
};

/// `struct fio_file`, as far as it is touched.
#[repr(C)]
pub(crate) struct File {
    _before: [u8; 48],
    pub real_file_size: u64,
    _a: [u8; 308],
    pub flags: c_uint,
}

const _: () = {
    assert!(std::mem::offset_of!(File, real_file_size) == 48);
    assert!(std::mem::offset_of!(File, flags) == 364);
};

/// An engine's call that is left out, or one that is not of use here.
pub(crate) type None = Option<unsafe extern "C" fn()>;
pub(crate) type OfFile = unsafe extern "C" fn(*mut Thread, *mut File) -> c_int;

/// `struct ioengine_ops`.
#[repr(C)]
pub struct Ops {
    pub(crate) list: [usize; 2],
    pub(crate) name: *const c_char,
    pub(crate) version: c_int,
    pub(crate) flags: c_int,
    pub(crate) dlhandle: *mut c_void,
    pub(crate) setup: None,
    pub(crate) init: Option<unsafe extern "C" fn(*mut Thread) -> c_int>,
    pub(crate) post_init: None,
    pub(crate) prep: None,
    pub(crate) queue: Option<unsafe extern "C" fn(*mut Thread, *mut IoU) -> c_int>,
    pub(crate) commit: None,
    pub(crate) getevents:
        Option<unsafe extern "C" fn(*mut Thread, c_uint, c_uint, *const libc::timespec) -> c_int>,
    pub(crate) event: Option<unsafe extern "C" fn(*mut Thread, c_int) -> *mut IoU>,
    pub(crate) errdetails: None,
    pub(crate) cancel: None,
    pub(crate) cleanup: Option<unsafe extern "C" fn(*mut Thread)>,
    pub(crate) open_file: Option<OfFile>,
    pub(crate) close_file: Option<OfFile>,
    pub(crate) invalidate: Option<OfFile>,
    pub(crate) unlink_file: Option<OfFile>,
    pub(crate) get_file_size: Option<OfFile>,
    pub(crate) rest: [None; 10],
    pub(crate) option_struct_size: c_int,
    pub(crate) options: *mut c_void,
}

const _: () = {
    assert!(std::mem::offset_of!(Ops, name) == 16);
    assert!(std::mem::offset_of!(Ops, version) == 24);
    assert!(std::mem::offset_of!(Ops, queue) == 72);
    assert!(std::mem::offset_of!(Ops, get_file_size) == 160);
    assert!(std::mem::offset_of!(Ops, option_struct_size) == 248);
    assert!(size_of::<Ops>() == 264);
};
