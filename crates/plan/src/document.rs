//! The text of a plan as a tree, merged over its base plans. Every value has its position: in one of the
//! texts, or in a `--set` option.

use std::collections::{BTreeMap, btree_map};
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::errors::{Place, PlanError, PlanErrors};

/// Maximum length of a plan's text, in bytes.
pub(super) const TEXT_MAX: usize = 1 << 20;

/// Position of a value or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// Number of the text and byte offset in it. Text 0 is the plan's own; each further one is the base of
    /// the one before.
    Offset(usize, usize),
    /// Index of the `--set` option.
    Set(usize),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) at: At,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Text(String),
    /// The integer, none if it does not fit, and its text.
    Integer(Option<i128>, String),
    Boolean(bool),
    Array(Vec<Node>),
    Table(Entries),
    /// A value that no plan key accepts, as text: a float, a date.
    Other(String),
}

/// A table: keys with their positions and values.
pub(super) type Entries = BTreeMap<String, Entry>;

/// A key's position and its value.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key_at: At,
    pub(super) node: Node,
}

/// Maximum number of texts: a plan, its base, the base of that.
const TEXTS_MAX: usize = 8;

/// Name for errors and text of a base plan: given the name or path in `base`, and the name of the text that
/// has it.
pub(super) type Bases<'a> = &'a dyn Fn(&str, &str) -> Result<(String, String), PlanErrors>;

struct Text {
    origin: String,
    text: String,
    /// Byte offset of each line.
    lines: Vec<usize>,
}

/// A plan's text, parsed as TOML, merged over its bases, with the `--set` options applied.
pub(super) struct Document {
    texts: Vec<Text>,
    /// The `--set` options as they were given: `key=value`.
    sets: Vec<String>,
    pub(super) root: Node,
    /// The merged plan as TOML, before the settings: it parses to the same plan.
    pub(super) merged: String,
}

impl Document {
    /// Parses the text and those of its bases, then applies the settings in order.
    pub(super) fn parse(
        text: &str,
        origin: &str,
        sets: &[(&str, &str)],
        bases: Bases<'_>,
    ) -> Result<Document, PlanErrors> {
        let root = Node { at: At::Offset(0, 0), value: Value::Table(Entries::new()) };
        let sets_text = sets.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let mut document =
            Document { texts: Vec::new(), sets: sets_text, root, merged: String::new() };
        document.root = document.read(text, origin, bases)?;
        document.merged = toml::to_string(&toml_of(&document.root)).expect("a tree of TOML values");
        let mut errors = Vec::new();
        for (index, (key, value)) in sets.iter().enumerate() {
            if let Err((found, expected)) = set(&mut document.root, index, key, value) {
                let place = document.place(At::Set(index));
                errors.push(PlanError { place, key: (*key).to_owned(), found, expected });
            }
        }
        if errors.is_empty() { Ok(document) } else { Err(PlanErrors::sorted(origin, errors)) }
    }

