//! Everything about a run, as text of 80 columns: microseconds, columns aligned.

use std::fmt::{self, Write};

use runtime::Span;

use crate::model::{
    Around, Breakdown, Energy, Flash, Histogram, Job, Link, Operations, Packets, Run, Shares,
    WarningKind,
};
use crate::number::{mib, us, wrapped};

const PERCENTILES: [(&str, f64); 7] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99.5", 0.995),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];

/// Prefix of the stages in which an operation waits for garbage collection.
const COLLECTOR: &str = "collector at ";

/// The details of a run. Ends with a line break.
pub fn details(run: &Run) -> String {
    let mut page = String::new();
    write(&mut page, run).expect("a String takes everything");
    page
}

fn write(page: &mut String, run: &Run) -> fmt::Result {
    for note in run.work.notes.iter().chain(&run.notes) {
        lines(page, &format!("note: {note}"))?;
    }
    for warning in &run.warnings {
        if warning.kind == WarningKind::WithoutEffect {
            lines(page, &format!("note: {}", warning.text))?;
        }
    }
    if run.resets.requested > 0 {
        let (came, of) = (run.resets.completed, run.resets.requested);
        writeln!(page, "note: {came} of {of} resets came under the work")?;
    }
    for fault in &run.faults {
        writeln!(page, "fault {}: injected {} times", fault.name, fault.injected)?;
    }
    if let Some(energy) = &run.energy {
        energy_of(page, energy)?;
    }
    if let Some(stats) = &run.flash {
        flash(page, stats, run)?;
    }
    cores(page, run)?;
    for job in run.jobs.iter().filter(|job| job.blocks_verified > 0) {
        writeln!(page, "{}: {} blocks verified", job.name, job.blocks_verified)?;
    }
    run.jobs.iter().try_for_each(|job| one_job(page, job))?;
    recorded(page, run)
}

fn energy_of(page: &mut String, energy: &Energy) -> fmt::Result {
    let time_ps: u64 = energy.states.iter().map(|state| state.time_ps).sum();
    let of_all = |ps: u64| 100.0 * ps as f64 / time_ps.max(1) as f64;
    let mut text = format!("energy: {:.3} mJ", energy.microjoules as f64 / 1e3);
    for state in energy.states.iter().filter(|state| state.entries > 0) {
        let (milliwatts, share) = (state.milliwatts, of_all(state.time_ps));
        write!(text, ", {milliwatts} mW {share:.2} % (entered {} times)", state.entries)?;
    }
    lines(page, &text)
}

fn lines(page: &mut String, text: &str) -> fmt::Result {
    wrapped(text, "  ").iter().try_for_each(|line| writeln!(page, "{line}"))
}

fn cores(page: &mut String, run: &Run) -> fmt::Result {
    if let Some(cores) = &run.cores {
        let share = |of: &dyn Fn(&crate::model::Core) -> u64| {
            let sum: u64 = cores.each.iter().map(of).sum();
            100.0 * sum as f64 / (cores.of_ps.max(1) as f64 * cores.each.len() as f64)
        };
        let (work, polling) = (share(&|core| core.busy_ps), share(&|core| core.polling_ps));
        writeln!(page, "host cores: {work:.2} % work, {polling:.2} % polling")?;
    }
    if let Some(link) = &run.link {
        let share = |ps: u64| 100.0 * ps as f64 / link.of_ps.max(1) as f64;
        let (up, down) = (share(link.up.busy_ps), share(link.down.busy_ps));
        writeln!(page, "link: {up:.2} % of the time up, {down:.2} % down")?;
        packets(page, link)?;
    }
    if let Some(thread) = run.host_thread_ps {
        writeln!(page, "host thread: {} of processor time", Span(thread))?;
    }
    Ok(())
}

