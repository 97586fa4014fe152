//! Machines and tables of the exhibits with descriptor blocks.

use super::ExhibitError;
use super::measure::Machine;
use super::threads::Done;
use report::model::paper::{Axis, Exhibit, Series, Table};

pub(super) type Shown = Result<Exhibit, ExhibitError>;

/// Sets the cost of all software above the driver to zero.
pub(super) fn without_software(machine: &Machine) -> Machine {
    ["benchmark", "\"system call\"", "\"block driver\"", "\"context switch\""]
        .iter()
        .fold(machine.clone(), |machine, cost| {
            machine.with(&format!("host.costs.{cost}"), "\"0 ns\"")
        })
}

/// Uses full blocks of this size only.
pub(super) fn of_size(machine: &Machine, size: u32) -> Machine {
    let sized = machine.with("block.sizing", "static").with("block.static_size", &size.to_string());
    sized.with("block.linger", "\"1 s\"")
}

pub(super) fn places<T: ToString>(of: &[T]) -> Vec<String> {
    of.iter().map(T::to_string).collect()
}

/// A table of numbers: a line per row name, a column per place.
pub(super) fn table(
    caption: &str,
    head: &str,
    at: Vec<String>,
    rows: &[(String, Vec<String>)],
) -> Exhibit {
    let lines = rows
        .iter()
        .map(|(name, cells)| std::iter::once(name.clone()).chain(cells.iter().cloned()).collect())
        .collect();
    let columns = std::iter::once(head.to_owned()).chain(at).collect();
    Exhibit::Table(Table { caption: caption.into(), columns, lines, notes: Vec::new() })
}

pub(super) fn kiops(done: &Done) -> String {
    if done.kiops == 0.0 { "-".into() } else { format!("{:.1}", done.kiops) }
}

/// An axis of a number of things.
pub(super) fn counts(label: &str) -> Axis {
    Axis::logarithmic(label, "")
}

pub(super) fn throughput() -> Axis {
    Axis::linear("throughput", "kIOPS")
}

/// Throughput of runs by a number, kIOPS; without the runs in which nothing was done.
pub(super) fn curve(letter: char, name: String, at: &[u32], runs: &[Done]) -> Series {
    let points = at.iter().zip(runs).filter(|(_, done)| done.kiops > 0.0);
    Series::ours(letter, name, points.map(|(x, done)| (f64::from(*x), done.kiops)))
}
