//! Power states by load: time in each state, in both worlds.

use std::path::Path;

use plan::Plan;
use runtime::Span;
use workload::trace::Mapping;
use world::device::StateUse;
use world::interfaces::NVME;
use world::work::Work;
use world::{self, Options};

const STATES: &str = "[{ milliwatts = 8000, idle = false, enter = \"0 us\", leave = \"0 us\" }, \
                      { milliwatts = 50, idle = true, enter = \"200 us\", leave = \"300 us\" }]";

/// Three reads, 100 ms apart; the driver lets the controller idle after fifty times 500 us.
fn used(saving: bool, live: bool) -> Vec<StateUse> {
    let mut sets = vec![("power.states", STATES), ("medium.capacity", "16 MiB")];
    if saving {
        sets.push(("power.saving", "1 ms"));
    }
    let plan = Plan::open("gen4", &sets).unwrap_or_else(|errors| panic!("{errors}"));
    let text = "[seldom]\nrw=randread\nbs=4k\nnumber_ios=3\nthinktime=100ms\n";
    let work = Work::parse(Path::new("test"), text, Mapping::default()).unwrap();
    let result = match live {
        true => world::live_in_threads(NVME, &plan, &work, Options::default()),
        false => world::simulate(NVME, &plan, &work, Options::default()),
    };
    result.unwrap().power
}

#[test]
fn controller_idles_by_load_and_its_time_is_counted_by_state() {
    let [working, idle] = used(true, false)[..] else { panic!("two states") };
    assert!(idle.entries >= 2 && working.entries > idle.entries.min(2), "{working:?} {idle:?}");
    assert!(idle.time > Span::ms(100), "{working:?} {idle:?}");
    // Transitions, half a millisecond for each sleep, count to the working state.
    assert!(working.time > Span::us(500) * (idle.entries - 1), "{working:?} {idle:?}");

    let [working, idle] = used(false, false)[..] else { panic!("two states") };
    assert_eq!((working.entries, idle), (1, StateUse::default()), "nothing lets it idle");
    assert!(working.time > Span::ms(200), "{working:?}");
}

#[test]
fn controller_idles_by_load_live() {
    let [working, idle] = used(true, true)[..] else { panic!("two states") };
    assert!(idle.entries >= 1 && idle.time > Span::ZERO, "{working:?} {idle:?}");
    let [_, idle] = used(false, true)[..] else { panic!("two states") };
    assert_eq!(idle, StateUse::default());
}
