//! A device port through which a witness sees what the device does.

use std::convert::Infallible;
use std::rc::Rc;

use bus::{Carry, Cost, DevicePort, DmaError, Looks, Payload, Posting, Segment};
use runtime::{Rt, Time};
use wire::BusAddr;

/// Observer of bus accesses. It panics on a violation.
pub trait Watch: 'static {
    fn loaded(&self, register: u32, value: u32);
    /// A register is about to be written.
    fn stored(&self, register: u32, value: u32);
    /// A read of host memory begins.
    fn reads(&self) {}
    /// It has ended, or was given up.
    fn has_read(&self) {}
    fn learn(&self, _found: &[u8]) {}
    /// A poll of a ring has begun.
    fn polls(&self) {}
    /// New entries were found there.
    fn fetched(&self, _at: BusAddr, _entries: &[u8]) {}
    /// These bytes are to be written.
    fn validate(&self, at: BusAddr, bytes: u32);
    fn posts(&self, entry: &[u8]);
    fn interrupts(&self);
    /// A transfer went through, or was refused by the bus.
    fn ends(&self, went_through: bool);
}

pub struct Watched<P, W> {
    pub port: P,
    pub witness: Rc<W>,
}

impl<P: Clone, W> Clone for Watched<P, W> {
    fn clone(&self) -> Watched<P, W> {
        Watched { port: self.port.clone(), witness: self.witness.clone() }
    }
}

impl<P, W: Watch> Watched<P, W> {
    fn count<T>(&self, done: Result<T, DmaError>) -> Result<T, DmaError> {
        self.witness.ends(done.is_ok());
        done
    }
}

/// A read of host memory that has begun.
struct Reading<'a, W: Watch>(&'a W);

impl<W: Watch> Drop for Reading<'_, W> {
    fn drop(&mut self) {
        self.0.has_read();
    }
}

impl<P: DevicePort, W: Watch> DevicePort for Watched<P, W> {
    type Direct = Infallible;

    fn rt(&self) -> &Rt {
        self.port.rt()
    }

    fn load(&self, register: u32) -> u32 {
        let value = self.port.load(register);
        self.witness.loaded(register, value);
        value
    }

    fn store(&self, register: u32, value: u32) {
        self.witness.stored(register, value);
        self.port.store(register, value);
    }

    async fn on_registers<T>(&self, check: impl FnMut() -> Option<T>) -> T {
        self.port.on_registers(check).await
    }

    fn check_again(&self) {
        self.port.check_again();
    }

    async fn read(&self, from: &[Segment], to: &mut [u8], carry: Carry) -> Result<(), DmaError> {
        self.witness.reads();
        let reading = Reading(&*self.witness);
        let done = self.count(self.port.read(from, to, carry).await);
        drop(reading);
        if done.is_ok() {
            self.witness.learn(to);
        }
        done
    }

    async fn fetch(
        &self,
        at: BusAddr,
        into: &mut [u8],
        entry_bytes: usize,
        looks: Looks,
        is_new: impl FnMut(u32, u32) -> bool,
    ) -> Result<u32, DmaError> {
        self.witness.polls();
        let found = self.port.fetch(at, into, entry_bytes, looks, is_new).await;
        if let Ok(found) = found {
            self.witness.fetched(at, &into[..found as usize * entry_bytes]);
        }
        found
    }

    fn fence(&self) {
        self.port.fence();
    }

    async fn write<Q: Payload + ?Sized>(
        &self,
        to: &[Segment],
        what: &Q,
        how: Posting,
        ready: Time,
    ) -> Result<(), DmaError> {
        to.iter().for_each(|segment| self.witness.validate(segment.at, segment.bytes));
        self.count(self.port.write(to, what, how, ready).await)
    }

    fn publish(&self, at: BusAddr, entry: &[u8], relaxed: bool) -> Result<(), DmaError> {
        self.witness.validate(at, entry.len() as u32);
        self.witness.posts(entry);
        self.count(self.port.publish(at, entry, relaxed))
    }

    fn interrupt(&self, vector: u16) {
        self.witness.interrupts();
        self.port.interrupt(vector);
    }

    fn cost(&self, name: &str) -> Cost {
        self.port.cost(name)
    }

    async fn spend(&self, cost: Cost) {
        self.port.spend(cost).await;
    }

    async fn elapse(&self, cost: Cost) {
        self.port.elapse(cost).await;
    }
}
