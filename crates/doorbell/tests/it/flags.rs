//! Every flag of every command has an effect: with it, a small command prints something else, writes another
//! file, or is rejected by what the flag says. Flags are found in the command line itself, so that a new one
//! fails here until it has an entry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use Shown::{Adds, Differs, Rejects, Untried};

use crate::common::{CommandOutput, Folder, Server, doorbell, output_of, turn};

/// The way in which a flag is shown to have an effect. Words are divided by blanks; `~` is a blank in a word.
#[derive(Clone, Copy)]
enum Shown {
    /// The command's base with these words succeeds, and is another than the base alone.
    Adds(&'static str),
    /// The command with the second words succeeds, and is another than with the first.
    Differs(&'static str, &'static str),
    /// The command with the first words fails, with an error that has the second: what the flag says is
    /// looked for and is not there, or does not fit another flag.
    Rejects(&'static str, &'static str),
    /// Not tried here, and why.
    Untried(&'static str),
}

/// A command, the words of its base, and its flags.
type Of = (&'static str, &'static str, &'static [(&'static str, Shown)]);

const PAPERS: &str = "a paper takes minutes in a debug build: tools/test papers";
const QEMU: &str = "needs a device of QEMU: tools/qemu-hardware";
const MEASURES: &str = "measures this machine for seconds: tools/results, tools/endpoint";

const OF_RUNS: &[Of] = &[
    (
        "run",
        "job.fio --plan gen4 --world sim",
        &[
            (
                "plan",
                Differs("job.fio --world sim --plan gen4", "job.fio --world sim --plan vortex"),
            ),
            (
                "world",
                Differs("job.fio --plan gen4 --world sim", "job.fio --plan gen4 --world live"),
            ),
            ("interface", Adds("--interface dcx")),
            ("seed", Adds("--seed 2")),
            ("map", Differs("low.log --world sim", "far.log --world sim --map modulo")),
            ("job", Adds("--job iodepth=1")),
            ("socket", Rejects("job.fio --world live --socket none.sock", "none.sock")),
            ("vfio-user", Rejects("job.fio --world live --vfio-user none.sock", "none.sock")),
            ("vfio", Rejects("job.fio --world live --vfio 0000:00:00.9", "0000:00:00.9")),
            (
                "threads",
                Rejects("job.fio --world sim --threads 2", "--threads 2: found --world sim"),
            ),
            (
                "device-threads",
                Rejects("job.fio --world sim --device-threads 2", "-threads 2: found --world sim"),
            ),
            ("resets", Adds("--resets 1")),
            ("json", Adds("--json new")),
            ("format", Adds("--json new --format fio")),
            ("csv", Adds("--csv new")),
            ("html", Adds("--html new")),
            ("verbose", Adds("--verbose")),
            ("log", Adds("--log new")),
            (
                "record",
                Rejects("job.fio --world sim --record new", "--record takes down one live run"),
            ),
            ("trace", Adds("--trace new")),
            ("series", Adds("--series new")),
            ("interval", Differs(SERIES, "job.fio --world sim --series new --interval 10us")),
            ("set", Adds("--set link.lanes=1")),
        ],
    ),
    (
        "replay",
        "job.fio --plan gen4 --seed 1",
        &[
            ("plan", Differs("job.fio --seed 1 --plan gen4", "job.fio --seed 1 --plan vortex")),
            ("seed", Differs("job.fio --plan gen4 --seed 1", "job.fio --plan gen4 --seed 2")),
            ("interface", Adds("--interface dcx")),
            (
                "map",
                Rejects("job.fio --plan gen4 --seed 1 --map modulo", "--map: found no recording"),
            ),
            ("job", Adds("--job iodepth=1")),
            ("resets", Adds("--resets 1")),
            ("log", Adds("--log new")),
            ("json", Adds("--json new")),
            ("verbose", Adds("--verbose")),
            ("set", Adds("--set link.lanes=1")),
        ],
    ),
    (
        "compare",
        "job.fio --plan gen4 --world sim",
        &[
            (
                "plan",
                Differs("job.fio --world sim --plan gen4", "job.fio --world sim --plan vortex"),
            ),
            (
                "world",
                Differs("job.fio --plan gen4 --world sim", "job.fio --plan gen4 --world live"),
            ),
            ("map", Rejects("job.fio --world sim --map modulo", "--map: found no recording")),
            ("job", Adds("--job iodepth=1")),
            ("json", Adds("--json new")),
            ("csv", Adds("--csv new")),
            ("html", Adds("--html new")),
            ("verbose", Adds("--verbose")),
            ("set", Adds("--set link.lanes=1")),
        ],
    ),
];

