//! A recorded live run is replayed in virtual time: the same arrivals, at the same times.

use crate::common::{CommandOutput, Folder, clean, doorbell, only, output_of, plan, simulate};
use workload::pattern::OpKind;
use workload::trace::{Mapping, Recorded, Recording};
use world::interfaces::NVME;
use world::run_recorder::RunRecorder;
use world::work::Work;
use world::{self, Options};

const JOB: &str = "[mixed]\nrw=randrw\nbs=4k\niodepth=4\nsize=4m\nnumber_ios=300\nfsync=50\n";

/// Records a live run, with room for `room` operations; returns the number of operations too.
fn recorded(room: usize) -> (Recording, u64) {
    let (plan, run_recorder) = (plan("live", &[]), RunRecorder::new(room));
    let options = Options { run_recorder: Some(run_recorder.clone()), ..Options::default() };
    let work = crate::common::work(JOB);
    let output = world::live_in_threads(NVME, &plan, &work, options);
    let run_result = clean(output.unwrap_or_else(|error| panic!("{error}")));
    let seen = &only(&run_result).stats;
    let ended = OpKind::ALL.iter().map(|kind| seen.of(*kind).total.count()).sum();
    (run_recorder.finish("live".into(), 4, &run_result), ended)
}

#[test]
fn replay_submits_operations_at_recorded_times() {
    let (recording, ended) = recorded(10_000);
    assert_eq!((recording.lost, recording.arrivals.len() as u64), (0, ended));
    assert!(recording.arrivals.is_sorted_by_key(|io| io.at), "by their arrival");
    // One doorbell for each operation, and those of bring-up.
    assert!(recording.register_writes.len() as u64 > ended, "{ended} operations");

    let folder = Folder::new("recorded");
    let mut bytes = Vec::new();
    recording.write(&mut bytes).unwrap();
    let path = folder.file("live.rec", std::str::from_utf8(&bytes).unwrap());
    let work = Work::load(&path, Mapping::Concatenate).unwrap_or_else(|error| panic!("{error}"));
    let live = work.recorded.as_ref().expect("a recording");
    assert_eq!(live.latencies.values().map(|seen| seen.count()).sum::<u64>(), ended);
    assert_eq!(live.register_writes, recording.register_writes.len() as u64);

    // A device that is never late has begun the last operation at its arrival.
    let run_result = clean(simulate(&plan("gen4", &[("medium.block", "\"512 B\"")]), &work));
    let (seen, at) = (&only(&run_result).stats, &recording.arrivals);
    for kind in OpKind::ALL {
        let count = at.iter().filter(|io| io.kind == kind).count() as u64;
        assert_eq!(seen.of(kind).total.count(), count, "{kind:?}");
    }
    let span = at.last().unwrap().at - at[0].at;
    assert!(only(&run_result).measured >= span, "the last arrives {span} after the first");
}

#[test]
fn full_recorder_counts_missing_operations() {
    let (recording, ended) = recorded(100);
    assert_eq!((recording.arrivals.len(), recording.register_writes.len()), (100, 100));
    assert!(recording.lost > ended - 100, "{} lost of {ended}", recording.lost);
}

#[test]
fn command_prints_recorded_run_and_replay() {
    let folder = Folder::new("record");
    folder.file("job.fio", JOB);
    let sets = ["--set", "run.breakdown_sample=1"];
    let record = ["run", "job.fio", "--world", "live", "--record", "live.rec"];
    let CommandOutput { code, out, err } =
        output_of(&mut doorbell(&folder, &[&record[..], &sets].concat()));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.contains("recorded: ") && out.contains(" register writes, in live.rec"), "{out}");
    let replay = ["run", "live.rec", "--verbose", "--world", "sim", "--plan", "gen4"];
    let CommandOutput { code, out: first, err } = output_of(&mut doorbell(&folder, &replay));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    for word in ["as recorded (live, two threads, plan live, nvme)", "p50, us", "  submit", "flush"]
    {
        assert!(first.contains(word), "{word}: {first}");
    }
    let CommandOutput { out: second, .. } = output_of(&mut doorbell(&folder, &replay));
    assert_eq!(first, second, "a replay is a simulated run, which repeats");
}

/// The recording has no `bs`: its buffers are as large as its operations.
#[test]
fn recording_of_large_operations_is_replayed_in_both_worlds() {
    let folder = Folder::new("record-large");
    folder.file("job.fio", "[a]\nrw=randrw\nbs=1m\niodepth=4\nsize=16m\nnumber_ios=16\n");
    let record = ["run", "job.fio", "--world", "live", "--record", "live.rec"];
    for arguments in [&record[..], &["run", "live.rec"]] {
        let CommandOutput { code, err, .. } = output_of(&mut doorbell(&folder, arguments));
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
    }
}

#[test]
fn record_requires_one_live_run() {
    let folder = Folder::new("record-what");
    folder.file("job.fio", JOB);
    for more in [&["--world", "sim"][..], &["job.fio"]] {
        let words = ["run", "job.fio", "--record", "x.rec"];
        let CommandOutput { code, err, .. } =
            output_of(&mut doorbell(&folder, &[&words[..], more].concat()));
        assert_eq!(code, Some(1));
        assert!(err.contains("expected one JOB or TRACE, and --world live or both"), "{err}");
        assert!(!folder.path("x.rec").exists(), "nothing is overwritten for nothing");
    }
}

#[test]
fn corrupt_recording_error_names_line() {
    let folder = Folder::new("record-broken");
    folder.file("bad.rec", "doorbell recording 1\nrun x\nio 1 read 0 4096\n");
    let CommandOutput { code, err, .. } = output_of(&mut doorbell(&folder, &["run", "bad.rec"]));
    assert_eq!(code, Some(1));
    assert!(
        err.starts_with("doorbell: bad.rec:3: ") && err.contains("expected io AT KIND"),
        "{err}"
    );
    assert!(Recorded::of("x", "").unwrap().is_none());
}
