//! Callers with rings: threads, and processes that may be malicious.

use alloc::rc::Rc;
use core::cell::Cell;

use bus::{HostPort, Memory, OutOfRange};
use runtime::{Either, Signal, race};
use wire::BusAddr;

use super::control::From;
use super::engine::{Core, Engine};
use super::function::{Shared, Through};
use super::ring::{Overrun, Taker};
use super::table::{Area, Handle, Memory as HandleMemory, OpenError, Owner};

/// Requests of a ring that are rejected in one turn of the executor. They hold no slot, and on a live bus
/// cost nothing that is waited for: a caller that sends one for each rejection would keep all others from a
/// turn.
const REJECTED_IN_A_TURN: u32 = 8;

/// A ring in service. Dropping it ends the service: its handles are rejected, and freed when the drive has no
/// command of them any more.
pub struct Serving<P: HostPort> {
    pub(super) core: Rc<Core<P>>,
    state: Rc<State>,
    pub(super) memory: Memory,
}

struct State {
    owner: Owner,
    stopped: Cell<bool>,
    overrun: Cell<bool>,
    turned: Signal,
    /// Notified when the ring is no longer accessed.
    over: Signal,
    is_over: Cell<bool>,
}

impl<P: HostPort> Engine<P> {
    /// Serves the ring in the page of `memory` at `at`. The engine's drive must access this memory at the
    /// same addresses.
    ///
    /// # Errors
    /// The memory does not hold the page.
    pub fn serve(&self, memory: &Memory, at: BusAddr) -> Result<Serving<P>, OutOfRange> {
        let taker = Taker::new(memory, at)?;
        let core = self.0.clone();
        let mut rings = core.rings.borrow_mut();
        // Owner 0 stands for this executor's tasks.
        let index =
            rings.iter().skip(1).position(Option::is_none).map_or(rings.len().max(1), |n| n + 1);
        if rings.len() <= index {
            rings.resize_with(index + 1, || None);
        }
        let word = taker.word();
        rings[index] = Some(taker);
        drop(rings);
        let state = Rc::new(State {
            owner: index as Owner,
            stopped: Cell::new(false),
            overrun: Cell::new(false),
            turned: Signal::default(),
            over: Signal::default(),
            is_over: Cell::new(false),
        });
        core.rt().spawn(take(core.clone(), state.clone(), word));
        Ok(Serving { core, state, memory: memory.clone() })
    }
}

impl<P: HostPort> Serving<P> {
    pub(super) fn owner(&self) -> Owner {
        self.state.owner
    }

    /// Opens a handle for `blocks` blocks, and for `bytes` bytes of the ring's memory from `at`.
    ///
    /// # Errors
    /// No such area, no handle left, or the memory does not hold these bytes.
    pub fn open(&self, blocks: u64, at: BusAddr, bytes: u64) -> Result<(Handle, Area), OpenError> {
        if !self.memory.holds(at, usize::try_from(bytes).unwrap_or(usize::MAX)) {
            return Err(OpenError::Memory);
        }
        self.core.open(self.state.owner, blocks, HandleMemory { at, bytes, keep: None })
    }

    /// Passes the blocks of this ring's handle through `function` from now on.
    ///
    /// # Errors
    /// No such handle, requests are in flight, or there is no memory for staging.
    pub fn pass_through(&self, handle: Handle, function: Shared) -> Result<(), OpenError> {
        let through = Through { function, memory: self.memory.clone() };
        self.core.pass_through(self.state.owner, handle, through)
    }

    /// Closes a handle of this ring; returns false if the ring has no such handle.
    pub fn close(&self, handle: Handle) -> bool {
        self.core.close(self.state.owner, handle)
    }

    /// Returns true if commands of a closed handle are in flight: until then the drive may access its memory.
    pub fn is_closing(&self, handle: Handle) -> bool {
        self.core.is_closing(handle)
    }

    /// Ends the service, and waits until the drive has no command of its handles and the ring is no longer
    /// accessed: then its memory is free.
    pub async fn end(self) {
        let (core, state) = (self.core.clone(), self.state.clone());
        drop(self);
        while !state.is_over.get() {
            state.over.changed(core.rt(), state.over.version()).await;
        }
    }
}

impl<P: HostPort> Drop for Serving<P> {
    fn drop(&mut self) {
        for handle in self.core.handles_of(self.state.owner) {
            self.core.close(self.state.owner, handle);
        }
        self.state.stopped.set(true);
        self.state.turned.notify(self.core.rt());
    }
}

/// Takes requests from one ring.
async fn take<P: HostPort>(core: Rc<Core<P>>, state: Rc<State>, word: BusAddr) {
    let index = state.owner as usize;
    let mut turned = state.turned.changed(core.rt(), state.turned.version());
    while !state.stopped.get() && !core.is_stopped() {
        let has_next = || {
            let rings = core.rings.borrow();
            let next = rings[index].as_ref().is_some_and(Taker::has_next);
            (next || core.is_stopped()).then_some(())
        };
        if let Either::First(()) = race(&mut turned, core.port.on_memory(word, 4, has_next)).await {
            break;
        }
        if take_all(&core, &state).await == Err(Overrun) {
            state.overrun.set(true);
            turned.await;
            break;
        }
    }
    // Responses to requests still in flight are discarded.
    while core.under_way(state.owner) {
        core.rt().sleep(runtime::Span::ms(1)).await;
    }
    core.rings.borrow_mut()[index] = None;
    state.is_over.set(true);
    state.over.notify(core.rt());
}

/// Takes all pending requests, as long as Control has free slots, and until the service ends.
async fn take_all<P: HostPort>(core: &Core<P>, state: &State) -> Result<(), Overrun> {
    let index = state.owner as usize;
    let with = |f: &mut dyn FnMut(&mut Taker) -> Result<bool, Overrun>| {
        core.rings.borrow_mut()[index].as_mut().map_or(Ok(false), f)
    };
    let mut rejected = 0_u32;
    while !state.stopped.get() {
        let slot = core.place().await;
        let mut request = None;
        let taken = with(&mut |taker| {
            request = if taker.has_next() { taker.take()? } else { None };
            Ok(request.is_some())
        });
        let (Ok(true), Some(request)) = (taken, request) else {
            core.give_back(slot);
            return taken.map(|_| ());
        };
        core.port.spend(core.costs.control).await;
        let from = From::Ring(state.owner);
        if let Err((response, _)) = core.begin(state.owner, from, &request, slot, None) {
            core.give_back(slot);
            let _ = with(&mut |taker| {
                taker.give(&response);
                Ok(true)
            });
            rejected += 1;
            if rejected.is_multiple_of(REJECTED_IN_A_TURN) {
                core.rt().yield_now().await;
            }
        }
    }
    Ok(())
}
