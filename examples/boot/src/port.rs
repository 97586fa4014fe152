//! Host port of a real bus: memory-mapped registers, identity-mapped memory, and the interrupts counted by
//! this core's handlers.

use alloc::rc::Rc;
use core::cell::Cell;
use core::sync::atomic::{Ordering, fence};

use bus::{Arena, Arrival, Cost, HostPort, until};
use runtime::{Rt, Stage, Time, stage};
use wire::BusAddr;

use crate::apic::Listened;
use crate::cpu::Registers;
use crate::interrupts;

/// Stages that the port records.
const STAGES: &[&str] = &["poll", "interrupt"];

/// Access to a function's registers and DMA memory from one core. Cheap to clone.
#[derive(Clone)]
pub struct Port(Rc<Inner>);

struct Inner {
    rt: Rt,
    arena: Arena,
    registers: Registers,
    /// Message of the function's vector 0; the others follow.
    first_message: usize,
    /// INTx line while it is in use, and its interrupt count when last checked.
    line: Cell<Option<(Listened, u32)>>,
    /// Number of interrupts by INTx.
    by_pin: Cell<u32>,
    poll: Stage,
    interrupt: Stage,
}

impl Port {
    /// Port of a function with these registers, and memory from this arena.
    pub fn new(rt: &Rt, arena: &Arena, registers: Registers, first_message: usize) -> Port {
        Port(Rc::new(Inner {
            rt: rt.clone(),
            arena: arena.clone(),
            registers,
            first_message,
            line: Cell::new(None),
            by_pin: Cell::new(0),
            poll: stage!(rt, STAGES, "poll"),
            interrupt: stage!(rt, STAGES, "interrupt"),
        }))
    }

    /// Uses this line as the function's INTx, which counts as vector 0; `None` to stop.
    pub fn listen(&self, line: Option<Listened>) {
        if let Some((before, _)) = self.0.line.take() {
            before.close();
        }
        self.0.line.set(line.map(|line| (line, interrupts::lines())));
        if let Some(line) = line {
            line.open();
        }
    }

    /// Returns the number of interrupts by INTx.
    pub fn by_pin(&self) -> u32 {
        self.0.by_pin.get()
    }

    /// Number of interrupts of this vector.
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

    /// Unmasks the line after its event was processed. It interrupts again at once if it is still asserted.
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

    /// Always false: the driver's watchdog detects a removed device by registers that read all ones.
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

    /// x86 makes a device's writes visible in the order in which the device issues them.
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
