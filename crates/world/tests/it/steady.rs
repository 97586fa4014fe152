//! `start = "steady"` against a long run: rate, write amplification and p99 are those that the same job
//! reaches on a filled drive after many overwrites.
//!
//! With `DOORBELL_HEAVY` the whole table is measured and printed: two drives, four patterns, three spare
//! spaces, two policies of the collector.

use plan::Plan;
use testing::{only, plan, simulate_by, work};
use workload::pattern::OpKind;
use world::interfaces::NVME;
use world::{Options, Warning};

/// The chips of plan `tlc`, fewer and with few word lines, of which each superblock has less: the steady
/// state is that of the number of superblocks.
const TLC: &[(&str, &str)] = &[
    ("medium.flash.channels", "4"),
    ("medium.flash.dies", "1"),
    ("medium.flash.planes", "1"),
    ("medium.flash.blocks", "60"),
    ("medium.flash.word_lines", "12"),
    ("medium.flash.buffer", "512 KiB"),
    ("medium.flash.errors", "none"),
];

/// The chips of plan `small-flash`, with superblocks enough for policies to differ.
const SMALL: &[(&str, &str)] =
    &[("medium.flash.blocks", "48"), ("medium.flash.word_lines", "8"), ("medium.block", "4 KiB")];

/// Patterns as `steady_for`, and as the job has them.
const PATTERNS: [(&str, &str); 4] = [
    ("uniform", "rw=randwrite\nnorandommap=1\n"),
    ("zipf:0.8", "rw=randwrite\nrandom_distribution=zipf:0.8\n"),
    ("zipf:1.2", "rw=randwrite\nrandom_distribution=zipf:1.2\n"),
    ("sequential", "rw=write\n"),
];

#[derive(Clone, Copy)]
struct Case {
    drive: &'static str,
    pattern: (&'static str, &'static str),
    spare: &'static str,
    collector: &'static str,
}

/// Rate in operations per second, write amplification, p99 in us.
type Figures = [f64; 3];

/// Overwrites that are measured, and those before them in the long run.
const MEASURED: u64 = 3;
const BEFORE: u64 = 6;

impl Case {
    fn plan(&self, start: &str) -> Plan {
        let drive = if self.drive == "tlc" { TLC } else { SMALL };
        let mut sets = drive.to_vec();
        sets.extend([
            ("medium.flash.spare_per_mille", self.spare),
            ("medium.flash.collector", self.collector),
            ("medium.flash.start", start),
            ("medium.keep", "stamps"),
        ]);
        if start == "steady" {
            sets.push(("medium.flash.steady_for", self.pattern.0));
        }
        plan(self.drive, &sets)
    }

    fn run(&self, plan: &Plan, length: &str) -> Figures {
        let job = format!("[writes]\nbs=4k\niodepth=32\nio_size=1t\n{}{length}", self.pattern.1);
        let result = simulate_by(NVME, plan, &work(&job), Options::default());
        let writes = only(&result).stats.of(OpKind::Write);
        let counters = result.flash.unwrap().software.unwrap().counters;
        let amplification = counters.write_amplification_per_mille().unwrap() as f64 / 1e3;
        let p99 = writes.total.percentile_ns(99_000) as f64 / 1e3;
        [writes.iops(only(&result).measured), amplification, p99]
    }

    /// Figures from the start on, and after many overwrites of a drive that was filled once.
    fn measure(&self) -> [Figures; 2] {
        let plan = self.plan("steady");
        let units = u64::from(plan.medium.flash.as_ref().unwrap().software.units);
        let steady = self.run(&plan, &format!("number_ios={}\n", MEASURED * units));
        let ms = |overwrites| (overwrites * units) as f64 / steady[0] * 1e3;
        let times = format!(
            "time_based=1\nruntime={:.0}ms\nramp_time={:.0}ms\n",
            ms(MEASURED).ceil(),
            ms(BEFORE).ceil()
        );
        let long = self.run(&self.plan("filled"), &times);
        let Case { drive, pattern: (pattern, _), spare, collector } = self;
        println!(
            "| {drive} | {pattern} | {spare} | {collector} | {:.0} | {:.0} | {:.3} | {:.3} | {:.0} | {:.0} |",
            steady[0], long[0], steady[1], long[1], steady[2], long[2]
        );
        [steady, long]
    }

    fn check(&self) {
        let [steady, long] = self.measure();
        for (what, (steady, long)) in
            ["rate", "write amplification", "p99"].iter().zip(steady.into_iter().zip(long))
        {
            let Case { drive, pattern: (pattern, _), spare, collector } = self;
            assert!(
                (steady / long - 1.0).abs() < 0.05,
                "{drive}, {pattern}, {spare}, {collector}: {what} {steady:.3} from the start on, {long:.3} \
                 in a long run"
            );
        }
    }
}

#[test]
fn steady_start_gives_figures_of_long_run() {
    let of = |drive, pattern, spare| Case { drive, pattern, spare, collector: "greedy" };
    of("tlc", PATTERNS[0], "150").check();
    of("small-flash", PATTERNS[2], "400").check();
    of("small-flash", PATTERNS[3], "400").check();
}

#[test]
fn steady_start_gives_figures_of_long_run_in_whole_table() {
    if std::env::var_os("DOORBELL_HEAVY").is_none() {
        return;
    }
    let mut far = Vec::new();
    for drive in ["tlc", "small-flash"] {
        for pattern in PATTERNS {
            for spare in if drive == "tlc" { ["70", "150", "280"] } else { ["280", "400", "600"] } {
                for collector in ["greedy", "cost-benefit"] {
                    let case = Case { drive, pattern, spare, collector };
                    let [steady, long] = case.measure();
                    let differs = |(one, two): (f64, f64)| (one / two - 1.0).abs() >= 0.05;
                    if steady.into_iter().zip(long).any(differs) {
                        far.push(format!("{drive} {} {spare} {collector}", pattern.0));
                    }
                }
            }
        }
    }
    assert!(far.is_empty(), "over 5 % apart: {far:?}");
}

fn warnings(start: &str, job: &str) -> Vec<Warning> {
    let case = Case { drive: "tlc", pattern: PATTERNS[0], spare: "70", collector: "greedy" };
    let job =
        format!("[writes]\nrw=randwrite\nbs=4k\niodepth=32\nnorandommap=1\nio_size=1t\n{job}");
    simulate_by(NVME, &case.plan(start), &work(&job), Options::default()).warnings
}

/// A drive that was filled once has space left; then its collector begins, and the rate falls.
#[test]
fn rates_of_drive_that_is_not_steady_are_warned_about() {
    let few = warnings("filled", "number_ios=300\n");
    assert!(matches!(few[..], [Warning::NothingCollected { host_units: 300 }]), "{few:?}");
    let falling = warnings("filled", "number_ios=3300\n");
    assert!(matches!(falling[..], [Warning::StillFalls { .. }]), "{falling:?}");
    assert_eq!(warnings("steady", "number_ios=12000\n"), []);
    assert_eq!(warnings("steady", "number_ios=300\n"), [], "the collector works from the start on");
}
