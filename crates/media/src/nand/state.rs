//! State file of flash.
//!
//! ```text
//! header   128 bytes: magic, version, lengths and checksums of the parts below; generation, position in the
//!          journal up to which it is included; checksum of the header, which is the id of this state
//! meta     the specification, a record for each block, damaged pages, units stored in full
//! beside   bytes that the owner stores with it
//! rows     those of each non-empty block, at the offset in its record in `meta`
//! ```
//!
//! Loading reads everything except the rows: those of a block are read on first access to one of its pages,
//! and have a checksum of their own. So a drive of any size loads immediately, and the same file, which is
//! never modified, can be loaded several times. All numbers are little-endian 64-bit words.
//!
//! Several drives may share one file, and a fork shares all full blocks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{BadChecksum, beside_name, checksum, own_name, refuse};
use super::held::Contents;
use super::journal::frame::Position;
use super::journal::replay::stands_in_the_way;
use super::kept::laid_packed;
use super::lineage::Lineage;
use super::pages;
use super::rows::{Packed, Room, Rows};
use super::{Block, Cell, Error, Errors, FLAGS, Geometry, Held, Nand, Order, PageAt, Spec, Tables};
use crate::contents::Keep;
use crate::files::{Files, Opened, Writer};

const MAGIC: u64 = u64::from_le_bytes(*b"dbnand\r\n");
const VERSION: u64 = 2;
const HEADER_BYTES: usize = 128;

/// Version 1 has a shorter header without journal position and generation.
const OLD_HEADER_BYTES: usize = 64;

/// Location of a block's rows in the file.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    at: u64,
    pub bytes: u64,
    sum: u64,
    pub rows: usize,
    pub packed: bool,
    /// The rows are in the file of pages; here are their area and their checksums, a word each.
    filed: bool,
}

/// File that a state was loaded from.
pub(super) struct Source {
    file: Opened,
    path: PathBuf,
    places: Vec<Place>,
}

impl Source {
    pub(super) fn place(&self, block: u32) -> Place {
        self.places[block as usize]
    }

    /// Reads the rows of a block as they are in the file, in place of what was in `bytes`.
    pub(super) fn read_bytes(&self, block: u32, bytes: &mut Vec<u8>) -> Result<(), Error> {
        let place = self.place(block);
        bytes.clear();
        bytes.resize(place.bytes as usize, 0);
        self.file.read_exact_at(bytes, place.at).map_err(|source| Error::Io {
            path: self.path.clone(),
            attempt: "read the rows of a block",
            source,
        })?;
        if checksum(bytes) != place.sum {
            let found = format!("those of block {block} at byte {} have changed", place.at);
            return Err(refuse(&self.path, "rows", found));
        }
        Ok(())
    }

    fn bytes(&self, block: u32) -> Result<(Place, Vec<u8>), Error> {
        let mut bytes = Vec::new();
        self.read_bytes(block, &mut bytes)?;
        Ok((self.place(block), bytes))
    }

    pub(super) fn read(&self, block: u32, width: usize) -> Result<Held, Error> {
        let (place, bytes) = self.bytes(block)?;
        if !place.packed {
            return Ok(Held::Rows(Arc::new(Rows { width, bytes })));
        }
        match Packed::from_bytes(&bytes, width, place.rows) {
            Some(packed) => Ok(Held::Packed(packed)),
            None => Err(refuse(&self.path, "rows", format!("block {block} is not packed rows"))),
        }
    }
}

impl Nand {
    /// Uses `files` for all file accesses from now on.
    pub fn use_files(&mut self, files: Files) {
        self.files = files;
    }

    /// Writes the complete state and `beside` to a file, replacing its contents, and removes the journal of
    /// that file. On an error the files are unchanged, or the new state is there with the journal that
    /// belongs to it.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::State`] if a block that was not loaded yet has changed in its own file, or if
    /// the file has a journal that was not replayed.
    pub fn save(&mut self, path: &Path, beside: &[u8]) -> Result<(), Error> {
        let path = own_name(path)?;
        stands_in_the_way(self, &path)?;
        self.write_state(&path, beside)?;
        self.remove_journal(&path)
    }

