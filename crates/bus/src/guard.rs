//! Memory of a peer that may go away under us.
//!
//! A file that another process has sent may be cut short by it, at any moment and after any check; so
//! may its pages be given back to a kernel that then has none left. A load or a store there raises
//! SIGBUS, which ends a process. Demanding a seal would keep out hosts that are not ours (huge-page
//! files, files in /dev/shm), and would not help where memory is short. Copying through the kernel
//! would be a system call for each queue entry.
//!
//! So a mapping of a peer's file is noted here, in whole pages of that file, since the kernel replaces
//! no part of a huge page; and a handler of SIGBUS looks the address up. If it lies in such a mapping,
//! zeros are mapped over the whole of it, the mapping is marked as lost, and the access is done again:
//! it reads zeros, or writes what nobody will see. Whoever copies asks [`Slot::is_lost`] afterwards,
//! and lets the peer go. Any other SIGBUS goes to whoever handled it before.
//!
//! A module of the bus with `unsafe`. The handler does nothing but load and store atomics and call
//! `mmap`, a plain system call.
#![allow(unsafe_code)]

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::boxed::Box;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::vec::Vec;

/// A place for one mapping. Changed only under [`CHANGES`]; read by the handler at any moment.
pub(crate) struct Slot {
    /// Odd while the place is being changed: what was read then is not believed.
    version: AtomicUsize,
    start: AtomicUsize,
    /// Zero if the place is free.
    bytes: AtomicUsize,
    lost: AtomicBool,
}

/// Places are never given back to the allocator: the handler may look at them at any moment.
struct Chunk {
    slots: [Slot; SLOTS],
    next: AtomicPtr<Chunk>,
}

const SLOTS: usize = 64;

impl Chunk {
    const fn new() -> Chunk {
        Chunk { slots: [const { Slot::new() }; SLOTS], next: AtomicPtr::new(null_mut()) }
    }
}

static FIRST: AtomicPtr<Chunk> = AtomicPtr::new(null_mut());
/// Free places. Whoever holds this may change a place.
static CHANGES: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

impl Slot {
    const fn new() -> Slot {
        Slot {
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// Whether the mapping's file has failed under us since it was made.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// The mapping is about to be unmapped.
    pub(crate) fn release(&'static self) {
        let mut free = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
        self.set(0, 0);
        free.push(self);
    }

    fn set(&self, start: usize, bytes: usize) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        self.lost.store(false, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// The mapping noted here, if this address lies in it.
    fn mapping_of(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // The mapping that faults belongs to whoever faults, and is not being changed meanwhile: what
        // is torn here is another's.
        let whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (whole && address.wrapping_sub(start) < bytes).then_some((start, bytes))
    }
}

/// Notes a mapping, from here on guarded until its place is [released](Slot::release).
pub(crate) fn guard(start: usize, bytes: usize) -> io::Result<&'static Slot> {
    let mut free = CHANGES.lock().unwrap_or_else(PoisonError::into_inner);
    install()?;
    let slot = match free.pop() {
        Some(slot) => slot,
        None => {
            let chunk: &'static mut Chunk = Box::leak(Box::new(Chunk::new()));
            *chunk.next.get_mut() = FIRST.load(Ordering::Relaxed);
            let chunk: &'static Chunk = chunk;
            FIRST.store(core::ptr::from_ref(chunk).cast_mut(), Ordering::Release);
            free.extend(&chunk.slots);
            free.pop().expect("a chunk has places")
        }
    };
    slot.set(start, bytes);
    Ok(slot)
}

fn chunk_at(place: &AtomicPtr<Chunk>) -> Option<&'static Chunk> {
    let chunk = place.load(Ordering::Acquire);
    // SAFETY: null, or a chunk that was leaked, and is only ever shared since it has stood here.
    unsafe { chunk.as_ref() }
}

/// Installs the handler, once. The caller holds [`CHANGES`].
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all-zero is a valid value of the structure.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    ours.sa_sigaction = on_fault as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and does only what a handler may
    // do; both structures are ours. What was there is kept before the handler could need it: no mapping
    // is noted yet.
    let set = unsafe {
        libc::sigaction(libc::SIGBUS, core::ptr::null(), &raw mut before);
        let _ = BEFORE.set(before);
        libc::sigaction(libc::SIGBUS, &raw const ours, null_mut())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler of this kind a valid structure; a positive code says that the
    // kernel itself has raised the signal, and that there is an address.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    if address.is_some_and(replace) {
        return;
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: what was installed before us is installed again; the access is done again and faults
        // again, now there.
        unsafe { libc::sigaction(libc::SIGBUS, before, null_mut()) };
    }
}

