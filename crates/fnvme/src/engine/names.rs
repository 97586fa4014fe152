//! Named areas: found again by the next engine on the same drive.

use std::cell::RefCell;
use std::rc::Rc;

use bus::live::LiveHost;
use host::fastpath::Engine;
use host::nvme::Queue;
use host::{BlockDevice, IoError, Kind};
use wire::Lba;
use world::RunError;

use super::directory::{COPIES, COPY_BYTES, Directory, DirectoryError, Entry, NAMES_MAX, is_name};
use super::error::Error;

/// The directory of the engine's drive. Changes come one after the other.
pub(super) struct Names {
    directory: RefCell<Directory>,
    engine: Engine<LiveHost>,
    queue: Rc<Queue<LiveHost>>,
    /// First block of the directory, and blocks of a copy.
    from: Lba,
    blocks: u64,
}

impl Names {
    /// Reads the directory at `from`, and reserves its blocks and those of the named areas.
    pub async fn load(
        engine: &Engine<LiveHost>,
        queue: &Rc<Queue<LiveHost>>,
        from: Lba,
    ) -> Result<Names, RunError> {
        let block_bytes = engine.geometry().block_bytes;
        let blocks = (COPY_BYTES as u64).div_ceil(u64::from(block_bytes));
        let empty = Directory::empty();
        let names = Names {
            directory: RefCell::new(empty),
            engine: engine.clone(),
            queue: queue.clone(),
            from,
            blocks,
        };
        if !engine.reserve(from, COPIES * blocks) {
            let found = engine.geometry().blocks;
            return Err(RunError::of(format!(
                "the drive has {found} blocks, expected {} or more for the directory of areas",
                from.0 + COPIES * blocks
            )));
        }
        let copies = [names.read(0).await?, names.read(1).await?];
        let parsed = names.parse(copies, block_bytes)?;
        let directory = parsed.and_then(|directory| {
            let taken = |entry: &Entry| engine.reserve(entry.first, entry.blocks);
            directory.reserve_all(taken)
        });
        let at = from.0;
        names.directory.replace(
            directory.map_err(|error| {
                RunError::of(format!("LBA {at}: the directory of areas: {error}"))
            })?,
        );
        Ok(names)
    }

    fn at(&self, copy: u64) -> Lba {
        Lba(self.from.0 + copy * self.blocks)
    }

    fn copy_bytes(&self) -> usize {
        (self.blocks * u64::from(self.engine.geometry().block_bytes)) as usize
    }

    /// The copies as they were read. One that the medium cannot return is not needed where the other is
    /// valid; else it may be the only one, and the drive is not taken for one without named areas.
    fn parse(
        &self,
        copies: [Result<Vec<u8>, IoError>; 2],
        block_bytes: u32,
    ) -> Result<Result<Directory, DirectoryError>, RunError> {
        let lost = copies.iter().find_map(|copy| copy.as_ref().err().copied());
        let bytes = copies.each_ref().map(|copy| copy.as_deref().unwrap_or_default());
        let parsed = Directory::parse(bytes, block_bytes);
        match (lost, &parsed) {
            (Some(error), Ok(directory)) if !directory.is_on_drive() => Err(error.into()),
            _ => Ok(parsed),
        }
    }

    /// Reads a copy. The inner error is the medium's.
    async fn read(&self, copy: u64) -> Result<Result<Vec<u8>, IoError>, RunError> {
        let buffer = self.queue.buffer(self.copy_bytes())?;
        let (buffer, read) = self.queue.read(self.at(copy), buffer).await;
        match read {
            Err(error) if matches!(error.kind, Kind::MediaFailed | Kind::Corrupted) => {
                Ok(Err(error))
            }
            Err(error) => Err(error.into()),
            Ok(()) => {
                let mut bytes = vec![0; COPY_BYTES];
                buffer.copy_out(0, &mut bytes);
                Ok(Ok(bytes))
            }
        }
    }

    /// Writes the next copy, durable.
    async fn write(&self) -> Result<(), Error> {
        let (copy, bytes) = self.directory.borrow().next_copy(self.engine.geometry().block_bytes);
        let buffer = self.queue.buffer(self.copy_bytes()).map_err(Error::Memory)?;
        buffer.zero();
        buffer.copy_in(0, &bytes);
        self.queue.write(self.at(copy), buffer, true).await.1.map_err(Error::Driver)?;
        self.directory.borrow_mut().written();
        Ok(())
    }

    /// Writes both copies. The first makes the change durable; the second is for damage to the first.
    async fn save(&self) -> Result<(), Error> {
        self.write().await?;
        let _ = self.write().await;
        Ok(())
    }

    /// Writes the directory as it was before a change whose write has failed: the drive may have it all the
    /// same, and the next engine must not find what this one has denied.
    async fn take_back(&self) {
        // If it fails too, the next change is written over the copy in question.
        let _ = self.write().await;
    }

    /// Finds an area by its name, or makes one of `blocks` blocks; 0: only finds it. The area is in use until
    /// [`release`](Self::release). Returns its blocks, and whether it is a new one.
    pub async fn open(&self, name: &str, blocks: u64) -> Result<(Lba, u64, bool), Error> {
        if !is_name(name) {
            return Err(Error::Name);
        }
        if let Some(entry) = self.directory.borrow_mut().find(name) {
            if entry.in_use {
                return Err(Error::InUse);
            }
            if blocks != 0 && blocks != entry.blocks {
                return Err(Error::OtherLength { blocks: entry.blocks });
            }
            entry.in_use = true;
            return Ok((entry.first, entry.blocks, false));
        }
        if blocks == 0 {
            return Err(Error::NotFound);
        }
        if self.directory.borrow().entries.len() == NAMES_MAX {
            return Err(Error::Names);
        }
        let first = self.engine.reserve_free(blocks).map_err(Error::Open)?;
        let entry = Entry { name: name.into(), first, blocks, in_use: true };
        self.directory.borrow_mut().entries.push(entry);
        let saved = self.save().await;
        if saved.is_err() {
            self.directory.borrow_mut().entries.pop();
            self.take_back().await;
            self.engine.unreserve(first);
        }
        saved.map(|()| (first, blocks, true))
    }

    /// The area that begins here has no client any more.
    pub fn release(&self, first: Lba) {
        let mut directory = self.directory.borrow_mut();
        let mut entries = directory.entries.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.first == first) {
            entry.in_use = false;
        }
    }

    /// Removes an area that is not in use.
    pub async fn remove(&self, name: &str) -> Result<(), Error> {
        if !is_name(name) {
            return Err(Error::Name);
        }
        let removed = {
            let mut directory = self.directory.borrow_mut();
            let index = directory.entries.iter().position(|entry| entry.name == name);
            let index = index.ok_or(Error::NotFound)?;
            if directory.entries[index].in_use {
                return Err(Error::InUse);
            }
            directory.entries.remove(index)
        };
        let first = removed.first;
        let saved = self.save().await;
        match saved {
            Ok(()) => self.engine.unreserve(first),
            Err(_) => {
                self.directory.borrow_mut().entries.push(removed);
                self.take_back().await;
            }
        }
        saved
    }
}