/// Packets by kind, in both directions.
fn packets(page: &mut String, link: &Link) -> fmt::Result {
    let mut kinds: Vec<&str> = Vec::new();
    for packets in link.up.packets.iter().chain(&link.down.packets) {
        if !kinds.contains(&packets.kind.as_str()) {
            kinds.push(&packets.kind);
        }
    }
    if kinds.is_empty() {
        return Ok(());
    }
    let cells = |count: &str, mib: &str, share: &str| format!(" {count:>10} {mib:>8} {share:>7}");
    let (up, down) = (cells("up", "MiB", "payload"), cells("down", "MiB", "payload"));
    writeln!(page, "  {:<22}{up}{down}", "packets")?;
    let payload = |of: u64, bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => format!("{:.1}%", of as f64 * 100.0 / bytes as f64),
    };
    let ways = [&link.up, &link.down];
    let row = |page: &mut String, name: &str, of: &dyn Fn(&Packets) -> bool| {
        let of_ways = ways.map(|way| {
            let sum = |field: &dyn Fn(&Packets) -> u64| -> u64 {
                way.packets.iter().filter(|packets| of(packets)).map(field).sum()
            };
            let bytes = sum(&|packets| packets.bytes);
            let share = payload(sum(&|packets| packets.payload_bytes), bytes);
            cells(&sum(&|packets| packets.count).to_string(), &mib(bytes as f64), &share)
        });
        writeln!(page, "    {name:<20}{}", of_ways.concat())
    };
    for kind in kinds {
        row(page, kind, &|packets| packets.kind == kind)?;
    }
    row(page, "all", &|_| true)
}

fn one_job(page: &mut String, job: &Job) -> fmt::Result {
    let measured = Span(job.measured_ps);
    write!(page, "{}: group {}, measured {measured}", job.name, job.group)?;
    writeln!(page, ", errors {}", job.errors)?;
    for (kind, operations) in &job.operations {
        of_kind(page, kind.name(), operations)?;
        if let Some(one) = &operations.breakdown {
            breakdown(page, one)?;
        }
    }
    Ok(())
}

fn of_kind(page: &mut String, name: &str, of: &Operations) -> fmt::Result {
    write!(page, "  {name:<5} {} ops, IOPS {:.1}", of.count, of.iops)?;
    if of.bytes > 0 {
        let moved = mib(of.bytes as f64);
        write!(page, ", {} MiB/s, {moved} MiB moved", mib(of.bytes_per_second))?;
    }
    if of.errors > 0 {
        write!(page, ", {} FAILED", of.errors)?;
    }
    writeln!(page)?;
    let rows = [
        ("slat", of.submission.as_ref()),
        ("clat", of.completion.as_ref()),
        ("lat", Some(&of.latency)),
    ];
    let used = rows.into_iter().filter_map(|(name, all)| Some((name, all?)));
    let used: Vec<_> = used.filter(|(_, all)| all.count > 0).collect();
    if used.is_empty() {
        return Ok(());
    }
    writeln!(page, "    {:<4}{}", "us", columns(["min", "mean", "max", "stddev"]))?;
    for (name, all) in used {
        let numbers = [all.min_ns as f64, all.mean_ns, all.max_ns as f64, all.stddev_ns];
        writeln!(page, "    {name:<4}{}", columns(numbers.map(us)))?;
    }
    percentiles(page, &of.latency)
}

fn percentiles(page: &mut String, all: &Histogram) -> fmt::Result {
    writeln!(page, "    {:<4}{}", "us", columns(PERCENTILES.map(|(name, _)| name)))?;
    let numbers = PERCENTILES.map(|(_, quantile)| us(percentile(all, quantile)));
    writeln!(page, "    {:<4}{}", "lat", columns(numbers))
}

/// The value at a quantile of the list, in nanoseconds.
pub(crate) fn percentile(all: &Histogram, quantile: f64) -> f64 {
    let listed = all.percentiles.iter().find(|one| one.quantile == quantile);
    listed.map_or_else(|| all.at(quantile), |one| one.ns) as f64
}

