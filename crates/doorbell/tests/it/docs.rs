//! Pages generated from the program, and a walkthrough of one simulated read: the committed text equals
//! the output of this build. `DOORBELL_BLESS=1` rewrites it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use plan::{Plan, built_in};
use runtime::Log;
use workload::job::{KEYS, Kind};
use workload::pattern::OpKind;
use workload::trace::Mapping;
use world::interfaces::{Lane, NVME, named};
use world::work::Work;
use world::{Options, simulate};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// Asserts that the committed page equals `expected`, or rewrites it.
fn check_page(name: &str, expected: &str) {
    let path = root().join(name);
    if std::env::var_os("DOORBELL_BLESS").is_some() {
        fs::write(&path, expected).expect("a page that can be written");
        return;
    }
    let found = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let (mut is, mut must) = (found.lines(), expected.lines());
    for number in 1.. {
        match (is.next(), must.next()) {
            (None, None) => return,
            (is, must) => assert_eq!(is, must, "{name}:{number}; DOORBELL_BLESS=1 rewrites it"),
        }
    }
}

/// Escapes text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `doorbell check` prints them.
#[test]
fn every_plan_cost_cites_source() {
    for (name, text) in built_in() {
        let plan = Plan::parse(text, name).unwrap_or_else(|errors| panic!("{errors}"));
        let report = plan.report().to_string();
        assert!(!plan.sources.is_empty(), "{name}");
        for sourced in &plan.sources {
            let why = sourced.source.trim_start_matches("assumed").trim_start_matches(':');
            assert!(!why.trim().is_empty(), "{name}: {}: its source is empty", sourced.key);
            assert!(report.contains(&sourced.key), "{name}: {} is not listed", sourced.key);
        }
    }
}

/// The table of docs/control.md between its marks is that of the program.
#[test]
fn control_page_lists_every_verb() {
    let path = root().join("docs/control.md");
    let page = fs::read_to_string(path).expect("the page");
    let (before, rest) = page.split_once("<!-- verbs -->\n").expect("a mark");
    let (_, after) = rest.split_once("<!-- end of verbs -->\n").expect("a second mark");
    let mut table = String::from("| verb | what it does |\n|---|---|\n");
    for verb in serve::control::VERBS {
        writeln!(table, "| `{}` | {} |", verb.usage(), cell(verb.help)).expect("text");
    }
    let expected = format!("{before}<!-- verbs -->\n{table}<!-- end of verbs -->\n{after}");
    check_page("docs/control.md", &expected);
}

#[test]
fn jobs_page_lists_every_key() {
    let mut page = String::from(
        "# Job files\n\n\
         doorbell reads fio's job files. This page lists every known key. It is generated from the \
         parser's table by\n`crates/doorbell/tests/it/docs.rs`, which fails if the page differs; \
         `doorbell keys` prints the same. Any other key\nis an error that names the file, the line \
         and the nearest known key.\n\n\
         A supported key has its effect in fio; an ignored one is accepted without effect, and a note \
         gives the reason; a\nrejected one is an error that names the alternative.\n\n\
         `--job KEY=VALUE` sets a key of every job of the file, `${NAME}` is the value of an environment \
         variable, and `include FILE`\ntakes the lines of another file, sought beside the file that \
         includes it, then in the working directory.\n\n\
         Four things differ from fio. A run is reproducible from its seed (`--seed`), including the \
         order of operations.\nA recording (`read_iolog`) is played onto the one device: its devices \
         are concatenated, and a trim is narrowed to\nwhole blocks; keys of a pattern beside it get a \
         note. A variable that is not set is an \
         error, not an empty text. The ranks of zipf and pareto are scattered\nby a permutation \
         instead of a hash, so that no two share a place; all jobs of one distribution, their reads and \
         their writes have\nthe same hot places.\n",
    );
    let mut section = |title: &str, column: &str, row: &dyn Fn(&Kind) -> Option<String>| {
        write!(page, "\n## {title}\n\n| key | meaning | {column} |\n|---|---|---|\n").unwrap();
        for key in KEYS {
            let Some(rest) = row(&key.kind) else { continue };
            let names: Vec<_> =
                [key.name].iter().chain(key.aliases).map(|n| format!("`{n}`")).collect();
            let (names, about, rest) = (names.join(", "), cell(key.about), cell(&rest));
            writeln!(page, "| {names} | {about} | {rest} |").unwrap();
        }
    };
    section("Supported", "value", &|kind| match kind {
        Kind::Supported { expects, example, .. } => Some(format!("{expects}; e.g. `{example}`")),
        _ => None,
    });
    section("Ignored", "reason", &|kind| match kind {
        Kind::Ignored(why) => Some((*why).to_owned()),
        _ => None,
    });
    section("Rejected", "alternative", &|kind| match kind {
        Kind::Rejected(why) => Some((*why).to_owned()),
        _ => None,
    });
    check_page("docs/jobs.md", &page);
}

