//! C API: `include/fnvme.h`. The only module of this crate with `unsafe`, as C passes pointers.
//!
//! A pointer to a `fastpath` is looked up in a table of those handed out, and never dereferenced before: a
//! forged or freed one is rejected. The length of a caller's own buffer, and its exclusive use, cannot be
//! checked: the caller guarantees them, as with `read(2)`.
#![allow(unsafe_code)]
#![allow(non_camel_case_types)]

mod extensions;

pub use extensions::{
    fastpath_counters, fastpath_latency, fastpath_latency_percentile, fastpath_latency_reset,
    fastpath_open, fastpath_remove, fastpath_size,
};

use std::cell::UnsafeCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::engine::{
    Client, Direction, Function, Handle, Refusal, Refused, Request, STAGING_BYTES, Ticket, Transfer,
};
use functions::{self, Named};

use crate::Device;
pub use crate::failure::{
    FP_E_ARGUMENT, FP_E_BUSY, FP_E_DEVICE, FP_E_GONE, FP_E_HANDLE, FP_E_NAME, FP_E_NVME,
    FP_E_SOCKET, FP_E_SPACE, FP_E_START,
};
use crate::failure::{Failure, answer, in_words, last};

/// Structure of the paper's Listing 1.
#[repr(C)]
pub struct fastpath {
    /// Address of the DMA buffer.
    pub dma_address: *mut c_char,
    /// Number of the area.
    pub fp_id: c_int,
    /// Size of the commands that requests are cut into, bytes: set by the caller before each request.
    pub block_size: c_int,
}

// Same layout as in the header.
const _: () = {
    assert!(size_of::<fastpath>() == 16);
    assert!(core::mem::offset_of!(fastpath, dma_address) == 0);
    assert!(core::mem::offset_of!(fastpath, fp_id) == 8);
    assert!(core::mem::offset_of!(fastpath, block_size) == 12);
};

/// Flag: the caller's buffer is a part of the DMA buffer.
pub const FP_DIRECT: c_int = 1;
/// Flag: the call returns when the request has completed.
pub const FP_BLOCKING: c_int = 2;

/// Environment variable with the device to use if none is attached; default: a drive in memory.
const VARIABLE: &str = "FNVME_DEVICE";

/// State of a `fastpath`.
struct Inner {
    public: UnsafeCell<fastpath>,
    client: Client,
    copied: Mutex<Copied>,
}

/// State of calls without FP_DIRECT, one at a time: data are copied through pieces of the staging memory.
#[derive(Default)]
struct Copied {
    cursor: u64,
    /// Pieces in use, one bit each.
    used: u32,
    /// Pieces in flight, oldest first.
    begun: VecDeque<Piece>,
    /// First failure of a piece.
    failed: Option<c_int>,
}

struct Piece {
    number: u32,
    ticket: Ticket,
    /// Destination of the copy after completion, for reads.
    to: Option<*mut u8>,
    bytes: usize,
}

/// Size of a piece, bytes: a multiple of every block size.
const PIECE_BYTES: usize = 128 << 10;
const PIECES: u32 = (STAGING_BYTES / PIECE_BYTES as u64) as u32;

const _: () = assert!(PIECES == 16);

// SAFETY: `public` may be changed by the caller, and is only read here, one word at a time; the addresses
// in `copied` are written to only under its lock, in a call that the caller has made for that.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

static HANDLES: RwLock<BTreeMap<usize, Arc<Inner>>> = RwLock::new(BTreeMap::new());
static DEVICE: Mutex<Option<Arc<Device>>> = Mutex::new(None);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn find(fp: *const fastpath) -> Result<Arc<Inner>, Failure> {
    let handles = HANDLES.read().unwrap_or_else(PoisonError::into_inner);
    handles.get(&fp.addr()).cloned().ok_or(Failure(FP_E_HANDLE))
}

