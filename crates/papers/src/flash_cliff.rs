//! Garbage collection in the flash paper: both SSDs are written to three times their capacity, to find the
//! point of the performance drop, and what delays it.

use super::ExhibitError;
use super::check::{Expected, Seen, Spec, Subject, Swung};
use super::flash_ssds::{IN_DEVICE, Load, Ssd, run};
use super::measure::Machine;
use super::setup::Setup;
use report::model::paper::{Axis, Exhibit, Figure, Rule, Series, Table};

/// Samples of a time series per capacity, and of a figure.
const FINE: usize = 16;
const COARSE: usize = 4;
/// Capacities written; for the swap exhibit, in halves.
const CAPACITIES: usize = 3;
const SWAPPED: u64 = 3;
/// Share of the initial throughput below which an SSD has dropped.
const FALLEN: f64 = 0.7;

/// Time series of a drive under random writes, by amount written.
struct Course {
    places: Vec<Place>,
}

/// One section of the time series.
#[derive(Clone, Copy, Default)]
struct Place {
    ops: f64,
    seconds: f64,
    took_us: f64,
    host_units: f64,
    programmed: f64,
    cores: f64,
    memory: f64,
    points: f64,
}

impl Place {
    fn iops(&self) -> f64 {
        self.ops / self.seconds
    }

    fn us(&self) -> f64 {
        self.took_us / self.ops
    }

    fn amplification(&self) -> f64 {
        self.programmed / self.host_units
    }
}

/// Writes half of a drive at random `halves` times: 512 bytes, 128 entries, one worker.
fn course(machine: &Machine, halves: u64) -> Result<Course, ExhibitError> {
    let capacity = machine.open()?.medium.contents.capacity_bytes;
    let load = Load { amount: halves * capacity / 2, ..Load::queued("randwrite", 512) };
    let job_result = run(machine, &load)?;
    let width = capacity as f64 / FINE as f64;
    let mut places: Vec<Place> = Vec::new();
    let mut written = 0.0;
    for point in &job_result.series.points {
        let at = (written / width) as usize;
        if at >= places.len() {
            places.push(Place::default());
        }
        let place = places.last_mut().expect("just made");
        written += point.writes.bytes as f64;
        place.ops += point.writes.ops as f64;
        place.seconds += job_result.series.interval.as_s_f64();
        place.took_us += point.writes.took.as_us_f64();
        let (host, programmed) = point.units.unwrap_or_default();
        place.host_units += host as f64;
        place.programmed += programmed as f64;
        place.cores += point.cores_per_mille.unwrap_or(0) as f64 / 10.0;
        place.memory = place.memory.max(point.memory_bytes as f64 / f64::from(1 << 20));
        place.points += 1.0;
    }
    places.retain(|place| place.ops > 0.0);
    Ok(Course { places })
}

impl Course {
    /// Capacities written when the throughput has dropped, and the share of the initial throughput that it
    /// drops to; `None` if it never drops.
    fn fall(&self) -> Option<f64> {
        let first = self.places[0].iops();
        let at = self.places.iter().position(|place| place.iops() < FALLEN * first)?;
        Some(at as f64 / FINE as f64)
    }

    /// Section between two samples of a figure.
    fn coarse(&self, at: usize) -> Option<Place> {
        let each = FINE / COARSE;
        let places = self.places.get(at * each..)?.iter().take(each);
        places.copied().reduce(|sum, one| Place {
            ops: sum.ops + one.ops,
            seconds: sum.seconds + one.seconds,
            took_us: sum.took_us + one.took_us,
            host_units: sum.host_units + one.host_units,
            programmed: sum.programmed + one.programmed,
            cores: sum.cores + one.cores,
            memory: sum.memory.max(one.memory),
            points: sum.points + one.points,
        })
    }

    /// The last section of a figure.
    fn last(&self) -> Place {
        self.coarse((self.places.len() - 1) / (FINE / COARSE)).expect("something was written")
    }

    /// Final throughput relative to the initial one.
    fn left(&self) -> f64 {
        self.last().iops() / self.places[0].iops()
    }

    fn falls(&self) -> String {
        self.fall().map_or_else(|| "-".to_owned(), |at| format!("{at:.2}"))
    }
}

fn figure(
    caption: &str,
    number: &str,
    y: (&str, &str),
    courses: [&Course; 2],
    of: impl Fn(&Place) -> f64,
) -> Exhibit {
    let series = |letter, name: &str, course: &Course| {
        let point = |at: usize| Some(((at + 1) as f64 / COARSE as f64, of(&course.coarse(at)?)));
        Series::ours(letter, name, (0..CAPACITIES * COARSE).filter_map(point))
    };
    Figure::exhibit(
        number,
        caption,
        (Axis::linear("capacities written", ""), Axis::linear(y.0, y.1)),
        vec![
            series('F', Ssd::Closer.name(), courses[0]),
            series('B', Ssd::Bridge.name(), courses[1]),
        ],
    )
}

fn whole(ssd: Ssd, setup: &Setup) -> Result<Course, ExhibitError> {
    course(&ssd.machine(setup), 2 * CAPACITIES as u64)
}