    /// Writes the state alone. It is on disk when this returns.
    pub(super) fn write_state(&mut self, path: &Path, beside: &[u8]) -> Result<(), Error> {
        if self.own_pages().is_some() {
            // Records of a journal would go on to name rows in memory that are in the file, if this fails.
            if self.journal.is_none() {
                for block in 0..self.blocks.len() as u32 {
                    self.file_block(block)?;
                }
            }
            self.sync_pages()?;
        }
        self.seal_journal(path);
        let failed = |attempt| move |source| Error::Io { path: path.into(), attempt, source };
        let new = beside_name(path, ".new");
        let done = self.write(&new, beside).and_then(|id| {
            self.files.rename(&new, path).map_err(failed("replace it"))?;
            Ok(id)
        });
        let id = match done {
            Ok(id) => id,
            Err(error) => {
                // Clean up; the first error is the one to report.
                let _ = self.files.remove(&new);
                return Err(error);
            }
        };
        self.files.sync_folder_of(path).map_err(failed("flush its folder"))?;
        let lineage = &mut self.lineage;
        (lineage.id, lineage.generation) = (id, lineage.generation + 1);
        lineage.saved = lineage.position;
        if let Some(mut pages) = self.pages.take() {
            if pages.writable {
                pages.has_state(self.areas());
            }
            self.pages = Some(pages);
        }
        Ok(())
    }

    /// Writes a new file, and returns the checksum of its header.
    fn write(&self, path: &Path, beside: &[u8]) -> Result<u64, Error> {
        let failed = |source| Error::Io { path: path.into(), attempt: "write the state", source };
        let mut file = Writer::new(self.files.create(path).map_err(failed)?);
        // First the lengths, then the rows, then their records: the header is written last, so that a
        // truncated file has none.
        let meta_bytes = self.meta(&self.no_places()).len() * 8;
        let begin = (HEADER_BYTES + meta_bytes + beside.len()) as u64;
        file.write(&vec![0; HEADER_BYTES + meta_bytes]).map_err(failed)?;
        file.write(beside).map_err(failed)?;
        let (mut places, mut at) = (self.no_places(), begin);
        for (block, place) in places.iter_mut().enumerate() {
            let Some((kind, bytes)) = self.rows_of(block as u32)? else { continue };
            let rows = usize::from(self.blocks[block].next);
            let (sum, length) = (checksum(&bytes), bytes.len() as u64);
            let (packed, filed) = (kind == Stored::Packed, kind == Stored::Filed);
            *place = Place { at, bytes: length, sum, rows, packed, filed };
            file.write(&bytes).map_err(failed)?;
            at += length;
        }
        let meta: Vec<u8> = self.meta(&places).iter().flat_map(|word| word.to_le_bytes()).collect();
        let Position { base, sequence, head } = self.lineage.position;
        let mut header = vec![MAGIC, VERSION, meta.len() as u64, beside.len() as u64, at];
        header.extend([checksum(&meta), checksum(beside), self.lineage.generation + 1]);
        header.extend([base, sequence, head, 0, 0, 0, 0]);
        let mut header: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        let id = checksum(&header);
        header.extend(id.to_le_bytes());
        let file = file.end().map_err(failed)?;
        file.write_all_at(&meta, HEADER_BYTES as u64).map_err(failed)?;
        file.write_all_at(&header, 0).map_err(failed)?;
        file.sync().map_err(failed)?;
        Ok(id)
    }

    fn no_places(&self) -> Vec<Place> {
        vec![Place::default(); self.blocks.len()]
    }

