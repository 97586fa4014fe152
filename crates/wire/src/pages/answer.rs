//! The 16 bytes of an answer.

use core::fmt;

/// Bytes of an answer.
pub const ANSWER_BYTES: usize = 16;

/// How a command has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// As it was asked.
    Done = 0,
    /// No program has reached this page since its block was erased.
    Erased = 1,
    /// The page can't be corrected, or was cut short.
    Unreadable = 2,
    /// The program or the erase has failed in some planes.
    Failed = 3,
    /// The command makes no sense, or flash would refuse it: nothing was done.
    Refused = 4,
    /// An address outside host memory: nothing was programmed.
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

    /// The status of this number.
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

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The command's number.
    pub id: u16,
    /// How it ended.
    pub status: Status,
    /// Reads: sensed again so many times.
    pub retries: u8,
    /// Reads: bits corrected in the worst code word. Programs and erases: the planes that failed, a bit each.
    pub detail: u32,
    /// Which time round the ring this is, from 1: what tells it from the answer before it in its place.
    pub lap: u32,
}

impl Answer {
    /// Its bytes; the last word is the lap.
    pub fn to_bytes(self) -> [u8; ANSWER_BYTES] {
        let mut bytes = [0; ANSWER_BYTES];
        bytes[..2].copy_from_slice(&self.id.to_le_bytes());
        bytes[2] = self.status as u8;
        bytes[3] = self.retries;
        bytes[4..8].copy_from_slice(&self.detail.to_le_bytes());
        bytes[12..].copy_from_slice(&self.lap.to_le_bytes());
        bytes
    }

    /// The answer in these bytes; none if there is no such status.
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
