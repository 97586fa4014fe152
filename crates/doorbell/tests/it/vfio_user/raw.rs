//! A client without a driver: it builds messages by hand, including invalid ones. Its memory is a file
//! that it reads and writes by system calls, not by a mapping.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use wire::vfio_user::{
    DmaAccess, DmaMap, DmaUnmap, Header, IrqSet, RegionAccess, Version, command, region,
};
use zerocopy::{FromBytes, IntoBytes};

/// A client. It serves the server's messages for memory that it has not mapped.
pub struct Raw {
    pub socket: UnixStream,
    next: u16,
    /// Pieces that are reached by messages: bus address, length, file, offset in it.
    pub by_message: Vec<(u64, u64, File, u64)>,
    /// Messages of the server that have been answered.
    pub answered: u64,
}

/// A memory file of this length that can be truncated.
pub fn file(bytes: u64) -> File {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("/dev/shm/doorbell-raw-{}-{number}", std::process::id());
    let file = File::options().create_new(true).read(true).write(true).open(&name);
    let file = file.expect("a file in memory");
    std::fs::remove_file(&name).expect("it was just made");
    file.set_len(bytes).expect("room");
    file
}

pub fn eventfd(first: u32) -> OwnedFd {
    // SAFETY: a plain system call.
    let fd = unsafe { libc::eventfd(first, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    assert!(fd >= 0, "a counter");
    // SAFETY: a new descriptor with no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Reads a counter, which resets it to zero.
pub fn count(counter: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    let file = File::from(counter.try_clone().expect("a descriptor"));
    match (&file).read(&mut bytes) {
        Ok(8) => u64::from_ne_bytes(bytes),
        _ => 0,
    }
}

/// Clears O_NONBLOCK: a write to a full counter blocks, whichever flags its other owners have set.
pub fn set_blocking(counter: &OwnedFd) {
    // SAFETY: a plain system call on our descriptor.
    assert_eq!(unsafe { libc::fcntl(counter.as_raw_fd(), libc::F_SETFL, 0) }, 0);
}

/// Sends bytes, with descriptors attached to the first.
pub fn send_with(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let mut control = [0_u64; 64];
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let mut part = libc::iovec { iov_base: rest.as_ptr() as *mut _, iov_len: rest.len() };
        // SAFETY: all-zero is a valid message header; the buffers are ours and have the given lengths: 512
        // bytes hold more descriptors than any test sends.
        let sent = unsafe {
            let mut header: libc::msghdr = std::mem::zeroed();
            header.msg_iov = &raw mut part;
            header.msg_iovlen = 1;
            if done == 0 && !fds.is_empty() {
                assert!(fds.len() < 100);
                header.msg_control = control.as_mut_ptr().cast();
                header.msg_controllen = libc::CMSG_SPACE(4 * fds.len() as u32) as usize;
                let first = libc::CMSG_FIRSTHDR(&raw const header);
                (*first).cmsg_level = libc::SOL_SOCKET;
                (*first).cmsg_type = libc::SCM_RIGHTS;
                (*first).cmsg_len = libc::CMSG_LEN(4 * fds.len() as u32) as usize;
                for (index, fd) in fds.iter().enumerate() {
                    let place = libc::CMSG_DATA(first).cast::<i32>().add(index);
                    place.write_unaligned(fd.as_raw_fd());
                }
            }
            libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL)
        };
        if sent < 0 {
            return Err(std::io::Error::last_os_error());
        }
        done += sent as usize;
    }
    Ok(())
}

/// Receives bytes and their descriptors.
pub fn receive_with(socket: &UnixStream, to: &mut [u8]) -> std::io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = [0_u64; 64];
    let mut part = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    // SAFETY: as above; received descriptors are new and ours, and the message's length gives their
    // number.
    unsafe {
        let mut header: libc::msghdr = std::mem::zeroed();
        header.msg_iov = &raw mut part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        let got = libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC);
        if got < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        let came =
            if first.is_null() { 0 } else { ((*first).cmsg_len - libc::CMSG_LEN(0) as usize) / 4 };
        let one = |number| libc::CMSG_DATA(first).cast::<i32>().add(number).read_unaligned();
        let fds = (0..came).map(|number| OwnedFd::from_raw_fd(one(number))).collect();
        Ok((got as usize, fds))
    }
}

/// A message of the server.
pub struct Answer {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fd: Option<OwnedFd>,
}

/// A process that another test has forked and that has not yet executed its program holds this socket too:
/// the server would see the client there while the next one connects.
impl Drop for Raw {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl Raw {
    pub fn connect(path: &Path) -> Raw {
        let socket = UnixStream::connect(path).expect("the server listens");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        Raw { socket, next: 0, by_message: Vec::new(), answered: 0 }
    }

    /// Connects and negotiates a version.
    pub fn greeted(path: &Path) -> Raw {
        let mut raw = Raw::connect(path);
        raw.greet("{\"capabilities\":{\"max_msg_fds\":8}}\0").expect("a version");
        raw
    }

    pub fn greet(&mut self, capabilities: &str) -> Result<Vec<u8>, u32> {
        let version = Version { major: 0.into(), minor: 1.into() };
        self.call(command::VERSION, &[version.as_bytes(), capabilities.as_bytes()], &[])
    }

