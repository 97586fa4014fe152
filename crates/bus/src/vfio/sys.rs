//! System calls of VFIO: ioctls and the mapping of a register window. One of the modules of the bus with
//! `unsafe`.
//!
//! Numbers and structures are those of Linux's `include/uapi/linux/vfio.h`.
#![allow(unsafe_code)]

use std::ffi::{CString, c_ulong};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::vec::Vec;

use core::ptr::NonNull;
use core::sync::atomic::{Ordering, fence};

use crate::Memory;

/// `_IO(';', 100 + n)`.
const fn number(n: c_ulong) -> c_ulong {
    (b';' as c_ulong) << 8 | (100 + n)
}

/// Ioctls whose argument is a number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plain {
    GetApiVersion = number(0) as isize,
    CheckExtension = number(1) as isize,
    SetIommu = number(2) as isize,
    DeviceReset = number(11) as isize,
}

/// Ioctls whose argument is a structure that begins with its own length and holds no pointer: the kernel
/// accesses that many bytes and no more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Framed {
    GroupGetStatus = number(3) as isize,
    DeviceGetInfo = number(7) as isize,
    RegionGetInfo = number(8) as isize,
    IrqGetInfo = number(9) as isize,
    SetIrqs = number(10) as isize,
    IommuGetInfo = number(12) as isize,
}

/// Maximum length of the fixed part of a [`Framed`] structure, in words.
const FIXED_WORDS_MAX: usize = 8;

const GROUP_SET_CONTAINER: c_ulong = number(4);
const GROUP_GET_DEVICE_FD: c_ulong = number(6);
const IOMMU_MAP_DMA: c_ulong = number(13);

const DMA_READ_AND_WRITE: u32 = 1 | 1 << 1;

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Calls an ioctl with a number.
pub(super) fn plain(fd: BorrowedFd<'_>, call: Plain, value: c_ulong) -> io::Result<i32> {
    // SAFETY: these calls take their argument as a number and access no memory of this process.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), call as c_ulong, value) })
}

/// Calls an ioctl with a structure. `words[0]` is set to its length in bytes.
pub(super) fn exchange(fd: BorrowedFd<'_>, call: Framed, words: &mut [u32]) -> io::Result<()> {
    // The kernel may read a structure's fixed part before it checks the length.
    let mut whole = Vec::from(words as &[u32]);
    whole.resize(whole.len().max(FIXED_WORDS_MAX), 0);
    whole[0] = (words.len() * 4) as u32;
    // SAFETY: the argument begins with its length in bytes, which is at most that of the vector; for
    // these calls the kernel accesses the fixed part (at most FIXED_WORDS_MAX words, which are there)
    // and what lies within that length, and keeps no pointer to it.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), call as c_ulong, whole.as_mut_ptr()) })?;
    let length = words.len();
    words.copy_from_slice(&whole[..length]);
    Ok(())
}

/// Adds a group to a container.
pub(super) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let container = container.as_raw_fd();
    // SAFETY: the kernel reads one descriptor from this address, which outlives the call.
    check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &raw const container) })?;
    Ok(())
}

/// Opens a function of a group, by its address.
pub(super) fn device(group: BorrowedFd<'_>, address: &str) -> io::Result<OwnedFd> {
    let name = CString::new(address)?;
    // SAFETY: the kernel reads a C string, which outlives the call.
    let fd = check(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) })?;
    // SAFETY: a descriptor that was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Maps this memory for the devices of a container at its bus address. The kernel pins the pages until the
/// container is closed, even if this process unmaps them first.
pub(super) fn map_dma(container: BorrowedFd<'_>, memory: &Memory) -> io::Result<()> {
    #[repr(C)]
    struct Map {
        bytes: u32,
        flags: u32,
        place: u64,
        on_the_bus: u64,
        length: u64,
    }
    let map = Map {
        bytes: size_of::<Map>() as u32,
        flags: DMA_READ_AND_WRITE,
        place: memory.start().addr() as u64,
        on_the_bus: memory.base().0,
        length: memory.bytes() as u64,
    };
    // SAFETY: the kernel reads the structure. Devices then write to a `Memory`, which is never reached by a
    // Rust reference and allows concurrent writes.
    check(unsafe { libc::ioctl(container.as_raw_fd(), IOMMU_MAP_DMA, &raw const map) })?;
    Ok(())
}