fn columns<const N: usize>(cells: [impl AsRef<str>; N]) -> String {
    cells.iter().map(|cell| format!(" {:>9}", cell.as_ref())).collect()
}

const HEADING: &str = "latency breakdown, us";

fn breakdown(page: &mut String, breakdown: &Breakdown) -> fmt::Result {
    let mean = &breakdown.mean;
    let widest = breakdown.stages.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let width = widest.max(HEADING.len() - 2);
    let row = |page: &mut String, name: &str, of: &dyn Fn(&Shares) -> f64| {
        let share = if mean.total_ns > 0.0 { of(mean) * 100.0 / mean.total_ns } else { 0.0 };
        write!(page, "      {name:<width$} {:>9} {share:>6.1}%", us(of(mean)))?;
        for around in &breakdown.at {
            write!(page, " {:>9}", us(of(&around.shares)))?;
        }
        writeln!(page)
    };
    write!(page, "    {HEADING:<0$} {1:>9} {2:>7}", width + 2, "mean", "share")?;
    for around in &breakdown.at {
        write!(page, " {:>9}", format!("at {}", name_of(around.quantile)))?;
    }
    writeln!(page)?;
    for (at, name) in breakdown.stages.iter().enumerate() {
        // Stages without time are omitted; this world may not have them at all.
        if mean.stages_ns[at] != 0.0 {
            row(page, name, &|shares| shares.stages_ns[at])?;
        }
    }
    row(page, "unexplained", &|shares| shares.unexplained_ns)?;
    row(page, "total", &|shares| shares.total_ns)?;
    collector(page, breakdown)?;
    for Around { quantile, from_ps, to_ps, count, .. } in &breakdown.at {
        let (name, from, to) = (name_of(*quantile), Span(*from_ps), Span(*to_ps));
        writeln!(page, "      at {name}: mean of {count} ops from {from} to {to}")?;
    }
    Ok(())
}

/// `p99.9` for 0.999.
pub(crate) fn name_of(quantile: f64) -> String {
    // To a thousandth of a percent, so that 99.9 has one decimal.
    format!("p{}", (quantile * 100_000.0).round() / 1_000.0)
}

/// Writes the share of the latency that garbage collection causes, if any.
fn collector(page: &mut String, breakdown: &Breakdown) -> fmt::Result {
    let share = |shares: &Shares| {
        let stages = breakdown.stages.iter().zip(&shares.stages_ns);
        let its: f64 =
            stages.filter(|(name, _)| name.starts_with(COLLECTOR)).map(|(_, ns)| ns).sum();
        if shares.total_ns > 0.0 { its * 100.0 / shares.total_ns } else { 0.0 }
    };
    let mean = share(&breakdown.mean);
    if mean == 0.0 {
        return Ok(());
    }
    write!(page, "      GC share: {mean:.1} %")?;
    for around in &breakdown.at {
        write!(page, ", at {} {:.1} %", name_of(around.quantile), share(&around.shares))?;
    }
    writeln!(page)
}

