//! Exhibits beyond the descriptor-block paper: fixed against adaptive sizes by the host's turnaround, a
//! gathering rule, subsets, and the prefetch by link. All numbers are from this model.

use runtime::Span;

use super::ExhibitError;
use super::adaptive::machine;
use super::changes::{Change, instead};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::measure::Machine;
use super::setup::Setup;
use super::sweep::{Shown, kiops, of_size, places, table, without_software};
use super::threads::{Done, Threads, run};
use report::model::paper::{Exhibit, Rule};

/// Thread counts of the comparison.
const THREADS: [u32; 10] = [1, 2, 4, 8, 16, 24, 32, 40, 48, 64];
/// Think time of a thread between two requests, us.
const TURNAROUNDS: [u64; 4] = [1, 2, 5, 10];
/// Maximum block size of the device.
const LARGEST: u32 = 32;

/// Mutation: the paper's sizing is blocks of one.
const BLOCKS_OF_ONE: &str = "blocks of one";
/// Mutation: gathering is blocks of two that wait.
const BLOCKS_OF_TWO: &str = "blocks of two";

pub(super) fn tables(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let machine = &machine(setup);
    let mut exhibits = sizing(setup)?;
    exhibits.push(subsets(machine)?);
    exhibits.push(prefetch(machine)?);
    Ok(exhibits)
}

fn grid(setup: &Setup) -> Result<Grid, ExhibitError> {
    without_software(&machine(setup)).once("grid", Grid::measure)
}

/// Not a row of the paper: its rule against the best fixed size.
pub(super) const FULL: Spec = Spec {
    subject: Subject {
        row: "A4",
        title: "adaptive over best fixed size, 64 threads",
        claim: "ours alone: the paper's sizing beside the best fixed size, from twice the largest block on",
        unit: "%",
    },
    mechanism: "a block takes all that are pending",
    rule: Rule::Shape,
    shape: "at least 98 % at every turnaround",
    paper: None,
    see: |setup| {
        let grid = grid(setup)?;
        Ok(Seen::of(grid.full, grid.full >= 98.0))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "blocks of one at every load",
        settings: &[Change::Switch(BLOCKS_OF_ONE)],
    }],
    expected: Expected::Holds,
};

pub(super) const GATHERING: Spec = Spec {
    subject: Subject {
        row: "A4",
        title: "gathering over best fixed size, the least",
        claim: "ours alone: gathering beside the best fixed size, at every number of threads and turnaround",
        unit: "%",
    },
    mechanism: "a block waits for requests that return soon",
    rule: Rule::Shape,
    shape: "at least 98 %",
    paper: None,
    see: |setup| {
        let grid = grid(setup)?;
        Ok(Seen::of(grid.gathering, grid.gathering >= 98.0))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "the paper's sizing in its place",
        settings: &[instead("block.sizing", "gathering", "adaptive")],
    }],
    expected: Expected::Holds,
};

pub(super) const ALONE: Spec = Spec {
    subject: Subject {
        row: "A4",
        title: "latency that gathering adds to one thread",
        claim: "ours alone: gathering at depth 1",
        unit: "us",
    },
    mechanism: "a lone thread waits for no other",
    rule: Rule::Shape,
    shape: "no latency is added",
    paper: None,
    see: |setup| {
        let grid = grid(setup)?;
        Ok(Seen::of(grid.added, grid.added <= 0.0))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "blocks of two in its place, which wait for 5 us",
        settings: &[Change::Switch(BLOCKS_OF_TWO)],
    }],
    expected: Expected::Holds,
};

fn thinking(threads: u32, us: u64) -> Threads {
    let window = Span::ms(20);
    Threads { think: Span::us(us), window, ..Threads::reading(threads) }
}

/// Best fixed size that this many threads can fill.
fn best_fixed(machine: &Machine, threads: u32, us: u64) -> Result<(u32, Done), ExhibitError> {
    let mut sizes = vec![1, 2, 4, 8, 16, 24, LARGEST];
    sizes.extend((1..=4).map(|groups| threads / groups));
    sizes.retain(|size| (1..=LARGEST.min(threads)).contains(size));
    sizes.sort_unstable();
    sizes.dedup();
    let mut best = None::<(u32, Done)>;
    for size in sizes {
        let done = run(&of_size(machine, size), thinking(threads, us))?;
        if best.is_none_or(|(_, so_far)| done.kiops > so_far.kiops) {
            best = Some((size, done));
        }
    }
    Ok(best.expect("a block of one can always be filled"))
}

type Rows = Vec<(String, Vec<String>)>;

/// Comparison of the two rules with the best fixed size.
#[derive(Clone)]
struct Grid {
    /// kIOPS at that size, and percentages of it by the paper's rule and by ours.
    rows: [Rows; 3],
    /// Lowest percentage of the paper's rule where blocks are always full.
    full: f64,
    /// Lowest percentage elsewhere, and where.
    below: (f64, String),
    /// Lowest percentage of our rule.
    gathering: f64,
    /// Maximum latency that our rule adds for a single thread, us.
    added: f64,
}

