//! A table from the JSON output of fio (`--output-format=json`): a row for each direction of each job.

use std::path::Path;

use serde_json::Value;

use super::table::{Figures, Row, Table, TableError};

/// Jobs that measure what a table of reads has: they read the drive only.
const JOBS: &str = "\
# Reads of a whole drive by size and depth, for `doorbell validate` and `doorbell fit`. Nothing is written.
# A drive that was never written answers without its flash: fill it first, at random if the plan begins
# \"scattered\". fio --output-format=json --output=drive.json --filename=/dev/nvme0n1 THIS
[global]
ioengine=io_uring
direct=1
rw=randread
norandommap=1
time_based=1
ramp_time=2
runtime=10
stonewall
";

/// Sizes and depths of [`jobs`].
const SIZES: [u32; 5] = [4, 8, 16, 32, 64];
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The job file to run on a drive.
pub fn jobs() -> String {
    let mut text = JOBS.to_owned();
    for size in SIZES {
        for depth in DEPTHS {
            text += &format!("[read-{size}k-{depth}]\nbs={size}k\niodepth={depth}\n");
        }
    }
    text
}

/// Whether a text is fio's output and not a table.
pub(super) fn is_output(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// Parses fio's output, as if `file` had the text.
pub(super) fn parse(file: &Path, text: &str) -> Result<Table, TableError> {
    let wrong = |found: String, expected: &str| TableError::Line {
        file: file.to_owned(),
        line: 1,
        found,
        expected: expected.to_owned(),
    };
    let whole: Value = serde_json::from_str(text)
        .map_err(|error| wrong(error.to_string(), "the JSON output of fio"))?;
    let jobs = whole["jobs"].as_array().filter(|jobs| !jobs.is_empty());
    let jobs = jobs.ok_or_else(|| wrong("no jobs".to_owned(), "the JSON output of fio"))?;
    let mut rows = Vec::new();
    for (at, job) in (1..).zip(jobs) {
        let of_name = jobs.iter().filter(|other| other["jobname"] == job["jobname"]);
        rows.extend(rows_of(at, job, &whole["global options"], of_name.count() > 1));
    }
    if rows.is_empty() {
        let expected = "a job at least that read or wrote something";
        return Err(wrong(format!("{} jobs without operations", jobs.len()), expected));
    }
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let version = whole["fio version"].as_str().unwrap_or("fio");
    let drive = format!("{name} by {version}");
    let header = vec![("drive".to_owned(), drive), ("source".to_owned(), name.clone())];
    Ok(Table { name, file: file.to_owned(), header, rows, only: String::new() })
}

/// Rows of the job that is number `at`: the place of a row is that number. `has_clones`: others have its
/// name, so that its figures are those of a part of the load.
fn rows_of(at: usize, job: &Value, global: &Value, has_clones: bool) -> Vec<Row> {
    let option = |key: &str| job["job options"][key].as_str().or(global[key].as_str());
    let number = |key: &str| option(key).and_then(|text| text.parse::<u32>().ok()).unwrap_or(1);
    let rw = option("rw").or(option("readwrite")).unwrap_or("read");
    let bytes = bytes_of(option("bs").or(option("blocksize")).unwrap_or("4k"));
    let engine = option("ioengine").unwrap_or_default();
    // A load whose operations are not all of one kind is named as it is, and so left out with its name.
    let is_paced = ["rate", "rate_iops", "thinktime"].iter().any(|key| option(key).is_some());
    let workload = match (has_clones, is_paced) {
        (true, _) => format!("{rw}, clones without group_reporting"),
        (false, true) => format!("{rw}, paced"),
        (false, false) => rw.to_owned(),
    };
    let directions = ["read", "write"].into_iter();
    let of_direction = |direction| {
        let of: &Value = &job[direction];
        let iops = of["iops"].as_f64().filter(|iops| *iops > 0.0)?;
        let us = |ns: &Value| ns.as_f64().filter(|ns| *ns > 0.0).map(|ns| ns / 1e3);
        let at_percentile = |key: &str| us(&of["clat_ns"]["percentile"][key]);
        let measured = Figures([
            Some(iops),
            us(&of["lat_ns"]["mean"]),
            at_percentile("50.000000"),
            at_percentile("99.000000"),
            at_percentile("99.900000"),
        ]);
        Some(Row {
            line: at,
            workload: workload.clone(),
            block_bytes: bytes,
            depth: Some(number("iodepth")),
            jobs: Some(number("numjobs")),
            measured,
            fill: None,
            flags: vec![engine.to_owned()],
        })
    };
    directions.filter_map(of_direction).collect()
}

/// `4k`, `4096`, `1m` or `4KiB`; none for a range or a list.
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok().filter(|number| *number > 0)?;
    let shift = match text[digits.len()..].trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = r#"{
      "fio version" : "fio-3.33",
      "global options" : { "ioengine" : "io_uring", "rw" : "randread" },
      "jobs" : [
        { "jobname" : "a", "job options" : { "bs" : "16k", "iodepth" : "32" },
          "read" : { "iops" : 5000.5, "lat_ns" : { "mean" : 6400000.0 },
            "clat_ns" : { "percentile" : { "50.000000" : 6000000, "99.000000" : 9000000 } } },
          "write" : { "iops" : 0.0 } },
        { "jobname" : "b", "job options" : { "rw" : "randrw", "bs" : "4k" },
          "read" : { "iops" : 10.0 }, "write" : { "iops" : 20.0 } } ] }"#;

    #[test]
    fn output_is_a_row_for_each_direction() {
        let table = Table::parse(Path::new("mine.json"), OUTPUT).expect("fio's output");
        assert_eq!((table.name.as_str(), table.rows.len()), ("mine", 3));
        let row = &table.rows[0];
        assert_eq!((row.workload.as_str(), row.block_bytes), ("randread", Some(16_384)));
        assert_eq!((row.depth, row.jobs), (Some(32), Some(1)));
        let figures = [Some(5000.5), Some(6400.0), Some(6000.0), Some(9000.0), None];
        assert_eq!(row.measured, Figures(figures));
        assert_eq!(row.flags, ["io_uring"]);
        assert_eq!(table.rows[2].workload, "randrw");
        let clones = OUTPUT.replace(r#""jobname" : "b""#, r#""jobname" : "a""#);
        let table = Table::parse(Path::new("mine.json"), &clones).expect("fio's output");
        assert_eq!(table.rows[0].workload, "randread, clones without group_reporting");
    }

    #[test]
    fn text_that_is_not_output_is_refused_with_the_file() {
        for text in ["{", "{}", r#"{"jobs": []}"#, r#"{"jobs": [{}]}"#, r#"{"jobs": [1]}"#] {
            let error = Table::parse(Path::new("mine.json"), text).expect_err(text).to_string();
            assert!(error.starts_with("mine.json:1: found "), "{error}");
        }
    }

    #[test]
    fn sizes_of_fio() {
        for (text, bytes) in [("4k", 4096), ("512", 512), ("1M", 1 << 20), ("4KiB", 4096)] {
            assert_eq!(bytes_of(text), Some(bytes), "{text}");
        }
        for text in ["", "k", "4k-8k", "4k,8k", "0", "4x", "99999999999999999999m"] {
            assert_eq!(bytes_of(text), None, "{text}");
        }
    }
}
