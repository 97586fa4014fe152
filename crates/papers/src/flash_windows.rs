//! Coordinated collections in arrays of the flash paper's outlook (section 5): members that control their
//! collections themselves, in windows of time that the plan gives each of them.

use super::ExhibitError;
use super::changes::Change;
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::flash_arrays::{
    FIVE, Kind, P99, PARITIES, PERCENTILES, STRIPED, Tail, array_of, tail_of,
};
use super::setup::Setup;
use report::model::paper::{Axis, Exhibit, Figure, Rule, Series, Table};
use world::interfaces::{HOST_GC_ARRAY, NVME_ARRAY, Row};

/// Mutation: no member follows its windows.
const IGNORED: &str = "windows that are not followed";

/// Members of an array of five.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Members {
    /// Bridge-based SSDs, whose controllers collect.
    Bridges,
    /// One controller with the from-scratch SSD's chips each, and its collector on the host.
    Directed,
}

impl Members {
    fn name(self) -> &'static str {
        match self {
            Members::Bridges => "bridge",
            Members::Directed => "host-gc",
        }
    }

    fn of(self) -> (&'static str, &'static Row) {
        match self {
            Members::Bridges => ("flash-bridge", NVME_ARRAY),
            Members::Directed => ("flash-closer", HOST_GC_ARRAY),
        }
    }
}

fn tail(setup: &Setup, members: Members, kind: Kind) -> Result<Tail, ExhibitError> {
    let (plan, row) = members.of();
    tail_of(&array_of(&setup.machine(plan), FIVE, kind), row, kind.data(FIVE))
}

fn in_windows(setup: &Setup, members: Members, kind: Kind) -> Result<Tail, ExhibitError> {
    let agreed = if setup.is_switched(IGNORED) { "free" } else { "windows" };
    tail(setup, members, kind.agreed(agreed))
}

/// A 99th percentile of an array, windows over free.
fn ratio(
    setup: &Setup,
    members: Members,
    kind: Kind,
    of: fn(&Tail) -> f64,
) -> Result<f64, ExhibitError> {
    Ok(of(&in_windows(setup, members, kind)?) / of(&tail(setup, members, kind)?))
}

/// The ratio of five striped bridges, and those of other arrays in words.
fn seen(setup: &Setup, of: fn(&Tail) -> f64) -> Result<Seen, ExhibitError> {
    let striped = ratio(setup, Members::Bridges, STRIPED, of)?;
    let parity = ratio(setup, Members::Bridges, PARITIES, of)?;
    let directed = ratio(setup, Members::Directed, STRIPED, of)?;
    let seen = Seen::of(striped, striped < 1.0);
    Ok(seen.with(format!("with a parity {parity:.2}; by host-gc, striped, {directed:.2}")))
}

const NOT_FOLLOWED: Mutation = Mutation { change: IGNORED, settings: &[Change::Switch(IGNORED)] };

pub(super) const WRITES: Spec = Spec {
    subject: Subject {
        row: "C12",
        title: "99 % of writes, bridges in windows",
        claim: "five bridge-based SSDs need their collections co-ordinated (section 5)",
        unit: "x",
    },
    mechanism: "a member that collects ahead in its window has space when writes come in the others'",
    rule: Rule::Shape,
    shape: "the 99th percentile of writes to all members is shorter in windows than free",
    paper: None,
    see: |setup| seen(setup, |tail| tail.writes[P99]),
    swung: Swung { plans: &[], number: None },
    mutations: &[NOT_FOLLOWED],
    expected: Expected::Holds,
};

pub(super) const READS: Spec = Spec {
    subject: Subject {
        row: "C12",
        title: "99 % of reads, bridges in windows",
        claim: "five bridge-based SSDs need their collections co-ordinated (section 5)",
        unit: "x",
    },
    mechanism: "one member collects at a time",
    rule: Rule::Shape,
    shape: "the 99th percentile of reads of all members is shorter in windows than free",
    paper: None,
    see: |setup| seen(setup, |tail| tail.reads[P99]),
    swung: Swung { plans: &[], number: None },
    mutations: &[],
    expected: Expected::Departs(
        "in windows one of five members collects at any time, and a read of all members meets it; free, \
        striped members that get the same requests collect in step. No single change was found by which \
        windows shorten reads: requests of one member each take as long in windows as free",
        &[],
    ),
};

/// Tails of both kinds of members, free and in windows.
pub(super) fn exhibits(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let (mut exhibits, mut lines) = (Vec::new(), Vec::new());
    for members in [Members::Bridges, Members::Directed] {
        let mut series = Vec::new();
        for (name, kind) in [("striped", STRIPED), ("parity", PARITIES)] {
            let free = tail(setup, members, kind)?;
            let windows = in_windows(setup, members, kind)?;
            for (letter, how, tail) in [('F', "free", &free), ('W', "windows", &windows)] {
                lines.push(line(format!("{}, {name}, {how}", members.name()), tail));
                if kind == STRIPED {
                    series.push(Series::ours(letter, how, curve(tail)));
                }
            }
        }
        exhibits.push(figure(members, series));
    }
    exhibits.push(Table::exhibit(
        "Five members, collections free and in windows: requests as above, us",
        &["", "read 50 %", "99 %", "99.9 %", "max", "write 99 %", "99.9 %", "collected"],
        lines,
        &[
            "windows: of 20 ms, one member's after the other's; in its own a member collects earlier by a \
             superblock, outside of it only if writes would wait",
        ],
    ));
    Ok(exhibits)
}

fn line(name: String, tail: &Tail) -> Vec<String> {
    let Tail { reads, writes, collected } = tail;
    let us = [reads[0], reads[P99], reads[3], reads[4], writes[P99], writes[3]];
    let us = us.iter().map(|us| format!("{us:.0}"));
    [name].into_iter().chain(us).chain([collected.to_string()]).collect()
}

/// Latency of reads by rarity N: one read in N takes longer. The maximum is left out.
fn curve(tail: &Tail) -> Vec<(f64, f64)> {
    let places = PERCENTILES.iter().zip(&tail.reads).filter(|(place, _)| **place < 100_000);
    places.map(|(place, us)| (1e5 / f64::from(100_000 - place), *us)).collect()
}

fn figure(members: Members, series: Vec<Series>) -> Exhibit {
    Figure::exhibit(
        "",
        format!("Five striped members by {}: reads of all of them", members.name()),
        (Axis::logarithmic("one read in", ""), Axis::linear("takes longer than", "us")),
        series,
    )
}
