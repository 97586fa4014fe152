//! The file of the results: JSON lines, appended as points end, in order at the end.
//!
//! A line is written by one call, so a process that is killed leaves whole lines and at most one torn line at
//! the end, which is cut off when the sweep goes on.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use report::model::{SweepAxis, SweepHeader, SweepPoint};

use super::error::SweepError;

pub struct Results {
    path: PathBuf,
    file: File,
    bytes: u64,
    lines: BTreeMap<u64, Line>,
    in_order: bool,
}

/// A line of the file.
struct Line {
    point: SweepPoint,
    at: u64,
    bytes: u64,
}

impl Results {
    /// Opens the results of a sweep, or begins them in a file, whose folders are made. With `restart` results
    /// that are there are dropped.
    ///
    /// # Errors
    /// The file is of something else or of another sweep, is damaged, or another process has it.
    pub fn open(path: &Path, header: &SweepHeader, restart: bool) -> Result<Results, SweepError> {
        let failed = |attempt| move |why| SweepError::Io { path: path.to_owned(), attempt, why };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed("opened"))?;
        }
        let options =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let mut file = options.map_err(failed("opened"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(SweepError::Locked { path: path.to_owned() });
            }
            // A file system without locks.
            Err(TryLockError::Error(_)) => {}
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(failed("read"))?;
        let first = line_of(header);
        let mut results = Results {
            path: path.to_owned(),
            file,
            bytes: 0,
            lines: BTreeMap::new(),
            in_order: true,
        };
        // A header that was torn is begun again, and so are results if that was asked for.
        let is_torn = !text.contains(&b'\n') && first.starts_with(&text);
        if is_torn || (restart && is_header(&text)) {
            results.cut(0)?;
            results.write(&first)?;
            return Ok(results);
        }
        results.read(&text, header)?;
        Ok(results)
    }

    fn read(&mut self, text: &[u8], header: &SweepHeader) -> Result<(), SweepError> {
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let mut lines = text[..whole].split_inclusive(|byte| *byte == b'\n');
        let first = lines.next().unwrap_or_default();
        let found = report::sweep_header(first).map_err(|error| {
            let beginning: String = String::from_utf8_lossy(text).chars().take(40).collect();
            let found = format!("{beginning:?} ({error})");
            SweepError::NotResults { path: self.path.clone(), found }
        })?;
        let differences = differences(&found, header);
        if !differences.is_empty() {
            return Err(SweepError::Changed { path: self.path.clone(), differences });
        }
        let mut at = first.len() as u64;
        for (number, line) in lines.enumerate() {
            let damaged = |why: String| SweepError::Damaged {
                path: self.path.clone(),
                line: number + 2,
                why,
            };
            let point = report::sweep_point(line).map_err(|error| damaged(error.to_string()))?;
            if point.point >= header.points || self.lines.contains_key(&point.point) {
                return Err(damaged(format!("point {} twice, or beyond the last", point.point)));
            }
            self.note(point, at, line.len() as u64);
            at += line.len() as u64;
        }
        self.cut(at)
    }

    fn note(&mut self, point: SweepPoint, at: u64, bytes: u64) {
        self.in_order &= self.lines.last_key_value().is_none_or(|(last, _)| *last < point.point);
        let point = SweepPoint { document: None, ..point };
        self.lines.insert(point.point, Line { point, at, bytes });
    }

    /// Whether a point has its result.
    pub fn has(&self, point: u64) -> bool {
        self.lines.contains_key(&point)
    }

    pub fn get(&self, point: u64) -> Option<&SweepPoint> {
        self.lines.get(&point).map(|line| &line.point)
    }

    /// Points with results, in order, without their documents.
    pub fn points(&self) -> Vec<SweepPoint> {
        self.lines.values().map(|line| line.point.clone()).collect()
    }

    /// Number of points with results, and of those that failed.
    pub fn counts(&self) -> (u64, u64) {
        let failed = self.lines.values().filter(|line| line.point.failed.is_some()).count();
        (self.lines.len() as u64, failed as u64)
    }

    /// Adds the result of a point.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, point: SweepPoint) -> Result<(), SweepError> {
        let (line, at) = (line_of(&point), self.bytes);
        self.write(&line)?;
        self.note(point, at, line.len() as u64);
        Ok(())
    }

    /// Adds a line that another process made by [`Sweep::lines`](super::Sweep::lines). A point that is there
    /// stays as it is.
    ///
    /// # Errors
    /// It is no line of a point of the sweep, or the file cannot be written.
    pub fn append_line(&mut self, line: &str, points: u64) -> Result<(), SweepError> {
        let damaged =
            |why| SweepError::Damaged { path: self.path.clone(), line: self.lines.len() + 2, why };
        let point = report::sweep_point(line.as_bytes());
        let point = point.map_err(|error| damaged(error.to_string()))?;
        if point.point >= points {
            let (found, last) = (point.point, points.saturating_sub(1));
            return Err(damaged(format!("found point {found}, expected {last} at most")));
        }
        if self.has(point.point) { Ok(()) } else { self.append(point) }
    }

    /// Puts the lines in the order of the points. A process that is killed leaves the file as it was.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(&mut self) -> Result<(), SweepError> {
        if self.in_order {
            return self.file.sync_all().map_err(|why| self.failed("written", why));
        }
        let beside = PathBuf::from(format!("{}.new", self.path.display()));
        let sorted = self.sort_into(&beside);
        self.file = sorted.map_err(|why| self.failed("put in order", why))?;
        self.in_order = true;
        Ok(())
    }

    /// Writes all lines to this file, in order, and gives it the name of the results.
    fn sort_into(&mut self, beside: &Path) -> io::Result<File> {
        let mut file = File::create(beside)?;
        // The lock goes with the file that has the name.
        let _ = file.try_lock();
        let mut to = self.lines.values().map(|line| line.at).min().unwrap_or(self.bytes);
        let mut bytes = vec![0; to as usize];
        self.file.seek(SeekFrom::Start(0))?;
        self.file.read_exact(&mut bytes)?;
        file.write_all(&bytes)?;
        for line in self.lines.values_mut() {
            bytes.resize(line.bytes as usize, 0);
            self.file.seek(SeekFrom::Start(line.at))?;
            self.file.read_exact(&mut bytes)?;
            file.write_all(&bytes)?;
            line.at = to;
            to += line.bytes;
        }
        file.sync_all()?;
        fs::rename(beside, &self.path)?;
        Ok(file)
    }

    fn failed(&self, attempt: &'static str, why: io::Error) -> SweepError {
        SweepError::Io { path: self.path.clone(), attempt, why }
    }

    /// Cuts the file to this length.
    fn cut(&mut self, bytes: u64) -> Result<(), SweepError> {
        self.file.set_len(bytes).map_err(|why| self.failed("written", why))?;
        self.bytes = bytes;
        Ok(())
    }

    fn write(&mut self, line: &[u8]) -> Result<(), SweepError> {
        let seek = self.file.seek(SeekFrom::Start(self.bytes));
        let written = seek.and_then(|_| self.file.write_all(line));
        written.map_err(|why| self.failed("written", why))?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

pub(super) fn line_of(value: &impl serde::Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("results have string keys only");
    line.push(b'\n');
    line
}

/// Whether a text begins with the header of any sweep.
fn is_header(text: &[u8]) -> bool {
    let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    report::sweep_header(first).is_ok()
}

/// Differences between the sweep of the file and this one.
fn differences(found: &SweepHeader, expected: &SweepHeader) -> Vec<String> {
    let mut all = Vec::new();
    let mut compare = |what: &str, found: &str, expected: &str| {
        if found != expected {
            all.push(format!("{what}: found {found}, expected {expected}"));
        }
    };
    let version = |header: &SweepHeader| header.schema_version.to_string();
    compare("schema_version", &version(found), &version(expected));
    compare("program", &found.program.version, &expected.program.version);
    compare("method", &found.method, &expected.method);
    let seed = |header: &SweepHeader| header.draw_seed.map_or("none".to_owned(), |n| n.to_string());
    compare("draw_seed", &seed(found), &seed(expected));
    let full = |header: &SweepHeader| if header.full { "--full" } else { "none" };
    compare("documents", full(found), full(expected));
    let names = |axes: &[SweepAxis]| {
        axes.iter().map(|axis| axis.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    compare("axes", &names(&found.axes), &names(&expected.axes));
    for (found, expected) in found.axes.iter().zip(&expected.axes) {
        let (name, list) = (&expected.name, |axis: &SweepAxis| axis.values.join(", "));
        compare(&format!("axis {name}"), &list(found), &list(expected));
        compare(&format!("axis {name}"), &found.of.join(", "), &expected.of.join(", "));
    }
    let tables = [(&found.fixed, &expected.fixed), (&found.inputs, &expected.inputs)];
    for (found, expected) in tables {
        let mut keys: Vec<&String> = found.keys().chain(expected.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let of = |table: &BTreeMap<String, String>| {
                table.get(key).map_or("none".to_owned(), Clone::clone)
            };
            compare(key, &of(found), &of(expected));
        }
    }
    if found.points != expected.points {
        let [found, expected] = [found, expected].map(|header| header.points.to_string());
        all.push(format!("points: found {found}, expected {expected}"));
    }
    all
}
