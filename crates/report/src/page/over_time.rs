//! Rates and latencies over time, and what a time series has besides.

use std::iter;

use maud::{Markup, html};

use super::number::Unit;
use super::parts::{Grid, details, figure, text};
use super::plot::{Axis, Curve, Plot};
use super::streams::Stream;
use crate::model::paper::Form;
use crate::model::{Document, Kind, Point, TimeSeries, Window};

/// Rows of a table of windows, each of which may be several windows together.
const ROWS: usize = 24;
/// Operations of this length are counted in bytes.
const LONG_BYTES: f64 = 65_536.0;
/// Means and largest latencies of more streams than these are in pictures of their own.
const TOGETHER: usize = 2;
/// Runs of which one is longer than another by more than this have axes of their own.
const ALIKE: f64 = 4.0;
/// Latencies over a wider range have a logarithmic axis.
const WIDE_RANGE: f64 = 30.0;

/// Windows of a stream, all of one width.
struct Course {
    width_ps: u64,
    windows: Vec<Window>,
}

impl Course {
    /// End of a window, ns.
    fn end_ns(&self, number: usize) -> f64 {
        ((number as u64 + 1) * self.width_ps) as f64 / 1e3
    }

    fn seconds(&self) -> f64 {
        self.width_ps as f64 / 1e12
    }

    /// Points at the middle of each window.
    fn points(&self, of: impl Fn(&Window) -> f64) -> Vec<[f64; 2]> {
        let half = self.width_ps as f64 / 2e3;
        self.windows
            .iter()
            .enumerate()
            .map(|(number, window)| [self.end_ns(number) - half, of(window)])
            .collect()
    }
}

fn mean_ns(window: &Window) -> f64 {
    match window.count {
        0 => f64::NAN,
        count => window.latency_sum_ps as f64 / count as f64 / 1e3,
    }
}

/// The windows of a stream: of its time series if there is one, or of the jobs together if they have equal
/// windows.
fn course(document: &Document, stream: &Stream<'_>) -> Option<Course> {
    if let Some(series) = &document.runs[stream.run].series {
        let of: fn(&Point) -> Window = match stream.kind {
            Kind::Read => |point| point.read,
            Kind::Write => |point| point.write,
            Kind::Flush | Kind::Trim => return None,
        };
        let windows = series.points.iter().map(of).collect();
        return Some(Course { width_ps: series.interval_ps, windows });
    }
    let windows = || stream.parts.iter().map(|part| &part.operations.windows);
    let width_ps = windows().map(|windows| windows.width_ps).next()?;
    if width_ps == 0 || windows().any(|other| other.width_ps != width_ps) {
        return None;
    }
    let most = windows().map(|windows| windows.windows.len()).max()?;
    let mut sums = vec![Window::default(); most];
    for part in windows() {
        for (sum, window) in sums.iter_mut().zip(&part.windows) {
            sum.count += window.count;
            sum.bytes += window.bytes;
            sum.latency_sum_ps += window.latency_sum_ps;
            sum.latency_max_ps = sum.latency_max_ps.max(window.latency_max_ps);
        }
    }
    // The last window may be cut short, which would look like a drop.
    if sums.len() > 2 {
        sums.pop();
    }
    Some(Course { width_ps, windows: sums })
}

type Courses<'a, 'd> = Vec<(&'a Stream<'d>, Course)>;

