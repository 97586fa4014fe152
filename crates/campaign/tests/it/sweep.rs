//! Results of a sweep depend on neither workers nor interruptions, points agree with single runs, and a
//! search agrees with the whole grid.

use std::fs;
use std::path::PathBuf;

use campaign::sweep::{Effort, Results, Sweep, SweepError};
use plan::Plan;
use report::model::{Program, SweepPoint};
use report::sweep::{Metric, Number};
use report::{RunContext, model};
use testing::Folder;
use workload::trace::Mapping;
use world::interfaces;
use world::work::Work;

const JOB: &str = "[a]\nrw=randread\nbs=4k\nsize=1m\nnorandommap=1\nnumber_ios=60\n";
const GRID: &str = "\
plan = \"gen4\"
file = \"job.fio\"
[[axis]]
over = \"interface\"
values = [\"nvme\", \"dcx\"]
[[axis]]
job = \"iodepth\"
values = [1, 4, 16]
";
const EFFORT: Effort = Effort { workers: 2, memory_bytes: 1 << 30 };

fn program() -> Program {
    Program { name: "doorbell".to_owned(), version: "0".to_owned() }
}

/// A folder with a job and a sweep.
fn folder(name: &str, sweep: &str) -> Folder {
    let folder = Folder::new(name);
    folder.file("job.fio", JOB);
    folder.file("sweep.toml", sweep);
    folder
}

fn load(folder: &Folder) -> Result<Sweep, SweepError> {
    Sweep::load(&folder.path("sweep.toml"), program(), false, 2)
}

#[track_caller]
fn loaded(folder: &Folder) -> Sweep {
    load(folder).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a sweep into this file, and returns its text and its points.
#[track_caller]
fn run(sweep: &Sweep, out: &PathBuf, effort: Effort) -> (String, Vec<SweepPoint>) {
    let mut results = Results::open(out, sweep.header(), false).unwrap();
    sweep.run(&mut results, effort, &mut |_| {}).unwrap();
    (fs::read_to_string(out).unwrap(), results.points())
}

#[test]
fn results_do_not_depend_on_workers_or_memory() {
    let folder = folder("sweep-workers", GRID);
    let sweep = loaded(&folder);
    let (one, points) = run(&sweep, &folder.path("1"), Effort { workers: 1, ..EFFORT });
    assert_eq!((points.len(), one.lines().count()), (6, 7));
    for workers in [2, 3, 16] {
        let out = folder.path(&workers.to_string());
        assert!(run(&sweep, &out, Effort { workers, ..EFFORT }).0 == one, "{workers} workers");
    }
    let (bounded, _) = run(&sweep, &folder.path("bounded"), Effort { workers: 4, memory_bytes: 1 });
    assert!(bounded == one, "one point at a time");
}

/// Killed at each line, within each line and beside each line break, with lines in any order.
#[test]
fn interrupted_sweep_goes_on_to_the_same_file() {
    let folder = folder("sweep-resume", GRID);
    let sweep = loaded(&folder);
    let (whole, _) = run(&sweep, &folder.path("whole"), EFFORT);
    let mut lines: Vec<&str> = whole.split_inclusive('\n').collect();
    lines[1..].reverse();
    let reversed: String = lines.concat();
    for text in [&whole, &reversed] {
        let ends = text.match_indices('\n').map(|(at, _)| at);
        let mut cuts: Vec<usize> =
            ends.flat_map(|at| [at.saturating_sub(60), at, at + 1]).collect();
        cuts.extend([0, 1]);
        for cut in cuts {
            let out = folder.path("cut");
            fs::write(&out, &text[..cut]).unwrap();
            assert!(run(&sweep, &out, EFFORT).0 == whole, "cut at {cut}");
        }
    }
}

#[test]
fn resumed_sweep_runs_only_missing_points() {
    let folder = folder("sweep-missing", GRID);
    let sweep = loaded(&folder);
    let (whole, _) = run(&sweep, &folder.path("out"), EFFORT);
    let two: String = whole.split_inclusive('\n').take(3).collect();
    fs::write(folder.path("out"), two).unwrap();
    let mut results = Results::open(&folder.path("out"), sweep.header(), false).unwrap();
    assert_eq!(results.counts(), (2, 0));
    let mut seen = Vec::new();
    sweep.run(&mut results, EFFORT, &mut |progress| seen.push(progress.done)).unwrap();
    assert_eq!(seen, [2, 3, 4, 5, 6]);
}

#[test]
fn results_of_another_sweep_are_refused_with_their_differences() {
    let folder = folder("sweep-changed", GRID);
    let out = folder.path("out");
    let (text, _) = run(&loaded(&folder), &out, EFFORT);
    let refused = |sweep: &str, job: &str, want: &str| {
        folder.file("sweep.toml", sweep);
        folder.file("job.fio", job);
        let sweep = loaded(&folder);
        let error = Results::open(&out, sweep.header(), false).err().expect(want).to_string();
        assert!(error.contains(want), "{want}: {error}");
        assert_eq!(fs::read_to_string(&out).unwrap(), text, "the results are as they were");
    };
    let more = GRID.replace("1, 4, 16", "1, 4, 8");
    refused(&more, JOB, "axis iodepth: found 1, 4, 16, expected 1, 4, 8");
    refused(&GRID.replace("gen4", "dc-express"), JOB, "plan: found gen4, expected dc-express");
    refused(&format!("seed = 7\n{GRID}"), JOB, "seed: found none, expected 7");
    refused(GRID, &JOB.replace("60", "61"), "file job.fio: found ");
    refused(&format!("set.link.lanes = 8\n{GRID}"), JOB, "set link.lanes: found none, expected 8");
    // With --restart they are dropped.
    let header = loaded(&folder);
    let results = Results::open(&out, header.header(), true).unwrap();
    assert_eq!(results.counts(), (0, 0));
}

#[test]
fn foreign_and_damaged_files_are_never_overwritten() {
    let folder = folder("sweep-foreign", GRID);
    let sweep = loaded(&folder);
    let out = folder.path("out");
    let (text, _) = run(&sweep, &out, EFFORT);
    let open = |restart| Results::open(&out, sweep.header(), restart).err().map(|e| e.to_string());
    for restart in [false, true] {
        fs::write(&out, "a letter\nto a friend\n").unwrap();
        let error = open(restart).expect("a letter");
        assert!(error.contains("found \"a letter"), "{error}");
        assert_eq!(fs::read_to_string(&out).unwrap(), "a letter\nto a friend\n");
    }
    fs::write(&out, text.replacen("\"point\":2", "\"point\":x", 1)).unwrap();
    let error = open(false).expect("damage");
    assert!(error.contains("out:4: found a damaged line"), "{error}");
    fs::write(&out, text.replacen("\"point\":2", "\"point\":1", 1)).unwrap();
    assert!(open(false).expect("damage").contains("point 1 twice"));
    fs::write(&out, &text).unwrap();
    let held = Results::open(&out, sweep.header(), false).unwrap();
    assert!(open(false).expect("a lock").contains("in use by another sweep"));
    drop(held);
    assert_eq!(open(false), None);
}

#[test]
fn wrong_values_of_all_points_are_found_before_the_first_runs() {
    let axes = "[[axis]]\nset = \"link.lanes\"\nvalues = [3, 4]\n\
        [[axis]]\njob = \"rw\"\nvalues = [\"randread\", \"sideways\"]\n\
        [[axis]]\nset = \"host.memory\"\nvalues = [\"128 MiB\", \"256 MiB\"]\n";
    let folder = folder("sweep-errors", &format!("file = \"job.fio\"\n{axes}"));
    let error = load(&folder).err().expect("errors").to_string();
    let lanes = "axis link.lanes, value 3: 4 points: plans/gen4.toml, --set link.lanes=3: link.lanes: \
        found 3";
    assert!(error.contains(&format!("sweep.toml: {lanes}")), "{error}");
    assert!(error.contains("axis rw, value sideways: 4 points: "), "{error}");
    assert!(error.contains("axis host.memory, value 128 MiB: 4 points: "), "{error}");
    assert_eq!(error.lines().count(), 3, "one line a reason: {error}");
    let unknown = "file = \"job.fio\"\n[[axis]]\nset = \"link.lnes\"\nvalues = [1, 2]\n";
    folder.file("sweep.toml", unknown);
    let error = load(&folder).err().expect("errors").to_string();
    assert!(error.contains("link.lnes") && error.contains("lanes"), "{error}");
}

#[test]
fn failed_point_is_a_result_and_the_others_run() {
    let axes = "[[axis]]\njob = \"size\"\nvalues = [\"1m\", \"100t\"]\n";
    let folder = folder("sweep-failed", &format!("file = \"job.fio\"\n{axes}"));
    let (_, points) = run(&loaded(&folder), &folder.path("out"), EFFORT);
    assert!(points[0].failed.is_none() && points[0].result.is_some());
    let failed = points[1].failed.clone().or_else(|| {
        let errors = points[1].result.as_ref().map(|result| result.errors);
        errors.filter(|errors| *errors > 0).map(|errors| format!("{errors} errors"))
    });
    assert!(failed.is_some(), "{:?}", points[1]);
}

#[test]
fn unsupported_interfaces_are_errors_or_left_out() {
    let axes = "[[axis]]\nover = \"interface\"\nvalues = [\"nvme\", \"block\"]\n";
    let text = format!("plan = \"tlc\"\nfile = \"job.fio\"\nset.medium.flash.blocks = 32\n{axes}");
    let folder = folder("sweep-left-out", &text);
    let error = load(&folder).err().expect("an error").to_string();
    assert!(error.contains("axis interface, value block: point 1: "), "{error}");
    folder.file("sweep.toml", &format!("leave_out_unsupported = true\n{text}"));
    let (_, points) = run(&loaded(&folder), &folder.path("out"), EFFORT);
    assert!(points[1].left_out.is_some() && points[1].result.is_none());
    assert!(points[0].result.is_some());
}

/// The result of the run that a point stands for, by itself.
fn alone(
    plan: &str,
    sets: &[(&str, &str)],
    jobs: &[(&str, &str)],
    job: PathBuf,
) -> model::SweepResult {
    let plan = Plan::open(plan, sets).unwrap();
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let settings: Vec<_> = jobs.iter().map(owned).collect();
    let work = Work::load_with(&job, Mapping::Concatenate, &settings).unwrap();
    let row = interfaces::NVME;
    let result = world::simulate(row, &plan, &work, world::Options::default()).unwrap();
    let context = RunContext {
        plan: &plan,
        work: &work,
        settings: &settings,
        recordings: &[],
        interface: row.name,
        world: model::World::Simulated,
        device: model::Device::Modelled,
        threads: 1,
        resets: 0,
        log: None,
        register_writes: 0,
    };
    report::sweep::result_of(&context.with(&result))
}

/// Digests are of everything that a run found: histograms, stages, link, cores, chips.
#[test]
fn point_equals_the_run_that_it_stands_for() {
    let folder = folder("sweep-alone", GRID);
    let (_, points) = run(&loaded(&folder), &folder.path("out"), EFFORT);
    let expected = alone("gen4", &[], &[("iodepth", "16")], folder.path("job.fio"));
    assert_eq!(points[2].result.as_ref(), Some(&expected));
    assert_ne!(points[1].result.as_ref().map(|result| &result.digest), Some(&expected.digest));
}

/// Points that share a preconditioned drive have the results of drives that were each preconditioned.
#[test]
fn shared_state_gives_the_results_of_own_preconditioning() {
    let sets = [("medium.flash.start", "steady"), ("medium.flash.map_cache", "8KiB")];
    let text = "plan = \"small-flash\"\nfile = \"job.fio\"\n\
        [[axis]]\nname = \"map\"\n\
        cases = [{ name = \"whole\" }, { name = \"cached\", \
        set.medium.flash = { map_cache = \"8KiB\", blocks = 64 } }]\n\
        [[axis]]\njob = \"iodepth\"\nvalues = [1, 8, 32]\n\
        [set]\nmedium.flash.start = \"steady\"\n";
    let folder = folder("sweep-state", text);
    let job = "[a]\nrw=randrw\nbs=4k\nnorandommap=1\nnumber_ios=300\n";
    folder.file("job.fio", job);
    let sweep = loaded(&folder);
    assert_eq!(sweep.states(), 2, "one for each map");
    let (_, points) = run(&sweep, &folder.path("out"), EFFORT);
    for (point, depth) in points[..3].iter().zip(["1", "8", "32"]) {
        let expected =
            alone("small-flash", &sets[..1], &[("iodepth", depth)], folder.path("job.fio"));
        assert_eq!(point.result.as_ref(), Some(&expected), "iodepth {depth}");
    }
    let blocks = [sets[0], ("medium.flash.blocks", "64"), sets[1]];
    for (point, depth) in points[3..].iter().zip(["1", "8", "32"]) {
        let expected = alone("small-flash", &blocks, &[("iodepth", depth)], folder.path("job.fio"));
        assert_eq!(point.result.as_ref(), Some(&expected), "cached map, iodepth {depth}");
    }
}

/// Points begin on the mounted drive of a file, whose contents they read and leave as they are.
#[test]
fn points_begin_on_the_drive_of_a_state_file_and_leave_the_file_unchanged() {
    let folder = folder("sweep-state-file", "");
    let (state, job) = (folder.path("drive.state"), folder.path("job.fio"));
    let sets = [("medium.flash.state", state.to_str().unwrap()), ("medium.flash.errors", "none")];
    let plan = Plan::open("small-flash", &sets).unwrap();
    folder.file("write.fio", "[w]\nrw=randwrite\nbs=4k\nsize=2m\nnumber_ios=700\nnorandommap=1\n");
    let write = Work::load_with(&folder.path("write.fio"), Mapping::Concatenate, &[]).unwrap();
    world::simulate(interfaces::NVME, &plan, &write, world::Options::default()).unwrap();
    let before = fs::read(&state).unwrap();
    folder.file("job.fio", "[a]\nrw=read\nbs=4k\nsize=3m\n");
    let axis = "[[axis]]\nset = \"link.lanes\"\nvalues = [1, 2, 4]\n";
    let (path, base) = (sets[0].1, "plan = \"small-flash\"\nfile = \"job.fio\"\n");
    let errors = "medium.flash.errors = \"none\"\n";
    folder.file(
        "sweep.toml",
        &format!("{base}{axis}[set]\nmedium.flash.state = \"{path}\"\n{errors}"),
    );
    let sweep = loaded(&folder);
    assert_eq!(sweep.states(), 1);
    let (_, points) = run(&sweep, &folder.path("out"), EFFORT);
    let results: Vec<_> = points.iter().map(|point| point.result.as_ref().unwrap()).collect();
    assert!(fs::read(&state).unwrap() == before);
    // A run mounts in virtual time before the same reads, one after the other.
    for (result, lanes) in results.iter().zip(["1", "2", "4"]) {
        let sets = [sets[0], sets[1], ("link.lanes", lanes)];
        let expected = alone("small-flash", &sets, &[], job.clone());
        assert_eq!(result.operations, expected.operations, "{lanes} lanes");
    }
}

/// Times of the chips and of the machine share a state, seeds and geometry do not.
#[test]
fn points_share_a_state_only_if_it_would_be_equal() {
    let sweep = |axis: &str| {
        let text = format!(
            "plan = \"small-flash\"\nfile = \"job.fio\"\n[set]\nmedium.flash.start = \"steady\"\n{axis}"
        );
        let folder = folder("sweep-states", &text);
        loaded(&folder).states()
    };
    assert_eq!(sweep("[[axis]]\nset = \"link.lanes\"\nvalues = [1, 2, 4]\n"), 1);
    assert_eq!(sweep("[[axis]]\nover = \"seed\"\nvalues = [1, 2, 3]\n"), 3);
    assert_eq!(
        sweep("[[axis]]\nset = \"medium.flash.errors\"\nvalues = [\"none\", \"profile\"]\n"),
        2
    );
    assert_eq!(
        sweep("[[axis]]\nset = \"medium.flash.collector\"\nvalues = [\"greedy\", \"oldest\"]\n"),
        2
    );
}

/// The answer at every interface, by the search and by the whole grid.
#[test]
fn search_agrees_with_the_whole_grid_and_tries_fewer_points() {
    let text = "plan = \"dc-express\"\nfile = \"job.fio\"\n\
        [[axis]]\nover = \"interface\"\nvalues = [\"nvme\", \"dcx\"]\n\
        [[axis]]\nset = \"medium.timing.first_byte\"\n\
        from = \"100 ns\"\nto = \"100 us\"\nscale = \"log\"\nsteps = 25\n";
    let folder = folder("sweep-find", text);
    folder.file("job.fio", &JOB.replace("4k", "512"));
    let sweep = loaded(&folder);
    let (whole, points) = run(&sweep, &folder.path("whole"), EFFORT);
    let mean = Metric { kind: None, number: Number::Mean };
    let of = |point: &SweepPoint| mean.of(point.result.as_ref().expect("a result")).expect("reads");
    let search = |text: &str, out: &str| {
        let find = sweep.find(text).unwrap_or_else(|error| panic!("{error}"));
        let mut results = Results::open(&folder.path(out), sweep.header(), false).unwrap();
        (sweep.search(&find, &mut results, EFFORT, &mut |_| {}).unwrap(), results.counts().0)
    };
    let (found, tried) = search("highest medium.timing.first_byte where mean < 20us", "absolute");
    for (of_interface, found) in points.chunks(25).zip(&found) {
        let last = of_interface.iter().rfind(|point| of(point) < 20_000.0).expect("one");
        assert_eq!(found.value.as_ref(), Some(&last.at["medium.timing.first_byte"]));
        assert!(found.is_monotone && found.tried.len() <= 9, "{found:?}");
    }
    assert!(tried <= 18, "{tried}");
    let relative = "highest medium.timing.first_byte where mean <= 90% of interface=nvme";
    let (found, _) = search(relative, "relative");
    let pays = |place: &usize| of(&points[25 + place]) <= 0.9 * of(&points[*place]);
    let last = (0..25).rfind(pays).expect("one");
    assert_eq!(found[0].value, None, "nvme never takes 90 % of itself");
    assert_eq!(found[1].value.as_ref(), Some(&points[last].at["medium.timing.first_byte"]));
    // A whole sweep goes on from what a search has run.
    assert!(run(&sweep, &folder.path("relative"), EFFORT).0 == whole);
}

#[test]
fn search_errors_name_found_and_expected() {
    let folder = folder("sweep-find-errors", GRID);
    let sweep = loaded(&folder);
    for (text, want) in [
        ("cheapest iodepth", "found no \" where \""),
        ("best iodepth where mean < 1us", "found best, expected one of cheapest, first, lowest"),
        (
            "first depth where mean < 1us",
            "found depth, expected one of the axes interface, iodepth",
        ),
        (
            "first iodepth where mean = 1us",
            "found mean = 1us, expected METRIC <, <=, > or >= VALUE",
        ),
        ("first iodepth where men < 1us", "found men, expected iops, bandwidth"),
        ("first iodepth where mean < 1", "found 1, expected a time, as in 20us"),
        (
            "first iodepth where mean < 9% of interface=scsi",
            "found scsi, expected one of nvme, dcx",
        ),
        ("first iodepth where mean < 9% of iodepth=1", "found iodepth, expected one of the axes"),
        ("highest interface where mean < 1us and", "found 1us and, expected a time"),
    ] {
        let error = sweep.find(text).expect_err(text).to_string();
        assert!(error.contains(want), "{text}: {error}");
    }
}

/// Cases of which one leaves plan and file as they are.
#[test]
fn cases_that_partly_set_plan_and_file_have_digests_of_all_inputs() {
    let text = "plan = \"gen4\"\nfile = \"job.fio\"\n\
        [[axis]]\nname = \"machine\"\ncases = [{ name = \"fixed\" }, \
        { name = \"other\", plan = \"live\", file = \"other.fio\" }]\n";
    let folder = folder("sweep-partly-set", text);
    folder.file("other.fio", &JOB.replace("60", "30"));
    let sweep = loaded(&folder);
    let inputs: Vec<&str> = sweep.header().inputs.keys().map(String::as_str).collect();
    assert_eq!(inputs, ["file job.fio", "file other.fio", "plan gen4", "plan live"]);
    let (_, points) = run(&sweep, &folder.path("out"), EFFORT);
    let expected = alone("gen4", &[], &[], folder.path("job.fio"));
    assert_eq!(points[0].result.as_ref(), Some(&expected));
    let expected = alone("live", &[], &[], folder.path("other.fio"));
    assert_eq!(points[1].result.as_ref(), Some(&expected));
    // If every case sets them, the fixed ones are no inputs.
    let whole =
        text.replace("name = \"fixed\"", "name = \"fixed\", plan = \"live\", file = \"other.fio\"");
    folder.file("sweep.toml", &whole);
    let sweep = loaded(&folder);
    assert_eq!(sweep.header().inputs.keys().collect::<Vec<_>>(), ["file other.fio", "plan live"]);
}

#[test]
fn axes_that_set_the_same_key_are_refused() {
    for (target, key) in [("set", "link.lanes"), ("job", "iodepth")] {
        let axis = format!("{target} = \"{key}\"\nvalues = [1, 2]\n");
        let axes = format!("[[axis]]\n{axis}[[axis]]\nname = \"second\"\n{axis}");
        let folder = folder("sweep-same-key", &format!("file = \"job.fio\"\n{axes}"));
        let error = load(&folder).err().expect(key).to_string();
        assert!(error.contains(key) && error.contains("second"), "{error}");
    }
    let axes = "[[axis]]\nset = \"run.seed\"\nvalues = [1, 2]\n";
    let folder = folder("sweep-set-seed", &format!("file = \"job.fio\"\n{axes}"));
    let error = load(&folder).err().expect("the seed has a word of its own").to_string();
    assert!(error.contains("run.seed") && error.contains("over = \"seed\""), "{error}");
}

/// More depth gives more rate and a longer tail: both bounds may hold in the middle alone.
#[test]
fn conditions_that_hold_between_the_ends_are_found() {
    let text = "plan = \"gen4\"\nfile = \"job.fio\"\n\
        [[axis]]\njob = \"iodepth\"\nvalues = [1, 2, 4, 8, 16, 32, 64]\n";
    let folder = folder("sweep-between", text);
    folder.file("job.fio", &JOB.replace("number_ios=60", "number_ios=400"));
    let sweep = loaded(&folder);
    let (_, points) = run(&sweep, &folder.path("whole"), EFFORT);
    let number = |number| {
        let metric = Metric { kind: None, number };
        move |point: &SweepPoint| {
            metric.of(point.result.as_ref().expect("a result")).expect("reads")
        }
    };
    let (iops, p99) = (number(Number::Iops), number(Number::P99));
    // Bounds between the neighbours of the third value.
    let rate = f64::midpoint(iops(&points[1]), iops(&points[2]));
    let tail = f64::midpoint(p99(&points[2]), p99(&points[3]));
    let holds = |point: &&SweepPoint| iops(point) >= rate && p99(point) < tail;
    let expected: Vec<_> = points.iter().filter(holds).map(|point| &point.at["iodepth"]).collect();
    assert_eq!(expected, ["4"]);
    for word in ["first", "last"] {
        let find = format!("{word} iodepth where iops >= {rate} and p99 < {tail}ns");
        let find = sweep.find(&find).unwrap_or_else(|error| panic!("{error}"));
        let mut results = Results::open(&folder.path(word), sweep.header(), false).unwrap();
        let found = sweep.search(&find, &mut results, EFFORT, &mut |_| {}).unwrap();
        assert_eq!(found[0].value.as_deref(), Some("4"), "{word}: {found:?}");
        assert!(!found[0].is_monotone && found[0].tried.len() == 7, "{found:?}");
    }
}
