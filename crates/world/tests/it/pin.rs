//! Interrupts by a pin, a level, in virtual time: schedules worked out by hand, on the bus alone; then the
//! driver, and what its handler costs without and with a read before it ends.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::sim::{SimBus, SimDevice, SimHost, SimSpec};
use bus::{DevicePort, HostPort, InterruptPin, Masks};
use runtime::{Log, Rt, Span, Time};
use testing::{clean, only, operations, plan, simulate_by, work};
use wire::nvme::registers::{INTMC, INTMS};
use world::Options;
use world::interfaces::{NVME, SCSI};

/// Any register that is no mask: the doorbell of these schedules.
const DOORBELL: u32 = 0x1004;
const INTERRUPT: Span = Span::us(1);

fn spec() -> SimSpec {
    let spec = plan("gen4", &[]).sim_spec();
    SimSpec { interrupt: INTERRUPT, masks: Some(Masks { set: INTMS, clear: INTMC }), ..spec }
}

/// Times of the ways that the schedules are made of, on a bus without a pin.
#[derive(Clone, Copy)]
struct Ways {
    /// A message to the host.
    up: Span,
    /// A register write, until it takes effect at the device.
    down: Span,
    /// A register read behind a register write.
    read: Span,
}

fn ways() -> Ways {
    let rt = Rt::simulated(None, Log::Off);
    let bus = SimBus::new(&rt, spec());
    let (host, device) = (bus.host(0), bus.device());
    rt.block_on(async {
        device.interrupt(0);
        host.on_interrupt(0, 0).await;
        let up = rt.now().since(Time::ZERO + INTERRUPT);
        let begun = rt.now();
        host.write32(DOORBELL, 1);
        device.on_registers(|| (device.load(DOORBELL) == 1).then_some(())).await;
        let down = rt.now().since(begun);
        let begun = rt.now();
        host.write32(DOORBELL, 2);
        host.read32(0).await;
        Ways { up, down, read: rt.now().since(begun) }
    })
}

/// A device that drives its pin while its doorbell is below the number of its entries.
#[derive(Clone)]
struct Entries {
    device: SimDevice,
    posted: Rc<Cell<u32>>,
}

impl Entries {
    fn drive(&self) {
        self.device.drive(self.device.load(DOORBELL) < self.posted.get());
    }

    fn post(&self) {
        self.posted.set(self.posted.get() + 1);
        self.drive();
    }
}

/// Times at which handlers began. The handler calls `act` with the port and the number of interrupts so far.
fn handled(
    reads_back: bool,
    script: impl AsyncFnOnce(&Rt, &Entries, &SimHost),
    act: impl Fn(&SimHost, &Entries) + 'static,
) -> Vec<Span> {
    let rt = Rt::simulated(None, Log::Off);
    let bus = SimBus::new(&rt, spec());
    bus.use_pin(reads_back);
    let (host, device) = (bus.host(0), bus.device());
    let entries = Entries { device, posted: Rc::default() };
    let times = Rc::new(RefCell::new(Vec::new()));
    let (handler, seen, of_handler) = (host.clone(), times.clone(), entries.clone());
    rt.spawn(async move {
        let mut count = 0;
        loop {
            count = handler.on_interrupt(0, count).await;
            seen.borrow_mut().push(handler.rt().now().since(Time::ZERO));
            act(&handler, &of_handler);
        }
    });
    let follower = entries.clone();
    rt.spawn(async move {
        let device = follower.device.clone();
        // It drives the pin when the doorbell changes: the mask is the bus's work.
        let mut head = 0;
        let never = || {
            if device.load(DOORBELL) != head {
                head = device.load(DOORBELL);
                follower.drive();
            }
            None::<()>
        };
        device.on_registers(never).await;
    });
    rt.block_on(async {
        script(&rt, &entries, &host).await;
        rt.sleep(Span::us(50)).await;
    });
    rt.drop_tasks();
    times.take()
}

/// A handler that reads every entry that is there.
fn read_all(host: &SimHost, entries: &Entries) {
    host.write32(DOORBELL, entries.posted.get());
}

/// The handler ends while its doorbell is on its way: the line is asserted, and it is called again.
/// The Deassert message arrives before that handler begins.
#[test]
fn handler_that_ends_before_deassert_is_called_in_vain_once() {
    let Ways { up, down, .. } = ways();
    assert!(down + up < INTERRUPT, "the schedule needs it");
    let times = handled(false, async |_, entries, _| entries.post(), read_all);
    assert_eq!(times, [up + INTERRUPT, up + INTERRUPT * 2]);
}

/// The answer of the read comes behind the Deassert message.
#[test]
fn handler_that_reads_back_is_called_once() {
    let Ways { up, .. } = ways();
    let times = handled(true, async |_, entries, _| entries.post(), read_all);
    assert_eq!(times, [up + INTERRUPT]);
}

/// The second entry is posted while the first handler runs, before its doorbell arrives: the line stays
/// asserted and there is no second edge. A controller that counts edges would lose it.
#[test]
fn entry_posted_during_service_interrupts_without_an_edge() {
    let Ways { up, read, .. } = ways();
    let post_two = async |rt: &Rt, entries: &Entries, _: &SimHost| {
        entries.post();
        rt.sleep(up + INTERRUPT + Span::ns(1)).await;
        entries.post();
    };
    let times = handled(true, post_two, read_all);
    let first = up + INTERRUPT;
    assert_eq!(times, [first, first + read + INTERRUPT]);
}