    /// Serialized rows of a block, and their form.
    fn rows_of(&self, block: u32) -> Result<Option<(Stored, Vec<u8>)>, Error> {
        Ok(match (&self.held[block], &self.source) {
            (Held::Rows(rows), _) => Some((Stored::Plain, rows.bytes.clone())),
            (Held::Packed(packed), _) => Some((Stored::Packed, packed.to_bytes())),
            (Held::Laid(laid), _) => {
                let (rows, mut room) = (self.blocks[block as usize].next, Room::default());
                let packed = laid_packed(&**laid, &self.tables, rows, &mut room);
                Some((Stored::Packed, packed.to_bytes()))
            }
            (Held::Stored, Some(source)) => {
                let (place, bytes) = source.bytes(block)?;
                Some((if place.packed { Stored::Packed } else { Stored::Plain }, bytes))
            }
            (Held::Filed(area), _) => {
                let pages = self.pages.as_ref().expect("a file of pages");
                let words =
                    std::iter::once(u64::from(*area)).chain(pages.sums(*area).iter().copied());
                Some((Stored::Filed, words.flat_map(u64::to_le_bytes).collect()))
            }
            (Held::Stored | Held::Nothing, _) => None,
        })
    }

    fn meta(&self, places: &[Place]) -> Vec<u64> {
        let mut words = spec_words(&self.spec);
        words.extend([u64::from(self.age_s), u64::from(self.cuts)]);
        for (block, place) in self.blocks.iter().zip(places) {
            let few = u64::from(block.next) | u64::from(block.flags) << 16;
            words.extend([
                few | u64::from(place.packed) << 24 | u64::from(place.filed) << 25,
                u64::from(block.erases) << 32 | u64::from(block.reads),
                block.born_s.into(),
                place.at,
                place.bytes,
                place.sum,
            ]);
        }
        let word = |at: &PageAt| u64::from(at.block) << 32 | u64::from(at.page);
        words.push(self.harm.len() as u64);
        words.extend(self.harm.iter().flat_map(|(at, rate)| [word(at), *rate]));
        words.push(self.whole.len() as u64);
        for ((at, unit), bytes) in &*self.whole {
            words.extend([word(at), u64::from(*unit)]);
            words.extend(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)));
        }
        words
    }

    /// Loads the state from a file, and the bytes that the owner stored with it. The rows of its blocks stay
    /// there until first access, so the file must not be modified; it may be replaced by another.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::State`] with the part that differs from the format of [`Nand::save`].
    pub fn load_from(path: &Path) -> Result<(Nand, Vec<u8>), Error> {
        Nand::load_with(Files::default(), path)
    }

    /// As [`Nand::load_from`], with this and all later file accesses through `files`.
    ///
    /// # Errors
    /// As [`Nand::load_from`].
    pub fn load_with(files: Files, path: &Path) -> Result<(Nand, Vec<u8>), Error> {
        let path = own_name(path)?;
        let (nand, beside) = Nand::load_parts(files, &path, Missing::Refused)?;
        Ok((nand, beside.map_err(|error| refuse(&path, "beside", error.to_string()))?))
    }

    /// The flash, and the owner's bytes or the error in them.
    pub(super) fn load_parts(
        files: Files,
        path: &Path,
        missing: Missing,
    ) -> Result<(Nand, Result<Vec<u8>, BadChecksum>), Error> {
        let failed = |attempt| move |source| Error::Io { path: path.into(), attempt, source };
        let file = files.open(path).map_err(failed("open the state"))?;
        let length = file.length().map_err(failed("ask for its length"))?;
        let mut bytes = [0; HEADER_BYTES];
        if length < OLD_HEADER_BYTES as u64 {
            return Err(refuse(path, "header", format!("{length} bytes, expected at least 64")));
        }
        let some = HEADER_BYTES.min(length as usize);
        file.read_exact_at(&mut bytes[..some], 0).map_err(failed("read the header"))?;
        let header = Header::validate(path, &bytes[..some], length)?;
        let read = |bytes: u64, at: u64, attempt| {
            let mut part = vec![0; bytes as usize];
            file.read_exact_at(&mut part, at).map_err(failed(attempt)).map(|()| part)
        };
        let at = header.bytes as u64;
        let meta = read(header.meta_bytes, at, "read the specification")?;
        let at = at + header.meta_bytes;
        let beside = read(header.beside_bytes, at, "read what was kept beside")?;
        if checksum(&meta) != header.meta_sum {
            return Err(refuse(path, "meta", BadChecksum.to_string()));
        }
        let good = checksum(&beside) == header.beside_sum;
        let beside = if good { Ok(beside) } else { Err(BadChecksum) };
        let mut words = Words { path, words: meta.as_chunks().0.iter() };
        let (mut nand, places) = words.nand(length)?;
        let source = Source { file, path: path.into(), places };
        nand.files = files;
        nand.open_pages(path, &source, missing)?;
        nand.source = Some(Arc::new(source));
        nand.lineage = Lineage {
            id: header.id,
            generation: header.generation,
            saved: header.saved,
            ..Lineage::default()
        };
        nand.version = header.version;
        Ok((nand, beside))
    }
}

