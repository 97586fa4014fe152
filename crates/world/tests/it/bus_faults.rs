//! Faults of the bus and the drive in virtual time: the table of `docs/faults.md`, what the driver did about
//! each and after what time. `DOORBELL_BLESS=1` rewrites it.

use runtime::{Entry, Log, Span};
use testing::{operations, plan, work};
use workload::pattern::OpKind;
use world::engine::JobResult;
use world::interfaces::{DCX, NVME};
use world::{self, Options, RunResult};

/// Writes and reads of each block once, at depth 1.
const WRITES: &str = "[a]\nrw=write\nbs=4k\nsize=64k\n";
const READS: &str = "[a]\nrw=read\nbs=4k\nsize=64k\n";

/// The same, of blocks that were written.
const REREADS: &str = "[w]\nrw=write\nbs=4k\nsize=64k\n[r]\nstonewall\nrw=read\nbs=4k\nsize=64k\n";

/// A row of the table: its words, the fault, and the job.
struct Case {
    words: &'static str,
    fault: &'static str,
    job: &'static str,
}

const fn case(words: &'static str, fault: &'static str, job: &'static str) -> Case {
    Case { words, fault, job }
}

const CASES: &[Case] = &[
    case("duplicate interrupt", r#"what = "duplicate-interrupt", nth = 5"#, READS),
    case("lost interrupt", r#"what = "lost-interrupt", nth = 5"#, READS),
    case(
        "completion time-out of 50 us",
        r#"what = "completion-timeout", span = "50 us", nth = 5"#,
        WRITES,
    ),
    case("poisoned TLP", r#"what = "poisoned-tlp", nth = 5"#, WRITES),
    case("link retrains for 100 us", r#"what = "link-retrain", span = "100 us", nth = 5"#, READS),
    case("link retrains for 3 ms", r#"what = "link-retrain", span = "3 ms", nth = 5"#, READS),
    case("link down", r#"what = "link-down", nth = 5"#, READS),
    case("command lost", r#"what = "drop", nth = 5"#, READS),
    case("command hangs", r#"what = "hang", nth = 5"#, READS),
    case("controller fails", r#"what = "fatal", nth = 5"#, READS),
    case(
        "bit rot, with protection information",
        r#"what = "corrupt-medium", command = "read", nth = 5"#,
        REREADS,
    ),
    case(
        "bit flips on the way to the host, with protection information of the host",
        r#"what = "corrupt-data", command = "read", nth = 5"#,
        REREADS,
    ),
];

struct Seen {
    run_result: RunResult,
    log: Vec<Entry>,
}

fn run(case: &Case) -> Seen {
    let faults = format!(r#"[{{ name = "x", {} }}]"#, case.fault);
    let mut sets = vec![
        ("host.memory", "16 MiB"),
        ("device.mdts", "64 KiB"),
        ("host.timeout", "1 ms"),
        ("host.completion", "interrupt"),
        ("medium.keep", "everything"),
        ("faults", &faults),
    ];
    if case.words.contains("protection information") {
        sets.extend([("device.protection", "1"), ("medium.keep", "everything")]);
    }
    if case.words.contains("of the host") {
        sets.extend([("host.protection", "host"), ("host.guard", "300ns")]);
    }
    let log = Log::kept();
    let options = Options { log: log.clone(), ..Options::default() };
    let run_result = world::simulate(NVME, &plan("dc-express", &sets), &work(case.job), options);
    Seen { run_result: run_result.unwrap_or_else(|error| panic!("{error}")), log: log.entries() }
}

impl Seen {
    /// The job of the fault.
    fn job(&self) -> &JobResult {
        &self.run_result.jobs.last().expect("a job").1
    }

    fn errors(&self) -> u64 {
        self.run_result.jobs.iter().map(|(_, of)| of.errors()).sum()
    }

    fn count(&self, component: &str, what: &str) -> usize {
        self.log.iter().filter(|entry| entry.component == component && entry.what == what).count()
    }

    fn injected(&self) -> u64 {
        self.run_result.faults[0].1
    }

    fn longest(&self, kind: OpKind) -> Span {
        Span::ns(self.job().stats.of(kind).total.max_ns())
    }

    /// Actions of the driver after the first injection, and the time of the first of each.
    fn actions(&self) -> String {
        let first = self.log.iter().position(|entry| entry.component == "fault").expect("a fault");
        let since = self.log[first].at;
        let mut seen: Vec<(&str, usize, Span)> = Vec::new();
        let is_own = |entry: &&Entry| {
            entry.component == "host" && !["shutdown", "no-events"].contains(&entry.what)
        };
        for entry in self.log[first..].iter().filter(is_own) {
            match seen.iter_mut().find(|(what, ..)| *what == entry.what) {
                Some((_, count, _)) => *count += 1,
                None => seen.push((entry.what, 1, entry.at.since(since))),
            }
        }
        let words = seen.iter().map(|(what, count, after)| match count {
            1 => format!("{what} after {after}"),
            count => format!("{what} after {after}, {count} times"),
        });
        let words: Vec<_> = words.collect();
        if words.is_empty() { "nothing".into() } else { words.join("; ") }
    }

    /// Time until the command that failed had its completion; if none has, the longest operation.
    fn time(&self, kind: OpKind) -> Span {
        let first = self.log.iter().position(|entry| entry.component == "fault").expect("a fault");
        let (at, id) = (self.log[first].at, self.log[first].b);
        let is_it = |entry: &&Entry| {
            entry.what == "completed" && (entry.a << 16 | entry.b) == id && self.errors() > 0
        };
        let completed = self.log[first..].iter().find(is_it);
        completed.map_or_else(|| self.longest(kind), |entry| entry.at.since(at))
    }

    fn result(&self) -> String {
        let of = self.job();
        match self.errors() {
            0 => format!("all {} succeed", operations(of)),
            errors => {
                let message = of.messages.first().map_or("", String::as_str);
                format!("{errors} of 16 fail: {message}")
            }
        }
    }
}

fn kind(case: &Case) -> OpKind {
    if case.job == WRITES { OpKind::Write } else { OpKind::Read }
}

#[test]
fn table_of_faults_is_that_of_the_docs() {
    let mut table = String::from(
        "| injected | times | the driver | the caller | longest operation, or until the error |\n|---|---|---|---|---|\n",
    );
    for case in CASES {
        let seen = run(case);
        table += &format!(
            "| {} | {} | {} | {} | {} |\n",
            case.words,
            seen.injected(),
            seen.actions(),
            seen.result(),
            seen.time(kind(case)),
        );
    }
    let path = testing::root().join("docs/faults.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (begin, end) = ("<!-- table of faults -->\n", "<!-- end of table -->");
    let (before, rest) = page.split_once(begin).expect("the table's begin");
    let (found, after) = rest.split_once(end).expect("the table's end");
    if std::env::var_os("DOORBELL_BLESS").is_some() {
        let page = format!("{before}{begin}{table}{end}{after}");
        std::fs::write(&path, page).expect("the page can be written");
    } else {
        assert_eq!(found, table, "DOORBELL_BLESS=1 writes docs/faults.md anew");
    }
}

#[test]
fn duplicate_interrupt_changes_no_result() {
    let seen = run(&CASES[0]);
    assert_eq!((seen.injected(), seen.errors()), (1, 0));
    assert_eq!(seen.count("device", "interrupt again"), 1);
    assert_eq!((seen.count("host", "timeout"), seen.count("host", "reset")), (0, 0));
    let never = case("none", r#"what = "duplicate-interrupt", nth = 999"#, READS);
    assert_eq!(run(&never).count("device", "interrupt again"), 0);
}

#[test]
fn poisoned_data_is_not_written_and_reads_have_none() {
    let writes =
        run(&case("each", r#"what = "poisoned-tlp", first_lba = 32, last_lba = 39"#, WRITES));
    assert!(writes.injected() > 0 && writes.errors() == 1, "{}", writes.result());
    assert!(writes.result().contains("Data Transfer Error"), "{}", writes.result());
    let reads = run(&case("reads", r#"what = "poisoned-tlp""#, READS));
    assert_eq!((reads.injected(), reads.errors()), (0, 0));
    // The poisoned write alone fails; every other block verifies.
    let verified = "[a]\nrw=write\nbs=4k\nsize=64k\nverify=crc32c\ndo_verify=1\n";
    let seen = run(&case("verified", r#"what = "poisoned-tlp", nth = 5"#, verified));
    assert_eq!((seen.injected(), seen.errors()), (1, 1), "{}", seen.result());
}

#[test]
fn link_retrain_holds_up_all_commands_for_its_span() {
    let many = "[a]\nrw=randread\nbs=4k\nsize=2m\niodepth=8\nnumber_ios=400\n";
    let fault = r#"what = "link-retrain", span = "100 us", at = "60 us""#;
    let seen = run(&case("many", fault, many));
    assert_eq!((seen.injected(), seen.errors()), (1, 0));
    let begin = seen.log.iter().position(|entry| entry.component == "fault").expect("a fault");
    let until = seen.log[begin].at + Span::us(100);
    let completed = seen.log[begin..].iter().filter(|entry| entry.what == "completed");
    // At most one whose completion was being posted.
    let early = completed.filter(|entry| entry.at < until).count();
    assert!(early <= 1, "{early} commands completed while the link retrained");
    let longest = seen.longest(OpKind::Read);
    assert!(longest >= Span::us(95) && longest < Span::us(200), "{longest}");
}

#[test]
fn bit_rot_is_found_by_protection_information() {
    let rot = CASES.iter().find(|case| case.words.starts_with("bit rot")).expect("a case");
    let seen = run(rot);
    assert_eq!((seen.injected(), seen.errors()), (1, 1), "{}", seen.result());
    assert!(seen.result().contains("Guard"), "{}", seen.result());
    let without = run(&case("bit rot alone", rot.fault, REREADS));
    assert_eq!((without.injected(), without.errors()), (1, 0), "nothing else finds it");
}

#[test]
fn faults_of_the_bus_apply_to_dcx() {
    let by_dcx = |fault: &str, job: &str| {
        let faults = format!(r#"[{{ name = "x", {fault} }}]"#);
        let sets = [("host.memory", "16 MiB"), ("device.mdts", "64 KiB"), ("faults", &*faults)];
        let run_result =
            world::simulate(DCX, &plan("dc-express", &sets), &work(job), Options::default());
        let run_result = run_result.unwrap_or_else(|error| panic!("{error}"));
        let job_result = &run_result.jobs[0].1;
        let longest = Span::ns(job_result.stats.of(OpKind::Read).total.max_ns());
        (run_result.faults[0].1, job_result.errors(), longest)
    };
    let (injected, errors, longest) =
        by_dcx(r#"what = "link-retrain", span = "100 us", nth = 5"#, READS);
    assert_eq!((injected, errors), (1, 0));
    assert!(longest >= Span::us(100) && longest < Span::us(120), "{longest}");
    let (injected, errors, _) = by_dcx(r#"what = "poisoned-tlp", nth = 5"#, WRITES);
    assert_eq!((injected, errors), (1, 1));
    let (injected, ..) = by_dcx(r#"what = "poisoned-tlp""#, READS);
    assert_eq!(injected, 0);
}
