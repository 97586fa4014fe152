//! Results as data: a command's document is read back and written alike, a result alone repeats its run, and
//! the views of a document agree. `tools/results` validates every command's by the schema.

use std::collections::BTreeSet;
use std::process::Command;

use crate::common::{CommandOutput, Folder, doorbell, output_of};
use report::model::{Document, Kind};

/// The document of a command, which must succeed and print nothing else.
#[track_caller]
fn document(command: &mut Command) -> (Document, String) {
    let CommandOutput { code, out, err } = output_of(command.args(["--json", "-"]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{command:?}");
    let document = report::from_json(&out).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert_eq!(report::to_json(&document), out, "{command:?}: read and written again");
    (document, out)
}

#[track_caller]
fn succeed(command: &mut Command) -> String {
    let CommandOutput { code, out, err } = output_of(command);
    assert_eq!((code, err.as_str()), (Some(0), ""), "{command:?}: {out}");
    out
}

#[test]
fn schema_page_is_current() {
    let path = crate::common::root().join("docs/result.schema.json");
    let schema = format!("{:#}\n", report::schema());
    if std::env::var_os("DOORBELL_BLESS").is_some() {
        std::fs::write(&path, &schema).expect("a page that can be written");
    }
    let found = std::fs::read_to_string(&path).expect("the schema");
    assert!(found == schema, "docs/result.schema.json is old; DOORBELL_BLESS=1 rewrites it");
}

#[test]
fn documents_of_all_commands_are_read_back() {
    let folder = Folder::new("documents");
    folder.file("job.fio", "[a]\nrw=randrw\nsize=64k\nfsync=4\n");
    let of = |typed: &str| {
        let words: Vec<_> = typed.split(' ').collect();
        document(&mut doorbell(&folder, &words)).0
    };
    assert_eq!(of("run job.fio --plan gen4").runs.len(), 2);
    assert_eq!(of("replay job.fio --plan gen4 --seed 3").runs[0].plan.seed, 3);
    let compared = of("compare job.fio --plan gen4 --world sim");
    assert!(compared.runs.len() >= 4 && !compared.warnings.is_empty(), "{:?}", compared.warnings);
    let checked = of("check gen4 --set link.lanes=8");
    assert!(checked.plans[0].report.as_ref().is_some_and(|text| text.contains("x8")));
    assert_eq!(of("plans").plans.len(), plan::built_in().len());
    let tested = of("conformance --world sim --only queues");
    assert!(!tested.conformance[0].cases.is_empty() && tested.machine.is_none());
    let hogs = of("diskhog --time 20ms --interval 10ms --policy per-core");
    assert!(hogs.diskhog[0].policies[0].bytes_per_second > 0.0);
}

#[test]
fn broken_document_is_rejected() {
    let folder = Folder::new("broken");
    folder.file("job.fio", "[a]\nsize=64k\n");
    let run = ["run", "job.fio", "--plan", "gen4", "--world", "sim"];
    let (_, text) = document(&mut doorbell(&folder, &run));
    let breaks = [
        ("\"schema\": \"doorbell-result\"", "\"schema\": \"fio\"", "found \"fio\""),
        ("\"schema_version\": 1", "\"schema_version\": 2", "schema_version: found 2"),
        ("\"measured_ps\"", "\"measured\"", "unknown field `measured`"),
        ("\"world\": \"simulated\"", "\"world\": \"sim\"", "unknown variant `sim`"),
    ];
    for (is, broken, expected) in breaks {
        let broken = text.replacen(is, broken, 1);
        assert_ne!(broken, text, "{is}");
        let error = report::from_json(&broken).expect_err(is).to_string();
        assert!(error.contains(expected), "{error}");
        folder.file("broken.json", &broken);
        let CommandOutput { code, err, .. } =
            output_of(&mut doorbell(&folder, &["replay", "broken.json"]));
        assert!(code == Some(1) && err.contains(expected), "{err}");
    }
}

/// Runs, then replays from the result alone; the results must be equal byte for byte.
#[track_caller]
fn replay_is_equal(folder: &Folder, run: &mut Command) -> Document {
    succeed(run.args(["--json", "result.json"]));
    let before = std::fs::read_to_string(folder.path("result.json")).expect("a result");
    let replay = ["replay", "result.json", "--json", "again.json"];
    let out = succeed(&mut doorbell(folder, &replay));
    let document = report::from_json(&before).expect("a document");
    for run in &document.runs {
        let log = run.log.as_ref().expect("a digest");
        assert!(log.lines > 0 && out.contains(&format!("digest {}", log.digest)), "{out}");
    }
    assert_eq!(out.matches("as in result.json").count(), document.runs.len(), "{out}");
    let after = std::fs::read_to_string(folder.path("again.json")).expect("a result");
    assert!(before == after, "the results of the run and of its replay differ");
    document
}

#[test]
fn result_alone_repeats_a_job() {
    let folder = Folder::new("replay-job");
    folder.file(
        "job.fio",
        "[a]\nrw=randrw\nsize=256k\niodepth=4\ndirect=1\n[b]\nstonewall\nsize=64k\n",
    );
    let run = ["run", "job.fio", "--plan", "dc-express", "--world", "sim", "--seed", "9"];
    succeed(doorbell(&folder, &run).args(["--json", "result.json"]));
    std::fs::remove_file(folder.path("job.fio")).expect("a file");
    let out = succeed(&mut doorbell(&folder, &["replay", "result.json"]));
    assert!(out.contains("as in result.json"), "{out}");
    // The same digest as by the job file, which is there again.
    folder.file(
        "job.fio",
        "[a]\nrw=randrw\nsize=256k\niodepth=4\ndirect=1\n[b]\nstonewall\nsize=64k\n",
    );
    replay_is_equal(&folder, &mut doorbell(&folder, &run));
    let by_file = ["replay", "job.fio", "--plan", "dc-express", "--seed", "9"];
    let by_file = succeed(&mut doorbell(&folder, &by_file));
    let digest = |out: &str| out.split("digest ").nth(1).map(|rest| rest[..16].to_owned());
    assert!(digest(&out).is_some() && digest(&out) == digest(&by_file), "{out}{by_file}");
}

#[test]
fn result_alone_repeats_includes_variables_settings_and_resets() {
    let folder = Folder::new("replay-outside");
    let job = folder.file("job.fio", "include common.fio\n[a]\nrw=${HOW}\niodepth=4\n");
    let common = folder.file("common.fio", "[global]\nsize=1m\nbs=4k\nverify=crc32c\n");
    let plan = folder.file("wide.toml", "base = \"gen4\"\nlink.lanes = 8\n");
    let mut run = doorbell(&folder, &["run", "job.fio", "--plan", "./wide.toml", "--world", "sim"]);
    run.env("HOW", "randwrite").args(["--interface", "dcx", "--job", "bs=8k", "--resets", "1"]);
    run.args(["--set", "host.poll=33 ns", "--series", "series.csv", "--interval", "100 us"]);
    let document = replay_is_equal(&folder, &mut run);
    let run = &document.runs[0];
    assert_eq!((run.interface.as_str(), run.resets.requested), ("dcx", 1));
    assert!(run.series.as_ref().is_some_and(|series| !series.points.is_empty()));
    assert_eq!(run.work.variables[0].value, "randwrite");
    // Nothing but the result is needed.
    for path in [job, common, plan] {
        std::fs::remove_file(path).expect("a file");
    }
    let out = succeed(&mut doorbell(&folder, &["replay", "result.json"]));
    assert!(out.contains("as in result.json"), "{out}");
}

#[test]
fn result_repeats_a_trace_with_equal_contents() {
    let folder = Folder::new("replay-trace");
    let trace = "fio version 2 iolog\nd add\nd open\nd read 0 4096\nd write 8192 4096\nd close\n";
    folder.file("trace.iolog", trace);
    let run = ["run", "trace.iolog", "--plan", "gen4", "--world", "sim", "--map", "modulo"];
    let document = replay_is_equal(&folder, &mut doorbell(&folder, &run));
    let recording = &document.runs[0].work.recordings[0];
    assert_eq!((recording.bytes, recording.sha256.len()), (trace.len() as u64, 64));
    folder.file("trace.iolog", &trace.replace("8192", "4096"));
    let CommandOutput { code, err, .. } =
        output_of(&mut doorbell(&folder, &["replay", "result.json"]));
    let expected = format!("expected {}: another recording", recording.sha256);
    assert!(code == Some(1) && err.contains(&expected), "{err}");
}

#[test]
fn replay_reports_a_result_that_is_not_its_own() {
    let folder = Folder::new("replay-other");
    folder.file("job.fio", "[a]\nsize=64k\n");
    let run = ["run", "job.fio", "--plan", "gen4", "--world", "sim", "--json", "result.json"];
    succeed(&mut doorbell(&folder, &run));
    let text = std::fs::read_to_string(folder.path("result.json")).expect("a result");
    let document = report::from_json(&text).expect("a document");
    let digest = document.runs[0].log.clone().expect("a digest").digest;
    let replay = |text: &str| {
        folder.file("other.json", text);
        output_of(&mut doorbell(&folder, &["replay", "other.json"]))
    };
    let other = replay(&text.replace(&digest, "0123456789abcdef"));
    assert!(other.code == Some(1) && other.err.contains("another event log"), "{}", other.err);
    let reads = document.runs[0].jobs[0].operations[&Kind::Read].count;
    let counts = format!("\"count\": {reads}");
    let other = replay(&text.replacen(&counts, "\"count\": 7", 1));
    assert!(other.code == Some(1) && other.err.contains("differs"), "{}", other.err);
    for more in [&["--plan", "gen4"][..], &["--seed", "1"], &["--job", "bs=8k"]] {
        let typed = [&["replay", "result.json"], more].concat();
        let CommandOutput { code, err, .. } = output_of(&mut doorbell(&folder, &typed));
        assert!(code == Some(1) && err.contains("it has all of its run"), "{more:?}: {err}");
    }
}

/// Every path of a value; options are the user's.
fn paths(value: &serde_json::Value, path: &str, all: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(object) => {
            for (key, value) in object {
                let path = format!("{path}/{key}");
                all.insert(path.clone());
                if !key.ends_with("options") {
                    paths(value, &path, all);
                }
            }
        }
        serde_json::Value::Array(array) => {
            array.iter().for_each(|value| paths(value, &format!("{path}[]"), all));
        }
        _ => {}
    }
}

#[test]
fn fio_object_has_the_keys_of_fio_and_no_other() {
    let folder = Folder::new("fio-object");
    folder.file("job.fio", "[a]\nrw=randrw\nsize=1m\nfsync=8\n");
    let run = ["run", "job.fio", "--plan", "gen4", "--world", "sim", "--json", "-"];
    let out = succeed(doorbell(&folder, &run).args(["--format", "fio"]));
    let mut ours = BTreeSet::new();
    paths(&serde_json::from_str(&out).expect("JSON"), "", &mut ours);
    let lines = include_str!("../fio-3.33-keys.txt").lines();
    let theirs = lines.filter(|line| line.starts_with('/')).map(str::to_owned).collect();
    let differ: Vec<_> = ours.symmetric_difference(&theirs).collect();
    assert!(differ.is_empty(), "{differ:#?}");
}

/// The numbers of the summary, of CSV, of fio's object and of the document are one.
#[test]
fn views_of_a_run_agree() {
    let folder = Folder::new("views");
    folder.file("job.fio", "[a]\nrw=randread\nsize=1m\niodepth=4\n");
    let run = ["run", "job.fio", "--plan", "gen4", "--world", "sim"];
    let (document, _) = document(&mut doorbell(&folder, &run));
    let read = &document.runs[0].jobs[0].operations[&Kind::Read];
    let at = |quantile: f64| {
        let found = read.latency.percentiles.iter().find(|one| one.quantile == quantile);
        found.expect("a percentile").ns
    };
    let summary = succeed(&mut doorbell(&folder, &run));
    let row = summary.lines().find(|line| line.starts_with("a read")).expect("a row");
    let cells: Vec<_> = row.split_whitespace().skip(2).collect();
    let us = |ns: u64| format!("{:.3}", ns as f64 / 1e3);
    assert_eq!(cells[0], format!("{:.0}", read.iops), "{summary}");
    assert_eq!(cells[2..], [us(at(0.5)), us(at(0.99)), us(at(0.999))], "{summary}");
    let csv = succeed(doorbell(&folder, &run).args(["--csv", "-"]));
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let (names, values) = (lines.next().expect("names"), lines.next().expect("a row"));
    let value = |name: &str| values[names.iter().position(|n| *n == name).expect("a column")];
    assert_eq!(value("operations"), read.count.to_string());
    assert_eq!(value("iops").parse(), Ok(read.iops));
    assert_eq!(value("p99_ns"), at(0.99).to_string());
    assert!(lines.next().is_none(), "{csv}");
    let fio = succeed(doorbell(&folder, &run).args(["--json", "-", "--format", "fio"]));
    let fio: serde_json::Value = serde_json::from_str(&fio).expect("JSON");
    let fio = &fio["jobs"][0]["read"];
    assert_eq!(
        (fio["total_ios"].as_u64(), fio["iops"].as_f64()),
        (Some(read.count), Some(read.iops))
    );
    let completion = read.completion.as_ref().unwrap_or(&read.latency);
    let p99 = completion.percentiles.iter().find(|one| one.quantile == 0.99).map(|one| one.ns);
    assert_eq!(fio["clat_ns"]["percentile"]["99.000000"].as_u64(), p99);
    let bins: u64 = read.latency.bins.iter().map(|bin| bin.1).sum();
    assert_eq!(
        (bins, read.latency.at(0.5), read.latency.at(0.99)),
        (read.count, at(0.5), at(0.99))
    );
}

/// A summary is a screen, in both worlds, whatever the number of jobs; a pipe has no colour.
#[test]
fn summaries_fit_a_screen() {
    let folder = Folder::new("screen");
    let many: String =
        (0..30).map(|n| format!("[a-job-with-a-long-name-{n}]\nrw=randrw\nsize=64k\n")).collect();
    folder.file("many.fio", &many);
    folder.file("one.fio", "[a]\nrw=randrw\nsize=64k\nfsync=4\n");
    for typed in [
        "run many.fio --plan gen4",
        "run one.fio --plan small-flash",
        "compare one.fio --plan gen4",
        "compare many.fio --plan descriptor-blocks",
    ] {
        let words: Vec<_> = typed.split(' ').collect();
        let out = succeed(&mut doorbell(&folder, &words));
        let wide = out.lines().find(|line| line.chars().count() > 80);
        assert!(wide.is_none() && !out.contains('\u{1b}'), "{typed}: {wide:?}\n{out}");
        assert!(out.trim_end().lines().count() <= 24, "{typed}:\n{out}");
        let details = succeed(doorbell(&folder, &words).arg("--verbose"));
        let wide = details.lines().find(|line| line.chars().count() > 80);
        assert!(wide.is_none(), "{typed} --verbose: {wide:?}");
        assert!(details.lines().count() > out.lines().count(), "{details}");
    }
}
