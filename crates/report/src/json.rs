//! Documents as JSON. All that is read is read here, from bytes: the code to read a type is made once.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter};
use serde_json::{Serializer, from_slice};

use crate::model::{Document, SCHEMA, SCHEMA_VERSION, SweepHeader, SweepPoint};

/// Error in a document's text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    #[error("found {found}, expected a result: an object whose schema is {SCHEMA:?}")]
    NotAResult { found: String },
    #[error("schema_version: found {found}, expected {SCHEMA_VERSION}, which this program reads")]
    Version { found: String },
    #[error("{0}")]
    Content(#[from] serde_json::Error),
}

/// The document as JSON, with a line break at its end. Equal documents give equal text.
pub fn to_json(document: &Document) -> String {
    let mut text = Vec::new();
    let formatter = Lines { pretty: PrettyFormatter::new(), arrays: 0, open: Vec::new() };
    document
        .serialize(&mut Serializer::with_formatter(&mut text, formatter))
        .expect("a document has text keys, and memory takes everything");
    text.push(b'\n');
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// Reads a document.
///
/// # Errors
/// It is no document, one of another version, or has fields that this version lacks.
pub fn from_json(text: &str) -> Result<Document, DocumentError> {
    let value: serde_json::Value = from_slice(text.as_bytes())?;
    match value.get("schema") {
        Some(schema) if schema == SCHEMA => {}
        Some(schema) => return Err(DocumentError::NotAResult { found: schema.to_string() }),
        None => return Err(DocumentError::NotAResult { found: "no schema".to_owned() }),
    }
    // The fields of another version are unknown, so nothing else is read.
    match value.get("schema_version") {
        Some(version) if version == SCHEMA_VERSION => {}
        version => {
            let found = version.map_or("nothing".to_owned(), ToString::to_string);
            return Err(DocumentError::Version { found });
        }
    }
    // From the text, so that an error has its line.
    Ok(from_slice(text.as_bytes())?)
}

/// Reads the first line of the results of a sweep.
///
/// # Errors
/// It is no header.
pub fn sweep_header(line: &[u8]) -> Result<SweepHeader, serde_json::Error> {
    from_slice(line)
}

/// Reads another line of the results of a sweep.
///
/// # Errors
/// It is no point.
pub fn sweep_point(line: &[u8]) -> Result<SweepPoint, serde_json::Error> {
    from_slice(line)
}

/// The schema of documents: JSON Schema, draft 2020-12.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(Document).to_value()
}

/// Indented, but an array in an array is on one line: a bin of a histogram.
struct Lines {
    pretty: PrettyFormatter<'static>,
    /// Arrays on one line that are open.
    arrays: usize,
    /// The containers that are open: true for an array.
    open: Vec<bool>,
}

impl Lines {
    fn end(&mut self) {
        self.open.pop();
    }
}

impl Formatter for Lines {
    fn begin_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        let nested = self.arrays > 0 || self.open.last() == Some(&true);
        self.open.push(true);
        if nested {
            self.arrays += 1;
            return to.write_all(b"[");
        }
        self.pretty.begin_array(to)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.end();
        if self.arrays > 0 {
            self.arrays -= 1;
            return to.write_all(b"]");
        }
        self.pretty.end_array(to)
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match (self.arrays > 0, first) {
            (true, true) => Ok(()),
            (true, false) => to.write_all(b", "),
            (false, _) => self.pretty.begin_array_value(to, first),
        }
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        if self.arrays > 0 { Ok(()) } else { self.pretty.end_array_value(to) }
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.open.push(false);
        self.pretty.begin_object(to)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.end();
        self.pretty.end_object(to)
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        to: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.pretty.begin_object_key(to, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.pretty.begin_object_value(to)
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.pretty.end_object_value(to)
    }
}
