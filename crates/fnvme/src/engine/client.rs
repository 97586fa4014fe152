//! A client of an engine: its ring and its outstanding requests. Usable from any thread.

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bus::Memory;
use bus::live::{self, Client as Peer};
use host::fastpath::Handle;
use host::fastpath::ring::{BYTES, Caller, ENTRIES};
use wire::BusAddr;
use wire::fastpath::{Direction, Request, SIZE_MAX, Status, Transfer};

use super::error::Error;
use super::latencies::{Counters, Latencies, RequestKind};
use super::mailbox::{Lane, Mailbox, Order};

/// Size of the register window of a client in another process, bytes.
pub(super) const REGISTER_BYTES: u32 = 4096;

pub(super) mod registers {
    /// Handle: `fp_id` in bits 15:0, generation in bits 31:16.
    pub const HANDLE: u32 = 0;
    /// Block size of the drive, bytes.
    pub const BLOCK_BYTES: u32 = 4;
}

/// Size of the staging memory behind a client's DMA buffer, bytes. Copied data go through it, so that a
/// copy never overlaps a transfer of another thread.
pub const STAGING_BYTES: u64 = 2 << 20;

/// Checks of the ring before a waiting thread yields its core: some tens of microseconds.
const SPINS: u32 = 4_000;

/// Requests that one waits for: a bit for each tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "its tags are free when it has been waited for"]
pub struct Ticket(u64);

/// A client, with one area of a drive.
pub struct Client {
    state: Mutex<State>,
    memory: Memory,
    at: BusAddr,
    bytes: u64,
    area_bytes: u64,
    handle: Handle,
    block_bytes: u32,
    side: Side,
}

enum Side {
    /// In this process; closed by an order.
    Here { number: u32, mailbox: Arc<Mailbox> },
    /// In another process; closed with the socket.
    There(Mutex<Peer>),
}

struct State {
    caller: Caller,
    /// Tags in flight, one bit each.
    busy: u64,
    /// Tags held by a ticket, one bit each.
    held: u64,
    /// Status of completed requests, for held tags.
    status: [Status; ENTRIES as usize],
    kinds: [RequestKind; ENTRIES as usize],
    latencies: Latencies,
    /// First failure among requests without a ticket.
    failed: Option<Status>,
}

impl State {
    /// Processes all responses that have arrived.
    fn drain(&mut self) {
        while let Some(response) = self.caller.receive() {
            let tag = usize::from(response.tag.get());
            // A response without a request in flight is ignored.
            let bit = 1_u64.checked_shl(tag as u32).unwrap_or(0);
            if self.busy & bit == 0 {
                continue;
            }
            self.busy &= !bit;
            self.status[tag] = response.status();
            self.latencies.record(self.kinds[tag], &response);
            if self.held & bit == 0 && self.failed.is_none() && !response.status().is_good() {
                self.failed = Some(response.status());
            }
        }
    }

    fn free_tag(&self) -> Option<u16> {
        let tag = (!(self.busy | self.held)).trailing_zeros();
        (tag < ENTRIES).then_some(tag as u16)
    }
}

impl Client {
    /// Creates a client from the resources that the engine in this process has made.
    pub(super) fn here(
        memory: &Memory,
        lane: Lane,
        block_bytes: u32,
        mailbox: Arc<Mailbox>,
    ) -> Result<Client, Error> {
        let caller = Caller::new(memory, lane.ring).map_err(|_| Error::Gone)?;
        let side = Side::Here { number: lane.number, mailbox };
        Ok(Client {
            state: Mutex::new(State::new(caller)),
            memory: memory.clone(),
            at: lane.at,
            bytes: lane.bytes,
            area_bytes: lane.area_bytes,
            handle: lane.handle,
            block_bytes,
            side,
        })
    }