/// One read of 4 KiB on this plan: the ends of its stages and the lines of its event log, by time since
/// the call.
fn walkthrough(plan: &str) -> String {
    let path = root().join("jobs/one-read.fio");
    let job = fs::read_to_string(&path).expect("the job");
    let plan = Plan::open(plan, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let log = Log::kept();
    let work = Work::parse(&path, &job, Mapping::default()).expect("a job");
    let options = Options { log: log.clone(), ..Options::default() };
    let run_result = simulate(NVME, &plan, &work, options).expect("a run");

    let mean = run_result.jobs[0].1.stats.breakdowns[&OpKind::Read].mean();
    let mut rows: Vec<(u64, String)> = Vec::new();
    let mut since_call = 0;
    let mut rung_at = None;
    for (stage, ps) in NVME.stages.iter().zip(&mean.stages_ps) {
        since_call += ps.round() as u64;
        if *ps > 0.0 {
            rows.push((since_call, format!("stage   {stage} ends")));
        }
        if *stage == "doorbell" {
            rung_at = Some(since_call);
        }
    }
    // The doorbell of the first I/O queue lands at the end of its stage: that relates the two clocks.
    let entries = log.entries();
    let first = entries.iter().position(|e| (e.what, e.a) == ("register", 0x1008));
    let first = first.expect("a doorbell");
    let call = entries[first].at.0 - rung_at.expect("a stage of that name");
    let last = entries[first..].iter().position(|e| e.what == "shutdown").expect("an end");
    for entry in &entries[first..first + last] {
        let what = format!("{:<7} {} {:x} {:x}", entry.component, entry.what, entry.a, entry.b);
        rows.push((entry.at.0 - call, what));
    }
    rows.sort_by_key(|row| row.0);
    let mut text = String::from("  ns since the call  source  event\n");
    for (ps, what) in &rows {
        writeln!(text, "{:>15}.{:03}  {what}", ps / 1000, ps % 1000).unwrap();
    }
    text
}

#[test]
fn read_walkthrough_matches_simulation() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (open, close) = ("<!-- walk: dc-express -->\n```text\n", "```\n<!-- end of walk -->");
    let (before, rest) = page.split_once(open).expect("the mark of the walk");
    let (_, after) = rest.split_once(close).expect("the end of the walk");
    check_page(
        "ARCHITECTURE.md",
        &format!("{before}{open}{}{close}{after}", walkthrough("dc-express")),
    );
}

