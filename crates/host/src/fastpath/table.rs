//! Table of handles, and validation of requests against it.

use alloc::vec::Vec;

use bus::Buffer;
use wire::fastpath::{Direction, Refusal, Request, Transfer, Work};
use wire::{BusAddr, Lba};

use super::HANDLES_MAX;
use super::areas::Areas;
use super::function::Through;
use crate::Geometry;

/// Owner of a handle: the number of a caller's ring, or that of the executor's tasks.
pub(super) type Owner = u32;

/// Handle number with its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Index in the table.
    pub fp_id: u16,
    /// Use count of the index.
    pub generation: u16,
}

/// Blocks and memory of a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First block of the area.
    pub first: Lba,
    /// Number of blocks.
    pub blocks: u64,
    /// Bus address of its memory, page aligned.
    pub at: BusAddr,
    /// Bytes of memory.
    pub bytes: u64,
}

/// Why there is no handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No free area of this length; the longest, in blocks.
    #[error("no such area left on the drive: the longest has {0} blocks")]
    Full(u64),
    /// All [`HANDLES_MAX`] handles are in use.
    #[error("all {} handles are in use", HANDLES_MAX)]
    Handles,
    /// Its memory does not begin at a page, or has no bytes.
    #[error("a buffer that begins at a multiple of 4096 was expected")]
    Memory,
    /// No blocks were asked for.
    #[error("an area of at least one block was expected")]
    Empty,
    /// No memory is left for blocks on their way through a function.
    #[error("no memory is left for blocks on their way through a function")]
    Staging,
    /// There is no such handle, or it has requests under way.
    #[error("an open handle without requests was expected")]
    Busy,
}

struct Entry {
    generation: u16,
    state: State,
}

enum State {
    Free,
    Open(Open),
    /// Closed, but the drive may still have commands of it.
    Closing(Open),
}

struct Open {
    owner: Owner,
    area: Area,
    /// True if the area came from the allocator.
    taken: bool,
    /// Its memory, if owned by the table.
    keep: Option<Buffer>,
    /// Function of its blocks.
    through: Option<Through>,
    requests: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Flush,
    Move { direction: Direction, lba: Lba, at: BusAddr, block_size: u32, commands: u32 },
}

impl Job {
    pub fn commands(&self) -> u32 {
        match self {
            Job::Flush => 1,
            Job::Move { commands, .. } => *commands,
        }
    }
}

pub(super) struct Table {
    entries: Vec<Entry>,
    pub areas: Areas,
    block_bytes: u32,
}

impl Table {
    /// Allocates areas from the drive's blocks at `from` and above.
    pub fn new(geometry: &Geometry, from: Lba) -> Table {
        let areas = Areas::new(from.0.min(geometry.blocks), geometry.blocks);
        Table { entries: Vec::new(), areas, block_bytes: geometry.block_bytes }
    }

    /// Opens a handle for an area of `blocks` blocks and this memory.
    pub fn open(
        &mut self,
        owner: Owner,
        blocks: u64,
        memory: Memory,
    ) -> Result<(Handle, Area), OpenError> {
        if blocks == 0 {
            return Err(OpenError::Empty);
        }
        memory.validate()?;
        let fp_id = self.free_entry()?;
        let first = self.areas.take(blocks).map_err(OpenError::Full)?;
        let area = Area { first, blocks, at: memory.at, bytes: memory.bytes };
        let keep = memory.keep;
        let open = Open { owner, area, taken: true, keep, through: None, requests: 0 };
        Ok((self.enter(fp_id, open), area))
    }

    /// Opens a handle for blocks allocated by the caller, which may overlap other areas.
    pub fn open_over(&mut self, owner: Owner, area: Area) -> Result<Handle, OpenError> {
        Memory { at: area.at, bytes: area.bytes, keep: None }.validate()?;
        let fp_id = self.free_entry()?;
        let open = Open { owner, area, taken: false, keep: None, through: None, requests: 0 };
        Ok(self.enter(fp_id, open))
    }