const SERIES: &str = "job.fio --world sim --series new";

const OF_CAMPAIGNS: &[Of] = &[
    (
        "explain",
        "job.fio --plan gen4 --quick",
        &[
            ("plan", Rejects("job.fio --quick --plan nonsense", "nonsense")),
            ("interface", Rejects("job.fio --quick --plan live --interface host-gc", "host-gc")),
            ("seed", Adds("--seed 2")),
            ("quick", Untried("without it an explanation takes minutes in a debug build")),
            ("verbose", Adds("--verbose")),
            ("json", Adds("--json new")),
            ("map", Rejects("job.fio --quick --map modulo", "--map: found no recording")),
            ("job", Rejects("job.fio --quick --job nonsense=1", "nonsense")),
            ("set", Rejects("job.fio --quick --set nonsense=1", "nonsense")),
        ],
    ),
    (
        "sweep",
        "sweep.toml",
        &[
            ("out", Adds("--out new")),
            ("restart", Untried("needs the results of another sweep: tests/it/sweep.rs")),
            ("jobs", Untried("points that run at once change no result")),
            ("memory", Untried("points that run at once change no result")),
            ("dry-run", Adds("--dry-run")),
            ("full", Adds("--full")),
            ("find", Adds("--find cheapest~iodepth~where~read.p99~<~1ms")),
            ("metric", Adds("--metric p99")),
            ("csv", Adds("--csv new")),
            ("html", Adds("--html new")),
        ],
    ),
    (
        "power-cuts",
        "small-flash --cuts 2",
        &[
            ("cuts", Differs("small-flash --cuts 2", "small-flash --cuts 3")),
            ("sequences", Differs("small-flash --cuts 1", "small-flash --sequences 1")),
            ("seed", Adds("--seed 2")),
            ("from", Adds("--from 2")),
            ("interface", Adds("--interface host-flash")),
            ("set", Adds("--set medium.flash.cache=through")),
        ],
    ),
    (
        "diskhog",
        "--bytes 64KiB --time 2ms --interval 1ms",
        &[
            ("plan", Adds("--plan vortex-disks")),
            ("world", Adds("--world live --policy single")),
            ("rw", Adds("--rw write")),
            ("random", Adds("--random")),
            ("threads", Adds("--threads 2")),
            ("bytes", Differs(HOG, "--time 2ms --interval 1ms --bytes 32KiB")),
            ("batch", Adds("--batch 2")),
            ("time", Differs(HOG, "--interval 1ms --bytes 64KiB --time 4ms")),
            ("interval", Differs(HOG, "--bytes 64KiB --time 2ms --interval 2ms")),
            ("policy", Adds("--policy single")),
            ("lock", Adds("--lock both")),
            ("runs", Adds("--runs 2")),
            ("json", Adds("--json new")),
            ("set", Adds("--set link.lanes=1")),
        ],
    ),
    (
        "tenants",
        "--time 2ms",
        &[
            ("plan", Adds("--plan gen4")),
            ("world", Adds("--world live")),
            ("time", Differs("--time 2ms", "--time 3ms")),
            ("depth", Adds("--depth 4")),
            ("rate", Adds("--rate 9000")),
            ("set", Adds("--set link.lanes=1")),
        ],
    ),
    (
        "validate",
        "my.tsv --plan gen4",
        &[
            ("plan", Differs("my.tsv --plan gen4", "my.tsv --plan dc-express")),
            ("quick", Adds("--quick")),
            ("rows", Rejects("my.tsv --plan gen4 --rows append", "--rows: found append")),
            ("json", Adds("--json new")),
            ("html", Adds("--html new")),
            ("set", Adds("--set link.lanes=1")),
        ],
    ),
    (
        "fit",
        FIT,
        &[
            ("plan", Differs(FIT, "my.tsv --plan dc-express --key host.costs.submit=10ns..1us")),
            ("key", Differs(FIT, "my.tsv --plan gen4 --key host.costs.complete=10ns..1us")),
            ("tries", Adds("--tries 12")),
            ("operations", Adds("--operations 200")),
            ("hold", Differs(FIT_NONE, FIT_HALF)),
            ("rows", Rejects("my.tsv --plan gen4 --rows append", "--rows: found append")),
            ("seed", Adds("--seed 3")),
            ("out", Adds("--out new")),
            ("json", Adds("--json new")),
            ("jobs", Differs(FIT, "--jobs")),
            ("set", Adds("--set link.lanes=1")),
        ],
    ),
];

