//! `doorbell sweep`: simulated runs over axes, and searches along one of them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use campaign::document::program;
use campaign::sweep::{
    Effort, Find, Found, Progress, Results, Sweep, Tried, available_memory_bytes,
};
use clap::Args;
use indicatif::{HumanDuration, ProgressBar};
use plan::units::{parse_size, size_text};
use report::model::SweepPoint;
use report::sweep::{Metric, Number, Shown};

use super::output::{Page, Sink, bar, create, put};

#[derive(Args)]
pub(super) struct SweepArguments {
    /// Sweep file (TOML)
    file: PathBuf,
    /// Results, a line of JSON for each point; a sweep that was stopped goes on there [default: FILE with
    /// the suffix .jsonl]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Drop results that are there and begin again
    #[arg(long)]
    restart: bool,
    /// Number of points that run at once [default: the processors]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,
    /// Memory of the points that run at once, by estimate; one always runs [default: three quarters of the
    /// available memory]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory: Option<u64>,
    /// Check all points, print their number and their memory, and run none
    #[arg(long)]
    #[arg(conflicts_with_all = ["out", "restart", "jobs", "memory", "full", "metric", "csv", "html"])]
    dry_run: bool,
    /// Keep the whole document of each point, as `run --json` writes it
    #[arg(long)]
    full: bool,
    /// Search along an axis by bisection: "cheapest AXIS where read.p99 < 20us"
    #[arg(long, value_name = "SEARCH", conflicts_with = "dry_run")]
    find: Option<String>,
    /// Number in tables and pictures: iops, bandwidth, mean, p50, p99, p99.9 or max, of a kind if need be
    #[arg(long, value_name = "METRIC", default_value = "mean", value_parser = metric)]
    metric: Metric,
    /// Write a table to this file as CSV, a row for each point and kind of operation; - is standard output
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write the results to this file as one page, with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn bytes(text: &str) -> Result<u64, String> {
    let parsed = parse_size(text).ok().filter(|bytes| *bytes > 0);
    parsed.ok_or_else(|| format!("{text:?}: expected a size, as in 4GiB"))
}

fn metric(text: &str) -> Result<Metric, String> {
    Metric::named(text).map_err(|error| error.to_string())
}

/// Returns false if a point failed or has errors.
pub(super) fn sweep(typed: &SweepArguments) -> Result<bool, String> {
    let cores = available_parallelism().map_or(1, usize::from);
    let sweep = Sweep::load(&typed.file, program(), typed.full, cores);
    let sweep = sweep.map_err(|error| error.to_string())?;
    let find = typed.find.as_ref().map(|text| sweep.find(text)).transpose();
    let find = find.map_err(|error| error.to_string())?;
    if typed.dry_run {
        dry_run(typed, &sweep);
        return Ok(true);
    }
    let mut csv = typed.csv.as_ref().map(Sink::open).transpose()?;
    let html = typed.html.as_ref().map(create).transpose()?;
    let page = Page::beside(&[&csv])?;
    let out = typed.out.clone().unwrap_or_else(|| typed.file.with_extension("jsonl"));
    let results = Results::open(&out, sweep.header(), typed.restart);
    let mut results = results.map_err(|error| error.to_string())?;
    let effort = Effort {
        workers: typed.jobs.map_or(cores, |jobs| jobs as usize),
        memory_bytes: typed.memory.unwrap_or_else(available_memory_bytes),
    };
    let mut watch = Watch::begin(&typed.file, find.is_some());
    let mut progress = |progress: Progress| watch.show(progress);
    let found = match &find {
        None => sweep.run(&mut results, effort, &mut progress).map(|()| Vec::new()),
        Some(find) => sweep.search(find, &mut results, effort, &mut progress),
    };
    watch.end();
    let found = found.map_err(|error| error.to_string())?;
    let points = results.points();
    let title = typed.file.display().to_string();
    match &find {
        Some(find) => page.text(&text_of(&title, find, &found)),
        None => {
            let shown = Shown { title: &title, metric: typed.metric, style: page.style };
            page.text(&report::sweep::text(sweep.header(), &points, shown));
        }
    }
    page.line(format_args!("results: {}", out.display()));
    if let Some(csv) = &mut csv {
        csv.put(&report::sweep::csv(sweep.header(), &points))?;
    }
    put_page(typed, html, &sweep, &points, page)?;
    Ok(points.iter().all(is_good))
}

fn put_page(
    typed: &SweepArguments,
    html: Option<File>,
    sweep: &Sweep,
    points: &[SweepPoint],
    page: Page,
) -> Result<(), String> {
    if let (Some(mut file), Some(path)) = (html, &typed.html) {
        let title = typed.file.display().to_string();
        let text = report::page::of_sweep(sweep.header(), points, &title, typed.metric);
        put(&mut file, path, &text)?;
        page.line(format_args!("page: {}", path.display()));
    }
    Ok(())
}

fn is_good(point: &SweepPoint) -> bool {
    point.failed.is_none() && point.result.as_ref().is_none_or(|result| result.errors == 0)
}

fn dry_run(typed: &SweepArguments, sweep: &Sweep) {
    let header = sweep.header();
    println!("{}: {} points, {}", typed.file.display(), header.points, header.method);
    for axis in &header.axes {
        let (first, last) = (axis.values.first(), axis.values.last());
        let ends = first.zip(last).map_or(String::new(), |(first, last)| match first == last {
            true => first.clone(),
            false => format!("{first} to {last}"),
        });
        println!("  {}: {} values, {ends}", axis.name, axis.values.len());
    }
    let (point, state) = sweep.memory_bytes();
    let mib = |bytes: u64| size_text(bytes.next_multiple_of(1 << 20));
    println!("  memory: about {} a point at most", mib(point));
    if sweep.states() > 0 {
        println!("  saved states: {}, of about {} each at most", sweep.states(), mib(state));
    }
}

/// Progress on standard error: a bar on a terminal, a line for each tenth elsewhere.
struct Watch {
    bar: ProgressBar,
    name: String,
    is_terminal: bool,
    /// A search does not know its length.
    is_search: bool,
    /// Points that were there before.
    before: Option<u64>,
    /// Tenths that have a line.
    tenths: u64,
}

impl Watch {
    fn begin(file: &Path, is_search: bool) -> Watch {
        let is_terminal = std::io::stderr().is_terminal();
        let template = match is_search {
            true => "{pos} points tried, {msg}{elapsed}",
            false => "{bar:40} {pos} of {len} points, {msg}{eta} left",
        };
        let bar = bar(0, template);
        let name = file.display().to_string();
        Watch { bar, name, is_terminal, is_search, before: None, tenths: 0 }
    }

