//! Fits: hidden values, keys without effect, rows held out, and the plan that comes out.

use std::fmt::Write as _;
use std::path::Path;

use campaign::fit::{self, Fit, FitError, Key, Options, Precision, Value};
use campaign::validate::compare::Share;
use campaign::validate::{Effort, Figure, Length, Table, validate};
use plan::Plan;

const LENGTH: Length = Length { operations: 400, for_each_in_flight: 20, only: None };

fn plan(sets: &[(&str, &str)]) -> Plan {
    let sets = [&[("medium.flash.start", "scattered")], sets].concat();
    Plan::open("small-flash", &sets).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Reads of 4 and 16 KiB by depth, as this plan has them.
fn measured(plan: &Plan) -> Table {
    let loads = [4096, 16_384].into_iter().flat_map(|bytes| [1, 4, 16].map(|depth| (bytes, depth)));
    let loads: Vec<(u32, u32)> = loads.collect();
    let table = |figures: &dyn Fn(usize) -> [f64; 4]| {
        let mut text = "workload\tbs\tqd\tflag\tiops\tmean_us\tp50_us\tp99_us\n".to_owned();
        for (at, (bytes, depth)) in loads.iter().enumerate() {
            let [iops, mean, p50, p99] = figures(at);
            let figures = format!("{iops}\t{mean}\t{p50}\t{p99}");
            writeln!(text, "randread\t{bytes}\t{depth}\tspdk\t{figures}").expect("a string");
        }
        Table::parse(Path::new("mine.tsv"), &text).unwrap_or_else(|error| panic!("{error}"))
    };
    let guess = table(&|at| [10_000.0 * f64::from(loads[at].1), 1.0, 1.0, 1.0]);
    let effort = Effort { length: LENGTH, threads: 2 };
    let report = validate(plan, &guess, effort, &|_, _| ()).expect("a report");
    table(&|at| {
        let of = |figure| report.rows[at].model.of(figure).expect("a figure");
        [Figure::Iops, Figure::Mean, Figure::P50, Figure::P99].map(of)
    })
}

fn options(keys: &[&str]) -> Options {
    let key = |text: &&str| Key::parse(text).unwrap_or_else(|error| panic!("{error}"));
    Options {
        keys: keys.iter().map(key).collect(),
        length: LENGTH,
        tries: 60,
        held_percent: 25,
        seed: 1,
        threads: 2,
    }
}

fn value<'f>(fit: &'f Fit, key: &str) -> &'f Value {
    fit.keys.iter().find(|value| value.key.ends_with(key)).expect("a key of the fit")
}

fn us(value: &Value) -> f64 {
    plan::units::parse_span(&value.to).expect("a time").as_s_f64() * 1e6
}