const FIT: &str = "my.tsv --plan gen4 --key host.costs.submit=10ns..1us";
const FIT_NONE: &str = "my.tsv --plan gen4 --key host.costs.submit=10ns..1us --hold 0";
const FIT_HALF: &str = "my.tsv --plan gen4 --key host.costs.submit=10ns..1us --hold 60 --seed 1";

const HOG: &str = "--bytes 64KiB --time 2ms --interval 1ms";

const OF_OTHERS: &[Of] = &[
    (
        "serve",
        "live",
        &[
            ("shm", Rejects("live --shm none/x", "none/x")),
            ("vfio-user", Rejects("live --vfio-user none/x", "none/x")),
            ("nbd", Rejects("live --nbd none/x", "none/x")),
            ("control", Rejects("live --shm x --control none/x", "--control none/x")),
            ("metrics", Rejects("live --shm x --metrics 192.0.2.1:1", "--metrics")),
            ("metrics-token", Rejects(METRICS, "assign requested address")),
            ("http", Rejects("live --shm x --http 192.0.2.1:1", "--http")),
            ("http-token", Rejects(HTTP, "assign requested address")),
            ("log", Untried("log_of_a_server_is_on_standard_error")),
            ("shared", Rejects("live --nbd x --shared", "nbd")),
            ("client", Rejects("live --shm x --client one=0+99999999999", "99999999999")),
            ("device-threads", Rejects("vortex --shm x --device-threads 2", "threads")),
            ("interface", Rejects("live --shm x --interface host-gc", "host-gc")),
            ("set", Rejects("live --shm x --set nonsense=1", "nonsense")),
        ],
    ),
    (
        "ctl",
        "CONTROL faults list",
        &[
            ("drive", Rejects("CONTROL faults list --drive nonsense", "nonsense")),
            ("json", Adds("--json")),
            ("views", Differs("CONTROL top --views 1", "CONTROL top --views 2")),
        ],
    ),
    ("check", "gen4", &[("json", Adds("--json new")), ("set", Adds("--set link.lanes=1"))]),
    ("plans", "", &[("json", Adds("--json new"))]),
    (
        "papers",
        "vortex",
        &[
            ("quick", Untried(PAPERS)),
            ("verbose", Untried(PAPERS)),
            ("mutations", Untried(PAPERS)),
            ("json", Rejects("--json job.fio/new", "job.fio/new")),
            ("html", Rejects("--html job.fio/new", "job.fio/new")),
            ("set", Rejects("--set host.nonsense=1", "nonsense")),
        ],
    ),
    (
        "conformance",
        "--world sim --only 3.1.3",
        &[
            ("plan", Rejects("--plan nonsense", "nonsense")),
            ("world", Rejects("--socket x --world sim", "--socket: found --world")),
            ("socket", Rejects("--socket none.sock", "none.sock")),
            ("vfio-user", Rejects("--vfio-user none.sock", "none.sock")),
            ("vfio", Rejects("--vfio 0000:00:00.9", "0000:00:00.9")),
            ("qtest", Rejects("--qtest none.sock --memory memory", "none.sock")),
            ("memory", Rejects("--qtest x --memory none.memory", "none.memory")),
            ("data", Rejects("--data erase", "--data: found no other controller")),
            ("only", Differs("--world sim --only 3.1.3", "--world sim --only 3.4.2")),
            ("list", Differs("--world sim --only 3.1.3", "--list --only 3.1.3")),
            ("lacking", Differs("--world sim --only fused", "--world sim --only fused --lacking")),
            ("json", Adds("--json new")),
            ("set", Rejects("--set nonsense=1", "nonsense")),
        ],
    ),
    (
        "hardware",
        "",
        &[
            ("qtest", Rejects("--qtest none.sock --memory memory", "none.sock")),
            ("memory", Rejects("--qtest none.sock --memory none.memory", "none.memory")),
            ("ios", Untried(QEMU)),
            ("depth", Untried(QEMU)),
            ("seed", Untried(QEMU)),
            ("pull", Untried(QEMU)),
        ],
    ),
    (
        "bench",
        "--one-thread 8",
        &[
            ("ms", Untried(MEASURES)),
            ("size", Untried(MEASURES)),
            ("turns", Untried(MEASURES)),
            ("hot", Untried(MEASURES)),
            ("one-thread", Differs("--one-thread 8", "--one-thread 300")),
            ("parts", Differs("--one-thread 8", "--parts 8")),
            (
                "vfio-user",
                Rejects("--one-thread 8 --vfio-user --interface host-flash", "not a PCI"),
            ),
            ("interface", Rejects("--one-thread 8 --interface host-flash", "host-flash")),
            ("bytes", Adds("--bytes 512")),
            ("depth", Adds("--depth 2")),
            ("write", Adds("--write")),
            ("pairs", Adds("--pairs 2")),
            ("one-drive", Adds("--pairs 2 --one-drive")),
            ("json", Rejects("--json job.fio/new", "job.fio/new")),
        ],
    ),
    (
        "calibrate",
        "",
        &[
            ("out", Untried(MEASURES)),
            ("samples", Untried(MEASURES)),
            ("ms", Untried(MEASURES)),
            ("json", Rejects("--json job.fio/new", "job.fio/new")),
        ],
    ),
];