    /// Parses one text, and merges it over its base.
    fn read(&mut self, text: &str, origin: &str, bases: Bases<'_>) -> Result<Node, PlanErrors> {
        if text.len() > TEXT_MAX {
            let found = format!("{} bytes", text.len());
            return Err(PlanErrors::whole(origin, found, "a plan of at most 1 MiB"));
        }
        let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at + 1);
        let lines = std::iter::once(0).chain(starts).collect();
        let number = self.texts.len();
        self.texts.push(Text { origin: origin.to_owned(), text: text.to_owned(), lines });
        let (table, wrong) = DeTable::parse_recoverable(text);
        let mut node = node_of(number, table.span(), DeValue::Table(table.into_inner()));
        let errors: Vec<_> = wrong.iter().map(|error| self.syntax(number, error)).collect();
        if !errors.is_empty() {
            return Err(PlanErrors::sorted(origin, errors));
        }
        let Value::Table(entries) = &mut node.value else { unreachable!("a document is a table") };
        let Some(Entry { node: base, .. }) = entries.remove("base") else { return Ok(node) };
        let wrong = |document: &Document, found: String, expected: &str| {
            let (place, key, expected) =
                (document.place(base.at), "base".into(), expected.to_owned());
            PlanErrors {
                origin: origin.to_owned(),
                errors: vec![PlanError { place, key, found, expected }],
            }
        };
        let Value::Text(name) = &base.value else {
            return Err(wrong(self, base.in_words(), "the name or the path of a plan"));
        };
        if number + 1 == TEXTS_MAX {
            return Err(wrong(
                self,
                base.in_words(),
                "at most 7 plans, each the base of the one before",
            ));
        }
        let (base_origin, base_text) = bases(name, origin)?;
        let changed = count(&node);
        let mut merged = self.read(&base_text, &base_origin, bases)?;
        describe(&mut merged, origin, name, changed);
        merge(&mut merged, node);
        Ok(merged)
    }

    fn syntax(&self, number: usize, error: &toml::de::Error) -> PlanError {
        let at = error.span().map_or(self.texts[number].text.len(), |span| span.start);
        PlanError {
            place: self.place(At::Offset(number, at)),
            key: String::new(),
            found: format!("what is no TOML ({})", error.message()),
            expected: "a TOML document".to_owned(),
        }
    }

    /// The position as line and column.
    pub(super) fn place(&self, at: At) -> Place {
        match at {
            At::Set(index) => Place::Set(self.sets[index].clone()),
            At::Offset(number, offset) => {
                let Text { origin, text, lines } = &self.texts[number];
                let line = lines.partition_point(|start| *start <= offset);
                let before = text.get(lines[line - 1]..offset).unwrap_or_default();
                let column = before.chars().count() + 1;
                match number {
                    0 => Place::At { line, column },
                    _ => Place::Base { origin: origin.clone(), line, column },
                }
            }
        }
    }

    /// Position of the value at this dotted path, or of the longest prefix of the path that exists. For a
    /// value with a source it is the position of the value.
    pub(super) fn find(&self, path: &str) -> At {
        let mut node = &self.root;
        for part in path.split('.') {
            let next = match &node.value {
                Value::Table(entries) => entries.get(part).map(|entry| &entry.node),
                Value::Array(items) => part.parse().ok().and_then(|index: usize| items.get(index)),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => return node.at,
            }
        }
        match &node.value {
            Value::Table(entries) => entries.get("value").map_or(node.at, |entry| entry.node.at),
            _ => node.at,
        }
    }
}

impl Node {
    /// The value as text, for the "found" part of an error.
    pub(super) fn in_words(&self) -> String {
        match &self.value {
            Value::Text(text) => format!("{text:?}"),
            Value::Integer(_, text) => text.clone(),
            Value::Boolean(value) => value.to_string(),
            Value::Array(_) => "an array".to_owned(),
            Value::Table(_) => "a table".to_owned(),
            Value::Other(words) => words.clone(),
        }
    }

    /// The value as the report lists it: text without quotes.
    pub(super) fn listed(&self) -> String {
        match &self.value {
            Value::Text(text) => text.clone(),
            _ => self.in_words(),
        }
    }
}

/// The recursion is bounded because the parser limits the nesting depth.
fn node_of(number: usize, span: Range<usize>, value: DeValue<'_>) -> Node {
    let spanned = |value| spanned(number, value);
    let value = match value {
        DeValue::String(text) => Value::Text(text.into_owned()),
        DeValue::Integer(integer) => {
            let value = i128::from_str_radix(integer.as_str(), integer.radix()).ok();
            Value::Integer(value, integer.to_string())
        }
        DeValue::Float(float) => Value::Other(float.to_string()),
        DeValue::Boolean(value) => Value::Boolean(value),
        DeValue::Datetime(date) => Value::Other(format!("the date {date}")),
        DeValue::Array(items) => Value::Array(items.into_iter().map(spanned).collect()),
        DeValue::Table(table) => Value::Table(
            table
                .into_iter()
                .map(|(key, value)| {
                    let key_at = At::Offset(number, key.span().start);
                    (key.into_inner().into_owned(), Entry { key_at, node: spanned(value) })
                })
                .collect(),
        ),
    };
    Node { at: At::Offset(number, span.start), value }
}