fn device() -> Result<Arc<Device>, Failure> {
    let mut device = locked(&DEVICE);
    if let Some(device) = &*device {
        return Ok(device.clone());
    }
    let word = std::env::var(VARIABLE).unwrap_or_else(|_| "memory".into());
    let opened = Device::open(&word)?;
    Ok(device.insert(Arc::new(opened)).clone())
}

/// Returns a C string as UTF-8; `what` describes it in errors.
///
/// # Safety
/// `at` is null or a C string that outlives the call.
unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if at.is_null() {
        return Err(Failure::argument(format!("found NULL, expected {what}")));
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| Failure::argument(format!("found what is no UTF-8, expected {what}")))
}

/// Attaches a device: see [`Device::open`]. Fails if one is attached.
///
/// # Safety
/// `word` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_attach(word: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: the caller guarantees a C string.
        let word = unsafe { text(word, "the word of a device") }?;
        let mut device = locked(&DEVICE);
        if device.is_some() {
            let why = "there is a device already: fastpath_detach lets it go";
            return Err(Failure::because(FP_E_BUSY, why));
        }
        let opened = Device::open(word)?;
        *device = Some(Arc::new(opened));
        Ok(())
    })
}

/// Detaches the device. Fails until every `fastpath` has been freed.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_detach() -> c_int {
    answer(|| {
        let mut device = locked(&DEVICE);
        let areas = HANDLES.read().unwrap_or_else(PoisonError::into_inner).len();
        if areas > 0 {
            let why = format!("{areas} areas of the device have not been freed");
            return Err(Failure::because(FP_E_BUSY, why));
        }
        *device = None;
        Ok(())
    })
}

/// Callbacks on the data path. A nonzero return value rejects the block.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fastpath_function {
    /// Called with a block on its way to the drive, which the callback may change.
    pub outward: Option<Pass>,
    /// Called with a block on its way from the drive, which the callback may change.
    pub inward: Option<Pass>,
    /// First argument of both callbacks.
    pub context: *mut c_void,
}

/// Callback: context, place on the drive in bytes, block, block size in bytes.
pub type Pass = unsafe extern "C" fn(*mut c_void, c_longlong, *mut c_void, c_int) -> c_int;

struct Callbacks(fastpath_function);

// SAFETY: the header requires callbacks and a context usable from the engine's thread; only that thread
// uses them.
unsafe impl Send for Callbacks {}

impl Callbacks {
    fn pass(&self, pass: Option<Pass>, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        let Some(pass) = pass else { return Ok(()) };
        let (at, bytes) = (block.as_mut_ptr().cast(), block.len() as c_int);
        // SAFETY: the caller guarantees a valid callback, and that its context lives as long as the
        // `fastpath`; the block belongs to this thread alone during the call.
        let refused = unsafe { pass(self.0.context, place as c_longlong, at, bytes) };
        if refused == 0 { Ok(()) } else { Err(Refused) }
    }
}

impl Function for Callbacks {
    fn outward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        self.pass(self.0.outward, place, block)
    }

    fn inward(&mut self, place: u64, block: &mut [u8]) -> Result<(), Refused> {
        self.pass(self.0.inward, place, block)
    }
}

/// Allocates an area and a DMA buffer of `size` bytes each; returns null on failure.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_alloc(size: c_int) -> *mut fastpath {
    alloc(size, || Ok(None))
}

/// Same as [`fastpath_alloc`], with callbacks on the data path, called on the engine's thread.
///
/// # Safety
/// `function` points to a valid structure; the engine's thread may use its contents until the area is
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_alloc_through(
    size: c_int,
    function: *const fastpath_function,
) -> *mut fastpath {
    alloc(size, || {
        if function.is_null() {
            return Err(Failure::argument("found NULL, expected a function"));
        }
        // SAFETY: the caller guarantees a valid pointer.
        let function = unsafe { function.read() };
        Ok(Some(Box::new(Callbacks(function))))
    })
}

