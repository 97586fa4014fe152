//! A client: finds out what a server's function is, shares memory with it, keeps the connection.
//!
//! A thread of its own waits on the socket and on the interrupts' counters, so that a driver that polls
//! makes no system call: it learns of a server's end, of an interrupt, of an answer by looking at words.

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
use super::server::{fail, said};
use super::{VfioUserError, limits};
use crate::Memory;
use crate::fd::{self, Eventfd, Memfd, Until};

/// Whether a server is handed the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// It is: DMA is the server's copy.
    Mapped,
    /// It is not: DMA is by messages.
    Messages,
}

/// A connection to a server. The function is ready to be driven; closing it leaves the server to itself.
pub struct Connection {
    pub(super) link: Arc<Link>,
    pub(super) window: Window,
    pub(super) memory: Memory,
    reader: Option<JoinHandle<()>>,
}

/// The registers' window: which part of it is mapped.
#[derive(Clone)]
pub(super) struct Window {
    pub bytes: u64,
    pub areas: Vec<Memory>,
    /// Why nothing of it is.
    pub not_mapped: Option<String>,
}

/// What the driver's thread and the reader's share.
pub(super) struct Link {
    channel: Channel,
    path: PathBuf,
    calls: Mutex<Calls>,
    /// A reply has come, or the server has gone.
    replied: Condvar,
    /// How many replies have come.
    pub replies: AtomicU32,
    gone: AtomicBool,
    closing: AtomicBool,
    wake: Eventfd,
    counters: Vec<Eventfd>,
    /// How often each vector was signalled.
    pub interrupts: Vec<AtomicU32>,
    memory: Memory,
}

#[derive(Default)]
struct Calls {
    next: u16,
    /// Who waits for a reply, by message; what has come.
    waiting: BTreeMap<u16, Option<Message>>,
    /// Writes that nobody waits for.
    posted: Vec<u16>,
}

impl Link {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the server is known to be gone.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Nothing is to be expected of the server any more.
    pub fn give_up(&self) {
        self.gone.store(true, Ordering::Release);
        self.replied.notify_all();
    }

    /// Sends a command; the reply is to be asked for by the number that comes back.
    pub fn send(
        &self,
        command: u16,
        parts: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        posted: bool,
    ) -> Result<u16, String> {
        // The lock is kept while it is sent: messages do not mix.
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

    /// The reply, if it has come.
    pub fn reply(&self, id: u16) -> Option<Message> {
        let mut calls = self.calls();
        match calls.waiting.get(&id) {
            Some(Some(_)) => calls.waiting.remove(&id).flatten(),
            _ => None,
        }
    }

    /// Nobody waits for this reply any more.
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
    ) -> Result<(Vec<u8>, Vec<OwnedFd>), String> {
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
                Some(error) => Err(format!("command {command} was refused with error {error}")),
                None => Ok((message.payload, message.fds)),
            },
            None if timeout.timed_out() => {
                self.give_up();
                Err(format!("no answer to command {command} within {}", limits::ANSWER))
            }
            None => Err(format!("the server has gone before it answered command {command}")),
        }
    }

    /// The life of the reader: until the connection is closed, by either side.
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

    /// Takes a message in. False if the server has gone.
    fn take_in(&self) -> Result<bool, String> {
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
                return Err(format!("a reply to message {id}, which was not sent"));
            }
            drop(calls);
            self.replies.fetch_add(1, Ordering::Release);
            self.replied.notify_all();
        } else {
            return Err("neither command nor reply".into());
        }
        Ok(true)
    }

    /// The server accesses our memory by a message.
    fn serve(&self, message: &Message) -> Result<(), String> {
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

/// Connects to the server that listens at `path`, and sets up its function: memory of so many bytes at
/// this place of the bus, interrupts, bus mastering.
///
/// # Errors
/// If nobody listens there, or says what makes no sense, or nothing for longer than
/// [`limits::ANSWER`]. Names what was asked for.
pub fn connect(
    path: &Path,
    memory_bytes: usize,
    memory_base: BusAddr,
    sharing: Sharing,
) -> Result<Connection, VfioUserError> {
    let socket = match UnixStream::connect(path) {
        Ok(socket) => socket,
        Err(error) => return fail(path, "connecting", &error),
    };
    let file = Memfd::new("doorbell-host", memory_bytes);
    let memory = file.and_then(|file| Ok((file.map(memory_base)?, file)));
    let (memory, file) = match memory {
        Ok(both) => both,
        Err(error) => return fail(path, "memory for the host", &error),
    };
    let connection = Connection::start(socket, path, memory);
    let connection = match connection {
        Ok(connection) => connection,
        Err(error) => return fail(path, "connecting", &error),
    };
    match super::setup::set_up(connection, (sharing == Sharing::Mapped).then_some(&file)) {
        Ok(connection) => Ok(connection),
        Err(error) => fail(path, "setting up the device", &error),
    }
}

impl Connection {
    fn start(socket: UnixStream, path: &Path, memory: Memory) -> Result<Connection, String> {
        let count = 0..limits::VECTORS;
        let counters: io::Result<Vec<_>> = count.clone().map(|_| Eventfd::new()).collect();
        let link = Arc::new(Link {
            channel: Channel::new(socket).map_err(said("the socket"))?,
            path: path.into(),
            calls: Mutex::default(),
            replied: Condvar::new(),
            replies: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            wake: Eventfd::new().map_err(said("waking the reader"))?,
            counters: counters.map_err(said("the interrupts' counters"))?,
            interrupts: count.map(|_| AtomicU32::new(0)).collect(),
            memory: memory.clone(),
        });
        let reader = link.clone();
        let reader = std::thread::Builder::new()
            .name("vfio-user".into())
            .spawn(move || reader.read())
            .map_err(said("the reader's thread"))?;
        let window = Window { bytes: 0, areas: Vec::new(), not_mapped: None };
        Ok(Connection { link, window, memory, reader: Some(reader) })
    }

    /// The counters that the server is to signal.
    pub(super) fn counters(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.link.counters.iter().map(AsFd::as_fd)
    }

    /// Whether the server is known to be gone.
    pub fn is_gone(&self) -> bool {
        self.link.is_gone()
    }

    /// Why doorbells are messages, if they are: the path of a command then has a message each way.
    pub fn note(&self) -> Option<String> {
        let why = self.window.not_mapped.as_ref()?;
        let path = self.path().display();
        Some(format!("{path}: registers and doorbells are written by messages: {why}"))
    }

    /// Where the server listens.
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