pub(super) const CLIFF: Spec = Spec {
    subject: Subject {
        row: "C10",
        title: "write cliff of the bridge, after",
        claim: "the bridge falls half-way through the run, and the from-scratch SSD holds (section 4.3)",
        unit: "cap.",
    },
    mechanism: "garbage collection in the device, against the host's, which buffers and maps finer",
    rule: Rule::Shape,
    shape: "the bridge falls, and the other holds twice as long or longer",
    paper: None,
    see: |setup| {
        let (closer, bridge) = (whole(Ssd::Closer, setup)?, whole(Ssd::Bridge, setup)?);
        let Some(fall) = bridge.fall() else { return Ok(Seen::of(f64::INFINITY, false)) };
        // The bridge drops half-way through the paper's run, whose length it does not give: of that only the
        // ratio can be checked, that the other holds for at least as long again.
        let holds = closer.fall().is_none_or(|at| at >= 2.0 * fall);
        Ok(Seen::of(fall, holds).with(format!(
            "capacities written when an SSD has fallen: bridge {}, from-scratch {}",
            bridge.falls(),
            closer.falls()
        )))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};

pub(super) fn figures(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let (closer, bridge) = (whole(Ssd::Closer, setup)?, whole(Ssd::Bridge, setup)?);
    let both = [&closer, &bridge];
    let (time, share) = (("latency", "us"), ("cores", "%"));
    Ok(vec![
        figure(
            "Figures 7a and 8a: random writes of 512 B, 128 entries",
            "Figures 7a, 8a",
            ("throughput", "kIOPS"),
            both,
            |place| place.iops() / 1e3,
        ),
        figure("The same: mean latency", "Figures 7a, 8a", time, both, Place::us),
        figure(
            "The same: units programmed for each that the host wrote",
            "",
            ("units", ""),
            both,
            Place::amplification,
        ),
        figure("Figure 4b: the host's cores", "Figure 4b", share, both, |place| {
            place.cores / place.points
        }),
        figure("Figure 4a: host memory", "Figure 4a", ("memory", "MiB"), both, |place| {
            place.memory
        }),
        where_each_falls(both),
        swaps(setup, both)?,
    ])
}

fn where_each_falls(both: [&Course; 2]) -> Exhibit {
    let line = |ssd: Ssd, course: &Course| {
        let last = course.last();
        vec![
            ssd.name().to_owned(),
            format!("{:.1}", course.places[0].iops() / 1e3),
            course.falls(),
            format!("{:.1}", last.iops() / 1e3),
            format!("{:.2}", course.left()),
            format!("{:.2}", last.amplification()),
        ]
    };
    Table::exhibit(
        "Both run to three capacities written: where each falls, and by how much",
        &["", "kIOPS at first", "falls after", "kIOPS at last", "of the first", "w.amp. at last"],
        vec![line(Ssd::Closer, both[0]), line(Ssd::Bridge, both[1])],
        &["falls: below 0.7 of its rate in the first sixteenth of a capacity; -: it does not"],
    )
}

/// Exchanges one property of the SSDs at a time.
fn swaps(setup: &Setup, both: [&Course; 2]) -> Result<Exhibit, ExhibitError> {
    let line = |ssd: Ssd, what: &str, course: &Course| {
        let end = course.coarse(SWAPPED as usize * COARSE / 2 - 1).map(|place| place.iops());
        vec![
            ssd.name().to_owned(),
            what.to_owned(),
            format!("{:.1}", course.places[0].iops() / 1e3),
            course.falls(),
            end.map_or_else(|| "-".to_owned(), |iops| format!("{:.1}", iops / 1e3)),
        ]
    };
    let mut lines = Vec::new();
    for (ssd, course_as_it_is, swaps) in [
        (
            Ssd::Closer,
            both[0],
            &[
                ("coalescing: the map by 4 KiB", "medium.flash.unit", "4 KiB"),
                ("over-provisioning: 70 per mille", "medium.flash.spare_per_mille", "70"),
                ("over-provisioning: 560 per mille", "medium.flash.spare_per_mille", "560"),
                ("buffer: four times", "medium.flash.buffer", "8 MiB"),
            ][..],
        ),
        (
            Ssd::Bridge,
            both[1],
            &[
                ("coalescing: the map by 512 B", "medium.flash.unit", "512 B"),
                ("over-provisioning: 560 per mille", "medium.flash.spare_per_mille", "560"),
                ("buffer: four times", "medium.flash.buffer", "2 MiB"),
            ],
        ),
    ] {
        lines.push(line(ssd, "as it is", course_as_it_is));
        for (what, key, value) in swaps {
            let machine = ssd.machine(setup).with(key, value);
            lines.push(line(ssd, what, &course(&machine, SWAPPED)?));
        }
    }
    Ok(Table::exhibit(
        "What delays the fall: one thing of one SSD at a time, to one and a half capacities",
        &["", "", "kIOPS at first", "falls after", "kIOPS at one and a half"],
        lines,
        &[
            "placement is the difference between \"as it is\" of one and the other's with its map: what is \
             left when both coalesce alike",
        ],
    ))
}
