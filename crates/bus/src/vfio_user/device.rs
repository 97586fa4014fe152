//! Device port: registers are words, DMA is a copy if memory is mapped and a message otherwise, an
//! interrupt signals an eventfd of the client.

use alloc::rc::Rc;
use core::cell::Cell;
use core::sync::atomic::{Ordering, fence};
use std::sync::Arc;
use std::vec::Vec;

use runtime::{Rt, Stage, Time, stage};
use wire::BusAddr;

use super::dma::{Dma, Landing, new_in_a_row};
use super::function::Registers;
use super::mailbox::{AccessId, Mailbox, ToDevice, ToSession};
use super::state::{State, Waiting};
use super::table::{Access, Mapping};
use super::vectors::Signalling;
use crate::live::{new_entries, until};
use crate::pieces::{gather, gather_from};
use crate::{Carry, Cost, DevicePort, Direct, DmaError, Looks, Payload, Posting, Segment};

/// A device port that is not yet bound to a thread. A session has one for each device thread.
pub struct DeviceEnd(State);

/// Reason to stop a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Restart: see [`VfioUserDevice::restart`]. Only the first device end of a session stops for this
    /// reason. The tasks of all other ends have to be dropped before it restarts.
    Reset,
    /// The client is gone. Only the first device end of a session stops for this reason. The ports of all
    /// other ends have to be dropped.
    Left,
}

impl DeviceEnd {
    pub(super) fn new(
        is_first: bool,
        mailbox: Arc<Mailbox>,
        registers: Registers,
        signalling: Arc<Signalling>,
        maps_max: usize,
    ) -> DeviceEnd {
        DeviceEnd(State::new(is_first, mailbox, registers, signalling, maps_max))
    }

    /// Device port for the thread of `rt`.
    pub fn port(self, rt: &Rt) -> VfioUserDevice {
        VfioUserDevice::over(Rc::new(self.0), rt)
    }
}

/// Device port. Cheap to clone.
#[derive(Clone)]
pub struct VfioUserDevice {
    dma: Dma,
    /// Number of orders of the mailbox that have been handled.
    seen: Rc<Cell<u32>>,
    media: Stage,
    transfer: Stage,
    host_read: Stage,
}

impl VfioUserDevice {
    fn over(state: Rc<State>, rt: &Rt) -> VfioUserDevice {
        VfioUserDevice {
            dma: Dma { rt: rt.clone(), state, changed: Rc::default() },
            // Differs from any count, so the mailbox is read first.
            seen: Rc::new(Cell::new(u32::MAX)),
            media: stage!(rt, crate::live::STAGES, "media"),
            transfer: stage!(rt, crate::live::STAGES, "data transfer"),
            host_read: stage!(rt, crate::live::STAGES, "host read"),
        }
    }

    /// Port for a restarted device, on a new executor, after the tasks of the old one have been dropped: no
    /// access of theirs reaches the client any more. Memory and interrupts stay as the client has set them
    /// up; registers are zero. The port of another device end than the first does not change registers.
    pub fn restart(self, rt: &Rt) -> VfioUserDevice {
        let state = self.dma.state;
        for id in state.mailbox.take_back() {
            state.forget(id);
        }
        if state.is_first {
            state.registers.clear();
        }
        state.vectors.borrow_mut().silence(false);
        VfioUserDevice::over(state, rt)
    }

    /// Handles the session's orders until the device is to stop. Runs as a task beside the device's own,
    /// after they have been started. Returns only on the first device end of a session.
    pub async fn attend(&self) -> Why {
        if self.dma.state.restarting.take() {
            self.answer(Ok(()), Vec::new());
        }
        loop {
            self.seen.set(self.dma.state.mailbox.news());
            while let Some(what) = self.dma.state.mailbox.for_device() {
                match what {
                    ToDevice::Leave => return Why::Left,
                    ToDevice::Reset => return self.reset(),
                    ToDevice::Config { bus_master, intx_enabled, reset } => {
                        self.dma.state.bus_master.set(bus_master);
                        self.dma.state.vectors.borrow_mut().enable_intx(intx_enabled);
                        if reset {
                            return self.reset();
                        }
                        self.answer(Ok(()), Vec::new());
                    }
                    other => self.perform(other),
                }
            }
            self.dma.state.settle();
            self.news().await;
        }
    }

    /// Waits for an order. Polls in every pass, because a timer would end the idle state of the executor.
    async fn news(&self) {
        until(&self.dma.rt, || (self.dma.state.mailbox.news() != self.seen.get()).then_some(()))
            .await;
    }

    fn perform(&self, what: ToDevice) {
        let state = &self.dma.state;
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
                        Ok(mapping) => (Ok(()), std::vec![mapping]),
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
        self.dma.state.restarting.set(true);
        Why::Reset
    }

    fn answer(&self, result: Result<(), u32>, unused: Vec<Mapping>) {
        self.dma.state.mailbox.give_session(ToSession::Answer { result, unused });
    }

