//! The answer first: a summary of runs in a screen of 80 columns and at most 24 lines.

use crate::model::{Histogram, Kind, Operations, Run, Warning, WarningKind, World};
use crate::number::{cut, heading, mib, rate, short_us, us, wrapped};
use crate::pool::Pool;
use crate::style::Style;
use crate::text::percentile;

/// Most lines of a summary.
pub const LINES_MAX: usize = 24;
const ROWS_MAX: usize = 12;
const WARNINGS_MAX: usize = 5;
/// Waits that a line names.
const WAITS: usize = 3;
/// Smallest share of the mean of a wait that is named.
const SHOWN: f64 = 0.01;
/// Width of the names in front of numbers.
const NAMES: usize = 34;

/// Summary of the runs of one file: one, or one in each world. Ends with a line break.
pub fn of_file(runs: &[&Run], style: Style) -> String {
    let Some(first) = runs.first() else { return String::new() };
    let mut page = vec![style.head(&title(runs))];
    page.extend(table(runs, style));
    let busiest = busiest(first);
    page.extend(runs.iter().filter_map(|run| waits(run, busiest?)).flatten());
    page.extend(runs.iter().flat_map(|run| facts(run)));
    let warnings = warnings(runs);
    let room = LINES_MAX.saturating_sub(page.len() + warnings.len().min(WARNINGS_MAX));
    page.extend(shortened(notes(runs), room, "notes"));
    let paint = |line: String| match line.starts_with("error") {
        true => style.error(&line),
        false => style.warning(&line),
    };
    page.extend(shortened(warnings, WARNINGS_MAX, "lines of warnings").into_iter().map(paint));
    page.truncate(LINES_MAX);
    page.into_iter().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// File, worlds, plan and interface.
fn title(runs: &[&Run]) -> String {
    let first = runs[0];
    let worlds = match runs {
        [one] => world_words(one),
        _ => runs.iter().map(|run| world_word(run)).collect::<Vec<_>>().join(" and "),
    };
    heading(&first.work.file, &format!(", {worlds}, plan {}, {}", first.plan.name, first.interface))
}

/// Heading of the details of a run: file, world, plan and interface.
pub fn title_of(run: &Run) -> String {
    title(&[run])
}

/// World and place of a run, in words.
pub fn world_words(run: &Run) -> String {
    use crate::model::Device;
    let world = match run.device {
        Device::Modelled => "simulated",
        Device::Thread => "live, two threads",
        Device::SharedMemory => "live, two processes",
        Device::VfioUser => "live, over vfio-user",
        Device::Vfio => "live, over VFIO",
    };
    match (run.threads, run.device) {
        (0 | 1, _) => world.to_owned(),
        (threads, Device::Thread) => format!("live, {threads} host threads and the device's"),
        (threads, _) => format!("{world}, {threads} host threads"),
    }
}

pub(crate) fn world_word(run: &Run) -> &'static str {
    match run.world {
        World::Simulated => "simulated",
        World::Live => "live",
    }
}

/// One row for each job, kind and world; the worlds of a kind are one below the other.
fn table(runs: &[&Run], style: Style) -> Vec<String> {
    let cells = ["IOPS", "MiB/s", "p50 us", "p99 us", "p99.9 us"];
    let mut rows = Vec::new();
    for (at, job) in runs[0].jobs.iter().enumerate() {
        for kind in Kind::ALL {
            let mut name = format!("{} {}", cut(&job.name, NAMES - 17), kind.name());
            for run in runs {
                let Some(of) = run.jobs.get(at).and_then(|job| job.operations.get(&kind)) else {
                    continue;
                };
                let world = if runs.len() > 1 { world_word(run) } else { "" };
                let name = std::mem::take(&mut name);
                let names = format!("{name:<0$} {world:<9}", NAMES - 10);
                rows.push(names + &numbers(kind, of));
                let live = run.recorded.as_ref().and_then(|live| live.latencies.get(&kind));
                if let Some(live) = live.filter(|live| live.count > 0) {
                    let names = format!("{:<1$} {2:<9}", "", NAMES - 10, "recorded");
                    rows.push(names + &recorded(live));
                }
            }
        }
    }
    let mut lines = vec![style.head(&format!("{:<NAMES$}{}", "", row(cells)))];
    lines.extend(shortened(rows, ROWS_MAX, "rows"));
    lines
}

fn row(cells: [impl AsRef<str>; 5]) -> String {
    cells
        .iter()
        .zip([9, 9, 9, 9, 9])
        .map(|(cell, width)| format!(" {:>1$}", cell.as_ref(), width - 1))
        .collect()
}

