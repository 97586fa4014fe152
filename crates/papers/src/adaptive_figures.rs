//! Figures 5 to 8 of the descriptor-block paper.

use super::ExhibitError;
use super::adaptive::{BYTES, SIZES, THREADS, WAYS, adaptive, by_bytes, curves, fixed, machine};
use super::measure::Machine;
use super::setup::Setup;
use super::sweep::{counts, curve, kiops, places, table, throughput};
use super::threads::Done;
use report::model::paper::{Axis, Exhibit, Figure, Series, Table};

pub(super) fn all(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let machine = machine(setup);
    let mut exhibits = vec![sources()];
    exhibits.extend(figure_5(&machine)?);
    exhibits.extend(figure_6(&machine)?);
    exhibits.extend(figure_7(&machine)?);
    exhibits.extend(figure_8(&machine)?);
    Ok(exhibits)
}

fn sources() -> Exhibit {
    let line = |what: &str, whose: &str| vec![what.to_owned(), whose.to_owned()];
    Table::exhibit(
        "What is the paper's, and what is ours alone",
        &["", "whose"],
        vec![
            line(
                "the mechanism, its parts and their names; PCIe Gen2 x4; one processor",
                "the paper's",
            ),
            line(
                "the order of curves, where they rise and where they are flat",
                "the paper's, checked",
            ),
            line("every kIOPS, us and MiB/s below", "ours alone: the paper prints none"),
            line("fixed against adaptive by turnaround, gathering, prefetch by link", "ours alone"),
        ],
        &["with no number of the paper's there is nothing to be unexplained, and nothing is"],
    )
}

fn us(done: &Done) -> String {
    if done.kiops == 0.0 { "-".into() } else { format!("{:.1}", done.us) }
}

fn figure_5(machine: &Machine) -> Result<Vec<Exhibit>, ExhibitError> {
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for (way, runs) in curves(machine)?.iter().enumerate() {
        let (letter, name, ..) = WAYS[way % 3];
        let name = format!("{}, {name}", if way >= 3 { "write" } else { "read" });
        rows.push((name.clone(), runs.iter().map(kiops).collect()));
        if way < 3 {
            series.push(curve(letter, name, &SIZES, runs));
        }
    }
    let caption =
        "Figure 5: the interface alone, constantly fed, 4 KiB, kIOPS by descriptors in a block";
    Ok(vec![
        table(caption, "descriptors", places(&SIZES), &rows),
        Figure::exhibit(
            "Figure 5",
            format!("{caption}: reads"),
            (counts("descriptors in a block"), throughput()),
            series,
        ),
    ])
}

fn figure_6(machine: &Machine) -> Result<Vec<Exhibit>, ExhibitError> {
    let mut exhibits = Vec::new();
    for write in [false, true] {
        let runs = fixed(machine, write)?;
        let kind = if write { "writes" } else { "reads" };
        let rows = |cell: fn(&Done) -> String| -> Vec<_> {
            let row = |(curve, size): (&Vec<Done>, u32)| {
                (format!("blocks of {size}"), curve.iter().map(cell).collect())
            };
            runs.iter().zip(SIZES).map(row).collect()
        };
        let caption = format!("Figure 6: only full blocks, 4 KiB {kind}, kIOPS by threads");
        exhibits.push(table(&caption, "threads", places(&THREADS), &rows(kiops)));
        let caption = format!("Figure 6, the same runs: mean latency of {kind}, us by threads");
        exhibits.push(table(&caption, "threads", places(&THREADS), &rows(us)));
        if !write {
            let series =
                runs.iter().zip(SIZES).zip("abcdef".chars()).map(|((runs, size), letter)| {
                    curve(letter, format!("blocks of {size}"), &THREADS, runs)
                });
            exhibits.push(Figure::exhibit(
                "Figure 6",
                "Figure 6: only full blocks, 4 KiB reads",
                (counts("threads"), throughput()),
                series.collect(),
            ));
        }
    }
    Ok(exhibits)
}

