//! Anonymous files, mappings, descriptor passing, event counters. A module of the bus with `unsafe`: each
//! call is one system call on descriptors and buffers that this process owns.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::ptr::{self, NonNull};
use std::vec::Vec;

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
        let too_large = || io::Error::from_raw_os_error(libc::EOVERFLOW);
        let page = page_bytes(fd)?;
        let first = offset / page * page;
        let end =
            offset.checked_add(bytes as u64).and_then(|end| end.checked_next_multiple_of(page));
        let end = end.ok_or_else(too_large)?;
        let whole_bytes = usize::try_from(end - first).map_err(|_| too_large())?;
        let place = libc::off_t::try_from(first).map_err(|_| too_large())?;
        let protection =
            if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        let (flags, fd) = (libc::MAP_SHARED, fd.as_raw_fd());
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no other.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), whole_bytes, protection, flags, fd, place) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Larger pages if the kernel supports them for shared memory; a failure does not matter.
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(start, whole_bytes, libc::MADV_HUGEPAGE) };
        let whole = NonNull::new(start.cast()).expect("a mapping is not at zero");
        Ok(Mapped { whole, whole_bytes, skip: (offset - first) as usize })
    }

    /// Maps zeros of this process alone, on huge pages if the kernel has them. Only bytes that are written
    /// take memory.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Mapped> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address chosen by the kernel overlaps no other.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is the mapping just made; a failure does not matter.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        let whole = NonNull::new(start.cast()).expect("a mapping is not at zero");
        Ok(Mapped { whole, whole_bytes: bytes, skip: 0 })
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
        let unmapped = unsafe { libc::munmap(self.whole.as_ptr().cast(), self.whole_bytes) };
        debug_assert_eq!(unmapped, 0, "munmap: {}", io::Error::last_os_error());
    }
}

const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Creates a zeroed file in memory, sealed against changes of its length.
pub(crate) fn sealed_file(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let name = CString::new(name).expect("a name without zero bytes");
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string that outlives the call.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
    // SAFETY: a descriptor that was just made and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain system calls on an owned descriptor.
    check(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as i64) })?;
    // SAFETY: as above.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(fd)
}

/// Returns true if the file is sealed against shrinking.
pub(crate) fn keeps_length(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: a plain system call on an owned descriptor.
    let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
    Ok(seals & libc::F_SEAL_SHRINK != 0)
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// File-system type (statfs(2)) and block size of a file.
fn statfs(fd: BorrowedFd<'_>) -> io::Result<(u32, u64)> {
    // SAFETY: all-zero is a valid value of the structure.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the structure is a local, and the call fills it in.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), &raw mut about) })?;
    Ok((about.f_type as u32, about.f_bsize as u64))
}

/// File-system type of a file (statfs(2)).
pub(crate) fn filesystem(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(statfs(fd)?.0)
}

/// Page size of a file's mappings: the processor's page, or the hugetlbfs page, which statfs reports as the
/// block size.
fn page_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    const HUGETLBFS: u32 = 0x9584_58f6;
    let (kind, block) = statfs(fd)?;
    if kind == HUGETLBFS {
        return Ok(block);
    }
    // SAFETY: a plain call. It fails for unknown names.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).map_err(|_| io::Error::last_os_error())
}

/// Populates all pages of a mapping for writing. On kernels before 5.14, which lack the call, the first
/// stores do.
pub(crate) fn populate(start: NonNull<u8>, bytes: usize) -> io::Result<()> {
    // SAFETY: the range is a mapping of the caller's; the call changes no byte of it, and reports a page
    // that cannot be provided instead of raising a signal.
    match check(unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_POPULATE_WRITE) }) {
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => Ok(()),
    }
}

/// Length of a file in bytes.
pub(crate) fn length(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(File::from(fd.try_clone_to_owned()?).metadata()?.len())
}

/// Event counter (eventfd(2)), non-blocking.
pub(crate) struct Eventfd(OwnedFd);

