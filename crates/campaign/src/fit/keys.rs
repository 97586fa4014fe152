//! Keys of a plan that are searched, and their values as text.

use plan::Plan;
use plan::units::{parse_rate, parse_size, parse_span, rate_text, size_text, span_text};
use runtime::Span;

use super::FitError;
use super::search::Bounds;

/// A key of a plan, and the range of its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// As in `medium.flash.times.read`.
    pub name: String,
    unit: Unit,
    /// Picoseconds, bytes a second, bytes, or a number.
    from: f64,
    to: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Time,
    Rate,
    Size,
    Number,
}

/// Keys of flash drives, and ranges that no drive exceeds.
const OF_FLASH: &[&str] = &[
    "medium.flash.dies=1..16",
    "medium.flash.times.read=5us..300us",
    "medium.flash.times.read_unit=5us..300us",
    "medium.flash.times.decode=200ns..60us",
    "medium.flash.times.program=50us..5ms",
    "medium.flash.times.suspend_program=1us..1ms",
    "medium.flash.suspensions=1..64",
    "medium.flash.processing.lookup=5ns..10us",
    "medium.flash.processing.split_lookup=10ns..20us",
    "medium.flash.spare_per_mille=40..500",
];
/// Keys of drives of memory cells.
const OF_CELLS: &[&str] = &["medium.timing.first_byte=10ns..100us"];
/// Costs of a command beside the medium.
const OF_ALL: &[&str] = &["device.costs.parse=10ns..20us", "host.costs.block driver=50ns..20us"];

impl Key {
    /// A key with its range: `medium.flash.times.read=20us..200us`.
    ///
    /// # Errors
    /// The text has another form, or its ends are no values of one unit, in order, above zero.
    pub fn parse(text: &str) -> Result<Key, FitError> {
        let wrong = |found: &str, expected: &'static str| FitError::Key {
            found: found.to_owned(),
            expected,
        };
        let expected = "KEY=FROM..TO, as in medium.flash.times.read=20us..200us";
        let (name, range) = text.split_once('=').ok_or_else(|| wrong(text, expected))?;
        let (from, to) = range.split_once("..").ok_or_else(|| wrong(text, expected))?;
        let value = |text: &str| {
            let known = Unit::ALL.iter().find_map(|unit| Some((*unit, unit.value(text.trim())?)));
            known.ok_or_else(|| wrong(text, "a time, a rate, a size, or a whole number"))
        };
        let ((unit, from), (other, to)) = (value(from)?, value(to)?);
        if unit != other || from <= 0.0 || from >= to {
            return Err(wrong(
                text,
                "two values of one unit, the first above zero and the smaller",
            ));
        }
        Ok(Key { name: name.trim().to_owned(), unit, from, to })
    }

    /// The keys of a plan that are searched if none are given.
    pub fn of_plan(plan: &Plan) -> Vec<Key> {
        let medium = if plan.medium.flash.is_some() { OF_FLASH } else { OF_CELLS };
        let all = medium.iter().chain(OF_ALL);
        let keys = all.map(|text| Key::parse(text).expect("a key of ours"));
        // Most chips sense a page as a whole.
        let whole = plan.medium.flash.as_ref().is_none_or(|flash| flash.timing.read_unit.is_none());
        keys.filter(|key| !(whole && key.name == "medium.flash.times.read_unit")).collect()
    }

    /// Whether the drive as it begins depends on the key: not on the times of its parts, nor on its host.
    pub(super) fn is_of_state(&self) -> bool {
        const NOT: [&str; 5] =
            ["medium.flash.times.", "medium.flash.processing.", "host.", "device.", "link."];
        !NOT.iter().any(|table| self.name.starts_with(table))
    }

    pub(super) fn bounds(&self) -> Bounds {
        let is_whole = self.unit == Unit::Number;
        Bounds { from: self.from.ln(), to: self.to.ln(), is_whole }
    }

    /// The plan's value within the range, as a logarithm; the middle of the range if the plan has none.
    pub(super) fn start(&self, plan: &Plan) -> f64 {
        let flash = plan.medium.flash.as_ref();
        let of_chips = || {
            let times = flash?.chip_times();
            times.into_iter().find(|(key, _)| *key == self.name).map(|(_, value)| value)
        };
        let text = written(plan, &self.name).or_else(of_chips);
        let value = text.and_then(|text| self.unit.value(&text)).or_else(|| self.of_shape(plan));
        let (from, to) = (self.from.ln(), self.to.ln());
        match value {
            Some(value) => value.max(self.from).ln().clamp(from, to),
            None if self.name.contains(".processing.") => from,
            None => f64::midpoint(from, to),
        }
    }

    /// Whether the value of a place is the first or the last of the range.
    pub(super) fn is_at_end(&self, place: f64) -> bool {
        let Bounds { from, to, .. } = self.bounds();
        [from, to].iter().any(|end| self.text(*end) == self.text(place))
    }

    /// The value of a key of the chips' number that the plan takes from their profile.
    fn of_shape(&self, plan: &Plan) -> Option<f64> {
        let flash = plan.medium.flash.as_ref()?;
        let geometry = &flash.spec.geometry;
        let number = match self.name.strip_prefix("medium.flash.")? {
            "channels" => geometry.channels,
            "packages" => geometry.packages,
            "dies" => geometry.dies,
            "planes" => geometry.planes,
            "blocks" => geometry.blocks,
            "word_lines" => geometry.word_lines,
            _ => return None,
        };
        Some(number.into())
    }

    /// The value at a place of the search, with three digits.
    pub(super) fn text(&self, place: f64) -> String {
        let value = place.exp();
        let digits = 10_f64.powf(value.log10().floor() - 2.0).max(1.0);
        let value = ((value / digits).round() * digits).round() as u64;
        match self.unit {
            Unit::Time => span_text(Span(value)),
            Unit::Rate => rate_text(value),
            Unit::Size => size_text(value),
            Unit::Number => value.to_string(),
        }
    }
}

