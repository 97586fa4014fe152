//! Interrupt pin of a function (INTx), in virtual time.
//!
//! ```text
//!   device's level ─┬─► Assert, Deassert ──link──► line ──► interrupt controller ──► handlers
//!   mask, bit 0 ────┘   one message per edge       level     one interrupt at a time, until its end
//! ```
//!
//! The pin is a level: the device drives it while a completion queue has unread entries. PCI Express carries
//! its edges as messages (PCIe base 2.0, 2.2.8.1), in order behind the entries. The interrupt controller
//! interrupts core 0 while the line is asserted, but not again before the handlers have ended. So an entry
//! that arrives meanwhile interrupts once more, without another edge, and handlers that end before the
//! Deassert message has arrived are called again. A driver avoids that by a read after its doorbell: the
//! answer comes behind the message.
//!
//! All queues have the one vector. An interrupt is paid once, then every handler looks at its queue, in no
//! time: they end together.
//!
//! A message is a header of four words, as long as an MSI: a header of three words, and one of data.

use alloc::rc::{Rc, Weak};
use core::cell::Cell;

use runtime::{Time, Turn, Urgency};

use super::host::INTERRUPTS_AT;
use super::landing::Item;
use super::{Bus, SimBus};
use crate::link::{Posted, Way};

/// Vector whose count has the pin's interrupts.
const VECTOR: usize = 0;

/// State of the interrupt controller's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    /// It interrupts once the line is asserted.
    Open,
    /// The core is on its way to the handlers.
    Entering,
    /// Until the first handler has looked at its queue.
    Running,
    /// A handler reads a register before the end.
    ReadingBack,
}

pub(super) struct Pin {
    reads_back: bool,
    /// Level that the device drives, before the mask.
    driven: Cell<bool>,
    /// Level of the last message.
    sent: Cell<bool>,
    /// Level at the interrupt controller.
    line: Cell<bool>,
    service: Cell<Service>,
    bus: Weak<Bus>,
    /// Arrival of the last interrupt, and the core's time for it.
    arrived: Cell<Time>,
    turn: Cell<Turn>,
}

impl SimBus {
    /// Makes the device interrupt by its pin. Handlers read a register before they end if `reads_back`.
    ///
    /// # Panics
    /// If it does already.
    pub fn use_pin(&self, reads_back: bool) {
        let pin = Pin {
            reads_back,
            driven: Cell::new(false),
            sent: Cell::new(false),
            line: Cell::new(false),
            service: Cell::new(Service::Open),
            bus: Rc::downgrade(&self.0),
            arrived: Cell::new(Time::ZERO),
            turn: Cell::new(Turn { begin: Time::ZERO, end: Time::ZERO }),
        };
        assert!(self.0.pin.set(pin).is_ok(), "the device has its pin");
    }
}

/// Brings core 0 to the handlers. A task for each interrupt: one that lives on would own the bus, and the
/// executor with it.
async fn enter(bus: Rc<Bus>) {
    let Some(pin) = bus.pin.get() else { return };
    let turn = bus.host.cores[0].spend(&bus.rt, bus.spec.interrupt, Urgency::Interrupt).await;
    pin.turn.set(turn);
    pin.service.set(Service::Running);
    let count = &bus.interrupts[VECTOR];
    count.set(count.get().wrapping_add(1));
    bus.rt.log("bus", "interrupt", 0, 0);
    bus.interrupted.notify(&bus.rt);
}

/// Ends the interrupt when dropped, as the future of a handler may be.
pub(super) struct Ending<'a>(&'a Bus);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if let Some(pin) = self.0.pin.get() {
            pin.service.set(Service::Open);
            self.0.interrupt_by_pin(pin);
        }
    }
}

impl Bus {
    /// Sets the level that the device drives.
    pub(super) fn drive_pin(&self, level: bool) {
        if let Some(pin) = self.pin.get() {
            pin.driven.set(level);
            self.send_edge();
        }
    }

    /// Sends a message if the level behind the mask has changed.
    pub(super) fn send_edge(&self) {
        let Some(pin) = self.pin.get() else { return };
        let word = |masks: crate::Masks| self.registers.borrow()[masks.set as usize / 4];
        let is_masked = self.spec.masks.is_some_and(|masks| word(masks) & 1 != 0);
        let level = pin.driven.get() && !is_masked;
        if pin.sent.replace(level) != level {
            let (address, ready) = (INTERRUPTS_AT, Time::ZERO);
            let posted = Posted { address, bytes: 4, relaxed: false, ready };
            let flight = self.links[0].post(Way::Up, self.rt.now(), posted, |_, _, _| {});
            self.land(flight.landed, Item::Pin { level });
        }
    }

    /// Takes in a message, and interrupts if it asserts the line.
    pub(super) fn set_line(&self, level: bool) {
        if let Some(pin) = self.pin.get() {
            self.rt.log("bus", if level { "pin asserted" } else { "pin deasserted" }, 0, 0);
            pin.line.set(level);
            self.interrupt_by_pin(pin);
        }
    }

    /// Interrupts if the line is asserted and no handler runs.
    fn interrupt_by_pin(&self, pin: &Pin) {
        if pin.line.get() && pin.service.get() == Service::Open {
            pin.service.set(Service::Entering);
            pin.arrived.set(self.rt.now());
            if let Some(bus) = pin.bus.upgrade() {
                self.rt.spawn(enter(bus));
            }
        }
    }

    /// A handler has looked at its queue: the first to come back ends the interrupt, by the returned value.
    pub(super) fn ending(&self) -> Option<(Ending<'_>, bool)> {
        let pin = self.pin.get().filter(|pin| pin.service.get() == Service::Running)?;
        pin.service.set(Service::ReadingBack);
        Some((Ending(self), pin.reads_back))
    }

    /// Arrival of the last interrupt, and the core's time for it; `None` without a pin.
    pub(super) fn last_by_pin(&self) -> Option<(Time, Turn)> {
        self.pin.get().map(|pin| (pin.arrived.get(), pin.turn.get()))
    }
}