fn spanned(number: usize, value: Spanned<DeValue<'_>>) -> Node {
    node_of(number, value.span(), value.into_inner())
}

fn toml_of(node: &Node) -> toml::Value {
    match &node.value {
        Value::Text(text) => toml::Value::String(text.clone()),
        Value::Integer(value, text) => match value.and_then(|value| i64::try_from(value).ok()) {
            Some(value) => toml::Value::Integer(value),
            None => toml::Value::String(text.clone()),
        },
        Value::Boolean(value) => toml::Value::Boolean(*value),
        Value::Array(items) => toml::Value::Array(items.iter().map(toml_of).collect()),
        Value::Table(entries) => toml::Value::Table(
            entries.iter().map(|(key, entry)| (key.clone(), toml_of(&entry.node))).collect(),
        ),
        Value::Other(text) => toml::Value::String(text.clone()),
    }
}

/// Number of values in a tree: of keys, with a value and its source as one.
fn count(node: &Node) -> usize {
    match &node.value {
        Value::Table(entries) if entries.contains_key("value") => 1,
        Value::Table(entries) => entries.values().map(|entry| count(&entry.node)).sum(),
        _ => 1,
    }
}

/// Gives a base the name and description of a plan that has none: the stem of its file, and what it changes.
fn describe(base: &mut Node, origin: &str, name: &str, changed: usize) {
    let Value::Table(entries) = &mut base.value else { return };
    let stem = Path::new(origin).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let changes = if changed == 1 { "1 change".to_owned() } else { format!("{changed} changes") };
    let about = format!("The plan {name} with {changes}.");
    for (key, text) in [("name", stem), ("about", about)] {
        if let Some(entry) = entries.get_mut(key) {
            entry.node.value = Value::Text(text);
        }
    }
}

/// Puts a plan's values over those of its base. Tables are merged key by key, but for one whose `kind`
/// changes and one with a value and its source: the keys of these belong together.
fn merge(base: &mut Node, over: Node) {
    let kind = |entries: &Entries| match entries.get("kind").map(|entry| &entry.node.value) {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    };
    match (&mut base.value, over.value) {
        (Value::Table(into), Value::Table(entries))
            if !entries.contains_key("value")
                && !into.contains_key("value")
                && kind(&entries).is_none_or(|kind_over| kind(into) == Some(kind_over)) =>
        {
            for (key, entry) in entries {
                match into.entry(key) {
                    btree_map::Entry::Occupied(mut old) => {
                        merge(&mut old.get_mut().node, entry.node);
                        old.get_mut().key_at = entry.key_at;
                    }
                    btree_map::Entry::Vacant(vacant) => drop(vacant.insert(entry)),
                }
            }
        }
        (_, value) => *base = Node { at: over.at, value },
    }
}

