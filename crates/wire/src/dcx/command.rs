//! Commands of 64 bytes.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::report::Code;
use super::tag::has_wide_places;
use crate::{BusAddr, Lba};

/// Bytes of an entry.
pub const BYTES: usize = size_of::<Entry>();

const READ: u8 = 1;
const WRITE: u8 = 2;
const FENCE: u8 = 3;

/// Flag: a write goes through any volatile cache.
const FUA: u8 = 1;
/// Flag: the buffer of a read is marked with wide tags.
const WIDE: u8 = 2;

/// A command ring entry as it is in memory.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Entry {
    opcode: u8,
    flags: u8,
    slot: U16,
    tag_version: U32,
    lba: U64,
    address: U64,
    bytes: U32,
    reserved: [u8; 32],
    number: U32,
}

crate::nvme::layout!(Entry, 64, {
    opcode @ 0, flags @ 1, slot @ 2, tag_version @ 4, lba @ 8, address @ 16, bytes @ 24,
    reserved @ 28, number @ 60,
});

/// Blocks, and the contiguous buffer in host memory for their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The first block.
    pub lba: Lba,
    /// Number of bytes from the first block on: whole blocks, or the first part of one. A multiple of four.
    pub bytes: u32,
    /// Address of the buffer in host memory: a multiple of four.
    pub at: BusAddr,
}

/// Operation of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read: ends when its tags have vanished, or with a report of an error.
    Read {
        /// Blocks and buffer.
        access: Access,
        /// Version of the device's tag that marks the buffer; zero: a tag chosen by the host.
        tag_version: u32,
        /// Tags of more than one word: the device stores the last eight bytes of each packet at once.
        wide: bool,
    },
    /// Write: ends with a report.
    Write {
        /// Blocks and buffer.
        access: Access,
        /// Forced to the medium before the report.
        fua: bool,
    },
    /// Fence: reported when no write of an earlier command can reach host memory any more.
    Fence,
}

/// A command with valid fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number in the ring.
    pub number: u32,
    /// The host's slot number: reports carry it back.
    pub slot: u16,
    /// Operation.
    pub command: Command,
}

impl Entry {
    /// Command number: the word that shows that the entry is present.
    pub fn number(&self) -> u32 {
        self.number.get()
    }

    /// The host's slot number, even if other fields are invalid.
    pub fn slot(&self) -> u16 {
        self.slot.get()
    }

    /// First block of a read or a write, its bytes, and whether it is a write, even if other fields are
    /// invalid: for a hint.
    #[inline]
    pub fn moves(&self) -> Option<(Lba, u32, bool)> {
        let to_write = self.opcode == WRITE;
        (to_write || self.opcode == READ).then(|| (Lba(self.lba.get()), self.bytes.get(), to_write))
    }

    /// Encodes a request.
    pub fn new(request: &Request) -> Entry {
        let entry =
            Entry { slot: request.slot.into(), number: request.number.into(), ..Entry::default() };
        match request.command {
            Command::Read { access, tag_version, wide } => {
                let flags = if wide { WIDE } else { 0 };
                Entry { opcode: READ, flags, tag_version: tag_version.into(), ..entry.with(access) }
            }
            Command::Write { access, fua } => {
                Entry { opcode: WRITE, flags: if fua { FUA } else { 0 }, ..entry.with(access) }
            }
            Command::Fence => Entry { opcode: FENCE, ..entry },
        }
    }

    fn with(self, access: Access) -> Entry {
        Entry {
            lba: access.lba.0.into(),
            address: access.at.0.into(),
            bytes: access.bytes.into(),
            ..self
        }
    }

    /// Decodes the request, or returns the code with which to reject it.
    pub fn parse(&self) -> Result<Request, Code> {
        let command = match self.opcode {
            READ => Command::Read {
                access: self.access()?,
                tag_version: self.tag_version.get(),
                wide: self.flags & WIDE != 0,
            },
            WRITE => Command::Write { access: self.access()?, fua: self.flags & FUA != 0 },
            FENCE => Command::Fence,
            _ => return Err(Code::INVALID_OPCODE),
        };
        let known = match self.opcode {
            READ => WIDE,
            WRITE => FUA,
            _ => 0,
        };
        let misplaced = matches!(command, Command::Read { access, wide: true, .. }
            if !has_wide_places(access.at, access.bytes));
        if misplaced || self.flags & !known != 0 || self.reserved != [0; 32] {
            return Err(Code::INVALID_FIELD);
        }
        Ok(Request { number: self.number.get(), slot: self.slot.get(), command })
    }

    fn access(&self) -> Result<Access, Code> {
        let access = Access {
            lba: Lba(self.lba.get()),
            bytes: self.bytes.get(),
            at: BusAddr(self.address.get()),
        };
        let words = access.bytes.is_multiple_of(4) && access.at.0.is_multiple_of(4);
        let sense = access.bytes > 0 && words;
        if sense { Ok(access) } else { Err(Code::INVALID_FIELD) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: Access =
        Access { lba: Lba(0x1_2345_6789), bytes: 4096, at: BusAddr(0x1_0000_0204) };

    const WIDE_PLACES: Access = Access { at: BusAddr(0x1_0000_0208), ..ACCESS };

    #[test]
    fn dcx_command_round_trip() {
        let commands = [
            Command::Read { access: ACCESS, tag_version: 7, wide: false },
            Command::Read { access: WIDE_PLACES, tag_version: 0, wide: true },
            Command::Write { access: ACCESS, fua: true },
            Command::Write { access: ACCESS, fua: false },
            Command::Fence,
        ];
        for (number, command) in [1, 2, u32::MAX, 0, 7].into_iter().zip(commands) {
            let request = Request { number, slot: 513, command };
            assert_eq!(Entry::new(&request).parse(), Ok(request));
        }
    }

    #[test]
    fn parse_rejects_invalid_dcx_commands() {
        let read = Command::Read { access: ACCESS, tag_version: 7, wide: false };
        let good = Entry::new(&Request { number: 1, slot: 0, command: read });
        let refused = [
            (Entry { opcode: 0, ..good }, Code::INVALID_OPCODE),
            (Entry { opcode: 4, ..good }, Code::INVALID_OPCODE),
            (Entry { flags: FUA, ..good }, Code::INVALID_FIELD),
            // Wide tags need places at multiples of eight.
            (Entry { flags: WIDE, ..good }, Code::INVALID_FIELD),
            (Entry { bytes: 0.into(), ..good }, Code::INVALID_FIELD),
            (Entry { bytes: 510.into(), ..good }, Code::INVALID_FIELD),
            (Entry { address: 0x1002.into(), ..good }, Code::INVALID_FIELD),
            (Entry { reserved: [1; 32], ..good }, Code::INVALID_FIELD),
            (Entry { opcode: FENCE, flags: 1, ..good }, Code::INVALID_FIELD),
        ];
        for (entry, code) in refused {
            assert_eq!(entry.parse(), Err(code), "{entry:?}");
        }
    }
}
