//! Tenants on one drive, in both worlds.

use campaign::tenants::{self, BY_QUEUES, BY_WEIGHT, Load, Way, deviation};
use plan::Plan;
use runtime::Span;

fn plan(settings: &[(&str, &str)], more: &[(&str, &str)]) -> Plan {
    let sets: Vec<_> = settings.iter().chain(more).copied().collect();
    Plan::open("vortex", &sets).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn each_protection_shortens_the_victims_tail() {
    let load = Load { time: Span::ms(50), ..Load::default() };
    let p99 = |way: Way, more: &[(&str, &str)]| {
        tenants::measure(&plan(way.settings(), more), way, load, false).unwrap().p99_us
    };
    let of = Way::ALL.map(|way| p99(way, &[]));
    let [alone, one_queue, own, small, weighted, urgent, rate] = of;
    assert!(one_queue > 4.0 * alone, "{of:?}");
    assert!(small < 0.5 * own && weighted < 0.8 * own && urgent < 0.8 * own, "{of:?}");
    assert!(rate < 2.0 * alone, "{of:?}");
    // The classes are what protects: in a drive that has all commands at once, none waits for its turn.
    let room = [("device.command_slots", "128")];
    let (own, urgent) = (p99(Way::OwnQueues, &room), p99(Way::Urgent, &room));
    assert!(urgent > 0.9 * own, "{own} {urgent}");
}

#[test]
fn shares_follow_weights_and_number_of_queues() {
    let time = Span::ms(200);
    let by_weight = tenants::shares(&plan(BY_WEIGHT, &[]), &[1, 1, 1], time, false).unwrap();
    assert!(deviation(&by_weight, &[4.0, 2.0, 1.0]) < 0.05, "{by_weight:?}");
    let by_queues = tenants::shares(&plan(BY_QUEUES, &[]), &[3, 1], time, false).unwrap();
    assert!(deviation(&by_queues, &[3.0, 1.0]) < 0.05, "{by_queues:?}");
    let one = tenants::shares(&plan(BY_QUEUES, &[("host.queues", "1")]), &[3, 1], time, false);
    assert!(deviation(&one.unwrap(), &[3.0, 1.0]) > 0.05, "queues are what gives the share");
}

#[test]
fn tenants_run_live() {
    let load = Load { time: Span::ms(20), ..Load::default() };
    let live = [("medium.pace", "immediate"), ("host.memory", "256 MiB")];
    for way in Way::ALL {
        let seen = tenants::measure(&plan(way.settings(), &live), way, load, true).unwrap();
        assert!(seen.victim_reads > 0 && seen.p99_us >= seen.p50_us, "{way:?}: {seen:?}");
    }
}
