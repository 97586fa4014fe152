//! Callbacks of the fio engine. The only module of this crate with `unsafe`: pointers come from fio, and the
//! fields that are read and written through them are those of [`abi`](crate::abi).
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::{self, Write};
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::abi::{
    COMPLETED, DATASYNC, DDIR, Engine, LAYOUTS, Layout, Ops, QUEUED, READ, REAL_FILE_SIZE,
    SIZE_KNOWN, SYNC, Thread, WRITE, layout_of,
};
use crate::job::{self, Buffers, Ended, IoRequest, Job, Kind};

/// Polls for completions before the thread yields its core between polls.
const SPINS: u32 = 2_000;

#[derive(Default)]
struct State {
    job: Option<Job>,
    ended: Vec<Ended>,
}

thread_local! {
    /// One per thread: fio runs each job in a thread or a process of its own.
    static STATE: RefCell<State> = RefCell::default();
}

/// Layout for the fio that has loaded this library, and the address of `struct ioengine_ops`, which fio
/// writes to.
static LOADED: OnceLock<(&'static Layout, usize)> = OnceLock::new();

const ENGINE: Engine = Engine {
    name: c"doorbell".as_ptr(),
    init,
    queue,
    getevents,
    event,
    cleanup,
    nothing,
    get_file_size,
};

/// Entry point that fio calls after it has loaded this library. For an unsupported version of fio it stores
/// a null pointer, and fio rejects the library.
///
/// # Safety
/// `ops` must be valid for a write of the table's address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_ioengine(ops: *mut *mut c_void) {
    let table = match known() {
        Ok(layout) => {
            let (_, at) = LOADED.get_or_init(|| {
                // Leaked: fio keeps the table in a list until it exits.
                let table: &'static mut Ops = Box::leak(Box::new(layout.ops(&ENGINE)));
                (layout, std::ptr::from_mut(table).expose_provenance())
            });
            std::ptr::with_exposed_provenance_mut(*at)
        }
        Err(why) => {
            say(&why);
            null_mut()
        }
    };
    // SAFETY: fio passes a valid pointer.
    unsafe { *ops = table };
}

/// Returns a field of one of fio's structures.
///
/// # Safety
/// `at` must point to the structure, `offset` must be the offset of a `T` in fio's version of it, and there
/// must be no other reference to the field while this one lives.
unsafe fn word<'a, T>(at: *mut c_void, offset: usize) -> &'a mut T {
    // SAFETY: the caller's promise.
    unsafe { &mut *at.byte_add(offset).cast::<T>() }
}

fn layout() -> &'static Layout {
    LOADED.get().expect("fio has asked for the table before it calls what is in it").0
}

/// I/O buffers of fio, at the addresses in its requests.
struct Fios;

impl Buffers for Fios {
    fn from(&self, at: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: fio does not touch the buffer of a request until its completion.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), bytes) }.to_vec()
    }

    fn to(&self, at: usize, from: &[u8]) {
        // SAFETY: as above; the buffer has the number of bytes that the request gives.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(at)
                .copy_from_nonoverlapping(from.as_ptr(), from.len())
        };
    }
}

/// Tells fio's user why a call failed: an engine returns a number only. A closed standard error is no reason
/// to end fio.
fn say(what: &str) {
    let _ = writeln!(io::stderr(), "doorbell: {what}");
}

/// Returns the layout for the running fio.
///
/// # Errors
/// The version of fio is not supported.
fn known() -> Result<&'static Layout, String> {
    // SAFETY: the name is a C string; so is the symbol, until fio exits.
    let version = unsafe {
        let at = libc::dlsym(libc::RTLD_DEFAULT, c"fio_version_string".as_ptr());
        if at.is_null() { c"no name" } else { CStr::from_ptr(at.cast::<c_char>()) }
    };
    let version = version.to_string_lossy();
    let (first, last) = (LAYOUTS[0].minors.start(), LAYOUTS[LAYOUTS.len() - 1].minors.end());
    layout_of(&version).ok_or_else(|| {
        format!(
            "this is {version}: expected fio 3.{first} to 3.{last}, whose structures are known here"
        )
    })
}

