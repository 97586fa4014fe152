//! The schema of fio 3.33's JSON report (observed from its output), and the `doorbell` object.

use serde_json::{Map, Value, json};

use super::calendar::ctime;
use super::{JobReport, Report};
use crate::pattern::OpKind;
use crate::stats::{Breakdown, Latencies, PERCENTILES, Recorder, Series, Shares};
use runtime::Span;

/// Fields of fio's schema that are not measured.
const NOT_MEASURED: [&str; 8] =
    ["eta", "usr_cpu", "sys_cpu", "ctx", "majf", "minf", "short_ios", "drop_ios"];

const KIB: u64 = 1024;

pub fn report(report: &Report) -> Value {
    let seconds = report.unix_ms / 1_000;
    let mut root = Map::new();
    let mut put = |key: &str, value: Value| root.insert(key.to_owned(), value);
    // Scripts take the schema's version from the number after "fio-"; the rest identifies this program.
    put("fio version", json!(format!("fio-3.33-doorbell-{}", report.version)));
    put("timestamp", json!(seconds));
    put("timestamp_ms", json!(report.unix_ms));
    put("time", json!(ctime(seconds)));
    if !report.globals.is_empty() {
        put("global options", options(&report.globals));
    }
    put("jobs", report.jobs.iter().map(|one| job(one, &report.jobs)).collect());
    put(
        "doorbell",
        json!({
            "version": report.version,
            "world": report.world,
            "plan": report.plan,
            "notes": report.notes,
            "not_measured": NOT_MEASURED,
            "jobs": report.jobs.iter().map(own).collect::<Vec<_>>(),
        }),
    );
    Value::Object(root)
}

fn options(options: &[(String, String)]) -> Value {
    options.iter().map(|(key, value)| (key.clone(), json!(value))).collect::<Map<_, _>>().into()
}