    fn show(&mut self, progress: Progress) {
        let Progress { done, of, failed } = progress;
        if self.before.is_none() {
            self.before = Some(done);
            self.tenths = 10 * done / of.max(1);
            self.bar.set_length(of);
            // The points that were there took no time.
            self.bar.set_position(done);
            self.bar.reset_eta();
            if done > 0 && done < of && !self.is_search {
                eprintln!("{}: {done} of {of} points are there", self.name);
            }
            return;
        }
        self.bar.set_position(done);
        let failed = if failed > 0 { format!("{failed} failed, ") } else { String::new() };
        self.bar.set_message(failed.clone());
        let tenths = 10 * done / of.max(1);
        if !self.is_terminal && !self.is_search && tenths > self.tenths && done < of {
            self.tenths = tenths;
            let left = HumanDuration(self.bar.eta());
            eprintln!("{}: {done} of {of} points, {failed}{left} left", self.name);
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// The findings of a search, with the points tried.
fn text_of(title: &str, find: &Find, found: &[Found]) -> String {
    let mut text = format!("== {title}: {}\n", find.text());
    for one in found {
        let at: Vec<String> =
            one.at.iter().map(|(axis, value)| format!("{axis} {value}")).collect();
        let at = if at.is_empty() { "answer".to_owned() } else { at.join(", ") };
        let answer = one.value.as_deref().unwrap_or("nowhere");
        let tried = one.tried.len();
        let _ = writeln!(text, "{at}: {answer} ({tried} points tried)");
        for tried in &one.tried {
            let _ = writeln!(text, "  {}", tried_text(find, tried));
        }
        if !one.is_monotone {
            text += "  not monotone: the condition holds before a value at which it does not, so all values \
                     were tried\n";
        }
    }
    text
}

fn tried_text(find: &Find, tried: &Tried) -> String {
    let mut line = format!("{:<16}", tried.value);
    for (metric, value) in find.metrics().into_iter().zip(&tried.metrics) {
        let text = match (value, metric.number) {
            (None, _) => "-".to_owned(),
            (Some(value), Number::Iops) => format!("{value:.0}"),
            (Some(value), Number::Bandwidth) => format!("{:.1} MB/s", value / 1e6),
            (Some(value), _) => format!("{:.3} us", value / 1e3),
        };
        let _ = write!(line, " {metric} {text:<14}");
    }
    line + if tried.holds { " holds" } else { " does not hold" }
}
