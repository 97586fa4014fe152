//! A plan of this very machine: what two of its cores, the memory between them and this program's own
//! code take, measured without any live command for storage. A run of it in virtual time says beforehand
//! what a live run will show.
//!
//! Code has two factors: how long its way is, counted once in instructions and kept in the tree
//! (`tools/instructions`), and how fast this machine goes through code of the kind. Of a way that was
//! counted, no time is ever measured here.

use runtime::Span;

use crate::measure;
use plan::units::span_text;
use world::RunError;

/// What `tools/instructions` has counted.
const COUNTED: &str = include_str!("../../../tools/instructions.golden");

/// Callgrind counts a string move as one instruction for each byte, and so many are moved by what is counted.
const MOVED: u64 = 512;

/// Bytes of a copy that is measured, and that `device.copy` of a plan speaks of.
const COPY_BYTES: u64 = 4096;

/// What was measured of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Primitives {
    /// A word to another core and one back.
    pub round_trip: Span,
    /// A line that another core has written, while nothing else can be done.
    pub line_alone: Span,
    /// One of many such lines.
    pub line_of_many: Span,
    /// A copy of 4 KiB, all near.
    pub copy: Span,
    /// A look of a task that waits for memory.
    pub look: Span,
    /// A read in virtual time, for the pace of this program's code; see [`measure::simulated_read`].
    pub simulated_read: Span,
}

/// The ways of a read through this program, instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// A read in virtual time.
    pub simulated_read: u64,
    /// The driver's, to the doorbell.
    pub submit: u64,
    /// The driver's, from the completion on.
    pub complete: u64,
    /// The device's, without the copy.
    pub device: u64,
    /// What asks for reads and counts them.
    pub engine: u64,
}

impl Primitives {
    /// Measures the machine that this runs on, on two cores: medians of so many samples each.
    pub fn measured(samples: usize) -> Result<Primitives, RunError> {
        let (round_trip, _) = measure::round_trip(samples);
        let (line_alone, line_of_many) = measure::lines(samples);
        Ok(Primitives {
            round_trip,
            line_alone,
            line_of_many,
            copy: measure::beside_busy(|| measure::copy(COPY_BYTES as usize, samples)),
            look: measure::beside_busy(|| measure::look(samples)).map_err(RunError::of)?,
            simulated_read: measure::beside_busy(|| {
                measure::simulated_read(samples.div_ceil(100))
            })?,
        })
    }
}

impl Ways {
    /// As kept in the tree.
    ///
    /// # Panics
    /// If the tree's file has no such row.
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

/// The plan's text, with a mark for each value that is measured.
const TEMPLATE: &str = include_str!("calibrated.toml");

/// What a read takes of the time of each thread, wherever it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// The host's, to the doorbell.
    pub submit: Span,
    /// The host's, from the completion on: code, and a quarter of a line that the device has written.
    pub complete: Span,
    /// The host's, for whoever asks for reads.
    pub engine: Span,
    /// The device's, without the copy: code, and a line that the host has written.
    pub device: Span,
    /// The device's, for moving 4 KiB.
    pub copy: Span,
}

impl Shares {
    /// By what was measured and what was counted.
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

    /// All that a read takes of the host's thread.
    pub fn host(&self) -> Span {
        self.submit + self.complete + self.engine
    }

    /// All that a read of so many bytes takes of the device's thread.
    pub fn device(&self, bytes: u64) -> Span {
        self.device + Span(self.copy.0 * bytes / COPY_BYTES)
    }
}

/// The text of a plan in which a read takes what these say.
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

    /// Ways that stay as they are when the code's own are counted anew.
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
    fn a_plan_of_a_machine_is_read_and_names_no_guess_for_what_was_measured() {
        let plan = Plan::parse(&plan(&machine(), &Ways::kept()), "calibrated").expect("a plan");
        let measured = plan.sources.iter().filter(|s| s.source.starts_with("measured: "));
        assert_eq!(measured.count(), 9);
        assert!(plan.link.coherent && plan.device.copy == Some(Span::ns(90)));
    }

    /// Both threads' shares are what the plan says of them.
    #[test]
    fn the_shares_are_those_of_the_plan() {
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

    /// Each measure counts as often as a lone read meets it.
    #[test]
    fn a_read_follows_what_was_measured() {
        let (before, one) = (p50(&machine(), 1), Span::ns(40));
        let changed = |change: &dyn Fn(&mut Primitives)| {
            let mut machine = machine();
            change(&mut machine);
            p50(&machine, 1).saturating_sub(before)
        };
        // The driver sees a completion at its next look.
        let by_one = |span: Span| (one..=one + machine().look).contains(&span);
        assert!(by_one(changed(&|m| m.round_trip += one)), "a half there, a half back");
        assert!(by_one(changed(&|m| m.line_alone += one)), "the entry");
        assert!(by_one(changed(&|m| m.copy += one)), "the data");
    }

    /// With many in flight, the busier of two threads decides.
    #[test]
    fn many_reads_follow_the_busier_end() {
        let mut far = machine();
        far.round_trip = Span::ns(600);
        let (here, there) = (p50(&machine(), 32).0, p50(&far, 32).0);
        assert!(there.abs_diff(here) < here / 50, "latency is hidden: {here} and {there} ps");
        let mut slow = machine();
        slow.copy = Span::ns(1_090);
        let more = p50(&slow, 32).0 - p50(&machine(), 32).0;
        // A microsecond more for each in flight, read from a histogram whose rows lie 1 % apart at most.
        assert!(more > 20 * 1_000_000 && more < 33 * 1_000_000, "{more} ps");
    }
}
