//! A run in the shape of fio 3.33's `--output-format=json`, observed from its output: every key that fio has,
//! and no other. Fields that this program does not measure are zero, as in fio for an engine that does not
//! report them: `eta`, `usr_cpu`, `sys_cpu`, `ctx`, `majf`, `minf`, `short_ios`, `drop_ios`.

use serde_json::{Map, Value, json};

use crate::calendar::ctime;
use crate::convert::EIO;
use crate::model::{Document, Histogram, Job, Kind, Level, Operations, Run, Setting, Windows};

const KIB: u64 = 1024;
const SECOND_PS: u64 = 1_000_000_000_000;
const MILLISECOND_PS: u64 = 1_000_000_000;

/// One run of a document as fio's object.
pub fn to_fio(document: &Document, run: &Run) -> Value {
    let seconds = document.unix_ms / 1_000;
    let mut root = Map::new();
    let mut put = |key: &str, value: Value| root.insert(key.to_owned(), value);
    // Scripts take the schema's version from the number after "fio-"; the rest identifies this program.
    put("fio version", json!(format!("fio-3.33-doorbell-{}", document.program.version)));
    put("timestamp", json!(seconds));
    put("timestamp_ms", json!(document.unix_ms));
    put("time", json!(ctime(seconds)));
    if !run.work.globals.is_empty() {
        put("global options", options(&run.work.globals));
    }
    put("jobs", run.jobs.iter().map(|one| job(one, &run.jobs)).collect());
    Value::Object(root)
}

fn options(options: &[Setting]) -> Value {
    options.iter().map(|one| (one.key.clone(), json!(one.value))).collect::<Map<_, _>>().into()
}

fn percent(levels: &[Level]) -> Value {
    let levels = levels.iter().map(|level| (level.level.clone(), json!(level.percent)));
    levels.collect::<Map<_, _>>().into()
}

fn job(job: &Job, all: &[Job]) -> Value {
    let of = |kind: Kind| job.operations.get(&kind);
    let latencies =
        [Kind::Read, Kind::Write, Kind::Trim].map(|kind| of(kind).map(|of| &of.latency));
    let (ns, us, ms) = classes(&latencies.into_iter().flatten().collect::<Vec<_>>());
    let direction = |kind| direction(job, of(kind), group_bandwidth(job, all, kind));
    let flushes = of(Kind::Flush).map(|of| &of.latency);
    let mut root = Map::new();
    let mut put = |key: &str, value: Value| root.insert(key.to_owned(), value);
    put("jobname", json!(job.name));
    put("groupid", json!(job.group));
    put("error", json!(if job.errors > 0 { EIO } else { 0 }));
    put("eta", json!(0));
    put("elapsed", json!(job.elapsed_ps.div_ceil(SECOND_PS)));
    put("job options", options(&job.options));
    put("read", direction(Kind::Read));
    put("write", direction(Kind::Write));
    put("trim", direction(Kind::Trim));
    let count = flushes.map_or(0, |all| all.count);
    put("sync", json!({ "total_ios": count, "lat_ns": histogram(flushes, true) }));
    put("job_runtime", json!(job.measured_ps / MILLISECOND_PS));
    put("usr_cpu", json!(0.0));
    put("sys_cpu", json!(0.0));
    put("ctx", json!(0));
    put("majf", json!(0));
    put("minf", json!(0));
    put("iodepth_level", percent(&job.depth));
    put("iodepth_submit", percent(&job.submitted));
    put("iodepth_complete", percent(&job.completed));
    put("latency_ns", ns);
    put("latency_us", us);
    put("latency_ms", ms);
    put("latency_depth", json!(0));
    put("latency_target", json!(0));
    put("latency_percentile", json!(100.0));
    put("latency_window", json!(0));
    if !job.description.is_empty() {
        put("desc", json!(job.description));
    }
    Value::Object(root)
}

/// The group's bandwidth in one direction, in bytes a second.
fn group_bandwidth(job: &Job, all: &[Job], kind: Kind) -> f64 {
    let group = all.iter().filter(|other| other.group == job.group);
    group.filter_map(|other| other.operations.get(&kind)).map(|of| of.bytes_per_second).sum()
}

