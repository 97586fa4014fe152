//! Host port: doorbells are mapped words of the server's, other registers are accessed by messages.

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

/// The function behind a connection, which it keeps open.
struct Served {
    rt: Rt,
    connection: Arc<Connection>,
    /// Index of the area of the last access.
    last: Cell<usize>,
}

/// A message that waits for a reply. Dropping it discards the reply.
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
    /// Host port for the thread of `rt`. The connection is closed with its last clone.
    pub fn host(self, rt: &Rt) -> LiveHost {
        Arc::new(self).host_of(rt, 0, 1)
    }

    /// Host port for thread `part`, counted from 0, of `parts` host threads: each allocates from an equal
    /// part of the memory. All of them share the registers that are accessed by messages.
    ///
    /// # Panics
    /// If `part >= parts`.
    pub fn host_of(self: &Arc<Connection>, rt: &Rt, part: usize, parts: usize) -> LiveHost {
        let arena = Arena::part(self.memory.clone(), part, parts);
        let connection = self.clone();
        LiveHost::before(rt, arena, Served { rt: rt.clone(), connection, last: Cell::default() })
    }
}

impl Window {
    /// The area that holds this word; the search begins at `last`.
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
            // A timeout counts as the loss of the server.
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
            // Messages arrive in order, so the reply is not awaited. A failed send marks the server as
            // gone.
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

    /// Also true if the file of a mapped area has failed: doorbells written there are lost.
    fn is_gone(&self) -> bool {
        let lost = |area: &Memory| area.is_lost();
        self.connection.link.is_gone() || self.connection.window.areas.iter().any(lost)
    }

    fn interrupts(&self, vector: u16) -> u32 {
        let vector = usize::from(vector % limits::VECTORS);
        self.connection.link.interrupts[vector].load(Ordering::Acquire)
    }
}
