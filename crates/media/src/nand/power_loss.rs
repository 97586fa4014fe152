//! Files of a state as a power loss of the machine may leave them, for campaigns.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use runtime::Rng;

use super::file::own_name;
use super::journal::{frame, path_of, replay};
use super::{Error, Nand, pages};
use crate::files::Files;

/// Leaves the files of a state, which no process has open, as a power loss of the machine may: the journal
/// ends anywhere behind its last sync, and of the rows that were written since some are lost.
///
/// # Errors
/// [`Error::Io`]; [`Error::State`] if the files are damaged.
pub fn power_loss(state: &Path, rng: &mut Rng) -> Result<(), Error> {
    let state = own_name(state)?;
    let journal = path_of(&state);
    let io = |path: &Path, attempt| {
        let path = path.to_owned();
        move |source| Error::Io { path, attempt, source }
    };
    let bytes = Files::default().read(&journal).map_err(io(&journal, "read the journal"))?;
    let Some(bytes) = bytes else { return Ok(()) };
    let refuse = |error: frame::HeaderError| Error::State {
        path: journal.clone(),
        field: "journal",
        found: error.to_string(),
    };
    let scan = frame::scan(&bytes, frame::boot()).map_err(refuse)?;
    let mut ends = vec![frame::HEADER_BYTES as u64];
    for batch in &scan.batches {
        ends.push(ends[ends.len() - 1] + (frame::FRAME_BYTES + batch.records.len()) as u64);
    }
    let unsynced = &ends[scan.synced as usize..];
    let mut end = unsynced[rng.below(unsynced.len() as u64) as usize];
    if end < bytes.len() as u64 && rng.chance(1, 4) {
        // Within a frame.
        end += rng.below(bytes.len() as u64 - end);
    }
    let pages_path = pages::path_of(&state);
    if pages_path.exists() {
        let (nand, _) = Nand::load_from(&state)?;
        let file = File::options().write(true).open(&pages_path);
        let file = file.map_err(io(&pages_path, "open the pages"))?;
        for batch in &scan.batches[scan.synced as usize..] {
            for (area, page) in replay::filed_rows(batch.records) {
                if rng.chance(1, 4) {
                    let (at, width) = nand.place_of_row(area, page);
                    let lost = file.write_all_at(&vec![0; width], at);
                    lost.map_err(io(&pages_path, "lose a row"))?;
                }
            }
        }
    }
    fs::write(&journal, &bytes[..end as usize]).map_err(io(&journal, "cut the journal"))
}