    /// Passes the blocks of this handle through a function from now on.
    pub fn pass_through(
        &mut self,
        owner: Owner,
        handle: Handle,
        through: Through,
    ) -> Result<(), OpenError> {
        match self.entries.get_mut(usize::from(handle.fp_id)) {
            Some(Entry { generation, state: State::Open(open) })
                if *generation == handle.generation
                    && open.owner == owner
                    && open.requests == 0 =>
            {
                open.through = Some(through);
                Ok(())
            }
            _ => Err(OpenError::Busy),
        }
    }

    /// Function of a handle that has requests.
    pub fn through(&self, fp_id: u16) -> Option<Through> {
        match &self.entries[usize::from(fp_id)].state {
            State::Open(open) | State::Closing(open) => open.through.clone(),
            State::Free => None,
        }
    }

    fn free_entry(&mut self) -> Result<u16, OpenError> {
        let free = self.entries.iter().position(|entry| matches!(entry.state, State::Free));
        if let Some(free) = free {
            return Ok(free as u16);
        }
        if self.entries.len() == HANDLES_MAX {
            return Err(OpenError::Handles);
        }
        self.entries.push(Entry { generation: 0, state: State::Free });
        Ok((self.entries.len() - 1) as u16)
    }

    fn enter(&mut self, fp_id: u16, open: Open) -> Handle {
        let entry = &mut self.entries[usize::from(fp_id)];
        // The first generation is 1: a request of all zeros matches no handle.
        entry.generation = entry.generation.wrapping_add(1).max(1);
        entry.state = State::Open(open);
        Handle { fp_id, generation: entry.generation }
    }

    /// Closes a handle. Returns false if it is not open, or belongs to another owner.
    pub fn close(&mut self, owner: Owner, handle: Handle) -> bool {
        let Some(entry) = self.entries.get_mut(usize::from(handle.fp_id)) else { return false };
        let State::Open(open) = &entry.state else { return false };
        if entry.generation != handle.generation || open.owner != owner {
            return false;
        }
        let State::Open(open) = core::mem::replace(&mut entry.state, State::Free) else {
            unreachable!("it was just looked at");
        };
        entry.state = State::Closing(open);
        self.settle(handle.fp_id);
        true
    }

    pub fn is_open(&self, handle: Handle) -> bool {
        let entry = self.entries.get(usize::from(handle.fp_id));
        entry
            .is_some_and(|e| matches!(e.state, State::Open(_)) && e.generation == handle.generation)
    }

    /// Open handles of this owner.
    pub fn handles_of(&self, owner: Owner) -> Vec<Handle> {
        let number = |(fp_id, entry): (usize, &Entry)| match &entry.state {
            State::Open(open) if open.owner == owner => {
                Some(Handle { fp_id: fp_id as u16, generation: entry.generation })
            }
            _ => None,
        };
        self.entries.iter().enumerate().filter_map(number).collect()
    }

    /// Returns true if handles of this owner have unanswered requests.
    pub fn under_way(&self, owner: Owner) -> bool {
        self.entries.iter().any(|entry| match &entry.state {
            State::Open(open) | State::Closing(open) => open.owner == owner && open.requests > 0,
            State::Free => false,
        })
    }

    /// Returns true if the drive may still have commands of this handle.
    pub fn is_closing(&self, handle: Handle) -> bool {
        let entry = self.entries.get(usize::from(handle.fp_id));
        entry.is_some_and(|e| {
            matches!(e.state, State::Closing(_)) && e.generation == handle.generation
        })
    }

    /// Frees a closing handle that has no requests left.
    fn settle(&mut self, fp_id: u16) {
        let entry = &mut self.entries[usize::from(fp_id)];
        if let State::Closing(open) = &entry.state
            && open.requests == 0
        {
            if open.taken {
                self.areas.give(open.area.first);
            }
            entry.state = State::Free;
        }
    }

