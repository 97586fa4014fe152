//! Mappings of files and of anonymous memory. A module of the bus with `unsafe`: each call is one system call
//! on a range that this process maps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::fd;

/// Mapping of a part of a file. The kernel maps, replaces and unmaps whole pages of the file, and hugetlbfs
/// pages are longer than the processor's: the mapping is wider than the requested range if that does not
/// begin and end on such a page.
pub(crate) struct Mapped {
    /// Start and length of the kernel's mapping.
    whole: NonNull<u8>,
    whole_bytes: usize,
    /// Offset of the requested range in the mapping, bytes.
    skip: usize,
}

impl Mapped {
    /// Maps a part of a file at an address chosen by the kernel.
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        writable: bool,
    ) -> io::Result<Mapped> {
        let page = fd::page_bytes(fd)?;
        let first = offset / page * page;
        let end =
            offset.checked_add(bytes as u64).and_then(|end| end.checked_next_multiple_of(page));
        let end = end.filter(|end| i64::try_from(*end).is_ok()).ok_or(Errno::OVERFLOW)?;
        let (whole_bytes, skip) = ((end - first) as usize, (offset - first) as usize);
        let mut protection = ProtFlags::READ;
        protection.set(ProtFlags::WRITE, writable);
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no other.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), whole_bytes, protection, MapFlags::SHARED, fd, first)?
        };
        Ok(Mapped::made(start, whole_bytes, skip))
    }

    /// Maps zeros of this process alone, on huge pages if the kernel has them. Only bytes that are written
    /// take memory.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Mapped> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no other.
        let start =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), bytes, protection, flags)? };
        Ok(Mapped::made(start, bytes, 0))
    }

    fn made(start: *mut core::ffi::c_void, whole_bytes: usize, skip: usize) -> Mapped {
        let whole = NonNull::new(start.cast()).expect("a mapping is not at zero");
        // Larger pages if the kernel supports them for such memory; a failure does not matter.
        let _ = advise(whole, whole_bytes, Advice::LinuxHugepage);
        Mapped { whole, whole_bytes, skip }
    }

    /// Start of the requested range.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: the part lies inside the mapping.
        unsafe { self.whole.add(self.skip) }
    }

    /// Start and length of the kernel's mapping: the range that may be replaced.
    pub(crate) fn whole(&self) -> (usize, usize) {
        (self.whole.as_ptr().addr(), self.whole_bytes)
    }

    /// Unmaps it.
    ///
    /// # Safety
    /// No access to the mapping follows, and this is called once.
    pub(crate) unsafe fn unmap(&self) {
        // SAFETY: the caller's promise; the range is the mapping.
        let unmapped = unsafe { rustix::mm::munmap(self.whole.as_ptr().cast(), self.whole_bytes) };
        debug_assert_eq!(unmapped, Ok(()), "munmap");
    }
}

/// Populates all pages of a mapping for writing. On kernels before 5.14, which lack the call, the first
/// stores do.
pub(crate) fn populate(start: NonNull<u8>, bytes: usize) -> io::Result<()> {
    match advise(start, bytes, Advice::LinuxPopulateWrite) {
        Err(Errno::INVAL) => Ok(()),
        result => Ok(result?),
    }
}

/// Gives the kernel one of the two advices of this file, about a mapping of the caller's.
fn advise(start: NonNull<u8>, bytes: usize, advice: Advice) -> Result<(), Errno> {
    // SAFETY: both advices leave every byte of the range as it is, and report a page that cannot be provided
    // instead of raising a signal.
    unsafe { rustix::mm::madvise(start.as_ptr().cast(), bytes, advice) }
}
