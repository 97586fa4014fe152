//! Parser of a plan's tables.
//!
//! A parse function reads all keys of its table even after an error, and returns a value only if all of them
//! were valid. So one pass reports all errors.

use std::cell::RefCell;
use std::ops::RangeInclusive;

use runtime::Span;

use super::document::{At, Document, Entries, Node, Value};
use super::errors::{PlanError, PlanErrors, did_you_mean};
use super::units::{UnitError, parse_rate, parse_size, parse_span, span_text};
use super::{ASSUMED, FITTED, Sourced, is_kind};

/// Source of a value that was given by `--set`.
const SET_SOURCE: &str = "assumed: given by --set";

/// Found where a required key is missing.
const NOTHING: &str = "nothing";

/// Whether a value needs a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A cost, a latency, a timing: `{ value = ..., source = "..." }`.
    Required,
    /// A configuration: a plain value, or one with a source.
    Optional,
}

/// Parse state of a document.
pub(super) struct Reader {
    document: Document,
    errors: RefCell<Vec<PlanError>>,
    sources: RefCell<Vec<Sourced>>,
    /// Paths of keys that unknown keys probably mean.
    meant: RefCell<Vec<String>>,
}

/// Parse state of a table.
pub struct Fields<'r> {
    reader: &'r Reader,
    path: String,
    entries: &'r Entries,
    known: RefCell<Vec<&'static str>>,
}

impl Reader {
    pub(super) fn new(document: Document) -> Reader {
        Reader {
            document,
            errors: RefCell::default(),
            sources: RefCell::default(),
            meant: RefCell::default(),
        }
    }

    pub(super) fn root(&self) -> Fields<'_> {
        let Value::Table(entries) = &self.document.root.value else {
            unreachable!("a document is a table")
        };
        self.fields(String::new(), entries)
    }

    fn fields<'r>(&'r self, path: String, entries: &'r Entries) -> Fields<'r> {
        Fields { reader: self, path, entries, known: RefCell::default() }
    }

    /// Reports an error at the value of this path, or at the table that should contain it.
    pub(super) fn error(&self, path: &str, found: impl Into<String>, expected: impl Into<String>) {
        self.error_at(self.document.find(path), path, found.into(), expected.into());
    }

    fn error_at(&self, at: At, path: &str, found: String, expected: String) {
        let (place, key) = (self.document.place(at), path.to_owned());
        self.errors.borrow_mut().push(PlanError { place, key, found, expected });
    }

    /// The sources of all values.
    ///
    /// # Errors
    /// All errors that were reported, in the order of their lines.
    pub(super) fn finish(self, origin: &str) -> Result<Vec<Sourced>, PlanErrors> {
        let (mut errors, meant) = (self.errors.into_inner(), self.meant.into_inner());
        // A misspelt key is one mistake: that the key it means is missing is not another.
        errors.retain(|error| error.found != NOTHING || !meant.contains(&error.key));
        if errors.is_empty() {
            Ok(self.sources.into_inner())
        } else {
            Err(PlanErrors::sorted(origin, errors))
        }
    }
}

impl<'r> Fields<'r> {
    /// Full path of a key of this table.
    pub fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Reports an error at the value of this key.
    pub fn error(&self, key: &str, found: impl Into<String>, expected: impl Into<String>) {
        self.reader.error(&self.path(key), found, expected);
    }

    /// Whether the optional key is present.
    pub fn has(&self, key: &'static str) -> bool {
        self.get(key).is_some()
    }

    /// Whether the optional key is present and is a table.
    pub fn has_table(&self, key: &'static str) -> bool {
        self.get(key).is_some_and(|node| matches!(node.value, Value::Table(_)))
    }

    /// Whether the optional key is present and is a number.
    pub fn has_number(&self, key: &'static str) -> bool {
        self.get(key).is_some_and(|node| matches!(node.value, Value::Integer(..)))
    }

