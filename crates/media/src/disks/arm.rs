//! One disk: its arm, and the scheduling of requests that wait for it.

use core::cell::RefCell;
use core::future::poll_fn;
use core::task::Poll;
use std::collections::VecDeque;
use std::rc::Rc;

use runtime::{Parked, Rt, Signal, Time};

use super::mechanics::{Mechanics, Places};

/// A request to a disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// First byte.
    pub from: u64,
    /// End, exclusive.
    pub to: u64,
    /// True for a write.
    pub write: bool,
    /// End of the read-ahead that a sequential read may trigger.
    pub ahead_to: u64,
}

/// Bytes that have been read, or are passing under the head.
#[derive(Clone, Copy, Debug)]
struct Segment {
    from: u64,
    to: u64,
    /// Time at which the first of them was available.
    begun: Time,
}

struct Waiting {
    ticket: u64,
    wanted: Wanted,
    /// Time of the last byte, once it is known.
    end: Option<Time>,
    parked: Option<Parked>,
}

struct State {
    /// Position at which the head was left.
    at: u64,
    waiting: Vec<Waiting>,
    next_ticket: u64,
    /// Segments in the cache, the newest last.
    segments: VecDeque<Segment>,
    /// Ends of recent reads: a read that starts at one of them is sequential.
    ends: VecDeque<u64>,
}

/// A disk's arm, and the requests that wait for it.
pub(super) struct Arm {
    rt: Rt,
    places: Places,
    state: RefCell<State>,
    arrived: Signal,
    /// Number of concurrent streams detected, and of cache segments.
    streams: usize,
}

impl Arm {
    /// Creates an idle disk, and starts its task.
    pub fn start(rt: &Rt, mechanics: &Mechanics, streams: usize) -> Rc<Arm> {
        let arm = Rc::new(Arm {
            rt: rt.clone(),
            places: Places::new(mechanics),
            state: RefCell::new(State {
                at: 0,
                waiting: Vec::new(),
                next_ticket: 0,
                segments: VecDeque::with_capacity(streams + 1),
                ends: VecDeque::with_capacity(streams + 1),
            }),
            arrived: Signal::default(),
            streams,
        });
        rt.spawn(work(arm.clone()));
        arm
    }

    /// Capacity of the disk in bytes.
    pub fn bytes(&self) -> u64 {
        self.places.bytes()
    }

    /// Waits for the arm; returns the time at which the last byte is available.
    pub async fn reach(&self, wanted: Wanted) -> Time {
        if let Some(end) = self.cached(&wanted) {
            return end;
        }
        let place = Place { arm: self, ticket: self.join(wanted) };
        self.arrived.notify(&self.rt);
        poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            let waiting = state.waiting.iter_mut().find(|waiting| waiting.ticket == place.ticket);
            let waiting = waiting.expect("waits until its place is dropped");
            match waiting.end {
                Some(end) => Poll::Ready(end),
                None => {
                    waiting.parked = Some(self.rt.park(cx));
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn join(&self, wanted: Wanted) -> u64 {
        let mut state = self.state.borrow_mut();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.waiting.push(Waiting { ticket, wanted, end: None, parked: None });
        ticket
    }

    /// Time at which the bytes of a read are available, if they are cached or being read.
    fn cached(&self, wanted: &Wanted) -> Option<Time> {
        let state = self.state.borrow();
        let holds = |segment: &&Segment| segment.from <= wanted.from && wanted.to <= segment.to;
        let segment = state.segments.iter().find(holds).filter(|_| !wanted.write)?;
        let passed = segment.begun + self.places.stream(segment.from, wanted.to);
        Some(passed.max(self.rt.now()))
    }

    /// Scheduling: the request at the head's position; otherwise the next one inwards, and after the
    /// innermost the outermost.
    fn choose(&self) -> Option<(u64, Wanted)> {
        let state = self.state.borrow();
        let open = state.waiting.iter().filter(|waiting| waiting.end.is_none());
        let order = |waiting: &&Waiting| (waiting.wanted.from < state.at, waiting.wanted.from);
        open.min_by_key(order).map(|waiting| (waiting.ticket, waiting.wanted))
    }

    /// Moves the arm for a request. Returns the time at which the arm is free again.
    fn serve(&self, ticket: u64, wanted: Wanted) -> Time {
        let mut state = self.state.borrow_mut();
        let now = self.rt.now();
        let begun = self.places.reach(state.at, wanted.from, now, wanted.write);
        let end = begun + self.places.stream(wanted.from, wanted.to);
        state.tell(&self.rt, ticket, end);
        if wanted.write {
            // Invalidate cached copies of these bytes.
            state.segments.retain(|has| has.to <= wanted.from || wanted.to <= has.from);
            state.at = wanted.to;
            return end;
        }
        let in_sequence = state.ends.contains(&wanted.from);
        let to = if in_sequence { wanted.ahead_to.max(wanted.to) } else { wanted.to };
        state.at = to;
        state.ends.retain(|end| *end != wanted.from);
        state.ends.push_back(to);
        state.segments.push_back(Segment { from: wanted.from, to, begun });
        while state.segments.len() > self.streams {
            state.segments.pop_front();
        }
        while state.ends.len() > self.streams {
            state.ends.pop_front();
        }
        let passes = |other: &Wanted| !other.write && wanted.from <= other.from && other.to <= to;
        for index in 0..state.waiting.len() {
            let other = &state.waiting[index];
            if other.end.is_none() && passes(&other.wanted) {
                let (ticket, last) = (other.ticket, other.wanted.to);
                state.tell(&self.rt, ticket, begun + self.places.stream(wanted.from, last));
            }
        }
        begun + self.places.stream(wanted.from, to)
    }
}

impl State {
    /// Sets the end time of a request, and wakes it.
    fn tell(&mut self, rt: &Rt, ticket: u64, end: Time) {
        let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.ticket == ticket) else {
            return;
        };
        waiting.end = Some(end);
        if let Some(parked) = waiting.parked.take() {
            rt.unpark(parked);
        }
    }
}

/// A place in the queue, released when dropped.
struct Place<'a> {
    arm: &'a Arm,
    ticket: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.arm.state.borrow_mut();
        state.waiting.retain(|waiting| waiting.ticket != self.ticket);
    }
}

async fn work(arm: Rc<Arm>) {
    loop {
        let seen = arm.arrived.version();
        match arm.choose() {
            Some((ticket, wanted)) => {
                let free = arm.serve(ticket, wanted);
                arm.rt.sleep_until(free).await;
            }
            None => arm.arrived.changed(&arm.rt, seen).await,
        }
    }
}
