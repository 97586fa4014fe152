//! Write amplification while a span of a drive is overwritten: tables with columns `span_gib`, `fills_from`,
//! `fills_to` and `wa`.
//!
//! Rows of one source, load and span are parts of one run: a fresh drive, the preconditioning that the name
//! of the source has, then writes. The largest span of a table is the whole drive, others the same part of
//! the plan's. Only amplifications are compared, which hardly depend on the length of blocks, so that these
//! are shortened: a fill takes seconds.

use std::path::Path;

use plan::{Plan, Start};
use runtime::Span;
use serde::Serialize;
use workload::trace::Mapping;
use world::Options;
use world::interfaces::NVME;
use world::series::TimeSeries;
use world::work::Work;

use super::load::LeftOut;
use super::table::{Row, Table};

/// A ratio of write amplifications is near if it differs from 1 by at most this.
pub const NEAR: f64 = 0.10;

/// An interval of a run: host bytes as multiples of the span, from its first write on.
#[derive(Clone, Debug, PartialEq)]
pub struct Fill {
    /// Length of the region that is written, GiB of the measured drive.
    pub span_gib: f64,
    pub from: f64,
    pub to: f64,
    /// Units programmed for each unit of the host.
    pub amplification: f64,
    /// File and date of the measured run.
    pub source: String,
}

/// A row and its interval in the run of the model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Filled {
    /// Line of the table, from 1.
    pub line: usize,
    pub workload: String,
    /// Part of the drive that is written.
    pub span: f64,
    /// The preconditioning: `sequential`, `random order`, or `nothing`.
    pub before: &'static str,
    pub from: f64,
    pub to: f64,
    pub measured: f64,
    pub model: f64,
    /// The model's over the measured one.
    pub ratio: f64,
}

/// The preconditioning of a run: each unit of the span is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    Sequential,
    RandomOrder,
}

impl Before {
    fn name(self) -> &'static str {
        match self {
            Before::Nothing => "nothing",
            Before::Sequential => "sequential",
            Before::RandomOrder => "random order",
        }
    }
}

/// Rows of one measured run, and the job that repeats it.
pub(super) struct Run<'t> {
    rows: Vec<(&'t Row, &'t Fill)>,
    /// Keys of the job that is measured.
    keys: String,
    before: Before,
    /// Part of the drive that is written.
    span: f64,
}

/// Block size of sequential writes, shorter than the measured ones, which may exceed a transfer.
const SEQUENTIAL: &str = "128k";
/// Interval of the time series. A part is a tenth of a fill at least: many intervals.
const INTERVAL: Span = Span::ms(1);
/// Part of the span that is written after the last interval of a row, so that this is complete.
const BEYOND: f64 = 0.02;

impl<'t> Run<'t> {
    /// The runs of a table, and the rows that have none.
    pub fn all(table: &'t Table) -> (Vec<Run<'t>>, Vec<LeftOut>) {
        let fills = || table.rows.iter().filter_map(|row| row.fill.as_ref());
        let whole = fills().map(|fill| fill.span_gib).fold(0.0, f64::max);
        let (mut runs, mut left_out): (Vec<Run<'t>>, _) = (Vec::new(), Vec::new());
        for row in &table.rows {
            let Some(fill) = &row.fill else { continue };
            if !table.is_wanted(row) {
                left_out.push(LeftOut::Unwanted);
                continue;
            }
            let is_same = |run: &&mut Run<'_>| {
                let (first, of) = run.rows[0];
                first.workload == row.workload
                    && first.block_bytes == row.block_bytes
                    && (of.span_gib, &of.source) == (fill.span_gib, &fill.source)
            };
            if let Some(run) = runs.iter_mut().find(is_same) {
                run.rows.push((row, fill));
                continue;
            }
            match keys(row, &fill.source) {
                Err(why) => left_out.push(why),
                Ok((keys, is_precondition)) => {
                    let before = match () {
                        () if is_precondition => Before::Nothing,
                        () if fill.source.contains("-none-") => Before::Nothing,
                        () if fill.source.contains("-seqshuffle-") => Before::RandomOrder,
                        () => Before::Sequential,
                    };
                    let span = fill.span_gib / whole;
                    runs.push(Run { rows: vec![(row, fill)], keys, before, span });
                }
            }
        }
        (runs, left_out)
    }

    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The rows with the write amplification of the plan.
    ///
    /// # Errors
    /// The run fails, or the plan has no flash.
    pub fn filled(&self, plan: &Plan) -> Result<Vec<Filled>, String> {
        let mut plan = shortened(plan)?;
        plan.medium.flash.iter_mut().for_each(|flash| flash.start = Start::Fresh);
        plan.run.breakdown_sample = super::BREAKDOWN_SAMPLE;
        let (text, [precondition, span]) = self.text(&plan);
        let work = Work::parse(Path::new("fills"), &text, Mapping::default());
        let work = work.map_err(|error| error.to_string())?;
        let options = Options { series: Some(INTERVAL), ..Options::default() };
        let result = world::simulate(NVME.of_plan(&plan), &plan, &work, options);
        let result = result.map_err(|error| error.to_string())?;
        super::no_errors(&result)?;
        let written = Written::of(&result.series.unwrap_or_default());
        let each = self.rows.iter().map(|(row, fill)| {
            let at = |fills: f64| precondition as f64 + fills * span as f64;
            let model = written.amplification(at(fill.from), at(fill.to));
            let model = model.ok_or("the run ended before the row's interval")?;
            let measured = fill.amplification;
            Ok(Filled {
                line: row.line,
                workload: row.workload.clone(),
                span: self.span,
                before: self.before.name(),
                from: fill.from,
                to: fill.to,
                measured,
                model,
                ratio: model / measured,
            })
        });
        each.collect()
    }