    fn get(&self, key: &'static str) -> Option<&'r Node> {
        if !self.known.borrow().contains(&key) {
            self.known.borrow_mut().push(key);
        }
        self.entries.get(key).map(|entry| &entry.node)
    }

    fn require(&self, key: &'static str, expected: &str) -> Option<&'r Node> {
        let node = self.get(key);
        if node.is_none() {
            self.error(key, NOTHING, expected);
        }
        node
    }

    pub fn table(&self, key: &'static str) -> Option<Fields<'r>> {
        let expected = format!("the table [{}]", self.path(key));
        let node = self.require(key, &expected)?;
        self.as_table(node, self.path(key))
    }

    /// Parses an optional table: the outer none if it is invalid, the inner none if it is absent.
    pub fn table_if<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(Fields<'r>) -> Option<T>,
    ) -> Option<Option<T>> {
        self.given(key, |key| self.table(key).and_then(read))
    }

    /// The value that `read` parses if the key is present, else the default.
    pub fn or<T>(
        &self,
        key: &'static str,
        default: T,
        read: impl FnOnce(&'static str) -> Option<T>,
    ) -> Option<T> {
        if self.has(key) { read(key) } else { Some(default) }
    }

    /// Parses an optional key: the outer none if it is invalid, the inner none if it is absent.
    pub fn given<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&'static str) -> Option<T>,
    ) -> Option<Option<T>> {
        self.or(key, None, |key| read(key).map(Some))
    }

    pub fn boolean_or(&self, key: &'static str, default: bool) -> Option<bool> {
        self.or(key, default, |key| self.boolean(key))
    }

    /// A whole number in this range that needs no source.
    pub fn number_or(
        &self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        self.or(key, default, |key| self.number(key, Source::Optional, range))
    }

    pub fn choice_or<T: Copy>(&self, key: &'static str, default: T, of: &[(&str, T)]) -> Option<T> {
        self.or(key, default, |key| self.choice(key, of))
    }

    /// A span in this range that needs no source.
    pub fn span_or(
        &self,
        key: &'static str,
        default: Span,
        range: RangeInclusive<Span>,
    ) -> Option<Span> {
        self.or(key, default, |key| self.span(key, Source::Optional, range))
    }

    fn as_table(&self, node: &'r Node, path: String) -> Option<Fields<'r>> {
        match &node.value {
            Value::Table(entries) => Some(self.reader.fields(path, entries)),
            _ => {
                self.reader.error(&path, node.in_words(), "a table");
                None
            }
        }
    }

    /// The tables of an optional array.
    pub fn tables(&self, key: &'static str) -> Vec<Fields<'r>> {
        let Some(node) = self.get(key) else { return Vec::new() };
        let Value::Array(items) = &node.value else {
            self.error(key, node.in_words(), format!("tables [[{}]]", self.path(key)));
            return Vec::new();
        };
        let paths = (0..).map(|index| self.path(&format!("{key}.{index}")));
        items.iter().zip(paths).filter_map(|(item, path)| self.as_table(item, path)).collect()
    }

    /// The value of a key. Its source is recorded.
    fn value(&self, key: &'static str, source: Source, expected: &str) -> Option<&'r Node> {
        let due = format!("{{ value = ..., source = \"...\" }} whose value is {expected}");
        let whole = if source == Source::Required { &due } else { expected };
        let node = self.require(key, whole)?;
        match &node.value {
            Value::Table(entries) => self.sourced(key, entries, expected),
            _ if matches!(node.at, At::Set(_)) => {
                self.record(key, node, SET_SOURCE);
                Some(node)
            }
            _ if source == Source::Required => {
                self.error(key, format!("{} without a source", node.in_words()), whole);
                None
            }
            _ => Some(node),
        }
    }

    /// The value of `{ value = ..., source = "..." }`.
    fn sourced(&self, key: &'static str, entries: &'r Entries, expected: &str) -> Option<&'r Node> {
        let fields = self.reader.fields(self.path(key), entries);
        let value = fields.require("value", expected);
        let source =
            fields.text("source", "the source of the value, or \"assumed: \" and the reason");
        fields.done();
        let (value, source) = (value?, source?);
        let set = |key| matches!(entries[key].node.at, At::Set(_));
        let source = if set("value") && !set("source") { SET_SOURCE.to_owned() } else { source };
        self.record(key, value, &source);
        Some(value)
    }

    fn record(&self, key: &'static str, value: &Node, source: &str) {
        let is_fitted = is_kind(source, FITTED);
        if is_fitted && self.reader.root().get("drive").is_none() {
            let expected = "a source, or \"assumed: \" and the reason, or the plan's key drive: the table of \
                measurements that the value is fitted to";
            self.error(key, "a fitted value", expected);
        }
        self.reader.sources.borrow_mut().push(Sourced {
            key: self.path(key),
            value: value.listed(),
            source: source.to_owned(),
            assumed: is_fitted || is_kind(source, ASSUMED),
        });
    }

    /// A text that is not blank.
    pub fn text(&self, key: &'static str, expected: &str) -> Option<String> {
        let node = self.require(key, expected)?;
        match &node.value {
            Value::Text(text) if !text.trim().is_empty() => Some(text.clone()),
            _ => {
                self.error(key, node.in_words(), expected);
                None
            }
        }
    }

    pub fn boolean(&self, key: &'static str) -> Option<bool> {
        let expected = "true or false";
        let node = self.value(key, Source::Optional, expected)?;
        match node.value {
            Value::Boolean(value) => Some(value),
            _ => {
                self.error(key, node.in_words(), expected);
                None
            }
        }
    }

    pub fn choice<T: Copy>(&self, key: &'static str, of: &[(&str, T)]) -> Option<T> {
        let words: Vec<_> = of.iter().map(|(word, _)| format!("{word:?}")).collect();
        self.word(key, &words.join(" or "), |text| {
            of.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice)
        })
    }

    /// A word that `parse` knows.
    pub fn word<T>(
        &self,
        key: &'static str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let node = self.value(key, Source::Optional, expected)?;
        let meant = match &node.value {
            Value::Text(text) => parse(text),
            _ => None,
        };
        if meant.is_none() {
            self.error(key, node.in_words(), expected);
        }
        meant
    }

    /// A whole number in this range.
    pub fn number(
        &self,
        key: &'static str,
        source: Source,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.number_where(key, source, |n| range.contains(&n), &expected)
    }

    /// A whole number that satisfies `good`.
    pub fn number_where(
        &self,
        key: &'static str,
        source: Source,
        good: impl Fn(u64) -> bool,
        expected: &str,
    ) -> Option<u64> {
        let node = self.value(key, source, expected)?;
        let number = match node.value {
            Value::Integer(Some(n), _) => u64::try_from(n).ok().filter(|n| good(*n)),
            _ => None,
        };
        if number.is_none() {
            self.error(key, node.in_words(), expected);
        }
        number
    }

    /// A 64-bit address: a number, or hexadecimal text such as `"0x1_0000_0000"`, because TOML's integers are
    /// signed.
    pub fn address(
        &self,
        key: &'static str,
        good: impl Fn(u64) -> bool,
        expected: &str,
    ) -> Option<u64> {
        let node = self.value(key, Source::Optional, expected)?;
        let address = match &node.value {
            Value::Integer(Some(n), _) => u64::try_from(*n).ok(),
            Value::Text(text) => {
                let hex = text.strip_prefix("0x").map(|digits| digits.replace('_', ""));
                // `from_str_radix` accepts a sign.
                hex.filter(|digits| !digits.starts_with('+'))
                    .and_then(|digits| u64::from_str_radix(&digits, 16).ok())
            }
            _ => None,
        };
        let address = address.filter(|address| good(*address));
        if address.is_none() {
            self.error(key, node.in_words(), expected);
        }
        address
    }

    /// A quantity with a unit that satisfies `good`.
    fn quantity(
        &self,
        key: &'static str,
        source: Source,
        parse: impl Fn(&str) -> Result<u64, UnitError>,
        good: impl Fn(u64) -> bool,
        expected: &str,
    ) -> Option<u64> {
        let node = self.value(key, source, expected)?;
        let found = match &node.value {
            Value::Text(text) => match parse(text) {
                Ok(quantity) if good(quantity) => return Some(quantity),
                Ok(_) => node.in_words(),
                Err(error) => format!("{}, which {error}", node.in_words()),
            },
            Value::Integer(..) | Value::Other(_) => format!("{}, without a unit", node.in_words()),
            _ => node.in_words(),
        };
        self.error(key, found, expected);
        None
    }

    /// A size in bytes that satisfies `good`.
    pub fn size(
        &self,
        key: &'static str,
        source: Source,
        good: impl Fn(u64) -> bool,
        expected: &str,
    ) -> Option<u64> {
        self.quantity(key, source, parse_size, good, expected)
    }

    /// A span in this range.
    pub fn span(
        &self,
        key: &'static str,
        source: Source,
        range: RangeInclusive<Span>,
    ) -> Option<Span> {
        let (low, high) = (span_text(*range.start()), span_text(*range.end()));
        let expected = format!("a span from {low} to {high}, such as \"110 ns\"");
        let parse = |text: &str| parse_span(text).map(|span| span.0);
        let good = |ps| range.contains(&Span(ps));
        self.quantity(key, source, parse, good, &expected).map(Span)
    }

    /// A cost: the time of one execution, at most a second. Its source is required.
    pub fn cost(&self, key: &'static str) -> Option<Span> {
        self.span(key, Source::Required, Span::ZERO..=Span::s(1))
    }

    /// A rate of at least one and at most 10^13 bytes a second.
    pub fn rate(&self, key: &'static str, source: Source) -> Option<u64> {
        let expected = "a rate from 1 B/s to 10 TB/s, such as \"2 GB/s\"";
        self.quantity(key, source, parse_rate, |n| (1..=10_000_000_000_000).contains(&n), expected)
    }

    /// Reports unknown keys: those that were never read. It must be the last call.
    pub fn done(self) {
        let known = self.known.borrow();
        for (key, entry) in self.entries {
            if known.contains(&key.as_str()) {
                continue;
            }
            let mut expected = format!("one of {}", known.join(", "));
            if let Some(meant) = did_you_mean(key, &known) {
                expected.push_str(&format!(": did you mean {meant}?"));
                self.reader.meant.borrow_mut().push(self.path(meant));
            }
            let found = "an unknown key".to_owned();
            self.reader.error_at(entry.key_at, &self.path(key), found, expected);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(text: &str, sets: &[(&str, &str)]) -> Reader {
        let no_base = |_: &str, _: &str| unreachable!("the text has no base");
        Reader::new(Document::parse(text, "p.toml", sets, &no_base).unwrap())
    }

    #[test]
    fn sources_are_recorded_and_assumed_is_a_whole_word() {
        let text = "a = { value = \"1 ns\", source = \"a table\" }\n\
            b = { value = \"2 ns\", source = \"assumed\" }\n\
            c = { value = \"3 ns\", source = \"assumed: why\" }\n\
            d = { value = \"4 ns\", source = \"assumedly a table\" }\n\
            e = 5\n";
        let reader = reader(text, &[]);
        let root = reader.root();
        for (key, ns) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
            assert_eq!(root.cost(key), Some(Span::ns(ns)));
        }
        assert_eq!(root.number("e", Source::Optional, 0..=9), Some(5));
        root.done();
        let sources = reader.finish("p.toml").unwrap();
        let assumed: Vec<_> = sources.iter().map(|s| (s.key.as_str(), s.assumed)).collect();
        assert_eq!(assumed, [("a", false), ("b", true), ("c", true), ("d", false)]);
        assert_eq!((sources[0].value.as_str(), sources[0].source.as_str()), ("1 ns", "a table"));
    }

    #[test]
    fn a_set_value_loses_its_source() {
        let text = "a = { value = \"1 ns\", source = \"a table\" }\n\
            b = { value = \"2 ns\", source = \"a table\" }\nc = 3\n";
        let sets = [
            ("a", "7 ns"),
            ("b.value", "8 ns"),
            ("c", "9"),
            ("d", "{ value = \"10 ns\", source = \"mine\" }"),
        ];
        let reader = reader(text, &sets);
        let root = reader.root();
        assert_eq!(root.cost("a"), Some(Span::ns(7)));
        assert_eq!(root.cost("b"), Some(Span::ns(8)));
        assert_eq!(root.number("c", Source::Optional, 0..=9), Some(9));
        assert_eq!(root.cost("d"), Some(Span::ns(10)));
        let sources = reader.finish("p.toml").unwrap();
        let texts: Vec<_> = sources.iter().map(|s| s.source.as_str()).collect();
        assert_eq!(texts, [SET_SOURCE, SET_SOURCE, SET_SOURCE, "mine"]);
        assert!(sources[0].assumed && !sources[3].assumed);
    }

    #[test]
    fn addresses_are_integers_or_hexadecimal_text() {
        let text = "a = \"0x1_0000_0000\"\nb = 4096\nc = \"12\"\nd = \"0x\"\ne = \"0x+1\"\n\
            f = \"0xffff_ffff_ffff_ffff\"\ng = -1\n";
        let reader = reader(text, &[]);
        let root = reader.root();
        let address = |key| root.address(key, |_| true, "an address");
        assert_eq!(address("a"), Some(1 << 32));
        assert_eq!(address("b"), Some(4096));
        assert_eq!(address("f"), Some(u64::MAX));
        for key in ["c", "d", "e", "g"] {
            assert_eq!(address(key), None, "{key}");
        }
        let errors = reader.finish("p.toml").unwrap_err();
        assert_eq!(errors.errors.len(), 4);
    }
}
