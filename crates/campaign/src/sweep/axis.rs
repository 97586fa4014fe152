//! Axes: names, values, and the settings that a value stands for.

use std::path::Path;

use plan::units::{parse_rate, parse_size, parse_span, rate_text, size_text, span_text};
use runtime::{Rng, Span};

use super::error::SweepError;
use super::file::{AxisText, CaseText, Over, Scale, settings, text_of};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A key of the plan.
    Set(String),
    /// A key of every job.
    Job(String),
    Interface,
    Plan,
    File,
    Seed,
}

impl Target {
    pub fn text(&self) -> String {
        match self {
            Target::Set(key) => format!("set {key}"),
            Target::Job(key) => format!("job {key}"),
            Target::Interface => "interface".to_owned(),
            Target::Plan => "plan".to_owned(),
            Target::File => "file".to_owned(),
            Target::Seed => "seed".to_owned(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub text: String,
    pub settings: Vec<(Target, String)>,
}

#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub name: String,
    pub of: Vec<String>,
    pub unit: Unit,
    pub values: Vec<Value>,
    /// In the unit, if all values are numbers.
    pub numbers: Vec<u64>,
    /// The values are drawn, one for each point.
    pub is_drawn: bool,
}

/// Unit of the numbers of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Plain,
    Time,
    Size,
    Rate,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Plain => "",
            Unit::Time => "ps",
            Unit::Size => "B",
            Unit::Rate => "B/s",
        }
    }

    fn text(self, number: u64) -> String {
        match self {
            Unit::Plain => number.to_string(),
            Unit::Time => span_text(Span(number)),
            Unit::Size => size_text(number),
            Unit::Rate => rate_text(number),
        }
    }
}

/// A number, or a quantity with its unit.
fn quantity(text: &str) -> Option<(Unit, u64)> {
    if let Ok(number) = text.parse() {
        return Some((Unit::Plain, number));
    }
    if let Ok(span) = parse_span(text) {
        return Some((Unit::Time, span.0));
    }
    if let Ok(size) = parse_size(text) {
        return Some((Unit::Size, size));
    }
    if let Ok(rate) = parse_rate(text) {
        return Some((Unit::Rate, rate));
    }
    // Sizes of job files: 4k.
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'k' | 'K') => (&text[..at], 10),
        (at, 'm' | 'M') => (&text[..at], 20),
        (at, 'g' | 'G') => (&text[..at], 30),
        _ => return None,
    };
    Some((Unit::Plain, digits.parse::<u64>().ok()?.checked_mul(1 << shift)?))
}

#[derive(Clone, Copy, Debug)]
struct Range {
    unit: Unit,
    from: u64,
    to: u64,
    scale: Scale,
}

/// Significant digits of values on a logarithmic scale: of steps and of draws.
const DIGITS: [i32; 2] = [3, 4];

impl Range {
    /// The number at this share of the way. The ends are exact.
    fn at(&self, share: f64, digits: i32) -> u64 {
        let (from, to) = (self.from as f64, self.to as f64);
        if share <= 0.0 {
            return self.from;
        }
        if share >= 1.0 {
            return self.to;
        }
        let value = match self.scale {
            Scale::Linear => from + (to - from) * share,
            // Rounded, so that the last bits of a platform's power function do not count.
            Scale::Log => {
                let value = from * (to / from).powf(share);
                let ten = 10_f64.powi(value.log10().floor() as i32 + 1 - digits);
                if ten > 1.0 { (value / ten).round() * ten } else { value }
            }
        };
        (value.round() as u64).clamp(self.from.min(self.to), self.from.max(self.to))
    }

    fn steps(&self, steps: usize) -> Vec<u64> {
        let last = (steps - 1) as f64;
        (0..steps).map(|step| self.at(step as f64 / last, DIGITS[0])).collect()
    }
}

/// Draws of a sweep that draws its points.
pub(super) struct Draws<'a> {
    pub points: usize,
    pub seed: u64,
    /// For each axis a permutation of the points' strata; none: independent draws.
    pub strata: Option<&'a [u32]>,
}

/// An axis as the file gives it.
pub(super) struct AxisOf<'a> {
    pub path: &'a Path,
    /// From 1.
    pub number: usize,
    pub text: &'a AxisText,
}

