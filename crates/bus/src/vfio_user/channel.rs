//! Framing: complete messages over a socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::vec::Vec;

use runtime::{STD_CLOCK, Span, Time, WallClock};
use wire::vfio_user::Header;
use zerocopy::{FromBytes, IntoBytes};

use super::error::SessionError;
use super::limits;
use crate::fd::{self, FDS_MAX, Until};
use crate::listen::milliseconds;

/// A message with its descriptors.
pub(super) struct Message {
    pub header: Header,
    pub payload: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// Received part of a message.
#[derive(Default)]
pub(super) struct Incoming {
    header: Header,
    payload: Vec<u8>,
    fds: Vec<OwnedFd>,
    /// Bytes received, header included.
    done: usize,
}

pub(super) enum Advance {
    Whole(Message),
    Part,
    /// The peer has closed the connection between two messages.
    Gone,
}

/// One end of a connection. Every wait has a timeout.
pub(super) struct Channel {
    socket: UnixStream,
}

impl Channel {
    pub fn new(socket: UnixStream) -> io::Result<Channel> {
        socket.set_nonblocking(true)?;
        Ok(Channel { socket })
    }

    /// Receives a message: waits up to `begin` for its first byte, then up to `whole` for the rest. `None`
    /// if the peer has closed the connection.
    pub fn receive(&self, begin: Span, whole: Span) -> Result<Option<Message>, SessionError> {
        let (mut incoming, mut end) = (Incoming::default(), STD_CLOCK.now() + begin);
        let mut begun = false;
        loop {
            match self.advance(&mut incoming)? {
                Advance::Whole(message) => return Ok(Some(message)),
                Advance::Gone => return Ok(None),
                Advance::Part => {}
            }
            if !begun && incoming.done > 0 {
                // The timeout of the rest begins with the first byte.
                (begun, end) = (true, STD_CLOCK.now() + whole);
            }
            self.wait(Until::Readable, end, "a message, or the rest of one")?;
        }
    }

    /// Receives the available part of a message, without waiting.
    pub fn advance(&self, incoming: &mut Incoming) -> Result<Advance, SessionError> {
        let gone = |done| match done {
            0 => Ok(Advance::Gone),
            _ => Err(SessionError::CutOff),
        };
        loop {
            let Incoming { header, payload, fds, done } = incoming;
            let to = match done.checked_sub(Header::BYTES) {
                None => &mut header.as_mut_bytes()[*done..],
                Some(of_payload) if of_payload < payload.len() => &mut payload[of_payload..],
                Some(_) => {
                    let Incoming { header, payload, fds, .. } = core::mem::take(incoming);
                    return Ok(Advance::Whole(Message { header, payload, fds }));
                }
            };
            match fd::receive(&self.socket, to, fds) {
                Ok(0) => return gone(*done),
                Ok(bytes) => *done += bytes,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(Advance::Part),
                    io::ErrorKind::Interrupted => continue,
                    // Left behind by a process that died.
                    io::ErrorKind::ConnectionReset => return gone(*done),
                    _ => return Err(SessionError::system("receiving a message")(error)),
                },
            }
            if fds.len() > FDS_MAX {
                // Each part of the message may carry as many.
                return Err(SessionError::TooManyDescriptors);
            }
            if *done == Header::BYTES {
                let bytes = header.bytes.get() as usize;
                if !(Header::BYTES..=limits::MESSAGE_BYTES_MAX).contains(&bytes) {
                    return Err(SessionError::MessageLength { bytes });
                }
                payload.resize(bytes - Header::BYTES, 0);
            }
        }
    }

    /// Sends a message.
    pub fn send(
        &self,
        header: &Header,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), SessionError> {
        let mut message = Vec::with_capacity(header.bytes.get() as usize);
        message.extend_from_slice(header.as_bytes());
        parts.iter().for_each(|part| message.extend_from_slice(part));
        assert_eq!(message.len(), header.bytes.get() as usize, "the header counts its parts");
        let end = STD_CLOCK.now() + limits::MESSAGE;
        let mut done = 0;
        while done < message.len() {
            // Descriptors are attached to the first byte.
            let fds = if done == 0 { fds } else { &[] };
            match fd::send(&self.socket, &message[done..], fds) {
                Ok(bytes) => done += bytes,
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.wait(Until::Writable, end, "room for a message")?;
                    }
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                        return Err(SessionError::Closed);
                    }
                    _ => return Err(SessionError::system("sending a message")(error)),
                },
            }
        }
        Ok(())
    }

    fn wait(&self, until: Until, end: Time, expected: &'static str) -> Result<(), SessionError> {
        let left = end.since(STD_CLOCK.now());
        if left == Span::ZERO {
            return Err(SessionError::Stalled { expected });
        }
        fd::wait(&[(self.socket.as_fd(), until)], milliseconds(left), &mut Vec::new());
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads a structure from the beginning of a payload.
pub(super) fn front<T: FromBytes>(payload: &[u8], what: &'static str) -> Result<T, SessionError> {
    let (bytes, expected) = (payload.len(), size_of::<T>());
    let front = T::read_from_prefix(payload).map(|(value, _)| value);
    front.map_err(|_| SessionError::TooShort { what, bytes, expected })
}
