//! Answers of 16 bytes.

use core::fmt;

/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 16;

/// Status of a completed command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Done = 0,
    /// The page has not been programmed since its block was erased.
    Erased = 1,
    /// The page is uncorrectable, or its program was interrupted.
    Unreadable = 2,
    /// The program or the erase has failed in some planes.
    Failed = 3,
    /// The command is invalid, or the flash would reject it: it was not executed.
    Refused = 4,
    /// An address outside host memory: no page was programmed.
    BadAddress = 5,
}

impl Status {
    const ALL: [Status; 6] = [
        Status::Done,
        Status::Erased,
        Status::Unreadable,
        Status::Failed,
        Status::Refused,
        Status::BadAddress,
    ];

    /// The status with this number.
    pub fn from_bits(bits: u8) -> Option<Status> {
        Status::ALL.get(usize::from(bits)).copied()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Done => "done",
            Status::Erased => "erased",
            Status::Unreadable => "unreadable",
            Status::Failed => "failed",
            Status::Refused => "refused",
            Status::BadAddress => "an address outside host memory",
        })
    }
}

/// Answer to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Command number.
    pub id: u16,
    /// Status of the command.
    pub status: Status,
    /// Reads: number of read retries.
    pub retries: u8,
    /// Reads: corrected bits in the worst code word. Programs and erases: failed planes, one bit each.
    pub detail: u32,
    /// Pass over the ring, from 1: distinguishes the answer from the one before it at the same index.
    pub lap: u32,
}

impl Answer {
    /// Encodes the answer; the last word is the lap.
    pub fn to_bytes(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2] = self.status as u8;
        bytes[3] = self.retries;
        bytes[4..8].copy_from_slice(&self.detail.to_le_bytes());
        bytes[12..].copy_from_slice(&self.lap.to_le_bytes());
        bytes
    }

    /// Decodes an answer; `None` if the status is undefined.
    pub fn parse(bytes: &[u8; ANSWER_BYTES]) -> Option<Answer> {
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        Some(Answer {
            id: u16::from_le_bytes([bytes[0], bytes[1]]),
            status: Status::from_bits(bytes[2])?,
            retries: bytes[3],
            detail: word(4),
            lap: word(12),
        })
    }
}
