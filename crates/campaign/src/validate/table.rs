//! A table of measurements: lines of columns divided by tabs, read by the names in the first line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::fills::Fill;
use super::fio;

/// A figure of a row that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Figure {
    Iops,
    Mean,
    P50,
    P99,
    P999,
}

impl Figure {
    /// All figures, in the order of the report.
    pub const ALL: [Figure; 5] =
        [Figure::Iops, Figure::Mean, Figure::P50, Figure::P99, Figure::P999];

    /// Heading of its column in the report.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Iops => "IOPS",
            Figure::Mean => "mean",
            Figure::P50 => "p50",
            Figure::P99 => "p99",
            Figure::P999 => "p99.9",
        }
    }

    /// Name of its column in a table.
    fn column(self) -> &'static str {
        match self {
            Figure::Iops => "iops",
            Figure::Mean => "mean_us",
            Figure::P50 => "p50_us",
            Figure::P99 => "p99_us",
            Figure::P999 => "p999_us",
        }
    }
}

/// A value for each figure, in the order of [`Figure::ALL`]: operations per second, then microseconds, or
/// ratios. None: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures(pub [Option<f64>; Figure::ALL.len()]);

impl Figures {
    /// The value of a figure.
    pub fn of(&self, figure: Figure) -> Option<f64> {
        self.0[figure as usize]
    }

    /// Model over measured, of each figure that both have.
    #[must_use]
    pub fn over(&self, measured: &Figures) -> Figures {
        let ratio = |figure| Some(self.of(figure)? / measured.of(figure)?);
        Figures(Figure::ALL.map(ratio))
    }
}

/// Rows of one file, with its header.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Name of the drive: that of the file without its suffix.
    pub name: String,
    /// Path of the file, for messages.
    pub file: PathBuf,
    /// Lines `# key: value` of the header, in their order; a key may occur several times.
    pub header: Vec<(String, String)>,
    pub rows: Vec<Row>,
    /// Rows are run if the name of their workload begins so; empty: all. Others may be the load beside them.
    pub only: String,
}

/// The load and the figures of one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Number of its line, from 1.
    pub line: usize,
    /// Name of the load, as `randread` or `openloop-w10000-read`.
    pub workload: String,
    /// Size of an operation, bytes.
    pub block_bytes: Option<u64>,
    /// Operations that each job has in flight.
    pub depth: Option<u32>,
    /// Jobs that run at once.
    pub jobs: Option<u32>,
    pub measured: Figures,
    /// Its interval, if it is one of a table of write amplification.
    pub fill: Option<Fill>,
    /// Words of the column `flag`, which has semicolons between them: the engine, and conditions.
    pub flags: Vec<String>,
}

/// Why a table cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {why}", file.display())]
    Io { file: PathBuf, why: std::io::Error },
    /// A column or its value.
    #[error("{}:{line}: {column}: found {found}, expected {expected}", file.display())]
    Value { file: PathBuf, line: usize, column: String, found: String, expected: String },
    /// The table as a whole.
    #[error("{}:{line}: found {found}, expected {expected}", file.display())]
    Line { file: PathBuf, line: usize, found: String, expected: String },
    /// The rows to run, as they were given.
    #[error("{}: --rows: found {found}, expected {expected}", file.display())]
    Only { file: PathBuf, found: String, expected: String },
}

const TEXT: &[&str] = &["workload", "state", "flag", "source", "placement"];
const NUMBERS: &[&str] =
    &["bs", "qd", "jobs", "iops", "mean_us", "p50_us", "p99_us", "p999_us", "p9999_us", "little"];
/// Columns of tables of write amplification over fills of the drive.
const FILLS: &[&str] = &["span_gib", "fills_from", "fills_to", "mib_s", "wa"];

impl Table {
    /// Reads a table from a file.
    ///
    /// # Errors
    /// The file cannot be read, or is no table.
    pub fn load(file: &Path) -> Result<Table, TableError> {
        let io = |why| TableError::Io { file: file.to_owned(), why };
        let text = std::fs::read_to_string(file).map_err(io)?;
        Table::parse(file, &text)
    }

    /// Parses a table, or the JSON output of fio, as if `file` had the text.
    ///
    /// # Errors
    /// The first line or value that is wrong.
    pub fn parse(file: &Path, text: &str) -> Result<Table, TableError> {
        if fio::is_output(text) {
            return fio::parse(file, text);
        }
        let (mut header, mut rows) = (Vec::new(), Vec::new());
        let mut columns: Option<Columns> = None;
        for (line, text) in (1..).zip(text.lines()) {
            if let Some(comment) = text.strip_prefix('#') {
                if let Some((key, value)) = comment.split_once(": ") {
                    header.push((key.trim().to_owned(), value.trim().to_owned()));
                }
            } else if text.trim().is_empty() {
            } else if let Some(columns) = &columns {
                rows.push(columns.row(line, text)?);
            } else {
                columns = Some(Columns::parse(file, line, text)?);
            }
        }
        let lacks = |found: &str, expected: &str| {
            let (found, expected) = (found.to_owned(), expected.to_owned());
            TableError::Line { file: file.to_owned(), line: text.lines().count(), found, expected }
        };
        if columns.is_none() {
            return Err(lacks("the end", "a line with the names of columns"));
        }
        if rows.is_empty() {
            return Err(lacks("the end", "a row at least"));
        }
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Table { name, file: file.to_owned(), header, rows, only: String::new() })
    }

    /// The table, of which only rows are run whose workload begins with this text.
    ///
    /// # Errors
    /// There is no such row.
    pub fn with_only(self, only: &str) -> Result<Table, TableError> {
        let table = Table { only: only.to_owned(), ..self };
        if table.rows.iter().any(|row| table.is_wanted(row)) {
            return Ok(table);
        }
        let kinds = table.rows.iter().filter_map(|row| row.workload.split('-').next());
        let kinds: BTreeSet<&str> = kinds.collect();
        let kinds: Vec<&str> = kinds.into_iter().collect();
        let expected = format!("the beginning of a workload: {}", kinds.join(", "));
        Err(TableError::Only { file: table.file, found: only.to_owned(), expected })
    }

    pub(super) fn is_wanted(&self, row: &Row) -> bool {
        row.workload.starts_with(&self.only)
    }

    /// Name of the drive's plan: that of the header, or else the table's, without the `-wa` of a table of
    /// write amplification.
    pub fn plan(&self) -> &str {
        let name = self.name.strip_suffix("-wa").unwrap_or(&self.name);
        self.fact("plan").unwrap_or(name)
    }

    /// The first value of this key in the header.
    pub fn fact(&self, key: &str) -> Option<&str> {
        let found = self.header.iter().find(|(known, _)| known == key);
        found.map(|(_, value)| value.as_str())
    }
}