    /// Validates a request. If it is accepted, the handle has one more request.
    pub fn validate(&mut self, owner: Owner, request: &Request) -> Result<Job, Refusal> {
        let work = request.parse(self.block_bytes)?;
        let entry =
            self.entries.get_mut(usize::from(request.fp_id.get())).ok_or(Refusal::Handle)?;
        let generation = request.generation.get();
        let open = match &mut entry.state {
            // Another owner's handle gives the same error as no handle: guessing reveals nothing.
            State::Open(open) | State::Closing(open) if open.owner != owner => {
                return Err(Refusal::Handle);
            }
            State::Open(open) if entry.generation == generation => open,
            State::Free if entry.generation == 0 => return Err(Refusal::Handle),
            _ => return Err(Refusal::Stale),
        };
        let job = match work {
            Work::Flush => Job::Flush,
            Work::Transfer(transfer) => place(&open.area, &transfer, self.block_bytes)?,
        };
        open.requests += 1;
        Ok(job)
    }

    /// Records that a request of this handle was answered.
    pub fn answered(&mut self, fp_id: u16) {
        let entry = &mut self.entries[usize::from(fp_id)];
        match &mut entry.state {
            State::Open(open) | State::Closing(open) => open.requests -= 1,
            State::Free => unreachable!("a handle with requests is not free"),
        }
        self.settle(fp_id);
    }

    /// Quarantines all memory: the drive may still write to it.
    pub fn quarantine(&self) {
        for entry in &self.entries {
            if let State::Open(open) | State::Closing(open) = &entry.state
                && let Some(buffer) = &open.keep
            {
                crate::quarantine(buffer);
            }
        }
    }
}

pub(super) struct Memory {
    pub at: BusAddr,
    pub bytes: u64,
    pub keep: Option<Buffer>,
}

impl Memory {
    fn validate(&self) -> Result<(), OpenError> {
        let sense = self.at.0.is_multiple_of(4096)
            && self.bytes > 0
            && self.at.offset(self.bytes).is_some();
        if sense { Ok(()) } else { Err(OpenError::Memory) }
    }
}

