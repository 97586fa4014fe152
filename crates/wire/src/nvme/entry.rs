//! Queue entries: commands of 64 bytes, completions of 16 bytes.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout;
use super::sgl::Descriptor;
use super::status::Status;
use crate::{BusAddr, CommandId, Nsid, QueueId};

/// Second byte of a command (NVMe base 2.0, 3.3.3.1, command dword 0 bits 15:08).
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct SqeFlags {
    /// FUSE: 0 for a command that is not fused.
    #[bits(2)]
    pub fuse: u8,
    #[bits(4)]
    __: u8,
    /// PSDT: 0 for PRPs, 1 or 2 for a scatter gather list.
    #[bits(2)]
    pub psdt: u8,
}

/// A submission queue entry as it is in memory (NVMe base 2.0, 3.3.3.1).
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
pub struct Sqe {
    /// Opcode: [`super::opcode`].
    pub opcode: u8,
    /// Fusing, and the type of the data pointer.
    pub flags: SqeFlags,
    /// CID: the completion carries it back.
    pub cid: U16,
    /// NSID: namespace identifier.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// MPTR: address of the metadata.
    pub mptr: U64,
    /// First half of the data pointer.
    pub prp1: U64,
    /// Second half of the data pointer.
    pub prp2: U64,
    /// Command dword 10; command-specific, like the following dwords.
    pub cdw10: U32,
    /// Command dword 11.
    pub cdw11: U32,
    /// Command dword 12.
    pub cdw12: U32,
    /// Command dword 13.
    pub cdw13: U32,
    /// Command dword 14.
    pub cdw14: U32,
    /// Command dword 15.
    pub cdw15: U32,
}

layout!(Sqe, 64, {
    opcode @ 0, flags @ 1, cid @ 2, nsid @ 4, cdw2 @ 8, cdw3 @ 12, mptr @ 16, prp1 @ 24,
    prp2 @ 32, cdw10 @ 40, cdw11 @ 44, cdw12 @ 48, cdw13 @ 52, cdw14 @ 56, cdw15 @ 60,
});

/// Location of a command's data in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// Physical region pages: walk them with [`super::prp::PrpWalk`].
    Prp {
        /// The first page, possibly with an offset.
        prp1: BusAddr,
        /// The second page, a list of pages, or unused, depending on the length.
        prp2: BusAddr,
    },
    /// A scatter gather list, given by its first descriptor: walk it with [`super::sgl::SglWalk`].
    Sgl(Descriptor),
}

impl DataPointer {
    /// For commands without data.
    pub const NONE: DataPointer = DataPointer::Prp { prp1: BusAddr(0), prp2: BusAddr(0) };

    /// Returns PRP1 and PRP2, for commands that support only PRPs.
    ///
    /// # Errors
    /// Invalid Field for a scatter gather list.
    pub const fn prps(&self) -> Result<(BusAddr, BusAddr), Status> {
        match *self {
            DataPointer::Prp { prp1, prp2 } => Ok((prp1, prp2)),
            DataPointer::Sgl(_) => Err(Status::INVALID_FIELD),
        }
    }
}

/// PSDT of a command with a scatter gather list for data, and contiguous metadata, if any.
const PSDT_SGL: u8 = 1;

/// A valid command: `C` is [`super::io::Command`] or [`super::admin::Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<C> {
    /// Carried back by the completion.
    pub cid: CommandId,
    /// Namespace identifier. The controller checks its existence.
    pub nsid: Nsid,
    /// Location of the data; unused by commands without data.
    pub data: DataPointer,
    /// The decoded command.
    pub command: C,
}

impl Sqe {
    /// The entry as eight words in memory order. It is computed by arithmetic: an entry assembled in
    /// registers is stored to a ring from there, without loading words whose parts were just stored.
    #[inline]
    pub fn to_words(&self) -> [u64; 8] {
        let pair = |low: U32, high: U32| u64::from(low.get()) | u64::from(high.get()) << 32;
        let first = u64::from(self.opcode)
            | u64::from(self.flags.into_bits()) << 8
            | u64::from(self.cid.get()) << 16
            | u64::from(self.nsid.get()) << 32;
        let words = [
            first,
            pair(self.cdw2, self.cdw3),
            self.mptr.get(),
            self.prp1.get(),
            self.prp2.get(),
            pair(self.cdw10, self.cdw11),
            pair(self.cdw12, self.cdw13),
            pair(self.cdw14, self.cdw15),
        ];
        words.map(u64::to_le)
    }