impl Eventfd {
    pub(crate) fn new() -> io::Result<Eventfd> {
        // SAFETY: a plain system call.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: a descriptor that was just made and has no other owner.
        Ok(Eventfd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// An eventfd that a peer has sent. Any other file is rejected: a write to a pipe or a socket could
    /// block on the peer.
    pub(crate) fn from_peer(fd: OwnedFd) -> io::Result<Eventfd> {
        let name = std::fs::read_link(std::format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if name.as_os_str() != "anon_inode:[eventfd]" {
            let text = std::format!("{}: an eventfd was expected", name.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        // SAFETY: plain system calls on an owned descriptor.
        let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
        Ok(Eventfd(fd))
    }

    /// Adds one. A full counter is already signalled.
    pub(crate) fn signal(&self) {
        let one = 1_u64;
        // SAFETY: reads eight bytes of a local. The result carries no information: the counter is full, or
        // not.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Descriptor number: identifies the counter while it is open.
    pub(crate) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Reads and resets the count.
    pub(crate) fn take(&self) -> u64 {
        let mut count = 0_u64;
        // SAFETY: writes eight bytes of a local. A counter at zero is an error and leaves it unchanged.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
        count
    }
}

impl AsFd for Eventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Socket address of a path.
fn address_of(path: &Path) -> io::Result<libc::sockaddr_un> {
    // SAFETY: all-zero is a valid address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let (bytes, room) = (path.as_os_str().as_bytes(), address.sun_path.len());
    if bytes.is_empty() || bytes.len() >= room || bytes.contains(&0) {
        let text = std::format!("a path of {} bytes: 1 to {} were expected", bytes.len(), room - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok(address)
}

fn unix_socket(flags: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags;
    // SAFETY: a plain system call.
    let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: a descriptor that was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Listens at a path to which only processes of the owner may connect: the file has mode 0600 from its
/// creation, because Linux gives it the socket's mode. The umask, which all threads share, stays unchanged.
pub(crate) fn listen_for_owner(path: &Path) -> io::Result<UnixListener> {
    let (address, socket) = (address_of(path)?, unix_socket(0)?);
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: plain system calls on an owned descriptor; the address is a local of the given length.
    unsafe {
        check(libc::fchmod(socket.as_raw_fd(), 0o600))?;
        check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes))?;
        check(libc::listen(socket.as_raw_fd(), libc::SOMAXCONN))?;
    }
    Ok(UnixListener::from(socket))
}

/// Connects to the listener at a path without waiting: `WouldBlock` means that its backlog is full.
pub(crate) fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let (address, socket) = (address_of(path)?, unix_socket(libc::SOCK_NONBLOCK)?);
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: a plain system call on an owned descriptor; the address is a local of the given length.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), bytes) })?;
    Ok(UnixStream::from(socket))
}

/// Enables TCP keep-alive: first probe after `idle` seconds of silence, then one every `every` seconds; the
/// connection ends after `count` unanswered probes.
pub(crate) fn keep_alive(fd: BorrowedFd<'_>, idle: i32, every: i32, count: i32) -> io::Result<()> {
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, every),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, count),
    ];
    for (level, name, value) in options {
        let (value, bytes) = ((&raw const value).cast(), size_of::<i32>() as libc::socklen_t);
        // SAFETY: a plain system call that reads a local number.
        check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, bytes) })?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// `POLLIN`: data to read, or the other end has closed.
    Readable,
    /// `POLLOUT`: room to write.
    Writable,
}

/// Waits until one of these is ready, for at most `ms` milliseconds, forever if negative; fills `ready`.
pub(crate) fn wait(these: &[(BorrowedFd<'_>, Until)], ms: i32, ready: &mut Vec<bool>) {
    let mut polled: Vec<libc::pollfd> = these
        .iter()
        .map(|(fd, until)| {
            let events = if *until == Until::Readable { libc::POLLIN } else { libc::POLLOUT };
            libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
        })
        .collect();
    // SAFETY: the list is a local of the given length. A failure leaves all flags at zero.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) };
    ready.clear();
    ready.extend(polled.iter().map(|polled| polled.revents != 0));
}

/// Maximum number of descriptors in one message.
pub(crate) const FDS_MAX: usize = 16;

/// Control-message buffer for them, aligned as the kernel requires.
#[repr(C, align(8))]
struct Control([u8; 16 + 4 * FDS_MAX]);

/// Sends a part of a message, with descriptors attached to its first byte; returns the number of bytes
/// sent.
pub(crate) fn send(
    socket: &UnixStream,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    assert!(fds.len() <= FDS_MAX, "at most {FDS_MAX} descriptors in a message");
    let mut control = Control([0; _]);
    let mut part =
        libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    // SAFETY: all-zero is a valid message header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !fds.is_empty() {
        let bytes = 4 * fds.len() as u32;
        header.msg_control = (&raw mut control.0).cast();
        // SAFETY: arithmetic.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
        // SAFETY: the control buffer is aligned and has CMSG_SPACE(4 * FDS_MAX) = 16 + 4 * FDS_MAX
        // bytes, so the first header and its data lie inside it.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let data = libc::CMSG_DATA(first).cast::<i32>();
            for (index, fd) in fds.iter().enumerate() {
                data.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: the header's buffers are locals or borrowed, have the given lengths, and are only read.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Receives the available part of a message and its descriptors; returns the number of bytes.
///
/// # Errors
/// Among others, if there were more descriptors than [`FDS_MAX`], or than this process has room for: those
/// received are closed.
pub(crate) fn receive(
    socket: &UnixStream,
    message: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut control = Control([0; _]);
    let mut part = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
    // SAFETY: all-zero is a valid message header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control.0).cast();
    header.msg_controllen = size_of::<Control>();
    // SAFETY: the header's buffers are borrowed or locals and have the given lengths.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has filled in the control buffer and its length; the macros walk it. Every
    // descriptor in it is new, and is owned at once, so none leaks.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(&raw const header);
        while !cmsg.is_null() {
            if (*cmsg).cmsg_level == libc::SOL_SOCKET && (*cmsg).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*cmsg).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
                for index in 0..count {
                    let fd = libc::CMSG_DATA(cmsg).cast::<i32>().add(index).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            cmsg = libc::CMSG_NXTHDR(&raw const header, cmsg);
        }
    }
    if header.msg_flags & libc::MSG_CTRUNC != 0 {
        let text = std::format!(
            "more descriptors came beside a message than {FDS_MAX}, or than there is room for here"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(got as usize)
}
