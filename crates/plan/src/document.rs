//! The text of a plan as a tree whose every value knows where it stands, in the text or beside it.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{Place, PlanError, PlanErrors};

/// The longest text that is read, in bytes.
pub(super) const TEXT_MAX: usize = 1 << 20;

/// Where a value or a key stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// So many bytes into the text.
    Offset(usize),
    /// In the setting of this number.
    Set(usize),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: At,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Text(String),
    /// The integer, or nothing where it does not fit, and as it is written.
    Integer(Option<i128>, String),
    Boolean(bool),
    Array(Vec<Node>),
    Table(Entries),
    /// What no plan holds, in words: a float, a date.
    Other(String),
}

/// A table: keys, with their places and values.
pub(super) type Entries = BTreeMap<String, Entry>;

/// A key's place and its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key_at: At,
    pub(super) node: Node,
}

/// A plan's text, read as TOML, with what was set beside it.
pub(super) struct Document {
    text: String,
    /// Where each line begins, in bytes.
    lines: Vec<usize>,
    /// The settings as they were written: `key=value`.
    sets: Vec<String>,
    pub(super) root: Node,
}

impl Document {
    /// Reads the text, then puts every setting in the place of what the text says there.
    pub(super) fn parse(
        text: &str,
        origin: &str,
        sets: &[(&str, &str)],
    ) -> Result<Document, PlanErrors> {
        if text.len() > TEXT_MAX {
            let found = format!("{} bytes", text.len());
            return Err(PlanErrors::whole(origin, found, "a plan of at most 1 MiB"));
        }
        let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
        let (table, wrong) = DeTable::parse_recoverable(text);
        let root = node_of(table.span(), DeValue::Table(table.into_inner()));
        let mut document = Document {
            text: text.to_owned(),
            lines: std::iter::once(0).chain(starts).collect(),
            sets: sets.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            root,
        };
        let mut errors: Vec<_> = wrong.iter().map(|error| document.syntax(error)).collect();
        for (index, (key, value)) in sets.iter().enumerate() {
            if let Err((found, expected)) = set(&mut document.root, index, key, value) {
                let place = document.place(At::Set(index));
                errors.push(PlanError { place, key: (*key).to_owned(), found, expected });
            }
        }
        if errors.is_empty() { Ok(document) } else { Err(PlanErrors::sorted(origin, errors)) }
    }

    fn syntax(&self, error: &toml::de::Error) -> PlanError {
        let at = error.span().map_or(self.text.len(), |span| span.start);
        PlanError {
            place: self.place(At::Offset(at)),
            key: String::new(),
            found: format!("what is no TOML ({})", error.message()),
            expected: "a TOML document".to_owned(),
        }
    }

    /// The place, in lines and columns.
    pub(super) fn place(&self, at: At) -> Place {
        match at {
            At::Set(index) => Place::Set(self.sets[index].clone()),
            At::Offset(offset) => {
                let line = self.lines.partition_point(|start| *start <= offset);
                let before = self.text.get(self.lines[line - 1]..offset).unwrap_or_default();
                Place::At { line, column: before.chars().count() + 1 }
            }
        }
    }

    /// Where the value of this dotted path stands, or of as much of the path as there is. A value
    /// with its source stands where the value does.
    pub(super) fn find(&self, path: &str) -> At {
        let mut node = &self.root;
        for part in path.split('.') {
            let next = match &node.what {
                What::Table(entries) => entries.get(part).map(|entry| &entry.node),
                What::Array(items) => part.parse().ok().and_then(|index: usize| items.get(index)),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => return node.at,
            }
        }
        match &node.what {
            What::Table(entries) => entries.get("value").map_or(node.at, |entry| entry.node.at),
            _ => node.at,
        }
    }
}

impl Node {
    /// The value in words, for an error that says what it found.
    pub(super) fn in_words(&self) -> String {
        match &self.what {
            What::Text(text) => format!("{text:?}"),
            What::Integer(_, text) => text.clone(),
            What::Boolean(value) => value.to_string(),
            What::Array(_) => "an array".to_owned(),
            What::Table(_) => "a table".to_owned(),
            What::Other(words) => words.clone(),
        }
    }