/// Rows that the file of pages is too short for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    Refused,
    Accepted,
}

/// Form of the rows of a block in a state file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    Plain,
    Packed,
    Filed,
}

impl Nand {
    /// Opens the file of pages, if there is one, and takes the areas of blocks from the state.
    fn open_pages(&mut self, path: &Path, source: &Source, missing: Missing) -> Result<(), Error> {
        let pages_path = pages::path_of(path);
        let failed =
            |source| Error::Io { path: pages_path.clone(), attempt: "look for the pages", source };
        let is_used = source.places.iter().any(|place| place.filed);
        if !is_used && !self.files.exists(&pages_path).map_err(failed)? {
            return Ok(());
        }
        let (width, rows) = (self.tables.width, self.spec.geometry.pages());
        let mut pages = pages::Pages::open(&self.files, path, width, rows)?;
        if missing == Missing::Accepted {
            // A block has an area, and erased ones keep theirs for a while (`Pages::wants_sync`).
            pages.accept_missing(2 * self.blocks.len() as u32 + 64);
        }
        for (block, place) in (0..).zip(&source.places).filter(|(_, place)| place.filed) {
            let (_, bytes) = source.bytes(block)?;
            let mut words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            let area = words.next().and_then(|area| u32::try_from(area).ok());
            let sums: Vec<u64> = words.collect();
            let area = area.filter(|area| sums.is_empty() || pages.found(*area, &sums));
            let area = area.ok_or_else(|| {
                let found = format!("those of block {block} are not in {}", pages_path.display());
                refuse(path, "rows", format!("{found}; see doorbell state check"))
            })?;
            self.held[block] = match place.rows {
                0 => Held::Nothing,
                _ => Held::Filed(area),
            };
        }
        self.pages = Some(Box::new(pages));
        Ok(())
    }
}

struct Header {
    version: u64,
    /// Length of the header itself.
    bytes: usize,
    meta_bytes: u64,
    beside_bytes: u64,
    meta_sum: u64,
    beside_sum: u64,
    id: u64,
    generation: u64,
    saved: Position,
}

