//! Tables of measurements: their errors, the jobs for their rows, ratios and shares worked out by hand, a run
//! from end to end, and the short table of a drive.

use std::path::Path;

use campaign::validate::compare::{Compared, Share, Shares, Worst, by_workload, is_near, worst};
use campaign::validate::{
    Effort, Figure, Figures, Host, LeftOut, Length, Load, Report, Table, TableError, built_in,
    text, validate,
};
use plan::Plan;
use runtime::Span;
use workload::pattern::OpKind;

const EFFORT: Effort = Effort { length: Length::QUICK, threads: 2 };

fn parsed(text: &str) -> Result<Table, TableError> {
    Table::parse(Path::new("my.tsv"), text)
}

fn table(text: &str) -> Table {
    parsed(text).unwrap_or_else(|error| panic!("{error}"))
}

fn plan(name: &str, sets: &[(&str, &str)]) -> Plan {
    Plan::open(name, sets).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn columns_are_found_by_name_and_may_be_missing() {
    let table =
        table("# drive: A drive: new\n#\niops\tworkload\tbs\r\n\n1000.5\trandread\t4096\r\n2\tx\n");
    assert_eq!((table.name.as_str(), table.fact("drive")), ("my", Some("A drive: new")));
    assert_eq!(table.fact("licence"), None);
    let [first, second] = &table.rows[..] else { panic!("two rows") };
    assert_eq!(
        (first.line, first.workload.as_str(), first.block_bytes),
        (5, "randread", Some(4096))
    );
    assert_eq!(first.measured, Figures([Some(1000.5), None, None, None, None]));
    assert_eq!((second.line, second.block_bytes, second.depth), (6, None, None));
}

#[test]
fn table_errors_name_file_line_and_column() {
    let cases = [
        ("", "my.tsv:0: found the end, expected a line with the names of columns"),
        ("# drive: x\nworkload\tbs\n", "my.tsv:2: found the end, expected a row at least"),
        ("bs\n1\n", "my.tsv:1: workload: found no such column, expected it among the columns"),
        ("workload\tp50\n", "my.tsv:1: p50: found an unknown column, expected one of workload, "),
        ("workload\tbs\tbs\n", "my.tsv:1: bs: found the column twice, expected each column once"),
        (
            "workload\tqd\nx\t1.5\n",
            "my.tsv:2: qd: found \"1.5\", expected a whole number from 1 to 65536",
        ),
        (
            "workload\tiops\nx\t-1\n",
            "my.tsv:2: iops: found \"-1\", expected a number above 0, or nothing",
        ),
        (
            "workload\tp99_us\nx\tnan\n",
            "my.tsv:2: p99_us: found \"nan\", expected a number above 0",
        ),
        ("workload\tlittle\nx\ty\n", "my.tsv:2: little: found \"y\", expected a number above 0"),
        ("workload\tbs\n\t1\n", "my.tsv:2: workload: found nothing, expected the name of a load"),
        ("workload\nx\ty\n", "my.tsv:2: found 2 values, expected at most 1, one for each column"),
    ];
    for (text, expected) in cases {
        let error = parsed(text).expect_err(text).to_string();
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
    let error = built_in::open("none/x.tsv").expect_err("no file").to_string();
    assert!(error.starts_with("none/x.tsv: cannot be read: "), "{error}");
}

const LOADS: &str = "\
# engine: fio, io_uring
workload	bs	qd	jobs	iops	mean_us	flag
randread	4096	8	2	100000		spdk
randwrite	8192	400		20000		
openloop-w10000-write	4096			9951	10	writes=9951;reads=5051
mixread-beside-randwrite64k-x2	4096	1	1	1000		8drives
mixload-randwrite64k-x2	65536	128	2	52286		8drives;sum of 2 processes over 8 drives
";

#[test]
fn rows_become_jobs_of_their_engine_rate_and_depth() {
    let (table, plan) = (table(LOADS), plan("gen4", &[]));
    let load = |row: usize| Load::of(&table, &table.rows[row], &plan, Length::WHOLE);
    let global = |bytes: u64, us: u64, ramp: u64| {
        format!(
            "[global]\nbs={bytes}\nnorandommap=1\ngroup_reporting=1\ntime_based=1\nruntime={us}us\n\
             ramp_time={ramp}us\n"
        )
    };
    // 20,000 operations at 100,000 a second.
    let text = global(4096, 200_000, 50_000) + "[row]\nrw=randread\niodepth=8\nnumjobs=2\n";
    let (kind, is_open) = (OpKind::Read, false);
    let runtime = Span::ms(200);
    assert_eq!(load(0), Ok((Load { host: Host::UserSpace, text, runtime, is_open }, kind)));
    // 100 for each of 400 in flight, at 20,000 a second.
    let text = global(8192, 2_000_000, 500_000) + "[row]\nrw=randwrite\niodepth=400\nnumjobs=1\n";
    let (runtime, kind) = (Span::s(2), OpKind::Write);
    assert_eq!(load(1), Ok((Load { host: Host::Kernel, text, runtime, is_open }, kind)));
    // 20,000 of the 5,000 a second that are compared; six threads have the rest of the rates: 51 and 4,951.
    let text = global(4096, 4_000_000, 1_000_000)
        + "rw=randrw\nrate_process=poisson\n\
           [row]\nnumjobs=1\niodepth=256\nrwmixread=50\nrate_iops=5000,5000\n\
           [load]\nnumjobs=6\niodepth=64\nrwmixread=1\nrate_iops=8,825\n";
    let (runtime, is_open) = (Span::s(4), true);
    assert_eq!(load(2), Ok((Load { host: Host::Kernel, text, runtime, is_open }, kind)));
    // 10 s at most. Two processes over eight drives: 52,286 / 8 / 2 a second each.
    let text = global(4096, 10_000_000, 2_500_000)
        + "[row]\nrw=randread\niodepth=1\n\
           [load]\nrw=randwrite\nbs=65536\niodepth=16\nnumjobs=2\nrate_iops=3268\n";
    let (runtime, kind, is_open) = (Span::s(10), OpKind::Read, false);
    assert_eq!(load(3), Ok((Load { host: Host::Kernel, text, runtime, is_open }, kind)));
    assert_eq!(load(4), Err(LeftOut::LoadOfReader));
}

#[test]
fn rows_that_cannot_run_are_left_out_with_a_reason() {
    let plan = plan("gen4", &[]);
    let cases = [
        ("spec-read\t4096\t1\t9\tio_uring", "a claim of the vendor, not a measurement"),
        ("zone-append\t4096\t1\t9\tspdk", "zoned namespaces are not modelled"),
        ("mix75-read\t4096\t1\t9\tspdk", "zoned namespaces are not modelled"),
        ("randread\t4096\t1\t9\tlibaio;little", "doubtful by its flag: little"),
        ("randread\t4096\t1\t9\tio_uring;uplink", "bound by the uplink that several drives share"),
        ("randread-7drives\t4096\t1\t9\tspdk", "a load over several drives at once"),
        ("openloop-w9-read\t4096\t\t9\tsaturated", "saturated: its latencies are those of a queue"),
        ("randread\t4096\t1\t9\tWindows", "no engine in its flag or the header"),
        ("randread\t4096\t1\t\tio_uring", "neither a rate nor a mean latency"),
        ("randread\t\t1\t9\tio_uring", "no job for the load: no block size"),
        ("randread\t4096\t\t9\tio_uring", "no job for the load: no depth"),
        ("lfs\t4096\t1\t9\tio_uring", "no job for the load: lfs"),
        (
            "mixread-beside-randread4k-x3\t4096\t1\t9\tio_uring",
            "no job for the load: no row mixload-",
        ),
        ("randread\t512\t1\t9\tio_uring", "smaller than a block of the plan, 4096 bytes"),
    ];
    for (row, expected) in cases {
        let table = table(&format!("workload\tbs\tqd\tiops\tflag\n{row}\n"));
        let why = Load::of(&table, &table.rows[0], &plan, Length::WHOLE).expect_err(row);
        assert!(why.to_string().starts_with(expected), "{row}: {why}");
    }
    let table = table("workload\tbs\tqd\tiops\tflag\nrandread\t8192\t1\t9\tspdk\n");
    let load = |length| Load::of(&table, &table.rows[0], &plan, length);
    let only = |only: &str| Table { only: only.to_owned(), ..table.clone() };
    assert!(load(Length::WHOLE).is_ok());
    assert!(Load::of(&only("rand"), &table.rows[0], &plan, Length::WHOLE).is_ok());
    let other = Load::of(&only("openloop"), &table.rows[0], &plan, Length::WHOLE);
    assert_eq!(other, Err(LeftOut::Unwanted));
    assert_eq!(only("rand"), table.clone().with_only("rand").expect("it has such a row"));
    let error = table.clone().with_only("read").expect_err("no such row").to_string();
    assert!(
        error.ends_with("--rows: found read, expected the beginning of a workload: randread"),
        "{error}"
    );
    assert_eq!(load(Length::QUICK), Err(LeftOut::Quick));
}

#[test]
fn user_space_host_pays_nothing_of_the_kernel() {
    let linux = plan("samsung-980-pro-1tb", &[]);
    let of = |host: Host, name: &str| {
        let plan = host.of(&linux);
        plan.host.costs.iter().find(|cost| cost.name == name).expect("a cost").span.as_ns()
    };
    let costs = ["system call", "block driver", "submit"];
    assert_eq!(costs.map(|name| of(Host::Kernel, name)), [500, 600, 40]);
    assert_eq!(costs.map(|name| of(Host::UserSpace, name)), [0, 0, 40]);
    assert_eq!(Host::UserSpace.of(&linux).host.completion, plan::Completion::Polled);
}

fn compared(line: usize, workload: &str, ratio: [Option<f64>; 5]) -> Compared {
    let measured = Figures([Some(1.0); 5]);
    Compared {
        line,
        workload: workload.to_owned(),
        block_bytes: 4096,
        depth: Some(1),
        jobs: None,
        host: "user",
        measured,
        model: Figures(ratio).over(&measured),
        ratio: Figures(ratio),
    }
}

#[test]
fn shares_and_worst_ratio_of_rows_by_hand() {
    let rows = [
        compared(5, "randread", [Some(1.0), Some(1.15), Some(1.16), Some(0.85), Some(9.0)]),
        compared(6, "openloop-w1-read", [Some(0.84), None, Some(0.25), Some(2.0), None]),
        compared(7, "openloop-w2-read", [Some(1.1), None, Some(4.0), None, Some(1.1)]),
    ];
    let share = |near, of| Share { near, of };
    let figures = [share(2, 3), share(1, 1), share(0, 3), share(1, 2), share(1, 2)];
    assert_eq!(Shares::of(&rows), Shares { rows: 3, figures });
    // 1 / 0.25 is as far as 4, and comes first. 9.0 at p99.9 does not count.
    assert_eq!(worst(&rows), Some(Worst { line: 6, figure: Figure::P50 }));
    assert_eq!(worst(&[]), None);
    let groups = by_workload(&rows);
    let names: Vec<_> = groups.iter().map(|((name, _), shares)| (&name[..], shares.rows)).collect();
    assert_eq!(names, [("openloop read", 2), ("randread", 1)]);
    let near = [(0.849, false), (0.85, true), (1.0, true), (1.15, true), (1.151, false)];
    assert!(near.iter().all(|(ratio, is)| is_near(*ratio) == *is));
}

/// A table whose measurements are those of the plan: every ratio is near 1, but that of the rate that was
/// doubled.
#[test]
fn plan_agrees_with_a_table_of_its_own_runs() {
    let plan = plan("gen4", &[]);
    let run = |table: &Table, threads| {
        let effort = Effort { threads, ..EFFORT };
        validate(&plan, table, effort, &|done, of| assert!(done <= of)).expect("a report")
    };
    let guess = "workload\tbs\tqd\tiops\tflag\nrandread\t4096\t1\t200000\tspdk\n\
                 randread\t4096\t32\t1500000\tio_uring\nrandread\t8192\t1\t9\tspdk\n";
    let first = run(&table(guess), 1);
    assert_eq!((first.rows.len(), first.left_out_rows()), (2, 1));
    let mut text = "workload\tbs\tqd\tiops\tmean_us\tp50_us\tp99_us\tp999_us\tflag\n".to_owned();
    for (row, flag, factor) in [(0, "spdk", 2.0), (1, "io_uring", 1.0)] {
        let Compared { model: Figures([iops, mean, p50, p99, p999]), depth, .. } = &first.rows[row];
        let [iops, mean, p50, p99, p999] = [iops, mean, p50, p99, p999].map(|value| value.unwrap());
        let (iops, depth) = (factor * iops, depth.unwrap());
        text += &format!("randread\t4096\t{depth}\t{iops}\t{mean}\t{p50}\t{p99}\t{p999}\t{flag}\n");
    }
    let table = table(&text);
    let report = run(&table, 2);
    let share = |near| Share { near, of: 2 };
    assert_eq!(report.shares.figures, [1, 2, 2, 2, 2].map(share), "{report:#?}");
    assert_eq!(report.worst, Some(Worst { line: 2, figure: Figure::Iops }));
    let ratio = report.rows[0].ratio.of(Figure::Iops).expect("a ratio");
    assert!((0.47..0.53).contains(&ratio), "{ratio}");
    assert_eq!(report, run(&table, 1), "the threads make no difference");
}

#[test]
fn failed_run_is_left_out_with_its_message() {
    // The buffers of such a depth do not fit.
    let plan = plan("gen4", &[("host.memory", "160 MiB")]);
    let text = "workload\tbs\tqd\tiops\tflag\nrandread\t1048576\t4000\t900000\tspdk\n";
    let effort = Effort { length: Length::WHOLE, threads: 1 };
    let report = validate(&plan, &table(text), effort, &|_, _| ()).expect("a report");
    assert_eq!((report.rows.len(), report.left_out.len()), (0, 1));
    assert!(report.left_out[0].why.starts_with("the run fails: "), "{:?}", report.left_out);
}

#[test]
fn percentiles_and_means_are_in_microseconds_with_the_host_cost_of_a_kernel() {
    let text = "workload\tbs\tqd\tiops\tflag\nrandread\t4096\t1\t40000\tlibaio\n\
        randread\t4096\t1\t40000\tspdk\n";
    let plan = plan("gen4", &[("host.costs.block driver", "20 us")]);
    let report = validate(&plan, &table(text), EFFORT, &|_, _| ()).expect("a report");
    for figure in [Figure::Mean, Figure::P50, Figure::P99] {
        let of = |row: usize| report.rows[row].model.of(figure).expect("a figure");
        let apart = of(0) - of(1);
        assert!((19.9..20.1).contains(&apart), "{figure:?}: {apart} us");
    }
}

#[test]
fn failed_operation_leaves_its_row_out() {
    let faults = "[{ name = \"bad\", what = \"status\", status = \"Unrecovered Read Error\", \
                  dnr = true, every = 20 }]";
    let plan = plan("gen4", &[("faults", faults)]);
    let text = "workload\tbs\tqd\tiops\tflag\nrandread\t4096\t1\t200000\tspdk\n";
    let report = validate(&plan, &table(text), EFFORT, &|_, _| ()).expect("a report");
    assert_eq!((report.rows.len(), report.left_out.len()), (0, 1));
    let why = &report.left_out[0].why;
    assert!(why.contains(" operations failed: "), "{why}");
}

/// Both threads together have the rates that are in the flag; the drive follows.
#[test]
fn open_loop_has_the_rates_of_its_flag() {
    let text = "workload\tbs\tiops\tflag\n\
        openloop-w10000-read\t4096\t5051\tspdk;writes=9951;reads=5051\n\
        openloop-w10000-write\t4096\t9951\tspdk;writes=9951;reads=5051\n";
    let length = Length { operations: 2_000, for_each_in_flight: 1, only: None };
    let effort = Effort { length, threads: 2 };
    let report = validate(&plan("gen4", &[]), &table(text), effort, &|_, _| ()).expect("a report");
    let ratios = report.rows.iter().map(|row| row.ratio.of(Figure::Iops).expect("a ratio"));
    let ratios: Vec<f64> = ratios.collect();
    assert_eq!(ratios.len(), 2, "{report:#?}");
    assert!(ratios.iter().all(|ratio| (0.93..1.07).contains(ratio)), "{ratios:?}");
}

#[test]
fn state_file_is_rejected() {
    let plan = plan("small-flash", &[("medium.flash.state", "none/state")]);
    let text = "workload\tbs\tqd\tiops\tflag\nrandread\t4096\t1\t9000\tspdk\n";
    let error = validate(&plan, &table(text), EFFORT, &|_, _| ()).expect_err("a file");
    assert!(error.to_string().contains("medium.flash.state: found a file"), "{error}");
    let effort = Effort { length: Length::WHOLE, threads: 1 };
    let error = validate(&plan, &table(SHORT), effort, &|_, _| ()).expect_err("a file");
    assert!(error.to_string().contains("medium.flash.state: found a file"), "{error}");
}

/// A smaller drive of the same chips, so that it is filled in seconds.
fn short_report() -> Report {
    let plan = plan("samsung-980-pro-1tb", &[("medium.flash.blocks", "30")]);
    let table = built_in::open("samsung-980-pro-1tb").unwrap_or_else(|error| panic!("{error}"));
    validate(&plan, &table, EFFORT, &|_, _| ()).unwrap_or_else(|error| panic!("{error}"))
}

/// `DOORBELL_BLESS=1` rewrites the table.
#[test]
fn short_report_of_980_pro_matches_golden_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/validate-980-pro.txt");
    let found = text::of(&short_report());
    if std::env::var_os("DOORBELL_BLESS").is_some() {
        std::fs::write(&path, &found).expect("the table can be written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        golden == found,
        "the figures of the drive have changed; DOORBELL_BLESS=1 keeps them:\n{found}"
    );
}

/// Rows of one source are one run; the largest span is the drive. Amplification
/// grows with the span, and starts at once in a drive that was written before.
#[test]
fn amplification_follows_span_and_preconditioning() {
    let text = "workload\tbs\tspan_gib\tfills_from\tfills_to\tmib_s\tiops\twa\tstate\tsource\n\
        write\t524288\t100\t0.00\t1.00\t9\t9\t1\tfresh\tx-seq-w\n\
        randwrite\t4096\t100\t0.00\t0.50\t9\t9\t1\ttransient\tx-none-a\n\
        randwrite\t4096\t100\t0.00\t0.50\t9\t9\t4\ttransient\tx-seq-b\n\
        randwrite\t4096\t100\t2.00\t3.00\t9\t9\t4\tsteady\tx-seq-b\n\
        randwrite\t4096\t60\t2.00\t3.00\t9\t9\t1\tsteady\tx-seq-c\n\
        randwrite\t4096\t100\t2.00\t3.00\t9\t9\t4\tsteady\tx-seqshuffle-d\n\
        zipf 1.200000\t4096\t100\t2.00\t3.00\t9\t9\t2\tsteady\tx-seq-e\n\
        zipf 1.200000\t4096\t100\t2.00\t3.00\t9\t9\t2\tsteady\tx-noshuffle-seq-f\n\
        fiozipf 0.8\t4096\t100\t2.00\t3.00\t9\t9\t2\tsteady\tx-seq-g\n\
        zns activeZones: 1\t4096\t100\t2.00\t3.00\t9\t9\t2\tsteady\tx-seq-g\n";
    let small = [
        ("channels", "2"),
        ("planes", "4"),
        ("blocks", "60"),
        ("word_lines", "4"),
        ("spare_per_mille", "300"),
        ("buffer", "1 MiB"),
    ];
    let small = small.map(|(key, value)| (format!("medium.flash.{key}"), value));
    let small = small.each_ref().map(|(key, value)| (&key[..], *value));
    let plan = plan("tlc", &small);
    let effort = Effort { length: Length::WHOLE, threads: 2 };
    let report = validate(&plan, &table(text), effort, &|_, _| ()).expect("a report");
    assert_eq!((report.rows.len(), report.fills.len()), (0, 8), "{report:#?}");
    let found: Vec<_> = report.fills.iter().map(|row| (row.line, row.before, row.span)).collect();
    let [fresh, sequential, shuffled] = ["nothing", "sequential", "random order"];
    let expected = [
        (2, fresh, 1.0),
        (3, fresh, 1.0),
        (4, sequential, 1.0),
        (5, sequential, 1.0),
        (6, sequential, 0.6),
        (7, shuffled, 1.0),
        (8, sequential, 1.0),
        (9, sequential, 1.0),
    ];
    assert_eq!(found, expected);
    let of = |line: usize| report.fills.iter().find(|row| row.line == line).expect("a row").model;
    assert!((0.9..1.1).contains(&of(2)), "a fresh drive has nothing to collect: {}", of(2));
    assert!(of(3) < 1.1 && of(3) + 0.5 < of(4), "{} fresh, {} filled", of(3), of(4));
    assert!(of(6) < 0.75 * of(5), "{} of a part, {} of all", of(6), of(5));
    assert!((0.95..1.05).contains(&(of(7) / of(5))), "steady: {} and {}", of(7), of(5));
    assert!(of(8) < of(5), "skewed {}, uniform {}", of(8), of(5));
    assert_ne!(of(8), of(9), "the hot places are elsewhere");
    assert_eq!(report.left_out_rows(), 2);
    let text = text::of(&report);
    assert!(text.contains("\nwithin 10 %: "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // A short run leaves them out.
    let report = validate(&plan, &table(SHORT), EFFORT, &|_, _| ()).expect("a report");
    assert_eq!((report.fills.len(), report.left_out_rows()), (0, 1));
    let other = Table { only: "randread".to_owned(), ..table(SHORT) };
    let whole = Effort { length: Length::WHOLE, ..EFFORT };
    let report = validate(&plan, &other, whole, &|_, _| ()).expect("a report");
    assert_eq!((report.fills.len(), report.left_out_rows()), (0, 1));
}

const SHORT: &str = "workload\tbs\tspan_gib\tfills_from\tfills_to\twa\tsource\n\
                     randwrite\t4096\t100\t0\t1\t1\tx-seq-a\n";

#[test]
fn amplification_of_dram_is_left_out_and_an_empty_interval_is_an_error() {
    let effort = Effort { length: Length::WHOLE, threads: 1 };
    let report = validate(&plan("gen4", &[]), &table(SHORT), effort, &|_, _| ()).expect("a report");
    assert_eq!(report.left_out[0].why, "the run fails: the plan has no flash");
    let error =
        parsed(&SHORT.replace("\t0\t1\t1\t", "\t2\t2\t1\t")).expect_err("an empty interval");
    assert_eq!(error.to_string(), "my.tsv:2: fills_to: found 2, expected more than fills_from, 2");
}

#[test]
fn table_of_amplification_is_of_the_plan_of_its_drive() {
    for name in ["solidigm-p5520-1920gb", "solidigm-p5520-1920gb-wa"] {
        let table = built_in::open(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(table.plan(), "solidigm-p5520-1920gb");
    }
}