    /// The value as it is listed: text without its quotes.
    pub(super) fn listed(&self) -> String {
        match &self.what {
            What::Text(text) => text.clone(),
            _ => self.in_words(),
        }
    }
}

/// The parser bounds how deep values nest, and so this recursion.
fn node_of(span: Range<usize>, value: DeValue<'_>) -> Node {
    let what = match value {
        DeValue::String(text) => What::Text(text.into_owned()),
        DeValue::Integer(integer) => {
            let value = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
            What::Integer(value, integer.to_string())
        }
        DeValue::Float(float) => What::Other(float.to_string()),
        DeValue::Boolean(value) => What::Boolean(value),
        DeValue::Datetime(date) => What::Other(format!("the date {date}")),
        DeValue::Array(items) => What::Array(items.into_iter().map(spanned).collect()),
        DeValue::Table(table) => What::Table(
            table
                .into_iter()
                .map(|(key, value)| {
                    let key_at = At::Offset(key.span().start);
                    (key.into_inner().into_owned(), Entry { key_at, node: spanned(value) })
                })
                .collect(),
        ),
    };
    Node { at: At::Offset(span.start), what }
}

fn spanned(value: Spanned<DeValue<'_>>) -> Node {
    node_of(value.span(), value.into_inner())
}

/// Puts a value at a dotted path, making the tables on the way. The value is TOML, or else a text
/// that needs no quotes: a command line has taken them already.
fn set(root: &mut Node, index: usize, path: &str, value: &str) -> Result<(), (String, String)> {
    let at = At::Set(index);
    let mut value = match DeValue::parse(value) {
        Ok(value) => spanned(value),
        Err(_) => Node { at, what: What::Text(value.to_owned()) },
    };
    move_to(&mut value, at);
    let parts: Vec<&str> = path.split('.').map(|part| part.trim().trim_matches('"')).collect();
    let (Some((last, way)), false) = (parts.split_last(), parts.contains(&"")) else {
        return Err((format!("the path {path:?}"), "keys with dots between them".to_owned()));
    };
    let mut node = root;
    for part in way.iter().chain([last]) {
        let in_words = node.in_words();
        node = match &mut node.what {
            What::Table(entries) => {
                let new =
                    || Entry { key_at: at, node: Node { at, what: What::Table(Entries::new()) } };
                &mut entries.entry((*part).to_owned()).or_insert_with(new).node
            }
            What::Array(items) => {
                let length = items.len();
                let item = part.parse().ok().and_then(|index: usize| items.get_mut(index));
                let expected = || format!("the number of one of its {length} items");
                item.ok_or_else(|| (format!("{part:?} in an array"), expected()))?
            }
            _ => {
                return Err((format!("{part:?} in {in_words}"), "a table to set it in".to_owned()));
            }
        };
    }
    *node = value;
    Ok(())
}