unsafe extern "C" fn init(_: *mut Thread) -> c_int {
    match Job::start() {
        Ok(job) => {
            STATE.with_borrow_mut(|state| *state = State { job: Some(job), ended: Vec::new() });
            0
        }
        Err(why) => {
            say(&why);
            1
        }
    }
}

unsafe extern "C" fn cleanup(_: *mut Thread) {
    let state = STATE.take();
    drop(state);
}

unsafe extern "C" fn nothing(_: *mut Thread, _: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn get_file_size(_: *mut Thread, file: *mut c_void) -> c_int {
    match job::size() {
        Ok(bytes) => {
            // SAFETY: fio passes a `struct fio_file`; the offsets are those of its version.
            unsafe {
                *word(file, REAL_FILE_SIZE) = bytes;
                *word::<c_uint>(file, layout().file_flags) |= SIZE_KNOWN;
            }
            0
        }
        Err(why) => {
            say(&why);
            1
        }
    }
}

unsafe extern "C" fn queue(_: *mut Thread, io_u: *mut c_void) -> c_int {
    let lies = &layout().io_u;
    // SAFETY: fio passes a `struct io_u`, ours until its completion; the offsets are those of its version.
    let (ddir, offset, at, bytes, error) = unsafe {
        (
            *word::<c_int>(io_u, DDIR),
            *word::<u64>(io_u, lies.offset),
            *word::<*mut c_void>(io_u, lies.xfer_buf),
            *word::<u64>(io_u, lies.xfer_buflen),
            word::<c_uint>(io_u, lies.error),
        )
    };
    *error = 0;
    let kind = match ddir {
        READ => Kind::Read,
        WRITE => Kind::Write,
        SYNC | DATASYNC => Kind::Flush,
        _ => {
            *error = libc::EOPNOTSUPP as c_uint;
            return COMPLETED;
        }
    };
    let (at, bytes) = (at.expose_provenance(), bytes as usize);
    let request = IoRequest { name: io_u.expose_provenance(), kind, offset, at, bytes };
    STATE.with_borrow_mut(|state| {
        let Some(job) = &mut state.job else {
            *error = libc::ENODEV as c_uint;
            return COMPLETED;
        };
        match job.begin(request, &Fios) {
            Ok(()) => QUEUED,
            Err(why) => {
                say(&format!("offset {offset}: {why}"));
                *error = libc::EIO as c_uint;
                COMPLETED
            }
        }
    })
}

unsafe extern "C" fn getevents(
    _: *mut Thread,
    least: c_uint,
    _most: c_uint,
    _: *const libc::timespec,
) -> c_int {
    STATE.with_borrow_mut(|state| {
        let State { job, ended } = state;
        let Some(job) = job else { return -libc::ENODEV };
        ended.clear();
        let mut looks = 0_u32;
        loop {
            job.ended(&Fios, ended);
            if ended.len() >= least as usize {
                return ended.len() as c_int;
            }
            looks = looks.saturating_add(1);
            if looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            if looks.is_multiple_of(1024) && job.is_gone() {
                say("the drive is gone");
                return -libc::EIO;
            }
            std::thread::yield_now();
        }
    })
}

unsafe extern "C" fn event(_: *mut Thread, number: c_int) -> *mut c_void {
    STATE.with_borrow(|state| {
        let ended = &state.ended[number as usize];
        let io_u = std::ptr::with_exposed_provenance_mut::<c_void>(ended.name);
        let lies = &layout().io_u;
        // SAFETY: the address that `queue` was given for this request, which has just completed.
        unsafe {
            *word::<c_uint>(io_u, lies.error) = if ended.good { 0 } else { libc::EIO as c_uint };
            *word::<u64>(io_u, lies.resid) = 0;
        }
        io_u
    })
}
