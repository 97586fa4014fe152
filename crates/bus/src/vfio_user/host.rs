//! The driver's end: doorbells are words of the server's, other registers are messages.

use alloc::boxed::Box;
use core::cell::Cell;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::Ordering;
use std::sync::Arc;

use runtime::Rt;
use wire::BusAddr;
use wire::vfio_user::{RegionAccess, command, region};
use zerocopy::IntoBytes;

use super::client::{Connection, Window};
use super::limits;
use crate::live::{Function, LiveHost, until};
use crate::{Arena, Memory};

/// The function behind a connection, which lives as long as this.
struct Served {
    rt: Rt,
    connection: Arc<Connection>,
    /// Where the last mapped register was found.
    last: Cell<usize>,
}

/// A message whose reply is awaited; if it is dropped, nobody waits.
struct Awaited<'a> {
    connection: &'a Connection,
    id: u16,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.connection.link.forget(self.id);
    }
}

impl Connection {
    /// The driver's end, for the thread of `rt`. The connection lives as long as its last clone.
    pub fn host(self, rt: &Rt) -> LiveHost {
        Arc::new(self).host_of(rt, 0, 1)
    }

    /// The driver's end for one of so many threads of a host, numbered from 0: each hands out a part of the
    /// memory, all as long as each other. Registers that are messages are anybody's.
    ///
    /// # Panics
    /// If there is no such part.
    pub fn host_of(self: &Arc<Connection>, rt: &Rt, part: usize, parts: usize) -> LiveHost {
        let arena = Arena::part(self.memory.clone(), part, parts);
        let connection = self.clone();
        LiveHost::before(rt, arena, Served { rt: rt.clone(), connection, last: Cell::default() })
    }
}

impl Window {
    /// The area that holds this word, beginning the search with `last`.
    #[inline]
    fn area(&self, register: u32, last: &Cell<usize>) -> Option<&Memory> {
        let at = BusAddr(u64::from(register));
        if let Some(area) = self.areas.get(last.get()).filter(|area| area.holds(at, 4)) {
            return Some(area);
        }
        let place = self.areas.iter().position(|area| area.holds(at, 4))?;
        last.set(place);
        Some(&self.areas[place])
    }

    fn holds(&self, register: u32) -> bool {
        u64::from(register) + 4 <= self.bytes
    }
}

fn access(register: u32) -> RegionAccess {
    RegionAccess {
        offset: u64::from(register).into(),
        region: region::BAR0.into(),
        count: 4.into(),
    }
}

impl Served {
    async fn read_by_message(&self, register: u32) -> Option<u32> {
        let link = &self.connection.link;
        let sent = link.send(command::REGION_READ, &[access(register).as_bytes()], &[], false);
        let awaited = Awaited { connection: &self.connection, id: sent.ok()? };
        let (begun, mut seen) = (self.rt.now(), None);
        let reply = until(&self.rt, || {
            let replies = link.replies.load(Ordering::Acquire);
            if seen.replace(replies) != Some(replies)
                && let Some(reply) = link.reply(awaited.id)
            {
                return Some(Some(reply));
            }
            let given_up = link.is_gone() || self.rt.now().since(begun) > limits::ANSWER;
            given_up.then_some(None)
        });
        let Some(reply) = reply.await else {
            // A server that does not answer is as good as dead.
            link.give_up();
            return None;
        };
        let data = reply.payload.get(size_of::<RegionAccess>()..)?;
        let value = u32::from_le_bytes(data.try_into().ok()?);
        reply.header.failed().is_none().then_some(value)
    }
}

impl Function for Served {
    #[inline]
    fn write32(&self, register: u32, value: u32) {
        if let Some(area) = self.connection.window.area(register, &self.last) {
            let _ = area.store_u32(BusAddr(u64::from(register)), value);
        } else if self.connection.window.holds(register) && !self.is_gone() {
            // Messages arrive in their order: nobody has to wait for this one's reply. One that can't be
            // sent marks the server as gone.
            let (access, value) = (access(register), value.to_le_bytes());
            let parts = [access.as_bytes(), &value];
            let _ = self.connection.link.send(command::REGION_WRITE, &parts, &[], true);
        }
    }

    fn read32(&self, register: u32) -> Pin<Box<dyn Future<Output = u32> + '_>> {
        Box::pin(async move {
            if !self.connection.window.holds(register) {
                return u32::MAX;
            }
            match self.connection.window.area(register, &self.last) {
                Some(area) => area.load_u32(BusAddr(u64::from(register))).unwrap_or(u32::MAX),
                None => self.read_by_message(register).await.unwrap_or(u32::MAX),
            }
        })
    }

    /// Gone is also a server whose file of registers has failed: what is rung there goes nowhere.
    fn is_gone(&self) -> bool {
        let lost = |area: &Memory| area.is_lost();
        self.connection.link.is_gone() || self.connection.window.areas.iter().any(lost)
    }

    fn interrupts(&self, vector: u16) -> u32 {
        let vector = usize::from(vector % limits::VECTORS);
        self.connection.link.interrupts[vector].load(Ordering::Acquire)
    }
}