/// Everything in a value that was set stands where it was set.
fn move_to(node: &mut Node, at: At) {
    node.at = at;
    match &mut node.what {
        What::Array(items) => items.iter_mut().for_each(|item| move_to(item, at)),
        What::Table(entries) => entries.values_mut().for_each(|entry| {
            entry.key_at = at;
            move_to(&mut entry.node, at);
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"x\"\n\n[link]\nlanes = 0x1_0\n  mps = { value = \"128 B\" }\n\
        [[link.hops]]\nname = \"one\"\n[[link.hops]]\nname = \"twö\"\n";

    fn parsed(sets: &[(&str, &str)]) -> Document {
        Document::parse(TEXT, "x.toml", sets).unwrap()
    }

    fn refused(text: &str, sets: &[(&str, &str)]) -> String {
        Document::parse(text, "x.toml", sets).err().expect("an error").to_string()
    }

    fn line_and_column(document: &Document, path: &str) -> (usize, usize) {
        match document.place(document.find(path)) {
            Place::At { line, column } => (line, column),
            other => panic!("{other:?}"),
        }
    }

    fn value<'d>(document: &'d Document, path: &str) -> &'d Node {
        let mut node = &document.root;
        for part in path.split('.') {
            node = match &node.what {
                What::Table(entries) => &entries[part].node,
                What::Array(items) => &items[part.parse::<usize>().unwrap()],
                other => panic!("{other:?}"),
            };
        }
        node
    }

    #[test]
    fn every_value_knows_its_place() {
        let document = parsed(&[]);
        assert_eq!(line_and_column(&document, "name"), (1, 8));
        assert_eq!(line_and_column(&document, "link"), (3, 1));
        assert_eq!(line_and_column(&document, "link.lanes"), (4, 9));
        assert_eq!(line_and_column(&document, "link.mps.value"), (5, 19));
        assert_eq!(line_and_column(&document, "link.mps"), (5, 19));
        assert_eq!(line_and_column(&document, "link.mps.source"), (5, 9));
        assert_eq!(line_and_column(&document, "link.hops.1.name"), (9, 8));
        assert_eq!(line_and_column(&document, "link.hops.1.latency"), (8, 1));
        assert_eq!(line_and_column(&document, "link.nothing.there"), (3, 1));
        assert_eq!(line_and_column(&document, "nothing"), (1, 1));
        assert!(matches!(&value(&document, "link.lanes").what,
            What::Integer(Some(16), text) if text == "0x10"));
    }

    #[test]
    fn settings_replace_and_add() {
        let document = parsed(&[
            ("link.lanes", "8"),
            ("link.mps.value", "256 B"),
            ("link.hops.0.name", "\"8\""),
            ("host.costs.context switch", "1 us"),
            ("link.list", "[1, { a = 2 }]"),
        ]);
        assert!(matches!(value(&document, "link.lanes").what, What::Integer(Some(8), _)));
        assert!(matches!(&value(&document, "link.mps.value").what,
            What::Text(text) if text == "256 B"));
        assert!(matches!(&value(&document, "link.hops.0.name").what,
            What::Text(text) if text == "8"));
        assert!(matches!(&value(&document, "host.costs.context switch").what,
            What::Text(text) if text == "1 us"));
        assert!(matches!(value(&document, "link.list.1.a").what, What::Integer(Some(2), _)));
        let place = document.place(document.find("link.list.1.a"));
        assert_eq!(place, Place::Set("link.list=[1, { a = 2 }]".to_owned()));
        let other = document.place(document.find("link.mps.source"));
        assert!(matches!(other, Place::At { line: 5, .. }), "the rest stays where it was");
    }

    #[test]
    fn settings_that_lead_nowhere_are_refused() {
        assert_eq!(
            refused(TEXT, &[("link.lanes.x", "8")]),
            "x.toml, --set link.lanes.x=8: link.lanes.x: found \"x\" in 0x10, \
             expected a table to set it in"
        );
        assert_eq!(
            refused(TEXT, &[("link..x", "8")]),
            "x.toml, --set link..x=8: link..x: found the path \"link..x\", \
             expected keys with dots between them"
        );
        assert_eq!(
            refused(TEXT, &[("link.hops.2.name", "8")]),
            "x.toml, --set link.hops.2.name=8: link.hops.2.name: found \"2\" in an array, \
             expected the number of one of its 2 items"
        );
    }

    #[test]
    fn all_errors_of_the_text_are_told_and_columns_count_characters() {
        let said = refused("a = \nb = 1\n\"ö\" = x\nb = 2\n", &[]);
        let places: Vec<_> = said.lines().map(|line| line.split(": ").next().unwrap()).collect();
        assert_eq!(places, ["x.toml:1:5", "x.toml:3:7", "x.toml:4:1"], "{said}");
        assert!(said.contains("duplicate key"), "{said}");
        let long = refused(&"#".repeat(TEXT_MAX + 1), &[]);
        assert_eq!(long, "x.toml: found 1048577 bytes, expected a plan of at most 1 MiB");
    }

    #[test]
    fn nesting_without_end_is_refused() {
        let said = refused(&format!("a = {}", "[".repeat(100_000)), &[]);
        assert!(said.contains("found what is no TOML"), "{said}");
    }
}
