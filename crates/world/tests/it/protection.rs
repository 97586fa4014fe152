//! Protection information generated and checked by the host, from driver to controller, in both worlds: bit
//! flips in transfer are detected, and the error names the block.

use bus::sim::{SimBus, SimHost};
use host::nvme::{Controller, Options, Protect, Queue, QueueOptions};
use host::{BlockDevice, InitError, IoError, Kind};
use plan::Plan;
use runtime::{Log, Rng, Rt, Span};
use testing::{
    clean, controller, in_sim, only, operations, plan, queue, shares, simulate_with, work,
};
use wire::Lba;
use wire::nvme::pi::Tag;
use wire::nvme::status::Status;
use workload::OpKind;
use world::device::{Clock, Device, MediumState};
use world::interfaces::{NVME, Row};
use world::work::Work;

/// A plan with a namespace of 16 MiB, this protection type and these `faults`; `by` is `host` or `device`,
/// the generator of protection information.
fn protected(name: &str, kind: &str, by: &str, faults: &str) -> Plan {
    let mut sets = vec![
        ("device.protection", kind),
        ("host.protection", by),
        ("medium.keep", "everything"),
        ("medium.capacity", "16 MiB"),
        ("faults", faults),
    ];
    if by == "host" {
        sets.push(("host.guard", "250 ns"));
    }
    plan(name, &sets)
}

const VERIFIED: &str =
    "[mixed]\nrw=randrw\nbsrange=4k-64k\niodepth=8\nsize=4m\nnumber_ios=200\nverify=meta\n";

/// Both worlds, all types, with resets.
#[test]
fn host_protected_blocks_verify_under_resets() {
    for kind in ["1", "2", "3"] {
        let of = |name| protected(name, kind, "host", "[]");
        let options = |resets| world::Options { resets, ..world::Options::default() };
        for resets in [0, 2] {
            let run_result = clean(simulate_with(&of("gen4"), &work(VERIFIED), options(resets)));
            assert!(operations(only(&run_result)) > 50);
        }
        for run in [world::live_in_one_thread, world::live_in_threads] {
            let run_result = run(NVME, &of("live"), &work(VERIFIED), options(1));
            assert!(operations(only(&clean(run_result.expect("a live run")))) > 50);
        }
    }
}

const BLOCKS: usize = 64;

/// Mismatches found in a random script: by the host (tag, whether the block is behind the first), and by the
/// controller.
#[derive(Debug, Default)]
struct Met {
    by_host: Vec<(Tag, bool)>,
    by_controller: Vec<Status>,
}

