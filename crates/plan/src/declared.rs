//! Keys that are declared by the crate that uses them: [`runtime::Key`].

use std::fmt;

use runtime::{Key, Span, Unit};

use super::fields::{Fields, Source};
use super::report::line;
use super::units::{rate_text, size_text, span_text};

impl Fields<'_> {
    /// Parses these keys into their struct and reports every error; none if there is an error.
    pub(super) fn declared<T: Default>(&self, keys: &[Key<T>]) -> Option<T> {
        let values: Vec<_> = keys.iter().map(|key| self.declared_value(key)).collect();
        let mut all = T::default();
        for (key, value) in keys.iter().zip(values) {
            key.set(&mut all, value?);
        }
        Some(all)
    }

    fn declared_value<T>(&self, key: &Key<T>) -> Option<u64> {
        if key.default.is_some() && !self.has(key.name) {
            return key.default;
        }
        let source = if key.sourced { Source::Required } else { Source::Optional };
        let (least, most) = (size_text(*key.range.start()), size_text(*key.range.end()));
        let sized = |expected: String| self.size(key.name, source, |n| key.takes(n), &expected);
        match key.unit {
            Unit::Number => self.number(key.name, source, key.range.clone()),
            Unit::Flag => self.boolean(key.name).map(u64::from),
            Unit::Span => {
                let range = Span(*key.range.start())..=Span(*key.range.end());
                self.span(key.name, source, range).map(|span| span.0)
            }
            Unit::PowerOfTwo => sized(format!("a power of two from \"{least}\" to \"{most}\"")),
            Unit::Multiple(1) => sized(format!("from \"{least}\" to \"{most}\"")),
            Unit::Multiple(of) => {
                sized(format!("a multiple of {}, at most \"{most}\"", size_text(of)))
            }
            Unit::Rate => self.rate(key.name, source),
        }
    }
}

/// A value as it is written in a plan.
fn text_of(unit: Unit, value: u64) -> String {
    match unit {
        Unit::Number => value.to_string(),
        Unit::Flag => (value == 1).to_string(),
        Unit::Span => span_text(Span(value)),
        Unit::PowerOfTwo | Unit::Multiple(_) => size_text(value),
        Unit::Rate => rate_text(value),
    }
}

/// Writes a line of the report for each optional key whose value is not its default. Required keys are in the
/// report through the quantities derived from them.
pub(super) fn report<T>(out: &mut String, keys: &[Key<T>], of: &T) -> fmt::Result {
    for key in keys.iter().filter(|key| key.default.is_some_and(|value| value != key.get(of))) {
        line(out, &key.name.replace('_', " "), text_of(key.unit, key.get(of)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use crate::base_of_name;
    use crate::document::Document;
    use crate::fields::Reader;
    use media::Timing;
    use media::disks::{Array, Mechanics};

    /// Values of a key: the ends of its range, and one between them if there is one.
    fn values<T>(key: &Key<T>) -> Vec<u64> {
        let (least, most) = (*key.range.start(), *key.range.end());
        let between = least.max(1).next_power_of_two() * 2;
        [least, most, between].into_iter().filter(|n| key.takes(*n)).collect()
    }

    /// Parses the table of these keys with one of them set and all other required keys at their minimum.
    fn parse_with_one_set<T: Default>(
        keys: &[Key<T>],
        name: &str,
        text: &str,
    ) -> Result<T, String> {
        let required = keys.iter().filter(|key| key.default.is_none());
        let lines = required.map(|key| match text_of(key.unit, values(key)[0]) {
            value if key.unit == Unit::Flag => format!("{} = {value}\n", key.name),
            value if key.unit == Unit::Number => {
                format!("{} = {{ value = {value}, source = \"a table\" }}\n", key.name)
            }
            value => format!("{} = {{ value = {value:?}, source = \"a table\" }}\n", key.name),
        });
        let document =
            Document::parse(&lines.collect::<String>(), "p.toml", &[(name, text)], &base_of_name);
        let reader = Reader::new(document.map_err(|errors| errors.to_string())?);
        let root = reader.root();
        let read = root.declared(keys);
        root.done();
        let sources = reader.finish("p.toml").map_err(|errors| errors.to_string())?;
        assert!(
            sources.iter().any(|from| from.key == name && from.value == text),
            "{name} = {text}"
        );
        Ok(read.expect("no error was reported"))
    }

    /// Every key accepts the ends of its range and is reported. An invalid value is rejected in one line that
    /// names the key.
    fn check_keys<T: Default>(keys: &[Key<T>], read: impl Fn(&str, &str) -> Result<T, String>) {
        for key in keys {
            for value in values(key) {
                let text = text_of(key.unit, value);
                let table = read(key.name, &text).unwrap_or_else(|error| panic!("{text}: {error}"));
                assert_eq!(key.get(&table), value, "{} = {text}", key.name);
                let mut lines = String::new();
                report(&mut lines, keys, &table).expect("a string");
                let label = format!("  {:<24}{text}\n", key.name.replace('_', " "));
                let is_reported = key.default.is_some_and(|default| default != value);
                assert_eq!(lines, if is_reported { label } else { String::new() });
            }
            let (least, most) = (*key.range.start(), *key.range.end());
            let outside = [least.checked_sub(1), most.checked_add(1), Some(least + 3)];
            let outside = outside.into_iter().flatten();
            let outside = outside.filter(|n| !key.takes(*n) && key.unit != Unit::Flag);
            let odd = ["-1", "nonsense", "\"\"", "[]", "{ value = 1 }", "1979-05-27", "1.5 ells"];
            for text in outside.map(|n| text_of(key.unit, n)).chain(odd.map(String::from)) {
                let error =
                    read(key.name, &text).err().unwrap_or_else(|| panic!("{} = {text}", key.name));
                assert!(error.contains(key.name) && error.contains(": found "), "{text}: {error}");
                assert_eq!(error.lines().count(), 1, "{error}");
            }
        }
    }

    #[test]
    fn declared_keys_accept_only_their_range() {
        check_keys(Timing::KEYS, |name, text| parse_with_one_set(Timing::KEYS, name, text));
        check_keys(Array::KEYS, |name, text| parse_with_one_set(Array::KEYS, name, text));
        check_keys(Mechanics::KEYS, |name, text| parse_with_one_set(Mechanics::KEYS, name, text));
    }

    #[test]
    fn declared_keys_of_a_plan_reach_its_medium() {
        check_keys(Timing::KEYS, |name, text| {
            let path = format!("medium.timing.{name}");
            let plan = Plan::open("gen4", &[(&path, text)]).map_err(|errors| errors.to_string())?;
            let listed = plan.sources.iter().any(|from| from.key == path && from.value == text);
            assert!(listed, "{path} = {text}");
            Ok(plan.medium.timing().expect("gen4 has DRAM").clone())
        });
    }

    #[test]
    fn a_declared_key_without_a_default_is_required() {
        for key in Timing::KEYS.iter().filter(|key| key.default.is_none()) {
            let reader = Reader::new(
                Document::parse("", "p.toml", &[], &base_of_name).expect("an empty text"),
            );
            assert!(reader.root().declared(Timing::KEYS).is_none());
            let error = reader.finish("p.toml").expect_err("nothing is there").to_string();
            let path = format!(": {}: found nothing, expected ", key.name);
            assert!(error.contains(&path), "{path:?} in\n{error}");
        }
    }
}
