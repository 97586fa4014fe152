//! Checks and repairs state files, for `doorbell state`.
//!
//! A state is never changed in place, and a damaged file is kept under another name.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::file::{beside_name, own_name};
use super::journal::frame::{self, Ending, Scan};
use super::journal::path_of;
use super::journal::replay::{Fits, fits};
use super::rows::Rows;
use super::state::Missing;
use super::{Error, HOPELESS, Held, Lock, Nand, PageAt};
use crate::files::{Files, unused_name};

/// Result of checking or repairing the files of a state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Findings.
    pub lines: Vec<String>,
    /// Damage found.
    pub damage: Vec<String>,
}

struct Looked {
    nand: Nand,
    beside: Option<Vec<u8>>,
    /// Blocks whose rows are unreadable.
    lost: Vec<u32>,
    journal: Option<Vec<u8>>,
    report: Report,
}

fn io(path: &Path, attempt: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Io { path, attempt, source }
}

impl Looked {
    fn at(path: &Path) -> Result<Looked, Error> {
        let files = Files::default();
        let journal = path_of(path);
        let journal = files.read(&journal).map_err(io(&journal, "read the journal"))?;
        let (nand, beside) = Nand::load_parts(files, path, Missing::Accepted)?;
        let mut report = Report::default();
        nand.describe(&mut report.lines);
        let beside = match beside {
            Ok(bytes) => Some(bytes),
            Err(found) => {
                report.damage.push(format!("{}: beside: {found}", path.display()));
                None
            }
        };
        let mut lost = Vec::new();
        for block in 0..nand.blocks.len() as u32 {
            if let (Held::Stored, Some(source)) = (&nand.held[block], &nand.source)
                && let Err(error) = source.read(block, nand.tables.width)
            {
                report.damage.push(error.to_string());
                lost.push(block);
            }
        }
        Ok(Looked { nand, beside, lost, journal, report })
    }

    /// Scans the journal of this state, as far as it is readable.
    fn scan(&mut self, path: &Path) -> Option<Scan<'_>> {
        let journal = path_of(path).display().to_string();
        let Report { lines, damage } = &mut self.report;
        let Some(bytes) = &self.journal else {
            lines.push("journal: none".into());
            return None;
        };
        let scan = match frame::scan(bytes, frame::boot()) {
            Ok(scan) => scan,
            Err(found) => {
                damage.push(format!("{journal}: {found}"));
                return None;
            }
        };
        lines.push(format!(
            "journal: version {}, of generation {}, {} bytes, {} batches, of which {} are known to be \
             synced",
            scan.version,
            scan.generation,
            bytes.len(),
            scan.batches.len(),
            scan.synced
        ));
        match fits(&scan, &self.nand.lineage) {
            Fits::After(0) => {}
            Fits::After(batches) => lines.push(format!("journal: {batches} are in the state")),
            Fits::Aside => lines.push("journal: of another state, and of no use to this".into()),
            Fits::No => damage.push(format!("{journal}: it goes on from another state than this")),
        }
        match scan.ending {
            Ending::Whole => {}
            Ending::Torn { bytes } => {
                lines.push(format!("journal: {bytes} bytes at its end were not written whole"));
            }
            Ending::Damaged { at } => damage.push(format!(
                "{journal}: damaged at byte {at}, in batch {}: that one and all behind it are lost",
                scan.batches.len() + 1
            )),
        }
        Some(scan)
    }
}

/// Reports the contents of a state and its journal, and any damage. Changes nothing.
///
/// # Errors
/// [`Error::Io`]; [`Error::State`] if the damage prevents reading the rest.
pub fn check(path: &Path) -> Result<Report, Error> {
    let path = &own_name(path)?;
    let _lock = locked(path, Lock::shared)?;
    let mut looked = Looked::at(path)?;
    let has_journal = looked.scan(path).is_some();
    // A replay is a meaningful check only without other damage. Areas of the state may have rows of blocks
    // that the journal programs again, so the file of pages is checked after it.
    if looked.report.damage.is_empty() {
        let replayed = if has_journal { looked.nand.replay(path, false).map(drop) } else { Ok(()) };
        match replayed {
            Err(error) => looked.report.damage.push(error.to_string()),
            Ok(()) => {
                let lost = looked.nand.lost_rows()?;
                looked.report.damage.extend(lost.iter().map(|lost| lost.text(path)));
            }
        }
    }
    Ok(looked.report)
}

