//! Bios Array: the commands given to each place of the ring, and the requests that the bios are parts of.
//!
//! ```text
//!   place      head          next           free
//!   of ring     │ with the device │  pending  │  empty
//!               ▼                 ▼           ▼
//!   bios     [ Filled, Returned │ Filled ... │ Free ... ]      bio i belongs to descriptor i
//! ```
//!
//! The three are 32-bit counts that wrap; a place is a count modulo the ring.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::Poll;

use bus::Buffer;
use runtime::{Parked, Rt};
use wire::block::descriptor::{Command, Operation, Status};
use wire::{BusAddr, Lba};

use crate::{IoError, Kind, quarantine};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Free,
    /// Its descriptor belongs to the device: announced, or pending.
    Filled,
    /// Its descriptor has been returned, or never will be; holds the result.
    Ended(Result<Status, Kind>),
}

/// One page of a request.
pub(super) struct Bio {
    pub stage: Cell<Stage>,
    pub command: Cell<Command>,
    pub request: Cell<u16>,
    /// Offset of its bytes in the request's buffer, if they are on a bounce page.
    pub padded_at: Cell<Option<u32>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Free,
    /// In use; its future waits.
    Owned,
    /// Its future was dropped; it ends without an owner.
    Orphan,
}

struct Request {
    stage: Cell<Use>,
    /// Parts that have not ended, including those never filled.
    left: Cell<u32>,
    /// Parts that have a place in the ring.
    in_ring: Cell<u32>,
    error: Cell<Option<IoError>>,
    lba: Cell<Option<Lba>>,
    /// True if its trace continues under the request's number.
    followed: Cell<bool>,
    owner: Cell<Option<Parked>>,
    buffer: Cell<Option<Buffer>>,
}

impl Request {
    fn new() -> Request {
        Request {
            stage: Cell::new(Use::Free),
            left: Cell::new(0),
            in_ring: Cell::new(0),
            error: Cell::new(None),
            lba: Cell::new(None),
            followed: Cell::new(false),
            owner: Cell::new(None),
            buffer: Cell::new(None),
        }
    }
}

/// Array of bios, and the requests.
pub(super) struct Bios {
    bios: Box<[Bio]>,
    /// First bio whose request has not been answered.
    pub head: Cell<u32>,
    /// First bio of the next block.
    pub next: Cell<u32>,
    /// First free bio.
    pub free: Cell<u32>,
    requests: RefCell<Vec<Request>>,
    idle: RefCell<Vec<u16>>,
}

impl Bios {
    /// Creates one bio per descriptor of the ring.
    pub fn new(entries: u32) -> Bios {
        let nothing = Command { operation: Operation::Flush, at: BusAddr(0), offset: 0, bytes: 0 };
        let bio = |_| Bio {
            stage: Cell::new(Stage::Free),
            command: Cell::new(nothing),
            request: Cell::new(0),
            padded_at: Cell::new(None),
        };
        // Requests may have ended whose callers have not run yet, so there may be more than bios.
        let requests: Vec<_> = (0..2 * entries).map(|_| Request::new()).collect();
        let idle = (0..requests.len() as u16).rev().collect();
        Bios {
            bios: (0..entries).map(bio).collect(),
            head: Cell::new(0),
            next: Cell::new(0),
            free: Cell::new(0),
            requests: RefCell::new(requests),
            idle: RefCell::new(idle),
        }
    }

    /// Number of bios.
    pub fn entries(&self) -> u32 {
        self.bios.len() as u32
    }

    /// Index of a count in ring and array.
    pub fn place(&self, count: u32) -> u32 {
        count & (self.entries() - 1)
    }

    /// Bio of this count.
    pub fn bio(&self, count: u32) -> &Bio {
        &self.bios[self.place(count) as usize]
    }

    /// Number of free places.
    pub fn room(&self) -> u32 {
        self.entries() - self.population()
    }

    /// Number of places in use.
    pub fn population(&self) -> u32 {
        self.free.get().wrapping_sub(self.head.get())
    }

    /// Number of descriptors that no block contains yet.
    pub fn pending(&self) -> u32 {
        self.free.get().wrapping_sub(self.next.get())
    }

    /// Counts of all places in use, oldest first.
    pub fn all(&self) -> impl Iterator<Item = u32> + use<> {
        let head = self.head.get();
        (0..self.population()).map(move |n| head.wrapping_add(n))
    }

    /// Oldest bio and its result, if it has ended.
    pub fn oldest_ended(&self) -> Option<(u32, Result<Status, Kind>)> {
        let head = self.head.get();
        match self.bio(head).stage.get() {
            Stage::Ended(end) if self.population() > 0 => Some((head, end)),
            _ => None,
        }
    }