/// Registers of a function: a mapped part of one of its BARs. Every access is one volatile 32-bit access.
pub(super) struct Registers {
    start: NonNull<u32>,
    bytes: usize,
}

// SAFETY: device registers at a fixed address, reached only by volatile accesses of one word, which any
// thread may make; unmapped once, when the last handle is dropped.
unsafe impl Send for Registers {}
// SAFETY: as above.
unsafe impl Sync for Registers {}

impl Registers {
    /// Maps `bytes` bytes of a device's file from `offset` on; both are multiples of the page size.
    pub(super) fn map(device: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Registers> {
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no other.
        let start = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                device.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).expect("a mapping is not at zero");
        Ok(Registers { start, bytes })
    }

    fn place(&self, register: u32) -> Option<NonNull<u32>> {
        let at = register as usize;
        let inside = at.is_multiple_of(4) && at < self.bytes;
        // SAFETY: the register's word begins inside the mapping, whose length is whole pages.
        inside.then(|| unsafe { self.start.byte_add(at) })
    }

    /// Reads a register. Returns all ones if there is none. Writes that the device posted before the answer
    /// are visible afterwards: the root complex orders them, and the fence orders the compiler.
    pub(super) fn load(&self, register: u32) -> u32 {
        let Some(place) = self.place(register) else { return u32::MAX };
        // SAFETY: an aligned word inside the mapping.
        let value = u32::from_le(unsafe { place.read_volatile() });
        fence(Ordering::Acquire);
        value
    }

    /// Writes a register, after all earlier stores to memory: x86 keeps the order of stores, to uncached
    /// memory too (Intel SDM volume 3, 9.2.2), and the fence orders the compiler.
    pub(super) fn store(&self, register: u32, value: u32) {
        let Some(place) = self.place(register) else { return };
        fence(Ordering::Release);
        // SAFETY: an aligned word inside the mapping.
        unsafe { place.write_volatile(value.to_le()) };
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and this is the last handle.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn register_access_beyond_mapping_reads_all_ones() {
        let path = std::env::temp_dir().join(std::format!("registers-{}", std::process::id()));
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(8192).unwrap();
        let registers = Registers::map(file.as_fd(), 4096, 4096).unwrap();
        registers.store(0x14, 0x1234_5678);
        registers.store(4096, 1);
        registers.store(2, 1);
        assert_eq!(registers.load(0x14), 0x1234_5678);
        assert_eq!(registers.load(0), 0);
        assert_eq!(registers.load(4096), u32::MAX);
        assert_eq!(registers.load(0x16), u32::MAX);
        let mut there = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut there, 4096 + 0x14).unwrap();
        assert_eq!(u32::from_le_bytes(there), 0x1234_5678);
    }

    #[test]
    fn ioctl_numbers_match_kernel_header() {
        // `_IO(';', 100)` is 0x3b64.
        assert_eq!(Plain::GetApiVersion as c_ulong, 0x3b64);
        assert_eq!(Plain::DeviceReset as c_ulong, 0x3b6f);
        assert_eq!(Framed::IommuGetInfo as c_ulong, 0x3b70);
        assert_eq!(IOMMU_MAP_DMA, 0x3b71);
    }

    #[test]
    fn vfio_ioctl_on_other_file_fails() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut words = [0; 5];
        assert!(exchange(file.as_fd(), Framed::DeviceGetInfo, &mut words).is_err());
        assert!(plain(file.as_fd(), Plain::GetApiVersion, 0).is_err());
        assert!(device(file.as_fd(), "0000:01:00.0").is_err());
        let memory = Memory::private(4096, wire::BusAddr(0));
        assert!(map_dma(file.as_fd(), &memory).is_err());
    }
}