/// Location of a transfer, if it is inside the handle's area and memory.
fn place(area: &Area, transfer: &Transfer, block_bytes: u32) -> Result<Job, Refusal> {
    let size = u64::from(transfer.size);
    let inside = |offset: u64, bytes: u64| offset.checked_add(size).is_some_and(|end| end <= bytes);
    if !inside(transfer.offset, area.blocks * u64::from(block_bytes)) {
        return Err(Refusal::Area);
    }
    if !inside(transfer.buffer_offset, area.bytes) {
        return Err(Refusal::Buffer);
    }
    Ok(Job::Move {
        direction: transfer.direction,
        lba: Lba(area.first.0 + transfer.offset / u64::from(block_bytes)),
        at: BusAddr(area.at.0 + transfer.buffer_offset),
        block_size: transfer.block_size,
        commands: transfer.commands(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        blocks: 1000,
        block_bytes: 512,
        transfer_bytes_max: 1 << 17,
        buffer_align: 4,
        volatile_cache: false,
    };

    fn memory(page: u64) -> Memory {
        Memory { at: BusAddr(page * 4096), bytes: 8 * 4096, keep: None }
    }

    fn read(handle: Handle, offset: u64, size: u32, buffer_offset: u64) -> Request {
        let transfer =
            Transfer { direction: Direction::Read, offset, size, block_size: 512, buffer_offset };
        Request::transfer(1, handle.fp_id, handle.generation, &transfer)
    }

    #[test]
    fn request_outside_area_or_buffer_rejected() {
        let mut table = Table::new(&GEOMETRY, Lba(100));
        let (mine, area) = table.open(1, 64, memory(16)).unwrap();
        assert_eq!((area.first, mine.generation), (Lba(100), 1));
        let last = table.validate(1, &read(mine, 63 * 512, 512, 8 * 4096 - 512)).unwrap();
        let at = BusAddr(24 * 4096 - 512);
        let direction = Direction::Read;
        assert_eq!(last, Job::Move { direction, lba: Lba(163), at, block_size: 512, commands: 1 });
        for (offset, size, buffer_offset, refusal) in [
            (64 * 512, 512, 0, Refusal::Area),
            (63 * 512, 1024, 0, Refusal::Area),
            (u64::MAX - 511, 512, 0, Refusal::Area),
            (u64::MAX - 511, 1024, 0, Refusal::Area),
            (0, 512, 8 * 4096, Refusal::Buffer),
            (0, 1024, 8 * 4096 - 512, Refusal::Buffer),
            (0, 512, u64::MAX - 511, Refusal::Buffer),
            (1, 512, 0, Refusal::Size),
        ] {
            assert_eq!(table.validate(1, &read(mine, offset, size, buffer_offset)), Err(refusal));
        }
    }

    #[test]
    fn foreign_or_stale_handle_rejected() {
        let mut table = Table::new(&GEOMETRY, Lba(0));
        let (mine, _) = table.open(1, 8, memory(1)).unwrap();
        let (other, _) = table.open(2, 8, memory(9)).unwrap();
        let forged = Handle { fp_id: 77, ..mine };
        for handle in [other, forged, Handle { generation: 9, ..other }] {
            assert_eq!(
                table.validate(1, &read(handle, 0, 512, 0)),
                Err(Refusal::Handle),
                "{handle:?}"
            );
            assert!(!table.close(1, handle));
        }
        let newer = Handle { generation: 2, ..mine };
        assert_eq!(table.validate(1, &read(newer, 0, 512, 0)), Err(Refusal::Stale));
        assert!(table.close(1, mine) && !table.close(1, mine));
        assert_eq!(table.validate(1, &read(mine, 0, 512, 0)), Err(Refusal::Stale));
        let (again, _) = table.open(1, 8, memory(1)).unwrap();
        assert_eq!(again, newer, "the place is used again, and the use is another");
        assert_eq!(table.validate(1, &read(mine, 0, 512, 0)), Err(Refusal::Stale));
        assert!(table.validate(1, &read(again, 0, 512, 0)).is_ok());
    }

    #[test]
    fn closed_area_freed_after_last_response() {
        let mut table = Table::new(&GEOMETRY, Lba(0));
        let (mine, _) = table.open(1, 1000, memory(1)).unwrap();
        table.validate(1, &read(mine, 0, 512, 0)).unwrap();
        assert!(table.close(1, mine) && table.is_closing(mine));
        assert_eq!(table.open(1, 1, memory(1)).err(), Some(OpenError::Full(0)));
        assert_eq!(table.validate(1, &read(mine, 0, 512, 0)), Err(Refusal::Stale));
        table.answered(mine.fp_id);
        assert!(!table.is_closing(mine));
        assert!(table.open(1, 1000, memory(1)).is_ok());
    }

    #[test]
    fn open_rejects_handle_overflow_and_unaligned_memory() {
        let geometry = Geometry { blocks: 1 << 30, ..GEOMETRY };
        let mut table = Table::new(&geometry, Lba(0));
        assert_eq!(table.open(1, 0, memory(1)).err(), Some(OpenError::Empty));
        let askew = Memory { at: BusAddr(512), ..memory(1) };
        assert_eq!(table.open(1, 1, askew).err(), Some(OpenError::Memory));
        for _ in 0..HANDLES_MAX {
            table.open(1, 1, memory(1)).unwrap();
        }
        assert_eq!(table.open(1, 1, memory(1)).err(), Some(OpenError::Handles));
        let all = table.handles_of(1);
        assert_eq!(all.len(), HANDLES_MAX);
        assert!(table.handles_of(2).is_empty());
    }
}