/// The columns of a table, in their order.
struct Columns<'a> {
    file: &'a Path,
    names: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    fn parse(file: &'a Path, line: usize, text: &'a str) -> Result<Columns<'a>, TableError> {
        let names: Vec<&str> = text.split('\t').map(str::trim).collect();
        let columns = Columns { file, names };
        let known = |name: &&str| [TEXT, NUMBERS, FILLS].iter().any(|list| list.contains(name));
        for (at, name) in columns.names.iter().enumerate() {
            if !known(name) {
                let expected = format!("one of {}", [TEXT, NUMBERS, FILLS].concat().join(", "));
                return Err(columns.error(line, name, "an unknown column", &expected));
            }
            if columns.names[..at].contains(name) {
                return Err(columns.error(line, name, "the column twice", "each column once"));
            }
        }
        if !columns.names.contains(&"workload") {
            return Err(columns.error(line, "workload", "no such column", "it among the columns"));
        }
        Ok(columns)
    }

    fn error(&self, line: usize, column: &str, found: &str, expected: &str) -> TableError {
        let (column, found) = (column.to_owned(), found.to_owned());
        let (file, expected) = (self.file.to_owned(), expected.to_owned());
        TableError::Value { file, line, column, found, expected }
    }

    fn row(&self, line: usize, text: &str) -> Result<Row, TableError> {
        let values: Vec<&str> = text.split('\t').map(str::trim).collect();
        if values.len() > self.names.len() {
            return Err(TableError::Line {
                file: self.file.to_owned(),
                line,
                found: format!("{} values", values.len()),
                expected: format!("at most {}, one for each column", self.names.len()),
            });
        }
        let value = |column: &str| {
            let at = self.names.iter().position(|name| *name == column);
            at.and_then(|at| values.get(at)).copied().filter(|text| !text.is_empty())
        };
        let number = |column: &str| -> Result<Option<f64>, TableError> {
            let Some(text) = value(column) else { return Ok(None) };
            let parsed = text.parse::<f64>().ok().filter(|value| value.is_finite() && *value > 0.0);
            let wrong =
                || self.error(line, column, &format!("{text:?}"), "a number above 0, or nothing");
            parsed.map(Some).ok_or_else(wrong)
        };
        let whole = |column: &str, most: u64| -> Result<Option<u64>, TableError> {
            let Some(text) = value(column) else { return Ok(None) };
            let parsed = text.parse::<u64>().ok().filter(|value| (1..=most).contains(value));
            let expected = format!("a whole number from 1 to {most}, or nothing");
            let wrong = || self.error(line, column, &format!("{text:?}"), &expected);
            parsed.map(Some).ok_or_else(wrong)
        };
        let workload = value("workload")
            .ok_or_else(|| self.error(line, "workload", "nothing", "the name of a load"))?;
        for column in ["p9999_us", "little"] {
            number(column)?;
        }
        let mut measured = Figures::default();
        for figure in Figure::ALL {
            measured.0[figure as usize] = number(figure.column())?;
        }
        let from = match value("fills_from") {
            Some(text) if text.parse() == Ok(0.0) => Some(0.0),
            _ => number("fills_from")?,
        };
        let [span, to, amplification] = [number("span_gib")?, number("fills_to")?, number("wa")?];
        number("mib_s")?;
        let fill = match (span, from, to, amplification) {
            (Some(span_gib), Some(from), Some(to), Some(amplification)) => {
                if to <= from {
                    let expected = format!("more than fills_from, {from}");
                    return Err(self.error(line, "fills_to", &to.to_string(), &expected));
                }
                let source = value("source").unwrap_or_default().to_owned();
                Some(Fill { span_gib, from, to, amplification, source })
            }
            _ => None,
        };
        let flags = value("flag").unwrap_or_default().split(';').map(str::trim);
        Ok(Row {
            line,
            workload: workload.to_owned(),
            block_bytes: whole("bs", 1 << 30)?,
            depth: whole("qd", 1 << 16)?.map(|depth| depth as u32),
            jobs: whole("jobs", 1 << 12)?.map(|jobs| jobs as u32),
            measured,
            fill,
            flags: flags.filter(|flag| !flag.is_empty()).map(str::to_owned).collect(),
        })
    }
}
