//! Whole messages over a socket.

use std::format;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::string::String;
use std::vec::Vec;

use runtime::{STD_CLOCK, Span, Time, WallClock};
use wire::vfio_user::Header;
use zerocopy::{FromBytes, IntoBytes};

use super::limits;
use crate::fd::{self, Until};

/// A message, and the descriptors that came beside it.
pub(super) struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// One end of a connection. It never waits longer than it is told to.
pub(super) struct Channel {
    socket: UnixStream,
}

impl Channel {
    pub fn new(socket: UnixStream) -> io::Result<Channel> {
        socket.set_nonblocking(true)?;
        Ok(Channel { socket })
    }

    /// Receives a message: waits until one begins, then for all of it. None: the other end has gone.
    pub fn receive(&self, begin: Span, whole: Span) -> Result<Option<Message>, String> {
        let (mut header, mut fds) = (Header::default(), Vec::new());
        let begin = STD_CLOCK.now() + begin;
        let Some(first) = self.some(header.as_mut_bytes(), &mut fds, begin)? else {
            return Ok(None);
        };
        // The time for the rest is counted from when it begins.
        let end = STD_CLOCK.now() + whole;
        self.rest(&mut header.as_mut_bytes()[first..], &mut fds, end)?;
        let bytes = header.bytes.get() as usize;
        if !(Header::BYTES..=limits::MESSAGE_BYTES_MAX).contains(&bytes) {
            return Err(format!(
                "a message of {bytes} bytes: {} to {} were expected",
                Header::BYTES,
                limits::MESSAGE_BYTES_MAX
            ));
        }
        let mut payload = std::vec![0; bytes - Header::BYTES];
        self.rest(&mut payload, &mut fds, end)?;
        Ok(Some(Message { header, payload, fds }))
    }

    /// Fills `to`, which belongs to a message that has begun.
    fn rest(&self, to: &mut [u8], fds: &mut Vec<OwnedFd>, end: Time) -> Result<(), String> {
        let (mut done, whole) = (0, to.len());
        while done < whole {
            match self.some(&mut to[done..], fds, end)? {
                Some(bytes) => done += bytes,
                None => return Err("the other end has gone in the middle of a message".into()),
            }
        }
        Ok(())
    }

    /// Some bytes; none if the other end has gone.
    fn some(
        &self,
        to: &mut [u8],
        fds: &mut Vec<OwnedFd>,
        end: Time,
    ) -> Result<Option<usize>, String> {
        loop {
            match fd::receive(&self.socket, to, fds) {
                Ok(0) => return Ok(None),
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.wait(Until::Readable, end, "a message, or the rest of one")?;
                    }
                    io::ErrorKind::Interrupted => {}
                    // What a process that dies leaves behind.
                    io::ErrorKind::ConnectionReset => return Ok(None),
                    _ => return Err(format!("receiving a message: {error}")),
                },
            }
        }
    }

    /// Sends a message.
    pub fn send(
        &self,
        header: &Header,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), String> {
        let mut message = Vec::with_capacity(header.bytes.get() as usize);
        message.extend_from_slice(header.as_bytes());
        parts.iter().for_each(|part| message.extend_from_slice(part));
        assert_eq!(message.len(), header.bytes.get() as usize, "the header counts its parts");
        let end = STD_CLOCK.now() + limits::MESSAGE;
        let mut done = 0;
        while done < message.len() {
            // Descriptors go beside the first byte.
            let fds = if done == 0 { fds } else { &[] };
            match fd::send(&self.socket, &message[done..], fds) {
                Ok(bytes) => done += bytes,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.wait(Until::Writable, end, "room for a message")?;
                    }
                    io::ErrorKind::Interrupted => {}
                    _ => return Err(format!("sending a message: {error}")),
                },
            }
        }
        Ok(())
    }

    fn wait(&self, until: Until, end: Time, what: &str) -> Result<(), String> {
        let left = end.since(STD_CLOCK.now());
        if left == Span::ZERO {
            return Err(format!("the other end keeps us waiting for {what}"));
        }
        // Rounded up, so that the last wait does not spin.
        let ms = (left.as_ns() / 1_000_000 + 1).min(i32::MAX as u64) as i32;
        fd::wait(&[(self.socket.as_fd(), until)], ms, &mut Vec::new());
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A structure at the beginning of a payload.
pub(super) fn front<T: FromBytes>(payload: &[u8], of: &str) -> Result<T, String> {
    T::read_from_prefix(payload).map(|(value, _)| value).map_err(|_| {
        format!("{of}: {} bytes, at least {} were expected", payload.len(), size_of::<T>())
    })
}