fn job(job: &JobReport, all: &[JobReport]) -> Value {
    let stats = &job.stats;
    let (ns, us, ms) = distribution(&[&stats.read.total, &stats.write.total, &stats.trim.total]);
    let percent = |levels: &mut dyn Iterator<Item = (&'static str, f64)>| {
        levels.map(|(level, share)| (level.to_owned(), json!(share))).collect::<Map<_, _>>()
    };
    let group = |kind| group_bandwidth(job, all, kind);
    let mut root = Map::new();
    let mut put = |key: &str, value: Value| root.insert(key.to_owned(), value);
    put("jobname", json!(job.name));
    put("groupid", json!(job.group));
    put("error", json!(job.error));
    put("eta", json!(0));
    put("elapsed", json!(job.elapsed.0.div_ceil(Span::s(1).0)));
    put("job options", options(&job.options));
    put("read", direction(&stats.read, job.measured, group(OpKind::Read)));
    put("write", direction(&stats.write, job.measured, group(OpKind::Write)));
    put("trim", direction(&stats.trim, job.measured, group(OpKind::Trim)));
    put(
        "sync",
        json!({
            "total_ios": stats.flush.total.count(),
            "lat_ns": latencies(&stats.flush.total, true),
        }),
    );
    put("job_runtime", json!(milliseconds(job.measured)));
    put("usr_cpu", json!(0.0));
    put("sys_cpu", json!(0.0));
    put("ctx", json!(0));
    put("majf", json!(0));
    put("minf", json!(0));
    put("iodepth_level", percent(&mut stats.depths.percent()).into());
    put("iodepth_submit", percent(&mut stats.submitted.percent()).into());
    put("iodepth_complete", percent(&mut stats.completed.percent()).into());
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
fn group_bandwidth(job: &JobReport, all: &[JobReport], kind: OpKind) -> f64 {
    let group = all.iter().filter(|other| other.group == job.group);
    group.map(|other| other.stats.of(kind).bytes_per_second(other.measured)).sum()
}

fn milliseconds(span: Span) -> u64 {
    span.0 / Span::ms(1).0
}

fn direction(stats: &Recorder, measured: Span, group_bandwidth: f64) -> Value {
    let used = stats.total.count() > 0;
    let measured = if used { measured } else { Span::ZERO };
    let bandwidth = stats.bytes_per_second(measured);
    let split = stats.submission.count() > 0;
    let completion = if split { &stats.completion } else { &stats.total };
    let bw = stats.windows.bandwidth(measured);
    let iops = stats.windows.iops(measured);
    let share = if group_bandwidth > 0.0 { bw.mean * 100.0 / group_bandwidth } else { 0.0 };
    let Series { min, max, mean, stddev, samples } = bw;
    json!({
        "io_bytes": stats.bytes,
        "io_kbytes": stats.bytes / KIB,
        "bw_bytes": bandwidth as u64,
        "bw": (bandwidth / KIB as f64) as u64,
        "iops": stats.iops(measured),
        "runtime": milliseconds(measured),
        "total_ios": stats.total.count(),
        "short_ios": 0,
        "drop_ios": 0,
        "slat_ns": latencies(&stats.submission, false),
        "clat_ns": latencies(completion, true),
        "lat_ns": latencies(&stats.total, true),
        "bw_min": min / KIB,
        "bw_max": max / KIB,
        "bw_agg": share.min(100.0),
        "bw_mean": mean / KIB as f64,
        "bw_dev": stddev / KIB as f64,
        "bw_samples": samples,
        "iops_min": iops.min,
        "iops_max": iops.max,
        "iops_mean": iops.mean,
        "iops_stddev": iops.stddev,
        "iops_samples": iops.samples,
    })
}

fn latencies(all: &Latencies, percentiles: bool) -> Value {
    let mut object = json!({
        "min": all.min_ns(),
        "max": all.max_ns(),
        "mean": all.mean_ns(),
        "stddev": all.stddev_ns(),
        "N": all.count(),
    });
    // As in fio: no percentiles without samples.
    if percentiles && all.count() > 0 {
        let rows = PERCENTILES.into_iter().map(|thousandths| {
            let name = format!("{}.{:03}000", thousandths / 1_000, thousandths % 1_000);
            (name, json!(all.percentile_ns(thousandths)))
        });
        object["percentile"] = Value::Object(rows.collect());
    }
    object
}

/// fio's classes: each label counts values below it and not below the preceding label.
const CLASSES: [u64; 10] = [2, 4, 10, 20, 50, 100, 250, 500, 750, 1000];

/// The shares of all operations, in percent, by latency in ns, us and ms.
fn distribution(all: &[&Latencies]) -> (Value, Value, Value) {
    let (mut ns, mut us, mut ms) = ([0_u64; 10], [0_u64; 10], [0_u64; 12]);
    let class = |value: u64| CLASSES.iter().position(|&below| value < below);
    for (latency_ns, count) in all.iter().flat_map(|one| one.distribution()) {
        if let Some(at) = class(latency_ns) {
            ns[at] += count;
        } else if let Some(at) = class(latency_ns / 1_000) {
            us[at] += count;
        } else {
            let latency_ms = latency_ns / 1_000_000;
            let at = class(latency_ms).unwrap_or(if latency_ms < 2_000 { 10 } else { 11 });
            ms[at] += count;
        }
    }
    let total = all.iter().map(|one| one.count()).sum::<u64>().max(1) as f64;
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

/// Results for which fio's schema has no field.
fn own(job: &JobReport) -> Value {
    let mut errors = Map::new();
    let mut breakdowns = Map::new();
    for (kind, name) in OpKind::ALL.map(|kind| (kind, kind.name())) {
        errors.insert(name.to_owned(), json!(job.stats.of(kind).errors));
        if let Some(one) = job.stats.breakdowns.get(&kind) {
            breakdowns.insert(name.to_owned(), breakdown(one));
        }
    }
    json!({
        "jobname": job.name,
        "measured_ps": job.measured.0,
        "errors": errors,
        "breakdown_ns": breakdowns,
    })
}

fn breakdown(breakdown: &Breakdown) -> Value {
    let shares = |shares: &Shares| {
        let stages = breakdown.names().iter().zip(&shares.stages_ps);
        json!({
            "count": shares.count,
            "total": shares.total_ps / 1e3,
            "stages": stages
                .map(|(name, ps)| ((*name).to_owned(), json!(ps / 1e3)))
                .collect::<Map<_, _>>(),
            "unexplained": shares.unexplained_ps / 1e3,
        })
    };
    let mut object = Map::new();
    object.insert("mean".to_owned(), shares(&breakdown.mean()));
    for (name, thousandths) in [("p50", 50_000), ("p99", 99_000), ("p99.9", 99_900)] {
        if let Some(around) = breakdown.around(thousandths) {
            let mut row = shares(&around.shares);
            row["from"] = json!(around.from.0 as f64 / 1e3);
            row["to"] = json!(around.to.0 as f64 / 1e3);
            object.insert(name.to_owned(), row);
        }
    }
    Value::Object(object)
}
