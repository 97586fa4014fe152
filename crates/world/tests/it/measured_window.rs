//! One window for all figures: what happens before the ramp ends is not counted.

use testing::{only, plan, simulate_by, work};
use workload::pattern::OpKind;
use world::interfaces::NVME;
use world::{Options, RunResult};

fn run(job: &str, sets: &[(&str, &str)]) -> RunResult {
    simulate_by(NVME, &plan("small-flash", sets), &work(job), Options::default())
}

/// Paced reads: the window holds the same work, wherever it begins.
#[test]
fn figures_after_ramp_equal_those_of_same_work_alone() {
    let paced = "rw=randread\nbs=4k\nrate_iops=2000\nnorandommap=1\ntime_based=1\nruntime=100ms\n";
    let filled = [("medium.flash.start", "filled")];
    let alone = run(&format!("[reads]\n{paced}"), &filled);
    let ramped = run(&format!("[reads]\n{paced}ramp_time=300ms\n"), &filled);
    let count = |result: &RunResult| only(result).stats.of(OpKind::Read).total.count();
    assert!(count(&alone).abs_diff(count(&ramped)) <= 1, "{} {}", count(&alone), count(&ramped));
    let close = |one: u64, two: u64, what: &str| {
        assert!(one.abs_diff(two) * 50 <= one + 50, "{what}: {one} alone, {two} after a ramp");
    };
    let figures = |result: &RunResult| {
        let (busy, flash) = (result.busy.as_ref().unwrap(), result.flash.unwrap());
        vec![
            ("time", busy.of.0),
            ("link up", busy.up.0),
            ("link down", busy.down.0),
            ("packets", busy.packets.0.tlps()),
            ("core", busy.cores.iter().map(|core| core.0).sum()),
            ("senses", flash.chips.senses),
            ("units read", flash.software.unwrap().counters.read_units),
            ("in flight", only(result).in_flight.0),
        ]
    };
    for ((what, one), (_, two)) in figures(&alone).into_iter().zip(figures(&ramped)) {
        close(one, two, what);
    }
    let submitted = |result: &RunResult| only(result).stats.depths.percent().next().unwrap().1;
    assert!((submitted(&alone) - submitted(&ramped)).abs() < 5.0);
}

/// A drive that fills up during the ramp: what was written before the collector began is no part of the
/// amplification, which is that of the intervals of a series after the ramp.
#[test]
fn amplification_after_ramp_equals_that_of_series() {
    let job = "[writes]\nrw=randwrite\nbs=4k\niodepth=16\nnorandommap=1\ntime_based=1\n\
        runtime=600ms\nramp_time=400ms\n";
    let options = Options { series: Some(runtime::Span::ms(100)), ..Options::default() };
    let filled = [("medium.flash.start", "filled")];
    let result = simulate_by(NVME, &plan("small-flash", &filled), &work(job), options);
    let counters = result.flash.unwrap().software.unwrap().counters;
    let points = &result.series.as_ref().unwrap().points;
    let (host, programmed) = points[4..10]
        .iter()
        .filter_map(|point| point.units)
        .fold((0, 0), |(host, programmed), (more, and)| (host + more, programmed + and));
    let all = counters.all_programmed_units();
    // The last operations end shortly after the last interval.
    assert!(all >= programmed && all - programmed < programmed / 20, "{all}, {programmed}");
    assert!(counters.host_units.abs_diff(host) < host / 20, "{} {host}", counters.host_units);
    let of_series = programmed * 1000 / host;
    let printed = counters.write_amplification_per_mille().unwrap();
    assert!(printed.abs_diff(of_series) * 20 < of_series, "{printed} and {of_series}");
}

/// Of operations that are in flight when the ramp ends, none count: the link gives no more than it can, also
/// in a window that is not much longer than an operation of a deep queue.
#[test]
fn no_rate_after_ramp_is_above_that_of_link() {
    let link_bytes_per_s = 16e9 * 4.0 / 8.0 * 128.0 / 130.0;
    for us in [1000, 1300, 1700] {
        let job = format!(
            "[reads]\nrw=read\nbs=128k\niodepth=64\ntime_based=1\nruntime=1ms\nramp_time={us}us\n"
        );
        let result = simulate_by(NVME, &plan("gen4", &[]), &work(&job), Options::default());
        let (stats, measured) = (&only(&result).stats, only(&result).measured.as_s_f64());
        let bytes_per_s = stats.read.bytes as f64 / measured;
        assert!(stats.read.bytes > 0 && bytes_per_s <= link_bytes_per_s, "{us}: {bytes_per_s}");
    }
}
