//! `run --trace`: a file of trace events, read by a program that shares nothing with the writer.

use std::process::Command;

use crate::common::{Folder, doorbell, output_of, turn};

/// Rules of the trace-event format, in Python: each event has its phase's keys, slices of a track do not
/// overlap and have a named process and track, flows begin and end once and bind to slices. Prints a line for
/// each run: its name, its operations, slices and lanes.
const READER: &str = include_str!("trace_events.py");

/// Checks the file by [`READER`]; returns its lines.
fn read(folder: &Folder, file: &str) -> Vec<String> {
    let script = folder.file("reader.py", READER);
    let mut command = Command::new("python3");
    command.arg(script).arg(folder.path(file)).current_dir(folder.at());
    let output = output_of(&mut command);
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""), "{}", output.out);
    output.out.lines().map(str::to_owned).collect()
}

#[test]
fn trace_of_several_runs_in_both_worlds_is_valid() {
    let _turn = turn();
    let folder = Folder::new("trace-events");
    folder.file("one.fio", "[one]\nrw=randread\nbs=4k\niodepth=1\nsize=16m\nnumber_ios=1\n");
    folder.file(
        "mixed.fio",
        "[mixed]\nrw=randrw\nbssplit=4k/70:256k/30\niodepth=16\n\
         size=16m\nio_size=1g\nnorandommap=1\nnumber_ios=600\nfsync=50\n",
    );
    let run = ["run", "one.fio", "mixed.fio", "--plan", "gen4", "--trace", "trace.json"];
    let sets = ["--set", "run.breakdown_sample=1"];
    let output = output_of(doorbell(&folder, &run).args(sets));
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    let lines = read(&folder, "trace.json");
    assert_eq!(lines.len(), 4, "{lines:#?}");
    for (line, (name, operations)) in lines.iter().zip([
        ("== one.fio, live", 1),
        ("== one.fio, simulated", 1),
        ("== mixed.fio, live", 128),
        ("== mixed.fio, simulated", 128),
    ]) {
        assert!(line.starts_with(name), "{line}");
        assert!(line.contains(&format!("; {operations} operations; ")), "{line}");
    }
    assert!(lines[1].ends_with("lanes device, host, link down, link up, medium"), "{}", lines[1]);
}

/// The reader finds a slice that overlaps another one of its track, and a flow without an end.
#[test]
fn reader_rejects_broken_traces() {
    let folder = Folder::new("trace-events-broken");
    let named = r#"{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"a run"}},
        {"ph":"M","name":"thread_name","pid":1,"tid":7,"args":{"name":"host"}}"#;
    let slice = |ts: &str, dur: &str| {
        format!(
            r#"{{"ph":"X","cat":"read","name":"fetch","pid":1,"tid":7,"ts":{ts},"dur":{dur},
                "args":{{"operation":0,"lba":0,"queue":1,"bytes":512,"stage":"fetch"}}}}"#
        )
    };
    let flow = r#"{"ph":"s","cat":"request","name":"request","id":"1","pid":1,"tid":7,"ts":0.000}"#;
    let cases = [
        (format!("{named},{},{}", slice("0.000", "1.000"), slice("1.000", "1.000")), "ok"),
        (format!("{named},{},{}", slice("0.000", "1.001"), slice("1.000", "1.000")), "overlaps"),
        (format!("{named},{},{flow}", slice("0.000", "1.000")), "flow"),
        (slice("0.000", "1.000"), "no name"),
    ];
    for (events, expected) in cases {
        folder.file("trace.json", &format!("{{\"traceEvents\":[{events}]}}"));
        let script = folder.file("reader.py", READER);
        let mut command = Command::new("python3");
        let output = output_of(command.arg(script).arg(folder.path("trace.json")));
        match expected {
            "ok" => assert_eq!((output.code, output.err.as_str()), (Some(0), "")),
            _ => assert!(output.code == Some(1) && output.err.contains(expected), "{}", output.err),
        }
    }
}

/// Both threads of a live run on one processor lose it to each other.
#[test]
fn live_run_on_one_processor_is_disturbed() {
    let _turn = turn();
    let folder = Folder::new("disturbed");
    folder.file(
        "reads.fio",
        "[reads]\nrw=randread\nbs=4k\niodepth=4\nsize=1m\nnumber_ios=2000\nnorandommap=1\n",
    );
    let mut command = Command::new("taskset");
    command.args([
        "-c",
        "0",
        env!("CARGO_BIN_EXE_doorbell"),
        "run",
        "reads.fio",
        "--world",
        "live",
    ]);
    let output = output_of(command.current_dir(folder.at()));
    assert_eq!((output.code, output.err.as_str()), (Some(0), ""));
    let warnings: Vec<_> =
        output.out.lines().filter(|line| line.starts_with("warning: ")).collect();
    let disturbed = warnings.iter().any(|line| line.contains("thread lost its core"));
    assert!(disturbed, "{}", output.out);
}

#[test]
fn fresh_flash_is_a_warning_and_used_flash_is_none() {
    let folder = Folder::new("fresh");
    folder
        .file("reads.fio", "[reads]\nrw=randread\nbs=4k\nsize=1m\nnumber_ios=100\nnorandommap=1\n");
    let run = ["run", "reads.fio", "--plan", "small-flash", "--world", "sim"];
    for (start, expected) in [("fresh", true), ("filled", false), ("steady", false)] {
        let set = format!("medium.flash.start={start}");
        let output = output_of(doorbell(&folder, &run).args(["--set", &set]));
        assert_eq!(output.code, Some(0), "{}", output.err);
        let found = output.out.contains("warning: the flash is fresh: 0.0 % of it written");
        assert_eq!(found, expected, "{start}: {}", output.out);
    }
}
