//! The scale of an axis: from values to positions, and the values that get a label.

/// A linear or logarithmic scale from values to positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    pub from: f64,
    pub to: f64,
    pub log: bool,
    /// Positions of `from` and `to`.
    pub start: f64,
    pub end: f64,
}

impl Scale {
    /// A scale over all values, from 0 unless logarithmic, and on to a round value.
    pub fn over(values: impl Iterator<Item = f64>, log: bool, start: f64, end: f64) -> Scale {
        let usable = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (least, most) = usable
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)));
        let (from, to) = match log {
            _ if least > most => (if log { 1.0 } else { 0.0 }, if log { 10.0 } else { 1.0 }),
            true => around(least, most),
            false => {
                let (least, most) = (least.min(0.0), most.max(0.0));
                let step = step(most - least, 5);
                let from = (least / step).floor() * step;
                let to = (most / step).ceil() * step;
                (from, if to > from { to } else { from + 1.0 })
            }
        };
        Scale { from, to, log, start, end }
    }

    /// Position of a value. Values outside the scale are at its ends.
    pub fn at(&self, value: f64) -> f64 {
        let part = if self.log {
            (value.max(f64::MIN_POSITIVE) / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        self.start + part.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// The value at a position.
    pub fn value(&self, position: f64) -> f64 {
        let part = (position - self.start) / (self.end - self.start);
        if self.log {
            self.from * (self.to / self.from).powf(part)
        } else {
            self.from + part * (self.to - self.from)
        }
    }

    /// Round values on the scale, about as many as given, in rising order.
    pub fn ticks(&self, wanted: usize) -> Vec<f64> {
        let wanted = wanted.max(2);
        if !self.log {
            return self.evenly(step(self.to - self.from, wanted));
        }
        let decades = (self.to / self.from).log10();
        let ticks = match decades {
            _ if decades < 0.7 => self.evenly(step(self.to - self.from, wanted)),
            _ if decades * 3.0 <= wanted as f64 => self.by_decade(&[1.0, 2.0, 5.0], 1),
            _ => self.by_decade(&[1.0], (decades / wanted as f64).ceil().max(1.0) as i32),
        };
        if ticks.len() < 2 { self.by_decade(&[1.0, 2.0, 5.0], 1) } else { ticks }
    }

    fn evenly(&self, step: f64) -> Vec<f64> {
        let (first, last) =
            ((self.from / step).ceil() as i64, (self.to / step + 1e-9).floor() as i64);
        (first..=last).map(|count| rounded(count as f64 * step)).collect()
    }

    fn by_decade(&self, within: &[f64], stride: i32) -> Vec<f64> {
        let first = self.from.log10().floor() as i32;
        let last = self.to.log10().ceil() as i32;
        let (low, high) = (self.from * (1.0 - 1e-9), self.to * (1.0 + 1e-9));
        let decades = (first..=last).filter(|decade| decade % stride == 0);
        let all = decades
            .flat_map(|decade| within.iter().map(move |part| rounded(part * 10f64.powi(decade))));
        all.filter(|tick| (low..=high).contains(tick)).collect()
    }
}

/// The smallest 1, 2 or 5 times a power of ten that divides a length into at most that number of steps.
fn step(length: f64, most: usize) -> f64 {
    let raw = length / most as f64;
    if raw <= 0.0 || !raw.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(raw.log10().floor());
    let part = [1.0, 2.0, 5.0].into_iter().find(|part| part * power >= raw * (1.0 - 1e-9));
    rounded(part.unwrap_or(10.0) * power)
}

/// Ends of a logarithmic scale: 1, 2 or 5 times a power of ten below and above.
fn around(least: f64, most: f64) -> (f64, f64) {
    let parts = [1.0, 2.0, 5.0, 10.0];
    let power = |value: f64| 10f64.powf(value.log10().floor());
    let below = parts.iter().rev().map(|part| part * power(least));
    let above = parts.iter().map(|part| part * power(most));
    let from = below.into_iter().find(|end| *end <= least * (1.0 + 1e-9)).unwrap_or(least);
    let to = above.into_iter().find(|end| *end >= most * (1.0 - 1e-9)).unwrap_or(most);
    let (from, to) = (rounded(from), rounded(to));
    if to > from { (from, to) } else { (from / 2.0, to * 2.0) }
}

/// Without the last digits, which arithmetic leaves.
fn rounded(value: f64) -> f64 {
    format!("{value:.12e}").parse().unwrap_or(value)
}

/// A label for each tick: with the same number of decimals on a linear scale.
pub fn labels(ticks: &[f64], log: bool) -> Vec<String> {
    let steps = ticks.windows(2).map(|pair| pair[1] - pair[0]);
    let least = steps.fold(f64::INFINITY, f64::min);
    let decimals =
        if least.is_finite() { (-(least.log10() + 1e-9).floor()).clamp(0.0, 9.0) } else { 0.0 };
    ticks
        .iter()
        .map(|tick| match log {
            _ if *tick == 0.0 => "0".to_owned(),
            true => shorter(*tick),
            false if tick.abs() >= 1e6 => format!("{tick:e}"),
            false => format!("{tick:.*}", decimals as usize),
        })
        .collect()
}

/// With an exponent if that is shorter, as for powers of ten.
fn shorter(value: f64) -> String {
    let (plain, exponent) = (format!("{value}"), format!("{value:e}"));
    if plain.len() > exponent.len() + 2 { exponent } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(values: &[f64], log: bool) -> Scale {
        Scale::over(values.iter().copied(), log, 0.0, 100.0)
    }

    #[test]
    fn linear_scale_begins_at_zero_and_ends_at_a_round_value() {
        let scale = scale(&[3.1, 17.2], false);
        assert_eq!((scale.from, scale.to), (0.0, 20.0));
        assert_eq!(scale.ticks(5), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!(scale.at(10.0), 50.0);
        assert_eq!(scale.value(25.0), 5.0);
        assert_eq!(labels(&scale.ticks(5), false), ["0", "5", "10", "15", "20"]);
    }

    #[test]
    fn fractions_have_equal_decimals() {
        let scale = scale(&[0.31], false);
        assert_eq!(labels(&scale.ticks(4), false), ["0", "0.1", "0.2", "0.3", "0.4"]);
    }

    #[test]
    fn logarithmic_scale_has_decades() {
        let wide = scale(&[1200.0, 4e6], true);
        assert_eq!((wide.from, wide.to), (1000.0, 5e6));
        assert_eq!(wide.ticks(5), [1e3, 1e4, 1e5, 1e6]);
        let narrow = scale(&[3.0, 60.0], true);
        assert_eq!((narrow.from, narrow.to), (2.0, 100.0));
        assert_eq!(narrow.ticks(6), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert!((wide.at(wide.value(40.0)) - 40.0).abs() < 1e-9);
    }

    #[test]
    fn logarithmic_labels_are_short() {
        let texts = labels(&[1e-4, 0.5, 512.0, 131_072.0, 1e4, 1e6], true);
        assert_eq!(texts, ["0.0001", "0.5", "512", "131072", "10000", "1e6"]);
    }

    #[test]
    fn equal_negative_and_absent_values_have_a_scale() {
        for (values, log) in [
            (&[5.0][..], true),
            (&[0.0], false),
            (&[], true),
            (&[], false),
            (&[-3.0, 4.0], false),
            (&[f64::NAN, f64::INFINITY], false),
        ] {
            let scale = scale(values, log);
            assert!(scale.from < scale.to, "{values:?}: {scale:?}");
            assert!(scale.ticks(5).len() >= 2, "{values:?}: {scale:?}");
        }
        let across_zero = scale(&[-3.0, 4.0], false);
        assert!(
            across_zero.from <= -3.0
                && across_zero.to >= 4.0
                && across_zero.ticks(5).contains(&0.0)
        );
    }
}
