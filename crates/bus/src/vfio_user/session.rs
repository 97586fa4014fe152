//! A session: serves one client until it disconnects.
//!
//! The session's thread waits for messages and for its device. A request that concerns the device becomes
//! an order; the next command begins after its answer, so commands take effect in order. A reply of the
//! client to one of our messages is handled at once: the device may need it to complete the current order.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::vec::Vec;

use runtime::{STD_CLOCK, Span, Time, WallClock};
use wire::BusAddr;
use wire::vfio_user::{
    DmaAccess, Header, Request, VERSION_MAJOR, VERSION_MINOR, Version, command, errno, parse,
};
use zerocopy::IntoBytes;

use super::channel::{Channel, Message};
use super::device::DeviceEnd;
use super::error::{SessionError, VfioUserError, VfioUserErrorKind};
use super::function::{Function, Registers};
use super::mailbox::{AccessId, Mailbox, ToDevice, ToSession};
use super::server::Server;
use super::vectors::Signalling;
use super::version::{self, Limits};
use super::{answers::Done, answers::Face, limits};
use crate::fd::{self, Until};
use crate::listen::{AcceptError, milliseconds};

/// Maximum number of accesses to the client's memory in flight.
const ACCESSES: usize = 64;
/// Time of an order after which the session checks whether a client's counter blocks the device: see
/// [`Face::unblock`].
const DEVICE: Span = Span::s(2);

/// Session with one client; see the module documentation.
pub struct Session {
    channel: Channel,
    mailbox: Arc<Mailbox>,
    face: Face,
    end: Option<DeviceEnd>,
    /// Queued commands, oldest first, and the bytes of their payloads.
    waiting: VecDeque<Message>,
    waiting_bytes: usize,
    /// The order in progress: the reply to send when it completes, and its start. The reply is `None` for
    /// the device's own start.
    order: Option<(Option<Due>, Time)>,
    /// Accesses requested by the device and not sent, oldest first.
    wanted: VecDeque<ToSession>,
    /// Accesses sent to the client without a reply, by message ID.
    accesses: BTreeMap<u16, Under>,
    next_message: u16,
}

/// Reply to send when an order completes.
struct Due {
    header: Header,
    payload: Vec<u8>,
}

/// An access to the client's memory in flight.
struct Under {
    id: AccessId,
    begun: Time,
    /// Length of a read in bytes. `None` for a write.
    read: Option<usize>,
    access: DmaAccess,
}

/// Reason for the end of a session.
#[derive(Debug)]
pub enum Ended {
    /// The client has disconnected or died.
    Gone,
    /// The client was disconnected, for this reason.
    LetGo(SessionError),
    /// The device's thread has ended.
    Device,
}

impl Server {
    /// Waits for a client and negotiates a version. Waits for all connected clients at once.
    ///
    /// # Errors
    /// If a client's first message is malformed or late, or accept fails. A further call may succeed.
    pub fn accept(&self, function: &Function) -> Result<Session, VfioUserError> {
        let failed = |error| VfioUserErrorKind::Accept(error).at(self.path());
        let (channel, message) = self.next().map_err(failed)?;
        // One client at a time: the others are disconnected now, which also frees their descriptors.
        let session = Session::agree(&channel, message, self.maps_max).and_then(|transfer_bytes| {
            self.turn_away();
            Session::new(channel, transfer_bytes, function, self.maps_max)
        });
        session.map_err(AcceptError::Greeting).map_err(failed)
    }
}

impl Session {
    /// Negotiates a version by a client's first message. Returns the maximum bytes of data that one of its
    /// messages carries.
    fn agree(channel: &Channel, message: Message, maps_max: usize) -> Result<usize, SessionError> {
        let Message { header, payload, .. } = message;
        let refuse = |why: SessionError| {
            let _ = channel.send(&header.failure(errno::EINVAL), &[], &[]);
            Err(why)
        };
        let first = header.is_command().then(|| parse(&header, &payload));
        let Some(Ok(Request::Version { major, minor, capabilities })) = first else {
            return refuse(SessionError::NoVersion);
        };
        if major != VERSION_MAJOR {
            return refuse(SessionError::ClientVersion { major, minor });
        }
        let Limits { transfer_bytes, .. } = match version::theirs(capabilities) {
            Ok(limits) => limits,
            Err(why) => return refuse(why.into()),
        };
        let version = Version { major: major.into(), minor: minor.min(VERSION_MINOR).into() };
        let ours = version::ours(maps_max);
        let parts = [version.as_bytes(), ours.as_bytes()];
        let bytes = parts.iter().map(|part| part.len()).sum();
        channel.send(&header.reply(bytes), &parts, &[])?;
        Ok(transfer_bytes)
    }

