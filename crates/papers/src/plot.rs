//! Figures as text.

use std::fmt;

use super::exhibit::{Axis, Figure, Series, Whose};

const ROWS: usize = 12;
/// Columns per step of the axis.
const STEP: usize = 7;
/// Mark of a place where several series have a point.
const SEVERAL: char = '*';

/// A value of an axis, short.
fn tick(axis: &Axis, value: f64) -> String {
    let whole = value.fract() == 0.0;
    match axis.unit {
        "B" if whole && value >= f64::from(1 << 20) => format!("{}M", value / f64::from(1 << 20)),
        "B" if whole && value >= 1024.0 => format!("{}K", value / 1024.0),
        _ if whole => format!("{value}"),
        _ => format!("{value:.2}"),
    }
}

fn axis_text(axis: &Axis) -> String {
    if axis.unit.is_empty() { axis.label.into() } else { format!("{}, {}", axis.label, axis.unit) }
}

/// The horizontal values of all series, in order, each once.
fn places(series: &[Series]) -> Vec<f64> {
    let mut all: Vec<f64> =
        series.iter().flat_map(|series| series.points.iter().map(|(x, _)| *x)).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = places(&self.series);
        let values = self.series.iter().flat_map(|series| series.points.iter().map(|(_, y)| *y));
        let top = values.fold(f64::MIN_POSITIVE, f64::max);
        let row_of = |value: f64| (value / top * ROWS as f64).round() as usize;
        // By row and place, the series with a point there.
        let mut cells = vec![vec![String::new(); places.len()]; ROWS + 1];
        for series in &self.series {
            for (x, y) in series.points.iter().filter(|(_, y)| y.is_finite()) {
                let place = places.iter().position(|place| place == x).expect("one of all");
                cells[row_of(*y)][place].push(series.letter);
            }
        }
        writeln!(f, "{}", self.caption)?;
        writeln!(f, "    {}", axis_text(&self.y))?;
        for (row, cells) in cells.iter().enumerate().rev() {
            let label = if row % 4 == 0 {
                format!("{:.1}", top * row as f64 / ROWS as f64)
            } else {
                String::new()
            };
            let line: String = cells.iter().map(|cell| format!("{:^STEP$}", mark(cell))).collect();
            writeln!(f, "    {label:>9} |{}", line.trim_end())?;
        }
        let ticks: String =
            places.iter().map(|x| format!("{:^STEP$}", tick(&self.x, *x))).collect();
        writeln!(f, "    {:>9} +{}", "", "-".repeat(places.len() * STEP))?;
        writeln!(f, "    {:>9}  {}  {}", "", ticks.trim_end(), axis_text(&self.x))?;
        for series in &self.series {
            let whose = if series.whose == Whose::Paper { "the paper: " } else { "" };
            writeln!(f, "    {:>9}  {}: {whose}{}", "", series.letter, series.name)?;
        }
        self.write_coincident(f, &cells, &places)
    }
}

fn mark(cell: &str) -> String {
    if cell.chars().count() > 1 { SEVERAL.to_string() } else { cell.to_owned() }
}

impl Figure {
    fn write_coincident(
        &self,
        f: &mut fmt::Formatter<'_>,
        cells: &[Vec<String>],
        places: &[f64],
    ) -> fmt::Result {
        let mut all = Vec::new();
        for (place, x) in places.iter().enumerate() {
            for cell in cells.iter().map(|row| &row[place]).filter(|cell| cell.len() > 1) {
                all.push(format!("{} at {}", cell, tick(&self.x, *x)));
            }
        }
        if all.is_empty() {
            return Ok(());
        }
        writeln!(f, "    {:>9}  {SEVERAL}: {}", "", all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(label: &'static str) -> Axis {
        Axis { label, unit: "", logarithmic: false }
    }

    fn figure(series: Vec<Series>) -> String {
        let (x, y) = (axis("things"), axis("rate"));
        Figure { caption: "a figure".into(), number: "", x, y, series }.to_string()
    }

    #[test]
    fn plot_scales_to_highest_value_and_skips_missing_values() {
        let text = figure(vec![
            Series::ours('a', "one", vec![(1.0, 0.0), (3.0, 30.0)]),
            Series::ours('b', "two", vec![(2.0, 15.0)]),
        ]);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[2], "         30.0 |                 a");
        assert_eq!(lines[14], "          0.0 |   a");
        assert_eq!(lines[16], "                  1      2      3  things");
    }

    /// Two series with the same values: neither is hidden.
    #[test]
    fn coincident_points_have_a_mark_and_are_listed() {
        let points = vec![(1.0, 10.0), (2.0, 20.0)];
        let text = figure(vec![
            Series::ours('a', "one", points.clone()),
            Series::ours('b', "two", points),
            Series::ours('c', "three", vec![(2.0, 1.0)]),
        ]);
        assert!(text.contains("*: ab at 1, ab at 2"), "{text}");
        assert!(text.lines().any(|line| line.ends_with("|          c")), "{text}");
    }
}
