//! Text plots.

use std::fmt;

const ROWS: usize = 12;
/// Columns per step of the axis.
const STEP: usize = 7;

/// A figure: several series over the same places of an axis.
pub struct Plot {
    pub what: String,
    /// Label of the horizontal axis.
    pub across: String,
    /// Labels of the places on the horizontal axis, at equal distances.
    pub places: Vec<String>,
    /// The series. `None` values are not drawn.
    pub series: Vec<Series>,
}

/// One series of a figure.
pub struct Series {
    /// Letter that marks its values.
    pub letter: char,
    pub name: String,
    pub values: Vec<Option<f64>>,
}

impl fmt::Display for Plot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        let values = self.series.iter().flat_map(|series| series.values.iter().flatten());
        let top = values.copied().fold(f64::MIN_POSITIVE, f64::max);
        let row_of = |value: f64| (value / top * ROWS as f64).round() as usize;
        for row in (0..=ROWS).rev() {
            let mut line = vec![' '; self.places.len() * STEP];
            // The first series are drawn last, so that they are on top.
            for series in self.series.iter().rev() {
                for (place, value) in series.values.iter().enumerate() {
                    if value.is_some_and(|value| row_of(value) == row) {
                        line[place * STEP + STEP / 2] = series.letter;
                    }
                }
            }
            let line: String = line.into_iter().collect();
            let label = if row % 4 == 0 {
                format!("{:.1}", top * row as f64 / ROWS as f64)
            } else {
                String::new()
            };
            writeln!(f, "    {label:>9} |{}", line.trim_end())?;
        }
        let places: String = self.places.iter().map(|place| format!("{place:^STEP$}")).collect();
        writeln!(f, "    {:>9} +{}", "", "-".repeat(self.places.len() * STEP))?;
        writeln!(f, "    {:>9}  {}  {}", "", places.trim_end(), self.across)?;
        for series in &self.series {
            writeln!(f, "    {:>9}  {}: {}", "", series.letter, series.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_scales_to_highest_value_and_skips_missing_values() {
        let plot = Plot {
            what: "a figure".into(),
            across: "things".into(),
            places: ["1", "2", "3"].map(String::from).into(),
            series: vec![Series {
                letter: 'a',
                name: "one".into(),
                values: vec![Some(0.0), None, Some(30.0)],
            }],
        };
        let text = plot.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[1], "         30.0 |                 a");
        assert_eq!(lines[13], "          0.0 |   a");
        assert_eq!(lines[15], "                  1      2      3  things");
        assert_eq!(text.matches('a').count(), 1 + 2 + 1, "{text}");
    }
}
