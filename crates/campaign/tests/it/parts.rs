//! Sweeps in parts, as other processes run them, and sweeps and runs that are stopped.

use std::fs;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use campaign::event_log::Digest;
use campaign::run::{Device, RunSpec};
use campaign::sweep::{Effort, Results, Sweep, SweepError};
use plan::Plan;
use report::model::Program;
use testing::Folder;
use workload::trace::Mapping;
use world::engine::Progress;
use world::interfaces::NVME;
use world::work::Work;

const JOB: &str = "[a]\nrw=randread\nbs=4k\nsize=1m\nnorandommap=1\nnumber_ios=40\n";
const STEADY: &str = "\
plan = \"small-flash\"
file = \"job.fio\"
[set]
medium.flash.start = \"steady\"
[[axis]]
over = \"seed\"
values = [1, 2]
[[axis]]
job = \"iodepth\"
values = [1, 4, 16]
";
const EFFORT: Effort = Effort { workers: 1, memory_bytes: 1 << 30 };

fn program() -> Program {
    Program { name: "doorbell".to_owned(), version: "0".to_owned() }
}

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.file("job.fio", JOB);
    folder
}

fn whole(folder: &Folder) -> Sweep {
    let path = folder.path("sweep.toml");
    Sweep::parse(&path, STEADY, program(), false, 2).unwrap_or_else(|error| panic!("{error}"))
}

fn part(folder: &Folder, points: &[u64]) -> Result<Sweep, SweepError> {
    Sweep::part(&folder.path("sweep.toml"), STEADY, program(), false, points)
}

#[test]
fn lines_of_parts_make_the_results_of_the_whole_sweep() {
    let folder = folder("sweep-parts");
    let sweep = whole(&folder);
    let out = folder.path("whole");
    let mut results = Results::open(&out, sweep.header(), false).unwrap();
    sweep.run(&mut results, EFFORT, &mut |_| {}).unwrap();
    let expected = fs::read_to_string(&out).unwrap();

    let out = folder.path("parts");
    let mut results = Results::open(&out, sweep.header(), false).unwrap();
    // Two seeds are two states, which no batch mixes.
    let batches = sweep.batches(&results, 2);
    assert_eq!(batches, [vec![0, 1], vec![2], vec![3, 4], vec![5]]);
    for batch in batches.iter().rev() {
        let part = part(&folder, batch).unwrap();
        assert_eq!(part.header(), sweep.header());
        for line in part.lines(batch, EFFORT).unwrap() {
            results.append_line(&line, 6).unwrap();
            // A line that comes twice is kept once.
            results.append_line(&line, 6).unwrap();
        }
    }
    assert!(sweep.batches(&results, 2).is_empty());
    results.finish().unwrap();
    assert!(fs::read_to_string(&out).unwrap() == expected);
}

#[test]
fn lines_and_points_of_no_sweep_are_refused() {
    let folder = folder("sweep-parts-wrong");
    let sweep = whole(&folder);
    let mut results = Results::open(&folder.path("out"), sweep.header(), false).unwrap();
    let line = part(&folder, &[4]).unwrap().lines(&[4], EFFORT).unwrap().remove(0);
    let wrong = |error: Result<(), SweepError>| error.unwrap_err().to_string();
    assert!(wrong(results.append_line(&line, 4)).contains("found point 4, expected 3 at most"));
    for text in ["", "{}", &line[..line.len() / 2], "{\"point\": 0}"] {
        assert!(wrong(results.append_line(text, 6)).contains(":2: found a damaged line"), "{text}");
    }
    assert_eq!(results.counts(), (0, 0));
    let error = part(&folder, &[0, 6]).err().unwrap().to_string();
    assert!(error.contains("points: found 6, expected less than 6"), "{error}");
}

#[test]
fn stopped_sweep_keeps_points_that_ended_and_goes_on() {
    let folder = folder("sweep-stopped");
    let sweep = whole(&folder);
    let out = folder.path("out");
    let mut results = Results::open(&out, sweep.header(), false).unwrap();
    let stop = sweep.stop_flag().clone();
    let stopped = sweep.run(&mut results, EFFORT, &mut |progress| {
        stop.store(progress.done == 2, Ordering::Relaxed);
    });
    assert!(matches!(stopped, Err(SweepError::Stopped)), "{stopped:?}");
    // The third may have ended before the flag was set.
    assert!((2..=3).contains(&results.counts().0), "{:?}", results.counts());
    assert!(matches!(sweep.lines(&[5], EFFORT), Err(SweepError::Stopped)));
    stop.store(false, Ordering::Relaxed);
    sweep.run(&mut results, EFFORT, &mut |_| {}).unwrap();
    assert_eq!(results.counts(), (6, 0));
}

#[test]
fn stopped_run_begins_no_operation_and_others_are_not_changed() {
    let folder = folder("run-stopped");
    let plan = Plan::open("gen4", &[]).unwrap();
    let work = Work::of_text(&folder.path("job.fio"), JOB, Mapping::Concatenate, &[]).unwrap();
    let run = |simulated, stopped: bool| {
        let stop = Arc::new(AtomicBool::new(stopped));
        let spec = RunSpec {
            plan: &plan,
            work: &work,
            settings: &[],
            interface: NVME,
            simulated,
            device: Device::Thread,
            resets: 0,
            threads: 1,
            device_threads: 1,
            series: None,
            timeline: None,
            run_recorder: None,
            register_writes: Rc::default(),
            progress: Arc::new(Progress::stopped_by(&stop)),
        };
        let log = simulated.then(Digest::default);
        let result = spec.run(log.as_ref()).unwrap_or_else(|error| panic!("{error}"));
        let log = log.map(|log| log.finish().unwrap());
        (spec.model(&result, &[], log), spec.progress.operations())
    };
    for simulated in [true, false] {
        let (stopped, operations) = run(simulated, true);
        assert_eq!((stopped.jobs[0].operations.len(), operations), (0, 0));
        let (whole, operations) = run(simulated, false);
        let read = whole.jobs[0].operations.values().next().unwrap();
        assert_eq!((read.count, operations), (40, 40));
    }
}

#[test]
fn work_of_text_has_settings_and_names_its_file_in_errors() {
    let folder = folder("work-text");
    let path = folder.path("job.fio");
    let settings = [("iodepth".to_owned(), "8".to_owned())];
    let work = |text: &str| Work::of_text(&path, text, Mapping::Concatenate, &settings);
    let loaded = Work::load_with(&path, Mapping::Concatenate, &settings).unwrap();
    assert_eq!((work(JOB).unwrap().text, work(JOB).unwrap().depth()), (loaded.text, 8));
    let error = work("[a]\nrw=sideways\n").unwrap_err().to_string();
    assert!(error.contains("job.fio:2: "), "{error}");
}
