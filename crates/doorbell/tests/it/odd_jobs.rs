//! Command lines and files from users are run or rejected with an error that names the cause: job files
//! with extreme values, flags without effect, files of another kind or size than expected.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{CommandOutput, Folder, doorbell, output_of};
use plan::Plan;
use workload::job::{KEYS, Kind};
use workload::trace::Mapping;
use world::interfaces::NVME;
use world::work::Work;
use world::{self, Options};

/// Asserts that the command fails with a one-line error that contains all of `words`, and prints nothing
/// else.
#[track_caller]
fn refused(folder: &Folder, arguments: &[&str], words: &[&str]) {
    let CommandOutput { code, err, out } = output_of(&mut doorbell(folder, arguments));
    assert_eq!((code, out.as_str(), err.lines().count()), (Some(1), "", 1), "{arguments:?}: {err}");
    for word in words {
        assert!(err.contains(word), "{arguments:?}: {word:?} is not in {err}");
    }
}

/// Values tried for each key: extreme numbers, with and without units, lists, words and nothing.
const VALUES: [&str; 36] = [
    "",
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "512",
    "513",
    "4096",
    "65536",
    "65537",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "0x1000",
    "1k",
    "1m",
    "1g",
    "1t",
    "1e",
    "16777216t",
    "0%",
    "1%",
    "100%",
    "101%",
    "4k,8k,512",
    "512-1m",
    "512/100:4k/0",
    "0-0",
    "1s",
    "100000h",
    "none",
    "randrw",
];

/// Bounds for each run, however large the job: time and operations in virtual time, and memory.
const BOUNDS: &str = "number_ios=20\nruntime=1ms\ntime_based=0\n";

/// Reads the job and runs it in virtual time, unless it would take long; returns the error, if any.
fn run(folder: &Folder, plan: &Plan, text: &str) -> Result<(), String> {
    let path = folder.file("odd.fio", text);
    let work = Work::load(&path, Mapping::Concatenate).map_err(|error| error.to_string())?;
    let jobs: u32 = work.jobs.iter().map(|job| job.numjobs).sum();
    if jobs > 64 {
        return Ok(());
    }
    let run_result = world::simulate(NVME, plan, &work, Options::default());
    let run_result = run_result.map_err(|error| error.to_string())?;
    let mut failed = run_result.jobs.iter().flat_map(|(_, output)| &output.messages);
    failed.next().cloned().map_or(Ok(()), Err)
}

#[test]
fn every_key_with_extreme_values_runs_or_error_names_key() {
    let folder = Folder::new("odd-jobs");
    let plan = Plan::open("gen4", &[]).expect("a built-in plan");
    let (mut output, mut refused) = (0, 0);
    for key in KEYS.iter().filter(|key| matches!(key.kind, Kind::Supported { .. })) {
        let key = key.name;
        for (number, value) in VALUES.iter().enumerate() {
            let rw = ["randrw", "randwrite", "trim", "read"][number % 4];
            // Bounds come first, so that the key itself may be one of them.
            let text = format!("[a]\nrw={rw}\nsize=1m\n{BOUNDS}{key}={value}\n");
            match catch_unwind(AssertUnwindSafe(|| run(&folder, &plan, &text))) {
                Ok(Ok(())) => output += 1,
                Ok(Err(error)) => {
                    refused += 1;
                    let names = [key, "odd.fio: a: ", "a: ", "cannot be read"];
                    assert!(names.iter().any(|name| error.contains(name)), "{text}{error}");
                }
                Err(_) => panic!("this job panics:\n{text}"),
            }
        }
    }
    assert!(output > 200 && refused > 200, "{output} ran, {refused} were refused");
}

