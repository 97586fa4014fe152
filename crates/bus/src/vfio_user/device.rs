//! Device port: registers are words, DMA is a copy if memory is mapped and a message otherwise, an
//! interrupt signals an eventfd of the client.

use alloc::rc::Rc;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{Ordering, fence};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec::Vec;

use runtime::{Rt, Signal, Stage, Time};
use wire::BusAddr;

use super::dma::{Landing, new_in_a_row};
use super::function::Registers;
use super::mailbox::{AccessId, Mailbox, ToDevice, ToSession};
use super::table::{Access, Table};
use super::vectors::{Signalling, Vectors};
use crate::live::{new_entries, until};
use crate::pieces::{Sink, gather, scatter, scatter_flagged};
use crate::{Carry, Cost, DevicePort, DmaError, Flags, Looks, Payload, Posting, Segment};

/// A device port that is not yet bound to a thread.
pub struct DeviceEnd(State);

/// State that survives a reset.
pub(super) struct State {
    pub mailbox: Arc<Mailbox>,
    registers: Registers,
    pub table: RefCell<Table>,
    vectors: RefCell<Vectors>,
    pub bus_master: Cell<bool>,
    /// Accesses by messages in flight, by number.
    pub accesses: RefCell<BTreeMap<AccessId, Waiting>>,
    pub next_access: Cell<AccessId>,
    /// Number of posted accesses in flight: no task waits for them, but interrupts are ordered behind them.
    pub posted: Cell<usize>,
    /// Answer to send when all accesses before this number are complete.
    owed: RefCell<Option<(AccessId, ToSession)>>,
    /// The device has been ordered to restart; the client waits for it.
    restarting: Cell<bool>,
}

/// State of an access by messages.
pub(super) enum Waiting {
    Under,
    /// In flight; no task waits for it.
    Posted,
    Over(Option<Vec<u8>>),
    Abandoned,
}

/// Reason to stop a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Restart: see [`VfioUserDevice::begin_anew`].
    Reset,
    /// The client is gone.
    Left,
}

impl DeviceEnd {
    pub(super) fn new(
        mailbox: Arc<Mailbox>,
        registers: Registers,
        signalling: Arc<Signalling>,
        maps_max: usize,
    ) -> DeviceEnd {
        DeviceEnd(State {
            mailbox,
            registers,
            table: RefCell::new(Table::new(maps_max)),
            vectors: RefCell::new(Vectors::new(signalling)),
            bus_master: Cell::new(false),
            accesses: RefCell::default(),
            next_access: Cell::new(0),
            posted: Cell::new(0),
            owed: RefCell::default(),
            // The session waits for the start of the device, as after a reset.
            restarting: Cell::new(true),
        })
    }

    /// Device port for the thread of `rt`.
    pub fn port(self, rt: &Rt) -> VfioUserDevice {
        VfioUserDevice::over(Rc::new(self.0), rt)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.mailbox.give_session(ToSession::Ended);
    }
}

/// Device port. Cheap to clone.
#[derive(Clone)]
pub struct VfioUserDevice {
    pub(super) rt: Rt,
    pub(super) state: Rc<State>,
    /// Number of orders of the mailbox that have been handled.
    seen: Rc<Cell<u32>>,
    /// Signalled when an access by messages completes.
    pub(super) changed: Rc<Signal>,
    transfer: Stage,
    host_read: Stage,
}

impl VfioUserDevice {
    fn over(state: Rc<State>, rt: &Rt) -> VfioUserDevice {
        VfioUserDevice {
            rt: rt.clone(),
            state,
            // Differs from any count, so the mailbox is read first.
            seen: Rc::new(Cell::new(u32::MAX)),
            changed: Rc::default(),
            transfer: rt.stage("data transfer"),
            host_read: rt.stage("host read"),
        }
    }

    /// Port for a restarted device, on a new executor, after the tasks of the old one have been dropped: no
    /// access of theirs reaches the client any more. Memory and interrupts stay as the client has set them
    /// up; registers are zero.
    pub fn begin_anew(self, rt: &Rt) -> VfioUserDevice {
        let state = self.state;
        for id in state.mailbox.take_back() {
            state.forget(id);
        }
        state.registers.clear();
        state.vectors.borrow_mut().silence(false);
        VfioUserDevice::over(state, rt)
    }