/// Locks an existing state, so that a wrong name leaves no lock file behind.
fn locked(path: &Path, lock: fn(&Path) -> Result<Lock, Error>) -> Result<Lock, Error> {
    let failed = |source| Error::Io { path: path.into(), attempt: "open the state", source };
    std::fs::metadata(path).map_err(failed)?;
    lock(path)
}

/// Makes a damaged state usable: unreadable rows are lost and read as media errors, and the journal ends
/// before the damage. The damaged files are kept with the suffix `.damaged`, but for the file of pages, which
/// is not written.
///
/// # Errors
/// [`Error::Io`]; [`Error::State`] if the damage is too large.
pub fn repair(path: &Path) -> Result<Report, Error> {
    let path = &own_name(path)?;
    let _lock = locked(path, Lock::exclusive)?;
    let mut report = repair_state(path)?;
    repair_pages(path, &mut report)?;
    Ok(report)
}

/// Gives up rows that the file of pages has no more. The new state has the records of the journal.
fn repair_pages(path: &Path, report: &mut Report) -> Result<(), Error> {
    let Looked { mut nand, beside, .. } = Looked::at(path)?;
    let replayed = nand.replay(path, false)?;
    let lost = nand.lost_rows()?;
    if lost.is_empty() {
        return Ok(());
    }
    report.damage.extend(lost.iter().map(|lost| lost.text(path)));
    report.lines.push(keep_damaged(path)?);
    for lost in &lost {
        nand.lose_rows(lost)?;
    }
    nand.write_state(path, &replayed.beside.or(beside).unwrap_or_default())?;
    nand.remove_journal(path)?;
    let rows: usize = lost.iter().map(|lost| lost.rows.len()).sum();
    report.lines.push(format!("{rows} rows of {} blocks are lost", lost.len()));
    Ok(())
}

fn repair_state(path: &Path) -> Result<Report, Error> {
    let files = Files::default();
    let mended = mend_header(&files, path)?;
    let mut looked = Looked::at(path)?;
    looked.report.lines.extend(mended.iter().cloned());
    let (mut keep, mut position) = (None, None);
    if let Some(scan) = looked.scan(path) {
        let end = match scan.ending {
            Ending::Damaged { at } => Some(at as usize),
            Ending::Whole | Ending::Torn { .. } => None,
        };
        let (first, version) = (scan.first, scan.version);
        let known: Vec<_> = (0..=scan.batches.len() as u64).map(|at| scan.position(at)).collect();
        match fits_of(&looked.nand, looked.journal.as_deref()) {
            Some(Fits::After(batches)) => {
                keep = Some(end);
                position = known.get(batches as usize).copied().or(Some(first));
            }
            Some(Fits::Aside) if version == 1 => keep = Some(None),
            _ => {}
        }
    }
    let mut report = looked.report;
    if report.damage.is_empty() {
        return Ok(report);
    }
    let journal = path_of(path);
    let cut = keep.flatten();
    if looked.journal.is_some() && (cut.is_some() || keep.is_none()) {
        report.lines.push(keep_damaged(&journal)?);
    }
    if !looked.lost.is_empty() || looked.beside.is_none() {
        report.lines.push(keep_damaged(path)?);
        if looked.beside.is_none() {
            let lost = "the label (namespaces, reservations) is lost, unless the journal has it";
            report.lines.push(lost.into());
        }
        looked.lost.iter().for_each(|block| looked.nand.lose(*block));
        looked.nand.lineage.position = position.unwrap_or_default();
        looked.nand.write_state(path, &looked.beside.unwrap_or_default())?;
        report.lines.push(format!("rows of {} blocks are lost", looked.lost.len()));
    }
    match (looked.journal, cut, keep) {
        (Some(bytes), Some(end), _) => {
            replace(&files, &journal, &bytes[..end])?;
            report.lines.push(format!("the journal ends at byte {end}"));
        }
        (Some(_), None, None) => {
            files.remove(&journal).map_err(io(&journal, "remove it"))?;
            report.lines.push("the journal was taken away: nothing of it could be used".into());
        }
        _ => {}
    }
    Ok(report)
}

