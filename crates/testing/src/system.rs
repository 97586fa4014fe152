//! What tests ask of the system: limits of a process that runs, its mappings, huge pages.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a huge page, as x86-64 comes with them.
pub const HUGE: u64 = 2 << 20;
/// More free huge pages than this are somebody's: a test does not take them all.
const HUGE_PAGES_MAX: u64 = 1024;

/// What a process may have.
#[derive(Clone, Copy)]
pub enum Limit {
    /// Descriptors: their numbers are below it.
    Descriptors,
    /// Bytes of address space.
    Memory,
}

/// Limits a child that runs; gives what it might have before.
pub fn limit(child: &Child, what: Limit, to: u64) -> u64 {
    let resource = match what {
        Limit::Descriptors => libc::RLIMIT_NOFILE,
        Limit::Memory => libc::RLIMIT_AS,
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

/// The mappings of a child: their number, and bytes.
pub fn mappings(child: &Child) -> (usize, u64) {
    let text = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).expect("it lives");
    let bytes = |line: &str| {
        let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-'))?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(number(to)? - number(from)?)
    };
    (text.lines().count(), text.lines().filter_map(bytes).sum())
}

/// A sealable file of so many huge pages, all of them there; none if the kernel has not so many.
pub fn huge(pages: u64) -> Option<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
    // SAFETY: a plain system call; a descriptor that it gives is new and ours.
    let file = unsafe {
        let fd = libc::memfd_create(c"doorbell-test".as_ptr(), flags);
        (fd >= 0).then(|| File::from_raw_fd(fd))?
    };
    file.set_len(pages * HUGE).ok()?;
    (0..pages).all(|page| allocate(&file, page)).then_some(file)
}

/// The same; says that the test is skipped if there are none. One test of a program has huge pages at a time:
/// another might have all of them taken away, or give back one that is to be missing.
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

/// Gives a page of a file back to the kernel, and takes all that it has: a touch of that page is signalled.
/// The pages are the kernel's again when what this gives is dropped. None: they are too many to be taken.
pub fn take_away(file: &File, page: u64) -> Option<File> {
    let free = std::fs::read_to_string("/proc/meminfo").ok()?;
    let free = free.lines().find_map(|line| line.strip_prefix("HugePages_Free:"))?;
    let free: u64 = free.trim().parse().ok()?;
    if free > HUGE_PAGES_MAX {
        println!("skipped: {free} huge pages are free, and at most {HUGE_PAGES_MAX} are taken");
        return None;
    }
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: plain system calls; a descriptor that is given is new and ours.
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

/// Sends bytes with a file beside them, and takes the file that comes with the answer.
pub fn exchange(socket: &UnixStream, bytes: &[u8], file: &File) -> File {
    let (mut control, mut back) = ([0_u64; 8], [0_u8; 64]);
    // SAFETY: all-zero is a valid header; its buffers are ours and as long as it says;
    // a descriptor that comes is new and ours.
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