impl AxisOf<'_> {
    fn error(&self, found: impl Into<String>, expected: impl Into<String>) -> SweepError {
        let name = self.text.name.clone().unwrap_or_else(|| self.number.to_string());
        let (path, found, expected) = (self.path.to_owned(), found.into(), expected.into());
        SweepError::Axis { path, axis: name, found, expected }
    }

    fn targets(&self) -> Result<Vec<Target>, SweepError> {
        let text = self.text;
        let given =
            [text.set.is_some(), text.job.is_some(), text.over.is_some(), text.cases.is_some()];
        let found = given.iter().filter(|given| **given).count();
        if found != 1 {
            return Err(self.error(format!("{found} of set, job, over and cases"), "one of them"));
        }
        let targets = match (&text.set, &text.job, text.over) {
            (Some(keys), ..) => keys.all().into_iter().map(Target::Set).collect(),
            (_, Some(keys), _) => keys.all().into_iter().map(Target::Job).collect(),
            (.., Some(Over::Interface)) => vec![Target::Interface],
            (.., Some(Over::Plan)) => vec![Target::Plan],
            (.., Some(Over::File)) => vec![Target::File],
            (.., Some(Over::Seed)) => vec![Target::Seed],
            _ => Vec::new(),
        };
        if targets.is_empty() && text.cases.is_none() {
            return Err(self.error("no key", "one key or more"));
        }
        Ok(targets)
    }

    /// # Errors
    /// The axis has no values, equal ones, or keys that do not belong together.
    pub fn build(&self, draws: Option<Draws<'_>>) -> Result<Axis, SweepError> {
        let targets = self.targets()?;
        let text = self.text;
        if let Some(cases) = &text.cases {
            if text.values.is_some() || text.from.is_some() || text.steps.is_some() {
                return Err(self.error("cases and values", "one of them"));
            }
            let values = cases.iter().map(case).collect();
            return self.axis(vec!["cases".to_owned()], values, false);
        }
        let of = targets.iter().map(Target::text).collect();
        let value = |text: String| Value {
            settings: targets.iter().map(|target| (target.clone(), text.clone())).collect(),
            text,
        };
        match (&text.values, self.range()?, text.steps, draws) {
            (Some(values), None, None, _) => {
                self.axis(of, values.iter().map(|one| value(text_of(one))).collect(), false)
            }
            (None, Some(range), Some(steps), _) if steps >= 2 => {
                let numbers = range.steps(steps);
                let values = numbers.iter().map(|number| value(range.unit.text(*number)));
                self.axis(of, values.collect(), false)
            }
            (None, Some(range), None, Some(draws)) => {
                let name = self.name(&of);
                let numbers = drawn(&range, &draws, &name);
                let values = numbers.iter().map(|number| value(range.unit.text(*number)));
                self.axis(of, values.collect(), true)
            }
            (None, Some(_), steps, None) => {
                let found = steps.map_or("no steps".to_owned(), |steps| format!("steps = {steps}"));
                Err(self.error(found, "steps of 2 or more between from and to"))
            }
            (Some(_), Some(_), ..) => Err(self.error("values and from, to", "one of them")),
            (Some(_), None, Some(_), _) => Err(self.error("values and steps", "one of them")),
            _ => Err(self.error("no values", "values, or from and to")),
        }
    }

    fn name(&self, of: &[String]) -> String {
        let key = |of: &String| of.split_once(' ').map_or(of.as_str(), |(_, key)| key).to_owned();
        self.text.name.clone().unwrap_or_else(|| of.first().map_or_else(String::new, key))
    }

    fn range(&self) -> Result<Option<Range>, SweepError> {
        let (from, to) = match (&self.text.from, &self.text.to) {
            (None, None) => return Ok(None),
            (Some(from), Some(to)) => (text_of(from), text_of(to)),
            _ => return Err(self.error("one of from and to", "both")),
        };
        let expected = "numbers or quantities of one unit, from before to";
        let both = quantity(&from).zip(quantity(&to));
        let Some(((unit, from), (_, to))) = both.filter(|(a, b)| a.0 == b.0 && a.1 < b.1) else {
            return Err(self.error(format!("from {from} to {to}"), expected));
        };
        if self.text.scale == Scale::Log && from == 0 {
            return Err(self.error("from 0 on a logarithmic scale", "more than 0"));
        }
        Ok(Some(Range { unit, from, to, scale: self.text.scale }))
    }

    fn axis(
        &self,
        of: Vec<String>,
        values: Vec<Value>,
        is_drawn: bool,
    ) -> Result<Axis, SweepError> {
        if values.is_empty() {
            return Err(self.error("no values", "one value or more"));
        }
        let mut texts: Vec<&str> = values.iter().map(|value| value.text.as_str()).collect();
        texts.sort_unstable();
        let twice = texts.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        if let Some(value) = twice.filter(|_| !is_drawn) {
            return Err(self.error(format!("the value {value} twice"), "each value once"));
        }
        let name = match of[..] == ["cases"] {
            true => self.text.name.clone().unwrap_or_else(|| "case".to_owned()),
            false => self.name(&of),
        };
        let quantities: Option<Vec<_>> = values.iter().map(|value| quantity(&value.text)).collect();
        let quantities = quantities.filter(|all| all.iter().all(|one| one.0 == all[0].0));
        let unit = quantities.as_ref().map_or(Unit::Plain, |all| all[0].0);
        let numbers = quantities.unwrap_or_default().into_iter().map(|(_, number)| number);
        Ok(Axis { name, of, unit, numbers: numbers.collect(), values, is_drawn })
    }
}