    /// Connects to the engine whose process listens at this socket, for an area of `bytes` bytes.
    ///
    /// # Errors
    /// No engine listens there, or it has no such area.
    pub fn connect(socket: &Path, bytes: u64) -> Result<Client, Error> {
        let length =
            usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_next_multiple_of(8192));
        let length = length.filter(|length| *length > 0).ok_or(Error::Length(bytes))?;
        let base = BusAddr(0);
        let all = length.checked_add(BYTES + STAGING_BYTES as usize).ok_or(Error::Length(bytes))?;
        let connected = live::connect(socket, all, base);
        let (shared, peer) = connected.map_err(|_| Error::Unreachable)?;
        let memory = shared.host_memory.clone();
        let number = shared.load(registers::HANDLE);
        let handle = Handle { fp_id: number as u16, generation: (number >> 16) as u16 };
        let caller = Caller::new(&memory, base).map_err(|_| Error::Gone)?;
        let block_bytes = shared.load(registers::BLOCK_BYTES);
        let grain = u64::from(block_bytes).max(1);
        Ok(Client {
            state: Mutex::new(State::new(caller)),
            at: BusAddr(BYTES as u64),
            bytes: length as u64,
            // The engine gives it the blocks that are whole in its memory.
            area_bytes: length as u64 / grain * grain,
            memory,
            handle,
            block_bytes,
            side: Side::There(Mutex::new(peer)),
        })
    }

    /// Handle of the client's area.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Length of the area, bytes: a multiple of the drive's blocks.
    pub fn area_bytes(&self) -> u64 {
        self.area_bytes
    }

    /// Counters of the requests of this kind whose responses have been seen, since the client was opened or
    /// [reset](Self::reset_latency). A latency is from the engine's taking of the request to the end of its
    /// last command. Transfers are requests of at most 1 MiB.
    pub fn latency(&self, kind: RequestKind) -> Counters {
        let mut state = self.lock();
        state.drain();
        state.latencies.counters(kind)
    }

    /// The latency that `percent` of these requests do not exceed, ns, to two decimal digits and at most a
    /// minute; 0 if there was none.
    pub fn latency_percentile_ns(&self, kind: RequestKind, percent: f64) -> u64 {
        let mut state = self.lock();
        state.drain();
        state.latencies.percentile_ns(kind, percent)
    }

    /// Sets all latency counters to zero.
    pub fn reset_latency(&self) {
        let mut state = self.lock();
        state.drain();
        state.latencies.reset();
    }

    /// Size of the DMA buffer, bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset of the staging memory from the beginning of the DMA buffer, bytes: the end of the buffer.
    pub fn staging_at(&self) -> u64 {
        self.bytes
    }

    /// Block size of the drive, bytes.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Address of the DMA buffer in this process, for callers that need a pointer. Valid as long as the
    /// client.
    pub fn address(&self) -> *mut u8 {
        self.memory.address(self.at, self.bytes as usize).expect("its own buffer")
    }

    /// Copies bytes into the DMA buffer or the staging memory behind it. `offset` is in bytes.
    ///
    /// # Errors
    /// The bytes do not fit.
    pub fn copy_in(&self, offset: u64, from: &[u8]) -> Result<(), Error> {
        self.inside(offset, from.len())?;
        self.memory.write(BusAddr(self.at.0 + offset), from).map_err(|_| Error::Length(offset))
    }

    /// Copies bytes out of the DMA buffer or the staging memory behind it. `offset` is in bytes.
    ///
    /// # Errors
    /// The range is not inside.
    pub fn copy_out(&self, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        self.inside(offset, to.len())?;
        self.memory.read(BusAddr(self.at.0 + offset), to).map_err(|_| Error::Length(offset))
    }

    fn inside(&self, offset: u64, bytes: usize) -> Result<(), Error> {
        let all = self.bytes + STAGING_BYTES;
        let end = offset.checked_add(bytes as u64).filter(|end| *end <= all);
        end.map(|_| ()).ok_or(Error::Length(bytes as u64))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the engine has ended.
    pub fn is_gone(&self) -> bool {
        match &self.side {
            Side::Here { mailbox, .. } => mailbox.is_gone(),
            Side::There(peer) => peer.lock().unwrap_or_else(PoisonError::into_inner).is_gone(),
        }
    }

    /// Polls until `found` returns a value. Spins at first, then yields the core between checks.
    fn until<T>(&self, mut found: impl FnMut(&mut State) -> Option<T>) -> Result<T, Error> {
        let mut looks = 0_u32;
        loop {
            let mut state = self.lock();
            state.drain();
            if let Some(found) = found(&mut state) {
                return Ok(found);
            }
            drop(state);
            looks = looks.saturating_add(1);
            if looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            std::thread::yield_now();
            if looks.is_multiple_of(64) && self.is_gone() {
                return Err(Error::Gone);
            }
        }
    }

    /// Sends one request unchanged, except for its tag.
    fn send(&self, mut request: Request, held: bool) -> Result<u64, Error> {
        self.until(|state| {
            let tag = state.free_tag()?;
            request.tag = tag.into();
            if !state.caller.send(&request) {
                return None;
            }
            state.kinds[usize::from(tag)] = RequestKind::of(&request);
            let bit = 1 << tag;
            state.busy |= bit;
            state.held |= if held { bit } else { 0 };
            Some(bit)
        })
    }

    fn requests(
        &self,
        direction: Direction,
        offset: u64,
        size: u64,
        block_size: u32,
    ) -> Result<impl Iterator<Item = Request> + use<>, Error> {
        if block_size == 0 || size == 0 || !size.is_multiple_of(u64::from(block_size)) {
            return Err(Error::Length(size));
        }
        let Handle { fp_id, generation } = self.handle;
        let most = u64::from(SIZE_MAX);
        Ok((0..size.div_ceil(most)).map(move |n| {
            let at = offset.wrapping_add(n * most);
            let size = (size - n * most).min(most) as u32;
            let transfer = Transfer { direction, offset: at, size, block_size, buffer_offset: at };
            Request::transfer(0, fp_id, generation, &transfer)
        }))
    }

    /// Transfers `size` bytes between the area and the DMA buffer, at the same offset in both, and waits.
    ///
    /// # Errors
    /// Status of the first part that failed.
    pub fn transfer(
        &self,
        direction: Direction,
        offset: u64,
        size: u64,
        block_size: u32,
    ) -> Result<(), Error> {
        for request in self.requests(direction, offset, size, block_size)? {
            let ticket = self.submit(&request)?;
            self.wait(ticket)?;
        }
        Ok(())
    }

    /// Same as [`transfer`](Self::transfer), without waiting: [`settle`](Self::settle) waits for all of
    /// them.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn begin(
        &self,
        direction: Direction,
        offset: u64,
        size: u64,
        block_size: u32,
    ) -> Result<(), Error> {
        for request in self.requests(direction, offset, size, block_size)? {
            self.send(request, false)?;
        }
        Ok(())
    }

    /// Makes written data durable.
    ///
    /// # Errors
    /// Status from the engine.
    pub fn flush(&self) -> Result<(), Error> {
        let ticket = self.submit(&Request::flush(0, self.handle.fp_id, self.handle.generation))?;
        self.wait(ticket)
    }

    /// Sends a request unchanged, except for its tag.
    ///
    /// # Errors
    /// The engine has ended.
    pub fn submit(&self, request: &Request) -> Result<Ticket, Error> {
        self.send(*request, true).map(Ticket)
    }

    /// Returns the result of a request if it has completed. A ticket gives one result.
    ///
    /// # Errors
    /// Status from the engine.
    pub fn poll(&self, ticket: Ticket) -> Option<Result<(), Error>> {
        let mut state = self.lock();
        state.drain();
        (state.busy & ticket.0 == 0).then(|| state.collect(ticket))
    }

    /// Waits until a request has completed.
    ///
    /// # Errors
    /// Status from the engine.
    pub fn wait(&self, ticket: Ticket) -> Result<(), Error> {
        self.until(|state| (state.busy & ticket.0 == 0).then(|| state.collect(ticket)))?
    }

    /// Waits until all requests submitted without waiting have completed.
    ///
    /// # Errors
    /// The first failure among them since the last call.
    pub fn settle(&self) -> Result<(), Error> {
        let failed =
            self.until(|state| (state.busy & !state.held == 0).then(|| state.failed.take()))?;
        failed.map_or(Ok(()), |status| Err(Error::Answer(status)))
    }
}

impl State {
    fn new(caller: Caller) -> State {
        let status = [Status::Good; ENTRIES as usize];
        let kinds = [RequestKind::Flush; ENTRIES as usize];
        let latencies = Latencies::new();
        State { caller, busy: 0, held: 0, status, kinds, latencies, failed: None }
    }

    fn collect(&mut self, ticket: Ticket) -> Result<(), Error> {
        self.held &= !ticket.0;
        let status = self.status[ticket.0.trailing_zeros() as usize];
        if status.is_good() { Ok(()) } else { Err(Error::Answer(status)) }
    }
}

/// The area and the memory are freed when the drive has no command of this client in flight.
impl Drop for Client {
    fn drop(&mut self) {
        if let Side::Here { number, mailbox } = &self.side {
            let (tell, told) = sync_channel(1);
            if mailbox.put(Order::Close { number: *number, tell }).is_ok() {
                let _ = told.recv();
            }
        }
    }
}
