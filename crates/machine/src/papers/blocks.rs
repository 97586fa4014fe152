//! What the descriptor-block paper does not have: fixed sizes against adaptive ones by the host's
//! turnaround, a rule that gathers, subsets, and the prefetch by link. All numbers are ours alone.

use runtime::Span;

use super::adaptive::{Shown, kiops, of_size, places, table, without_software};
use super::measure::Machine;
use super::threads::{Done, Threads, run};
use super::{Claim, Exhibit, Table};
use crate::interfaces::Block;
use crate::world::RunError;

/// Threads of the comparison.
const THREADS: [u32; 10] = [1, 2, 4, 8, 16, 24, 32, 40, 48, 64];
/// What a thread does between two requests, us.
const TURNAROUNDS: [u64; 4] = [1, 2, 5, 10];
/// The device's largest block.
const LARGEST: u32 = 32;

pub(super) fn exhibits(machine: &Machine) -> Result<Vec<Exhibit>, RunError> {
    let mut exhibits = sizing(machine)?;
    exhibits.push(subsets(machine)?);
    exhibits.push(prefetch(machine)?);
    Ok(exhibits)
}

fn thinking(threads: u32, us: u64) -> Threads {
    let window = Span::ms(20);
    Threads { think: Span::us(us), window, ..Threads::reading(threads) }
}

/// The best of the fixed sizes that so many threads can fill.
fn best_fixed(machine: &Machine, threads: u32, us: u64) -> Result<(u32, Done), RunError> {
    let mut sizes = vec![1, 2, 4, 8, 16, 24, LARGEST, threads, threads / 2, threads / 3];
    sizes.retain(|size| (1..=LARGEST.min(threads)).contains(size));
    sizes.sort_unstable();
    sizes.dedup();
    let mut best = None::<(u32, Done)>;
    for size in sizes {
        let done = run::<Block>(&of_size(machine, size), thinking(threads, us))?;
        if best.is_none_or(|(_, so_far)| done.kiops > so_far.kiops) {
            best = Some((size, done));
        }
    }
    Ok(best.expect("a block of one can always be filled"))
}

fn sizing(machine: &Machine) -> Result<Vec<Exhibit>, RunError> {
    let machine = without_software(machine);
    let gathering = machine.with("block.sizing", "gathering");
    let (mut fixed, mut paper, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    let (mut high, mut least, mut added) = (f64::INFINITY, f64::INFINITY, 0.0_f64);
    let mut few = f64::INFINITY;
    for us in TURNAROUNDS {
        let (mut of_fixed, mut of_paper, mut of_ours) = (Vec::new(), Vec::new(), Vec::new());
        for threads in THREADS {
            let (size, best) = best_fixed(&machine, threads, us)?;
            let adaptive = run::<Block>(&machine, thinking(threads, us))?;
            let gathered = run::<Block>(&gathering, thinking(threads, us))?;
            of_fixed.push(format!("{} ({size})", kiops(&best)));
            let percent = |done: &Done| 100.0 * done.kiops / best.kiops;
            of_paper.push(format!("{:.1}", percent(&adaptive)));
            of_ours.push(format!("{:.1}", percent(&gathered)));
            if threads >= 2 * LARGEST {
                high = high.min(percent(&adaptive));
            }
            least = least.min(percent(&gathered));
            if threads <= LARGEST / 2 {
                few = few.min(percent(&gathered));
            }
            if threads == 1 {
                added = added.max(gathered.us - adaptive.us);
            }
        }
        fixed.push((format!("{us} us"), of_fixed));
        paper.push((format!("{us} us"), of_paper));
        ours.push((format!("{us} us"), of_ours));
    }
    let at = || places(&THREADS);
    Ok(vec![
        table(
            "The best fixed size, kIOPS (and the size), by turnaround and threads; reads of 4 KiB",
            "turnaround",
            at(),
            &fixed,
        ),
        table("The paper's adaptive sizing, percent of that", "turnaround", at(), &paper),
        table("Our gathering, percent of that", "turnaround", at(), &ours),
        Exhibit::Claim(Claim {
            what: "Adaptive against the best fixed size, from twice the largest block on",
            shape: "at least 98 %".into(),
            holds: high >= 98.0,
            number: "the least, percent",
            ours: high,
            assumed: Vec::new(),
        }),
        aim(least),
        Exhibit::Claim(Claim {
            what: "Gathering against the best fixed size, up to half the largest block's threads",
            shape: "at least 98 %".into(),
            holds: few >= 98.0,
            number: "the least, percent",
            ours: few,
            assumed: Vec::new(),
        }),
        Exhibit::Claim(Claim {
            what: "Gathering at depth 1",
            shape: "a lone thread waits for nobody: no latency is added".into(),
            holds: added <= 0.0,
            number: "us added",
            ours: added,
            assumed: Vec::new(),
        }),
    ])
}

/// What gathering was to reach, and does or does not: said, and no shape of the paper's.
fn aim(least: f64) -> Exhibit {
    let reached = if least >= 98.0 { "reached" } else { "MISSED" };
    let line = ["98.0".to_owned(), format!("{least:.1}"), reached.to_owned()];
    Exhibit::Table(Table {
        what: "Our own aim for gathering, at every number of threads and turnaround, percent"
            .into(),
        columns: ["at least", "the least", ""].map(String::from).into(),
        lines: vec![line.into()],
        notes: vec!["why it is missed there is not explained yet".into()],
    })
}

/// Between the whole block and each descriptor.
fn subsets(machine: &Machine) -> Shown {
    let fed = without_software(machine);
    let groups = ["1", "2", "4", "8", "16"];
    let (mut rate, mut latency) = (Vec::new(), Vec::new());
    for group in groups {
        let of = of_size(&fed, 32).with("block.returned", "subsets").with("block.subset", group);
        let done = run::<Block>(&of, Threads::reading(96))?;
        let few = run::<Block>(&of, Threads::reading(32))?;
        rate.push(kiops(&done));
        latency.push(format!("{:.1}", few.us));
    }
    let whole = of_size(&fed, 32);
    rate.push(kiops(&run::<Block>(&whole, Threads::reading(96))?));
    latency.push(format!("{:.1}", run::<Block>(&whole, Threads::reading(32))?.us));
    let mut at = places(&groups);
    at.push("whole".into());
    let rows = [("kIOPS, 96 threads".into(), rate), ("us, 32 threads".into(), latency)];
    Ok(table("Blocks of 32, returned in subsets: reads of 4 KiB", "subset", at, &rows))
}

/// The paper's future enhancement. Its link decides what there is to hide.
fn prefetch(machine: &Machine) -> Shown {
    let fed = without_software(machine);
    let links = ["gen1", "gen2", "gen3", "gen4"];
    let mut rows = Vec::new();
    for size in [4, 8, 32] {
        for (share, ahead) in [("half", size / 2), ("all", size)] {
            let mut cells = Vec::new();
            for link in links {
                let of = of_size(&fed.with("link.generation", link), size);
                let none = run::<Block>(&of, Threads::reading(3 * size))?;
                let ahead = of.with("block.ahead", &ahead.to_string());
                let some = run::<Block>(&ahead, Threads::reading(3 * size))?;
                let gain = 100.0 * (some.kiops / none.kiops - 1.0);
                cells.push(format!("{:.1} -> {:.1}, {gain:+.1} %", none.kiops, some.kiops));
            }
            rows.push((format!("blocks of {size}, {share} ahead"), cells));
        }
    }
    let what =
        "Commands of the next block taken before it is announced (section II, future work), kIOPS";
    Ok(table(what, "link x4", places(&links), &rows))
}
