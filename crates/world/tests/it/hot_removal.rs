//! Hot removal of a simulated PCI device under I/O: the driver detects it, ends commands in flight with
//! `Kind::Gone`, and rejects new ones. The device is found by enumeration.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::pci::{ConfigAccess, Topology};
use bus::sim::SimBus;
use host::{BlockDevice, Kind};
use plan::Plan;
use runtime::{Log, Rt, Span, Time};
use wire::Lba;
use wire::pci::{Bdf, class, offset};
use world::in_virtual_time;
use world::interfaces::NVME;

const DEPTH: u64 = 32;
const AFTER: Span = Span::us(300);

fn plan(completion: &str) -> Plan {
    let completion = format!("\"{completion}\"");
    Plan::open(
        "gen4",
        &[("host.completion", completion.trim_matches('"')), ("host.timeout", "20ms")],
    )
    .expect("a plan")
}

/// Results of the operations of a run.
struct Seen {
    good: u64,
    kinds: Vec<Kind>,
    texts: Vec<String>,
    /// Time from the event to the end of the last operation.
    took: Span,
}

/// Runs `happens` during reads with [`DEPTH`] commands in flight.
fn under_reads(completion: &str, happens: impl Fn(&SimBus) + 'static) -> Seen {
    let plan = plan(completion);
    in_virtual_time(NVME, &plan, Log::Off, 1, async |rt: &Rt, bus: &SimBus, driver| {
        let disk = driver.disk(0);
        let (good, left) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(DEPTH)));
        let errors = Rc::new(RefCell::new(Vec::new()));
        for reader in 0..DEPTH {
            let (disk, good, left, errors) =
                (disk.clone(), good.clone(), left.clone(), errors.clone());
            rt.spawn(async move {
                let mut buffer = disk.buffer(4096).expect("memory");
                loop {
                    let (back, done) = disk.read(Lba(8 * reader), buffer).await;
                    buffer = back;
                    match done {
                        Ok(()) => good.set(good.get() + 1),
                        Err(error) => {
                            errors.borrow_mut().push(error);
                            left.set(left.get() - 1);
                            return;
                        }
                    }
                }
            });
        }
        rt.sleep(AFTER).await;
        let (before, at) = (good.get(), rt.now());
        happens(bus);
        while left.get() > 0 {
            rt.sleep(Span::us(100)).await;
            assert!(rt.now().since(at) < Span::s(10), "{} reads hang", left.get());
        }
        let took = rt.now().since(at);
        assert!(before > 0);
        // A later command fails at once.
        let since: Time = rt.now();
        let (_, late) = disk.read(Lba(0), disk.buffer(4096).expect("memory")).await;
        assert!(rt.now().since(since) < Span::us(10));
        errors.borrow_mut().push(late.unwrap_err());
        let errors = errors.borrow();
        Seen {
            good: good.get(),
            kinds: errors.iter().map(|error| error.kind).collect(),
            texts: errors.iter().map(ToString::to_string).collect(),
            took,
        }
    })
    .expect("a world")
}

fn is_gone(seen: &Seen) {
    assert!(seen.kinds.iter().all(|kind| *kind == Kind::Gone), "{:?}", seen.kinds);
    assert_eq!(seen.kinds.len() as u64, DEPTH + 1);
    assert_eq!(seen.texts.last().unwrap(), "LBA 0: the device is gone");
    // The supervisor checks eight times within a timeout of 20 ms, and detects the removal at its first
    // check.
    assert!(seen.took <= Span::ms(20), "{}", seen.took);
}

#[test]
fn hot_removal_ends_reads_with_gone() {
    for completion in ["polled", "interrupt"] {
        let seen = under_reads(completion, SimBus::pull_out);
        is_gone(&seen);
        assert!(seen.good > DEPTH);
    }
}

const PORT: Bdf = Bdf::new(0, 1, 0);

fn write(bus: &SimBus, of: Bdf, at: u16, value: u32) {
    let topology: Topology = bus.topology().expect("a function").clone();
    Rt::simulated(None, Log::Off).block_on(topology.config_write(of, at, value));
}

#[test]
fn disabled_bridge_ends_reads_with_gone() {
    let seen = under_reads("polled", |bus| write(bus, PORT, offset::COMMAND as u16, 0));
    is_gone(&seen);
}

#[test]
fn closed_bridge_window_ends_reads_with_gone() {
    let seen = under_reads("polled", |bus| write(bus, PORT, offset::MEMORY_BASE, 0x0000_fff0));
    is_gone(&seen);
}

/// The simulated NVMe controller has its class code and is on the bus behind the root port.
#[test]
fn enumeration_assigns_bus_and_bar() {
    in_virtual_time(NVME, &plan("polled"), Log::Off, 1, async |_: &Rt, bus: &SimBus, _| {
        let topology = bus.topology().expect("a function");
        let function = Bdf::new(1, 0, 0);
        assert_eq!(topology.config_read(function, 8).await >> 8, class::NVME);
        assert_eq!(topology.config_read(function, 4).await & 6, 6);
        let registers = topology.config_read(function, 0x10).await & !0xf;
        assert_eq!(registers & 0xf000_0000, 0xf000_0000);
        assert_eq!(topology.config_read(PORT, offset::PRIMARY).await & 0x00ff_ffff, 0x0001_0100);
        assert_eq!(topology.config_read(Bdf::new(1, 1, 0), 0).await, u32::MAX);
    })
    .expect("a world");
}