    pub fn send(&mut self, command: u16, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> u16 {
        self.next = self.next.wrapping_add(1);
        let header = Header::command(self.next, command, parts.iter().map(|p| p.len()).sum());
        let mut message = header.as_bytes().to_vec();
        parts.iter().for_each(|part| message.extend_from_slice(part));
        send_with(&self.socket, &message, fds).expect("the server takes messages");
        self.next
    }

    /// Receives a message; `None` if the server has closed the connection.
    pub fn receive(&mut self) -> Option<Answer> {
        let mut header = Header::default();
        let mut fd = None;
        let mut fill = |to: &mut [u8]| {
            let mut done = 0;
            while done < to.len() {
                match receive_with(&self.socket, &mut to[done..]) {
                    Ok((0, _)) => return false,
                    Ok((bytes, came)) => {
                        done += bytes;
                        fd = came.into_iter().next().or(fd.take());
                    }
                    Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => panic!("the server is silent: {error}"),
                }
            }
            true
        };
        let mut payload = Vec::new();
        if !fill(header.as_mut_bytes()) {
            return None;
        }
        payload.resize(header.bytes.get() as usize - Header::BYTES, 0);
        fill(&mut payload).then_some(Answer { header, payload, fd })
    }

    /// Receives replies until the one to this message; answers the server's own commands meanwhile.
    pub fn reply(&mut self, id: u16) -> Option<Answer> {
        loop {
            let answer = self.receive()?;
            if answer.header.is_command() {
                self.serve(&answer);
            } else if answer.header.id.get() == id {
                return Some(answer);
            }
        }
    }

    /// Answers a command of the server's.
    pub fn serve(&mut self, asked: &Answer) {
        let access = DmaAccess::read_from_prefix(&asked.payload).expect("an access").0;
        let (at, count) = (access.address.get(), access.count.get());
        let holds = |p: &&(u64, u64, File, u64)| p.0 <= at && at + count <= p.0 + p.1;
        let piece = self.by_message.iter().find(holds);
        let (base, _, file, offset) = piece.expect("the server asks for what is not mapped");
        let place = offset + (at - base);
        let mut message = Vec::new();
        let data = &asked.payload[16..];
        let back = match asked.header.command.get() {
            command::DMA_READ => {
                let mut bytes = vec![0; count as usize];
                file.read_exact_at(&mut bytes, place).expect("our own file");
                bytes
            }
            command::DMA_WRITE => {
                assert_eq!(data.len() as u64, count);
                file.write_all_at(data, place).expect("our own file");
                Vec::new()
            }
            other => panic!("the server sends command {other}"),
        };
        message.extend_from_slice(asked.header.reply(16 + back.len()).as_bytes());
        message.extend_from_slice(access.as_bytes());
        message.extend_from_slice(&back);
        send_with(&self.socket, &message, &[]).expect("the server takes replies");
        self.answered += 1;
    }

    /// Sends a command and receives its reply.
    pub fn call(
        &mut self,
        command: u16,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, u32> {
        let id = self.send(command, parts, fds);
        let answer = self.reply(id).expect("the server is there");
        match answer.header.failed() {
            Some(error) => Err(error),
            None => Ok(answer.payload),
        }
    }

    pub fn read(&mut self, region: u32, at: u64, bytes: u32) -> Result<Vec<u8>, u32> {
        let access = access(region, at, bytes);
        let answer = self.call(command::REGION_READ, &[access.as_bytes()], &[])?;
        assert_eq!(answer.len(), 16 + bytes as usize);
        Ok(answer[16..].to_vec())
    }

    pub fn write(&mut self, region: u32, at: u64, data: &[u8]) -> Result<(), u32> {
        let access = access(region, at, data.len() as u32);
        self.call(command::REGION_WRITE, &[access.as_bytes(), data], &[]).map(|_| ())
    }

    pub fn read32(&mut self, register: u32) -> u32 {
        let bytes = self.read(region::BAR0, register.into(), 4).expect("a register");
        u32::from_le_bytes(bytes.try_into().expect("four bytes"))
    }

    pub fn write32(&mut self, register: u32, value: u32) {
        self.write(region::BAR0, register.into(), &value.to_le_bytes()).expect("a register");
    }

    /// Sets or clears Bus Master Enable.
    pub fn bus_master(&mut self, on: bool) {
        let command = if on { 0b110_u16 } else { 0b010 };
        self.write(region::CONFIG, 4, &command.to_le_bytes()).expect("the configuration space");
    }

    /// Maps memory: flags 1 readable, 2 writable.
    pub fn map(
        &mut self,
        at: u64,
        bytes: u64,
        flags: u32,
        file: Option<(&File, u64)>,
    ) -> Result<(), u32> {
        let map = DmaMap {
            argsz: 32.into(),
            flags: flags.into(),
            offset: file.map_or(0, |(_, offset)| offset).into(),
            address: at.into(),
            size: bytes.into(),
        };
        let fds: Vec<_> = file.iter().map(|(file, _)| file.as_fd()).collect();
        self.call(command::DMA_MAP, &[map.as_bytes()], &fds).map(|_| ())
    }

    /// Unmaps a range, or all memory if none is given.
    pub fn unmap(&mut self, what: Option<(u64, u64)>) -> Result<(), u32> {
        let (address, size) = what.unwrap_or((0, 0));
        let unmap = DmaUnmap {
            argsz: 24.into(),
            flags: if what.is_none() { 2 } else { 0 }.into(),
            address: address.into(),
            size: size.into(),
        };
        self.call(command::DMA_UNMAP, &[unmap.as_bytes()], &[]).map(|_| ())
    }

    /// Sets interrupts: flags as in the protocol.
    pub fn irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), u32> {
        let set = IrqSet {
            argsz: 20.into(),
            flags: flags.into(),
            index: index.into(),
            start: start.into(),
            count: count.into(),
        };
        self.call(command::SET_IRQS, &[set.as_bytes()], fds).map(|_| ())
    }

    pub fn reset(&mut self) {
        self.call(command::RESET, &[], &[]).expect("a reset");
    }
}

pub fn access(region: u32, at: u64, bytes: u32) -> RegionAccess {
    RegionAccess { offset: at.into(), region: region.into(), count: bytes.into() }
}