impl Grid {
    fn measure(machine: &Machine) -> Result<Grid, ExhibitError> {
        let gathering = match machine.is_switched(BLOCKS_OF_TWO) {
            true => of_size(machine, 2).with("block.linger", "\"5 us\""),
            false => machine.with("block.sizing", "gathering"),
        };
        let paper = match machine.is_switched(BLOCKS_OF_ONE) {
            true => of_size(machine, 1),
            false => machine.clone(),
        };
        let none = f64::INFINITY;
        let mut grid = Grid {
            rows: Default::default(),
            full: none,
            below: (none, String::new()),
            gathering: none,
            added: 0.0,
        };
        for us in TURNAROUNDS {
            let mut cells: [Vec<String>; 3] = Default::default();
            for threads in THREADS {
                let (size, best) = best_fixed(machine, threads, us)?;
                let adaptive = run(&paper, thinking(threads, us))?;
                let gathered = run(&gathering, thinking(threads, us))?;
                let percent = |done: &Done| 100.0 * done.kiops / best.kiops;
                cells[0].push(format!("{} ({size})", kiops(&best)));
                cells[1].push(format!("{:.1}", percent(&adaptive)));
                cells[2].push(format!("{:.1}", percent(&gathered)));
                if threads >= 2 * LARGEST {
                    grid.full = grid.full.min(percent(&adaptive));
                } else if percent(&adaptive) < grid.below.0 {
                    grid.below = (percent(&adaptive), format!("{threads} threads, {us} us"));
                }
                grid.gathering = grid.gathering.min(percent(&gathered));
                if threads == 1 {
                    grid.added = grid.added.max(gathered.us - adaptive.us);
                }
            }
            for (rows, cells) in grid.rows.iter_mut().zip(cells) {
                rows.push((format!("{us} us"), cells));
            }
        }
        Ok(grid)
    }
}

fn sizing(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let grid = grid(setup)?;
    let [fixed, paper, gathering] = &grid.rows;
    let below = format!(
        "the least below {} threads: {:.1}, {}; there a block takes all that are pending, and those that \
         return while it is in progress",
        2 * LARGEST,
        grid.below.0,
        grid.below.1
    );
    let notes = [
        &below[..],
        "goes as a block of its own. Each block is paid for, and the device idles where the turnaround is \
         longer than the block",
        "of the few; which thread is in which block is left to chance, and stays as it is",
    ];
    Ok(vec![
        by_turnaround(
            "The best fixed size, kIOPS (and the size), by turnaround and threads; reads of 4 KiB",
            fixed,
            &[],
        ),
        by_turnaround("The paper's adaptive sizing, percent of that", paper, &notes),
        by_turnaround("Our gathering, percent of that", gathering, &[]),
    ])
}

fn by_turnaround(what: &str, rows: &[(String, Vec<String>)], notes: &[&str]) -> Exhibit {
    let mut exhibit = table(what, "turnaround", places(&THREADS), rows);
    if let Exhibit::Table(table) = &mut exhibit {
        table.notes = notes.iter().map(|note| (*note).to_owned()).collect();
    }
    exhibit
}

/// Completion by subsets, between the whole block and each descriptor.
fn subsets(machine: &Machine) -> Shown {
    let fed = without_software(machine);
    let groups = ["1", "2", "4", "8", "16"];
    let (mut rate, mut latency) = (Vec::new(), Vec::new());
    for group in groups {
        let of = of_size(&fed, 32).with("block.returned", "subsets").with("block.subset", group);
        let done = run(&of, Threads::reading(96))?;
        let few = run(&of, Threads::reading(32))?;
        rate.push(kiops(&done));
        latency.push(format!("{:.1}", few.us));
    }
    let whole = of_size(&fed, 32);
    rate.push(kiops(&run(&whole, Threads::reading(96))?));
    latency.push(format!("{:.1}", run(&whole, Threads::reading(32))?.us));
    let mut at = places(&groups);
    at.push("whole".into());
    let rows = [("kIOPS, 96 threads".into(), rate), ("us, 32 threads".into(), latency)];
    Ok(table("Blocks of 32, returned in subsets: reads of 4 KiB", "subset", at, &rows))
}

/// Prefetch, the paper's future enhancement. The link determines the latency that it can hide.
fn prefetch(machine: &Machine) -> Shown {
    let fed = without_software(machine);
    let links = ["gen1", "gen2", "gen3", "gen4"];
    let mut rows = Vec::new();
    for size in [4, 8, 32] {
        for (share, ahead) in [("half", size / 2), ("all", size)] {
            let mut cells = Vec::new();
            for link in links {
                let of = of_size(&fed.with("link.generation", link), size);
                let none = run(&of, Threads::reading(3 * size))?;
                let ahead = of.with("block.ahead", &ahead.to_string());
                let some = run(&ahead, Threads::reading(3 * size))?;
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
