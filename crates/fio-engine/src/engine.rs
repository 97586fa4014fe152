//! What fio calls. The only module of this crate with `unsafe`: pointers come from fio, and the words that
//! are read and written through them are those of [`abi`](crate::abi).
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::abi::{
    COMPLETED, DATASYNC, FLAGS, File, IoU, KNOWN, Ops, QUEUED, READ, SIZE_KNOWN, SYNC,
};
use crate::abi::{Thread, VERSION, WRITE};
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

/// The table that fio looks for when it has loaded this library. It writes to it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static mut ioengine: Ops = Ops {
    list: [0; 2],
    name: c"doorbell".as_ptr(),
    version: VERSION,
    flags: FLAGS,
    dlhandle: std::ptr::null_mut(),
    setup: None,
    init: Some(init),
    post_init: None,
    prep: None,
    queue: Some(queue),
    commit: None,
    getevents: Some(getevents),
    event: Some(event),
    errdetails: None,
    cancel: None,
    cleanup: Some(cleanup),
    open_file: Some(nothing),
    close_file: Some(nothing),
    invalidate: Some(nothing),
    unlink_file: Some(nothing),
    get_file_size: Some(get_file_size),
    rest: [None; 10],
    option_struct_size: 0,
    options: std::ptr::null_mut(),
};

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

/// Whether this is a fio whose structures we know.
fn known() -> Result<(), String> {
    // SAFETY: a name that is a C string; the symbol is one, too, for as long as fio runs.
    let version = unsafe {
        let at = libc::dlsym(libc::RTLD_DEFAULT, c"fio_version_string".as_ptr());
        if at.is_null() { c"no name" } else { CStr::from_ptr(at.cast::<c_char>()) }
    };
    let version = version.to_string_lossy();
    match KNOWN.iter().any(|known| version == *known || version.starts_with(&format!("{known}-"))) {
        true => Ok(()),
        false => Err(format!(
            "this is {version}: expected fio 3.30 to 3.33, whose structures are known here"
        )),
    }
}

unsafe extern "C" fn init(_: *mut Thread) -> c_int {
    match known().and_then(|()| Job::start()) {
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

unsafe extern "C" fn nothing(_: *mut Thread, _: *mut File) -> c_int {
    0
}

unsafe extern "C" fn get_file_size(_: *mut Thread, file: *mut File) -> c_int {
    match known().and_then(|()| job::size()) {
        Ok(bytes) => {
            // SAFETY: a file of fio's, of a version whose structures these are.
            unsafe {
                (*file).real_file_size = bytes;
                (*file).flags |= SIZE_KNOWN;
            }
            0
        }
        Err(why) => {
            say(&why);
            1
        }
    }
}

unsafe extern "C" fn queue(_: *mut Thread, io_u: *mut IoU) -> c_int {
    // SAFETY: a request of fio's, which is ours until it has ended.
    let one = unsafe { &mut *io_u };
    one.error = 0;
    let kind = match one.ddir {
        READ => Kind::Read,
        WRITE => Kind::Write,
        SYNC | DATASYNC => Kind::Flush,
        _ => {
            one.error = libc::EOPNOTSUPP as c_uint;
            return COMPLETED;
        }
    };
    let (at, bytes) = (one.xfer_buf.expose_provenance(), one.xfer_buflen as usize);
    let asked = Asked { name: io_u.expose_provenance(), kind, offset: one.offset, at, bytes };
    STATE.with_borrow_mut(|state| {
        let Some(job) = &mut state.job else {
            one.error = libc::ENODEV as c_uint;
            return COMPLETED;
        };
        match job.begin(asked, &Fios) {
            Ok(()) => QUEUED,
            Err(why) => {
                say(&format!("offset {}: {why}", one.offset));
                one.error = libc::EIO as c_uint;
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

unsafe extern "C" fn event(_: *mut Thread, number: c_int) -> *mut IoU {
    STATE.with_borrow(|state| {
        let ended = &state.ended[number as usize];
        let io_u = std::ptr::with_exposed_provenance_mut::<IoU>(ended.name);
        // SAFETY: the address that `queue` was given for this request, which has just ended.
        let one = unsafe { &mut *io_u };
        one.error = if ended.good { 0 } else { libc::EIO as c_uint };
        one.resid = 0;
        io_u
    })
}
