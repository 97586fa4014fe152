//! `doorbell sweep`: killed and continued, its text in 80 columns, its table, its page, and its exit status.

use std::fs;
use std::process::Stdio;

use crate::common::{CommandOutput, Folder, doorbell, output_of};

const JOB: &str = "[a]\nrw=randread\nbs=4k\nsize=1m\nnorandommap=1\nnumber_ios=200\n";
const SWEEP: &str = "about = \"Depth and lanes\"\nplan = \"gen4\"\nfile = \"job.fio\"\n\
    [[axis]]\nover = \"interface\"\nvalues = [\"nvme\", \"dcx\"]\n\
    [[axis]]\njob = \"iodepth\"\nvalues = [1, 2, 4, 8, 16, 32]\n\
    [[axis]]\nset = \"link.lanes\"\nvalues = [1, 4]\n";

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.file("job.fio", JOB);
    folder.file("sweep.toml", SWEEP);
    folder
}

#[track_caller]
fn succeed(folder: &Folder, arguments: &[&str]) -> String {
    let CommandOutput { code, out, err } =
        output_of(&mut doorbell(folder, &[&["sweep", "sweep.toml"], arguments].concat()));
    assert_eq!(code, Some(0), "{arguments:?}: {out}{err}");
    out
}

#[test]
fn sweep_schema_page_is_current() {
    let path = crate::common::root().join("docs/sweep.schema.json");
    let schema = format!("{:#}\n", report::sweep::schema());
    if std::env::var_os("DOORBELL_BLESS").is_some() {
        fs::write(&path, &schema).expect("a page that can be written");
    }
    let found = fs::read_to_string(&path).expect("the schema");
    assert!(found == schema, "docs/sweep.schema.json is old; DOORBELL_BLESS=1 rewrites it");
}

/// Killed by SIGKILL when it has some lines, several times: the file is that of a sweep that was left alone.
#[test]
fn killed_sweep_goes_on_to_the_same_file() {
    let folder = folder("sweep-killed");
    succeed(&folder, &["--out", "whole.jsonl", "--jobs", "1"]);
    let whole = fs::read_to_string(folder.path("whole.jsonl")).expect("results");
    assert_eq!(whole.lines().count(), 25);
    let lines = || fs::read_to_string(folder.path("out.jsonl")).unwrap_or_default().lines().count();
    let mut killed = 0;
    for wanted in [1, 4, 9, 15] {
        let arguments = ["sweep", "sweep.toml", "--out", "out.jsonl", "--jobs", "2"];
        let mut child = doorbell(&folder, &arguments);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a child");
        // The sweep may end first on a busy machine; then nothing is left to kill.
        while lines() < wanted && child.try_wait().expect("our child").is_none() {
            std::thread::yield_now();
        }
        killed += usize::from(child.try_wait().expect("our child").is_none());
        child.kill().expect("our own child");
        child.wait().expect("our own child");
    }
    assert!(killed > 0, "no run was stopped");
    succeed(&folder, &["--out", "out.jsonl"]);
    let found = fs::read_to_string(folder.path("out.jsonl")).expect("results");
    assert!(found == whole, "{found}\n{whole}");
}

#[test]
fn lines_of_the_file_are_of_the_schema_and_the_text_fits_80_columns() {
    let folder = folder("sweep-text");
    let out = succeed(&folder, &["--csv", "out.csv", "--html", "out.html", "--full"]);
    let text = fs::read_to_string(folder.path("sweep.jsonl")).expect("beside the sweep file");
    let (header, points) = text.split_once('\n').expect("a header and points");
    let header = report::sweep_header(header.as_bytes()).expect(header);
    let points: Vec<_> =
        points.lines().map(|line| report::sweep_point(line.as_bytes()).expect(line)).collect();
    assert_eq!((header.points, header.axes.len(), points.len()), (24, 3, 24));
    let point = &points[23];
    assert_eq!(
        (point.point, point.at["iodepth"].as_str(), point.number["link.lanes"]),
        (23, "32", 4.0)
    );
    let result = point.result.as_ref().expect("a result");
    let read = result.operations.values().next().expect("reads");
    assert_eq!((read.count, read.waits.len()), (200, 3));
    // The document of a point repeats its run.
    let document = point.document.as_ref().expect("--full");
    folder.file("point.json", &report::to_json(document));
    let replay = output_of(&mut doorbell(&folder, &["replay", "point.json"]));
    assert!(replay.code == Some(0) && replay.out.contains("as in point.json"), "{}", replay.err);
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    assert!(out.starts_with("== sweep.toml: 24 points\n"), "{out}");
    let csv = fs::read_to_string(folder.path("out.csv")).expect("a table");
    assert_eq!(csv.lines().count(), 25);
    assert!(csv.contains(&read.iops.to_string()), "{csv}");
    let html = fs::read_to_string(folder.path("out.html")).expect("a page");
    assert!(html.contains("<svg") && html.contains("mean over iodepth"), "a picture");
    // All of it is there: nothing runs, and the text is the same.
    assert_eq!(succeed(&folder, &["--full"]), out.replace("page: out.html\n", ""));
}

#[test]
fn search_prints_the_answer_and_the_points_tried() {
    let folder = folder("sweep-search");
    let find = "cheapest iodepth where iops >= 500k";
    let out = succeed(&folder, &["--find", find, "--out", "found.jsonl"]);
    assert!(out.starts_with(&format!("== sweep.toml: {find}\n")), "{out}");
    assert_eq!(out.matches("points tried").count(), 4, "{out}");
    assert!(out.contains(" holds\n") && out.contains(" does not hold\n"), "{out}");
    assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    let tried =
        fs::read_to_string(folder.path("found.jsonl")).expect("results").lines().count() - 1;
    assert!(tried < 24, "{tried} of 24");
}

#[test]
fn failed_points_and_refusals_give_status_1() {
    let folder = folder("sweep-status");
    folder.file("bad.toml", &SWEEP.replace("[1, 4]", "[1, 3]"));
    let bad = output_of(&mut doorbell(&folder, &["sweep", "bad.toml"]));
    assert_eq!((bad.code, bad.out.as_str()), (Some(1), ""));
    assert!(bad.err.contains("bad.toml: axis link.lanes, value 3: 12 points: "), "{}", bad.err);
    assert!(!folder.path("bad.jsonl").exists(), "nothing ran");
    let big = SWEEP.replace(
        "set = \"link.lanes\"\nvalues = [1, 4]",
        "job = \"size\"\nvalues = [\"1m\", \"90t\"]",
    );
    folder.file("big.toml", &big);
    let big = output_of(&mut doorbell(&folder, &["sweep", "big.toml"]));
    assert_eq!(big.code, Some(1), "{}", big.out);
    let dry = succeed(&folder, &["--dry-run"]);
    assert!(dry.starts_with("sweep.toml: 24 points, grid\n"), "{dry}");
    succeed(&folder, &["--out", "out.jsonl"]);
    folder.file("sweep.toml", &SWEEP.replace("[1, 4]", "[1, 8]"));
    let changed = ["sweep", "sweep.toml", "--out", "out.jsonl"];
    let changed = output_of(&mut doorbell(&folder, &changed));
    let expected = "axis link.lanes: found 1, 4, expected 1, 8";
    assert!(changed.code == Some(1) && changed.err.contains(expected), "{}", changed.err);
    succeed(&folder, &["--out", "out.jsonl", "--restart"]);
}