    /// Command identifier.
    #[inline]
    pub fn id(&self) -> CommandId {
        CommandId(self.cid.get())
    }

    /// An entry with its first dwords and data pointer set, and zero in the command-specific dwords.
    #[inline]
    pub(crate) fn start<C>(opcode: u8, request: &Request<C>) -> Sqe {
        let (psdt, low, high) = match request.data {
            DataPointer::Prp { prp1, prp2 } => (0, prp1.0, prp2.0),
            DataPointer::Sgl(first) => {
                let (low, high) = first.to_words();
                (PSDT_SGL, low, high)
            }
        };
        Sqe {
            opcode,
            flags: SqeFlags::new().with_psdt(psdt),
            cid: request.cid.0.into(),
            nsid: request.nsid.0.into(),
            prp1: low.into(),
            prp2: high.into(),
            ..Sqe::default()
        }
    }

    /// The reverse of [`start`](Self::start), for an already parsed `command`.
    ///
    /// Fused commands and scatter gather lists are an Invalid Field: over PCIe, admin commands have neither
    /// (NVMe base 2.0, 3.3.3.1).
    pub(crate) fn finish<C>(&self, command: C) -> Result<Request<C>, Status> {
        if self.flags.psdt() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        self.finish_io(command)
    }

    /// Same as [`finish`](Self::finish), with support for scatter gather lists for data. A list for
    /// metadata is an Invalid Field (bit 19 of SGLS).
    #[inline]
    pub(crate) fn finish_io<C>(&self, command: C) -> Result<Request<C>, Status> {
        let (low, high) = (self.prp1.get(), self.prp2.get());
        let data = match (self.flags.fuse(), self.flags.psdt()) {
            (0, 0) => DataPointer::Prp { prp1: BusAddr(low), prp2: BusAddr(high) },
            (0, PSDT_SGL) => DataPointer::Sgl(Descriptor::from_words(low, high)),
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Request { cid: self.id(), nsid: Nsid(self.nsid.get()), data, command })
    }
}

/// A completion queue entry as it is in memory (NVMe base 2.0, 3.3.3.2).
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
pub struct Cqe {
    /// Command-specific result.
    pub dw0: U32,
    /// Command-specific result, second dword.
    pub dw1: U32,
    /// SQHD: head of the submission queue.
    pub sq_head: U16,
    /// SQID: submission queue of the command.
    pub sq_id: U16,
    /// CID: identifier of the completed command.
    pub cid: U16,
    /// The phase tag in bit 0, the status field above it.
    pub status_and_phase: U16,
}

layout!(Cqe, 16, {
    dw0 @ 0, dw1 @ 4, sq_head @ 8, sq_id @ 10, cid @ 12, status_and_phase @ 14,
});

impl Cqe {
    /// Decodes an entry from its words in memory.
    #[inline]
    pub fn from_words(words: [u64; 2]) -> Cqe {
        zerocopy::transmute!(words)
    }

    /// The completion of `cid` with `status`, its phase tag 0, everything else 0.
    pub fn new(cid: CommandId, status: Status) -> Cqe {
        Cqe { cid: cid.0.into(), status_and_phase: (status.bits() << 1).into(), ..Cqe::default() }
    }

    /// Sets the command-specific result in dword 0.
    pub fn with_result(self, dw0: u32) -> Cqe {
        Cqe { dw0: dw0.into(), ..self }
    }

    /// Sets the submission queue of the command and its new head.
    pub fn with_queue(self, sq: QueueId, head: u16) -> Cqe {
        Cqe { sq_id: sq.0.into(), sq_head: head.into(), ..self }
    }

    /// Sets the phase tag of this pass over the queue (NVMe base 2.0, 3.3.3.2).
    pub fn with_phase(self, phase: bool) -> Cqe {
        Cqe { status_and_phase: (self.status().bits() << 1 | u16::from(phase)).into(), ..self }
    }

    /// Identifier of the completed command.
    #[inline]
    pub fn id(&self) -> CommandId {
        CommandId(self.cid.get())
    }

