//! Network Block Device: fixed newstyle negotiation, and transmission with simple replies ("The NBD
//! protocol", the NBD project's document). All numbers are big-endian.
//!
//! ```text
//!   client                                   server
//!                              ◄── Greeting
//!   ClientFlags                ──►
//!   OptionHeader, its data     ──►
//!                              ◄── OptionReply, its data      ... until EXPORT_NAME or GO
//!   Request, the data to write ──►
//!                              ◄── Reply, the data read       ... in any order, until DISC
//! ```

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Handshake flag of both sides: fixed newstyle.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag of both sides: the reply to EXPORT_NAME has no 124 zero bytes at its end.
pub const NO_ZEROES: u16 = 1 << 1;

const NBDMAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const IHAVEOPT: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// Maximum length of a read or a write, bytes, that clients assume without a block size reply.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;
/// Maximum length of option data, bytes: enough for two names and a list of information requests.
pub const OPTION_BYTES_MAX: u32 = 16 << 10;

/// Options of a client.
pub mod option {
    /// Begins transmission; closes the connection on failure.
    pub const EXPORT_NAME: u32 = 1;
    /// Ends the negotiation.
    pub const ABORT: u32 = 2;
    /// Lists exports.
    pub const LIST: u32 = 3;
    /// Describes an export.
    pub const INFO: u32 = 6;
    /// Describes an export and begins transmission.
    pub const GO: u32 = 7;
}

/// Replies of a server to an option.
pub mod reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// Name of an export.
    pub const SERVER: u32 = 2;
    /// Information about an export.
    pub const INFO: u32 = 3;
    /// Unsupported option.
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    /// Invalid option.
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    /// Unknown export.
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    /// Option data longer than the server's limit.
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
}

/// Transmission flags of an export, sent before transmission begins.
pub mod transmission {
    /// The flags are valid.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Supports FLUSH.
    pub const FLUSH: u16 = 1 << 2;
    /// Supports [`FUA`](super::FUA).
    pub const FUA: u16 = 1 << 3;
    /// Supports TRIM.
    pub const TRIM: u16 = 1 << 5;
    /// Supports WRITE_ZEROES.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// A flush on one connection covers all connections.
    pub const MULTI_CONN: u16 = 1 << 8;
}

/// Command flag: the data are durable when the reply is sent.
pub const FUA: u16 = 1 << 0;
/// Command flag of WRITE_ZEROES: the blocks stay allocated.
pub const NO_HOLE: u16 = 1 << 1;

/// Errors of a reply, numbered as in Linux.
pub mod error {
    /// Not permitted.
    pub const EPERM: u32 = 1;
    /// I/O error.
    pub const EIO: u32 = 5;
    /// No memory.
    pub const ENOMEM: u32 = 12;
    /// Invalid argument.
    pub const EINVAL: u32 = 22;
    /// No space left.
    pub const ENOSPC: u32 = 28;
    /// Not supported.
    pub const ENOTSUP: u32 = 95;
    /// The server is shutting down.
    pub const ESHUTDOWN: u32 = 108;
}

macro_rules! structures {
    ($($(#[$doc:meta])+ $name:ident $bytes:literal {
        $($(#[$field_doc:meta])+ $field:ident: $type:ty,)+
    })+) => {$(
        $(#[$doc])+
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])+ pub $field: $type,)+ }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )+};
}

structures! {
    /// First message of a server.
    Greeting 18 {
        /// "NBDMAGIC".
        magic: U64,
        /// "IHAVEOPT".
        version: U64,
        /// Handshake flags.
        flags: U16,
    }

    /// Reply of a client to the greeting.
    ClientFlags 4 {
        /// Handshake flags.
        flags: U32,
    }

    /// An option; its data follow.
    OptionHeader 16 {
        /// "IHAVEOPT".
        magic: U64,
        /// One of [`option`].
        option: U32,
        /// Bytes of its data.
        bytes: U32,
    }

    /// The reply to an option; its data follow.
    OptionReply 20 {
        /// Magic number of option replies.
        magic: U64,
        /// The option.
        option: U32,
        /// One of [`reply`].
        reply: U32,
        /// Bytes of its data.
        bytes: U32,
    }

    /// Size and flags of an export: the answer to EXPORT_NAME.
    Export 10 {
        /// Bytes.
        size: U64,
        /// Bits of [`transmission`].
        flags: U16,
    }

    /// Size and flags of an export as data of [`reply::INFO`].
    ExportInfo 12 {
        /// Information type: 0, NBD_INFO_EXPORT.
        info: U16,
        /// Size and flags.
        export: Export,
    }

    /// Block size constraints, as data of [`reply::INFO`].
    BlockSizeInfo 14 {
        /// Information type: 3, NBD_INFO_BLOCK_SIZE.
        info: U16,
        /// Minimum block size, bytes: all offsets and lengths are multiples of it.
        least: U32,
        /// Preferred block size, bytes.
        preferred: U32,
        /// Maximum length of a read or a write, bytes.
        most: U32,
    }

    /// A request; the data of a write follow.
    Request 28 {
        /// Magic number of requests.
        magic: U32,
        /// [`FUA`] and [`NO_HOLE`].
        flags: U16,
        /// Request type: see [`Ask`].
        kind: U16,
        /// Carried back by the reply.
        cookie: U64,
        /// Offset of the first byte.
        offset: U64,
        /// Length in bytes.
        bytes: U32,
    }

    /// The answer to a request; the data of a read follow, if it succeeded.
    Reply 16 {
        /// Magic number of replies.
        magic: U32,
        /// 0, or one of [`error`].
        error: U32,
        /// Cookie of the request.
        cookie: U64,
    }
}

