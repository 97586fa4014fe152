//! Calibration: a plan of this machine, measured without any live storage command: the cost of two of its
//! cores, of the memory between them, and of this program's own code. A run of the plan in virtual time
//! predicts the result of a live run.
//!
//! The cost of code has two factors: the length of a code path, counted once in instructions and committed
//! (`tools/instructions`), and the speed of this machine on such code. The time of a counted path is never
//! measured here.

use runtime::Span;

use plan::units::span_text;
use world::RunError;

/// Results of `tools/instructions`.
const COUNTED: &str = include_str!("../../../tools/instructions.golden");

/// Callgrind counts a string move as one instruction per byte; the counted paths move this many bytes.
const MOVED: u64 = 512;

/// Bytes of the measured copy; `device.copy` of a plan is for the same size.
const COPY_BYTES: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primitives {
    /// A word to another core and one back.
    pub round_trip: Span,
    /// Read of a cache line that another core has written, with nothing to overlap.
    pub line_alone: Span,
    /// The same as one of many overlapping reads.
    pub line_of_many: Span,
    /// Copy of 4 KiB, source and destination cached.
    pub copy: Span,
    /// One poll of a task that waits for memory.
    pub look: Span,
    /// A read in virtual time, which gives the speed of this program's code; see
    /// [`microbench::simulated_read`].
    pub simulated_read: Span,
}

/// Code path lengths of a read through this program, in instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// A read in virtual time.
    pub simulated_read: u64,
    /// Driver, up to the doorbell.
    pub submit: u64,
    /// Driver, from the completion on.
    pub complete: u64,
    pub device: u64,
    /// Load generator: issuing and counting reads.
    pub engine: u64,
}

impl Primitives {
    /// Measures this machine on two cores; each value is the median of `samples` samples.
    pub fn measured(samples: usize) -> Result<Primitives, RunError> {
        let (round_trip, _) = microbench::round_trip(samples);
        let (line_alone, line_of_many) = microbench::lines(samples);
        Ok(Primitives {
            round_trip,
            line_alone,
            line_of_many,
            copy: microbench::beside_busy(|| microbench::copy(COPY_BYTES as usize, samples)),
            look: microbench::beside_busy(|| microbench::look(samples))?,
            simulated_read: microbench::beside_busy(|| {
                microbench::simulated_read(samples.div_ceil(100))
            })?,
        })
    }
}

impl Ways {
    /// The committed counts.
    ///
    /// # Panics
    /// If the committed file lacks a row.
    pub fn kept() -> Ways {
        let row = |name: &str| -> u64 {
            let line = COUNTED.lines().find_map(|line| line.strip_prefix(name));
            let count = line.and_then(|rest| rest.strip_prefix(": ")?.parse().ok());
            count.unwrap_or_else(|| panic!("tools/instructions.golden: no row {name:?}"))
        };
        let [submit, complete] = ["driver submit", "driver complete"].map(row);
        let device = row("device") - MOVED;
        let all = row("live 512 B depth 32") - MOVED;
        let engine = all.saturating_sub(submit + complete + device);
        Ways {
            simulated_read: row("simulated gen4 4 KiB depth 32"),
            submit,
            complete,
            device,
            engine,
        }
    }
}

/// Template of the plan, with a placeholder for each measured value.
const TEMPLATE: &str = include_str!("calibrated.toml");

/// CPU time of a read on each thread, excluding overlapped waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Host, up to the doorbell.
    pub submit: Span,
    /// Host, from the completion on: code, and a quarter of a cache line written by the device.
    pub complete: Span,
    pub engine: Span,
    /// Device, without the copy: code, and a cache line written by the host.
    pub device: Span,
    /// Device, copying 4 KiB.
    pub copy: Span,
}

impl Shares {
    /// Computes the shares from measurements and counts.
    pub fn new(of: &Primitives, ways: &Ways) -> Shares {
        let code = |way: u64| Span(of.simulated_read.0 * way / ways.simulated_read);
        Shares {
            submit: code(ways.submit),
            complete: code(ways.complete) + of.line_of_many / 4,
            engine: code(ways.engine),
            device: code(ways.device) + of.line_of_many,
            copy: of.copy,
        }
    }

    /// Total host time of a read.
    pub fn host(&self) -> Span {
        self.submit + self.complete + self.engine
    }

    /// Total device time of a read of `bytes` bytes.
    pub fn device(&self, bytes: u64) -> Span {
        self.device + Span(self.copy.0 * bytes / COPY_BYTES)
    }
}

