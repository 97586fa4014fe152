//! Mappings of a peer's file, protected against SIGBUS.
//!
//! A process can truncate a file that it has sent, at any moment and after any check; its pages can also be
//! released to a kernel that then has none left. A load or a store there raises SIGBUS, which ends the
//! process. Requiring a seal would exclude foreign hosts (huge-page files, files in /dev/shm), and would not
//! help if memory is short. Copying through the kernel would be a system call for each queue entry.
//!
//! So each mapping of a peer's file is registered in a list that the signal handler can read: entries are
//! never freed, and carry a version that is odd while they change. It is registered in whole pages of that
//! file, because the kernel replaces no part of a huge page. A SIGBUS handler looks the address up. If it
//! lies in a registered mapping, the handler maps zeros over the whole mapping, marks it as lost, and the
//! access is repeated: it reads zeros, or its store is discarded. Code that copies checks [`Slot::is_lost`]
//! afterwards and disconnects the peer. Any other SIGBUS goes to the handler that was installed before.
//!
//! A module of the bus with `unsafe`. The handler only loads and stores atomics and calls `mmap`, a plain
//! system call.
#![allow(unsafe_code)]

use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::boxed::Box;
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::vec::Vec;

/// Registration of one mapping. Changed only under [`CHANGES`]; read by the handler at any moment.
pub(crate) struct Slot {
    /// Odd during a change: a reader discards the values.
    version: AtomicUsize,
    start: AtomicUsize,
    /// Zero if the slot is free.
    bytes: AtomicUsize,
    lost: AtomicBool,
}

/// Slots are never deallocated: the handler may read them at any moment.
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
/// Free slots. A slot may be changed only while this lock is held.
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

    /// Returns true if an access to the mapping has raised SIGBUS since it was made.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Unregisters the mapping, before it is unmapped.
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

    /// Start and length of the registered mapping if `address` lies in it.
    fn mapping_of(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let start = self.start.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        // The faulting thread owns its mapping, which is not changed meanwhile: a torn read here belongs to
        // another mapping.
        let whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        (whole && address.wrapping_sub(start) < bytes).then_some((start, bytes))
    }
}

/// Registers a mapping until its slot is [released](Slot::release).
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
    // SAFETY: null, or a chunk that was leaked, and only shared since it was linked here.
    unsafe { chunk.as_ref() }
}

/// Installs the handler once. The caller holds [`CHANGES`].
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: all-zero is a valid value of the structure.
    let (mut ours, mut before): (libc::sigaction, libc::sigaction) =
        unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
    ours.sa_sigaction = on_fault as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the handler has the signature that SA_SIGINFO requires and is async-signal-safe; both
    // structures are locals. The previous action is stored before the handler can need it: no mapping is
    // registered yet.
    let set = unsafe {
        libc::sigaction(libc::SIGBUS, core::ptr::null(), &raw mut before);
        let _ = BEFORE.set(before);
        libc::sigaction(libc::SIGBUS, &raw const ours, null_mut())
    };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes such a handler a valid structure; a positive code means that the kernel
    // itself has raised the signal, and that there is an address.
    let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr() as usize) };
    if address.is_some_and(replace) {
        return;
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: reinstalls the previous action; the access is repeated and faults again, now with that
        // action.
        unsafe { libc::sigaction(libc::SIGBUS, before, null_mut()) };
    }
}

/// Maps zeros over the mapping that contains this address. Returns false if there is none.
fn replace(address: usize) -> bool {
    let mut chunk = chunk_at(&FIRST);
    while let Some(here) = chunk {
        for slot in &here.slots {
            let Some((start, bytes)) = slot.mapping_of(address) else { continue };
            slot.lost.store(true, Ordering::Relaxed);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags =
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: the range is a mapping whose owner is inside this very access and so keeps it mapped;
            // it is only ever reached by atomic accesses, which accept any content. errno belongs to the
            // interrupted code and is restored.
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

    /// A file in memory that any process may truncate.
    fn file(bytes: u64) -> File {
        let name = std::format!("/dev/shm/doorbell-guard-{}-{bytes:x}", std::process::id());
        let file = File::options().create_new(true).read(true).write(true).open(&name);
        let file = file.expect("a file in memory");
        std::fs::remove_file(&name).expect("it was just made");
        file.set_len(bytes).expect("room");
        file
    }

    #[test]
    fn truncated_file_loses_only_its_own_mapping() {
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
        // The slot is reused, and its lost flag is reset.
        let again = map(&whole, 0x1_0000, 0);
        assert!(!again.is_lost());
        let mut bytes = [1; 1];
        again.read(BusAddr(0x8000), &mut bytes).unwrap();
        assert_eq!(bytes, [8]);
    }

    #[test]
    fn lost_mappings_found_among_300() {
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
