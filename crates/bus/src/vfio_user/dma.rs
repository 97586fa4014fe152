//! DMA: a copy for mapped memory, messages for other memory, both if a transfer spans the two.

use alloc::rc::Rc;
use std::vec::Vec;

use runtime::{Rt, Signal};
use wire::BusAddr;

use super::mailbox::{AccessId, ToSession};
use super::state::{State, Waiting};
use super::table::Access;
use crate::pieces::{Sink, scatter, scatter_flagged};
use crate::{DmaError, Flags, Memory, OutOfRange, Payload, Posting, Segment};

/// Access of the device's tasks to the client's memory. Cheap to clone.
#[derive(Clone)]
pub(super) struct Dma {
    pub rt: Rt,
    pub state: Rc<State>,
    /// Signalled when an access by messages completes.
    pub changed: Rc<Signal>,
}

/// An access by messages that a task waits for. Dropping it abandons the access.
pub(super) struct Ticket<'a> {
    state: &'a State,
    id: AccessId,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut accesses = self.state.accesses.borrow_mut();
        match accesses.get_mut(&self.id) {
            Some(under @ Waiting::Under) => *under = Waiting::Abandoned,
            Some(Waiting::Over(_)) => {
                accesses.remove(&self.id);
            }
            _ => {}
        }
    }
}

impl Dma {
    /// Starts an access by messages.
    pub(super) fn begin(
        &self,
        how: Waiting,
        what: impl FnOnce(AccessId) -> ToSession,
    ) -> Ticket<'_> {
        let id = self.state.next_access.get();
        self.state.next_access.set(id + 1);
        if matches!(how, Waiting::Posted) {
            self.state.posted.set(self.state.posted.get() + 1);
        }
        self.state.accesses.borrow_mut().insert(id, how);
        self.state.mailbox.give_session(what(id));
        Ticket { state: &self.state, id }
    }

    async fn outcome(&self, ticket: Ticket<'_>, at: BusAddr) -> Result<Vec<u8>, DmaError> {
        let result = loop {
            let version = self.changed.version();
            if let Some(result) = self.state.result_of(ticket.id) {
                break result;
            }
            self.changed.changed(&self.rt, version).await;
        };
        result.ok_or(DmaError::Address(OutOfRange { at, bytes: 0 }))
    }

    /// Returns true if all of these bytes are mapped.
    ///
    /// # Errors
    /// If some bytes are not the client's or do not allow this access, or bus mastering is disabled.
    pub(super) fn validate(&self, segments: &[Segment], access: Access) -> Result<bool, DmaError> {
        let table = self.state.table.borrow();
        let mut mapped = true;
        for segment in segments {
            let (at, bytes) = (segment.at, segment.bytes as usize);
            if !self.state.bus_master.get() {
                return Err(DmaError::Address(OutOfRange { at, bytes }));
            }
            if table.whole(at, bytes, access).is_none() {
                table.pieces::<DmaError>(at, bytes, access, |_, _, memory| {
                    mapped &= memory.is_some();
                    Ok(())
                })?;
            }
        }
        Ok(mapped)
    }

    /// Copies between mapped memory and private memory, across the boundaries of mappings.
    #[inline]
    pub(super) fn reach(
        &self,
        at: BusAddr,
        bytes: usize,
        access: Access,
        mut copy: impl FnMut(&Memory, BusAddr, core::ops::Range<usize>) -> Result<(), OutOfRange>,
    ) -> Result<(), DmaError> {
        let table = self.state.table.borrow();
        if let Some(memory) = table.whole(at, bytes, access) {
            copy(memory, at, 0..bytes)?;
            return self.still_there(memory, at, bytes);
        }
        table.pieces(at, bytes, access, |here, part, memory| {
            let memory = memory.ok_or(OutOfRange { at: here, bytes: part })?;
            let from = (here.0 - at.0) as usize;
            copy(memory, here, from..from + part)?;
            self.still_there(memory, here, part)
        })
    }

    /// Fails if the file behind the memory was truncated, after the copy: its bytes are then invalid.
    #[inline]
    fn still_there(&self, memory: &Memory, at: BusAddr, bytes: usize) -> Result<(), DmaError> {
        if memory.is_lost() {
            self.state.mailbox.give_session(ToSession::Lost(at));
            return Err(DmaError::Address(OutOfRange { at, bytes }));
        }
        Ok(())
    }

    /// Reads memory of which at least a part is accessed by messages.
    pub(super) async fn read_by_messages(
        &self,
        from: &[Segment],
        to: &mut [u8],
    ) -> Result<(), DmaError> {
        let mut offset = 0;
        for segment in from {
            let bytes = (segment.bytes as usize).min(to.len() - offset);
            for (at, bytes, mapped) in self.parts(segment.at, bytes, Access::Read)? {
                let part = &mut to[offset..offset + bytes];
                if mapped {
                    self.reach(at, bytes, Access::Read, |memory, at, range| {
                        memory.read(at, &mut part[range])
                    })?;
                } else {
                    let what = |id| ToSession::Read { id, at, bytes };
                    let data = self.outcome(self.begin(Waiting::Under, what), at).await?;
                    part.copy_from_slice(&data);
                }
                offset += bytes;
            }
        }
        Ok(())
    }

    /// Writes memory of which at least a part is accessed by messages: each part has landed before the next
    /// begins.
    pub(super) async fn write_by_messages(
        &self,
        parts: Vec<(BusAddr, Vec<u8>)>,
    ) -> Result<(), DmaError> {
        for (at, data) in parts {
            let mut offset = 0;
            for (at, bytes, mapped) in self.parts(at, data.len(), Access::Write)? {
                let part = &data[offset..offset + bytes];
                if mapped {
                    self.reach(at, bytes, Access::Write, |memory, at, range| {
                        memory.write(at, &part[range])
                    })?;
                } else {
                    let what = |id| ToSession::Write { id, at, data: part.to_vec() };
                    self.outcome(self.begin(Waiting::Under, what), at).await?;
                }
                offset += bytes;
            }
        }
        Ok(())
    }

    /// Polls a ring once; see [`DevicePort::fetch`](crate::DevicePort::fetch).
    pub(super) fn look_for_entries(
        &self,
        at: BusAddr,
        into: &mut [u8],
        entry_bytes: usize,
        is_new: &mut impl FnMut(u32, u32) -> bool,
    ) -> Result<u32, DmaError> {
        let mut found = 0;
        for entry in into.chunks_exact_mut(entry_bytes) {
            let at = BusAddr(at.0 + u64::from(found) * entry_bytes as u64);
            let (flag_at, mut word) = (BusAddr(at.0 + entry_bytes as u64 - 4), 0);
            self.reach(flag_at, 4, Access::Read, |memory, at, _| {
                word = memory.load_u32(at)?;
                Ok(())
            })?;
            if !is_new(found, word) {
                break;
            }
            self.reach(at, entry_bytes, Access::Read, |memory, at, range| {
                memory.read(at, &mut entry[range])
            })?;
            // Keep the word that `is_new` accepted: memory may have changed since.
            entry[entry_bytes - 4..].copy_from_slice(&word.to_le_bytes());
            found += 1;
        }
        Ok(found)
    }

    /// Splits a range into parts that are completely mapped or completely unmapped, and fit a message.
    fn parts(
        &self,
        at: BusAddr,
        bytes: usize,
        access: Access,
    ) -> Result<Vec<(BusAddr, usize, bool)>, DmaError> {
        let mut parts = Vec::new();
        let table = self.state.table.borrow();
        table.pieces::<DmaError>(at, bytes, access, |at, bytes, memory| {
            let most = self.state.mailbox.transfer_bytes();
            for done in (0..bytes).step_by(most) {
                let part = most.min(bytes - done);
                parts.push((BusAddr(at.0 + done as u64), part, memory.is_some()));
            }
            Ok(())
        })?;
        Ok(parts)
    }
}

