//! Queues of one drive that several device threads of this process serve.

use testing::{clean, only, plan, work};
use world::{Options, Where, live_in_host_threads, live_in_threads};

const SETS: [(&str, &str); 4] = [
    ("medium.capacity", "16 MiB"),
    ("medium.block", "512 B"),
    ("host.memory", "64 MiB"),
    ("host.retries", "100"),
];

/// Clones of one job, which verify blocks that all of them write.
const JOB: &str = "[v]\nrw=randrw\nbssplit=512/50:4k/40:64k/10\niodepth=8\nnumjobs=4\nsize=1m\n\
                   io_size=1g\nnorandommap=1\nnumber_ios=1000\nverify=crc32c\nverify_fatal=1\n";

#[test]
fn four_device_threads_verify_writes_of_four_host_threads() {
    let _turn = testing::turn();
    let plan = plan("live", &SETS);
    for (resets, device_threads, place) in
        [(0, 4, Where::Thread), (3, 3, Where::Thread), (0, 0, Where::Beside)]
    {
        let options = Options { resets, device_threads, ..Options::default() };
        let run = live_in_host_threads(&plan, &work(JOB), options, 4, place);
        let run = clean(run.unwrap_or_else(|error| panic!("{place:?}: {error}")));
        assert!(only(&run).blocks_verified > 1000, "{}", only(&run).blocks_verified);
        assert_eq!(run.resets, resets);
    }
}

/// A thread that deletes its queue before others have theirs must not leave them its identifier.
#[test]
fn host_threads_that_end_at_once_disturb_no_other() {
    let _turn = testing::turn();
    let job = "[w]\nrw=write\nbs=4k\nnumjobs=4\nsize=1m\nnumber_ios=1\n";
    for round in 0..20 {
        let run = live_in_host_threads(
            &plan("live", &SETS),
            &work(job),
            Options::default(),
            4,
            Where::Beside,
        );
        clean(run.unwrap_or_else(|error| panic!("round {round}: {error}")));
    }
}

#[test]
fn interface_with_one_device_thread_is_refused() {
    let options = || Options { device_threads: 2, ..Options::default() };
    let refused = |name: &str, sets: &[(&str, &str)]| {
        let row = world::interfaces::named(name).expect("an interface");
        let run = live_in_threads(row, &plan("live", sets), &work(JOB), options());
        run.err().expect("refused").to_string()
    };
    assert_eq!(
        refused("block", &SETS),
        "interface block: found several device threads, expected one"
    );
    let error = refused("nvme", &[("medium.pace", "modelled")]);
    assert!(
        error.contains("medium.pace: found modelled, expected none with 2 device threads"),
        "{error}"
    );
}
