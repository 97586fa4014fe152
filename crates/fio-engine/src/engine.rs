//! What fio calls. The only module of this crate with `unsafe`: pointers come from fio, and the words that
//! are read and written through them are those of [`abi`](crate::abi).
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::abi::{
    COMPLETED, DATASYNC, DDIR, Engine, LAYOUTS, Layout, Ops, QUEUED, READ, REAL_FILE_SIZE,
    SIZE_KNOWN, SYNC, Thread, WRITE, layout_of,
};
use crate::job::{self, Asked, Buffers, Ended, Job, Kind};

/// Looks for what has ended before the core is given away between looks.
const SPINS: u32 = 2_000;

#[derive(Default)]
struct State {
    job: Option<Job>,
    ended: Vec<Ended>,
}

thread_local! {
    /// fio runs each job in a thread, or a process, of its own.
    static STATE: RefCell<State> = RefCell::default();
}

/// What this library says to the fio that has loaded it: how its structures lie, and the table, which fio
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

/// What fio asks for when it has loaded this library. To a fio whose structures are not known it gives
/// nothing, and fio refuses the library.
///
/// # Safety
/// `ops` is where fio wants the table's address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_ioengine(ops: *mut *mut c_void) {
    let table = match known() {
        Ok(layout) => {
            let (_, at) = LOADED.get_or_init(|| {
                // For as long as fio runs: it keeps the table in a list.
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
    // SAFETY: fio's word.
    unsafe { *ops = table };
}

/// A word of a structure of fio's.
///
/// # Safety
/// `at` is such a structure, `offset` is where its version has a `T`, and nobody else uses that meanwhile.
unsafe fn word<'a, T>(at: *mut c_void, offset: usize) -> &'a mut T {
    // SAFETY: the caller's word.
    unsafe { &mut *at.byte_add(offset).cast::<T>() }
}

fn layout() -> &'static Layout {
    LOADED.get().expect("fio has asked for the table before it calls what is in it").0
}

/// fio's buffers, at the addresses that fio gave.
struct Fios;

impl Buffers for Fios {
    fn from(&self, at: usize, bytes: usize) -> Vec<u8> {
        // SAFETY: fio leaves the buffer of a request alone until it has ended.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), bytes) }.to_vec()
    }

    fn to(&self, at: usize, from: &[u8]) {
        // SAFETY: as above; it has as many bytes as were asked for.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(at)
                .copy_from_nonoverlapping(from.as_ptr(), from.len())
        };
    }
}

fn say(what: &str) {
    eprintln!("doorbell: {what}");
}

/// The structures of this fio, if they are known.
fn known() -> Result<&'static Layout, String> {
    // SAFETY: a name that is a C string; the symbol is one, too, for as long as fio runs.
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
            // SAFETY: a file of fio's, whose version has these words there.
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
    // SAFETY: a request of fio's, which is ours until it has ended; its version has these words there.
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
    let asked = Asked { name: io_u.expose_provenance(), kind, offset, at, bytes };
    STATE.with_borrow_mut(|state| {
        let Some(job) = &mut state.job else {
            *error = libc::ENODEV as c_uint;
            return COMPLETED;
        };
        match job.begin(asked, &Fios) {
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
        // SAFETY: the address that `queue` was given for this request, which has just ended.
        unsafe {
            *word::<c_uint>(io_u, lies.error) = if ended.good { 0 } else { libc::EIO as c_uint };
            *word::<u64>(io_u, lies.resid) = 0;
        }
        io_u
    })
}