/// Number of consecutive new entries, by the last word of each.
pub(super) fn new_in_a_row(
    entries: &[u8],
    entry_bytes: usize,
    mut is_new: impl FnMut(u32, u32) -> bool,
) -> u32 {
    let last =
        |entry: &[u8]| u32::from_le_bytes(entry[entry_bytes - 4..].try_into().expect("four bytes"));
    let words = entries.chunks_exact(entry_bytes).map(last);
    (0..).zip(words).take_while(|(number, word)| is_new(*number, *word)).count() as u32
}

/// Destination of a write: mapped memory, or messages sent afterwards.
pub(super) enum Landing<'a> {
    Mapped(&'a Dma),
    Messages(Vec<(BusAddr, Vec<u8>)>),
}

impl Landing<'_> {
    /// Stores a payload, or makes messages of it.
    pub fn land<P: Payload + ?Sized>(
        &mut self,
        to: &[Segment],
        what: &P,
        how: Posting,
    ) -> Result<(), DmaError> {
        match how.flags {
            Flags::None => scatter(to, what, |at, run, _| self.put(at, run)),
            _ => scatter_flagged(to, what, how, self),
        }
    }
}

impl Sink for Landing<'_> {
    fn put(&mut self, at: BusAddr, run: &[u8]) -> Result<(), DmaError> {
        match self {
            Landing::Mapped(port) => {
                port.reach(at, run.len(), Access::Write, |memory, at, range| {
                    memory.write(at, &run[range])
                })
            }
            Landing::Messages(parts) => {
                parts.push((at, run.to_vec()));
                Ok(())
            }
        }
    }

    fn flag(&mut self, at: BusAddr, word: u32) -> Result<(), DmaError> {
        let bytes = word.to_le_bytes();
        match self {
            Landing::Mapped(port) if at.0.is_multiple_of(4) => {
                port.reach(at, 4, Access::Write, |memory, at, _| memory.store_u32(at, word))
            }
            // A message of its own; or an unaligned word, which cannot be loaded with acquire.
            _ => self.put(at, &bytes),
        }
    }

    fn wide_flag(&mut self, at: BusAddr, word: u64) -> Result<(), DmaError> {
        match self {
            Landing::Mapped(port) if at.0.is_multiple_of(8) => {
                port.reach(at, 8, Access::Write, |memory, at, _| memory.store_u64(at, word))
            }
            _ => self.put(at, &word.to_le_bytes()),
        }
    }
}