    /// Submission queue of the command.
    #[inline]
    pub fn queue(&self) -> QueueId {
        QueueId(self.sq_id.get())
    }

    /// Phase tag. It flips each time the controller wraps: an entry is new while its tag differs from that
    /// of the last pass.
    #[inline]
    pub fn phase(&self) -> bool {
        self.status_and_phase.get() & 1 != 0
    }

    /// Status of the command.
    #[inline]
    pub fn status(&self) -> Status {
        Status::from_bits(self.status_and_phase.get() >> 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cqe_matches_golden_bytes() {
        let cqe = Cqe::new(CommandId(0xbeef), Status::UNRECOVERED_READ_ERROR.with_dnr())
            .with_result(0x0102_0304)
            .with_queue(QueueId(3), 0x0110)
            .with_phase(true);
        // SCT 2, SC 81h, DNR: status field 4281h; shifted over the phase tag, 8502h, and P = 1.
        let golden: [u8; 16] = [4, 3, 2, 1, 0, 0, 0, 0, 0x10, 0x01, 3, 0, 0xef, 0xbe, 0x03, 0x85];
        assert_eq!(cqe.as_bytes(), golden);

        let read = Cqe::read_from_bytes(&golden).unwrap();
        assert_eq!((read.id(), read.queue(), read.phase()), (CommandId(0xbeef), QueueId(3), true));
        assert_eq!(read.status(), Status::UNRECOVERED_READ_ERROR.with_dnr());
        assert_eq!((read.sq_head.get(), read.dw0.get()), (0x110, 0x0102_0304));
    }

    #[test]
    fn sqe_to_words_matches_bytes() {
        let bytes: [u8; 64] = core::array::from_fn(|n| (7 * n + 1) as u8);
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        let words = sqe.to_words();
        assert_eq!(words.as_bytes(), bytes);
    }

    #[test]
    fn cqe_phase_and_status_are_independent() {
        for bits in 0..=0x7fff {
            let status = Status::from_bits(bits);
            for phase in [false, true] {
                let cqe = Cqe::new(CommandId(1), status).with_phase(!phase).with_phase(phase);
                assert_eq!((cqe.status(), cqe.phase()), (status, phase));
            }
        }
    }

    #[test]
    fn sqe_flags_are_second_byte() {
        let mut bytes = [0; 64];
        bytes[1] = 0b1000_0001;
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        assert_eq!((sqe.flags.fuse(), sqe.flags.psdt()), (1, 2));
    }

    #[test]
    fn fused_commands_and_unsupported_sgl_are_invalid_field() {
        let plain = Sqe { prp1: 0x1003.into(), prp2: 512.into(), ..Sqe::default() };
        for flags in 0..=0xff {
            let flags = SqeFlags::from_bits(flags);
            let sqe = Sqe { flags, ..plain };
            let (admin, io) = (sqe.finish(()), sqe.finish_io(()));
            assert_eq!(admin.is_ok(), flags.fuse() == 0 && flags.psdt() == 0, "{flags:?}");
            assert_eq!(io.is_ok(), flags.fuse() == 0 && flags.psdt() < 2, "{flags:?}");
            assert!(
                [admin, io].iter().all(|one| one.is_ok() || *one == Err(Status::INVALID_FIELD))
            );
            if let Ok(Request { data, .. }) = io {
                let first = Descriptor::data(BusAddr(0x1003), 512);
                assert_eq!(data == DataPointer::Sgl(first), flags.psdt() == PSDT_SGL);
            }
        }
    }

    #[test]
    fn sgl_round_trips_through_sqe() {
        let data = DataPointer::Sgl(Descriptor::last_segment(BusAddr(0x1_0000_0008), 9));
        let request = Request { cid: CommandId(3), nsid: Nsid(1), data, command: () };
        let sqe = Sqe::start(2, &request);
        assert_eq!(sqe.as_bytes()[1], 0b0100_0000);
        assert_eq!(sqe.as_bytes()[24..40], [8, 0, 0, 0, 1, 0, 0, 0, 0x90, 0, 0, 0, 0, 0, 0, 0x30]);
        assert_eq!(sqe.finish_io(()), Ok(request));
    }
}
