//! Command and report numbers wrap: a queue continues after nearly 2^32 commands.

use std::rc::Rc;

use bus::link::LinkSpec;
use bus::sim::{NamedCost, SimBus, SimSpec};
use bus::{DevicePort, HostPort};
use media::contents::{Backing, Keep, Spec};
use media::{Banked, Contents, Pace};
use runtime::{Log, Rt, Span};
use wire::BusAddr;
use wire::dcx::command::{self, Command, Entry, Request};
use wire::dcx::registers::{Control, Group, Shape};
use wire::dcx::report::{self, Report};
use wire::pcie::Generation;
use zerocopy::{FromBytes, IntoBytes};

use super::{Front, Options, Tagged};

const BASE: u64 = 0x1_0000_0000;
const REPORTS: u64 = BASE + 0x1000;
const ENTRIES: u32 = 8;

fn options() -> Options {
    Options {
        block: 0,
        queues: 1,
        entries_log2: 4,
        slots: 8,
        fetch_max: 4,
        anticipate: true,
        sleep_after: u32::MAX,
        poll_gap_max: None,
        transfer_bytes_max: 4096,
        relaxed_ordering: false,
        traces_from: 0,
    }
}

fn spec() -> SimSpec {
    let free = |name| NamedCost { name, span: Span::ZERO };
    SimSpec {
        link: LinkSpec {
            generation: Generation::Gen3,
            lanes: 4,
            mps: 128,
            mrrs: 512,
            rcb: 64,
            completion_bytes: 64,
            ecrc: false,
            latency: Span::ns(150),
            host_read: Span::ns(250),
            device_read: Span::ns(50),
            tlps_per_dllp: 4,
            credits: None,
            held_up: None,
            coherent: false,
        },
        memory_base: BusAddr(BASE),
        memory_bytes: 1 << 16,
        register_bytes: 4096,
        masks: None,
        relaxed_ordering: false,
        cores: 1,
        poll: Span::ns(20),
        interrupt: Span::us(1),
        host_costs: Vec::new(),
        device_costs: super::COSTS.iter().map(|name| free(name)).collect(),
        device_processors: 0,
        device_copy: None,
        seed: 1,
        ports: None,
    }
}

fn front<P: DevicePort>(port: P) -> Rc<Front<P, Banked>> {
    let spec = Spec {
        capacity_bytes: 1 << 16,
        block_bytes: 512,
        keep: Keep::Everything,
        backing: Backing::Memory,
    };
    let contents = Contents::new(spec).expect("memory");
    let medium = Rc::new(Banked::new(port.rt(), contents, Pace::Immediate));
    let tagged = Rc::new(Tagged::without_tags(port.rt(), medium));
    Front::start(port, tagged, options())
}

/// Fences with numbers around the wrap, in both rings; each report must be at its place.
#[test]
fn dcx_command_and_report_numbers_wrap() {
    let rt = Rt::simulated(None, Log::Off);
    let bus = SimBus::new(&rt, spec());
    let front = front(bus.device());
    let (host, group) = (bus.host(0), Group::of(0, 0));
    let memory = host.arena().memory().clone();
    rt.block_on(async {
        for (register, at) in
            [(group.commands, BASE), (group.reports, REPORTS), (group.notice, BASE + 0x2000)]
        {
            host.write32(register, at as u32);
            host.write32(register + 4, (at >> 32) as u32);
        }
        let shape = Shape::new().with_entries_log2(ENTRIES.ilog2() as u8);
        host.write32(group.shape, shape.into_bits());
        host.write32(group.control, Control::new().with_enable(true).into_bits());
        rt.sleep(Span::us(10)).await;
        // State after nearly 2^32 commands; the report number is one behind.
        let first = u32::MAX - 20;
        front.queues[0].next.set(first);
        front.queues[0].reported.set(first.wrapping_sub(2));
        for turn in 0..40u32 {
            let number = first.wrapping_add(turn);
            let request = Request { number, slot: turn as u16, command: Command::Fence };
            let entry = Entry::new(&request);
            let place = u64::from(number.wrapping_sub(1) % ENTRIES);
            let at = BASE + place * command::BYTES as u64;
            memory.write(BusAddr(at), &entry.as_bytes()[..60]).expect("the ring");
            memory.store_u32(BusAddr(at + 60), number).expect("the ring");
            rt.sleep(Span::us(10)).await;
            let expected = number.wrapping_sub(1);
            let place = u64::from(expected.wrapping_sub(1) % ENTRIES);
            let mut bytes = [0; report::BYTES];
            memory.read(BusAddr(REPORTS + place * 16), &mut bytes).expect("the ring");
            let report = Report::read_from_bytes(&bytes).expect("a report's length");
            let found = u32::from_le_bytes(*bytes.last_chunk().expect("a word"));
            assert_eq!((found, report.command()), (expected, number), "turn {turn}");
        }
    });
    rt.drop_tasks();
}