/// Maps zeros over the mapping that this address lies in. False if there is none.
fn replace(address: usize) -> bool {
    let mut chunk = chunk_at(&FIRST);
    while let Some(here) = chunk {
        for slot in &here.slots {
            let Some((start, bytes)) = slot.mapping_of(address) else { continue };
            slot.lost.store(true, Ordering::Relaxed);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: the range is a mapping that its owner, who is at this very access, keeps; it is
            // only ever reached by atomic accesses of any content. The number of the last error is the
            // interrupted code's, and is put back.
            return unsafe {
                let errno = *libc::__errno_location();
                let mapped = libc::mmap(start as *mut _, bytes, protection, flags, -1, 0);
                *libc::__errno_location() = errno;
                mapped != libc::MAP_FAILED
            };
        }
        chunk = chunk_at(&here.next);
    }
    false
}

#[cfg(test)]
mod tests {
    use crate::Memory;
    use std::fs::File;
    use std::os::fd::AsFd;
    use wire::BusAddr;

    /// A file in memory that anybody may cut short.
    fn file(bytes: u64) -> File {
        let name = std::format!("/dev/shm/doorbell-guard-{}-{bytes:x}", std::process::id());
        let file = File::options().create_new(true).read(true).write(true).open(&name);
        let file = file.expect("a file in memory");
        std::fs::remove_file(&name).expect("it was just made");
        file.set_len(bytes).expect("room");
        file
    }

    #[test]
    fn a_file_that_is_cut_short_costs_its_own_mapping_and_nothing_else() {
        let (cut, whole) = (file(0x1_0000), file(0x2_0000));
        let map = |file: &File, bytes, base| {
            Memory::map_guarded(file.as_fd(), 0, bytes, BusAddr(base), true).expect("a mapping")
        };
        let (lost, kept) = (map(&cut, 0x1_0000, 0), map(&whole, 0x2_0000, 0x10_0000));
        for round in 0..3 {
            lost.write(BusAddr(0x8000), &[7; 4096]).unwrap();
            kept.write(BusAddr(0x10_8000), &[8; 4096]).unwrap();
            assert!(!lost.is_lost() || round > 0);
            cut.set_len(0x1000).expect("nothing keeps it from being cut");
            let mut bytes = [1; 8192];
            lost.read(BusAddr(0x7800), &mut bytes).unwrap();
            assert!(lost.is_lost());
            if round == 0 {
                assert_eq!(bytes, [0; 8192], "zeros took the file's place");
            }
            kept.read(BusAddr(0x10_7800), &mut bytes).unwrap();
            assert_eq!((bytes[0x7ff], bytes[0x800], kept.is_lost()), (0, 8, false));
        }
        drop(lost);
        // The place is used again, and knows nothing of what was lost.
        let again = map(&whole, 0x1_0000, 0);
        assert!(!again.is_lost());
        let mut bytes = [1; 1];
        again.read(BusAddr(0x8000), &mut bytes).unwrap();
        assert_eq!(bytes, [8]);
    }

    #[test]
    fn mappings_are_found_among_many() {
        let files: std::vec::Vec<_> = (0..300).map(|n| file(0x1000 * (n + 0x40))).collect();
        let memories: std::vec::Vec<_> = files
            .iter()
            .map(|file| Memory::map_guarded(file.as_fd(), 0, 0x1000, BusAddr(0), true).unwrap())
            .collect();
        for (file, memory) in files.iter().zip(&memories).step_by(7) {
            file.set_len(0).unwrap();
            memory.store_u32(BusAddr(16), 9).unwrap();
        }
        for (number, memory) in memories.iter().enumerate() {
            assert_eq!(memory.is_lost(), number % 7 == 0, "{number}");
        }
    }
}