fn flash(page: &mut String, stats: &Flash, run: &Run) -> fmt::Result {
    let mut line = |text: String| lines(page, &text);
    let Some(software) = &stats.software else {
        let Flash { senses, retries, programs, failures, .. } = stats;
        return line(format!(
            "flash: pages sensed {senses} times, {retries} again; {programs} programmed, {failures} failures"
        ));
    };
    if let Some(amplification) = software.write_amplification_per_mille {
        let collector = software.collector_share_per_mille.unwrap_or(0);
        line(format!(
            "flash: write amplification {}: {} units programmed, {}.{} % by the collector",
            per_mille(amplification),
            software.programmed_units
                + software.copied_units
                + software.meta_units
                + software.padding_units,
            collector / 10,
            collector % 10,
        ))?;
    }
    let map = (software.map_units * 1000).checked_div(software.host_units);
    if let Some(map) = map.filter(|_| software.map_reads > 0) {
        line(format!(
            "flash: map share of it {}: {} map segments written, {} read",
            per_mille(map),
            software.map_units,
            software.map_reads,
        ))?;
    }
    line(format!(
        "flash: {} of {} units hold data, {} can be written before collection begins",
        software.mapped_units, software.good_units, software.left_units
    ))?;
    let elapsed = Span(run.jobs.iter().map(|job| job.elapsed_ps).max().unwrap_or(0));
    line(format!(
        "flash: superblocks erased {} to {} times, {} erased and {} collected in {elapsed}",
        software.erases_least, software.erases_most, software.erased, software.collected
    ))?;
    line(format!(
        "flash: pages sensed {} times, {} again; {} programmed, {} failures, {} blocks retired",
        stats.senses, stats.retries, stats.programs, stats.failures, software.retired
    ))?;
    let bytes = stats.memory_bytes;
    let per_tb = u128::from(bytes) * 1_000_000 / u128::from(software.capacity_bytes.max(1));
    line(format!("flash: simulated in {bytes} bytes of memory, {per_tb} MB for each TB"))
}

fn per_mille(thousandths: u64) -> String {
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

/// A recorded run beside the replay of its arrivals.
fn recorded(page: &mut String, run: &Run) -> fmt::Result {
    let Some(live) = &run.recorded else { return Ok(()) };
    lines(page, &format!("as recorded ({}), and as replayed", live.run))?;
    for kind in crate::model::Kind::ALL {
        let now = crate::pool::Pool::of(run, kind);
        let before = live.latencies.get(&kind).filter(|all| all.count > 0);
        if before.is_none() && now.latency.count == 0 {
            continue;
        }
        let row = |page: &mut String, name: &str, a: Option<String>, b: Option<String>| {
            let cell = |cell: Option<String>| cell.unwrap_or_else(|| "-".to_owned());
            writeln!(page, "  {name:<26} {:>11} {:>11}", cell(a), cell(b))
        };
        let after = Some(&now.latency).filter(|all| all.count > 0);
        row(page, kind.name(), Some("recorded".to_owned()), Some("replayed".to_owned()))?;
        let count = |of: Option<&Histogram>| Some(of.map_or(0, |all| all.count).to_string());
        row(page, "operations", count(before), count(after))?;
        for (name, quantile) in [("p50, us", 0.5), ("p99, us", 0.99)] {
            let at = |of: Option<&Histogram>| of.map(|all| us(percentile(all, quantile)));
            row(page, name, at(before), at(after))?;
        }
        let mean = |of: Option<&Histogram>| of.map(|all| us(all.mean_ns));
        row(page, "mean, us", mean(before), mean(after))?;
        for name in stage_names(live, &now, kind) {
            let was = live.stages.iter().find(|one| one.kind == kind && one.stage == name);
            let is = now.stage_ns(&name).filter(|ns| *ns >= 0.0005);
            row(
                page,
                &format!("  {name}"),
                was.map(|one| us(one.mean_ps as f64 / 1e3)),
                is.map(us),
            )?;
        }
        let traced = live.stages.iter().find(|one| one.kind == kind).map_or(0, |one| one.count);
        writeln!(page, "    stages as recorded are the means of {traced} operations")?;
    }
    let (recorded, replayed) = (live.register_writes, live.replayed_register_writes);
    writeln!(page, "register writes: {recorded} recorded, {replayed} replayed")
}

/// The stages with time that either has, in the order in which they first come.
fn stage_names(
    live: &crate::model::Recorded,
    now: &crate::pool::Pool,
    kind: crate::model::Kind,
) -> Vec<String> {
    let spent = now.stages.iter().filter(|(_, ns)| *ns >= 0.0005).map(|(name, _)| name.clone());
    let mut names: Vec<String> = Vec::new();
    let recorded = live.stages.iter().filter(|one| one.kind == kind).map(|one| one.stage.clone());
    for name in spent.chain(recorded) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
