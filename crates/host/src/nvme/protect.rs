//! Protection information that the host makes and checks itself (NVM command set 1.0, 5.2; T10's of 16 bits).
//!
//! Where the controller does that alone, nothing watches over the link. Where the host does it, what it
//! writes is guarded before it leaves, the controller checks what it takes, and what is read is checked a
//! last time where it has arrived. The tags of a command lie in memory of its slot's own (MPTR), which is
//! there from the start, as the command's rings are.

use bus::{Arena, Buffer, HostPort, OutOfMemory};
use wire::nvme::entry::Sqe;
use wire::nvme::io;
use wire::nvme::pi::{self, Checks, Kind as Guard, Protection, Tuple};
use wire::{BusAddr, Lba};
use zerocopy::{FromZeros, IntoBytes};

use super::queue::Queue;
use crate::{Geometry, InitError, IoError};

/// The name under which a port is asked what it costs to make or to check what guards 512 bytes.
pub const GUARD_COST: &str = "guard";

/// The shortest block, which is also what the cost is counted in, bytes.
const UNIT_BYTES: usize = 512;

/// The longest block that this driver serves, bytes.
const BLOCK_BYTES_MAX: usize = 4096;

/// An application tag of all ones says that nothing is compared.
const NOT_COMPARED: u16 = u16::MAX;

/// Who makes protection information, and who checks it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protect {
    /// The controller makes it at a write, and checks it and takes it away at a read (PRACT).
    #[default]
    Device,
    /// The host makes it at a write, and checks it at a read; the controller checks it at both. A namespace
    /// without it is refused.
    Host {
        /// The application tag of all blocks; not all ones, by which nothing would be compared.
        application: u16,
    },
}

impl Protect {
    /// Whether a controller may be started so, if its blocks are protected so.
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

/// What a queue says of the protection information of its namespace's blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guards {
    kind: Guard,
    by: Protect,
}

impl Guards {
    pub fn of(kind: Option<Guard>, by: Protect) -> Option<Guards> {
        kind.map(|kind| Guards { kind, by })
    }

    /// Of the blocks from `lba` on; whether the controller is to `act`, or only to check. Reference tags are
    /// the blocks' numbers, whatever the type; of type 3, whose are not compared, they are the first block's.
    #[inline]
    fn says(&self, lba: Lba, act: bool) -> Protection {
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
    /// For so many slots and transfers of up to so many bytes, in blocks of whatever length.
    pub fn new(arena: &Arena, depth: u16, transfer_bytes_max: u32) -> Result<Tags, OutOfMemory> {
        let bytes_each = transfer_bytes_max as usize / UNIT_BYTES * pi::BYTES;
        let memory = arena.buffer(usize::from(depth) * bytes_each)?;
        Ok(Tags { memory, bytes_each })
    }

    fn offset(&self, slot: u16) -> usize {
        usize::from(slot) * self.bytes_each
    }

    fn at(&self, slot: u16) -> BusAddr {
        BusAddr(self.memory.at().0 + self.offset(slot) as u64)
    }

    /// The memory, to be given up for good where the device may still use it.
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }
}

impl<P: HostPort> Queue<P> {
    /// What a Read, a Write or a Compare in this slot says where blocks are protected.
    #[inline]
    pub(super) fn protected(&self, sqe: Sqe, lba: Lba, slot: u16) -> Sqe {
        let Some(guards) = &self.guards else { return sqe };
        match &self.pair.tags {
            None => io::protected(sqe, guards.says(lba, true)),
            Some(tags) => {
                let sqe = io::protected(sqe, guards.says(lba, false));
                io::with_metadata(sqe, tags.at(slot))
            }
        }
    }

    /// What a command says that moves nothing: whether the controller is to make protection information, or
    /// to check it.
    pub(super) fn with_pi(&self, sqe: Sqe, lba: Lba, act: bool) -> Sqe {
        match &self.guards {
            None => sqe,
            Some(guards) => io::protected(sqe, guards.says(lba, act)),
        }
    }

    /// Whether the host makes and checks its blocks' protection information.
    #[inline]
    pub(super) fn guards_itself(&self) -> bool {
        self.guards.is_some_and(|guards| guards.by.is_by_host())
    }

    /// Makes the protection information of what is about to be written or compared by this slot's command.
    pub(super) async fn make_tags(&self, slot: u16, lba: Lba, data: &Buffer) {
        self.pay_for(data).await;
        let (Some(guards), Some(tags)) = (&self.guards, &self.pair.tags) else { return };
        let says = guards.says(lba, false);
        let at = tags.offset(slot);
        each_block(&self.geometry, data, |number, block| {
            let tuple = says.tuple(guards.kind, number, block);
            tags.memory.copy_in(at + number as usize * pi::BYTES, tuple.as_bytes());
        });
    }

    /// Checks what this slot's command has read, and names the first block that is not what it should be.
    pub(super) async fn check_tags(
        &self,
        slot: u16,
        lba: Lba,
        data: &Buffer,
    ) -> Result<(), IoError> {
        self.pay_for(data).await;
        let (Some(guards), Some(tags)) = (&self.guards, &self.pair.tags) else { return Ok(()) };
        let says = guards.says(lba, false);
        let (at, mut result) = (tags.offset(slot), Ok(()));
        each_block(&self.geometry, data, |number, block| {
            if result.is_err() {
                return;
            }
            let mut tuple = Tuple::new_zeroed();
            tags.memory.copy_out(at + number as usize * pi::BYTES, tuple.as_mut_bytes());
            let checked = says.check(guards.kind, number, &tuple, block);
            result = checked
                .map_err(|mismatch| IoError::mismatched(mismatch, Lba(lba.0 + u64::from(number))));
        });
        result
    }

    async fn pay_for(&self, data: &Buffer) {
        let units = (data.bytes() / UNIT_BYTES) as u32;
        self.port().spend_times(self.costs.guard, units).await;
    }
}

/// Gives each block of the data, with its number. Shared memory is copied first: what is looked at does not
/// change meanwhile.
fn each_block(geometry: &Geometry, data: &Buffer, mut look: impl FnMut(u32, &[u8])) {
    let mut block = [0; BLOCK_BYTES_MAX];
    let block = &mut block[..geometry.block_bytes as usize];
    for number in 0..data.bytes() / block.len() {
        data.copy_out(number * block.len(), block);
        look(number as u32, block);
    }
}