    /// Opens a request of `parts` parts, which takes the buffer.
    pub fn open<'a>(
        &'a self,
        rt: &'a Rt,
        lba: Option<Lba>,
        buffer: Option<Buffer>,
        parts: u32,
    ) -> Claim<'a> {
        let number = self.idle.borrow_mut().pop().unwrap_or_else(|| {
            let mut requests = self.requests.borrow_mut();
            requests.push(Request::new());
            // At most as many dropped requests are held by the device as the ring has places.
            u16::try_from(requests.len() - 1).expect("callers, less than 65536 of them")
        });
        let requests = self.requests.borrow();
        let request = &requests[usize::from(number)];
        request.stage.set(Use::Owned);
        request.left.set(parts);
        request.in_ring.set(0);
        request.error.set(None);
        request.lba.set(lba);
        request.followed.set(false);
        request.buffer.set(buffer);
        Claim { bios: self, rt, number }
    }

    /// Counts one more part of this request in the ring.
    pub fn filled(&self, number: u16) {
        let requests = self.requests.borrow();
        let in_ring = &requests[usize::from(number)].in_ring;
        in_ring.set(in_ring.get() + 1);
    }

    /// Calls `f` with the buffer of a request.
    pub fn with_buffer<T>(&self, number: u16, f: impl FnOnce(Option<&Buffer>) -> T) -> T {
        let requests = self.requests.borrow();
        let request = &requests[usize::from(number)];
        let buffer = request.buffer.take();
        let done = f(buffer.as_ref());
        request.buffer.set(buffer);
        done
    }

    /// Records the end of a part. Calls `carry` if it was the last; `carry` returns whether the request is
    /// still traced.
    pub fn ended(
        &self,
        rt: &Rt,
        number: u16,
        end: Result<Status, Kind>,
        carry: impl FnOnce() -> bool,
    ) {
        let requests = self.requests.borrow();
        let request = &requests[usize::from(number)];
        let error = match end {
            Ok(Status::DONE) => None,
            Ok(status) => Some(IoError::returned(status, request.lba.get())),
            Err(kind) => Some(IoError::of(kind, request.lba.get())),
        };
        if request.error.get().is_none() {
            request.error.set(error);
        }
        request.left.set(request.left.get() - 1);
        request.in_ring.set(request.in_ring.get() - 1);
        let orphaned = request.stage.get() == Use::Orphan;
        if orphaned && request.in_ring.get() == 0 {
            drop(requests);
            self.recycle(number);
        } else if !orphaned && request.left.get() == 0 {
            request.followed.set(carry());
            let owner = request.owner.take();
            drop(requests);
            if let Some(owner) = owner {
                rt.hand_over(owner);
            }
        }
    }

    /// Quarantines the buffers of requests in the ring: the device may write to them at any time. They never
    /// go back to their arena, not even when their owners drop them.
    pub fn quarantine_buffers(&self) {
        let requests = self.requests.borrow();
        for request in requests.iter().filter(|request| request.in_ring.get() > 0) {
            if let Some(buffer) = request.buffer.take() {
                quarantine(&buffer);
                request.buffer.set(Some(buffer));
            }
        }
    }

    /// Number of requests in use: zero once the device can write to no buffer any more.
    pub fn requests(&self) -> usize {
        self.requests.borrow().len() - self.idle.borrow().len()
    }

    fn recycle(&self, number: u16) {
        let requests = self.requests.borrow();
        let request = &requests[usize::from(number)];
        request.stage.set(Use::Free);
        request.owner.take();
        let buffer = request.buffer.take();
        drop(requests);
        self.idle.borrow_mut().push(number);
        drop(buffer);
    }
}

/// An owned request. If it is dropped before its end, the parts in the ring keep the request and its buffer
/// until they have ended.
pub(super) struct Claim<'a> {
    bios: &'a Bios,
    rt: &'a Rt,
    /// Number of the request.
    pub number: u16,
}

impl Claim<'_> {
    /// Waits until all parts have ended; also returns whether the trace continues under the request's number.
    pub async fn end(&self) -> (Result<(), IoError>, bool) {
        poll_fn(|cx| {
            let requests = self.bios.requests.borrow();
            let request = &requests[usize::from(self.number)];
            if request.left.get() == 0 {
                let end = request.error.get().map_or(Ok(()), Err);
                return Poll::Ready((end, request.followed.get()));
            }
            request.owner.set(Some(self.rt.park(cx)));
            Poll::Pending
        })
        .await
    }

    /// Fails the request: parts without a place are dropped, those with one are waited for.
    pub fn give_up(&self, kind: Kind) {
        let requests = self.bios.requests.borrow();
        let request = &requests[usize::from(self.number)];
        request.left.set(request.in_ring.get());
        if request.error.get().is_none() {
            request.error.set(Some(IoError::of(kind, request.lba.get())));
        }
    }

    /// Takes the buffer back. The device must have ended all parts.
    pub fn release(&self) -> Option<Buffer> {
        let requests = self.bios.requests.borrow();
        let request = &requests[usize::from(self.number)];
        assert_eq!(request.in_ring.get(), 0, "the device may still write");
        request.buffer.take()
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let requests = self.bios.requests.borrow();
        let request = &requests[usize::from(self.number)];
        if request.in_ring.get() > 0 {
            request.stage.set(Use::Orphan);
            request.owner.take();
        } else {
            drop(requests);
            self.bios.recycle(self.number);
        }
    }
}