    /// Creates a session after the negotiation.
    fn new(
        channel: Channel,
        transfer_bytes: usize,
        function: &Function,
        maps_max: usize,
    ) -> Result<Session, SessionError> {
        let registers = Registers::new(function).map_err(SessionError::system("the registers"))?;
        let mailbox =
            Mailbox::new(transfer_bytes).map_err(SessionError::system("waking the session"))?;
        let (mailbox, signalling) = (Arc::new(mailbox), Signalling::new());
        Ok(Session {
            channel,
            end: Some(DeviceEnd::new(
                mailbox.clone(),
                registers.clone(),
                signalling.clone(),
                maps_max,
            )),
            face: Face::new(function, registers, signalling),
            mailbox,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            order: Some((None, STD_CLOCK.now())),
            wanted: VecDeque::new(),
            accesses: BTreeMap::new(),
            next_message: 0,
        })
    }

    /// The device port, to be moved to its thread before the session [runs](Self::run).
    ///
    /// # Panics
    /// On the second call.
    pub fn device_end(&mut self) -> DeviceEnd {
        self.end.take().expect("a session has one device")
    }

    /// Serves the client until it disconnects, then waits for the device's thread to drop its port.
    /// Disconnects other clients of `server` meanwhile.
    pub fn run(mut self, server: &Server) -> Ended {
        let ended = loop {
            match self.turn(server) {
                Ok(None) => {}
                Ok(Some(Ended::Device)) => return Ended::Device,
                Ok(Some(ended)) => break ended,
                // The client closed its socket before a reply was sent: an ordinary disconnection.
                Err(SessionError::Closed) => break Ended::Gone,
                Err(why) => break Ended::LetGo(why),
            }
        };
        self.mailbox.give_device(ToDevice::Leave);
        while self.end.is_none() && !self.device_has_ended() {
            // A connected client may fill its counters again and again.
            self.face.unblock();
            fd::wait(&[(self.mailbox.as_fd(), Until::Readable)], 100, &mut Vec::new());
            self.mailbox.woken();
        }
        ended
    }

    fn device_has_ended(&self) -> bool {
        core::iter::from_fn(|| self.mailbox.for_session())
            .any(|what| matches!(what, ToSession::Ended))
    }

    /// Handles pending items, then waits for an event.
    fn turn(&mut self, server: &Server) -> Result<Option<Ended>, SessionError> {
        if self.take_from_device()? {
            return Ok(Some(Ended::Device));
        }
        self.send_wanted()?;
        while self.order.is_none()
            && let Some(message) = self.waiting.pop_front()
        {
            self.waiting_bytes -= message.payload.len();
            self.perform(message)?;
        }
        let fds: usize = self.waiting.iter().map(|message| message.fds.len()).sum();
        let room = self.waiting.len() < limits::WAITING_MAX
            && self.waiting_bytes < limits::WAITING_BYTES_MAX
            && fds < limits::WAITING_FDS_MAX;
        let mut these = std::vec![(self.mailbox.as_fd(), Until::Readable)];
        let (mut wait, rest) = (self.patience()?, server.rest());
        if room {
            these.push((self.channel.as_fd(), Until::Readable));
            if rest == Span::ZERO {
                these.push((server.as_fd(), Until::Readable));
            } else {
                // Clients in the backlog cannot be accepted, and so not be disconnected, before the pause
                // is over.
                let rest = milliseconds(rest);
                wait = if wait < 0 { rest } else { wait.min(rest) };
            }
        }
        let mut ready = Vec::new();
        fd::wait(&these, wait, &mut ready);
        if ready[0] {
            self.mailbox.woken();
        }
        if ready.get(1) == Some(&true) {
            match self.channel.receive(Span::ZERO, limits::MESSAGE)? {
                None => return Ok(Some(Ended::Gone)),
                Some(message) => self.take_in(message)?,
            }
        } else if ready.get(2) == Some(&true) {
            // The current client is still connected: its socket had no event, not even end of file.
            server.turn_away();
        }
        Ok(None)
    }

    /// Timeout of the next wait, in milliseconds; -1 for none.
    ///
    /// # Errors
    /// If a reply of the client is late.
    fn patience(&self) -> Result<i32, SessionError> {
        let now = STD_CLOCK.now();
        if let Some(under) = self.accesses.values().find(|u| now.since(u.begun) > limits::DMA) {
            let at = BusAddr(under.access.address.get());
            return Err(SessionError::NoReply { at, bytes: under.access.count.get() });
        }
        if self.order.as_ref().is_some_and(|(_, since)| now.since(*since) > DEVICE) {
            self.face.unblock();
        }
        let busy = self.order.is_some() || !self.accesses.is_empty();
        Ok(if busy { 100 } else { -1 })
    }