/// Converts a state and a journal of an older version to the current one. The old files are kept with the
/// suffix `.old`.
///
/// # Errors
/// [`Error::Io`]; [`Error::State`] if there is any damage; then nothing was changed.
pub fn upgrade(path: &Path) -> Result<Report, Error> {
    let path = &own_name(path)?;
    let _lock = locked(path, Lock::exclusive)?;
    let mut looked = Looked::at(path)?;
    let version = looked.nand.version;
    let scan = looked.scan(path).map(|scan| {
        let batches = scan.batches.iter().map(|batch| batch.records.to_vec());
        (scan.version, scan.first, batches.collect::<Vec<_>>())
    });
    let belongs = fits_of(&looked.nand, looked.journal.as_deref());
    let mut report = looked.report;
    if let Some(damage) = report.damage.first() {
        let found = format!("{damage}; see doorbell state repair");
        return Err(Error::State { path: path.into(), field: "damage", found });
    }
    let old = |of: &Option<(u64, _, _)>| of.as_ref().is_some_and(|scan| scan.0 == 1);
    if version != 1 && !old(&scan) {
        report.lines.push("of the version of today: nothing was changed".into());
        return Ok(report);
    }
    let (files, journal) = (Files::default(), path_of(path));
    report.lines.push(keep_as(path, ".old")?);
    let kept = scan.is_some().then(|| keep_as(&journal, ".old")).transpose()?;
    report.lines.extend(kept);
    let nand = &mut looked.nand;
    let goes_on = matches!(belongs, Some(Fits::After(_)));
    if let Some((_, first, _)) = &scan
        && goes_on
    {
        nand.lineage.position = *first;
    }
    nand.write_state(path, &looked.beside.unwrap_or_default())?;
    match scan {
        Some((_, _, batches)) if goes_on => {
            let boot = frame::boot();
            let mut bytes = frame::header(nand.lineage.id, nand.lineage.generation, boot).to_vec();
            let mut at = frame::first(bytes.first_chunk().expect("a header"));
            let seed = at.head;
            for records in batches {
                let begin = bytes.len();
                bytes.extend([0; frame::FRAME_BYTES]);
                bytes.extend(records);
                let synced = at.sequence;
                at = frame::seal(&mut bytes[begin..], seed, at, synced);
            }
            replace(&files, &journal, &bytes)?;
        }
        Some(_) => files.remove(&journal).map_err(io(&journal, "remove it"))?,
        None => {}
    }
    report.lines.push("converted to version 2".into());
    Ok(report)
}

/// Restores the header of a journal, if only the header is damaged. Returns a description of the repair, if
/// any.
fn mend_header(files: &Files, path: &Path) -> Result<Option<String>, Error> {
    let Looked { nand, journal: bytes, .. } = Looked::at(path)?;
    let (journal, Some(bytes)) = (path_of(path), bytes) else { return Ok(None) };
    if frame::scan(&bytes, frame::boot()).is_ok() {
        return Ok(None);
    }
    let (base, generation) = (nand.lineage.id, nand.lineage.generation);
    let Some(whole) = frame::mend(&bytes, base, generation, frame::boot()) else { return Ok(None) };
    let kept = keep_damaged(&journal)?;
    replace(files, &journal, &whole)?;
    Ok(Some(format!("{kept}; its header was damaged, and is as it was")))
}

fn fits_of(nand: &Nand, journal: Option<&[u8]>) -> Option<Fits> {
    let scan = frame::scan(journal?, frame::boot()).ok()?;
    Some(fits(&scan, &nand.lineage))
}