/// The value of a key as the plan's settings or its text have it, without its source.
fn written(plan: &Plan, key: &str) -> Option<String> {
    let of_sets = plan.sets.iter().rev().find(|(set, _)| set == key);
    let value = match of_sets {
        // Text without quotes is no value of TOML.
        Some((_, text)) => match toml::from_str::<toml::Table>(&format!("value = {text}")) {
            Ok(table) => table["value"].clone(),
            Err(_) => return Some(text.clone()),
        },
        None => {
            let whole: toml::Value = toml::from_str(&plan.text).ok()?;
            key.split('.').try_fold(whole, |table, part| table.get(part).cloned())?
        }
    };
    let value = value.get("value").cloned().unwrap_or(value);
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

impl Unit {
    const ALL: [Unit; 4] = [Unit::Time, Unit::Rate, Unit::Size, Unit::Number];

    fn value(self, text: &str) -> Option<f64> {
        match self {
            Unit::Time => parse_span(text).ok().map(|span| span.0 as f64),
            Unit::Rate => parse_rate(text).ok().map(|rate| rate as f64),
            Unit::Size => parse_size(text).ok().map(|bytes| bytes as f64),
            Unit::Number => text.parse::<u64>().ok().map(|number| number as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_begin_at_their_plan_and_end_as_text_of_their_unit() {
        let plan = Plan::open("samsung-980-pro-1tb", &[]).expect("a plan");
        let start = |text: &str| {
            let key = Key::parse(text).expect("a key");
            key.text(key.start(&plan))
        };
        assert_eq!(start("medium.flash.times.read=5us..300us"), "85 us");
        assert_eq!(start("medium.flash.times.read_unit=5us..300us"), "39 us");
        // Of the chips, of their number, of the host, without a value, outside of the range, and given.
        assert_eq!(start("medium.flash.times.program=50us..5ms"), "700 us");
        assert_eq!(start("medium.flash.dies=1..16"), "2");
        assert_eq!(start("host.costs.block driver=50ns..20us"), "600 ns");
        assert_eq!(start("medium.flash.processing.lookup=5ns..10us"), "5 ns");
        assert_eq!(start("medium.flash.times.read=100us..300us"), "100 us");
        assert_eq!(start("medium.flash.times.bus=100MB/s..4GB/s"), "1.2 GB/s");
        assert_eq!(start("medium.flash.spare_per_mille=40..500"), "70");
        for (set, found) in [("90", "90"), ("{ value = 80, source = \"mine\" }", "80")] {
            let plan = plan.with_sets([("medium.flash.spare_per_mille", set)]).expect("a plan");
            assert_eq!(written(&plan, "medium.flash.spare_per_mille").as_deref(), Some(found));
        }
        let plan = plan.with_sets([("host.costs.block driver", "1 us")]).expect("a plan");
        assert_eq!(written(&plan, "host.costs.block driver").as_deref(), Some("1 us"));
        let has_unit = |plan: &Plan| {
            Key::of_plan(plan).iter().any(|key| key.name == "medium.flash.times.read_unit")
        };
        assert!(has_unit(&plan));
        assert!(!has_unit(&Plan::open("tlc", &[]).expect("a plan")), "it senses whole pages");
        for key in Key::of_plan(&plan) {
            let text = key.text(key.start(&plan));
            let set = plan.with_sets([(key.name.as_str(), text.as_str())]);
            assert!(set.is_ok(), "{}: {text}", key.name);
        }
    }

    #[test]
    fn ranges_that_are_none_are_refused() {
        for text in ["a", "a=1", "a=1..x", "a=1us..2", "a=2..1", "a=0..1", "a=1..1"] {
            let error = Key::parse(text).expect_err(text).to_string();
            assert!(error.starts_with("--key: found ") && error.contains(", expected "), "{error}");
        }
    }
}
