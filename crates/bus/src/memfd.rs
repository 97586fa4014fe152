//! Anonymous files in memory, which two processes map.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::fd;
use crate::shared::{Memory, REGION_ALIGN};
use wire::BusAddr;

/// Anonymous file in memory, sealed against changes of its length. Any owner of a descriptor can still
/// release its pages.
pub(crate) struct Memfd {
    fd: OwnedFd,
    bytes: usize,
}

impl Memfd {
    /// Creates a zeroed file; the length is rounded up to a page.
    pub(crate) fn new(name: &str, bytes: usize) -> io::Result<Memfd> {
        let bytes = bytes.next_multiple_of(REGION_ALIGN).max(REGION_ALIGN);
        Ok(Memfd { fd: fd::sealed_file(name, bytes)?, bytes })
    }

    /// A file that a peer has sent. It must be sealed against shrinking, so that an honest peer's mistake
    /// is detected here, and hold at least `bytes` bytes. Its mappings are [guarded](Self::map_guarded).
    pub(crate) fn from_peer(fd: OwnedFd, bytes: usize) -> io::Result<Memfd> {
        if !fd::keeps_length(fd.as_fd())? {
            let text = "the peer's memory is not sealed against shrinking (F_SEAL_SHRINK expected)";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let length = fd::length(fd.as_fd())?;
        if bytes == 0 || !bytes.is_multiple_of(REGION_ALIGN) || length < bytes as u64 {
            let text = std::format!("the peer's memory has {length} bytes, it announced {bytes}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(Memfd { fd, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn map(&self, base: BusAddr) -> io::Result<Memory> {
        Memory::map(self.fd.as_fd(), self.bytes, base)
    }

    /// Maps the whole file, guarded, because a peer has a descriptor of it too. The seal keeps the length,
    /// but pages can be released (`FALLOC_FL_PUNCH_HOLE`), and the kernel may then have none to replace
    /// them.
    pub(crate) fn map_guarded(&self, base: BusAddr) -> io::Result<Memory> {
        Memory::map_guarded(self.fd.as_fd(), 0, self.bytes, base, true)
    }
}

impl AsFd for Memfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