    fn take_in(&mut self, message: Message) -> Result<(), SessionError> {
        if message.header.is_reply() {
            return self.replied(message);
        }
        if !message.header.is_command() {
            let flags = message.header.flags.get();
            return Err(SessionError::Flags { flags });
        }
        self.waiting_bytes += message.payload.len();
        self.waiting.push_back(message);
        Ok(())
    }

    /// Handles the client's reply to one of our messages.
    fn replied(&mut self, message: Message) -> Result<(), SessionError> {
        let id = message.header.id.get();
        let Some(under) = self.accesses.remove(&id) else {
            return Err(SessionError::UnknownReply { id });
        };
        let head = size_of::<DmaAccess>();
        let good = message.header.failed().is_none() && message.payload.len() >= head;
        let what = match under.read {
            Some(bytes) => {
                let data = good.then(|| message.payload[head..].to_vec());
                ToDevice::Read { id: under.id, data: data.filter(|data| data.len() == bytes) }
            }
            None => ToDevice::Written { id: under.id, done: good },
        };
        self.mailbox.give_device(what);
        Ok(())
    }

    /// Handles the device's items. Returns true if its thread has ended.
    fn take_from_device(&mut self) -> Result<bool, SessionError> {
        while let Some(what) = self.mailbox.for_session() {
            match what {
                ToSession::Answer { result, unused } => {
                    drop(unused);
                    let (due, _) = self.order.take().expect("answers follow orders");
                    if let Some(due) = due {
                        self.reply(&due.header, result.map(|()| due.payload))?;
                    }
                }
                ToSession::Lost(at) => return Err(SessionError::MemoryLost { at }),
                ToSession::Ended => return Ok(true),
                wanted => self.wanted.push_back(wanted),
            }
        }
        Ok(false)
    }

    /// Sends the accesses that the device has requested.
    fn send_wanted(&mut self) -> Result<(), SessionError> {
        while let Some(wanted) = self.wanted.pop_front() {
            match wanted {
                ToSession::Raise(vector) if self.accesses.values().all(|u| u.read.is_some()) => {
                    self.mailbox.give_device(ToDevice::Raise(vector));
                }
                ToSession::Read { id, at, bytes } if self.accesses.len() < ACCESSES => {
                    let access = access(at.0, bytes);
                    let under = Under { id, begun: STD_CLOCK.now(), read: Some(bytes), access };
                    self.access(command::DMA_READ, under, &[])?;
                }
                ToSession::Write { id, at, data } if self.accesses.len() < ACCESSES => {
                    let access = access(at.0, data.len());
                    let under = Under { id, begun: STD_CLOCK.now(), read: None, access };
                    self.access(command::DMA_WRITE, under, &data)?;
                }
                later => {
                    self.wanted.push_front(later);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn access(&mut self, command: u16, under: Under, data: &[u8]) -> Result<(), SessionError> {
        while self.accesses.contains_key(&self.next_message) {
            self.next_message = self.next_message.wrapping_add(1);
        }
        let parts = [under.access.as_bytes(), data];
        let bytes = parts.iter().map(|part| part.len()).sum();
        let header = Header::command(self.next_message, command, bytes);
        self.channel.send(&header, &parts, &[])?;
        self.accesses.insert(self.next_message, under);
        self.next_message = self.next_message.wrapping_add(1);
        Ok(())
    }

    /// Answers a command, if its sender wants a reply.
    fn reply(&self, header: &Header, result: Result<Vec<u8>, u32>) -> Result<(), SessionError> {
        if !header.wants_reply() {
            return Ok(());
        }
        match result {
            Ok(payload) => self.channel.send(&header.reply(payload.len()), &[&payload], &[]),
            Err(error) => self.channel.send(&header.failure(error), &[], &[]),
        }
    }

    fn perform(&mut self, message: Message) -> Result<(), SessionError> {
        let Message { header, payload, fds } = message;
        let done = parse(&header, &payload).and_then(|request| self.face.answer(request, fds));
        match done {
            Ok(Done::Now(payload)) => self.reply(&header, Ok(payload)),
            Ok(Done::Window(payload)) => {
                let reply = header.reply(payload.len());
                match header.wants_reply() {
                    true => self.channel.send(&reply, &[&payload], &[self.face.window()]),
                    false => Ok(()),
                }
            }
            Ok(Done::Order { order, payload }) => {
                self.mailbox.give_device(order);
                self.order = Some((Some(Due { header, payload }), STD_CLOCK.now()));
                Ok(())
            }
            Err(error) => self.reply(&header, Err(error)),
        }
    }
}

fn access(at: u64, bytes: usize) -> DmaAccess {
    DmaAccess { address: at.into(), count: (bytes as u64).into() }
}
