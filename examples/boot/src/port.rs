//! The driver's end of a real bus: registers as they are mapped, memory as it is, interrupts as this core's
//! controller has counted them.

use alloc::rc::Rc;
use core::cell::Cell;
use core::sync::atomic::{Ordering, fence};

use bus::{Arena, Arrival, Cost, HostPort, until};
use runtime::{Rt, Stage, Time};
use wire::BusAddr;

use crate::apic::Listened;
use crate::cpu::Registers;
use crate::interrupts;

/// A function's registers, and memory that it may reach, from one core. Cheap to clone.
#[derive(Clone)]
pub struct Port(Rc<Inner>);

struct Inner {
    rt: Rt,
    arena: Arena,
    registers: Registers,
    /// The message that is the function's vector 0; the others follow.
    first_message: usize,
    /// The line of its pin, while it is listened to, and how often that had come before.
    line: Cell<Option<(Listened, u32)>>,
    /// Interrupts by the pin so far.
    by_pin: Cell<u32>,
    poll: Stage,
    interrupt: Stage,
}

impl Port {
    /// Of a function with these registers, and memory of this arena.
    pub fn new(rt: &Rt, arena: &Arena, registers: Registers, first_message: usize) -> Port {
        Port(Rc::new(Inner {
            rt: rt.clone(),
            arena: arena.clone(),
            registers,
            first_message,
            line: Cell::new(None),
            by_pin: Cell::new(0),
            poll: rt.stage("poll"),
            interrupt: rt.stage("interrupt"),
        }))
    }

    /// This line is the function's pin, and counts as its vector 0; none: the pin is not listened to.
    pub fn listen(&self, line: Option<Listened>) {
        if let Some((before, _)) = self.0.line.take() {
            before.close();
        }
        self.0.line.set(line.map(|line| (line, interrupts::lines())));
        if let Some(line) = line {
            line.open();
        }
    }

    /// How often the pin has interrupted.
    pub fn by_pin(&self) -> u32 {
        self.0.by_pin.get()
    }

    /// Interrupts of this vector so far.
    fn count(&self, vector: u16) -> u32 {
        let own = &*self.0;
        if let (0, Some((line, seen))) = (vector, own.line.get()) {
            let now = interrupts::lines();
            if now != seen {
                own.by_pin.set(own.by_pin.get().wrapping_add(1));
                own.line.set(Some((line, now)));
            }
        }
        let by_pin = if vector == 0 { own.by_pin.get() } else { 0 };
        interrupts::messages(own.first_message + usize::from(vector)).wrapping_add(by_pin)
    }

    /// What it told of has been looked at: the line may come again, and does at once if its level has stayed.
    fn again(&self, vector: u16) {
        if let (0, Some((line, _))) = (vector, self.0.line.get()) {
            line.open();
        }
    }
}

impl HostPort for Port {
    fn rt(&self) -> &Rt {
        &self.0.rt
    }

    fn arena(&self) -> &Arena {
        &self.0.arena
    }

    #[inline]
    fn write32(&self, register: u32, value: u32) {
        self.0.registers.write(register.into(), value);
    }

    async fn read32(&self, register: u32) -> u32 {
        self.0.registers.read(register.into())
    }

    /// Nobody tells of it here: the driver's watchdog sees registers that read all ones.
    fn is_gone(&self) -> bool {
        false
    }

    async fn on_memory<T>(&self, _: BusAddr, _: u32, check: impl FnMut() -> Option<T>) -> T {
        let found = until(self.rt(), check).await;
        self.rt().record(self.0.poll);
        found
    }

    async fn on_interrupt(&self, vector: u16, seen: u32) -> u32 {
        if self.count(vector) == seen {
            self.again(vector);
        }
        let changed = || Some(self.count(vector)).filter(|count| *count != seen);
        let found = until(self.rt(), changed).await;
        self.rt().record(self.0.interrupt);
        found
    }

    /// x86 shows stores in the order in which a device has made them.
    fn arrival(&self) -> Arrival {
        Arrival::InOrder
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn noticed(&self) -> Time {
        self.rt().now()
    }

    fn cost(&self, _: &str) -> Cost {
        Cost::NONE
    }

    #[inline]
    async fn spend(&self, _: Cost) {}

    #[inline]
    async fn spend_times(&self, _: Cost, _: u32) {}
}