#[test]
fn too_many_clones_error_names_file_line_and_key() {
    let folder = Folder::new("clones");
    // A file of 131 bytes that asked for more clones than there are port numbers.
    let many = format!("[global]\nnumjobs=4096\nsize=4k\n{}", "[a]\n".repeat(17));
    folder.file("many.fio", &many);
    let words = ["doorbell: many.fio:2: numjobs: ", "8192 clones", "at most 4096"];
    for world in ["sim", "live"] {
        refused(&folder, &["run", "many.fio", "--world", world], &words);
    }
    // One after the other, their number is not limited.
    folder.file("few.fio", "[a]\nnumjobs=9\nsize=4k\n[b]\nstonewall\nnumjobs=9\nsize=4k\n");
    let CommandOutput { code, err, .. } =
        output_of(&mut doorbell(&folder, &["run", "few.fio", "--world", "sim"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
}

/// A clone allocates statistics only for what it records: 4096 of them used to take 16 GiB.
#[test]
fn clone_memory_is_bounded() {
    use workload::stats::{Breakdown, JobStats};
    let seen = || JobStats {
        breakdowns: workload::OpKind::ALL.map(|kind| (kind, Breakdown::new(&["a"]))).into(),
        ..JobStats::default()
    };
    // Ten thousand clones without results would be 40 GB if each had its histograms.
    let all: Vec<JobStats> = (0..10_000).map(|_| seen()).collect();
    let mut sum = seen();
    all.iter().for_each(|one| sum.merge(one));
    assert_eq!(sum.read.total.count(), 0);
}

#[test]
fn flag_without_effect_is_rejected() {
    let folder = Folder::new("flags");
    folder.file("good.fio", "[a]\nsize=64k\n");
    let run = |more: &[&str], words: &[&str]| {
        refused(&folder, &[&["run", "good.fio"], more].concat(), words)
    };
    for (flag, value) in [("--socket", "s"), ("--vfio-user", "s"), ("--vfio", "0000:01:00.0")] {
        run(&["--world", "sim", flag, value], &[&format!("doorbell: {flag}: found --world sim, ")]);
    }
    run(
        &["--world", "live", "--log", "x"],
        &["--log: found --world live, expected --world sim or both"],
    );
    assert!(!folder.path("x").exists());
    run(&["--map", "modulo"], &["--map: found no recording"]);
    refused(&folder, &["compare", "good.fio", "--map", "modulo"], &["--map: found no recording"]);
    let replay = ["replay", "good.fio", "--plan", "gen4", "--seed", "1", "--map", "modulo"];
    refused(&folder, &replay, &["--map: found no recording"]);
    run(&["--world", "sim", "--log", "-"], &["doorbell: -: expected the path of a file"]);
    run(&["--json", "-", "--csv", "-"], &["doorbell: -: found more than once"]);
    run(&["--json", "x", "--format", "fio"], &["--format fio: found 2 runs, expected one"]);
    let conformance =
        |more: &[&str], words: &[&str]| refused(&folder, &[&["conformance"], more].concat(), words);
    for flag in ["--socket", "--vfio-user", "--vfio"] {
        conformance(&[flag, "s", "--world", "sim"], &[&format!("{flag}: found --world")]);
    }
    conformance(&["--data", "erase"], &["--data: found no other controller"]);
    conformance(&["--list", "--lacking"], &["--list: found a flag of a run"]);
    for only in ["nonsense", "99.9"] {
        conformance(
            &["--only", only],
            &[&format!("--only {only}: found no such case"), "--list", "3.1"],
        );
        conformance(&["--list", "--only", only], &["found no such case"]);
    }
}

#[test]
fn oversized_input_is_rejected_before_reading() {
    let folder = Folder::new("lengths");
    let sparse = |name: &str, begin: &str, bytes: u64| {
        let mut file = std::fs::File::create(folder.path(name)).expect("a file");
        file.write_all(begin.as_bytes()).expect("its beginning");
        file.set_len(bytes).expect("a sparse file");
    };
    const TERABYTE: u64 = 1 << 40;
    sparse("long.fio", "[a]\n", TERABYTE);
    refused(
        &folder,
        &["run", "long.fio"],
        &["long.fio: found 1099511627776 bytes, expected a job file of at most 1048576"],
    );
    sparse("job", "[a]\n", TERABYTE);
    refused(&folder, &["run", "job"], &["job: found 1099511627776 bytes, expected a job file"]);
    sparse("long.rec", "doorbell recording 1\n", TERABYTE);
    refused(
        &folder,
        &["run", "long.rec"],
        &["long.rec: found 1099511627776 bytes, expected a recording"],
    );
    // A trace is read by lines.
    sparse("long.iolog", "fio version 2 iolog\n", TERABYTE);
    refused(&folder, &["run", "long.iolog", "--world", "sim"], &["long.iolog:2: "]);
    sparse("long.toml", "version = 1\n", TERABYTE);
    refused(&folder, &["check", "long.toml"], &["long.toml: found 1099511627776 bytes"]);
    // Files without a length, such as pipes and devices.
    refused(&folder, &["check", "/dev/zero"], &["/dev/zero: found "]);
    refused(&folder, &["run", "/dev/zero", "--world", "sim"], &["/dev/zero"]);
    refused(&folder, &["run", "ok.fio", "--plan", "/dev/zero"], &["/dev/zero: found "]);
}

#[test]
fn invalid_nbd_address_is_rejected() {
    let folder = Folder::new("addresses");
    for address in ["127.0.0.1:99999", "localhost:", "10809", ":10809", "localhost:1o809"] {
        let serve = ["serve", "live", "--nbd", address];
        refused(
            &folder,
            &serve,
            &[&format!("--nbd {address}: "), "expected HOST:PORT, as 127.0.0.1:10809"],
        );
        assert!(!folder.path(address).exists(), "a socket was made");
    }
}
