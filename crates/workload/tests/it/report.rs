//! Golden test of the text report; fio's keys in the JSON report.

use std::collections::BTreeSet;

use runtime::Span;
use serde_json::{Value, json};
use workload::OpKind;
use workload::report::{JobReport, Report};
use workload::stats::{Breakdown, JobStats};

fn stats() -> JobStats {
    let mut stats = JobStats::default();
    let mut breakdown = Breakdown::new(&["doorbell", "media"]);
    for k in 0..1_000 {
        let total = if k < 980 { Span::us(50) } else { Span::us(400) };
        stats.read.record_split(Span::ms(k), Span::ns(200), total, 4096);
        breakdown.record(total.0, [(0, Span::ns(150).0), (1, total.0 - Span::us(1).0)]);
        stats.depths.note(4);
        stats.submitted.note(1);
        stats.completed.note(1);
    }
    stats.breakdowns.insert(OpKind::Read, breakdown);
    for k in 0..10 {
        stats.write.record(Span::ms(k), Span::us(20 + k), 8192);
        stats.flush.record(Span::ms(k), Span::ms(1), 0);
    }
    stats.write.record_error();
    stats
}

fn report() -> Report {
    Report {
        version: "0.1.0".to_owned(),
        unix_ms: 1_795_237_755_092,
        globals: vec![("bs".to_owned(), "4k".to_owned())],
        notes: vec!["a.fio:3: direct: there is no page cache".to_owned()],
        world: json!("sim"),
        plan: json!({"media": "tlc"}),
        jobs: vec![JobReport {
            name: "reader".to_owned(),
            measured: Span::s(1),
            elapsed: Span::ms(1_500),
            options: vec![("rw".to_owned(), "randread".to_owned())],
            stats: stats(),
            ..JobReport::default()
        }],
    }
}

#[test]
fn text_report_matches_golden_file() {
    let page = report().to_text();
    assert_eq!(page, include_str!("../report.golden.txt"), "\n{page}");
}

/// Every path of a value, with `[]` for an array's element. Job options are skipped, since they are the
/// user's.
fn paths(value: &Value, path: &str, all: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = format!("{path}/{key}");
                all.insert(path.clone());
                if key != "job options" {
                    paths(value, &path, all);
                }
            }
        }
        Value::Array(array) => {
            for value in array {
                paths(value, &format!("{path}[]"), all);
            }
        }
        _ => {}
    }
}

#[test]
fn json_report_has_all_fio_keys() {
    let mut ours = BTreeSet::new();
    paths(&report().to_json(), "", &mut ours);
    let fios = include_str!("../fio-3.33-keys.txt").lines().filter(|line| line.starts_with('/'));
    let missing: Vec<&str> = fios.filter(|key| !ours.contains(*key)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    let more: Vec<&String> = ours.iter().filter(|key| key.starts_with("/doorbell")).collect();
    assert!(more.len() > 10);
}

#[test]
fn json_report_numbers_match_fio_semantics() {
    let json = report().to_json();
    assert_eq!(json["fio version"], "fio-3.33-doorbell-0.1.0");
    assert_eq!(json["time"], "Sat Nov 21 05:09:15 2026");
    assert_eq!(json["global options"]["bs"], "4k");
    let job = &json["jobs"][0];
    assert_eq!(job["elapsed"], 2);
    assert_eq!(job["job options"]["rw"], "randread");
    let read = &job["read"];
    assert_eq!((&read["io_bytes"], &read["io_kbytes"]), (&json!(4_096_000), &json!(4_000)));
    assert_eq!((&read["bw_bytes"], &read["bw"]), (&json!(4_096_000), &json!(4_000)));
    assert_eq!((&read["iops"], &read["runtime"]), (&json!(1000.0), &json!(1000)));
    assert_eq!(read["slat_ns"]["mean"], 200.0);
    assert_eq!(read["clat_ns"]["min"], 49_800);
    assert_eq!(read["lat_ns"]["max"], 400_000);
    let median = read["clat_ns"]["percentile"]["50.000000"].as_u64().unwrap();
    assert!((49_800..49_850).contains(&median));
    let (near, exact) = (&read["lat_ns"]["percentile"]["99.990000"], json!(400_000));
    assert_eq!(near, &exact, "never above the maximum");
    assert_eq!((&read["bw_samples"], &read["iops_min"]), (&json!(2), &json!(1000)));
    assert_eq!(read["bw_agg"], 100.0);
    // Of 1,010: 10 writes below 50 us, 980 reads of exactly 50, 20 reads of 400.
    let share = |label: &str| (job["latency_us"][label].as_f64().unwrap() * 10.1).round();
    assert_eq!((share("50"), share("100"), share("500")), (10.0, 980.0, 20.0));
    assert_eq!(job["sync"]["total_ios"], 10);
    assert_eq!(job["iodepth_level"]["4"], 100.0);
    assert_eq!(job["trim"]["total_ios"], 0);
    let own = &json["doorbell"]["jobs"][0];
    assert_eq!(own["errors"]["write"], 1);
    let tail = &own["breakdown_ns"]["read"]["p99"];
    assert_eq!((&tail["count"], &tail["stages"]["media"]), (&json!(20), &json!(399_000.0)));
    assert_eq!(tail["unexplained"], 850.0);
}

#[test]
fn merged_job_stats_add_up_clones() {
    let mut both = stats();
    both.merge(&stats());
    assert_eq!(both.read.total.count(), 2_000);
    assert_eq!(both.breakdowns[&OpKind::Read].mean().count, 2_000);
    assert_eq!(both.read.iops(Span::s(1)), 2_000.0);
    assert_eq!(both.read.windows.iops(Span::s(1)).min, 2_000);
    assert_eq!(both.errors(), 2);
    let alone = stats();
    let mut none = JobStats::default();
    none.merge(&alone);
    assert_eq!(none.breakdowns[&OpKind::Read].mean(), alone.breakdowns[&OpKind::Read].mean());
}

#[test]
fn report_of_job_without_operations() {
    let report = Report { jobs: vec![JobReport::default()], ..Report::default() };
    assert_eq!(report.to_text(), ": group 0, measured 0ps, errors 0\n");
    assert_eq!(report.to_json()["jobs"][0]["read"]["iops"], 0.0);
}