fn case(text: &CaseText) -> Value {
    let mut all = Vec::new();
    all.extend(text.plan.iter().map(|plan| (Target::Plan, plan.clone())));
    all.extend(text.file.iter().map(|file| (Target::File, file.clone())));
    all.extend(text.interface.iter().map(|name| (Target::Interface, name.clone())));
    all.extend(text.seed.iter().map(|seed| (Target::Seed, seed.to_string())));
    all.extend(settings(&text.set).into_iter().map(|(key, value)| (Target::Set(key), value)));
    all.extend(settings(&text.job).into_iter().map(|(key, value)| (Target::Job(key), value)));
    Value { text: text.name.clone(), settings: all }
}

/// A value of the range for each point.
fn drawn(range: &Range, draws: &Draws<'_>, name: &str) -> Vec<u64> {
    let mut rng = Rng::for_part(draws.seed, &format!("sweep value {name}"));
    const WHOLE: u64 = 1 << 53;
    let all = (0..draws.points).map(|point| {
        let within = rng.below(WHOLE) as f64 / WHOLE as f64;
        let share = match draws.strata {
            Some(strata) => (f64::from(strata[point]) + within) / draws.points as f64,
            None => within,
        };
        range.at(share, DIGITS[1])
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(text: &str) -> Result<Axis, String> {
        let text: AxisText = toml::from_str(text).unwrap();
        let of = AxisOf { path: Path::new("s.toml"), number: 1, text: &text };
        of.build(None).map_err(|error| error.to_string())
    }

    fn values(text: &str) -> Vec<String> {
        axis(text).unwrap().values.into_iter().map(|value| value.text).collect()
    }

    #[test]
    fn ranges_have_exact_ends_and_round_steps() {
        let log = "set = \"x\"\nfrom = \"100 ns\"\nto = \"10 us\"\nsteps = 5\nscale = \"log\"\n";
        assert_eq!(values(log), ["100 ns", "316 ns", "1 us", "3.16 us", "10 us"]);
        let linear = "job = \"iodepth\"\nfrom = 1\nto = 9\nsteps = 3\n";
        assert_eq!(values(linear), ["1", "5", "9"]);
        let rates = "set = \"x\"\nfrom = \"1 GB/s\"\nto = \"2 GB/s\"\nsteps = 2\n";
        assert_eq!(values(rates), ["1 GB/s", "2 GB/s"]);
    }

    #[test]
    fn numbers_are_in_the_unit_of_all_values() {
        let times = axis("set = \"x\"\nvalues = [\"1 ns\", \"2 us\"]\n").unwrap();
        assert_eq!((times.unit, &times.numbers[..]), (Unit::Time, &[1_000, 2_000_000][..]));
        let sizes = axis("job = \"bs\"\nvalues = [\"4k\", \"512\"]\n").unwrap();
        assert_eq!((sizes.unit, &sizes.numbers[..]), (Unit::Plain, &[4096, 512][..]));
        let mixed = axis("set = \"x\"\nvalues = [\"1 ns\", \"1 B\"]\n").unwrap();
        assert!(mixed.numbers.is_empty());
    }

    #[test]
    fn axis_errors_name_the_axis_found_and_expected() {
        for (text, want) in [
            ("values = [1]\n", "axis 1: found 0 of set, job, over and cases, expected one of them"),
            ("set = \"x\"\n", "axis 1: found no values, expected values, or from and to"),
            ("set = \"x\"\nvalues = []\n", "axis 1: found no values, expected one value or more"),
            (
                "set = \"x\"\nvalues = [1, 1]\n",
                "axis 1: found the value 1 twice, expected each value once",
            ),
            (
                "name = \"n\"\nset = \"x\"\nfrom = 1\n",
                "axis n: found one of from and to, expected both",
            ),
            (
                "set = \"x\"\nfrom = \"1 ns\"\nto = \"2 B\"\nsteps = 2\n",
                "axis 1: found from 1 ns to 2 B, expected numbers or quantities of one unit, from before to",
            ),
            (
                "set = \"x\"\nfrom = 1\nto = 2\n",
                "axis 1: found no steps, expected steps of 2 or more",
            ),
            ("set = \"x\"\nfrom = 1\nto = 2\nsteps = 4\n", "axis 1: found the value 1 twice"),
        ] {
            let error = axis(text).unwrap_err();
            assert!(error.starts_with(&format!("s.toml: {want}")), "{error}");
        }
    }
}
