//! vfio-user client: queries a server's function, shares memory with it, holds the connection.
//!
//! A separate thread waits on the socket and on the interrupt counters, so a polling driver makes no system
//! call: it reads replies, interrupts and the loss of the server from memory.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::BTreeMap;
use std::format;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::string::String;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use std::vec::Vec;

use runtime::Span;
use wire::BusAddr;
use wire::vfio_user::{DmaAccess, Header, command, errno};
use zerocopy::IntoBytes;

use super::channel::{Channel, Message, front};
use super::error::SessionError;
use super::limits;
use crate::Memory;
use crate::backing::NotLocal;
use crate::fd::{self, Eventfd, Until};

/// A connection to a server, with its function ready for use. Dropping it disconnects.
pub struct Connection {
    pub(super) link: Arc<Link>,
    pub(super) window: Window,
    pub(super) memory: Memory,
    reader: Option<JoinHandle<()>>,
}

/// The register window and its mapped areas.
pub(super) struct Window {
    pub bytes: u64,
    pub areas: Vec<Memory>,
    /// Reason why no area is mapped.
    pub not_mapped: Option<NotMapped>,
}

/// Reason why doorbells are written by messages.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotMapped {
    #[error("the server offers no mapping of them")]
    NotOffered,
    #[error(transparent)]
    NotLocal(#[from] NotLocal),
    #[error("{file}: mapping it: {error}")]
    System { file: String, error: io::Error },
}

/// State shared by the driver's thread and the reader thread.
pub(super) struct Link {
    channel: Channel,
    path: PathBuf,
    calls: Mutex<Calls>,
    /// Signalled on a reply and on the loss of the server.
    replied: Condvar,
    /// Number of replies received.
    pub replies: AtomicU32,
    gone: AtomicBool,
    closing: AtomicBool,
    wake: Eventfd,
    counters: Vec<Eventfd>,
    /// Number of interrupts of each vector, modulo 2^32.
    pub interrupts: Vec<AtomicU32>,
    memory: Memory,
}

#[derive(Default)]
struct Calls {
    next: u16,
    /// Calls that wait for a reply, by message ID; the reply once it has arrived.
    waiting: BTreeMap<u16, Option<Message>>,
    /// Messages whose reply is discarded.
    posted: Vec<u16>,
}

impl Link {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the server is known to be gone.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Marks the server as gone and wakes all waits.
    pub fn give_up(&self) {
        self.gone.store(true, Ordering::Release);
        self.replied.notify_all();
    }

    /// Sends a command; returns its message ID. The reply of a `posted` command is discarded.
    pub fn send(
        &self,
        command: u16,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        posted: bool,
    ) -> Result<u16, SessionError> {
        // The lock is held during the send, so that messages do not interleave.
        let mut calls = self.calls();
        while calls.waiting.contains_key(&calls.next) || calls.posted.contains(&calls.next) {
            calls.next = calls.next.wrapping_add(1);
        }
        let id = calls.next;
        calls.next = id.wrapping_add(1);
        if posted {
            calls.posted.push(id);
        } else {
            calls.waiting.insert(id, None);
        }
        let bytes = parts.iter().map(|part| part.len()).sum();
        let sent = self.channel.send(&Header::command(id, command, bytes), parts, fds);
        if sent.is_err() {
            calls.waiting.remove(&id);
            self.give_up();
        }
        sent.map(|()| id)
    }

    /// The reply, if it has arrived.
    pub fn reply(&self, id: u16) -> Option<Message> {
        let mut calls = self.calls();
        match calls.waiting.get(&id) {
            Some(Some(_)) => calls.waiting.remove(&id).flatten(),
            _ => None,
        }
    }

    /// Discards the reply to this message.
    pub fn forget(&self, id: u16) {
        let mut calls = self.calls();
        if calls.waiting.get(&id).is_some_and(Option::is_none) {
            calls.waiting.remove(&id);
            calls.posted.push(id);
        }
    }