/// Help of each command, as the program prints it.
#[test]
fn commands_page_lists_every_command() {
    let mut page = String::from(
        "# Commands\n\n\
         The help of each command, generated from the command line by \
         `crates/doorbell/tests/it/docs.rs`. `doorbell man DIR` writes\nthe same as man pages, \
         `doorbell completions SHELL` prints completions.\n",
    );
    let mut program = doorbell::command_line();
    program.build();
    let mut help = |title: &str, command: &mut clap::Command| {
        let help = command.render_long_help().to_string();
        let lines = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        write!(page, "\n## {title}\n\n```text\n{}\n```\n", lines.trim_end()).unwrap();
    };
    help("doorbell", &mut program);
    for command in program.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        let name = command.get_name().to_owned();
        help(&format!("doorbell {name}"), command);
        for under in command.get_subcommands_mut().filter(|under| under.get_name() != "help") {
            help(&format!("doorbell {name} {}", under.get_name()), under);
        }
    }
    check_page("docs/commands.md", &page);
}

/// Interfaces whose walk is drawn, and the plan of each.
const WALKS: &[(&str, &str)] = &[
    ("nvme", "dc-express"),
    ("dcx", "dc-express"),
    ("block", "dc-express"),
    ("fastpath", "fastpath"),
    ("host-flash", "small-flash"),
];

/// Columns of a timing diagram.
const COLUMNS: u64 = 48;

/// The stages of one read of 4 KiB in order: begin, end, lane, name, and a bar in proportion.
fn timing_diagram(interface: &str, plan: &str) -> String {
    let path = root().join("jobs/one-read.fio");
    let job = fs::read_to_string(&path).expect("the job").replace("size=16m", "size=4m");
    // A page that was never written takes no flash time.
    let filled: &[_] = match plan {
        "small-flash" => &[("medium.flash.start", "filled")],
        _ => &[],
    };
    let plan = Plan::open(plan, filled).unwrap_or_else(|errors| panic!("{errors}"));
    let work = Work::parse(&path, &job, Mapping::default()).expect("a job");
    let options = Options { timeline: Some(1), ..Options::default() };
    let row = named(interface).expect("an interface");
    let run_result = simulate(row, &plan, &work, options).expect("a run");
    let timeline = run_result.timeline.expect("it was asked for");
    let [request] = &timeline.requests[..] else { panic!("{interface}: one read") };
    let all = request.ended.since(request.begun).0;
    let mut text = String::from("   from us    to us  lane       stage\n");
    let mut at = request.begun;
    for span in &request.spans {
        assert_eq!(span.from, at, "{interface}: spans are contiguous");
        at = span.to;
        let (from, to) = (span.from.since(request.begun).0, span.to.since(request.begun).0);
        let us = |ps: u64| format!("{}.{:03}", ps / 1_000_000, ps / 1000 % 1000);
        let column = |ps: u64| (ps * COLUMNS / all) as usize;
        let bar = "█".repeat((column(to) - column(from)).max(1));
        let (lane, stage) = (span.lane.to_string(), span.stage);
        let (from_us, to_us) = (us(from), us(to));
        let bar = format!("{:1$}{bar}", "", column(from));
        writeln!(text, "{from_us:>10} {to_us:>8}  {lane:<9}  {stage:<18} {bar}").unwrap();
    }
    assert_eq!(at, request.ended, "{interface}: spans end with the read");
    assert!(request.spans.iter().any(|span| span.lane == Lane::Medium), "{interface}");
    text
}

#[test]
fn walks_page_draws_a_read_by_each_interface() {
    let mut page = String::from(
        "# One read by each interface\n\n\
         One read of 4 KiB (`jobs/one-read.fio`), simulated: its stages in order, in the lane of the part \
         that works or is waited for.\nGenerated by `crates/doorbell/tests/it/docs.rs`. \
         [Comparing interfaces](compare.md) explains the stages; `--trace` writes the\nsame of any job for \
         [Perfetto](results.md#timelines).\n",
    );
    for (interface, plan) in WALKS {
        let drawn = timing_diagram(interface, plan);
        write!(page, "\n## {interface}, plan {plan}\n\n```text\n{drawn}```\n").unwrap();
    }
    check_page("docs/walks.md", &page);
}
