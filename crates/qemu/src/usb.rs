//! USB controllers, as far as needed to assert their pins: boards have them on all four.

use bus::pci::{MemoryAccess, PortAccess};
use bus::qtest::Machine;
use host::pci::Function;
use runtime::Span;

use super::{Bench, QemuError};

/// PCI classes of a universal host controller (UHCI 1.1, 2.1) and an enhanced one (EHCI 1.0, 2.1).
pub(super) const UHCI: u32 = 0x0c_0300;
pub(super) const EHCI: u32 = 0x0c_0320;

/// Frames are 1 ms each: the interrupt arrives within this time.
const FRAMES: Span = Span::ms(16);
const LIST_BYTES: usize = 4096;

/// Makes a controller assert its pin, and deassert it.
pub(super) async fn raise(bench: &Bench<'_>, function: &Function) -> Result<(), QemuError> {
    let bus = &bench.bus;
    function.enable(bus).await?;
    function.allow_pin(bus, true).await;
    let raised = match function.header.class {
        UHCI => uhci(&bus.machine, function).await,
        _ => ehci(&bus.machine, function).await,
    };
    function.disable(bus).await;
    raised
}

/// Advances time by [`FRAMES`], and waits until a pending line change has arrived.
async fn frames(machine: &Machine) -> Result<(), QemuError> {
    Ok(machine.step(FRAMES).await?)
}

/// A frame list that points to one descriptor, which is done and requests an interrupt (UHCI 1.1, 3.2.2).
async fn uhci(machine: &Machine, function: &Function) -> Result<(), QemuError> {
    const WINDOW: u8 = 4;
    const ON_COMPLETION: u32 = 1 << 24;
    const TERMINATE: u32 = 1;
    let at = place(function, WINDOW)? as u16;
    let memory = machine.arena().buffer(2 * LIST_BYTES)?;
    let descriptor = LIST_BYTES;
    for (word, value) in [TERMINATE, ON_COMPLETION, 0, 0].into_iter().enumerate() {
        memory.store_u32(descriptor + 4 * word, value);
    }
    let pointer = low(memory.at().0 + descriptor as u64)?;
    (0..LIST_BYTES).step_by(4).for_each(|entry| memory.store_u32(entry, pointer));
    // Base of the list; interrupt on completion, from frame 0; run, with any previous status cleared.
    machine.port_write(at + 8, low(memory.at().0)?).await;
    machine.port_write(at + 4, 1 << 2).await;
    machine.port_write(at, 1).await;
    frames(machine).await?;
    // Stop, and clear all status bits.
    machine.port_write(at, 0x3f << 16).await;
    machine.port_write(at + 4, 0).await;
    frames(machine).await
}

/// An empty list near its end: its rollover raises an interrupt (EHCI 1.0, 2.3.2).
async fn ehci(machine: &Machine, function: &Function) -> Result<(), QemuError> {
    const WINDOW: u8 = 0;
    const ROLLOVER: u32 = 1 << 3;
    let base = place(function, WINDOW)?;
    // The first byte holds the length of the capability registers, which the operational registers follow.
    let at = base + u64::from(machine.memory_read(base).await & 0xff);
    let memory = machine.arena().buffer(LIST_BYTES)?;
    (0..LIST_BYTES).step_by(4).for_each(|entry| memory.store_u32(entry, 1));
    let list = low(memory.at().0)?;
    for (register, value) in [(0x08, ROLLOVER), (0x0c, 0x1ff0), (0x14, list), (0, 1 | 1 << 4)] {
        machine.memory_write(at + register, value);
    }
    frames(machine).await?;
    for (register, value) in [(0, 0), (0x08, 0), (0x04, 0x3f)] {
        machine.memory_write(at + register, value);
    }
    frames(machine).await
}

fn place(function: &Function, window: u8) -> Result<u64, QemuError> {
    let placed = function.bar(window).and_then(|bar| bar.at);
    placed.ok_or(QemuError::NoPlace { bar: window })
}

/// These controllers have 32-bit addresses.
fn low(at: u64) -> Result<u32, QemuError> {
    u32::try_from(at).map_err(|_| QemuError::MemoryTooHigh { at })
}