    /// Handles the session's orders until the device is to stop. Runs as a task beside the device's own,
    /// after they have been started.
    pub async fn attend(&self) -> Why {
        if self.state.restarting.take() {
            self.answer(Ok(()), Vec::new());
        }
        loop {
            self.seen.set(self.state.mailbox.news());
            while let Some(what) = self.state.mailbox.for_device() {
                match what {
                    ToDevice::Leave => return Why::Left,
                    ToDevice::Reset => return self.reset(),
                    ToDevice::Config { bus_master, intx_enabled, reset } => {
                        self.state.bus_master.set(bus_master);
                        self.state.vectors.borrow_mut().enable_intx(intx_enabled);
                        if reset {
                            return self.reset();
                        }
                        self.answer(Ok(()), Vec::new());
                    }
                    other => self.perform(other),
                }
            }
            self.state.settle();
            self.news().await;
        }
    }

    /// Waits for an order. Polls in every pass, because a timer would end the idle state of the executor.
    async fn news(&self) {
        until(&self.rt, || (self.state.mailbox.news() != self.seen.get()).then_some(())).await;
    }

    fn perform(&self, what: ToDevice) {
        let state = &self.state;
        match what {
            ToDevice::Map(mapping) => match state.table.borrow_mut().insert(mapping) {
                Ok(()) => self.answer(Ok(()), Vec::new()),
                Err((error, mapping)) => self.answer(Err(error), std::vec![mapping]),
            },
            ToDevice::Unmap(what) => {
                let mut table = state.table.borrow_mut();
                let (result, unused) = match what {
                    None => (Ok(()), table.remove_all()),
                    Some((at, bytes)) => match table.remove(at, bytes) {
                        Ok(mappings) => (Ok(()), mappings),
                        Err(error) => (Err(error), Vec::new()),
                    },
                };
                let barrier = state.next_access.get();
                state.owed.replace(Some((barrier, ToSession::Answer { result, unused })));
            }
            ToDevice::Vectors(change) => {
                state.vectors.borrow_mut().change(change);
                self.answer(Ok(()), Vec::new());
            }
            ToDevice::Silence(silent) => {
                state.vectors.borrow_mut().silence(silent);
                self.answer(Ok(()), Vec::new());
            }
            ToDevice::Read { id, data } => self.over_with(id, data),
            ToDevice::Written { id, done } => self.over_with(id, done.then(Vec::new)),
            ToDevice::Raise(vector) => state.vectors.borrow_mut().raise(vector),
            ToDevice::Config { .. } | ToDevice::Reset | ToDevice::Leave => {
                unreachable!("what may end the attendance is not performed here")
            }
        }
    }

    /// Requests a restart, which the session is told of when it is done.
    fn reset(&self) -> Why {
        self.state.restarting.set(true);
        Why::Reset
    }

    fn answer(&self, result: Result<(), u32>, unused: Vec<super::table::Mapping>) {
        self.state.mailbox.give_session(ToSession::Answer { result, unused });
    }

    fn over_with(&self, id: AccessId, result: Option<Vec<u8>>) {
        let mut accesses = self.state.accesses.borrow_mut();
        if let Some(under @ Waiting::Under) = accesses.get_mut(&id) {
            *under = Waiting::Over(result);
            drop(accesses);
            self.changed.notify(&self.rt);
        } else {
            drop(accesses);
            self.state.forget(id);
        }
    }
}

impl State {
    /// Removes a completed or abandoned access.
    fn forget(&self, id: AccessId) {
        if let Some(Waiting::Posted) = self.accesses.borrow_mut().remove(&id) {
            self.posted.set(self.posted.get() - 1);
        }
    }

    /// Result of an access, if it has completed.
    pub fn result_of(&self, id: AccessId) -> Option<Option<Vec<u8>>> {
        match self.accesses.borrow_mut().get_mut(&id) {
            Some(Waiting::Over(result)) => Some(result.take()),
            _ => None,
        }
    }

