//! Anonymous files, descriptor passing, event counters, sockets: system calls on descriptors and buffers that
//! this process owns.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;
use std::vec::Vec;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};

/// Creates a zeroed file in memory, sealed against changes of its length.
pub(crate) fn sealed_file(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Returns true if the file is sealed against shrinking.
pub(crate) fn keeps_length(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK))
}

/// File-system type of a file (statfs(2)).
pub(crate) fn filesystem(fd: BorrowedFd<'_>) -> io::Result<u32> {
    Ok(rustix::fs::fstatfs(fd)?.f_type as u32)
}

/// Page size of a file's mappings: the processor's page, or the hugetlbfs page, which statfs reports as the
/// block size.
pub(crate) fn page_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    const HUGETLBFS: u32 = 0x9584_58f6;
    let about = rustix::fs::fstatfs(fd)?;
    let huge = about.f_type as u32 == HUGETLBFS;
    Ok(if huge { about.f_bsize as u64 } else { rustix::param::page_size() as u64 })
}

/// Length of a file in bytes.
pub(crate) fn length(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(File::from(fd.try_clone_to_owned()?).metadata()?.len())
}

/// Event counter (eventfd(2)), non-blocking.
pub(crate) struct Eventfd(OwnedFd);

impl Eventfd {
    pub(crate) fn new() -> io::Result<Eventfd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Eventfd(rustix::event::eventfd(0, flags)?))
    }

    /// An eventfd that a peer has sent. Any other file is rejected: a write to a pipe or a socket could
    /// block on the peer.
    pub(crate) fn from_peer(fd: OwnedFd) -> io::Result<Eventfd> {
        let name = std::fs::read_link(std::format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if name.as_os_str() != "anon_inode:[eventfd]" {
            let text = std::format!("{}: an eventfd was expected", name.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        rustix::fs::fcntl_setfl(&fd, rustix::fs::fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Eventfd(fd))
    }

    /// Adds one. A full counter is already signalled.
    pub(crate) fn signal(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Descriptor number: identifies the counter while it is open.
    pub(crate) fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Reads and resets the count.
    pub(crate) fn take(&self) -> u64 {
        let mut count = [0; 8];
        // A counter at zero is an error and leaves it unchanged.
        let _ = rustix::io::read(&self.0, &mut count);
        u64::from_ne_bytes(count)
    }
}

impl AsFd for Eventfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Socket address of a path.
fn address_of(path: &Path) -> io::Result<SocketAddrUnix> {
    /// Length of `sun_path`, whose last byte is zero.
    const ROOM: usize = 108;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() >= ROOM || bytes.contains(&0) {
        let text = std::format!("a path of {} bytes: 1 to {} were expected", bytes.len(), ROOM - 1);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(SocketAddrUnix::new(path)?)
}

fn unix_socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | flags;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Listens at a path to which only processes of the owner may connect: the file has mode 0600 from its
/// creation, because Linux gives it the socket's mode. The umask, which all threads share, stays unchanged.
pub(crate) fn listen_for_owner(path: &Path) -> io::Result<UnixListener> {
    let (address, socket) = (address_of(path)?, unix_socket(SocketFlags::empty())?);
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, libc::SOMAXCONN)?;
    Ok(UnixListener::from(socket))
}

/// Connects to the listener at a path without waiting: `WouldBlock` means that its backlog is full.
pub(crate) fn connect_at_once(path: &Path) -> io::Result<UnixStream> {
    let (address, socket) = (address_of(path)?, unix_socket(SocketFlags::NONBLOCK)?);
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

/// Enables TCP keep-alive: first probe after `idle` seconds of silence, then one every `every` seconds; the
/// connection ends after `count` unanswered probes.
pub(crate) fn keep_alive(fd: BorrowedFd<'_>, idle: u64, every: u64, count: u32) -> io::Result<()> {
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(idle))?;
    sockopt::set_tcp_keepintvl(fd, Duration::from_secs(every))?;
    Ok(sockopt::set_tcp_keepcnt(fd, count)?)
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
    let mut polled: Vec<PollFd<'_>> = these
        .iter()
        .map(|(fd, until)| {
            let events = if *until == Until::Readable { PollFlags::IN } else { PollFlags::OUT };
            PollFd::from_borrowed_fd(*fd, events)
        })
        .collect();
    let limit = u64::try_from(ms).ok().map(|ms| {
        Timespec::try_from(Duration::from_millis(ms)).expect("an i32 of milliseconds fits")
    });
    // A failure leaves all flags at zero.
    let _ = rustix::event::poll(&mut polled, limit.as_ref());
    ready.clear();
    ready.extend(polled.iter().map(|polled| !polled.revents().is_empty()));
}

/// Returns true if the peer of a Unix socket has closed it, whether or not all it sent has been read.
pub(crate) fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let _ = rustix::event::poll(&mut polled, Some(&Timespec::default()));
    polled[0].revents().contains(PollFlags::HUP)
}

/// Maximum number of descriptors in one message.
pub(crate) const FDS_MAX: usize = 16;

/// Control-message buffer for them: a header and the descriptors. Aligned as the kernel requires; rustix's
/// `cmsg_space!` has room to align it, into which the kernel would put more descriptors.
#[repr(C, align(8))]
struct Control([MaybeUninit<u8>; 16 + 4 * FDS_MAX]);

impl Control {
    const EMPTY: Control = Control([MaybeUninit::uninit(); _]);
}

/// Sends a part of a message, with descriptors attached to its first byte; returns the number of bytes
/// sent.
pub(crate) fn send(
    socket: &UnixStream,
    message: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut control = Control::EMPTY;
    let mut control = SendAncillaryBuffer::new(&mut control.0);
    let fits = fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds));
    assert!(fits, "at most {FDS_MAX} descriptors in a message");
    let part = [IoSlice::new(message)];
    Ok(rustix::net::sendmsg(socket, &part, &mut control, SendFlags::NOSIGNAL)?)
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
    let mut control = Control::EMPTY;
    let mut control = RecvAncillaryBuffer::new(&mut control.0);
    let mut part = [IoSliceMut::new(message)];
    let got = rustix::net::recvmsg(socket, &mut part, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        let text = std::format!(
            "more descriptors came beside a message than {FDS_MAX}, or than there is room for here"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(got.bytes)
}