    /// Sends a command and waits for the reply.
    pub fn call(
        &self,
        command: u16,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), SessionError> {
        let id = self.send(command, parts, fds, false)?;
        let bound = Duration::from_nanos(limits::ANSWER.as_ns());
        let waits = |calls: &mut Calls| {
            calls.waiting.get(&id).is_some_and(Option::is_none) && !self.is_gone()
        };
        let waited = self.replied.wait_timeout_while(self.calls(), bound, waits);
        let (mut calls, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        let message = calls.waiting.remove(&id).flatten();
        drop(calls);
        match message {
            Some(message) => match message.header.failed() {
                Some(errno) => Err(SessionError::Refused { command, errno }),
                None => Ok((message.payload, message.fds)),
            },
            None if timeout.timed_out() => {
                self.give_up();
                Err(SessionError::NoAnswer { command })
            }
            None => Err(SessionError::ServerGone { command }),
        }
    }

    /// Body of the reader thread: runs until either side closes the connection.
    fn read(&self) {
        while !self.closing.load(Ordering::Acquire) {
            let mut these = std::vec![
                (self.wake.as_fd(), Until::Readable),
                (self.channel.as_fd(), Until::Readable)
            ];
            these.extend(self.counters.iter().map(|c| (c.as_fd(), Until::Readable)));
            let mut ready = Vec::new();
            fd::wait(&these, -1, &mut ready);
            for (vector, counter) in self.counters.iter().enumerate() {
                if ready[vector + 2] {
                    let count = counter.take() as u32;
                    self.interrupts[vector].fetch_add(count, Ordering::AcqRel);
                }
            }
            if ready[1] && !matches!(self.take_in(), Ok(true)) {
                break;
            }
        }
        self.give_up();
    }

    /// Receives and handles a message. Returns false if the server has closed the connection.
    fn take_in(&self) -> Result<bool, SessionError> {
        let Some(message) = self.channel.receive(Span::ZERO, limits::MESSAGE)? else {
            return Ok(false);
        };
        if message.header.is_command() {
            self.serve(&message)?;
        } else if message.header.is_reply() {
            let id = message.header.id.get();
            let mut calls = self.calls();
            if let Some(place) = calls.posted.iter().position(|posted| *posted == id) {
                calls.posted.swap_remove(place);
            } else if let Some(waiting) = calls.waiting.get_mut(&id) {
                *waiting = Some(message);
            } else {
                return Err(SessionError::UnknownReply { id });
            }
            drop(calls);
            self.replies.fetch_add(1, Ordering::Release);
            self.replied.notify_all();
        } else {
            return Err(SessionError::Flags { flags: message.header.flags.get() });
        }
        Ok(true)
    }

    /// Handles the server's access to our memory.
    fn serve(&self, message: &Message) -> Result<(), SessionError> {
        let header = &message.header;
        let reply = match self.access(message) {
            Ok((access, data)) => {
                let parts = [access.as_bytes(), &data];
                let reply = header.reply(parts.iter().map(|part| part.len()).sum());
                let _calls = self.calls();
                return self.channel.send(&reply, &parts, &[]);
            }
            Err(error) => header.failure(error),
        };
        let _calls = self.calls();
        self.channel.send(&reply, &[], &[])
    }

    fn access(&self, message: &Message) -> Result<(DmaAccess, Vec<u8>), u32> {
        let access: DmaAccess = front(&message.payload, "").map_err(|_| errno::EINVAL)?;
        let (at, count) = (BusAddr(access.address.get()), access.count.get());
        if count > limits::TRANSFER_BYTES_MAX as u64 {
            return Err(errno::E2BIG);
        }
        let data = &message.payload[size_of::<DmaAccess>()..];
        match message.header.command.get() {
            command::DMA_READ => {
                let mut bytes = std::vec![0; count as usize];
                self.memory.read(at, &mut bytes).map_err(|_| errno::EINVAL)?;
                Ok((access, bytes))
            }
            command::DMA_WRITE if data.len() as u64 == count => {
                // A message that is a queue entry ends with its flag.
                let flag = count >= 4 && count.is_multiple_of(4) && at.0.is_multiple_of(4);
                self.memory.put(at, data, flag).map_err(|_| errno::EINVAL)?;
                Ok((access, Vec::new()))
            }
            command::DMA_WRITE => Err(errno::EINVAL),
            _ => Err(errno::ENOTSUP),
        }
    }
}

impl Connection {
    pub(super) fn start(
        socket: UnixStream,
        path: &Path,
        memory: Memory,
    ) -> Result<Connection, SessionError> {
        let count = 0..limits::VECTORS;
        let counters: io::Result<Vec<_>> = count.clone().map(|_| Eventfd::new()).collect();
        let link = Arc::new(Link {
            channel: Channel::new(socket).map_err(SessionError::system("the socket"))?,
            path: path.into(),
            calls: Mutex::default(),
            replied: Condvar::new(),
            replies: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            wake: Eventfd::new().map_err(SessionError::system("waking the reader"))?,
            counters: counters.map_err(SessionError::system("the interrupts' counters"))?,
            interrupts: count.map(|_| AtomicU32::new(0)).collect(),
            memory: memory.clone(),
        });
        let reader = link.clone();
        let reader = std::thread::Builder::new()
            .name("vfio-user".into())
            .spawn(move || reader.read())
            .map_err(SessionError::system("the reader's thread"))?;
        let window = Window { bytes: 0, areas: Vec::new(), not_mapped: None };
        Ok(Connection { link, window, memory, reader: Some(reader) })
    }

    /// Eventfds for the server to signal.
    pub(super) fn counters(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.link.counters.iter().map(AsFd::as_fd)
    }

    /// Returns true if the server is known to be gone.
    pub fn is_gone(&self) -> bool {
        self.link.is_gone()
    }

    /// The reason why doorbells are written by messages, which adds a message each way to the path of a
    /// command. `None` if they are mapped.
    pub fn note(&self) -> Option<String> {
        let why = self.window.not_mapped.as_ref()?;
        let path = self.path().display();
        Some(format!("{path}: registers and doorbells are written by messages: {why}"))
    }

    /// Path of the server's socket.
    pub fn path(&self) -> &Path {
        &self.link.path
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.link.closing.store(true, Ordering::Release);
        self.link.wake.signal();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
