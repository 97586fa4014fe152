//! A session: serves one client until it disconnects.
//!
//! The session's thread waits for messages and for its device. A request that concerns the device becomes
//! an order; the next command begins after the answers of all device ends that the order concerns, so
//! commands take effect in order. A reply of the client to one of our messages is handled at once: the
//! device may need it to complete the current order.

use core::iter::from_fn;
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
use crate::fd::{self, Eventfd, Until};
use crate::listen::{AcceptError, milliseconds};

/// Maximum number of accesses to the client's memory in flight.
const ACCESSES: usize = 64;
/// Time of an order after which the session checks whether a client's counter blocks the device: see
/// [`Face::unblock`].
const DEVICE: Span = Span::s(2);

/// Session with one client; see the module documentation.
pub struct Session {
    channel: Channel,
    /// One per device end, in the order of [`Session::device_ends`].
    mailboxes: Vec<Arc<Mailbox>>,
    wake: Arc<Eventfd>,
    face: Face,
    /// The device ends, until they are taken.
    ends: Vec<DeviceEnd>,
    /// Number of taken device ends that have not ended.
    running: usize,
    /// Queued commands, oldest first, and the bytes of their payloads.
    waiting: VecDeque<Message>,
    waiting_bytes: usize,
    order: Option<Order>,
    /// Accesses and interrupts requested by a device end, by its index, and not sent; oldest first.
    wanted: VecDeque<(usize, ToSession)>,
    /// Accesses sent to the client without a reply, by message ID.
    accesses: BTreeMap<u16, Under>,
    next_message: u16,
}

struct Order {
    /// `None` for the device's own start.
    due: Option<Due>,
    begun: Time,
    /// Number of device ends that have not answered.
    awaited: usize,
    /// The first error in their answers.
    result: Result<(), u32>,
}

/// Reply to send when an order completes.
struct Due {
    header: Header,
    payload: Vec<u8>,
}

/// An access to the client's memory in flight.
struct Under {
    /// Index of the device end.
    end: usize,
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
    /// A thread of the device has ended.
    Device,
}

impl Server {
    /// Waits for a client and negotiates a version. Waits for all connected clients at once.
    ///
    /// # Errors
    /// If a client's first message is malformed or late, or accept fails. A further call may succeed.
    pub fn accept(&self, function: &Function) -> Result<Session, VfioUserError> {
        self.accept_for(function, 1)
    }