/// Same as [`fastpath_alloc`], with a function of the library, by its name: see [`functions::named`].
///
/// # Safety
/// `function` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fastpath_alloc_named(
    size: c_int,
    function: *const c_char,
) -> *mut fastpath {
    alloc(size, || {
        if function.is_null() {
            return Err(Failure::argument("found NULL, expected the word of a function"));
        }
        // SAFETY: the caller guarantees a C string.
        unsafe { named(function) }
    })
}

/// A function of the library by its name, if the string is not null.
///
/// # Safety
/// `function` is null or a C string that outlives the call.
unsafe fn named(function: *const c_char) -> Result<Option<Named>, Failure> {
    if function.is_null() {
        return Ok(None);
    }
    // SAFETY: guaranteed by the caller.
    let word = unsafe { text(function, "the word of a function") }?;
    functions::named(word).map_err(|error| Failure::argument(error.to_string()))
}

fn alloc(size: c_int, function: impl FnOnce() -> Result<Option<Named>, Failure>) -> *mut fastpath {
    handed_out(|| {
        let bytes = u64::try_from(size).ok().filter(|bytes| *bytes > 0);
        let why = || format!("found a size of {size} bytes, expected 1 or more");
        let bytes = bytes.ok_or_else(|| Failure::argument(why()))?;
        Ok(match function()? {
            Some(function) => device()?.alloc_through(bytes, function)?,
            None => device()?.alloc(bytes)?,
        })
    })
}

fn handed_out(open: impl FnOnce() -> Result<Client, Failure>) -> *mut fastpath {
    let mut made = std::ptr::null_mut();
    answer(|| {
        let client = open()?;
        let public = fastpath {
            dma_address: client.address().cast(),
            fp_id: c_int::from(client.handle().fp_id),
            block_size: 0,
        };
        let copied = Mutex::default();
        let inner = Arc::new(Inner { public: UnsafeCell::new(public), client, copied });
        made = inner.public.get();
        let mut handles = HANDLES.write().unwrap_or_else(PoisonError::into_inner);
        handles.insert(made.addr(), inner);
        Ok(())
    });
    made
}

/// Frees the area and the buffer, after calls of other threads in flight have ended.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_free(fp: *mut fastpath) -> c_int {
    answer(|| {
        let mut handles = HANDLES.write().unwrap_or_else(PoisonError::into_inner);
        let inner = handles.remove(&fp.addr()).ok_or(Failure(FP_E_HANDLE))?;
        drop(handles);
        // Requests in flight write to the buffer until they have completed.
        let _ = inner.client.settle();
        let mut copied = locked(&inner.copied);
        while inner.finish(&mut copied) {}
        Ok(())
    })
}

/// Arguments of a read or write call.
struct Call {
    direction: Direction,
    buffer: *mut u8,
    size: usize,
    flags: c_int,
    /// Offset in the area, bytes. `None`: the cursor, or the offset of the buffer.
    offset: Option<u64>,
}

impl Inner {
    fn block_size(&self) -> u32 {
        // SAFETY: the structure lives as long as `self`; the caller may change the word concurrently, so it
        // is read once, as a volatile.
        let block_size = unsafe { (&raw const (*self.public.get()).block_size).read_volatile() };
        u32::try_from(block_size).unwrap_or(0)
    }

    /// Addresses of the DMA buffer.
    fn dma_buffer(&self) -> Range<usize> {
        let start = self.client.address().addr();
        start..start + self.client.buffer_bytes() as usize
    }

    /// Returns the offset of the caller's buffer in the DMA buffer, if it starts inside.
    fn place(&self, call: &Call) -> Option<u64> {
        let (dma, at) = (self.dma_buffer(), call.buffer.addr());
        dma.contains(&at).then(|| (at - dma.start) as u64)
    }

    /// Returns true if any byte of the caller's buffer is in the DMA buffer.
    fn overlaps(&self, call: &Call) -> bool {
        let (dma, at) = (self.dma_buffer(), call.buffer.addr());
        at < dma.end && at.saturating_add(call.size) > dma.start
    }