/// Text of the calibrated plan.
pub fn plan(of: &Primitives, ways: &Ways) -> String {
    let shares = Shares::new(of, ways);
    let pace = format!("at {} for {}", of.simulated_read, ways.simulated_read);
    let counted = |way: u64| format!("{way} instructions {pace}");
    let values = [
        ("@latency", of.round_trip / 2, "half of a round trip between two cores".to_owned()),
        (
            "@host_read",
            of.line_alone.saturating_sub(of.line_of_many),
            "a line of another core alone, less one of many".to_owned(),
        ),
        ("@device_read", of.line_alone, "a line of another core alone".to_owned()),
        ("@poll", of.look, "a look of a task that waits alone".to_owned()),
        ("@submit", shares.submit, counted(ways.submit)),
        (
            "@complete",
            shares.complete,
            format!("{}, and a quarter of a line of many", counted(ways.complete)),
        ),
        ("@benchmark", shares.engine, counted(ways.engine)),
        ("@parse", shares.device, format!("{}, and a line of many", counted(ways.device))),
        ("@copy", shares.copy, "a copy of 4 KiB, all near".to_owned()),
    ];
    values.iter().fold(TEMPLATE.to_owned(), |text, (mark, span, source)| {
        let value = span_text(*span);
        text.replace(mark, &format!("{{ value = \"{value}\", source = \"measured: {source}\" }}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bus::sim::NamedCost;
    use plan::Plan;
    use world::interfaces::NVME;
    use world::work::Work;
    use world::{Options, simulate};

    fn machine() -> Primitives {
        Primitives {
            round_trip: Span::ns(300),
            line_alone: Span::ns(100),
            line_of_many: Span::ns(20),
            copy: Span::ns(90),
            look: Span::ns(5),
            simulated_read: Span::us(3),
        }
    }

    /// Fixed path lengths, independent of later recounts.
    const WAYS: Ways =
        Ways { simulated_read: 16_000, submit: 850, complete: 1_400, device: 2_700, engine: 650 };

    fn p50(of: &Primitives, depth: u32) -> Span {
        let plan = Plan::parse(&plan(of, &WAYS), "calibrated").expect("a plan");
        let job = format!("[r]\nrw=randread\nbs=4k\nsize=1m\niodepth={depth}\nnumber_ios=2000\n");
        let work = Work::parse(std::path::Path::new("test"), &job, Default::default()).unwrap();
        let run_result = simulate(NVME, &plan, &work, Options::default()).unwrap();
        Span::ns(run_result.jobs[0].1.stats.read.total.percentile_ns(50_000))
    }

    #[test]
    fn calibrated_plan_parses_and_has_nine_measured_values() {
        let plan = Plan::parse(&plan(&machine(), &Ways::kept()), "calibrated").expect("a plan");
        let measured = plan.sources.iter().filter(|s| s.source.starts_with("measured: "));
        assert_eq!(measured.count(), 9);
        assert!(plan.link.coherent && plan.device.copy == Some(Span::ns(90)));
    }

    /// The shares of both threads equal those in the plan.
    #[test]
    fn thread_shares_equal_costs_of_calibrated_plan() {
        let shares = Shares::new(&machine(), &WAYS);
        let plan = Plan::parse(&plan(&machine(), &WAYS), "calibrated").expect("a plan");
        let of = |costs: &[NamedCost], name: &str| {
            costs.iter().find(|cost| cost.name == name).expect("a cost of the plan").span
        };
        let host = ["submit", "complete", "benchmark"].map(|name| of(&plan.host.costs, name));
        assert_eq!(host.iter().fold(Span::ZERO, |sum, cost| sum + *cost), shares.host());
        let copy = plan.device.copy.expect("the device copies") / 2;
        assert_eq!(of(&plan.device.costs, "parse") + copy, shares.device(2048));
    }

    /// Each measurement counts as often as a single read incurs it.
    #[test]
    fn single_read_latency_follows_measured_costs() {
        let (before, one) = (p50(&machine(), 1), Span::ns(40));
        let changed = |change: &dyn Fn(&mut Primitives)| {
            let mut machine = machine();
            change(&mut machine);
            p50(&machine, 1).saturating_sub(before)
        };
        // The driver sees a completion at its next poll.
        let by_one = |span: Span| (one..=one + machine().look).contains(&span);
        assert!(by_one(changed(&|m| m.round_trip += one)), "a half there, a half back");
        assert!(by_one(changed(&|m| m.line_alone += one)), "the entry");
        assert!(by_one(changed(&|m| m.copy += one)), "the data");
    }

    /// With many reads in flight, the busier thread determines the latency.
    #[test]
    fn latency_at_depth_32_follows_busier_thread() {
        let mut far = machine();
        far.round_trip = Span::ns(600);
        let (here, there) = (p50(&machine(), 32).0, p50(&far, 32).0);
        assert!(there.abs_diff(here) < here / 50, "latency is hidden: {here} and {there} ps");
        let mut slow = machine();
        slow.copy = Span::ns(1_090);
        let more = p50(&slow, 32).0 - p50(&machine(), 32).0;
        // One microsecond more for each read in flight, from a histogram with a resolution of 1 %.
        assert!(more > 20 * 1_000_000 && more < 33 * 1_000_000, "{more} ps");
    }
}