    fn over_with(&self, id: AccessId, result: Option<Vec<u8>>) {
        let mut accesses = self.dma.state.accesses.borrow_mut();
        if let Some(under @ Waiting::Under) = accesses.get_mut(&id) {
            *under = Waiting::Over(result);
            drop(accesses);
            self.dma.changed.notify(&self.dma.rt);
        } else {
            drop(accesses);
            self.dma.state.forget(id);
        }
    }
}

impl DevicePort for VfioUserDevice {
    type Direct = Self;

    fn rt(&self) -> &Rt {
        &self.dma.rt
    }

    #[inline]
    fn load(&self, register: u32) -> u32 {
        self.dma.state.registers.load(register)
    }

    fn store(&self, register: u32, value: u32) {
        self.dma.state.registers.store(register, value);
        if let Some(silent) = self.dma.state.registers.silences(register) {
            self.dma.state.vectors.borrow_mut().silence(silent);
        }
    }

    async fn on_registers<T>(&self, check: impl FnMut() -> Option<T>) -> T {
        until(&self.dma.rt, check).await
    }

    /// No-op: a live check runs in every pass.
    fn check_again(&self) {}

    async fn read(&self, from: &[Segment], to: &mut [u8], carry: Carry) -> Result<(), DmaError> {
        if self.dma.validate(from, Access::Read)? {
            gather(from, to, carry, |at, part| {
                self.dma.reach(at, part.len(), Access::Read, |memory, at, range| {
                    memory.read(at, &mut part[range])
                })
            })?;
        } else {
            self.dma.read_by_messages(from, to).await?;
        }
        self.dma.rt.record(self.host_read);
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
        if !self.dma.validate(&[ring], Access::Read)? {
            self.dma.read_by_messages(&[ring], into).await?;
            return Ok(new_in_a_row(into, entry_bytes, is_new));
        }
        let look = || self.dma.look_for_entries(at, into, entry_bytes, &mut is_new);
        new_entries(&self.dma.rt, looks, look).await
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
            self.dma.rt.sleep_until(ready).await;
            self.dma.rt.record(self.media);
        }
        if self.write_at_once(to, what, how)? {
            return Ok(());
        }
        let mut sink = Landing::Messages(Vec::new());
        sink.land(to, what, how)?;
        if let Landing::Messages(parts) = sink {
            self.dma.write_by_messages(parts).await?;
        }
        self.dma.rt.record(self.transfer);
        Ok(())
    }

    #[inline]
    fn publish(&self, at: BusAddr, entry: &[u8], _relaxed: bool) -> Result<(), DmaError> {
        let segment = Segment { at, bytes: entry.len() as u32 };
        if self.dma.validate(&[segment], Access::Write)? {
            return self.dma.reach(at, entry.len(), Access::Write, |memory, at, range| {
                let flag = range.end == entry.len();
                memory.put(at, &entry[range], flag)
            });
        }
        // One message per entry, so it lands as a whole.
        let what = |id| ToSession::Write { id, at, data: entry.to_vec() };
        drop(self.dma.begin(Waiting::Posted, what));
        Ok(())
    }

    #[inline]
    fn interrupt(&self, vector: u16) {
        if self.dma.state.posted.get() > 0 {
            // Ordered behind the writes posted before it.
            self.dma.state.mailbox.give_session(ToSession::Raise(vector));
        } else {
            self.dma.state.vectors.borrow_mut().raise(vector);
        }
    }

    #[inline]
    async fn elapse(&self, _: Cost) {}

    fn cost(&self, _: &str) -> Cost {
        Cost::NONE
    }

    #[inline]
    async fn spend(&self, _: Cost) {}

    #[inline]
    fn direct(&self) -> Option<&Self> {
        Some(self)
    }
}

impl Direct for VfioUserDevice {
    fn copies(&self, from: &[Segment]) -> Result<bool, DmaError> {
        self.dma.validate(from, Access::Read)
    }

    fn copy(&self, from: &[Segment], offset: u32, to: &mut [u8]) -> Result<(), DmaError> {
        gather_from(from, offset, to, |at, part| {
            self.dma.reach(at, part.len(), Access::Read, |memory, at, range| {
                memory.read(at, &mut part[range])
            })
        })
    }

    fn write_at_once<P: Payload + ?Sized>(
        &self,
        to: &[Segment],
        what: &P,
        how: Posting,
    ) -> Result<bool, DmaError> {
        if !self.dma.validate(to, Access::Write)? {
            return Ok(false);
        }
        Landing::Mapped(&self.dma).land(to, what, how)?;
        self.dma.rt.record(self.transfer);
        Ok(true)
    }

    fn prefetch(&self, to: Segment) {
        let table = self.dma.state.table.borrow();
        if let Some(memory) = table.whole(to.at, to.bytes as usize, Access::Write) {
            memory.prefetch(to.at, to.bytes as usize);
        }
    }

    #[inline]
    fn watch(&self, from: Segment) {
        let table = self.dma.state.table.borrow();
        if let Some(memory) = table.whole(from.at, from.bytes as usize, Access::Read) {
            memory.prefetch_to_read(from.at, from.bytes as usize);
        }
    }
}
