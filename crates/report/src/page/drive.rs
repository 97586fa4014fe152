//! The page of a plan beside measurements of its drive.

use maud::{Markup, html};

use super::number::Unit;
use super::parts::{Grid, figure, text};
use super::plot::{Axis, Curve, Plot};
use super::whole;
use crate::model::Program;
use crate::model::paper::Form;

/// A drive: its pictures, and all its rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drive {
    /// As of a table of measurements; the anchor of its section.
    pub name: String,
    /// One sentence with the drive and the plan.
    pub about: String,
    pub pictures: Vec<Picture>,
    pub tables: Vec<Table>,
    /// Rows that were not run, with the reason.
    pub left_out: Vec<String>,
}

/// Headings, and the cells of each row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    pub columns: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// Measured curves and those of the model over one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    pub title: String,
    pub across: Scale,
    pub up: Scale,
    pub pairs: Vec<Pair>,
}

/// An axis, by its label.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// A number of operations, on a logarithmic axis.
    InFlight(&'static str),
    /// Operations per second; linear.
    Rate(&'static str),
    /// Nanoseconds; logarithmic.
    Time(&'static str),
    /// A ratio; linear, from 0.
    Ratio(&'static str),
}

/// A figure as it was measured and as the model has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pair {
    pub name: String,
    pub measured: Vec<[f64; 2]>,
    pub model: Vec<[f64; 2]>,
}

/// The page of these drives.
pub fn of_drives(drives: &[Drive], program: &Program) -> String {
    let title = match drives {
        [one] => format!("{} beside its plan", one.name),
        _ => format!("{} drives beside their plans", drives.len()),
    };
    let body = html! {
        header { h1 { (title) } }
        nav aria-label="Contents" {
            @for drive in drives { a href={ "#" (drive.name) } { (drive.name) } " " }
        }
        main {
            @for drive in drives {
                section id=(drive.name) {
                    h2 { (drive.name) }
                    p { (drive.about) }
                    @for picture in &drive.pictures { (drawn(picture)) }
                    @for table in &drive.tables { (grid(table)) }
                    @if !drive.left_out.is_empty() {
                        p { "Not run:" }
                        ul { @for why in &drive.left_out { li { (why) } } }
                    }
                }
            }
        }
        footer { p { (program.name) " " (program.version) "." } }
    };
    whole(&title, program, &body)
}

fn axis(scale: &Scale) -> Axis {
    match scale {
        Scale::InFlight(label) => Axis::new(label, Unit::Plain, true),
        Scale::Rate(label) => Axis::new(label, Unit::PerSecond, false),
        Scale::Time(label) => Axis::new(label, Unit::Nanoseconds, true),
        Scale::Ratio(label) => Axis::new(label, Unit::Plain, false),
    }
}

/// A colour for each pair: marks are hollow and lines dashed where numbers are measured.
fn drawn(picture: &Picture) -> Markup {
    let mut curves = Vec::new();
    for (colour, pair) in picture.pairs.iter().enumerate() {
        let curve = |name: &str, points: &Vec<[f64; 2]>| Curve {
            name: format!("{}, {name}", pair.name),
            colour,
            points: points.clone(),
            ..Curve::default()
        };
        curves.push(Curve { dashed: true, hollow: true, ..curve("measured", &pair.measured) });
        curves.push(curve("model", &pair.model));
    }
    let (across, up) = (axis(&picture.across), axis(&picture.up));
    let plot = Plot { form: Form::Lines, across, up, curves };
    figure(&picture.title, "", &plot.draw(&picture.title), None)
}

fn grid(table: &Table) -> Grid {
    let mut grid = Grid::new(&table.columns);
    for row in &table.rows {
        grid.row(row.iter().map(|cell| text(cell)));
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_has_a_measured_and_a_model_curve() {
        let pair = |name: &str| Pair {
            name: name.to_owned(),
            measured: vec![[1.0, 70e3], [64.0, 140e3]],
            model: vec![[1.0, 71e3], [64.0, 160e3]],
        };
        let picture = Picture {
            title: "randread of 4 KiB".to_owned(),
            across: Scale::InFlight("in flight"),
            up: Scale::Time("latency"),
            pairs: vec![pair("p50"), pair("p99")],
        };
        let drive = Drive {
            name: "a-drive".to_owned(),
            about: "A <drive>".to_owned(),
            pictures: vec![picture],
            tables: vec![Table {
                columns: vec!["workload"],
                rows: vec![vec!["randread".to_owned()]],
            }],
            left_out: vec!["3 rows: a claim".to_owned()],
        };
        let program = Program { name: "doorbell".to_owned(), version: "0".to_owned() };
        let page = of_drives(&[drive], &program);
        for name in ["p50, measured", "p50, model", "p99, measured", "p99, model"] {
            assert!(page.contains(name), "{name}: {page}");
        }
        assert!(page.contains("A &lt;drive&gt;") && page.contains("3 rows: a claim"));
        // Four curves in each size of the picture, and in its legend.
        assert_eq!(page.matches("class=\"curve").count(), 12, "{page}");
    }
}