const METRICS: &str = "live --shm x --metrics 192.0.2.1:1 --metrics-token T";
const HTTP: &str = "live --shm x --http 192.0.2.1:1 --http-token T";

const JOB: &str = "[a]\nrw=randrw\nbs=4k\nsize=1m\nnumber_ios=40\niodepth=4\n";
const SWEEP: &str = "plan = \"gen4\"\nfile = \"job.fio\"\n[[axis]]\njob = \"iodepth\"\nvalues = [1, 2]\n\
    [[axis]]\nset = \"link.lanes\"\nvalues = [1, 4]\n";

const TABLE: &str = "# engine: spdk\nworkload\tbs\tqd\tiops\nrandread\t4096\t1\t100000\n\
    randread\t4096\t2\t200000\nrandread\t4096\t3\t300000\nrandread\t4096\t4\t400000\n";

/// Status and output of a command, and the files of its folder.
#[derive(Clone, PartialEq, Eq)]
struct Left {
    output: (Option<i32>, String),
    files: BTreeMap<String, Vec<u8>>,
}

/// A file of memory of a guest, as long as one at least is.
const MEMORY: (&str, u64) = ("memory", 32 << 20);

/// A server for `doorbell ctl`, and what commands have left that were run before.
struct Tried {
    control: String,
    before: BTreeMap<Vec<String>, Left>,
}

/// Runs the command in a new folder.
fn run(words: &[String]) -> (CommandOutput, Left) {
    let folder = Folder::new("flags");
    folder.file("job.fio", JOB);
    folder.file("sweep.toml", SWEEP);
    folder.file("my.tsv", TABLE);
    for (name, at) in [("low.log", 0_u64), ("far.log", 1 << 50)] {
        let line = format!("/dev/x read {at} 4096");
        folder.file(name, &format!("fio version 2 iolog\n/dev/x add\n/dev/x open\n{line}\n"));
    }
    let memory = fs::File::create(folder.path(MEMORY.0)).expect("a temporary file");
    memory.set_len(MEMORY.1).expect("a sparse file");
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let output = output_of(&mut doorbell(&folder, &words));
    // The title has the words that were typed.
    let printed = output.out.lines().filter(|line| !line.starts_with("== ")).collect::<Vec<_>>();
    let entries = fs::read_dir(folder.at()).expect("our folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let files = paths.filter(|path| !path.ends_with(MEMORY.0)).map(|path| {
        let bytes = fs::read(&path).unwrap_or_default();
        (path.display().to_string(), bytes)
    });
    let left = Left { output: (output.code, printed.join("\n")), files: files.collect() };
    (output, left)
}

impl Tried {
    fn words(&self, command: &str, text: &str) -> Vec<String> {
        let words = std::iter::once(command).chain(text.split_whitespace());
        words.map(|word| word.replace('~', " ").replace("CONTROL", &self.control)).collect()
    }

    /// The status, output and files of the command, the same each time.
    fn base(&mut self, words: Vec<String>) -> Result<Left, String> {
        if let Some(left) = self.before.get(&words) {
            return Ok(left.clone());
        }
        let ((output, left), (_, again)) = (run(&words), run(&words));
        if output.code != Some(0) || left != again {
            return Err(format!("{words:?}: fails, or is not the same twice: {}", output.err));
        }
        self.before.insert(words, left.clone());
        Ok(left)
    }

    /// An error if the flag has no effect.
    fn flag(&mut self, (command, base, _): &Of, shown: Shown) -> Result<(), String> {
        let (without, with) = match shown {
            Untried(_) => return Ok(()),
            Rejects(text, expected) => {
                let (output, _) = run(&self.words(command, text));
                let is_end = matches!(output.code, Some(1 | 2)) && output.err.contains(expected);
                return is_end.then_some(()).ok_or(format!("{:?}: {}", output.code, output.err));
            }
            Adds(more) => ((*base).to_owned(), format!("{base} {more}")),
            Differs(one, other) => (one.to_owned(), other.to_owned()),
        };
        let before = self.base(self.words(command, &without))?;
        let (output, after) = run(&self.words(command, &with));
        match output.code {
            Some(0) if before == after => Err(format!("{with}: as {without}")),
            Some(0) => Ok(()),
            _ => Err(format!("{with}: {}", output.err)),
        }
    }
}

