//! Pages that are printed from the program, and a walk that it has taken: the committed text is what
//! this build gives. `DOORBELL_BLESS=1` writes it anew.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use plan::{Plan, built_in};
use runtime::Log;
use workload::job::{KEYS, Kind};
use workload::pattern::OpKind;
use workload::trace::Mapping;
use world::interfaces::{Interface, NVME, Nvme};
use world::work::Work;
use world::{Options, simulate};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// The committed page is `expected`, or becomes it.
fn hold(name: &str, expected: &str) {
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
            (is, must) => assert_eq!(is, must, "{name}:{number}; DOORBELL_BLESS=1 writes it anew"),
        }
    }
}

/// Text as a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `doorbell check` is where one reads them.
#[test]
fn every_cost_of_every_plan_has_its_source() {
    for (name, text) in built_in() {
        let plan = Plan::parse(text, name).unwrap_or_else(|errors| panic!("{errors}"));
        let report = plan.report().to_string();
        assert!(!plan.sources.is_empty(), "{name}");
        for sourced in &plan.sources {
            let why = sourced.source.trim_start_matches("assumed").trim_start_matches(':');
            assert!(!why.trim().is_empty(), "{name}: {}: its source says nothing", sourced.key);
            assert!(report.contains(&sourced.key), "{name}: {} is not listed", sourced.key);
        }
    }
}

#[test]
fn every_job_file_key_is_listed_with_what_is_done_with_it() {
    let mut page = String::from(
        "# Job files\n\n\
         doorbell reads fio's job files. This page lists every key that it knows, printed from the \
         table that the\nparser obeys by `crates/doorbell/tests/it/docs.rs`, which fails if this page says \
         anything else;\n`doorbell keys` prints the same. A key that is on no list is an error that \
         names the file, the line and the\nnearest known key.\n\n\
         Two things differ from fio. Every run repeats from its seed (`--seed`), the order of \
         operations included.\nAnd a recording (`read_iolog`) plays onto the one device: its files are \
         laid end to end, and a trim is\nnarrowed to whole blocks.\n",
    );
    let mut section = |title: &str, column: &str, row: &dyn Fn(&Kind) -> Option<String>| {
        write!(page, "\n## {title}\n\n| key | what it is | {column} |\n|---|---|---|\n").unwrap();
        for key in KEYS {
            let Some(rest) = row(&key.kind) else { continue };
            let names: Vec<_> =
                [key.name].iter().chain(key.aliases).map(|n| format!("`{n}`")).collect();
            let (names, about, rest) = (names.join(", "), cell(key.about), cell(&rest));
            writeln!(page, "| {names} | {about} | {rest} |").unwrap();
        }
    };
    section("Honoured", "value", &|kind| match kind {
        Kind::Supported { expects, example, .. } => Some(format!("{expects}; e.g. `{example}`")),
        _ => None,
    });
    section("Accepted without effect", "why it has none", &|kind| match kind {
        Kind::Noted(why) => Some((*why).to_owned()),
        _ => None,
    });
    section("Refused", "what to do instead", &|kind| match kind {
        Kind::Refused(why) => Some((*why).to_owned()),
        _ => None,
    });
    hold("docs/jobs.md", &page);
}

/// One read of 4 KiB on this plan: the ends of its stages and the lines of its event log, by time since
/// the call.
fn walk(plan: &str) -> String {
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
    for (stage, ps) in Nvme::STAGES.iter().zip(&mean.stages_ps) {
        since_call += ps.round() as u64;
        if *ps > 0.0 {
            rows.push((since_call, format!("stage   {stage} ends")));
        }
        if *stage == "doorbell" {
            rung_at = Some(since_call);
        }
    }
    // The doorbell of the first I/O queue lands where its stage ends: that ties the two clocks.
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
    let mut text = String::from("  ns since the call  who     what\n");
    for (ps, what) in &rows {
        writeln!(text, "{:>15}.{:03}  {what}", ps / 1000, ps % 1000).unwrap();
    }
    text
}

#[test]
fn the_walk_of_one_read_is_the_one_that_was_taken() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (open, close) = ("<!-- walk: dc-express -->\n```text\n", "```\n<!-- end of walk -->");
    let (before, rest) = page.split_once(open).expect("the mark of the walk");
    let (_, after) = rest.split_once(close).expect("the end of the walk");
    hold("ARCHITECTURE.md", &format!("{before}{open}{}{close}{after}", walk("dc-express")));
}
