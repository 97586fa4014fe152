//! SCSI over shared queues, by policy: verified simulated and live, under resets, on disks; and diskhog,
//! whose monitor counts transferred bytes.

use std::path::Path;

use campaign::diskhog::{self, Hog};
use plan::{POLICIES, Plan};
use runtime::Span;
use workload::trace::Mapping;
use world::interfaces::SCSI;
use world::work::Work;
use world::{self, Options, RunResult, ThreadUse, Warning};

fn plan(name: &str, policy: &str) -> Plan {
    deep(name, policy, "16")
}

fn deep(name: &str, policy: &str, depth: &str) -> Plan {
    let sets = [
        ("host.sharing.policy", policy),
        ("medium.capacity", "64 MiB"),
        ("host.memory", "64 MiB"),
        ("host.queue_depth", depth),
    ];
    Plan::open(name, &sets).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Four jobs that overwrite each other's blocks of one disk, with verification, and one that deallocates.
const VERIFIED: &str = "[mixed]\nrw=randrw\nbsrange=512-32k\nsize=4m\niodepth=8\nnumber_ios=200\n\
                        verify=crc32c\nverify_fatal=0\nnumjobs=4\nfsync=20\n\
                        [trims]\nrw=randtrim\nbssplit=512/20:4k/60:64k/20\nsize=4m\niodepth=4\n\
                        number_ios=60\nverify=crc32c\n";

fn verified() -> Work {
    Work::parse(Path::new("test"), VERIFIED, Mapping::default()).unwrap()
}

fn assert_clean(run_result: &RunResult, policy: &str) {
    for (job, job_result) in &run_result.jobs {
        assert_eq!(job_result.errors(), 0, "{policy}: {}: {:?}", job.name, job_result.messages);
        let trims = job_result.stats.trim.total.count();
        assert!(job_result.blocks_verified > 0 || trims > 0, "{policy}: {}", job.name);
    }
}

#[test]
fn scsi_verified_io_by_queue_policy_simulated_and_live() {
    for (policy, _) in POLICIES {
        let plan = plan("vortex", policy);
        let options = Options::default();
        assert_clean(&world::simulate(SCSI, &plan, &verified(), options).unwrap(), policy);
        let options = Options { resets: 3, ..Options::default() };
        let live = world::live_in_one_thread(SCSI, &plan, &verified(), options).unwrap();
        assert_clean(&live, policy);
        assert_eq!(live.resets, 3, "{policy}");
    }
}

/// Full queues: at a reset they hold commands of every core, and a core is waiting for a free entry.
#[test]
fn scsi_io_survives_resets_with_full_queues() {
    for (policy, _) in POLICIES {
        for depth in ["1", "16"] {
            let plan = deep("vortex", policy, depth);
            let options = Options { resets: 3, ..Options::default() };
            let job_result = world::simulate(SCSI, &plan, &verified(), options).unwrap();
            assert_clean(&job_result, policy);
            assert_eq!(job_result.resets, 3, "{policy}, {depth} deep");
        }
    }
}

#[test]
fn scsi_verified_io_on_disks() {
    let sets = [("medium.capacity", "64 MiB"), ("host.memory", "64 MiB")];
    let plan = Plan::open("vortex-disks", &sets).unwrap();
    let run_result = world::simulate(SCSI, &plan, &verified(), Options::default()).unwrap();
    assert_clean(&run_result, "disks");
}

#[test]
fn diskhog_monitor_counts_transferred_bytes() {
    let hog = Hog {
        threads: 4,
        bytes: 256 << 10,
        time: Span::ms(4),
        interval: Span::ms(1),
        ..Hog::sequential(4)
    };
    for write in [false, true] {
        for (policy, _) in POLICIES {
            let plan = plan("vortex", policy);
            let hog = Hog { write, ..hog.clone() };
            let seen = diskhog::simulated(&plan, &hog).unwrap();
            assert_eq!(seen.cores.len(), 4);
            for core in &seen.cores {
                assert_eq!(core.series.iter().sum::<u64>(), core.bytes, "{policy}");
                assert!(core.series.len() <= 4 && core.bytes > 0, "{policy}: {core:?}");
                assert!(core.requests <= core.bytes / hog.bytes + 1, "{policy}");
            }
            match policy {
                "single" => assert!(seen.lock_waits > 0),
                "per-core" | "pool" => assert_eq!(seen.lock_waits, 0, "{policy}"),
                _ => {}
            }
            let again = diskhog::simulated(&plan, &hog).unwrap();
            assert_eq!(seen.cores, again.cores, "{policy}: the same again");
        }
    }
}

/// Threads of the operating system under real locks: everything moved is compared, and no two cores have one
/// thread.
#[test]
fn live_diskhog_verifies_data_on_distinct_threads_by_policy() {
    for write in [false, true] {
        for (policy, _) in POLICIES {
            for order in ["unfair", "fair"] {
                let sets = [
                    ("host.sharing.policy", policy),
                    ("host.sharing.order", order),
                    ("medium.capacity", "16 MiB"),
                    ("medium.pace", "immediate"),
                    ("host.memory", "64 MiB"),
                    ("host.queues", "7"),
                    ("host.queue_depth", "3"),
                ];
                let plan = Plan::open("vortex", &sets).unwrap();
                let hog = Hog {
                    write,
                    bytes: 64 << 10,
                    batch: 4,
                    random: true,
                    time: Span::ms(10),
                    interval: Span::ms(5),
                    region_bytes: 512 << 10,
                    ..Hog::sequential(3)
                };
                let seen = diskhog::live(&plan, &hog).unwrap();
                let case = format!("{policy}, {order}, write {write}: {seen:?}");
                let mut ids: Vec<_> = seen.threads.iter().map(|thread| thread.id).collect();
                ids.sort_unstable();
                ids.dedup();
                assert_eq!((ids.len(), seen.cores.len()), (3, 3), "{case}");
                // A thread that lost its core is warned about, as by `run`.
                let used: Option<Vec<_>> = seen.threads.iter().map(|thread| thread.used).collect();
                let disturbed = used.expect("of each").iter().any(ThreadUse::is_disturbed);
                let of_cores = |warning: &Warning| match warning {
                    Warning::Disturbed { thread, .. } => *thread == "host",
                    _ => false,
                };
                assert!(!disturbed || seen.warnings.iter().any(of_cores), "{case}");
                for (core, thread) in seen.cores.iter().zip(&seen.threads) {
                    let read = if write { 0 } else { core.bytes };
                    assert!(thread.verified_bytes >= hog.region_bytes + read, "{case}");
                }
                if matches!(policy, "per-core" | "pool") {
                    assert_eq!(seen.lock_waits, 0, "{case}");
                }
            }
        }
    }
}

/// A single queue favours the core that takes its completions in, whichever that is.
#[test]
fn favoured_core_follows_the_home_of_completions() {
    let hog = Hog { time: Span::ms(20), interval: Span::ms(20), ..Hog::sequential(8) };
    let favoured = |home: &str| {
        let sets = [("host.sharing.policy", "single"), ("host.sharing.home", home)];
        let seen = diskhog::simulated(&Plan::open("vortex", &sets).unwrap(), &hog).unwrap();
        diskhog::favoured(&seen.shares_by_core())
    };
    for home in [0, 3, 7] {
        assert_eq!(favoured(&home.to_string()), Some(home));
    }
}

/// A write completes when it is in the kernel's buffers: at copy speed, until they are full.
#[test]
fn write_behind_completes_at_copy_speed_until_buffers_full() {
    let sets = |behind| {
        let sets = [
            ("medium.capacity", "64 MiB"),
            ("host.memory", "256 MiB"),
            ("host.queues", "8"),
            ("host.queue_depth", "512"),
            ("host.kernel.write_behind", behind),
        ];
        Plan::open("vortex", &sets).unwrap()
    };
    let interval = Span::ms(1);
    let operations = Hog::operations(2);
    let hog = Hog { write: true, batch: 100, time: interval * 20, interval, ..operations };
    let series = |behind| -> Vec<u64> {
        let seen = diskhog::simulated(&sets(behind), &hog).unwrap();
        (0..20)
            .map(|at| seen.cores.iter().map(|core| core.series.get(at).unwrap_or(&0)).sum())
            .collect()
    };
    let (behind, through) = (series("true"), series("false"));
    let all = |series: &[u64]| series.iter().sum::<u64>();
    assert!(20 * behind[0] > 3 * all(&through), "{behind:?} {through:?}");
    let rate = all(&through) / 4;
    assert!(
        all(&behind[15..]) < 2 * rate,
        "the drive's own rate in the end: {behind:?} {through:?}"
    );
}

#[test]
fn diskhog_invalid_workload_error_names_limit() {
    let plan = plan("vortex", "pool");
    let refused = |hog: Hog, expected: &str| {
        let error = diskhog::simulated(&plan, &hog).expect_err("refused").to_string();
        assert_eq!(error, expected);
    };
    let hog = Hog::sequential(8);
    refused(
        Hog { threads: 9, ..hog.clone() },
        "diskhog: threads: found 9, expected 1 to 8, host.cores",
    );
    refused(
        Hog { bytes: 700, ..hog.clone() },
        "diskhog: the length of a request: found 700, expected whole blocks of 512 bytes",
    );
    refused(
        Hog { bytes: 16 << 20, ..hog.clone() },
        "diskhog: the length of a request: found 16777216, expected at most 8388608, a thread's part of \
         the disk",
    );
    refused(
        Hog { batch: 100, ..hog },
        "diskhog: what is in flight: found 3355443200, expected at most half of host.memory, 67108864 bytes",
    );
}