/// Of the live run that is replayed: its latencies.
fn recorded(live: &Histogram) -> String {
    let at = |quantile| short_us(percentile(live, quantile));
    row(["-".to_owned(), "-".to_owned(), at(0.5), at(0.99), at(0.999)])
}

fn numbers(kind: Kind, of: &Operations) -> String {
    let at = |quantile| match of.count {
        0 => "-".to_owned(),
        _ => short_us(percentile(&of.latency, quantile)),
    };
    let moved = match kind {
        Kind::Flush => "-".to_owned(),
        _ => mib(of.bytes_per_second),
    };
    let numbers = row([rate(of.iops), moved, at(0.5), at(0.99), at(0.999)]);
    match of.errors {
        0 => numbers,
        _ => numbers + " !",
    }
}

/// The first lines, and how many are left out.
fn shortened(mut lines: Vec<String>, most: usize, what: &str) -> Vec<String> {
    if lines.len() > most {
        let kept = most.saturating_sub(1);
        let left = lines.len() - kept;
        lines.truncate(kept);
        if most > 0 {
            lines.push(format!("... {left} more {what}: --verbose"));
        }
    }
    lines
}

/// The kind of which most operations completed.
fn busiest(run: &Run) -> Option<Kind> {
    let count = |kind: &Kind| -> u64 {
        run.jobs.iter().filter_map(|job| job.operations.get(kind)).map(|of| of.count).sum()
    };
    let most = Kind::ALL.into_iter().rev().max_by_key(count)?;
    (count(&most) > 0).then_some(most)
}

/// The largest waits, in words.
fn waits(run: &Run, kind: Kind) -> Option<Vec<String>> {
    let pool = Pool::of(run, kind);
    let largest = pool.largest(WAITS);
    if largest.is_empty() {
        return None;
    }
    let parts: Vec<_> = largest
        .iter()
        .filter(|(_, _, share)| *share >= SHOWN)
        .map(|(name, ns, share)| format!("{name} {} ({:.0} %)", us(*ns), share * 100.0))
        .collect();
    let (world, mean) = (world_word(run), us(pool.traced_ns));
    let text = format!("{world} {} of {mean} us, mostly {}", kind.name(), parts.join(", "));
    Some(wrapped(&text, "  "))
}

/// Facts besides rates: verified blocks, resets, faults, flash.
fn facts(run: &Run) -> Vec<String> {
    let world = world_word(run);
    let mut facts = Vec::new();
    let verified: u64 = run.jobs.iter().map(|job| job.blocks_verified).sum();
    if verified > 0 {
        facts.push(format!("verified {verified} blocks"));
    }
    if run.resets.requested > 0 {
        let (came, of) = (run.resets.completed, run.resets.requested);
        facts.push(format!("{came} of {of} resets under the work"));
    }
    let faults: u64 = run.faults.iter().map(|fault| fault.injected).sum();
    if !run.faults.is_empty() {
        facts.push(format!("{faults} faults injected"));
    }
    let software = run.flash.as_ref().and_then(|flash| flash.software.as_ref());
    if let Some(thousandths) = software.and_then(|of| of.write_amplification_per_mille) {
        let (whole, part) = (thousandths / 1000, thousandths % 1000);
        facts.push(format!("write amplification {whole}.{part:03}"));
    }
    match facts.is_empty() {
        true => Vec::new(),
        false => wrapped(&format!("{world}: {}", facts.join(", ")), "  "),
    }
}

fn notes(runs: &[&Run]) -> Vec<String> {
    let mut notes: Vec<&String> = Vec::new();
    for note in runs.iter().flat_map(|run| run.work.notes.iter().chain(&run.notes)) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes.into_iter().flat_map(|note| wrapped(&format!("note: {note}"), "  ")).collect()
}

/// The warnings of all runs, errors first.
fn warnings(runs: &[&Run]) -> Vec<String> {
    let each = runs.iter().flat_map(|run| run.warnings.iter().map(move |warning| (*run, warning)));
    let mut each: Vec<(&Run, &Warning)> = each.collect();
    each.sort_by_key(|(_, warning)| warning.kind);
    let mut lines: Vec<String> = Vec::new();
    for (run, warning) in each {
        let word = if warning.kind == WarningKind::Errors { "error" } else { "warning" };
        let world = if runs.len() > 1 { format!(", {}", world_word(run)) } else { String::new() };
        lines.extend(wrapped(&format!("{word}{world}: {}", warning.text), "  "));
    }
    lines
}
