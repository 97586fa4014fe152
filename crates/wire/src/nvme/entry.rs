//! The two queue entries: 64 bytes of command, 16 bytes of completion.

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
    /// FUSE: 0 for a command that stands alone.
    #[bits(2)]
    pub fuse: u8,
    #[bits(4)]
    __: u8,
    /// PSDT: 0 when PRPs describe the data, 1 or 2 when a scatter gather list does.
    #[bits(2)]
    pub psdt: u8,
}

/// A submission queue entry, as it lies in memory (NVMe base 2.0, 3.3.3.1).
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
    /// What to do: [`super::opcode`].
    pub opcode: u8,
    /// Fusing, and how the data is described.
    pub flags: SqeFlags,
    /// CID: the completion carries it back.
    pub cid: U16,
    /// NSID: the namespace meant.
    pub nsid: U32,
    /// Command dword 2.
    pub cdw2: U32,
    /// Command dword 3.
    pub cdw3: U32,
    /// MPTR: where the metadata lies.
    pub mptr: U64,
    /// First half of the data pointer.
    pub prp1: U64,
    /// Second half of the data pointer.
    pub prp2: U64,
    /// Command dword 10; from here on each command has its own meaning.
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

/// Where a command's data lies in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// Physical region pages: walk them with [`super::prp::PrpWalk`].
    Prp {
        /// The first page, perhaps from its middle on.
        prp1: BusAddr,
        /// The second page, or a list of pages, or nothing: the length decides.
        prp2: BusAddr,
    },
    /// A scatter gather list, of which this is the first descriptor: walk it with [`super::sgl::SglWalk`].
    Sgl(Descriptor),
}

impl DataPointer {
    /// For commands that move no data.
    pub const NONE: DataPointer = DataPointer::Prp { prp1: BusAddr(0), prp2: BusAddr(0) };

    /// PRP1 and PRP2, for commands that know nothing else.
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

/// PSDT of a command whose data a scatter gather list describes, and whose metadata, if it has any, lie in
/// one piece.
const PSDT_SGL: u8 = 1;

/// A command that makes sense: `C` is [`super::io::Command`] or [`super::admin::Command`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<C> {
    /// Carried back by the completion.
    pub cid: CommandId,
    /// The namespace meant. Whether it exists is for the controller to say.
    pub nsid: Nsid,
    /// Where the data lies; meaningless for a command that moves none.
    pub data: DataPointer,
    /// What is asked for.
    pub command: C,
}

impl Sqe {
    /// The entry as eight words, each as it lies in memory. By arithmetic: an entry that was put together in
    /// registers goes to a ring from there, and no word is loaded of which the parts were just stored.
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

    /// The command's number.
    #[inline]
    pub fn id(&self) -> CommandId {
        CommandId(self.cid.get())
    }

    /// An entry with its first dwords and data pointer filled, the command's own dwords zero.
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

    /// The reverse of [`start`](Self::start), around an already parsed `command`.
    ///
    /// Fused commands and scatter gather lists are an Invalid Field: over PCIe, admin commands have neither
    /// (NVMe base 2.0, 3.3.3.1).
    pub(crate) fn finish<C>(&self, command: C) -> Result<Request<C>, Status> {
        if self.flags.psdt() != 0 {
            return Err(Status::INVALID_FIELD);
        }
        self.finish_io(command)
    }

    /// As [`finish`](Self::finish), where a scatter gather list may describe the data. One that describes the
    /// metadata too is an Invalid Field (bit 19 of SGLS).
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

/// A completion queue entry, as it lies in memory (NVMe base 2.0, 3.3.3.2).
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
    /// The command's own result.
    pub dw0: U32,
    /// More of the command's own result, for the few that have it.
    pub dw1: U32,
    /// SQHD: how far the controller has consumed the submission queue.
    pub sq_head: U16,
    /// SQID: the submission queue the command came by.
    pub sq_id: U16,
    /// CID: the command completed.
    pub cid: U16,
    /// The phase tag in bit 0, the status field above it.
    pub status_and_phase: U16,
}