    /// As [`accept`](Self::accept), for a device that is served by `threads` threads, each with a device end
    /// of its own. All of them reach the client's memory and registers, and signal its MSI-X vectors. With
    /// more than one thread the function has no interrupt pin, whose state they would have to share.
    ///
    /// # Errors
    /// Those of [`accept`](Self::accept).
    ///
    /// # Panics
    /// If `threads` is 0.
    pub fn accept_for(
        &self,
        function: &Function,
        threads: usize,
    ) -> Result<Session, VfioUserError> {
        assert!(threads > 0, "a device has a thread");
        let mut function = function.clone();
        function.identity.pin = function.identity.pin.filter(|_| threads == 1);
        let failed = |error| VfioUserErrorKind::Accept(error).at(self.path());
        let (channel, message) = self.next().map_err(failed)?;
        // One client at a time: the others are disconnected now, which also frees their descriptors.
        let session = Session::agree(&channel, message, self.maps_max).and_then(|transfer_bytes| {
            self.turn_away(channel.as_fd());
            Session::new(channel, transfer_bytes, function, threads, self.maps_max)
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
        function: Function,
        threads: usize,
        maps_max: usize,
    ) -> Result<Session, SessionError> {
        let registers = Registers::new(&function).map_err(SessionError::system("the registers"))?;
        let wake = Eventfd::new().map_err(SessionError::system("waking the session"))?;
        let wake = Arc::new(wake);
        let (mut mailboxes, mut signallings, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for end in 0..threads {
            let mailbox = Arc::new(Mailbox::new(transfer_bytes, wake.clone()));
            let (signalling, registers) = (Signalling::new(), registers.clone());
            mailboxes.push(mailbox.clone());
            signallings.push(signalling.clone());
            ends.push(DeviceEnd::new(end == 0, mailbox, registers, signalling, maps_max));
        }
        Ok(Session {
            channel,
            mailboxes,
            wake,
            face: Face::new(function, registers, signallings),
            ends,
            running: 0,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            // The first device end answers when it has started.
            order: Some(Order { due: None, begun: STD_CLOCK.now(), awaited: 1, result: Ok(()) }),
            wanted: VecDeque::new(),
            accesses: BTreeMap::new(),
            next_message: 0,
        })
    }

    /// The only device end, to be moved to its thread before the session [runs](Self::run).
    ///
    /// # Panics
    /// On the second call, or if the session was accepted for several threads.
    pub fn device_end(&mut self) -> DeviceEnd {
        let mut ends = self.device_ends();
        assert_eq!(ends.len(), 1, "a session has one device thread");
        ends.remove(0)
    }

    /// All device ends, each to be moved to its thread before the session [runs](Self::run). Resets and the
    /// loss of the client stop the first one: see [`Why`](super::Why).
    ///
    /// # Panics
    /// On the second call.
    pub fn device_ends(&mut self) -> Vec<DeviceEnd> {
        assert!(!self.ends.is_empty(), "device ends are taken once");
        self.running = self.ends.len();
        core::mem::take(&mut self.ends)
    }

    /// Serves the client until it disconnects or a device end is dropped, then waits until all device ends
    /// have been dropped. Disconnects other clients of `server` meanwhile.
    pub fn run(mut self, server: &Server) -> Ended {
        let ended = loop {
            match self.turn(server) {
                Ok(None) => {}
                Ok(Some(ended)) => break ended,
                // The client closed its socket before a reply was sent: an ordinary disconnection.
                Err(SessionError::Closed) => break Ended::Gone,
                Err(why) => break Ended::LetGo(why),
            }
        };
        self.mailboxes[0].give_device(ToDevice::Leave);
        while self.device_is_running() {
            // A connected client may fill its counters again and again.
            self.face.unblock();
            fd::wait(&[(self.wake.as_fd(), Until::Readable)], 100, &mut Vec::new());
            self.wake.take();
        }
        ended
    }

    /// Returns true if a device end has not ended. Discards all other items.
    fn device_is_running(&mut self) -> bool {
        let mailboxes = self.mailboxes.iter();
        let items = mailboxes.flat_map(|mailbox| from_fn(move || mailbox.for_session()));
        self.running -= items.filter(|what| matches!(what, ToSession::Ended)).count();
        self.running > 0
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
        let mut these = std::vec![(self.wake.as_fd(), Until::Readable)];
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
            self.wake.take();
        }
        if ready.get(1) == Some(&true) {
            match self.channel.receive(Span::ZERO, limits::MESSAGE)? {
                None => return Ok(Some(Ended::Gone)),
                Some(message) => self.take_in(message)?,
            }
        } else if ready.get(2) == Some(&true) {
            server.turn_away(self.channel.as_fd());
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
        if self.order.as_ref().is_some_and(|order| now.since(order.begun) > DEVICE) {
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
        self.mailboxes[under.end].give_device(what);
        Ok(())
    }

    /// Handles the device's items. Returns true if one of its threads has ended.
    fn take_from_device(&mut self) -> Result<bool, SessionError> {
        for end in 0..self.mailboxes.len() {
            while let Some(what) = self.mailboxes[end].for_session() {
                match what {
                    ToSession::Answer { result, unused } => {
                        drop(unused);
                        self.answered(result)?;
                    }
                    ToSession::Lost(at) => return Err(SessionError::MemoryLost { at }),
                    ToSession::Ended => {
                        self.running -= 1;
                        return Ok(true);
                    }
                    wanted => self.wanted.push_back((end, wanted)),
                }
            }
        }
        Ok(false)
    }

    /// Handles a device end's answer to the order; the last one completes it.
    fn answered(&mut self, result: Result<(), u32>) -> Result<(), SessionError> {
        let mut order = self.order.take().expect("answers follow orders");
        order.awaited -= 1;
        order.result = order.result.and(result);
        if order.awaited > 0 {
            self.order = Some(order);
        } else if let Some(due) = order.due {
            self.reply(&due.header, order.result.map(|()| due.payload))?;
        }
        Ok(())
    }

    /// Sends the accesses that the device ends have requested.
    fn send_wanted(&mut self) -> Result<(), SessionError> {
        while let Some((end, wanted)) = self.wanted.pop_front() {
            match wanted {
                ToSession::Raise(vector) if self.has_no_write_of(end) => {
                    self.mailboxes[end].give_device(ToDevice::Raise(vector));
                }
                ToSession::Read { id, at, bytes } if self.accesses.len() < ACCESSES => {
                    let access = access(at.0, bytes);
                    let read = Some(bytes);
                    let under = Under { end, id, begun: STD_CLOCK.now(), read, access };
                    self.access(command::DMA_READ, under, &[])?;
                }
                ToSession::Write { id, at, data } if self.accesses.len() < ACCESSES => {
                    let access = access(at.0, data.len());
                    let under = Under { end, id, begun: STD_CLOCK.now(), read: None, access };
                    self.access(command::DMA_WRITE, under, &data)?;
                }
                later => {
                    self.wanted.push_front((end, later));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns true if no write of this device end is in flight.
    fn has_no_write_of(&self, end: usize) -> bool {
        self.accesses.values().all(|under| under.end != end || under.read.is_some())
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

    /// Gives an order to the device ends that it concerns; returns their number.
    fn give(&self, order: ToDevice) -> usize {
        let (first, others) = self.mailboxes.split_first().expect("a device has a thread");
        let others = others.iter().filter_map(|mailbox| Some((mailbox, order.for_others()?)));
        let awaited = 1 + others.map(|(mailbox, order)| mailbox.give_device(order)).count();
        first.give_device(order);
        awaited
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
                let (due, begun) = (Some(Due { header, payload }), STD_CLOCK.now());
                let awaited = self.give(order);
                self.order = Some(Order { due, begun, awaited, result: Ok(()) });
                Ok(())
            }
            Err(error) => self.reply(&header, Err(error)),
        }
    }
}

fn access(at: u64, bytes: usize) -> DmaAccess {
    DmaAccess { address: at.into(), count: (bytes as u64).into() }
}

#[cfg(test)]
mod tests;
