//! Figures 5, 6 and 9 of the flash paper, as curves.

use super::ExhibitError;
use super::flash_pairs::Pair;
use super::flash_ssds::{Load, Measured, Ssd, run};
use super::setup::Setup;
use report::model::paper::{Axis, Exhibit, Figure, Series};

const MIB: f64 = (1 << 20) as f64;
/// Bytes written between points of figure 9.
const STEP: f64 = MIB / 2.0;

/// A curve's letter, its name, and a number of each pair.
type Curve = (char, &'static str, bool, fn(&Pair) -> &Measured);

const CURVES: [Curve; 4] = [
    ('F', "from-scratch, random reads", true, |pair| &pair.closer),
    ('f', "from-scratch, random writes", false, |pair| &pair.closer),
    ('B', "bridge, random reads", true, |pair| &pair.bridge),
    ('b', "bridge, random writes", false, |pair| &pair.bridge),
];

/// Figures 5 and 6: random requests by their size.
pub(super) fn by_size(pairs: &[Pair]) -> Vec<Exhibit> {
    let figure = |number, what: &str, y: Axis, of: fn(&Measured) -> f64| {
        let curve = |(letter, name, reads, whose): Curve| {
            let rw = if reads { "randread" } else { "randwrite" };
            let ours = pairs.iter().filter(|pair| pair.load.rw == rw);
            let points = ours.map(|pair| (f64::from(pair.load.bytes), of(whose(pair))));
            Series::ours(letter, name, points)
        };
        Figure::exhibit(
            number,
            format!("{number}: {what} by request size, one worker, 128 entries"),
            (Axis::logarithmic("request", "B"), y),
            CURVES.map(curve).into(),
        )
    };
    let cores = Axis::linear("the host's four cores", "%");
    vec![
        figure("Figure 5", "host CPU", cores, |measured| 100.0 * measured.cores),
        figure("Figure 6a", "latency", Axis::linear("mean", "us"), |measured| measured.us),
        figure("Figure 6b", "throughput", Axis::linear("rate", "kIOPS"), |measured| {
            measured.iops / 1e3
        }),
    ]
}

/// Mean latency of writes by what was written before them: MiB and us.
fn course(measured: &Measured) -> Vec<(f64, f64)> {
    let (mut points, mut written, mut took, mut ops) = (Vec::new(), 0_u64, 0.0, 0_u64);
    for point in &measured.series.points {
        written += point.writes.bytes;
        took += point.writes.took.as_us_f64();
        ops += point.writes.ops;
        let place = points.len() as f64 + 1.0;
        if ops > 0 && written as f64 >= place * STEP {
            points.push((place * STEP / MIB, took / ops as f64));
            (took, ops) = (0.0, 0);
        }
    }
    points
}

/// Figure 9: writes of 512 B in queue mode and in legacy mode, random and sequential.
pub(super) fn queueing(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let mut exhibits = Vec::new();
    for (ssd, number) in [(Ssd::Closer, "Figure 9a"), (Ssd::Bridge, "Figure 9b")] {
        let mut series = Vec::new();
        for (rw, queue, legacy) in [("randwrite", 'Q', 'L'), ("write", 'q', 'l')] {
            let kind = if rw == "write" { "sequential" } else { "random" };
            let queued = Load { amount: 6 << 20, ..Load::queued(rw, 512) };
            let queued = run(&ssd.machine(setup), &queued)?;
            let one = run(&ssd.legacy(setup), &Load::legacy(rw, 512))?;
            series.push(Series::ours(queue, format!("queue mode, {kind}"), course(&queued)));
            series.push(Series::ours(legacy, format!("legacy mode, {kind}"), course(&one)));
        }
        exhibits.push(Figure::exhibit(
            number,
            format!("{number}: writes of 512 B by one worker, {}", ssd.name()),
            (Axis::linear("written", "MiB"), Axis::logarithmic("mean latency", "us")),
            series,
        ));
    }
    Ok(exhibits)
}

#[cfg(test)]
mod tests {
    use super::super::changes::Change;
    use super::super::flash_ssds::ONE_ENTRY;
    use super::*;

    /// Whether queue mode is above all of legacy mode, at each point of all curves.
    fn is_above(setup: &Setup) -> bool {
        let figures = queueing(setup).expect("runs").into_iter().map(|exhibit| match exhibit {
            Exhibit::Figure(figure) => figure,
            _ => panic!("a figure"),
        });
        figures.flat_map(|figure| figure.series).collect::<Vec<_>>().chunks(2).all(|pair| {
            let [queue, legacy] = pair else { panic!("two modes") };
            assert!(queue.points.len() > 4 && legacy.points.len() > 4, "points are missing");
            let most = legacy.points.iter().map(|[_, us]| *us).fold(0.0, f64::max);
            queue.points.iter().all(|[_, us]| *us > most)
        })
    }

    /// Both halves of figure 9 as the paper has them; not where queue mode has one entry.
    #[test]
    fn queue_mode_is_above_legacy_mode_everywhere() {
        assert!(is_above(&Setup::new()));
        assert!(!is_above(&Setup::new().changed(&[Change::Switch(ONE_ENTRY)])));
    }
}