    fn perform(&self, call: &Call) -> Result<(), Failure> {
        if call.buffer.is_null() || call.size == 0 {
            let why = "found NULL or no bytes, expected a buffer and a size";
            return Err(Failure::argument(why));
        }
        if call.flags & !(FP_DIRECT | FP_BLOCKING) != 0 {
            let why = format!(
                "found the flags {:#x}, expected FP_DIRECT and FP_BLOCKING alone",
                call.flags
            );
            return Err(Failure::argument(why));
        }
        if call.flags & FP_DIRECT != 0 {
            let place = self.place(call).ok_or(Failure(Refusal::Buffer as c_int))?;
            // With FP_DIRECT, the offset in the buffer is the offset in the area.
            if call.offset.is_some_and(|offset| offset != place) {
                let why = format!("expected the offset {place}: with FP_DIRECT it is the buffer's");
                return Err(Failure::argument(why));
            }
            return self.transfer(call, place);
        }
        if self.overlaps(call) {
            let why = "found a part of the DMA buffer, expected another or FP_DIRECT";
            return Err(Failure::argument(why));
        }
        let mut copied = locked(&self.copied);
        let offset = call.offset.unwrap_or(copied.cursor);
        let block_size = self.block_size();
        let whole = block_size > 0 && call.size.is_multiple_of(block_size as usize);
        let end =
            offset.checked_add(call.size as u64).filter(|end| *end <= self.client.buffer_bytes());
        let (Some(end), true) = (end, whole) else {
            return Err(Failure(if whole { Refusal::Area } else { Refusal::Size } as c_int));
        };
        for from in (0..call.size).step_by(PIECE_BYTES) {
            self.begin_piece(&mut copied, call, from, offset + from as u64)?;
        }
        if call.offset.is_none() {
            copied.cursor = end;
        }
        match call.flags & FP_BLOCKING != 0 {
            true => self.finish_all(&mut copied),
            false => Ok(()),
        }
    }

    fn transfer(&self, call: &Call, offset: u64) -> Result<(), Failure> {
        let (size, block_size) = (call.size as u64, self.block_size());
        match call.flags & FP_BLOCKING != 0 {
            true => self.client.transfer(call.direction, offset, size, block_size)?,
            false => self.client.begin(call.direction, offset, size, block_size)?,
        }
        Ok(())
    }

    /// Starts one piece of a call, through the staging memory.
    fn begin_piece(
        &self,
        copied: &mut Copied,
        call: &Call,
        from: usize,
        offset: u64,
    ) -> Result<(), Failure> {
        while copied.used.count_ones() == PIECES {
            self.finish(copied);
        }
        let number = copied.used.trailing_ones();
        let buffer_offset = self.client.staging_at() + u64::from(number) * PIECE_BYTES as u64;
        let bytes = PIECE_BYTES.min(call.size - from);
        // SAFETY: the caller guarantees that its buffer has `size` bytes, more than `from`.
        let at = unsafe { call.buffer.add(from) };
        let to = match call.direction {
            Direction::Read => Some(at),
            Direction::Write => {
                // SAFETY: the caller guarantees that they may be read; they are no part of the DMA buffer.
                let from = unsafe { std::slice::from_raw_parts(at, bytes) };
                self.client.copy_in(buffer_offset, from)?;
                None
            }
        };
        let Handle { fp_id, generation } = self.client.handle();
        let (direction, size, block_size) = (call.direction, bytes as u32, self.block_size());
        let transfer = Transfer { direction, offset, size, block_size, buffer_offset };
        let ticket = self.client.submit(&Request::transfer(0, fp_id, generation, &transfer))?;
        copied.used |= 1 << number;
        copied.begun.push_back(Piece { number, ticket, to, bytes });
        Ok(())
    }

