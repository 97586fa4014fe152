//! When a result is untypical, and what the warning says.

use std::path::Path;

use ftl::Stats;
use plan::Plan;
use runtime::Span;
use workload::pattern::OpKind;
use workload::stats::Breakdown;
use world::Warning;
use world::engine::JobResult;
use world::warning::{of_breakdowns, of_flash};
use world::work::Work;

fn warnings(sample: &str, traced: Span, all: &[Span]) -> Vec<Warning> {
    let plan = Plan::open("live", &[("run.breakdown_sample", sample)]).expect("a plan");
    let job = "[reads]\nrw=randread\nbs=4k\nsize=1m\n";
    let work = Work::parse(Path::new("test.fio"), job, Default::default()).expect("a job");
    let mut result = JobResult::default();
    let mut breakdown = Breakdown::new(&["submit"]);
    breakdown.record(traced.0, [(0, traced.0)]);
    result.stats.breakdowns.insert(OpKind::Read, breakdown);
    all.iter().for_each(|latency| result.stats.read.record(Span::ZERO, *latency, 4096));
    of_breakdowns(&plan, &[(work.jobs[0].clone(), result)]).collect()
}

#[test]
fn breakdown_with_untypical_mean_is_a_warning() {
    let all = [Span::us(10), Span::us(30)];
    assert_eq!(warnings("64", Span::us(20), &all), []);
    assert_eq!(warnings("64", Span::us(21), &all), [], "within 5 %");
    assert_eq!(warnings("1", Span::us(10), &all), [], "all are traced");
    let found = warnings("64", Span::us(10), &all);
    let expected =
        "reads: the breakdown is of 1 read in 64, mean 10.000us; the mean of all is 20.000us";
    assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [expected]);
}

#[test]
fn flash_without_erases_and_not_full_is_fresh() {
    let of = |erases, mapped_units| {
        let stats = Stats { erases, mapped_units, capacity_bytes: 4096 * 1000, ..Stats::default() };
        of_flash(&stats, 4096).map(|warning| warning.to_string())
    };
    let expected = "the flash is fresh: 25.0 % of it written, nothing overwritten; see \
        medium.flash.start";
    assert_eq!(of(0, 250).as_deref(), Some(expected));
    assert_eq!(of(0, 1000), None, "full");
    assert_eq!(of(1, 250), None, "an erased superblock");
    let written = |collected| {
        let counters = ftl::Counters { host_units: 9, collected, ..Default::default() };
        let stats = Stats { counters, erases: 1, ..Stats::default() };
        of_flash(&stats, 4096).map(|warning| warning.to_string())
    };
    let expected = "nothing was collected while 9 units were written: a drive in long use is \
        slower; see medium.flash.start = \"steady\"";
    assert_eq!(written(0).as_deref(), Some(expected));
    assert_eq!(written(1), None);
}