/// Reads determine the time of a read and not that of a program. The rows that were held out agree as well
/// as those that were fitted.
#[test]
fn hidden_value_is_found_and_key_without_effect_named() {
    let hidden = [("medium.flash.times.read", "47 us"), ("medium.flash.times.program", "1.1 ms")];
    let table = measured(&plan(&hidden));
    let options = options(&[
        "medium.flash.times.read=10us..300us",
        "medium.flash.times.program=100us..5ms",
        "medium.flash.dies=1..4",
    ]);
    let start = plan(&[]);
    let run = |threads| {
        let options = Options { threads, ..options.clone() };
        fit::fit(&start, &table, &options, &|_| ()).unwrap_or_else(|error| panic!("{error}"))
    };
    let found = run(2);
    let read = value(&found, "read");
    assert!((us(read) / 47.0 - 1.0).abs() < 0.1, "{found:#?}");
    assert!(matches!(read.precision, Precision::Determined { .. }), "{found:#?}");
    assert_eq!(value(&found, "program").precision, Precision::NoEffect);
    assert_eq!(
        value(&found, "dies").to,
        start.medium.flash.as_ref().unwrap().spec.geometry.dies.to_string()
    );
    assert!(found.held.rows > 0 && found.fitted.rows + found.held.rows == 6, "{found:#?}");
    // Four operations of a run are above p99: too few.
    let all_near =
        |of: &fit::Agreement| of.after.figures[..3].iter().all(|Share { near, of }| near == of);
    assert!(all_near(&found.fitted) && all_near(&found.held), "{found:#?}");
    assert!(found.held.median_before > found.held.median_after, "{found:#?}");
    assert_eq!(found, run(1), "the threads make no difference");
    let text = fit::text::of(&found);
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");

    let written = fit::of_fit(&start, "small-flash", &found);
    let fitted =
        Plan::parse(&written, "mine.toml").unwrap_or_else(|errors| panic!("{errors}\n{written}"));
    assert_eq!((fitted.name.as_str(), fitted.drive.as_deref()), ("mine", Some("mine")));
    let of_plan = fitted.sources.iter().find(|of| of.key == "medium.flash.times.read").unwrap();
    assert!(of_plan.is_fitted() && of_plan.value == read.to, "{of_plan:?}");
    // Keys without effect stay the base's, and settings of the start stay.
    let flash = |plan: &Plan| plan.medium.flash.clone().expect("flash");
    assert_eq!(flash(&fitted).timing.program, flash(&start).timing.program);
    assert_eq!(flash(&fitted).start, flash(&start).start);
}

/// The sum of both times decides a read at depth 1, and no other row separates them.
#[test]
fn confounded_keys_are_named() {
    let start = plan(&[("medium.flash.times.command", "40 us")]);
    let table = measured(&start);
    let only =
        |row: &campaign::validate::Row| row.depth == Some(1) && row.block_bytes == Some(4096);
    let rows: Vec<_> = table.rows.iter().filter(|row| only(row)).cloned().collect();
    let table = Table { rows, ..table };
    let keys = ["medium.flash.times.read=10us..300us", "medium.flash.times.command=1us..300us"];
    let options = Options { held_percent: 0, tries: 20, ..options(&keys) };
    let found = fit::fit(&start, &table, &options, &|_| ()).expect("a fit");
    for (key, other) in [("read", "command"), ("command", "read")] {
        let Precision::Uncertain { confounded_with: Some(with), .. } =
            &value(&found, key).precision
        else {
            panic!("{found:#?}")
        };
        assert!(with.ends_with(other), "{found:#?}");
    }
}

/// The loads that are held out depend on the seed alone.
#[test]
fn unknown_keys_missing_rows_and_failing_runs_are_refused() {
    let (start, table) = (plan(&[]), measured(&plan(&[])));
    let with = |options: Options, table: &Table| {
        fit::fit(&start, table, &options, &|_| ()).expect_err("an error").to_string()
    };
    let unknown = options(&["medium.flash.times.reed=10us..300us"]);
    assert!(with(unknown, &table).contains("medium.flash.times.reed: found an unknown key"));
    let claim = Table {
        rows: vec![campaign::validate::Row {
            workload: "spec-read".into(),
            ..table.rows[0].clone()
        }],
        ..table.clone()
    };
    let none = with(options(&["medium.flash.times.read=10us..300us"]), &claim);
    assert!(
        none.starts_with("mine: found 1 rows, 0 of their loads held out, expected a row"),
        "{none}"
    );
    let mut beyond = table.clone();
    for row in &mut beyond.rows {
        (row.depth, row.block_bytes) = (Some(60_000), Some(1 << 20));
    }
    let start = Plan::open("gen4", &[]).expect("a plan");
    let options = options(&["host.costs.submit=10ns..1us"]);
    let error = fit::fit(&start, &beyond, &options, &|_| ()).expect_err("no run has room");
    assert!(error.to_string().starts_with("mine: every run fails with the plan"), "{error}");
    let error = Key::parse("medium.flash.dies=1").expect_err("a range");
    assert!(matches!(error, FitError::Key { .. }), "{error}");
}