fn figure_7(machine: &Machine) -> Result<Vec<Exhibit>, ExhibitError> {
    let (mut rows, mut rates, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    for (write, letter, kind) in [(false, 'r', "read"), (true, 'w', "write")] {
        let runs = adaptive(machine, write)?;
        rows.push((format!("{kind}, kIOPS"), runs.iter().map(kiops).collect()));
        rows.push((format!("{kind}, us"), runs.iter().map(us).collect()));
        rates.push(curve(letter, kind.into(), &THREADS, &runs));
        let points = THREADS.iter().zip(&runs).map(|(x, done)| (f64::from(*x), done.us));
        latencies.push(Series::ours(letter, kind, points));
    }
    let figure = |caption: &str, y, series| {
        Figure::exhibit("Figure 7", caption, (counts("threads"), y), series)
    };
    let latency = Axis::linear("mean latency", "us");
    Ok(vec![
        table(
            "Figure 7: the adaptive driver, 4 KiB, by threads",
            "threads",
            places(&THREADS),
            &rows,
        ),
        figure("Figure 7: the adaptive driver, 4 KiB", throughput(), rates),
        figure("Figure 7, the same runs", latency, latencies),
    ])
}

fn figure_8(machine: &Machine) -> Result<Vec<Exhibit>, ExhibitError> {
    let (mut rows, mut series) = (Vec::new(), Vec::new());
    for (write, letter, kind) in [(false, 'r', "read"), (true, 'w', "write")] {
        let runs = by_bytes(machine, write)?;
        let rates: Vec<_> = runs.iter().zip(BYTES).map(|(done, bytes)| done.mib_s(bytes)).collect();
        rows.push((format!("{kind}, MiB/s"), rates.iter().map(|r| format!("{r:.0}")).collect()));
        rows.push((format!("{kind}, us"), runs.iter().map(us).collect()));
        let points = BYTES.iter().zip(rates).map(|(x, rate)| (f64::from(*x), rate));
        series.push(Series::ours(letter, kind, points));
    }
    let names = BYTES.iter().map(|b| match *b {
        b if b < 1024 => format!("{b}B"),
        b if b < 1 << 20 => format!("{}K", b >> 10),
        b => format!("{}M", b >> 20),
    });
    Ok(vec![
        table("Figure 8: one thread, by bytes of a request", "bytes", names.collect(), &rows),
        Figure::exhibit(
            "Figure 8",
            "Figure 8: one thread",
            (Axis::logarithmic("a request", "B"), Axis::linear("throughput", "MiB/s")),
            series,
        ),
    ])
}

/// Figures 5 to 8 as text, compared to the last digit, so that each change of the model shows what it does
/// to them.
/// `DOORBELL_BLESS=1 cargo test -p doorbell-papers figures` rewrites them. Figures 6 and 8 take long in a
/// debug build and need `DOORBELL_HEAVY=1`.
#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;

    type Made = Result<Vec<Exhibit>, ExhibitError>;

    fn is_golden(name: &str, make: fn(&Machine) -> Made) {
        let mut text = String::new();
        for exhibit in make(&machine(&Setup::new())).expect("runs") {
            if let Exhibit::Table(_) = exhibit {
                writeln!(text, "{exhibit}").expect("a string");
            }
        }
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let file = golden.join(format!("{name}.txt"));
        if std::env::var_os("DOORBELL_BLESS").is_some() {
            std::fs::write(&file, &text).expect("the golden directory");
        }
        let kept = std::fs::read_to_string(&file).expect("a golden file");
        assert_eq!(text, kept, "{}: DOORBELL_BLESS=1 rewrites it", file.display());
    }

    fn is_heavy() -> bool {
        std::env::var_os("DOORBELL_HEAVY").is_some()
    }

    #[test]
    fn figures_5_and_7_are_golden() {
        is_golden("figure-5", figure_5);
        is_golden("figure-7", figure_7);
    }

    #[test]
    fn figures_6_and_8_are_golden() {
        if is_heavy() {
            is_golden("figure-6", figure_6);
            is_golden("figure-8", figure_8);
        }
    }
}