/// INTMS holds the message back; INTMC sends it, although the device's level has not changed since.
#[test]
fn mask_holds_pin_and_unmask_asserts_it() {
    let Ways { up, down, .. } = ways();
    let cleared = Span::us(10);
    let masked = async |rt: &Rt, entries: &Entries, host: &SimHost| {
        host.write32(INTMS, 1);
        rt.sleep(down + Span::ns(1)).await;
        entries.post();
        rt.sleep_until(Time::ZERO + cleared).await;
        host.write32(INTMC, 1);
    };
    assert_eq!(handled(true, masked, read_all), [cleared + down + up + INTERRUPT]);
    // Another bit of the mask is another vector.
    let other = async |rt: &Rt, entries: &Entries, host: &SimHost| {
        host.write32(INTMS, 2);
        rt.sleep(down + Span::ns(1)).await;
        entries.post();
    };
    assert_eq!(handled(true, other, read_all), [down + Span::ns(1) + up + INTERRUPT]);
}

/// A handler that masks, reads its entries after a while, and unmasks: one interrupt, as the mask deasserts
/// the pin before the doorbell does; and one more for an entry that came while it was masked.
#[test]
fn entry_posted_while_masked_interrupts_after_unmask() {
    let Ways { up, down, .. } = ways();
    let unmasked = Span::us(20);
    let masks = |host: &SimHost, entries: &Entries| match entries.posted.get() {
        1 => {
            host.write32(INTMS, 1);
            host.write32(DOORBELL, 1);
        }
        _ => read_all(host, entries),
    };
    let script = async |rt: &Rt, entries: &Entries, host: &SimHost| {
        entries.post();
        rt.sleep_until(Time::ZERO + Span::us(5)).await;
        entries.post();
        rt.sleep_until(Time::ZERO + unmasked).await;
        host.write32(INTMC, 1);
    };
    let times = handled(true, script, masks);
    assert_eq!(times, [up + INTERRUPT, unmasked + down + up + INTERRUPT]);
}

/// A poller has read the entry while the core was on its way: the handler finds nothing, and no more follows.
#[test]
fn entry_read_before_handler_leaves_one_vain_call() {
    let Ways { up, .. } = ways();
    let script = async |rt: &Rt, entries: &Entries, host: &SimHost| {
        entries.post();
        rt.sleep(up + Span::ns(1)).await;
        host.write32(DOORBELL, 1);
    };
    assert_eq!(handled(true, script, |_, _| ()), [up + INTERRUPT]);
}

/// Interrupts of a run with this kind of them, and its operations.
fn counted(
    row: &'static world::interfaces::Row,
    kind: &str,
    depth: u32,
    seed: Option<u64>,
) -> (u64, u64) {
    let sets = [
        ("host.completion", "interrupt"),
        ("host.interrupts", kind),
        ("host.queues", "1"),
        ("medium.capacity", "16 MiB"),
    ];
    let name = if row.name == "scsi" { "vortex" } else { "gen4" };
    let plan = plan(name, &sets);
    let count = Rc::new(Cell::new(0));
    let of_log = count.clone();
    let log = Log::To(Rc::new(move |entry| {
        if entry.component == "bus" && entry.what == "interrupt" {
            of_log.set(of_log.get() + 1);
        }
    }));
    let job = format!(
        "[mixed]\nrw=randrw\nbs=4k\niodepth={depth}\nsize=8m\nnumber_ios=200\nverify=meta\n"
    );
    let options = Options { log, shuffle: seed, ..Options::default() };
    let run_result = clean(simulate_by(row, &plan, &work(&job), options));
    (count.get(), operations(only(&run_result)))
}

/// At depth 1 each command has an interrupt, and one more if its handler does not read back. Those of
/// the admin queue may coincide.
#[test]
fn driver_takes_pin_interrupts_of_every_command() {
    let (by_messages, operations) = counted(NVME, "messages", 1, None);
    let (by_pin, _) = counted(NVME, "pin", 1, None);
    let (read_back, _) = counted(NVME, "pin-read-back", 1, None);
    assert!(by_messages >= operations, "{by_messages} of {operations}");
    assert_eq!(read_back, by_messages);
    let expected = by_messages + operations..=2 * by_messages;
    assert!(expected.contains(&by_pin), "{by_pin}, expected {expected:?}");
}

/// No command is lost at depth, in any order of ready tasks, through either face.
#[test]
fn pin_loses_no_command_in_any_task_order() {
    for seed in 0..6 {
        for kind in ["pin", "pin-read-back"] {
            for depth in [2, 32] {
                let (interrupts, operations) = counted(NVME, kind, depth, Some(seed));
                assert!(operations >= 200 && interrupts > 0, "{kind}, {depth}, {seed}");
            }
        }
    }
    let (interrupts, operations) = counted(SCSI, "pin", 8, None);
    assert!(operations >= 200 && interrupts > 0);
}

#[test]
fn pin_is_rejected_by_other_interfaces_and_several_queues() {
    let by_pin = [("host.completion", "interrupt"), ("host.interrupts", "pin")];
    let run = |row, name, sets: &[(&str, &str)]| {
        let plan = plan(name, &[&by_pin, sets].concat());
        let job = work("[one]\nrw=read\nbs=4k\nsize=4k\n");
        let error = world::simulate(row, &plan, &job, Options::default()).err();
        error.map(|error| error.to_string()).unwrap_or_default()
    };
    let found = run(world::interfaces::DCX, "dc-express", &[("host.queues", "1")]);
    assert!(found.contains("host.interrupts: found a pin, expected"), "{found}");
    let found = run(NVME, "gen4", &[("host.queues", "2")]);
    assert!(found.contains("host.queues = 1"), "{found}");
}