pub(super) fn over_time(document: &Document, streams: &[Stream<'_>]) -> Markup {
    let courses = streams.iter().filter_map(|stream| Some((stream, course(document, stream)?)));
    let (courses, short): (Vec<_>, Vec<_>) =
        courses.partition(|(_, course)| course.windows.len() >= 2);
    let clusters = clusters(courses);
    html! {
        @for cluster in &clusters {
            @if clusters.len() > 1 {
                h4 { (runs_of(cluster)) }
                p.note { "With an axis of time of its own, as the lengths of the runs differ." }
            }
            (rates(cluster))
            (latencies(cluster))
            (besides(document, cluster))
        }
        @for (stream, course) in &short {
            p.note {
                (stream.name) ": too short for curves, as completions are counted in intervals of "
                (Unit::Nanoseconds.text(course.width_ps as f64 / 1e3)) ". A time series has shorter ones ("
                code { "--series" } ", " code { "--interval" } ")."
            }
        }
    }
}

/// Courses of runs of about the same length, which share an axis of time.
fn clusters<'a, 'd>(courses: Courses<'a, 'd>) -> Vec<Courses<'a, 'd>> {
    let length = |(_, course): &(&Stream<'_>, Course)| course.end_ns(course.windows.len() - 1);
    let mut clusters: Vec<Courses<'a, 'd>> = Vec::new();
    for one in courses {
        let alike = |other: &(&Stream<'_>, Course)| {
            let (a, b) = (length(&one), length(other));
            other.0.run == one.0.run || a.max(b) <= ALIKE * a.min(b)
        };
        match clusters.iter_mut().find(|cluster| cluster.iter().all(alike)) {
            Some(cluster) => cluster.push(one),
            None => clusters.push(vec![one]),
        }
    }
    clusters
}

/// The streams of a cluster, one for each run.
fn first_of_runs<'a, 'd>(courses: &Courses<'a, 'd>) -> Vec<&'a Stream<'d>> {
    let mut found: Vec<&Stream<'d>> = Vec::new();
    for (stream, _) in courses {
        if found.iter().all(|other| other.run != stream.run) {
            found.push(stream);
        }
    }
    found
}

fn runs_of(courses: &Courses<'_, '_>) -> String {
    let names: Vec<&str> =
        first_of_runs(courses).iter().map(|stream| stream.run_name.as_str()).collect();
    names.join(" · ")
}

fn curve(stream: &Stream<'_>, points: Vec<[f64; 2]>) -> Curve {
    let (name, colour, dashed) = (stream.name.clone(), stream.colour, stream.dashed);
    Curve { name, colour, dashed, points, ..Curve::default() }
}

/// The axis of time, up to the last point.
fn time(curves: &[Curve]) -> Axis {
    let places = curves.iter().flat_map(|curve| &curve.points).map(|point| point[0]);
    let last = places.fold(0.0, f64::max);
    Axis { ends: Some([0.0, last]), ..Axis::new("time", Unit::Nanoseconds, false) }
}

fn rates(courses: &Courses<'_, '_>) -> Markup {
    let (operations, bytes) = courses.iter().flat_map(|(_, course)| &course.windows).fold(
        (0.0, 0.0),
        |(operations, bytes), window| {
            (operations + window.count as f64, bytes + window.bytes as f64)
        },
    );
    let in_bytes = bytes > LONG_BYTES * operations;
    let (up, of): (Axis, fn(&Window) -> f64) = match in_bytes {
        true => {
            (Axis::new("throughput", Unit::BytesPerSecond, false), |window| window.bytes as f64)
        }
        false => (Axis::new("operations", Unit::PerSecond, false), |window| window.count as f64),
    };
    let curves = courses.iter().map(|(stream, course)| {
        curve(stream, course.points(|window| of(window) / course.seconds()))
    });
    let curves: Vec<Curve> = curves.collect();
    let plot = Plot { form: Form::Lines, across: time(&curves), up, curves };
    let mut grid =
        Grid::new(&["", "until", "operations per second", "throughput", "mean latency", "largest"]);
    for (stream, course) in courses {
        rows(&mut grid, stream, course);
    }
    let about = "Rate of completions in each interval.";
    figure("Throughput", about, &plot.draw("Throughput over time"), Some(&grid))
}

fn rows(grid: &mut Grid, stream: &Stream<'_>, course: &Course) {
    let together = course.windows.len().div_ceil(ROWS);
    for (number, windows) in course.windows.chunks(together).enumerate() {
        let mut sum = Window::default();
        for window in windows {
            sum.count += window.count;
            sum.bytes += window.bytes;
            sum.latency_sum_ps += window.latency_sum_ps;
            sum.latency_max_ps = sum.latency_max_ps.max(window.latency_max_ps);
        }
        let seconds = course.seconds() * windows.len() as f64;
        let latency = match sum.count {
            0 => String::new(),
            _ => Unit::Nanoseconds.text(mean_ns(&sum)),
        };
        grid.row(
            [
                stream.name.clone(),
                Unit::Nanoseconds.text(course.end_ns(number * together + windows.len() - 1)),
                Unit::PerSecond.text(sum.count as f64 / seconds),
                Unit::BytesPerSecond.text(sum.bytes as f64 / seconds),
                latency,
                Unit::Nanoseconds.text(sum.latency_max_ps as f64 / 1e3),
            ]
            .map(|cell| text(&cell)),
        );
    }
}

fn latencies(courses: &Courses<'_, '_>) -> Markup {
    let largest = |window: &Window| match window.count {
        0 => f64::NAN,
        _ => window.latency_max_ps as f64 / 1e3,
    };
    let curves = |of: &dyn Fn(&Window) -> f64, thin: bool, suffix: &str| -> Vec<Curve> {
        let curves = courses.iter().map(|(stream, course)| {
            let name = format!("{}{suffix}", stream.name);
            Curve { name, thin, ..curve(stream, course.points(of)) }
        });
        curves.collect()
    };
    if courses.len() > TOGETHER {
        return html! {
            (latency_plot("Mean latency over time", "Of the operations that completed in each interval.",
                curves(&mean_ns, false, "")))
            (latency_plot("Largest latency over time", "Of the operations that completed in each interval.",
                curves(&largest, false, "")))
        };
    }
    let (means, largest) = (curves(&mean_ns, false, ", mean"), curves(&largest, true, ", largest"));
    let pairs = means.into_iter().zip(largest).flat_map(|(mean, largest)| [mean, largest]);
    let about = "Mean and largest of the operations that completed in each interval.";
    latency_plot("Latency over time", about, pairs.collect())
}

fn latency_plot(title: &str, about: &str, curves: Vec<Curve>) -> Markup {
    let values = curves.iter().flat_map(|curve| &curve.points).map(|point| point[1]);
    let values = values.filter(|value| *value > 0.0);
    let start = (f64::INFINITY, 0.0_f64);
    let (least, most) = values.fold(start, |(low, high), value| (low.min(value), high.max(value)));
    let up = Axis::new("latency", Unit::Nanoseconds, most > WIDE_RANGE * least);
    let plot = Plot { form: Form::Lines, across: time(&curves), up, curves };
    figure(title, about, &plot.draw(title), None)
}

/// A further number of a time series.
struct Extra {
    title: &'static str,
    about: &'static str,
    label: &'static str,
    unit: Unit,
    of: fn(&Point) -> Option<f64>,
}

const EXTRAS: [Extra; 3] = [
    Extra {
        title: "Write amplification over time",
        about: "Mapping units programmed for each that the host wrote.",
        label: "write amplification",
        unit: Unit::Plain,
        of: |point| {
            let host = point.host_units.filter(|units| *units > 0)?;
            Some(point.programmed_units? as f64 / host as f64)
        },
    },
    Extra {
        title: "Host cores over time",
        about: "Use of all cores of the host together.",
        label: "cores in use",
        unit: Unit::Share,
        of: |point| Some(point.host_cores_per_mille? as f64 / 1e3),
    },
    Extra {
        title: "Host memory over time",
        about: "In use at the end of each interval.",
        label: "host memory",
        unit: Unit::Bytes,
        of: |point| Some(point.host_memory_bytes as f64),
    },
];

/// Pictures of what else the time series of these runs have.
fn besides(document: &Document, courses: &Courses<'_, '_>) -> Markup {
    let series: Vec<(&Stream<'_>, &TimeSeries)> = first_of_runs(courses)
        .into_iter()
        .filter_map(|stream| Some((stream, document.runs[stream.run].series.as_ref()?)))
        .collect();
    let curves = |extra: &Extra| -> Vec<Curve> {
        let of = |(stream, series): &(&Stream<'_>, &TimeSeries)| {
            let value = |point: &Point| (extra.of)(point).unwrap_or(f64::NAN);
            let points: Vec<[f64; 2]> = series
                .points
                .iter()
                .map(|point| [point.at_ps as f64 / 1e3, value(point)])
                .collect();
            Curve { name: stream.run_name.clone(), ..curve(stream, points) }
        };
        series
            .iter()
            .map(of)
            .filter(|curve| curve.points.iter().any(|point| point[1] > 0.0))
            .collect()
    };
    let pictures = EXTRAS.iter().filter_map(|extra| {
        let curves = curves(extra);
        if curves.is_empty() {
            return None;
        }
        let up = Axis::new(extra.label, extra.unit, false);
        let plot = Plot { form: Form::Lines, across: time(&curves), up, curves };
        Some(figure(extra.title, extra.about, &plot.draw(extra.title), None))
    });
    let pictures: Vec<Markup> = pictures.collect();
    html! {
        @for picture in &pictures { (picture) }
        @if !series.is_empty() { (details("The time series", &extras_table(&series))) }
    }
}

fn extras_table(series: &[(&Stream<'_>, &TimeSeries)]) -> Grid {
    let mut grid = Grid::new(&["", "at"]);
    grid.columns.extend(EXTRAS.iter().map(|extra| extra.label.to_owned()));
    for (stream, series) in series {
        let every = series.points.len().div_ceil(ROWS).max(1);
        for point in series.points.iter().skip(every - 1).step_by(every) {
            let extras = EXTRAS.iter().map(|extra| {
                (extra.of)(point).map(|value| extra.unit.text(value)).unwrap_or_default()
            });
            let head = [stream.run_name.clone(), Unit::Nanoseconds.text(point.at_ps as f64 / 1e3)];
            let cells: Vec<String> = head.into_iter().chain(extras).collect();
            grid.row(cells.iter().map(|cell| text(cell)).chain(iter::empty()));
        }
    }
    grid
}