layout!(Cqe, 16, {
    dw0 @ 0, dw1 @ 4, sq_head @ 8, sq_id @ 10, cid @ 12, status_and_phase @ 14,
});

impl Cqe {
    /// The entry of which memory holds these words.
    #[inline]
    pub fn from_words(words: [u64; 2]) -> Cqe {
        zerocopy::transmute!(words)
    }

    /// The completion of `cid` with `status`, its phase tag 0, everything else 0.
    pub fn new(cid: CommandId, status: Status) -> Cqe {
        Cqe { cid: cid.0.into(), status_and_phase: (status.bits() << 1).into(), ..Cqe::default() }
    }

    /// With the command's own result in dword 0.
    pub fn with_result(self, dw0: u32) -> Cqe {
        Cqe { dw0: dw0.into(), ..self }
    }

    /// With the submission queue that the command came by, and its new head.
    pub fn with_queue(self, sq: QueueId, head: u16) -> Cqe {
        Cqe { sq_id: sq.0.into(), sq_head: head.into(), ..self }
    }

    /// With the phase tag of this pass over the queue (NVMe base 2.0, 3.3.3.2).
    pub fn with_phase(self, phase: bool) -> Cqe {
        Cqe { status_and_phase: (self.status().bits() << 1 | u16::from(phase)).into(), ..self }
    }

    /// The command completed.
    #[inline]
    pub fn id(&self) -> CommandId {
        CommandId(self.cid.get())
    }

    /// The submission queue that the command came by.
    #[inline]
    pub fn queue(&self) -> QueueId {
        QueueId(self.sq_id.get())
    }

    /// Flips each time the controller passes the queue's end: an entry is new while it differs
    /// from that of the last pass.
    #[inline]
    pub fn phase(&self) -> bool {
        self.status_and_phase.get() & 1 != 0
    }

    /// How the command went.
    #[inline]
    pub fn status(&self) -> Status {
        Status::from_bits(self.status_and_phase.get() >> 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_these_sixteen_bytes() {
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
    fn an_entry_is_its_eight_words() {
        let bytes: [u8; 64] = core::array::from_fn(|n| (7 * n + 1) as u8);
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        let words = sqe.to_words();
        assert_eq!(words.as_bytes(), bytes);
    }

    #[test]
    fn the_phase_tag_and_the_status_do_not_touch() {
        for bits in 0..=0x7fff {
            let status = Status::from_bits(bits);
            for phase in [false, true] {
                let cqe = Cqe::new(CommandId(1), status).with_phase(!phase).with_phase(phase);
                assert_eq!((cqe.status(), cqe.phase()), (status, phase));
            }
        }
    }

    #[test]
    fn the_flags_are_the_second_byte() {
        let mut bytes = [0; 64];
        bytes[1] = 0b1000_0001;
        let sqe = Sqe::read_from_bytes(&bytes).unwrap();
        assert_eq!((sqe.flags.fuse(), sqe.flags.psdt()), (1, 2));
    }

    #[test]
    fn fused_commands_and_most_scatter_gather_lists_are_an_invalid_field() {
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
    fn a_scatter_gather_list_survives_its_entry() {
        let data = DataPointer::Sgl(Descriptor::last_segment(BusAddr(0x1_0000_0008), 9));
        let request = Request { cid: CommandId(3), nsid: Nsid(1), data, command: () };
        let sqe = Sqe::start(2, &request);
        assert_eq!(sqe.as_bytes()[1], 0b0100_0000);
        assert_eq!(sqe.as_bytes()[24..40], [8, 0, 0, 0, 1, 0, 0, 0, 0x90, 0, 0, 0, 0, 0, 0, 0x30]);
        assert_eq!(sqe.finish_io(()), Ok(request));
    }
}
