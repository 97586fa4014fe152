//! A device with a switch of its own, in virtual time: each port has a link below the one to the host.

use std::cell::Cell;
use std::rc::Rc;

use bus::link::Way;
use bus::sim::{Ports, SimBus, SimSpec};
use bus::{Carry, DevicePort, HostPort, Posting, Segment};
use runtime::{Log, Rt, Span, Time};
use testing::{only, plan, simulate_by, work};
use world::Options;
use world::interfaces::HOST_FLASH;

const WINDOW: u32 = 0x1000;
const BYTES: usize = 64 << 10;

/// A link of four lanes, above two ports of this width, if any.
fn spec(lanes: Option<u8>) -> SimSpec {
    let ports = lanes.map(|lanes| Ports { count: 2, lanes, window: WINDOW });
    SimSpec { ports, register_bytes: 2 * WINDOW, ..plan("small-flash", &[]).sim_spec() }
}

/// Writes 64 KiB by each of these ports at once: when the last byte has left, and what each link was busy.
fn writes(lanes: Option<u8>, by: &[u32]) -> (Span, Vec<Span>, Span) {
    let rt = Rt::simulated(None, Log::Off);
    let bus = SimBus::new(&rt, spec(lanes));
    let last = Rc::new(Cell::new(Span::ZERO));
    for port in by {
        let (device, last) = (bus.device().through(*port), last.clone());
        let buffer = bus.host(0).arena().buffer(BYTES).expect("memory");
        rt.spawn(async move {
            let to = [Segment { at: buffer.at(), bytes: BYTES as u32 }];
            let data = vec![1_u8; BYTES];
            device.write(&to, &data[..], Posting::STRICT, Time::ZERO).await.expect("memory");
            last.set(last.get().max(device.rt().now().since(Time::ZERO)));
        });
    }
    rt.block_on(rt.sleep(Span::ms(1)));
    (last.get(), bus.ports_busy(Way::Up), bus.link_busy(Way::Up))
}

/// Two lanes take twice as long as four, and two ports of two lanes use the link of four wholly.
#[test]
fn ports_transfer_at_their_own_rate_up_to_that_of_the_link_above() {
    let (shared, busy, _) = writes(None, &[0, 1]);
    assert_eq!(busy, [shared], "one link for all");
    let (one, busy, above) = writes(Some(2), &[0]);
    assert_eq!((busy, above.0), (vec![one, Span::ZERO], one.0 / 2));
    let (same, busy, _) = writes(Some(2), &[1, 1]);
    assert_eq!((same.0, busy), (2 * one.0, vec![Span::ZERO, same]));
    let (apart, busy, above) = writes(Some(2), &[0, 1]);
    assert!(
        apart >= shared && apart.0 < one.0 * 3 / 2,
        "{apart:?}: {one:?} alone, {shared:?} shared"
    );
    assert!(busy.iter().all(|busy| *busy == one), "{busy:?}");
    assert_eq!(above, shared);
}

/// Data that the device reads by port 0 come down that port's link, and delay register writes there.
#[test]
fn registers_are_reached_by_the_link_of_their_window() {
    let landed = |register: u32| {
        let rt = Rt::simulated(None, Log::Off);
        let bus = SimBus::new(&rt, spec(Some(1)));
        let (host, device) = (bus.host(0), bus.device());
        let buffer = host.arena().buffer(BYTES).expect("memory");
        let reader = device.through(0);
        rt.spawn(async move {
            let from = [Segment { at: buffer.at(), bytes: BYTES as u32 }];
            reader.read(&from, &mut vec![0; BYTES], Carry::All).await.expect("memory");
        });
        rt.block_on(async {
            // The link above, of four lanes, has passed all of it; that of port 0 has not.
            rt.sleep(Span::us(15)).await;
            let begun = rt.now();
            host.write32(register, 7);
            device.on_registers(|| (device.load(register) == 7).then_some(())).await;
            let written = rt.now().since(begun);
            let begun = rt.now();
            host.read32(register).await;
            [written, rt.now().since(begun)]
        })
    };
    let ([busy, _], [idle, read]) = (landed(4), landed(WINDOW + 4));
    assert!(idle < Span::ns(500) && read < Span::us(1), "{idle:?}, {read:?}");
    assert!(busy > Span::us(15), "{busy:?} behind 64 KiB on one lane");
    let [last, _] = landed(2 * WINDOW - 4);
    assert_eq!(last, idle);
}

/// Reads of 64 KiB by flash software on the host: one endpoint has one lane for all dies, and four have one
/// each.
#[test]
fn endpoints_with_links_of_their_own_share_the_one_above() {
    const JOB: &str = "[large]\nrw=randread\nbs=64k\niodepth=4\nsize=100%\nnumber_ios=200\nnorandommap=1\n\
        verify=crc32c\n";
    let mean = |sets: &[(&str, &str)]| {
        let gen1: &[(&str, &str)] = &[
            ("link.generation", "gen1"),
            ("medium.flash.channels", "4"),
            ("medium.flash.start", "filled"),
        ];
        let plan = plan("small-flash", &[gen1, sets].concat());
        let run_result = simulate_by(HOST_FLASH, &plan, &work(JOB), Options::default());
        only(&run_result).stats.of(workload::pattern::OpKind::Read).total.mean_ns()
    };
    let (one, four) = ("1", "4");
    let narrow = mean(&[("pages.endpoints", one), ("pages.port_lanes", "1")]);
    let wide = mean(&[("pages.endpoints", four), ("pages.port_lanes", "1")]);
    let shared = mean(&[("pages.endpoints", four)]);
    assert!(narrow > 2.0 * wide, "{narrow} by one lane, {wide} by four");
    assert!(wide >= shared, "{wide} by ports, {shared} without");
}

#[test]
fn ports_are_refused_where_the_link_is_no_link_above_a_switch() {
    let refused = |sets: &[(&str, &str)]| {
        let plan = plan("small-flash", &[&[("pages.port_lanes", "2")], sets].concat());
        (HOST_FLASH.check)(&plan).expect_err("refused").to_string()
    };
    let credits = [
        ("link.credits.posted_headers", "16"),
        ("link.credits.posted_data", "64"),
        ("link.credits.return_after", "1 us"),
    ];
    let error = refused(&credits);
    assert!(
        error.contains("pages.port_lanes: found 2, expected none with link.credits"),
        "{error}"
    );
    let error = refused(&[("link.coherent", "true")]);
    assert!(
        error.contains("pages.port_lanes: found 2, expected none with link.credits"),
        "{error}"
    );
    let array = "{devices=3,layout='parity',chunk='8 KiB',lanes=4,collections='free',costs={parity='30 ns'}}";
    let error = refused(&[("array", array), ("host.memory", "512 MiB")]);
    assert!(error.contains("pages.port_lanes: found 2, expected none with [array]"), "{error}");
    let lanes = plan::Plan::open("small-flash", &[("pages.port_lanes", "3")]);
    let error = lanes.expect_err("no such width").to_string();
    assert!(
        error.contains("pages.port_lanes: found 3, expected 1, 2, 4, 8, 16 or 32 lanes"),
        "{error}"
    );
}