/// Information type of [`BlockSizeInfo`].
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Request type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// READ.
    Read,
    /// WRITE.
    Write,
    /// DISC: the last request.
    Disconnect,
    /// FLUSH.
    Flush,
    /// TRIM.
    Trim,
    /// WRITE_ZEROES.
    WriteZeroes,
}

impl Ask {
    /// The type with this number; `None` if it is unknown.
    pub const fn of(kind: u16) -> Option<Ask> {
        Some(match kind {
            0 => Ask::Read,
            1 => Ask::Write,
            2 => Ask::Disconnect,
            3 => Ask::Flush,
            4 => Ask::Trim,
            6 => Ask::WriteZeroes,
            _ => return None,
        })
    }
}

impl Greeting {
    /// A greeting with these handshake flags.
    pub fn new(flags: u16) -> Greeting {
        Greeting { magic: NBDMAGIC.into(), version: IHAVEOPT.into(), flags: flags.into() }
    }
}

impl OptionHeader {
    /// True if both magic numbers are right.
    pub fn is_sound(&self) -> bool {
        self.magic.get() == IHAVEOPT
    }
}

impl OptionReply {
    /// A reply header for `bytes` bytes of data.
    pub fn new(option: u32, reply: u32, bytes: u32) -> OptionReply {
        let (option, reply) = (option.into(), reply.into());
        OptionReply { magic: OPTION_REPLY.into(), option, reply, bytes: bytes.into() }
    }
}

impl Request {
    /// True if the magic number is right.
    pub fn is_sound(&self) -> bool {
        self.magic.get() == REQUEST
    }
}

impl Reply {
    /// A reply with this error, or 0 for success.
    pub fn new(cookie: u64, error: u32) -> Reply {
        Reply { magic: REPLY.into(), error: error.into(), cookie: cookie.into() }
    }
}

/// Parses the data of INFO and GO: the export's name and the information types requested. `None` if they
/// are invalid.
pub fn parse_info(data: &[u8]) -> Option<(&[u8], impl Iterator<Item = u16>)> {
    let (length, rest) = data.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let (count, asked) = rest.split_first_chunk()?;
    let (asked, rest) = asked.as_chunks();
    let sound = rest.is_empty() && asked.len() == usize::from(u16::from_be_bytes(*count));
    sound.then(|| (name, asked.iter().map(|bytes| u16::from_be_bytes(*bytes))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nbd_messages_match_golden_bytes() {
        let greeting = Greeting::new(FIXED_NEWSTYLE | NO_ZEROES);
        assert_eq!(greeting.as_bytes(), b"NBDMAGICIHAVEOPT\x00\x03");
        let reply = OptionReply::new(option::GO, reply::ERR_UNKNOWN, 2);
        let bytes =
            b"\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x80\x00\x00\x06\x00\x00\x00\x02";
        assert_eq!(reply.as_bytes(), bytes);
        assert_eq!(
            Reply::new(7, error::EIO).as_bytes(),
            b"\x67\x44\x66\x98\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x07"
        );
        let (head, rest) = (b"\x25\x60\x95\x13\x00\x01\x00\x06", b"\0\0\0\0\0\0\x10\0\0\0\x02\0");
        let request = [&head[..], b"ABCDEFGH", rest].concat();
        let request = Request::read_from_bytes(&request).unwrap();
        assert!(request.is_sound() && request.flags.get() == FUA);
        assert_eq!(Ask::of(request.kind.get()), Some(Ask::WriteZeroes));
        assert_eq!((request.offset.get(), request.bytes.get()), (4096, 512));
    }

    #[test]
    fn nbd_info_request_parses_name_and_types() {
        let (name, asked) = parse_info(b"\x00\x00\x00\x02hi\x00\x02\x00\x01\x00\x03").unwrap();
        assert_eq!(name, b"hi");
        assert!(asked.eq([1, INFO_BLOCK_SIZE]));
        for data in [
            &b""[..],
            b"\x00\x00\x00\x03hi",
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x00\x00\x02\x00\x01",
            b"\x00\x00\x00\x00\x00\x00\x00",
        ] {
            assert!(parse_info(data).is_none(), "{data:?}");
        }
    }
}