/// Tries all flags of these commands, and returns those without effect.
fn try_all(commands: &'static [Of]) -> Vec<String> {
    let _turn = turn();
    let folder = Folder::new("flags-served");
    let serve = ["serve", "live", "--shm", "socket", "--control", "control"];
    let _server = Server::listening(&folder, &mut doorbell(&folder, &serve));
    let control = folder.path("control").display().to_string();
    let mut tried = Tried { control, before: BTreeMap::new() };
    let flags = commands.iter().flat_map(|of| of.2.iter().map(move |flag| (of, flag)));
    let each = flags.filter_map(|(of, (flag, shown))| {
        let why = tried.flag(of, *shown).err()?;
        Some(format!("{} --{flag}: {why}", of.0))
    });
    each.collect()
}

#[test]
fn every_flag_of_a_command_that_runs_jobs_has_an_effect() {
    assert_eq!(try_all(OF_RUNS), [""; 0], "flags without effect");
}

#[test]
fn every_flag_of_a_campaign_has_an_effect() {
    assert_eq!(try_all(OF_CAMPAIGNS), [""; 0], "flags without effect");
}

#[test]
fn every_flag_of_other_commands_has_an_effect() {
    assert_eq!(try_all(OF_OTHERS), [""; 0], "flags without effect");
}

/// Names of the flags of a command and of those below it.
fn flags_of(command: &clap::Command, at: &str, found: &mut BTreeSet<String>) {
    for flag in command.get_arguments().filter_map(clap::Arg::get_long) {
        found.insert(format!("{at} --{flag}"));
    }
    for below in command.get_subcommands() {
        flags_of(below, format!("{at} {}", below.get_name()).trim(), found);
    }
}

#[test]
fn every_flag_has_an_entry_and_every_entry_a_flag() {
    let mut flags = BTreeSet::new();
    flags_of(&doorbell::command_line(), "", &mut flags);
    let mut entries = BTreeSet::new();
    for (command, _, flags) in [OF_RUNS, OF_CAMPAIGNS, OF_OTHERS].concat() {
        for (flag, shown) in flags {
            assert!(entries.insert(format!("{command} --{flag}")), "{command} --{flag}: twice");
            assert!(!matches!(shown, Untried("")), "{command} --{flag}: no reason");
        }
    }
    let differ: Vec<_> = entries.symmetric_difference(&flags).collect();
    assert_eq!(differ, [""; 0], "flags without an entry, and entries without a flag");
}

#[test]
fn flag_combination_without_effect_is_rejected() {
    let all = [
        ("sweep sweep.toml --dry-run --csv new", "--csv"),
        ("sweep sweep.toml --dry-run --out new", "--out"),
        ("bench --one-thread 8 --hot", "--hot"),
        ("bench --parts 8 --turns 2", "--turns"),
        ("bench --bytes 512", "--one-thread"),
        ("bench --depth 2", "--one-thread"),
        ("conformance --list --json new", "--list"),
        ("conformance --list --set link.lanes=1", "--list"),
        ("conformance --list --plan gen4", "--plan"),
        ("diskhog --plan gen4 --lock fair", "--lock"),
        ("diskhog --policy per-core --lock fair", "--lock"),
        ("ctl none.sock stats --views 2", "--views: found stats, expected top"),
    ];
    let _turn = turn();
    for (words, expected) in all {
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        let (CommandOutput { code, err, out }, _) = run(&words);
        assert!(matches!(code, Some(1 | 2)) && out.is_empty(), "{words:?}: {out}");
        assert!(err.contains(expected), "{words:?}: {err}");
    }
}

#[test]
fn log_of_a_server_is_on_standard_error() {
    let logged = |more: &[&str]| {
        let folder = Folder::new("flags-logged");
        let path = folder.path("log");
        let errors = fs::File::create(&path).expect("a temporary file");
        let serve = ["serve", "live", "--shm", "socket", "--control", "control"];
        let serve = [&serve, more].concat();
        let mut server = Server::listening(&folder, doorbell(&folder, &serve).stderr(errors));
        assert_eq!(output_of(&mut doorbell(&folder, &["ctl", "control", "stop"])).code, Some(0));
        server.child.wait().expect("our own child");
        fs::read_to_string(path).expect("the log")
    };
    assert_eq!(logged(&[]), "");
    assert!(logged(&["--log", "info"]).contains("waiting for a client"));
}