/// Replaces a file atomically and durably.
fn replace(files: &Files, path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let new = beside_name(path, ".new");
    let file = files.create(&new).map_err(io(&new, "begin it"))?;
    file.write_all_at(bytes, 0).and_then(|()| file.sync()).map_err(io(&new, "write it"))?;
    files.rename(&new, path).map_err(io(path, "replace it"))?;
    files.sync_folder_of(path).map_err(io(path, "flush its folder"))
}

fn keep_damaged(path: &Path) -> Result<String, Error> {
    keep_as(path, ".damaged")
}

/// Keeps a second copy of a file under another name.
fn keep_as(path: &Path, ending: &str) -> Result<String, Error> {
    let name = unused_name(path, ending);
    let kept = fs::hard_link(path, &name).or_else(|_| fs::copy(path, &name).map(drop));
    kept.map_err(io(&name, "keep a copy"))?;
    Ok(format!("{} is kept as {}", path.display(), name.display()))
}

/// Rows of a block that the file of pages has no more.
struct LostRows {
    block: u32,
    area: u32,
    rows: Vec<u32>,
}

impl LostRows {
    fn text(&self, state: &Path) -> String {
        let Self { block, area, rows } = self;
        let pages = super::pages::path_of(state);
        let (first, more) = (rows[0], rows.len() - 1);
        let more = if more > 0 { format!(", and {more} more of it") } else { String::new() };
        format!(
            "{}: row {first} of area {area}, page {first} of block {block}, is missing or has changed{more}",
            pages.display()
        )
    }
}

impl Nand {
    /// Reads all rows in the file of pages.
    fn lost_rows(&self) -> Result<Vec<LostRows>, Error> {
        let Some(pages) = &self.pages else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for (block, held) in (0..).zip(self.held.iter()) {
            let Held::Filed(area) = *held else { continue };
            let mut rows = Vec::new();
            for (row, sum) in (0..).zip(pages.sums(area)) {
                if !pages.has(area, row, *sum)? {
                    rows.push(row);
                }
            }
            if !rows.is_empty() {
                all.push(LostRows { block, area, rows });
            }
        }
        Ok(all)
    }

    /// Takes the other rows of this block from the file of pages; these are unreadable.
    fn lose_rows(&mut self, lost: &LostRows) -> Result<(), Error> {
        let Some(pages) = &self.pages else { unreachable!("rows of a file of pages") };
        let width = self.tables.width;
        let count = u32::from(self.blocks[lost.block as usize].next);
        let mut bytes = Vec::with_capacity(width * count as usize);
        for row in 0..count {
            match lost.rows.contains(&row) {
                true => bytes.resize(bytes.len() + width, 0),
                false => {
                    pages.with(lost.area, row, 0, width, |row| bytes.extend_from_slice(row))?
                }
            }
        }
        self.held[lost.block] = Held::Rows(Arc::new(Rows { width, bytes }));
        for page in &lost.rows {
            self.harm(PageAt { block: lost.block, page: *page }, HOPELESS);
        }
        Ok(())
    }

    fn describe(&self, lines: &mut Vec<String>) {
        let geometry = &self.spec.geometry;
        let used = self.blocks.iter().filter(|block| block.next > 0).count();
        lines.push(format!(
            "state: version {}, generation {}",
            self.version, self.lineage.generation
        ));
        lines.push(format!(
            "chips: {} dies, {} blocks of {} pages of {} bytes, seed {}, keep {:?}",
            geometry.all_dies(),
            self.blocks.len(),
            geometry.pages(),
            geometry.page_bytes,
            self.spec.seed,
            self.spec.keep,
        ));
        lines.push(format!(
            "life: {} seconds, {} operations torn, {used} blocks programmed, {} pages harmed",
            self.age_s,
            self.cuts,
            self.harm.len()
        ));
    }

    /// Marks the contents of this block as unreadable.
    fn lose(&mut self, block: u32) {
        let (next, width) = (self.blocks[block as usize].next, self.tables.width);
        let bytes = vec![0; width * usize::from(next)];
        self.held[block] = Held::Rows(Arc::new(Rows { width, bytes }));
        for page in 0..u32::from(next) {
            self.harm(PageAt { block, page }, HOPELESS);
        }
    }
}
