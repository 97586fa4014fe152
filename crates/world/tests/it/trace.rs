//! Recorded traces run in both worlds with verification of all reads.

use std::path::{Path, PathBuf};

use plan::Plan;
use testing::{Folder, clean, only, operations, plan, root};
use workload::trace::Mapping;
use world::interfaces::NVME;
use world::work::Work;
use world::{self, Options};

/// Lines of a trace used by default, since an unoptimised build verifies slowly.
const LINES: usize = 3000;

/// A trace as a verified job without pauses between operations; all lines with `DOORBELL_HEAVY=1`.
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

/// Runs a job in both worlds and asserts that they do the same operations.
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
fn pgbench_trace_verifies_in_both_worlds() {
    let (plan, folder) = (plan("live", &[("medium.block", "512 B")]), Folder::new("pgbench"));
    let path = root().join("traces/pgbench.iolog");
    in_both_worlds(&plan, &recording(&folder, &path, Mapping::Concatenate), 2000);
}

/// A trace that may not be redistributed. It is used if present in the folder named by DOORBELL_SHARED, or in
/// `../shared`.
#[test]
fn tpcc_trace_verifies_in_both_worlds() {
    let beside = || root().join("../shared");
    let shared = std::env::var_os("DOORBELL_SHARED").map_or_else(beside, PathBuf::from);
    let path = shared.join("traces/tpcc-small.trace");
    if !path.exists() {
        return println!("not run: {} is not there", path.display());
    }
    let (plan, folder) = (plan("live", &[("medium.block", "512 B")]), Folder::new("tpcc"));
    in_both_worlds(&plan, &recording(&folder, &path, Mapping::Modulo), 2000);
}