fn direction(job: &Job, of: Option<&Operations>, group_bandwidth: f64) -> Value {
    let of = of.filter(|of| of.count > 0);
    let measured = if of.is_some() { job.measured_ps } else { 0 };
    let (bytes, count) = of.map_or((0, 0), |of| (of.bytes, of.count));
    let bandwidth = of.map_or(0.0, |of| of.bytes_per_second);
    let completion = of.map(|of| of.completion.as_ref().unwrap_or(&of.latency));
    let bw = series(of.map(|of| &of.windows), measured, |window| window.bytes);
    let iops = series(of.map(|of| &of.windows), measured, |window| window.count);
    let share = if group_bandwidth > 0.0 { bw.mean * 100.0 / group_bandwidth } else { 0.0 };
    json!({
        "io_bytes": bytes,
        "io_kbytes": bytes / KIB,
        "bw_bytes": bandwidth as u64,
        "bw": (bandwidth / KIB as f64) as u64,
        "iops": of.map_or(0.0, |of| of.iops),
        "runtime": measured / MILLISECOND_PS,
        "total_ios": count,
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": histogram(of.and_then(|of| of.submission.as_ref()), false),
        "clat_ns": histogram(completion, true),
        "lat_ns": histogram(of.map(|of| &of.latency), false),
        "bw_min": bw.min / KIB,
        "bw_max": bw.max / KIB,
        "bw_agg": share.min(100.0),
        "bw_mean": bw.mean / KIB as f64,
        "bw_dev": bw.stddev / KIB as f64,
        "bw_samples": bw.samples,
        "iops_min": iops.min,
        "iops_max": iops.max,
        "iops_mean": iops.mean,
        "iops_stddev": iops.stddev,
        "iops_samples": iops.samples,
    })
}

/// Summary of a series of windows; rates are per second.
#[derive(Default)]
struct Series {
    samples: usize,
    min: u64,
    max: u64,
    mean: f64,
    stddev: f64,
}

/// The rates of the complete windows within the measurement.
fn series(
    windows: Option<&Windows>,
    measured_ps: u64,
    of: fn(&crate::model::Window) -> u64,
) -> Series {
    let Some(Windows { width_ps, windows }) = windows else { return Series::default() };
    let samples = (measured_ps / width_ps) as usize;
    if samples == 0 {
        return Series::default();
    }
    let rate = |n: u64| (u128::from(n) * u128::from(SECOND_PS) / u128::from(*width_ps)) as u64;
    // Windows after the last operation were idle, and idle windows count.
    let rates = || windows.iter().map(of).chain(std::iter::repeat(0)).take(samples).map(rate);
    let mean = rates().map(u128::from).sum::<u128>() as f64 / samples as f64;
    let spread: f64 = rates().map(|rate| (rate as f64 - mean).powi(2)).sum();
    Series {
        samples,
        min: rates().min().unwrap_or(0),
        max: rates().max().unwrap_or(0),
        mean,
        stddev: if samples < 2 { 0.0 } else { (spread / (samples - 1) as f64).sqrt() },
    }
}

fn histogram(all: Option<&Histogram>, percentiles: bool) -> Value {
    let none = Histogram::default();
    let all = all.unwrap_or(&none);
    let mut object = json!({
        "min": all.min_ns,
        "max": all.max_ns,
        "mean": all.mean_ns,
        "stddev": all.stddev_ns,
        "N": all.count,
    });
    // As in fio: none without samples, and of reads and writes those of `clat` alone.
    if percentiles && all.count > 0 {
        let name = |quantile: f64| format!("{:.6}", quantile * 100.0);
        let rows = all.percentiles.iter().map(|one| (name(one.quantile), json!(one.ns)));
        object["percentile"] = Value::Object(rows.collect());
    }
    object
}

/// fio's classes: each label counts values below it and not below the preceding label.
const CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// The shares of all operations, in percent, by latency in ns, us and ms.
fn classes(all: &[&Histogram]) -> (Value, Value, Value) {
    let (mut ns, mut us, mut ms) = ([0_u64; 10], [0_u64; 10], [0_u64; 12]);
    let class = |value: u64| CLASSES.iter().position(|&below| value < below);
    for bin in all.iter().flat_map(|one| &one.bins) {
        if let Some(at) = class(bin.0) {
            ns[at] += bin.1;
        } else if let Some(at) = class(bin.0 / 1_000) {
            us[at] += bin.1;
        } else {
            let latency_ms = bin.0 / 1_000_000;
            let at = class(latency_ms).unwrap_or(if latency_ms < 2_000 { 10 } else { 11 });
            ms[at] += bin.1;
        }
    }
    let total = all.iter().map(|one| one.count).sum::<u64>().max(1) as f64;
    let object = |counts: &[u64]| {
        let rows = counts.iter().enumerate().map(|(at, &count)| {
            let label = match at {
                0..10 => CLASSES[at].to_string(),
                10 => "2000".to_owned(),
                _ => ">=2000".to_owned(),
            };
            (label, json!(count as f64 * 100.0 / total))
        });
        Value::Object(rows.collect())
    };
    (object(&ns), object(&us), object(&ms))
}