    /// The job file, and the bytes of the preconditioning and of the span.
    fn text(&self, plan: &Plan) -> (String, [u64; 2]) {
        const WHOLE: u64 = 1 << 20;
        let capacity = plan.medium.contents.capacity_bytes as f64;
        let span = ((capacity * self.span) as u64 / WHOLE).max(1) * WHOLE;
        let span = span.min(plan.medium.contents.capacity_bytes / 4096 * 4096);
        let last = self.rows.iter().map(|(_, fill)| fill.to).fold(0.0, f64::max);
        let bytes = (span as f64 * (last + BEYOND)) as u64 / 4096 * 4096;
        let mut text = format!("[global]\nsize={span}\niodepth=64\n");
        match self.before {
            Before::Nothing => {}
            Before::Sequential => {
                text += &format!("[before]\nrw=write\nbs={SEQUENTIAL}\n");
            }
            Before::RandomOrder => text += "[before]\nrw=randwrite\nbs=4k\n",
        }
        text += &format!("[row]\nstonewall\n{}io_size={bytes}\n", self.keys);
        (text, [if self.before == Before::Nothing { 0 } else { span }, span])
    }
}

/// Word lines of a block.
const WORD_LINES: u32 = 4;

/// The plan with blocks of [`WORD_LINES`], if its blocks are longer.
///
/// # Errors
/// The plan has no flash, or a capacity that does not fit the shorter blocks.
fn shortened(plan: &Plan) -> Result<Plan, String> {
    let flash = plan.medium.flash.as_ref().ok_or("the plan has no flash")?;
    if flash.spec.geometry.word_lines <= WORD_LINES {
        return Ok(plan.clone());
    }
    let shorter = [("medium.flash.word_lines", &*WORD_LINES.to_string())];
    plan.with_sets(shorter).map_err(|errors| errors.to_string())
}

/// Keys of the job of a row, and whether it is the preconditioning of another run.
///
/// # Errors
/// There is no job for the load.
fn keys(row: &Row, source: &str) -> Result<(String, bool), LeftOut> {
    let unknown = || LeftOut::Load(row.workload.clone());
    let random = format!("rw=randwrite\nbs={}\n", row.block_bytes.ok_or_else(unknown)?);
    let (name, skew) = row.workload.split_once(' ').unwrap_or((&row.workload, ""));
    Ok(match (name, skew.parse::<f64>()) {
        ("write", _) => (format!("rw=write\nbs={SEQUENTIAL}\n"), true),
        ("randwrite-once-each", _) => (random, true),
        ("randwrite", _) => (random + "norandommap=1\n", false),
        ("zipf", Ok(theta)) => {
            // From the first place on, in the order of their frequency.
            let centre = if source.contains("-noshuffle-") { ":0" } else { "" };
            (format!("{random}random_distribution=zipf:{theta}{centre}\n"), false)
        }
        ("fiozipf", _) => return Err(LeftOut::FioZipf),
        ("zns", _) => return Err(LeftOut::Zones),
        _ => return Err(unknown()),
    })
}

/// Sums of what the host had written and the flash software programmed, at the end of each interval.
struct Written {
    /// Host bytes, units of the host, units programmed: sums since the begin.
    sums: Vec<[f64; 3]>,
}

impl Written {
    fn of(series: &TimeSeries) -> Written {
        let mut sums = vec![[0.0; 3]];
        for point in &series.points {
            let (host, programmed) = point.units.unwrap_or_default();
            let [bytes, units, all] = sums[sums.len() - 1];
            sums.push([
                bytes + point.writes.bytes as f64,
                units + host as f64,
                all + programmed as f64,
            ]);
        }
        Written { sums }
    }

    /// Write amplification between two numbers of host bytes. None: fewer were written.
    fn amplification(&self, from: f64, to: f64) -> Option<f64> {
        let [from, to] = [self.at(from)?, self.at(to)?];
        Some((to.1 - from.1) / (to.0 - from.0))
    }

    /// Units of the host and units programmed when the host had written `bytes` bytes.
    fn at(&self, bytes: f64) -> Option<(f64, f64)> {
        let next = self.sums.iter().position(|sums| sums[0] >= bytes)?;
        let [after, before] = [self.sums[next], self.sums[next.saturating_sub(1)]];
        let part = match after[0] - before[0] {
            0.0 => 0.0,
            written => (bytes - before[0]) / written,
        };
        let between = |of: usize| before[of] + part * (after[of] - before[of]);
        Some((between(1), between(2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amplification_is_that_of_the_bytes_between() {
        // 100 bytes without, then 100 with twice the units.
        let written = Written {
            sums: vec![[0.0; 3], [100.0, 10.0, 10.0], [100.0, 10.0, 10.0], [200.0, 20.0, 30.0]],
        };
        let of = |from, to| written.amplification(from, to);
        assert_eq!(of(0.0, 100.0), Some(1.0));
        assert_eq!(of(0.0, 200.0), Some(1.5));
        assert_eq!(of(150.0, 200.0), Some(2.0));
        assert_eq!(of(50.0, 150.0), Some(1.5));
        assert_eq!(of(150.0, 201.0), None);
    }
}
