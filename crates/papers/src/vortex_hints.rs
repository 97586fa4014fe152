//! Elsebø (2015), section 6.2.2: attributes of ranges (Dataset Management), by which the controller optimizes
//! for ranges that are used often. The thesis proposes them and has no number of them.

use std::fmt::Write as _;
use std::path::Path;

use runtime::Span;
use workload::pattern::OpKind;
use workload::trace::Mapping;

use super::ExhibitError;
use super::changes::{Change, instead};
use super::check::{Mutation, Seen, Spec, Swung};
use super::measure::Machine;
use super::setup::Setup;
use super::vortex_tenants::check;
use report::model::paper::{Exhibit, Table};
use world::interfaces::NVME;
use world::work::Work;
use world::{self, Options};

/// Capacities that the load writes; the second half is measured.
const CAPACITIES: u64 = 4;
const INTERVAL: Span = Span::ms(1);
/// Mutation: hints are given for every second stretch, whatever its writes.
const UNINFORMED: &str = "uninformed hints";

/// Hints that the host gives for a drive whose first fifth takes four fifths of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Nothing,
    Right,
    Exchanged,
    Uninformed,
}

impl Given {
    const ALL: [Given; 4] = [Given::Nothing, Given::Right, Given::Exchanged, Given::Uninformed];

    fn name(self) -> &'static str {
        match self {
            Given::Nothing => "none",
            Given::Right => "right",
            Given::Exchanged => "hot and cold exchanged",
            Given::Uninformed => "every other tenth hot",
        }
    }

    /// Ranges in percent of the drive: begin, length, lifetime of the data.
    fn ranges(self) -> Vec<(u32, u32, &'static str)> {
        let lifetime = |hot: bool| if hot { "short" } else { "long" };
        match self {
            Given::Nothing => Vec::new(),
            Given::Right => vec![(0, 20, "short"), (20, 80, "long")],
            Given::Exchanged => vec![(0, 20, "long"), (20, 80, "short")],
            Given::Uninformed => (0..10).map(|n| (10 * n, 10, lifetime(n % 2 == 0))).collect(),
        }
    }

    /// A job for each range, which gives its hint and reads a block; then the load.
    fn job(self, bytes: u64) -> String {
        let mut job = String::new();
        for (from, length, lifetime) in self.ranges() {
            let offset = if from > 0 { format!("offset={from}%\n") } else { String::new() };
            let _ = write!(
                job,
                "[hint-{from}]\nrw=read\nbs=4k\n{offset}size={length}%\nnumber_ios=1\n\
                 write_hint={lifetime}\n"
            );
        }
        job + &format!(
            "[load]\nwait_for_previous=1\nrw=randwrite\nbs=4k\niodepth=32\nnorandommap=1\n\
             random_distribution=zoned:80/20:20/80\nio_size={bytes}\n"
        )
    }
}

#[derive(Clone, Copy)]
struct Writes {
    /// Units programmed per unit written.
    amplification: f64,
    p99_us: f64,
    mb_s: f64,
}

fn drive(setup: &Setup, collector: &str) -> Machine {
    [
        ("medium.keep", "stamps"),
        ("medium.flash.blocks", "48"),
        ("medium.flash.word_lines", "12"),
        ("medium.flash.spare_per_mille", "200"),
        ("medium.flash.start", "steady"),
        ("medium.flash.collector", collector),
        ("medium.flash.hints", "true"),
    ]
    .iter()
    .fold(setup.machine("small-flash"), |machine, (key, value)| machine.with(key, value))
}

fn writes(setup: &Setup, collector: &str, given: Given) -> Result<Writes, ExhibitError> {
    let uninformed = given == Given::Right && setup.is_switched(UNINFORMED);
    let given = if uninformed { Given::Uninformed } else { given };
    drive(setup, collector).once(format!("{given:?}"), |machine| writes_once(machine, given))
}

fn writes_once(machine: &Machine, given: Given) -> Result<Writes, ExhibitError> {
    let plan = machine.open()?;
    let bytes = CAPACITIES * plan.medium.contents.capacity_bytes;
    let work = Work::parse(Path::new("papers"), &given.job(bytes), Mapping::default())?;
    let options = Options { series: Some(INTERVAL), ..Options::default() };
    let mut run_result = world::simulate(NVME, &plan, &work, options)?;
    let (_, load) = run_result.jobs.pop().expect("the load is the last");
    if load.errors() > 0 {
        return Err(ExhibitError::Job(load.messages));
    }
    let units: Vec<_> =
        run_result.series.expect("asked for").points.iter().filter_map(|p| p.units).collect();
    let late =
        units[units.len() / 2..].iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let stats = load.stats.of(OpKind::Write);
    Ok(Writes {
        amplification: late.1 as f64 / late.0 as f64,
        p99_us: stats.total.percentile_ns(99_000) as f64 / 1e3,
        mb_s: stats.bytes as f64 / load.measured.as_us_f64(),
    })
}

/// Write amplification with hints over that without.
fn ratio(setup: &Setup, given: Given) -> Result<(f64, String), ExhibitError> {
    let (with, without) =
        (writes(setup, "cost-benefit", given)?, writes(setup, "cost-benefit", Given::Nothing)?);
    let words = format!(
        "write amplification {:.2}, without hints {:.2}; p99 {:.0} us, without {:.0} us",
        with.amplification, without.amplification, with.p99_us, without.p99_us
    );
    Ok((with.amplification / without.amplification, words))
}

const IGNORED: Mutation = Mutation {
    change: "a device that ignores hints",
    settings: &[instead("medium.flash.hints", "true", "false")],
};

pub(super) const RIGHT: Spec = Spec {
    swung: Swung { plans: &[], number: None },
    ..check(
        ("D7", "amplification, right hints over none"),
        "attributes of ranges let the controller optimize for frequently accessed data (6.2.2)",
        (
            "units that are overwritten together share superblocks, so fewer are valid when collected",
            "at least a tenth less",
        ),
        "x",
        |setup| {
            let (ours, words) = ratio(setup, Given::Right)?;
            Ok(Seen::of(ours, ours < 0.9).with(words))
        },
        &[
            IGNORED,
            Mutation {
                change: "hints that say nothing of the writes",
                settings: &[Change::Switch(UNINFORMED)],
            },
        ],
    )
};

pub(super) const WRONG: Spec = Spec {
    swung: Swung { plans: &[], number: None },
    ..check(
        ("D7", "amplification, uninformed hints over none"),
        "attributes of ranges let the controller optimize for frequently accessed data (6.2.2)",
        (
            "a class that mixes hot and cold units gets its copies back among its new data",
            "more than without hints",
        ),
        "x",
        |setup| {
            let (ours, words) = ratio(setup, Given::Uninformed)?;
            Ok(Seen::of(ours, ours > 1.02).with(words))
        },
        &[IGNORED],
    )
};

pub(super) fn tables(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let mut lines = Vec::new();
    for collector in ["cost-benefit", "greedy"] {
        for given in Given::ALL {
            let seen = writes(setup, collector, given)?;
            lines.push(vec![
                collector.to_owned(),
                given.name().to_owned(),
                format!("{:.2}", seen.amplification),
                format!("{:.0}", seen.p99_us),
                format!("{:.1}", seen.mb_s),
            ]);
        }
    }
    Ok(vec![Table::exhibit(
        "Hints (6.2.2): four fifths of the writes to one fifth of a used drive",
        &["collector", "hints", "w.amp.", "write p99 us", "MB/s"],
        lines,
        &["exchanged hints are as good: only the partition into classes matters"],
    )])
}