/// Sets the value at a dotted path and creates missing tables. The value is TOML, or else a text without
/// quotes, because the shell has removed them.
fn set(root: &mut Node, index: usize, path: &str, value: &str) -> Result<(), (String, String)> {
    let at = At::Set(index);
    let mut value = match DeValue::parse(value) {
        Ok(value) => spanned(0, value),
        Err(_) => Node { at, value: Value::Text(value.to_owned()) },
    };
    set_position(&mut value, at);
    let parts: Vec<&str> = path.split('.').map(|part| part.trim().trim_matches('"')).collect();
    let (Some((last, way)), false) = (parts.split_last(), parts.contains(&"")) else {
        return Err((format!("the path {path:?}"), "keys with dots between them".to_owned()));
    };
    let mut node = root;
    for part in way.iter().chain([last]) {
        let in_words = node.in_words();
        node = match &mut node.value {
            Value::Table(entries) => {
                let new =
                    || Entry { key_at: at, node: Node { at, value: Value::Table(Entries::new()) } };
                &mut entries.entry((*part).to_owned()).or_insert_with(new).node
            }
            Value::Array(items) => {
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

/// Gives every part of a value the position of the setting.
fn set_position(node: &mut Node, at: At) {
    node.at = at;
    match &mut node.value {
        Value::Array(items) => items.iter_mut().for_each(|item| set_position(item, at)),
        Value::Table(entries) => entries.values_mut().for_each(|entry| {
            entry.key_at = at;
            set_position(&mut entry.node, at);
        }),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = \"x\"\n\n[link]\nlanes = 0x1_0\n  mps = { value = \"128 B\" }\n\
        [[link.hops]]\nname = \"one\"\n[[link.hops]]\nname = \"twö\"\n";

    fn no_base(name: &str, origin: &str) -> Result<(String, String), PlanErrors> {
        Err(PlanErrors::whole(origin, name.to_owned(), "no base"))
    }

    fn parsed(sets: &[(&str, &str)]) -> Document {
        Document::parse(TEXT, "x.toml", sets, &no_base).unwrap()
    }

    fn rejected(text: &str, sets: &[(&str, &str)]) -> String {
        Document::parse(text, "x.toml", sets, &no_base).err().expect("an error").to_string()
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
            node = match &node.value {
                Value::Table(entries) => &entries[part].node,
                Value::Array(items) => &items[part.parse::<usize>().unwrap()],
                other => panic!("{other:?}"),
            };
        }
        node
    }

    #[test]
    fn every_value_has_a_position() {
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
        assert!(matches!(&value(&document, "link.lanes").value,
            Value::Integer(Some(16), text) if text == "0x10"));
    }

    #[test]
    fn settings_replace_and_add_values() {
        let document = parsed(&[
            ("link.lanes", "8"),
            ("link.mps.value", "256 B"),
            ("link.hops.0.name", "\"8\""),
            ("host.costs.context switch", "1 us"),
            ("link.list", "[1, { a = 2 }]"),
        ]);
        assert!(matches!(value(&document, "link.lanes").value, Value::Integer(Some(8), _)));
        assert!(matches!(&value(&document, "link.mps.value").value,
            Value::Text(text) if text == "256 B"));
        assert!(matches!(&value(&document, "link.hops.0.name").value,
            Value::Text(text) if text == "8"));
        assert!(matches!(&value(&document, "host.costs.context switch").value,
            Value::Text(text) if text == "1 us"));
        assert!(matches!(value(&document, "link.list.1.a").value, Value::Integer(Some(2), _)));
        let place = document.place(document.find("link.list.1.a"));
        assert_eq!(place, Place::Set("link.list=[1, { a = 2 }]".to_owned()));
        let other = document.place(document.find("link.mps.source"));
        assert!(matches!(other, Place::At { line: 5, .. }), "the rest keeps its position");
    }

    #[test]
    fn settings_with_an_invalid_path_are_rejected() {
        assert_eq!(
            rejected(TEXT, &[("link.lanes.x", "8")]),
            "x.toml, --set link.lanes.x=8: link.lanes.x: found \"x\" in 0x10, \
             expected a table to set it in"
        );
        assert_eq!(
            rejected(TEXT, &[("link..x", "8")]),
            "x.toml, --set link..x=8: link..x: found the path \"link..x\", \
             expected keys with dots between them"
        );
        assert_eq!(
            rejected(TEXT, &[("link.hops.2.name", "8")]),
            "x.toml, --set link.hops.2.name=8: link.hops.2.name: found \"2\" in an array, \
             expected the number of one of its 2 items"
        );
    }

    #[test]
    fn all_syntax_errors_are_reported_and_columns_count_characters() {
        let errors = rejected("a = \nb = 1\n\"ö\" = x\nb = 2\n", &[]);
        let places: Vec<_> = errors.lines().map(|line| line.split(": ").next().unwrap()).collect();
        assert_eq!(places, ["x.toml:1:5", "x.toml:3:7", "x.toml:4:1"], "{errors}");
        assert!(errors.contains("duplicate key"), "{errors}");
        let long = rejected(&"#".repeat(TEXT_MAX + 1), &[]);
        assert_eq!(long, "x.toml: found 1048577 bytes, expected a plan of at most 1 MiB");
    }

    fn merged(text: &str) -> Result<Document, String> {
        let bases = |name: &str, origin: &str| match name {
            "base" => Ok((
                "base.toml".to_owned(),
                "name = \"base\"\nabout = \"b\"\n".to_owned() + TEXT_OF_BASE,
            )),
            "middle" => {
                Ok(("middle.toml".to_owned(), "base = \"base\"\nlink.lanes = 2\n".to_owned()))
            }
            "itself" => Ok(("itself.toml".to_owned(), "base = \"itself\"\n".to_owned())),
            _ => Err(PlanErrors::whole(origin, name.to_owned(), "no base")),
        };
        Document::parse(text, "mine.toml", &[], &bases).map_err(|errors| errors.to_string())
    }

    const TEXT_OF_BASE: &str = "[link]\nlanes = 4\nlatency = { value = \"1 ns\", source = \"a table\" }\n\
        [medium]\nkind = \"dram\"\nbanks = 8\n[medium.keep]\nx = 1\n";

    #[test]
    fn values_of_a_plan_replace_those_of_its_base_and_keep_their_positions() {
        let document = merged("base = \"middle\"\n[medium]\nbanks = 9\n").unwrap();
        let integer = |path| match &value(&document, path).value {
            Value::Integer(value, _) => value.unwrap(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            (integer("link.lanes"), integer("medium.banks"), integer("medium.keep.x")),
            (2, 9, 1)
        );
        assert_eq!(line_and_column(&document, "medium.banks"), (3, 9));
        let place = document.place(document.find("link.lanes"));
        assert_eq!(place, Place::Base { origin: "middle.toml".to_owned(), line: 2, column: 14 });
        let text = |path| value(&document, path).listed();
        assert_eq!(
            (text("name"), text("about")),
            ("mine".into(), "The plan middle with 1 change.".into())
        );
        let again = Document::parse(&document.merged, "again.toml", &[], &no_base).unwrap();
        assert_eq!(again.merged, document.merged);
    }

    #[test]
    fn a_table_of_another_kind_and_a_value_with_source_are_replaced_whole() {
        let text =
            "base = \"base\"\n[link]\nlatency = { value = \"2 ns\" }\n[medium]\nkind = \"pcm\"\n";
        let document = merged(text).unwrap();
        let keys = |path| match &value(&document, path).value {
            Value::Table(entries) => entries.keys().cloned().collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(keys("link.latency"), ["value"]);
        assert_eq!(keys("medium"), ["kind"]);
        assert_eq!(keys("link"), ["lanes", "latency"]);
    }

    #[test]
    fn a_base_that_is_missing_circular_or_no_text_is_rejected() {
        for (text, want) in [
            ("base = \"none\"\n", "mine.toml: found none, expected no base"),
            ("base = 3\n", "mine.toml:1:8: base: found 3, expected the name or the path of a plan"),
            (
                "base = \"itself\"\n",
                "itself.toml:1:8: base: found \"itself\", expected at most 7 plans, each the base of the one \
                 before",
            ),
        ] {
            assert_eq!(merged(text).err().as_deref(), Some(want));
        }
    }

    #[test]
    fn unbounded_nesting_is_rejected() {
        let errors = rejected(&format!("a = {}", "[".repeat(100_000)), &[]);
        assert!(errors.contains("found what is no TOML"), "{errors}");
    }
}
