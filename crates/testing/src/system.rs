//! System calls for tests: limits and mappings of a running process, huge pages, file descriptor passing.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Size of an x86-64 huge page, bytes.
pub const HUGE: u64 = 2 << 20;
/// Maximum free huge pages that a test takes. More are probably meant for another program.
const HUGE_PAGES_MAX: u64 = 1024;

/// A resource limit of a process.
#[derive(Clone, Copy)]
pub enum Limit {
    /// File descriptors: all numbers are below the limit.
    Descriptors,
    /// Address space, bytes.
    Memory,
    /// Length of a file, bytes. A process that does not ignore SIGXFSZ ends when it writes more.
    FileLength,
}

/// Sets a limit of a running child; returns the limit before.
pub fn limit(child: &Child, what: Limit, to: u64) -> u64 {
    let resource = match what {
        Limit::Descriptors => libc::RLIMIT_NOFILE,
        Limit::Memory => libc::RLIMIT_AS,
        Limit::FileLength => libc::RLIMIT_FSIZE,
    };
    let pid = child.id() as libc::pid_t;
    // SAFETY: all-zero is a valid value; the structures are ours.
    unsafe {
        let mut before: libc::rlimit = std::mem::zeroed();
        assert_eq!(libc::prlimit(pid, resource, std::ptr::null(), &raw mut before), 0);
        let after = libc::rlimit { rlim_cur: to.min(before.rlim_max), rlim_max: before.rlim_max };
        assert_eq!(libc::prlimit(pid, resource, &raw const after, std::ptr::null_mut()), 0);
        before.rlim_cur
    }
}

/// Number and total bytes of a child's mappings.
pub fn mappings(child: &Child) -> (usize, u64) {
    let text = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("it lives");
    let bytes = |line: &str| {
        let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-'))?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(to)? - number(from)?)
    };
    (text.lines().count(), text.lines().filter_map(bytes).sum())
}

/// Creates a sealable file of `pages` allocated huge pages; `None` if the kernel has too few.
pub fn huge(pages: u64) -> Option<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
    // SAFETY: a plain system call; a descriptor that it returns is new and ours.
    let file = unsafe {
        let fd = libc::memfd_create(c"doorbell-test".as_ptr(), flags);
        (fd >= 0).then(|| File::from_raw_fd(fd))?
    };
    file.set_len(pages * HUGE).ok()?;
    (0..pages).all(|page| allocate(&file, page)).then_some(file)
}

/// Like [`huge`], and prints that the test is skipped if there are too few pages. The guard lets one test of
/// a program use huge pages at a time: another could take all of them, or free one that must be missing.
pub fn huge_or_skip(pages: u64, test: &str) -> Option<(File, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let file = huge(pages);
    if file.is_none() {
        println!("{test}: skipped: {pages} free huge pages expected (sysctl vm.nr_hugepages=8)");
    }
    Some((file?, turn))
}

fn allocate(file: &File, page: u64) -> bool {
    let (at, bytes) = ((page * HUGE) as i64, HUGE as i64);
    // SAFETY: a plain system call on our descriptor.
    unsafe { libc::fallocate(file.as_raw_fd(), 0, at, bytes) == 0 }
}

/// Seals a file against shrinking.
pub fn seal_length(file: &File) {
    // SAFETY: a plain system call on our descriptor.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    assert_eq!(sealed, 0, "a memory file can be sealed");
}

/// Punches a huge page out of a file and allocates all free huge pages, so that an access to that page raises
/// SIGBUS. The pages are free again when the returned file is dropped. `None` if there are more than
/// `HUGE_PAGES_MAX`.
pub fn take_away(file: &File, page: u64) -> Option<File> {
    let free = std::fs::read_to_string("/proc/meminfo").ok()?;
    let free = free.lines().find_map(|line| line.strip_prefix("HugePages_Free:"))?;
    let free: u64 = free.trim().parse().ok()?;
    if free > HUGE_PAGES_MAX {
        println!("skipped: {free} huge pages are free, and at most {HUGE_PAGES_MAX} are taken");
        return None;
    }
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain system calls; a returned descriptor is new and ours.
    let hog = unsafe {
        let (at, bytes) = ((page * HUGE) as i64, HUGE as i64);
        assert_eq!(libc::fallocate(file.as_raw_fd(), punch, at, bytes), 0, "a seal allows it");
        let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB;
        let fd = libc::memfd_create(c"doorbell-hog".as_ptr(), flags);
        (fd >= 0).then(|| File::from_raw_fd(fd))?
    };
    hog.set_len((free + 64) * HUGE).ok()?;
    let taken = (0..free + 64).take_while(|page| allocate(&hog, *page)).count() as u64;
    assert!(taken < free + 64, "others give pages back as fast as they are taken");
    Some(hog)
}

/// Sends bytes with a file descriptor, and returns the file descriptor of the reply.
pub fn exchange(socket: &UnixStream, bytes: &[u8], file: &File) -> File {
    let (mut control, mut back) = ([0_u64; 8], [0_u8; 64]);
    // SAFETY: all-zero is a valid header; its buffers are ours and have the lengths in the header;
    // a received descriptor is new and ours.
    unsafe {
        let room = libc::CMSG_SPACE(4) as usize;
        let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
        let mut header: libc::msghdr = std::mem::zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), room);
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        ((*first).cmsg_level, (*first).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        (*first).cmsg_len = libc::CMSG_LEN(4) as usize;
        libc::CMSG_DATA(first).cast::<i32>().write_unaligned(file.as_raw_fd());
        let sent = libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL);
        assert_eq!(sent, bytes.len() as isize, "{}", std::io::Error::last_os_error());
        let mut part = libc::iovec { iov_base: back.as_mut_ptr().cast(), iov_len: back.len() };
        header.msg_iov = &raw mut part;
        let got = libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC);
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        assert!(got > 0 && !first.is_null(), "an answer with a file");
        File::from_raw_fd(libc::CMSG_DATA(first).cast::<i32>().read_unaligned())
    }
}
