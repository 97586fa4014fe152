//! Recordings run in both worlds, with everything that is read checked against what was written.

use std::path::{Path, PathBuf};

use plan::Plan;
use testing::{Folder, clean, only, operations, plan, root};
use workload::trace::Mapping;
use world::interfaces::NVME;
use world::work::Work;
use world::{self, Options};

/// So many lines of a recording are enough for a build without optimisation, which checks slowly.
const LINES: usize = 3000;

/// A recording as a verified job, without the pauses between its operations; all of it with
/// `DOORBELL_HEAVY=1`.
fn recording(folder: &Folder, path: &Path, mapping: Mapping) -> Work {
    let text = std::fs::read_to_string(path).expect("a recording");
    let heavy = std::env::var_os("DOORBELL_HEAVY").is_some();
    let most = if heavy { usize::MAX } else { LINES };
    let lines: Vec<_> = text.lines().take(most).collect();
    let name = path.file_name().expect("a file").to_string_lossy();
    folder.file(&name, &(lines.join("\n") + "\n"));
    let text = format!("[play]\nread_iolog={name}\nreplay_no_stall=1\niodepth=64\nverify=crc32c\n");
    let job = folder.path("test.fio");
    Work::parse(&job, &text, mapping).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs it in both worlds, which see the same operations.
fn in_both_worlds(plan: &Plan, work: &Work, at_least: u64) {
    let simulated = world::simulate(NVME, plan, work, Options::default());
    let live = world::live_in_threads(NVME, plan, work, Options::default());
    let [simulated, live] = [simulated, live]
        .map(|job_result| clean(job_result.unwrap_or_else(|error| panic!("{error}"))));
    for run_result in [&simulated, &live] {
        let job_result = only(run_result);
        assert!(operations(job_result) >= at_least, "only {} operations", operations(job_result));
        assert!(
            job_result.blocks_verified > at_least,
            "only {} blocks",
            job_result.blocks_verified
        );
        assert_eq!(run_result.notes.len(), 1, "how the recording lies on the device");
    }
    let (simulated, live) = (only(&simulated), only(&live));
    assert_eq!(operations(simulated), operations(live));
    assert_eq!(simulated.stats.read.bytes, live.stats.read.bytes);
    assert_eq!(simulated.stats.write.bytes, live.stats.write.bytes);
    assert_eq!(simulated.stats.flush.total.count(), live.stats.flush.total.count());
}

#[test]
fn a_recorded_database_finds_what_it_wrote() {
    let (plan, folder) = (plan("live", &[("medium.block", "512 B")]), Folder::new("pgbench"));
    let path = root().join("traces/pgbench.iolog");
    in_both_worlds(&plan, &recording(&folder, &path, Mapping::Concatenate), 2000);
}

/// A recording that is not ours to pass on, where it is at hand: in the folder that DOORBELL_SHARED
/// names, or beside this repository.
#[test]
fn a_recorded_tpcc_run_finds_what_it_wrote() {
    let beside = || root().join("../shared");
    let shared = std::env::var_os("DOORBELL_SHARED").map_or_else(beside, PathBuf::from);
    let path = shared.join("traces/tpcc-small.trace");
    if !path.exists() {
        return println!("not run: {} is not there", path.display());
    }
    let (plan, folder) = (plan("live", &[("medium.block", "512 B")]), Folder::new("tpcc"));
    in_both_worlds(&plan, &recording(&folder, &path, Mapping::Modulo), 2000);
}