    /// Sends the deferred answer if the accesses before it have completed.
    fn settle(&self) {
        let mut owed = self.owed.borrow_mut();
        let accesses = self.accesses.borrow();
        let under_way = |(_, how): &(&AccessId, &Waiting)| !matches!(how, Waiting::Over(_));
        let first = accesses.iter().find(under_way).map(|(id, _)| *id);
        if owed.as_ref().is_some_and(|(barrier, _)| first.is_none_or(|first| first >= *barrier))
            && let Some((_, answer)) = owed.take()
        {
            self.mailbox.give_session(answer);
        }
    }
}

impl DevicePort for VfioUserDevice {
    fn rt(&self) -> &Rt {
        &self.rt
    }

    #[inline]
    fn load(&self, register: u32) -> u32 {
        self.state.registers.load(register)
    }

    fn store(&self, register: u32, value: u32) {
        self.state.registers.store(register, value);
        if let Some(silent) = self.state.registers.silences(register) {
            self.state.vectors.borrow_mut().silence(silent);
        }
    }

    async fn on_registers<T>(&self, check: impl FnMut() -> Option<T>) -> T {
        until(&self.rt, check).await
    }

    /// No-op: a live check runs in every pass.
    fn check_again(&self) {}

    async fn read(&self, from: &[Segment], to: &mut [u8], carry: Carry) -> Result<(), DmaError> {
        if self.validate(from, Access::Read)? {
            gather(from, to, carry, |at, part| {
                self.reach(at, part.len(), Access::Read, |memory, at, range| {
                    memory.read(at, &mut part[range])
                })
            })?;
        } else {
            self.read_by_messages(from, to).await?;
        }
        self.rt.record(self.host_read);
        Ok(())
    }

    async fn fetch(
        &self,
        at: BusAddr,
        into: &mut [u8],
        entry_bytes: usize,
        looks: Looks,
        mut is_new: impl FnMut(u32, u32) -> bool,
    ) -> Result<u32, DmaError> {
        let ring = Segment { at, bytes: into.len() as u32 };
        if !self.validate(&[ring], Access::Read)? {
            self.read_by_messages(&[ring], into).await?;
            return Ok(new_in_a_row(into, entry_bytes, is_new));
        }
        let look = || self.look_for_entries(at, into, entry_bytes, &mut is_new);
        new_entries(&self.rt, looks, look).await
    }

    fn prefetch(&self, to: Segment) {
        let table = self.state.table.borrow();
        if let Some(memory) = table.whole(to.at, to.bytes as usize, Access::Write) {
            memory.prefetch(to.at, to.bytes as usize);
        }
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    async fn write<P: Payload + ?Sized>(
        &self,
        to: &[Segment],
        what: &P,
        how: Posting,
        ready: Time,
    ) -> Result<(), DmaError> {
        if ready > Time::ZERO {
            self.rt.sleep_until(ready).await;
        }
        let mapped = self.validate(to, Access::Write)?;
        let mut sink = if mapped { Landing::Copied(self) } else { Landing::Told(Vec::new()) };
        match how.flags {
            Flags::None => scatter(to, what, |at, run, _| sink.put(at, run))?,
            flags => scatter_flagged(to, what, flags, &mut sink)?,
        }
        if let Landing::Told(parts) = sink {
            self.write_by_messages(parts).await?;
        }
        self.rt.record(self.transfer);
        Ok(())
    }

    #[inline]
    fn publish(&self, at: BusAddr, entry: &[u8], _relaxed: bool) -> Result<(), DmaError> {
        let segment = Segment { at, bytes: entry.len() as u32 };
        if self.validate(&[segment], Access::Write)? {
            return self.reach(at, entry.len(), Access::Write, |memory, at, range| {
                let flag = range.end == entry.len();
                memory.put(at, &entry[range], flag)
            });
        }
        // One message per entry, so it lands as a whole.
        let what = |id| ToSession::Write { id, at, data: entry.to_vec() };
        drop(self.begin(Waiting::Posted, what));
        Ok(())
    }

    #[inline]
    fn interrupt(&self, vector: u16) {
        if self.state.posted.get() > 0 {
            // Ordered behind the writes posted before it.
            self.state.mailbox.give_session(ToSession::Raise(vector));
        } else {
            self.state.vectors.borrow_mut().raise(vector);
        }
    }

    #[inline]
    async fn elapse(&self, _: Cost) {}

    fn cost(&self, _: &str) -> Cost {
        Cost::NONE
    }

    #[inline]
    async fn spend(&self, _: Cost) {}
}