impl Header {
    /// Validates a header. `bytes`: the beginning of the file, up to the longest header.
    fn validate(path: &Path, bytes: &[u8], length: u64) -> Result<Header, Error> {
        let word =
            |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"));
        if word(0) != MAGIC {
            return Err(refuse(path, "magic", "not a state of flash"));
        }
        let version = word(1);
        let own = match version {
            1 => OLD_HEADER_BYTES,
            VERSION => HEADER_BYTES,
            _ => {
                let found = format!("{version}, expected 1 to {VERSION}");
                return Err(refuse(path, "version", found));
            }
        };
        if bytes.len() < own {
            let found = format!("{length} bytes, expected at least {own}");
            return Err(refuse(path, "header", found));
        }
        let id = word(own / 8 - 1);
        if id != checksum(&bytes[..own - 8]) {
            return Err(refuse(path, "header", "its checksum is wrong"));
        }
        let [meta_bytes, beside_bytes, all] = [word(2), word(3), word(4)];
        let front = (own as u64).checked_add(meta_bytes);
        let front = front.and_then(|sum| sum.checked_add(beside_bytes));
        if length != all || !meta_bytes.is_multiple_of(8) || front.is_none_or(|sum| sum > all) {
            return Err(refuse(path, "length", format!("{length} bytes, expected {all}")));
        }
        let (generation, saved) = match version {
            1 => (0, Position::default()),
            _ => (word(7), Position { base: word(8), sequence: word(9), head: word(10) }),
        };
        let (meta_sum, beside_sum) = (word(5), word(6));
        Ok(Header {
            version,
            bytes: own,
            meta_bytes,
            beside_bytes,
            meta_sum,
            beside_sum,
            id,
            generation,
            saved,
        })
    }
}

/// Iterator over the remaining words of `meta`.
struct Words<'a> {
    path: &'a Path,
    words: std::slice::Iter<'a, [u8; 8]>,
}

