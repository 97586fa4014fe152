//! The conformance suite on benches: cases by sections of the specification, independent of this controller.
//! The witness watches memory accesses meanwhile. White-box and malicious-host tests are in the other
//! modules.

use std::rc::Rc;

use bus::link::Credits;
use bus::sim::SimBus;
use conformance::{Counts, Stop, Table};
use device::nvme::{Options, PowerState};
use runtime::{Log, Rng, Rt, Span};
use wire::nvme::status::Status;

use crate::raw::nvme::world::{Setup, device};

/// Statuses that a retry may change. Every other error has DNR set.
const WORTH_ANOTHER_TRY: &[Status] = &[
    Status::ABORT_REQUESTED,
    Status::ABORTED_SQ_DELETION,
    Status::ABORTED_FAILED_FUSED,
    Status::SANITIZE_IN_PROGRESS,
    Status::UNRECOVERED_READ_ERROR,
];

/// Runs the whole suite; returns the names of cases skipped for a feature that the controller lacks.
fn examined(setup: &Setup) -> Vec<&'static str> {
    let rt = Rt::simulated(None, Log::Off);
    if let Some(seed) = setup.shuffle {
        rt.shuffle_ready_tasks(Rng::for_part(seed, "shuffle"));
    }
    let bus = SimBus::new(&rt, setup.spec());
    let (_medium, witness) = device(bus.device(), setup);
    let table = rt.block_on(Table::run(Rc::new(bus.host(0)), |_| true, |_| {}));
    rt.drop_tasks();
    let Counts { failed, left, .. } = table.counts();
    assert!(failed == 0 && left == 0, "{}", table.text());
    let completions = witness.completions.borrow();
    // A data transfer error may or may not be worth a retry: unreachable data memory may appear later,
    // unreachable doorbell pages may not.
    let told = |(_, status): &&(bool, Status)| status.kind() != Status::DATA_TRANSFER_ERROR;
    for (_, status) in completions.keys().filter(told) {
        let worth = status.is_ok() || WORTH_ANOTHER_TRY.contains(&status.kind());
        assert_ne!(status.dnr(), worth, "{status}");
    }
    let lacks =
        |case_run: &&conformance::CaseRun| matches!(case_run.verdict, Some(Err(Stop::Lacks(_))));
    table.runs.iter().filter(lacks).map(|case_run| case_run.case.name).collect()
}

/// Cases for controllers without a feature that this one always has.
const OF_LESSER_ONES: &[&str] = &[
    "fused_where_there_is_none",
    "sgl_where_there_is_none",
    "sanitize_that_there_is_not",
    "no_cache_no_feature",
    "transitions_without_apsta",
];

fn setup() -> Setup {
    Setup { memory_bytes: 64 << 20, sanitizes: true, ..Setup::default() }
}

#[test]
fn conformance_passes_with_all_features() {
    let state = |milliwatts, idle, enter, leave| PowerState { milliwatts, idle, enter, leave };
    let power_states = vec![
        state(8_000, false, Span::ZERO, Span::ZERO),
        state(4_000, false, Span::us(20), Span::us(30)),
        state(50, true, Span::us(500), Span::us(700)),
    ];
    let options = Options { power_states, ..Options::default() };
    let lacking = examined(&Setup { options, metadata: true, blocks: 1 << 17, ..setup() });
    assert_eq!(lacking, OF_LESSER_ONES);
}

#[test]
fn conformance_passes_with_4k_blocks_one_slot_and_no_label() {
    let options = Options {
        slots: 1,
        fetchers: 1,
        fetch_max: 1,
        transfer_bytes_max: 64 << 10,
        queue_entries_max: 256,
        ..Options::default()
    };
    let setup = Setup { options, block_bytes: 4096, blocks: 1 << 12, label: None, ..setup() };
    let lacking = examined(&setup);
    assert_eq!(lacking.len(), 49, "{lacking:?}");
}

#[test]
fn conformance_passes_with_relaxed_ordering_on_slow_link() {
    let options = Options { relaxed_ordering: true, ..Options::default() };
    let credits = Some(Credits { headers: 4, data: 64, return_after: Span::ns(300) });
    let shuffle = Some(1);
    let host_read = Span::us(20);
    let lacking = examined(&Setup { options, host_read, shuffle, credits, ..setup() });
    assert_eq!(lacking.len(), 19, "{lacking:?}");
}

/// Also with other threads' parts that act at any time: ready tasks are picked at random.
#[test]
fn conformance_passes_where_queues_are_dealt_to_threads() {
    for seed in 1..=2 {
        let lacking = examined(&Setup { threads: 3, label: None, shuffle: Some(seed), ..setup() });
        assert_eq!(lacking.len(), 106, "{lacking:?}");
    }
}