/// Random writes and reads compared with a model, under this fault and with resets. Each read returns the
/// written data, or fails as corrupted with one of its LBAs. Returns the mismatches and, if not `validate`,
/// the number of wrong reads.
fn script(kind: &str, by: &str, fault: &str, validate: bool) -> (Met, u32) {
    let faults = format!(r#"[{{ name = "x", {fault}, one_in = 4 }}]"#);
    in_sim(NVME, &protected("gen4", kind, by, &faults), Log::Off, async |_, driver, _| {
        let (disk, mut rng, mut met, mut wrong) = (queue(&driver), Rng::new(3), Met::default(), 0);
        let block = disk.geometry().block_bytes as usize;
        let mut model = vec![vec![0_u8; block]; BLOCKS];
        // Write all blocks first: protection information of unwritten blocks is not checked.
        for lba in 0..BLOCKS as u64 {
            let mut zeros = disk.buffer(block).expect("host memory");
            zeros.copy_in(0, &vec![0; block]);
            let mut written = Err(IoError::of(Kind::Closed, None));
            while written.is_err() {
                (zeros, written) = disk.write(Lba(lba), zeros, false).await;
            }
        }
        for number in 0..400 {
            if number % 100 == 99 {
                controller(&driver).reset().await.expect("a reset");
            }
            let first = rng.below(BLOCKS as u64) as usize;
            let blocks = 1 + rng.below((BLOCKS - first).min(9) as u64) as usize;
            let buffer = disk.buffer(blocks * block).expect("host memory");
            let lba = Lba(first as u64);
            let error = if rng.below(2) == 0 {
                let data: Vec<u8> = (0..blocks * block).map(|_| rng.below(256) as u8).collect();
                buffer.copy_in(0, &data);
                let written = disk.write(lba, buffer, false).await.1;
                if written.is_ok() {
                    let blocks = data.chunks(block).map(<[u8]>::to_vec);
                    model.splice(first..first + blocks.len(), blocks);
                }
                written.err()
            } else {
                let (buffer, read) = disk.read(lba, buffer).await;
                let mut seen = vec![0; blocks * block];
                buffer.copy_out(0, &mut seen);
                if read.is_ok() && seen != model[first..first + blocks].concat() {
                    assert!(!validate, "{blocks} blocks from {first}");
                    wrong += 1;
                }
                read.err()
            };
            let Some(error) = error else { continue };
            assert_eq!(error.kind, Kind::Corrupted, "{error}");
            let named = error.lba.expect("a block").0 as usize;
            assert!((first..first + blocks).contains(&named), "{error}");
            match (error.mismatch, error.status) {
                (Some(of), None) => {
                    assert_ne!(of.found, of.expected);
                    met.by_host.push((of.tag, named > first));
                }
                (None, Some(status)) => met.by_controller.push(status.kind()),
                other => panic!("{other:?}"),
            }
        }
        (met, wrong)
    })
}

/// A bit flip in data to the host is found by the host; in data to the device, by the controller.
#[test]
fn data_bit_flip_is_detected_by_receiving_end() {
    for kind in ["1", "2", "3"] {
        let (met, _) = script(kind, "host", r#"what = "corrupt-data", command = "read""#, true);
        assert!(met.by_host.len() > 20 && met.by_controller.is_empty(), "{met:?}");
        assert!(met.by_host.iter().all(|(tag, _)| *tag == Tag::Guard), "{met:?}");
        assert!(met.by_host.iter().any(|(_, behind)| *behind), "not always the first: {met:?}");
        let (met, _) = script(kind, "host", r#"what = "corrupt-data", command = "write""#, true);
        assert!(met.by_controller.len() > 20 && met.by_host.is_empty(), "{met:?}");
        let guard = |status: &Status| *status == Status::GUARD_CHECK_ERROR;
        assert!(met.by_controller.iter().all(guard), "{met:?}");
        // If only the controller generates and checks, neither flip is detected.
        for command in ["read", "write"] {
            let fault = format!(r#"what = "corrupt-data", command = "{command}""#);
            let (met, wrong) = script(kind, "device", &fault, false);
            assert!(wrong > 20 && met.by_host.is_empty() && met.by_controller.is_empty());
        }
    }
}

/// The same for a bit flip in the guard, application tag or reference tag.
#[test]
fn metadata_bit_flip_is_detected_by_receiving_end() {
    for kind in ["1", "2"] {
        let (met, _) = script(kind, "host", r#"what = "corrupt-metadata", command = "read""#, true);
        assert!(met.by_controller.is_empty(), "{met:?}");
        for tag in [Tag::Guard, Tag::Application, Tag::Reference] {
            assert!(met.by_host.iter().any(|(found, _)| *found == tag), "{tag}: {met:?}");
        }
        let (met, _) =
            script(kind, "host", r#"what = "corrupt-metadata", command = "write""#, true);
        assert!(met.by_host.is_empty(), "{met:?}");
        let statuses = [
            Status::GUARD_CHECK_ERROR,
            Status::APPLICATION_TAG_CHECK_ERROR,
            Status::REFERENCE_TAG_CHECK_ERROR,
        ];
        for status in statuses {
            assert!(met.by_controller.contains(&status), "{status}: {met:?}");
        }
    }
}

/// The run's error message names the block and the mismatch.
#[test]
fn guard_mismatch_message_names_lba_and_values() {
    let fault = r#"[{ name = "x", what = "corrupt-data", command = "read", first_lba = 8,
        last_lba = 8 }]"#;
    let job = "[a]\nrw=write\nbs=4k\nsize=64k\n[b]\nstonewall\nrw=read\nbs=4k\nsize=64k\n";
    type Run =
        fn(&'static Row, &Plan, &Work, world::Options) -> Result<world::RunResult, world::RunError>;
    let runs: [(&str, Run); 3] = [
        ("gen4", world::simulate),
        ("live", world::live_in_one_thread),
        ("live", world::live_in_threads),
    ];
    for (name, run) in runs {
        let plan = protected(name, "1", "host", fault);
        let run_result = run(NVME, &plan, &work(job), world::Options::default());
        let run_result = run_result.unwrap_or_else(|error| panic!("{error}"));
        let errors: u64 = run_result.jobs.iter().map(|(_, job_result)| job_result.errors()).sum();
        let messages: Vec<_> =
            run_result.jobs.into_iter().flat_map(|(_, job_result)| job_result.messages).collect();
        let messages = messages.concat();
        assert_eq!(errors, 1, "{messages}");
        // The read has eight blocks; the error names the corrupted one.
        assert!(
            (8..16).any(|lba| messages.contains(&format!("LBA {lba}: corrupted: guard 0x"))),
            "{messages}"
        );
        assert!(messages.contains(", expected 0x"), "{messages}");
    }
}

/// The stage `guard` takes the plan's cost for each 512 bytes.
#[test]
fn guard_stage_takes_plan_cost() {
    let run = |by| {
        let job = work("[one]\nrw=read\nbs=4k\nsize=64k\nnumber_ios=16\n");
        let plan = protected("gen4", "1", by, "[]");
        let run_result = clean(simulate_with(&plan, &job, world::Options::default()));
        let stages = NVME.stages.iter().zip(shares(only(&run_result), OpKind::Read).stages_ps);
        let guard: f64 = stages.filter(|(stage, _)| **stage == "guard").map(|(_, ps)| ps).sum();
        (guard, run_result)
    };
    assert_eq!(run("host").0, 8.0 * Span::ns(250).0 as f64);
    assert_eq!(run("device").0, 0.0);
}

/// A device of this plan, and a host port to it.
fn device(plan: &Plan) -> (Rt, SimHost) {
    let rt = Rt::simulated(None, Log::Off);
    let spec = bus::sim::SimSpec { register_bytes: (NVME.register_bytes)(plan), ..plan.sim_spec() };
    let bus = SimBus::new(&rt, spec);
    let kept = MediumState::new(plan).expect("a medium in memory");
    Device::start(NVME, bus.device(), kept, Clock::Virtual, plan).expect("a plan with timing");
    (rt, bus.host(0))
}

async fn read(queue: &Queue<SimHost>, lba: u64) -> Result<(), IoError> {
    let block = queue.geometry().block_bytes as usize;
    queue.read(Lba(lba), queue.buffer(block).expect("host memory")).await.1
}

/// The application tag is stored on the medium: a host that expects another tag gets an error, and a host
/// without protection reads the data.
#[test]
fn application_tag_mismatch_fails_read_with_lba() {
    let (rt, port) = device(&protected("gen4", "1", "host", "[]"));
    rt.block_on(async {
        let started = async |protect| {
            let options = Options { protect, ..Options::default() };
            let controller = Controller::start(port.clone(), options).await.expect("a controller");
            let queue = controller.queue(QueueOptions::default()).await.expect("a queue");
            (controller, queue)
        };
        let (controller, queue) = started(Protect::Host { application: 0x1234 }).await;
        let block = queue.geometry().block_bytes as usize;
        let with = queue.buffer(2 * block).expect("host memory");
        let (with, written) = queue.write(Lba(7), with, false).await;
        written.expect("a write");
        read(&queue, 8).await.expect("its own tag");
        read(&queue, 9).await.expect("a block that was never written");
        queue.write_zeroes(Lba(20), 4, false).await.expect("zeros, with its tag");
        read(&queue, 23).await.expect("its own tag");
        queue.verify(Lba(7), 2).await.expect("its own tag");
        let (with, equal) = queue.compare(Lba(7), with).await;
        assert!(equal.expect("a compare with protection information"));
        with.copy_in(block, &[1]);
        assert!(!queue.compare(Lba(7), with).await.1.expect("a compare"));
        let deadline = rt.now() + Span::ms(1);
        let buffer = queue.buffer(block).expect("host memory");
        let (buffer, done) = queue.write_before(Lba(40), buffer, false, deadline).await;
        done.expect("a write in time");
        queue.read_before(Lba(40), buffer, deadline).await.1.expect("a read in time");
        controller.shutdown().await.expect("the end");

        let (controller, queue) = started(Protect::Host { application: 0x1235 }).await;
        for lba in [7, 8, 23, 40] {
            let error = read(&queue, lba).await.expect_err("another's");
            let status = error.status.expect("from the controller").kind();
            assert_eq!(status, Status::APPLICATION_TAG_CHECK_ERROR);
            assert_eq!((error.kind, error.lba), (Kind::Corrupted, Some(Lba(lba))));
        }
        controller.shutdown().await.expect("the end");
        let (_controller, queue) = started(Protect::Device).await;
        for lba in [7, 8, 23, 40] {
            read(&queue, lba).await.expect("the controller compares no such tag");
        }
    });
    rt.drop_tasks();
}

#[test]
fn host_protection_rejects_unprotected_namespace_and_tag_ffff() {
    let of = |kind| protected("gen4", kind, "device", "[]");
    for (plan, application, what) in
        [(of("0"), 0, "DPS"), (of("1"), u16::MAX, "the application tag")]
    {
        let (rt, port) = device(&plan);
        let protect = Protect::Host { application };
        let started =
            rt.block_on(Controller::start(port, Options { protect, ..Options::default() }));
        match started.err() {
            Some(InitError::Unsupported { what: found, .. }) => assert_eq!(found, what),
            other => panic!("{other:?}"),
        }
        rt.drop_tasks();
    }
}