    /// Waits for the oldest piece in flight; returns false if there is none.
    fn finish(&self, copied: &mut Copied) -> bool {
        let Some(piece) = copied.begun.pop_front() else { return false };
        let mut ended = self.client.wait(piece.ticket);
        if let (Ok(()), Some(to)) = (ended, piece.to) {
            // SAFETY: the caller guarantees that its buffer may be written until the request has completed;
            // it is no part of the DMA buffer. Zeroed first, so that the reference is to initialised
            // memory.
            let to = unsafe {
                to.write_bytes(0, piece.bytes);
                std::slice::from_raw_parts_mut(to, piece.bytes)
            };
            let at = self.client.staging_at() + u64::from(piece.number) * PIECE_BYTES as u64;
            ended = self.client.copy_out(at, to);
        }
        copied.used &= !(1 << piece.number);
        if let Err(error) = ended {
            copied.failed.get_or_insert(Failure::from(error).0);
        }
        true
    }

    fn finish_all(&self, copied: &mut Copied) -> Result<(), Failure> {
        while self.finish(copied) {}
        copied.failed.take().map_or(Ok(()), |code| Err(Failure(code)))
    }
}

fn call(
    fp: *mut fastpath,
    direction: Direction,
    buffer: *mut c_void,
    size: c_int,
    flags: c_int,
    offset: Option<c_longlong>,
) -> c_int {
    answer(|| {
        let inner = find(fp)?;
        let size = usize::try_from(size).map_err(|_| Failure(Refusal::Size as c_int))?;
        let offset = offset.map(u64::try_from).transpose();
        let offset = offset.map_err(|_| Failure(Refusal::Area as c_int))?;
        inner.perform(&Call { direction, buffer: buffer.cast(), size, flags, offset })
    })
}

/// Writes at the cursor, or with FP_DIRECT from a part of the DMA buffer.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_write(
    fp: *mut fastpath,
    buffer: *const c_void,
    size: c_int,
    flags: c_int,
) -> c_int {
    call(fp, Direction::Write, buffer.cast_mut(), size, flags, None)
}

/// Reads at the cursor, or with FP_DIRECT into a part of the DMA buffer.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_read(
    fp: *mut fastpath,
    buffer: *mut c_void,
    size: c_int,
    flags: c_int,
) -> c_int {
    call(fp, Direction::Read, buffer, size, flags, None)
}

/// Writes at an offset in the area, bytes.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_pwrite(
    fp: *mut fastpath,
    buffer: *const c_void,
    size: c_int,
    offset: c_longlong,
    flags: c_int,
) -> c_int {
    call(fp, Direction::Write, buffer.cast_mut(), size, flags, Some(offset))
}

/// Reads at an offset in the area, bytes.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_pread(
    fp: *mut fastpath,
    buffer: *mut c_void,
    size: c_int,
    offset: c_longlong,
    flags: c_int,
) -> c_int {
    call(fp, Direction::Read, buffer, size, flags, Some(offset))
}

/// Waits until all requests have completed. Returns the first failure among those submitted without
/// FP_BLOCKING.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_polling(fp: *mut fastpath) -> c_int {
    answer(|| {
        let inner = find(fp)?;
        let settled = inner.client.settle();
        let finished = inner.finish_all(&mut locked(&inner.copied));
        Ok(settled?).and(finished)
    })
}

/// Makes written data durable.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_flush(fp: *mut fastpath) -> c_int {
    answer(|| Ok(find(fp)?.client.flush()?))
}

/// Sets the cursor, in bytes, of calls without FP_DIRECT and without an offset.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_seek(fp: *mut fastpath, offset: c_longlong) -> c_int {
    answer(|| {
        let inner = find(fp)?;
        locked(&inner.copied).cursor =
            u64::try_from(offset).map_err(|_| Failure(Refusal::Area as c_int))?;
        Ok(())
    })
}

/// Error code of this thread's last call; zero on success.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_error() -> c_int {
    last()
}

/// Text of an error, valid until this thread's next call of this function.
#[unsafe(no_mangle)]
pub extern "C" fn fastpath_error_text(error: c_int) -> *const c_char {
    in_words(error)
}

const _: () = assert!(size_of::<c_longlong>() == 8 && size_of::<c_long>() >= 4);