impl Words<'_> {
    fn next(&mut self, field: &'static str) -> Result<u64, Error> {
        let next = self.words.next().map(|word| u64::from_le_bytes(*word));
        next.ok_or_else(|| refuse(self.path, field, "it ends too early"))
    }

    /// Next word, checked to fit.
    fn small<T: TryFrom<u64>>(&mut self, field: &'static str) -> Result<T, Error> {
        let word = self.next(field)?;
        word.try_into().map_err(|_| refuse(self.path, field, format!("{word} is too large")))
    }

    fn nand(&mut self, length: u64) -> Result<(Nand, Vec<Place>), Error> {
        let path = self.path;
        let spec = self.spec()?;
        let tables =
            Tables::new(&spec).map_err(|error| refuse(path, "specification", error.to_string()))?;
        let (age_s, cuts) = (self.small("age")?, self.small("cuts")?);
        let (mut blocks, mut contents, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..spec.geometry.all_blocks() {
            let (block, held, place) = self
                .block(&spec, &tables, length)?
                .ok_or_else(|| refuse(path, "block", format!("block {number} makes no sense")))?;
            blocks.push(block);
            contents.push(held);
            places.push(place);
        }
        let mut nand =
            Nand::new(spec).map_err(|error| refuse(path, "specification", error.to_string()))?;
        (nand.blocks, nand.held) = (blocks, Contents::new(contents));
        (nand.age_s, nand.cuts) = (age_s, cuts);
        for _ in 0..self.next("pages harmed")? {
            let (at, rate) = (self.next("pages harmed")?, self.next("pages harmed")?);
            nand.harm.insert(self.page(&nand, "pages harmed", at)?, rate);
        }
        for _ in 0..self.next("units kept whole")? {
            let at = self.next("units kept whole")?;
            let at = self.page(&nand, "units kept whole", at)?;
            let unit = self.small("units kept whole")?;
            let words = nand.spec.geometry.unit_bytes / 8;
            let bytes = (0..words).map(|_| self.next("units kept whole").map(u64::to_le_bytes));
            let bytes: Vec<[u8; 8]> = bytes.collect::<Result<_, _>>()?;
            Arc::make_mut(&mut nand.whole).insert((at, unit), bytes.as_flattened().into());
        }
        if self.words.len() > 0 {
            return Err(refuse(path, "meta", format!("{} words too many", self.words.len())));
        }
        Ok((nand, places))
    }

    fn page(&self, nand: &Nand, field: &'static str, word: u64) -> Result<PageAt, Error> {
        let at = PageAt { block: (word >> 32) as u32, page: word as u32 };
        nand.check(at).map(|()| at).map_err(|error| refuse(self.path, field, error.to_string()))
    }

    /// Next block; `None` if it is invalid.
    fn block(
        &mut self,
        spec: &Spec,
        tables: &Tables,
        length: u64,
    ) -> Result<Option<(Block, Held, Place)>, Error> {
        let [few, counts] = [self.next("block")?, self.next("block")?];
        let born_s = self.small("block")?;
        let [at, bytes, sum] = [self.next("block")?, self.next("block")?, self.next("block")?];
        let (next, flags) = (few as u16, (few >> 16) as u8);
        let (rows, form) = (usize::from(next), few >> 24);
        let plain = (rows * tables.width) as u64;
        let (packed, filed) = (form == 1, form == 2);
        let fits = match form {
            0 => bytes == plain,
            1 => bytes <= 2 * (tables.width as u64) + plain,
            _ => bytes == 8 + 8 * rows as u64,
        };
        let inside = at.checked_add(bytes).is_some_and(|end| end <= length);
        let in_block = u32::from(next) <= spec.geometry.pages();
        let good = form <= 2 && flags & !FLAGS == 0 && in_block && fits && inside;
        let held = if bytes == 0 { Held::Nothing } else { Held::Stored };
        let (erases, reads) = ((counts >> 32) as u32, counts as u32);
        let block = Block { erases, reads, born_s, next, flags };
        Ok(good.then_some((block, held, Place { at, bytes, sum, rows, packed, filed })))
    }

    fn spec(&mut self) -> Result<Spec, Error> {
        let mut next = || self.small::<u32>("specification");
        let geometry = Geometry {
            channels: next()?,
            packages: next()?,
            dies: next()?,
            planes: next()?,
            blocks: next()?,
            word_lines: next()?,
            cell: match next()? {
                1 => Cell::Slc,
                2 => Cell::Mlc,
                3 => Cell::Tlc,
                _ => Cell::Qlc,
            },
            order: if next()? == 0 { Order::WordLine } else { Order::Diagonal },
            group: next()?,
            page_bytes: next()?,
            spare_bytes: next()?,
            free_bytes: next()?,
            unit_bytes: next()?,
        };
        let keep = if next()? == 0 { Keep::Everything } else { Keep::Stamps };
        let block_bytes = next()?;
        let by_kind = [next()?, next()?, next()?, next()?];
        let [rated_cycles, codeword_bytes, corrects] = [next()?, next()?, next()?];
        let [retries, retry_keeps, factory_bad] = [next()?, next()?, next()?];
        let mut next = || self.next("specification");
        let errors = Errors {
            rated_cycles,
            fresh: next()?,
            worn: next()?,
            aged: next()?,
            disturbed: next()?,
            by_kind,
            codeword_bytes,
            corrects,
            retries,
            retry_keeps,
            factory_bad,
            program_fails: [next()?, next()?],
            erase_fails: [next()?, next()?],
        };
        Ok(Spec { geometry, keep, block_bytes, errors, seed: next()? })
    }
}

/// Words of the specification, in reading order.
fn spec_words(spec: &Spec) -> Vec<u64> {
    let Spec { geometry: g, keep, block_bytes, errors: e, seed } = spec;
    let order = u32::from(g.order == Order::Diagonal);
    let keep = u32::from(*keep == Keep::Stamps);
    let layout = [g.channels, g.packages, g.dies, g.planes, g.blocks, g.word_lines];
    let pages = [g.cell.bits(), order, g.group, g.page_bytes, g.spare_bytes, g.free_bytes];
    let few = [g.unit_bytes, keep, *block_bytes];
    let ecc = [e.rated_cycles, e.codeword_bytes, e.corrects, e.retries, e.retry_keeps];
    let small = layout.into_iter().chain(pages).chain(few).chain(e.by_kind).chain(ecc);
    let rates = [e.fresh, e.worn, e.aged, e.disturbed];
    small
        .chain([e.factory_bad])
        .map(u64::from)
        .chain(rates)
        .chain(e.program_fails)
        .chain(e.erase_fails)
        .chain([*seed])
        .collect()
}
