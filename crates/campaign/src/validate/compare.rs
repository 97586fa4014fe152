//! Model over measured, and shares of what is near.

use std::collections::BTreeMap;

use serde::Serialize;

use super::load::BESIDE;
use super::table::{Figure, Figures};

/// A ratio is near if it differs from 1 by at most this.
pub const NEAR: f64 = 0.15;

/// Figures whose worst ratio is looked for. So few operations are above p99.9 that chance moves it.
const WORST_OF: [Figure; 4] = [Figure::Iops, Figure::Mean, Figure::P50, Figure::P99];

/// A row of a table and its run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Line of the table, from 1.
    pub line: usize,
    pub workload: String,
    /// Size of an operation, bytes.
    pub block_bytes: u64,
    /// Operations that each job has in flight; none for an open loop.
    pub depth: Option<u32>,
    pub jobs: Option<u32>,
    /// `user` for a driver in user space, or `kernel`.
    pub host: &'static str,
    pub measured: Figures,
    pub model: Figures,
    /// Each figure of the model over the measured one.
    pub ratio: Figures,
}

/// Ratios that are near, and all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Share {
    pub near: usize,
    pub of: usize,
}

/// Shares of a group of rows by figure, in the order of [`Figure::ALL`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Shares {
    pub rows: usize,
    pub figures: [Share; Figure::ALL.len()],
}

/// The ratio that is furthest from 1: one over it is as far as it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// Line of the table, from 1.
    pub line: usize,
    pub figure: Figure,
}

impl Shares {
    /// Counts the ratios of these rows that are within [`NEAR`].
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a Compared>) -> Shares {
        let mut shares = Shares::default();
        for row in rows {
            shares.rows += 1;
            for (share, ratio) in shares.figures.iter_mut().zip(row.ratio.0) {
                let Some(ratio) = ratio else { continue };
                share.of += 1;
                share.near += usize::from(is_near(ratio));
            }
        }
        shares
    }
}

/// Whether a ratio of model over measured is within 15 % of 1.
pub fn is_near(ratio: f64) -> bool {
    // 1.15 less 1 is more than 0.15 in binary.
    (ratio - 1.0).abs() <= NEAR + 1e-9
}

/// Shares by group of workloads and size of an operation in bytes.
pub fn by_workload(rows: &[Compared]) -> BTreeMap<(String, u64), Shares> {
    let mut groups: BTreeMap<(String, u64), Vec<&Compared>> = BTreeMap::new();
    for row in rows {
        groups.entry((group(&row.workload), row.block_bytes)).or_default().push(row);
    }
    groups.into_iter().map(|(key, rows)| (key, Shares::of(rows))).collect()
}

/// The workload without its rate, or without the number of processes beside a reader.
fn group(workload: &str) -> String {
    if let Some((_, kind)) =
        workload.strip_prefix("openloop-w").and_then(|rest| rest.split_once('-'))
    {
        return format!("openloop {kind}");
    }
    match workload.strip_prefix(BESIDE).and_then(|load| load.rsplit_once("-x")) {
        Some((load, _)) => format!("beside {load}"),
        None => workload.to_owned(),
    }
}

/// The worst ratio of all rows, the first of equal ones.
pub fn worst(rows: &[Compared]) -> Option<Worst> {
    let mut worst: Option<(f64, Worst)> = None;
    for row in rows {
        for figure in WORST_OF {
            let Some(ratio) = row.ratio.of(figure) else { continue };
            let far = ratio.ln().abs();
            if worst.as_ref().is_none_or(|(farthest, _)| far > *farthest) {
                worst = Some((far, Worst { line: row.line, figure }));
            }
        }
    }
    worst.map(|(_, worst)| worst)
}
