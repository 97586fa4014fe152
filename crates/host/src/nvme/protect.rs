//! Protection information generated and checked by the host (NVM command set 1.0, 5.2; 16-bit guard of T10).
//!
//! If only the controller handles it, the link is not protected. If the host does, data is protected before
//! it leaves, the controller checks what it receives, and data read is checked again at the host. The tags of
//! a command are in memory of its slot (MPTR), allocated at start like the command's rings.

use bus::{Arena, Buffer, OutOfMemory};
use wire::nvme::pi::{self, Checks, Kind as Guard, Protection};
use wire::{BusAddr, Lba};

use crate::InitError;

/// Name of the cost of generating or checking the protection information of 512 bytes.
pub const GUARD_COST: &str = "guard";

/// Shortest block in bytes; also the unit of the cost.
pub(super) const UNIT_BYTES: usize = 512;

/// Application tag that disables all checks.
const NOT_COMPARED: u16 = u16::MAX;

/// Side that generates and checks protection information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protect {
    /// The controller generates it on writes, and checks and strips it on reads (PRACT).
    #[default]
    Device,
    /// The host generates it on writes and checks it on reads; the controller checks it on both. A namespace
    /// without it is rejected.
    Host {
        /// Application tag of all blocks. All ones is invalid: it disables all checks.
        application: u16,
    },
}

impl Protect {
    /// Checks that the setting is supported for a namespace with this protection type.
    pub(super) fn validate(self, kind: Option<Guard>) -> Result<(), InitError> {
        let Protect::Host { application } = self else { return Ok(()) };
        let unsupported =
            |what, found, expected| Err(InitError::Unsupported { what, found, expected });
        if application == NOT_COMPARED {
            let expected = "another than all ones, by which nothing would be compared";
            return unsupported("the application tag", application.into(), expected);
        }
        if kind.is_none() {
            let expected = "a type from 1 to 3: the host was to make protection information";
            return unsupported("DPS", 0, expected);
        }
        Ok(())
    }

    pub(super) fn is_by_host(self) -> bool {
        matches!(self, Protect::Host { .. })
    }
}

/// Protection information settings of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guards {
    pub kind: Guard,
    pub by: Protect,
}

impl Guards {
    pub fn of(kind: Option<Guard>, by: Protect) -> Option<Guards> {
        kind.map(|kind| Guards { kind, by })
    }

    /// Protection fields of a command at `lba`; with `act` the controller generates and strips the tags,
    /// otherwise it only checks. Reference tags are the LBAs for all types; for type 3, which does not
    /// compare them, the first block's LBA.
    #[inline]
    pub fn says(&self, lba: Lba, act: bool) -> Protection {
        let (application, mask) = match self.by {
            Protect::Device => (0, 0),
            Protect::Host { application } => (application, u16::MAX),
        };
        let checks =
            Checks { guard: true, application: mask != 0, reference: self.kind != Guard::Three };
        Protection { act, checks, reference: lba.0 as u32, application, mask }
    }
}

/// Memory for the protection information of each slot's longest transfer.
pub(super) struct Tags {
    memory: Buffer,
    bytes_each: usize,
}

impl Tags {
    /// Allocates tags for `depth` slots and transfers of up to `transfer_bytes_max` bytes, for any block
    /// length.
    pub fn new(arena: &Arena, depth: u16, transfer_bytes_max: u32) -> Result<Tags, OutOfMemory> {
        let bytes_each = transfer_bytes_max as usize / UNIT_BYTES * pi::BYTES;
        let memory = arena.buffer(usize::from(depth) * bytes_each)?;
        Ok(Tags { memory, bytes_each })
    }

    pub fn offset(&self, slot: u16) -> usize {
        usize::from(slot) * self.bytes_each
    }

    pub fn at(&self, slot: u16) -> BusAddr {
        BusAddr(self.memory.at().0 + self.offset(slot) as u64)
    }

    /// Memory of the tags, for quarantine.
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }
}
