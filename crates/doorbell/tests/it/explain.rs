//! `doorbell explain`: a screen of text, and the same findings as JSON.

use serde_json::Value;

use crate::common::{CommandOutput, Folder, doorbell, output_of};

const JOB: &str = "[a]\nrw=randread\nbs=4k\nsize=16m\nnorandommap=1\nnumber_ios=400\niodepth=32\n";
/// The core takes longer than the link.
const SLOW: [&str; 5] = ["--plan", "gen4", "--set", "host.costs.submit=1 us", "--quick"];

fn explain(folder: &Folder, more: &[&str]) -> CommandOutput {
    let arguments = [&["explain", "job.fio"], &SLOW[..], more].concat();
    output_of(&mut doorbell(folder, &arguments))
}

#[test]
fn explanation_fits_a_screen_and_begins_with_the_answer() {
    let folder = Folder::new("explain");
    folder.file("job.fio", JOB);
    let CommandOutput { code, err, out } = explain(&folder, &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.len() <= 24, "{out}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{out}");
    assert_eq!(lines[0], "== job.fio, plan gen4, nvme, simulated");
    assert!(lines[2].starts_with("Bound by the host core: host costs at half gives 1."), "{out}");
    assert_eq!(out, explain(&folder, &[]).out, "the same every time");
}

#[test]
fn findings_as_json_have_the_bound_and_its_change() {
    let folder = Folder::new("explain-json");
    folder.file("job.fio", JOB);
    let CommandOutput { code, err, out } = explain(&folder, &["--json", "-"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let found: Value = serde_json::from_str(&out).expect("one object");
    assert_eq!(found["bound"]["resources"], serde_json::json!(["host-core"]));
    let best = &found["resources"][0];
    assert_eq!((&best["resource"], &best["gain"]), (&"host-core".into(), &found["bound"]["gain"]));
    let halved = serde_json::json!(["host.costs.submit", "\"500000 ps\""]);
    assert!(best["change"]["sets"].as_array().expect("keys").contains(&halved), "{best:#}");
    let stages = found["measured"]["stages"].as_array().expect("stages");
    let sum: f64 = stages.iter().filter_map(|stage| stage["us"].as_f64()).sum();
    let mean = found["measured"]["mean_us"].as_f64().expect("a mean");
    assert!((sum - mean).abs() < 0.002, "{sum} of {mean}");
}
