//! NVMe data descriptors (SGL) and protection information, from driver to controller, in both worlds.

use plan::Plan;
use testing::{clean, only, operations, plan, shares, simulate_with, whole_ps, work};
use workload::OpKind;
use world::interfaces::{NVME, Row};
use world::work::Work;
use world::{self, Options};

const VERIFIED: &str =
    "[mixed]\nrw=randrw\nbsrange=4k-64k\niodepth=8\nsize=4m\nnumber_ios=200\nverify=meta\n";

#[test]
fn sgl_reads_verify_in_both_worlds() {
    for sgl in ["long", "always"] {
        let of = |name| plan(name, &[("host.sgl", sgl), ("medium.capacity", "16 MiB")]);
        let run_result = clean(simulate_with(&of("gen4"), &work(VERIFIED), Options::default()));
        assert!(operations(only(&run_result)) > 50);
        for run in [world::live_in_one_thread, world::live_in_threads] {
            let options = Options { resets: 1, ..Options::default() };
            let run_result =
                clean(run(NVME, &of("live"), &work(VERIFIED), options).expect("a live run"));
            assert!(operations(only(&run_result)) > 50);
        }
    }
}

fn protected(name: &str, kind: &str, faults: &str) -> Plan {
    let sets = [
        ("device.protection", kind),
        ("medium.keep", "everything"),
        ("medium.capacity", "16 MiB"),
        ("faults", faults),
    ];
    plan(name, &sets)
}

#[test]
fn device_protected_blocks_verify_in_both_worlds() {
    for kind in ["1", "2", "3"] {
        let of = |name| protected(name, kind, "[]");
        let run_result = clean(simulate_with(&of("gen4"), &work(VERIFIED), Options::default()));
        assert!(operations(only(&run_result)) > 50);
        let live = world::live_in_threads(NVME, &of("live"), &work(VERIFIED), Options::default());
        assert!(operations(only(&clean(live.expect("a live run")))) > 50);
    }
}

/// A bit flip on the medium fails the read with the LBA and the reason, and no data are returned.
#[test]
fn medium_bit_flip_fails_read_with_guard_error() {
    let fault = r#"[{ name = "x", what = "corrupt-medium", command = "read", first_lba = 8,
        last_lba = 8 }]"#;
    let job = "[a]\nrw=write\nbs=4k\nsize=64k\n[b]\nstonewall\nrw=read\nbs=4k\nsize=64k\n";
    let failures = |run_result: world::RunResult| {
        let errors: u64 = run_result.jobs.iter().map(|(_, job_result)| job_result.errors()).sum();
        let messages: Vec<_> =
            run_result.jobs.into_iter().flat_map(|(_, job_result)| job_result.messages).collect();
        (errors, messages.concat())
    };
    type Run = fn(&'static Row, &Plan, &Work, Options) -> Result<world::RunResult, world::RunError>;
    let come = |run: Run, plan: &Plan| {
        let run_result = run(NVME, plan, &work(job), Options::default());
        failures(run_result.unwrap_or_else(|error| panic!("{error}")))
    };
    let runs: [(&str, Run); 3] = [
        ("gen4", world::simulate),
        ("live", world::live_in_one_thread),
        ("live", world::live_in_threads),
    ];
    for kind in ["1", "2", "3"] {
        for (name, run) in runs {
            let (errors, messages) = come(run, &protected(name, kind, fault));
            assert_eq!(errors, 1, "{messages}");
            let reported =
                messages.contains("End-to-end Guard Check Error") && messages.contains("LBA 8");
            assert!(reported, "{messages}");
        }
    }
    // Without protection the flip is not detected.
    let plain = plan("gen4", &[("medium.keep", "everything"), ("faults", fault)]);
    assert_eq!(come(world::simulate, &plain).0, 0);
}

/// PRPs for more than two pages need a list in host memory. An SGL of one descriptor is in the command
/// itself, and saves the fetch of that list.
#[test]
fn single_sgl_descriptor_saves_prp_list_fetch() {
    let job = "[one]\nrw=read\nbs=16k\nsize=1m\nnumber_ios=16\n";
    let run = |sgl| {
        let plan = plan("gen4", &[("host.sgl", sgl)]);
        let run_result = clean(simulate_with(&plan, &work(job), Options::default()));
        let job_result = only(&run_result);
        let stages = NVME.stages.iter().zip(shares(job_result, OpKind::Read).stages_ps);
        // The read request to host memory, and the list's transfer back.
        let fetch = stages.filter(|(stage, _)| ["host read", "prp list"].contains(stage));
        (whole_ps(job_result, OpKind::Read).0, fetch.map(|(_, ps)| ps as u64).sum::<u64>())
    };
    let ((never, list), (long, none)) = (run("never"), run("long"));
    assert!(list > 0 && none == 0, "{list} {none}");
    // Within one turn of the poll loop.
    let turn = plan("gen4", &[]).host.poll.0;
    assert!(turn > 0 && (never - long).abs_diff(list) <= turn, "{never} {long} {list} {turn}");
    assert_eq!(run("always"), (long, none));
}
