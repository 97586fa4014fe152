//! The NVM command set: what a host asks of a namespace (NVM command set 1.0, 3.2).
//!
//! To add a command, add a variant, its arm in [`parse`] and in [`Request::to_sqe`], and the
//! compiler points at every controller that doesn't handle it yet.

use bitfield_struct::bitfield;

use super::entry::{self, DataPointer, Sqe};
use super::opcode::io as opcode;
use super::pi::Protection;
use super::reservation::{Acquire, Register, Release, Report};
use super::status::Status;
use crate::{BusAddr, CommandId, Lba, Nsid};

/// An I/O command that makes sense, and where its data lies.
pub type Request = entry::Request<Command>;

/// What is asked of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make durable what was written and completed before (NVMe base 2.0, 7.1).
    Flush,
    /// Blocks to the host.
    Read(Access),
    /// Blocks from the host.
    Write(Access),
    /// 3.2.1: blocks from the host, to be found equal to those there.
    Compare(Access),
    /// 3.2.6: blocks to be read and judged, and not moved.
    Verify(Access),
    /// 3.2.7: blocks that are not to be readable until they are written.
    WriteUncorrectable(Access),
    /// 3.2.8: blocks of zeros, and nothing to move.
    WriteZeroes(WriteZeroes),
    /// 3.2.3: hints about ranges of blocks, which the data name: [`super::ranges::DsmRange`].
    DatasetManagement(DatasetManagement),
    /// 3.2.2: blocks from ranges that the data name ([`super::ranges::CopyRange`]) to one place.
    Copy(CopyTo),
    /// NVMe base 2.0, 7.3: a key becomes the host's, or is no longer.
    ReservationRegister(Register),
    /// NVMe base 2.0, 7.5: who has registered, and who holds the reservation.
    ReservationReport(Report),
    /// NVMe base 2.0, 7.2: others are kept out.
    ReservationAcquire(Acquire),
    /// NVMe base 2.0, 7.4: others are let in.
    ReservationRelease(Release),
}

/// Which blocks are to read as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteZeroes {
    /// Which blocks, and how: as for a write.
    pub access: Access,
    /// DEAC: they need not stay allocated.
    pub deallocate: bool,
}

/// What is said of ranges of blocks. How the host is going to read and write them (IDR, IDW) is left
/// out: the hints are no controller's of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// How many ranges there are: 1 to 256.
    pub ranges: u16,
    /// AD: what is there is not needed any more.
    pub deallocate: bool,
}

/// Which blocks go where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyTo {
    /// The first block of the destination.
    pub to: Lba,
    /// How many source ranges there are: 1 to 256.
    pub ranges: u16,
    /// The format of their descriptors; 0 is [`super::ranges::CopyRange`].
    pub format: u8,
    /// FUA, of the destination.
    pub fua: bool,
    /// LR, of the source.
    pub limited_retry: bool,
    /// PRINFOR: what of each range is compared, by the range's own tags, and whether it is taken away.
    pub source: u8,
    /// PRINFOW and the tags of the destination.
    pub protection: Protection,
}

/// Which blocks, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The first block.
    pub lba: Lba,
    /// How many: 1 to 65536.
    pub blocks: u32,
    /// FUA: the medium itself, not a volatile cache, must hold the data.
    pub fua: bool,
    /// LR: give up early rather than try all means of recovery.
    pub limited_retry: bool,
    /// What is said of protection information, where there is any.
    pub protection: Protection,
    /// MPTR: where the metadata lie, where there are any beside the data.
    pub metadata: BusAddr,
}

/// The most blocks that one command can move.
pub const BLOCKS_MAX: u32 = 1 << 16;

/// The most ranges that one command can name.
pub const RANGES_MAX: u16 = 1 << 8;

/// Command dword 12 of Read, Write, Compare and Write Zeroes.
///
/// Left out, because no controller of ours offers them: storage tags (STC) and directives (DTYPE).
#[bitfield(u32)]
struct Dword12 {
    /// NLB, counted from zero.
    nlb: u16,
    #[bits(9)]
    __: u16,
    /// DEAC, of Write Zeroes alone.
    deac: bool,
    #[bits(4)]
    prinfo: u8,
    fua: bool,
    lr: bool,
}

/// Command dword 12 of Copy, without directives.
#[bitfield(u32)]
struct CopyDword12 {
    /// NR, counted from zero.
    nr: u8,
    #[bits(4)]
    df: u8,
    #[bits(4)]
    prinfor: u8,
    #[bits(10)]
    __: u16,
    #[bits(4)]
    prinfow: u8,
    fua: bool,
    lr: bool,
}

/// Command dword 11 of Dataset Management.
#[bitfield(u32)]
struct DsmDword11 {
    #[bits(2)]
    __: u8,
    ad: bool,
    #[bits(29)]
    __: u32,
}

impl Access {
    /// So many blocks, and nothing else said of them.
    pub const fn of(lba: Lba, blocks: u32) -> Access {
        Access {
            lba,
            blocks,
            fua: false,
            limited_retry: false,
            protection: Protection::NONE,
            metadata: BusAddr(0),
        }
    }

    #[inline]
    fn parse(sqe: &Sqe) -> Access {
        let dword12 = Dword12::from_bits(sqe.cdw12.get());
        Access {
            protection: protection(sqe, dword12.prinfo()),
            metadata: BusAddr(sqe.mptr.get()),
            lba: Lba(u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get())),
            blocks: u32::from(dword12.nlb()) + 1,
            fua: dword12.fua(),
            limited_retry: dword12.lr(),
        }
    }

    #[inline]
    fn store(&self, sqe: &mut Sqe) {
        assert!((1..=BLOCKS_MAX).contains(&self.blocks), "{} blocks in one command", self.blocks);
        let dword12 = Dword12::new()
            .with_nlb((self.blocks - 1) as u16)
            .with_prinfo(self.protection.prinfo())
            .with_fua(self.fua)
            .with_lr(self.limited_retry);
        sqe.cdw10 = (self.lba.0 as u32).into();
        sqe.cdw11 = ((self.lba.0 >> 32) as u32).into();
        sqe.cdw12 = dword12.into_bits().into();
        sqe.mptr = self.metadata.0.into();
        store_tags(sqe, &self.protection);
    }
}

/// What a command says of protection information: these bits of dword 12, and dwords 14 and 15.
#[inline]
fn protection(sqe: &Sqe, prinfo: u8) -> Protection {
    Protection::from_bits(prinfo, sqe.cdw14.get(), sqe.cdw15.get())
}

#[inline]
fn store_tags(sqe: &mut Sqe, protection: &Protection) {
    sqe.cdw14 = protection.reference.into();
    sqe.cdw15 = protection.tags().into();
}

impl CopyTo {
    fn parse(sqe: &Sqe) -> CopyTo {
        let dword12 = CopyDword12::from_bits(sqe.cdw12.get());
        CopyTo {
            to: Lba(u64::from(sqe.cdw11.get()) << 32 | u64::from(sqe.cdw10.get())),
            ranges: u16::from(dword12.nr()) + 1,
            format: dword12.df(),
            fua: dword12.fua(),
            limited_retry: dword12.lr(),
            source: dword12.prinfor(),
            protection: protection(sqe, dword12.prinfow()),
        }
    }

    fn store(&self, sqe: &mut Sqe) {
        let dword12 = CopyDword12::new()
            .with_nr(from_zero(self.ranges))
            .with_df(self.format)
            .with_prinfor(self.source)
            .with_prinfow(self.protection.prinfo())
            .with_fua(self.fua)
            .with_lr(self.limited_retry);
        sqe.cdw10 = (self.to.0 as u32).into();
        sqe.cdw11 = ((self.to.0 >> 32) as u32).into();
        sqe.cdw12 = dword12.into_bits().into();
        store_tags(sqe, &self.protection);
    }
}

/// Makes sense of an entry of an I/O submission queue.
///
/// Reserved fields are ignored, as the specification allows, and so are the hints about access
/// patterns (DSM). Whether the namespace and the blocks exist is left to the controller.
///
/// # Errors
/// Invalid Opcode for a command not known here; Invalid Field for a fused one, one whose metadata is
/// described by a scatter gather list, or reserved values of a reservation command.
pub fn parse(sqe: &Sqe) -> Result<Request, Status> {
    // Each is made where it goes: one that was made first, of all that one of them can be, would be moved bit
    // by bit.
    match sqe.opcode {
        opcode::FLUSH => sqe.finish_io(Command::Flush),
        opcode::READ => sqe.finish_io(Command::Read(Access::parse(sqe))),
        opcode::WRITE => sqe.finish_io(Command::Write(Access::parse(sqe))),
        opcode::COMPARE => sqe.finish_io(Command::Compare(Access::parse(sqe))),
        opcode::VERIFY => sqe.finish_io(Command::Verify(Access::parse(sqe))),
        opcode::WRITE_UNCORRECTABLE => {
            sqe.finish_io(Command::WriteUncorrectable(Access::parse(sqe)))
        }
        opcode::WRITE_ZEROES => {
            let deallocate = Dword12::from_bits(sqe.cdw12.get()).deac();
            let access = Access::parse(sqe);
            sqe.finish_io(Command::WriteZeroes(WriteZeroes { access, deallocate }))
        }
        opcode::DATASET_MANAGEMENT => {
            let ranges = u16::from(sqe.cdw10.get() as u8) + 1;
            let deallocate = DsmDword11::from_bits(sqe.cdw11.get()).ad();
            sqe.finish_io(Command::DatasetManagement(DatasetManagement { ranges, deallocate }))
        }
        opcode::COPY => sqe.finish_io(Command::Copy(CopyTo::parse(sqe))),
        opcode::RESERVATION_REGISTER => {
            sqe.finish_io(Command::ReservationRegister(Register::parse(sqe)?))
        }
        opcode::RESERVATION_REPORT => sqe.finish_io(Command::ReservationReport(Report::parse(sqe))),
        opcode::RESERVATION_ACQUIRE => {
            sqe.finish_io(Command::ReservationAcquire(Acquire::parse(sqe)?))
        }
        opcode::RESERVATION_RELEASE => {
            sqe.finish_io(Command::ReservationRelease(Release::parse(sqe)?))
        }
        _ => Err(Status::INVALID_OPCODE),
    }
}

impl Request {
    /// The entry that parses to this request.
    ///
    /// # Panics
    /// If an access has no blocks or more than [`BLOCKS_MAX`], or there are no ranges or more than
    /// [`RANGES_MAX`].
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = Sqe::start(self.command.opcode(), self);
        match &self.command {
            Command::Flush => {}
            Command::Read(access)
            | Command::Write(access)
            | Command::Compare(access)
            | Command::Verify(access)
            | Command::WriteUncorrectable(access) => access.store(&mut sqe),
            Command::WriteZeroes(zeroes) => {
                zeroes.access.store(&mut sqe);
                let dword12 = Dword12::from_bits(sqe.cdw12.get());
                sqe.cdw12 = dword12.with_deac(zeroes.deallocate).into_bits().into();
            }
            Command::DatasetManagement(dsm) => {
                sqe.cdw10 = u32::from(from_zero(dsm.ranges)).into();
                sqe.cdw11 = DsmDword11::new().with_ad(dsm.deallocate).into_bits().into();
            }
            Command::Copy(copy) => copy.store(&mut sqe),
            Command::ReservationRegister(register) => register.store(&mut sqe),
            Command::ReservationReport(report) => report.store(&mut sqe),
            Command::ReservationAcquire(acquire) => acquire.store(&mut sqe),
            Command::ReservationRelease(release) => release.store(&mut sqe),
        }
        sqe
    }
}

impl Command {
    /// The command's number.
    pub const fn opcode(&self) -> u8 {
        match self {
            Command::Flush => opcode::FLUSH,
            Command::Read(_) => opcode::READ,
            Command::Write(_) => opcode::WRITE,
            Command::Compare(_) => opcode::COMPARE,
            Command::Verify(_) => opcode::VERIFY,
            Command::WriteUncorrectable(_) => opcode::WRITE_UNCORRECTABLE,
            Command::WriteZeroes(_) => opcode::WRITE_ZEROES,
            Command::DatasetManagement(_) => opcode::DATASET_MANAGEMENT,
            Command::Copy(_) => opcode::COPY,
            Command::ReservationRegister(_) => opcode::RESERVATION_REGISTER,
            Command::ReservationReport(_) => opcode::RESERVATION_REPORT,
            Command::ReservationAcquire(_) => opcode::RESERVATION_ACQUIRE,
            Command::ReservationRelease(_) => opcode::RESERVATION_RELEASE,
        }
    }
}

/// A count of ranges as a command has it: counted from zero.
fn from_zero(ranges: u16) -> u8 {
    assert!((1..=RANGES_MAX).contains(&ranges), "{ranges} ranges in one command");
    (ranges - 1) as u8
}

/// The entry of a command that is an access and nothing else, whichever it is. What most commands are is
/// put together without a look at what all others are.
#[inline]
fn transfer(opcode: u8, request: &entry::Request<Access>) -> Sqe {
    let mut sqe = Sqe::start(opcode, request);
    request.command.store(&mut sqe);
    sqe
}

/// The same command that names blocks, with this said of protection information.
#[inline]
pub fn protected(sqe: Sqe, says: Protection) -> Sqe {
    let dword12 = Dword12::from_bits(sqe.cdw12.get()).with_prinfo(says.prinfo());
    let mut sqe = Sqe { cdw12: dword12.into_bits().into(), ..sqe };
    store_tags(&mut sqe, &says);
    sqe
}

/// The same Read, Write or Compare, whose metadata lie there.
#[inline]
pub fn with_metadata(sqe: Sqe, at: BusAddr) -> Sqe {
    Sqe { mptr: at.0.into(), ..sqe }
}

/// A Flush of one namespace, or of all with [`Nsid::BROADCAST`].
pub fn flush(cid: CommandId, nsid: Nsid) -> Sqe {
    Request { cid, nsid, data: DataPointer::NONE, command: Command::Flush }.to_sqe()
}

/// A Read of `blocks` blocks (1 to [`BLOCKS_MAX`]) from `lba` on.
///
/// # Panics
/// If there are no blocks or too many.
#[inline]
pub fn read(
    cid: CommandId,
    nsid: Nsid,
    lba: Lba,
    blocks: u32,
    fua: bool,
    data: DataPointer,
) -> Sqe {
    let access = Access { fua, ..Access::of(lba, blocks) };
    transfer(opcode::READ, &entry::Request { cid, nsid, data, command: access })
}

/// A Write of `blocks` blocks (1 to [`BLOCKS_MAX`]) from `lba` on.
///
/// # Panics
/// If there are no blocks or too many.
#[inline]
pub fn write(
    cid: CommandId,
    nsid: Nsid,
    lba: Lba,
    blocks: u32,
    fua: bool,
    data: DataPointer,
) -> Sqe {
    let access = Access { fua, ..Access::of(lba, blocks) };
    transfer(opcode::WRITE, &entry::Request { cid, nsid, data, command: access })
}

/// A Compare of `blocks` blocks (1 to [`BLOCKS_MAX`]) from `lba` on.
///
/// # Panics
/// If there are no blocks or too many.
pub fn compare(cid: CommandId, nsid: Nsid, lba: Lba, blocks: u32, data: DataPointer) -> Sqe {
    let access = Access::of(lba, blocks);
    Request { cid, nsid, data, command: Command::Compare(access) }.to_sqe()
}

/// A Verify of `blocks` blocks (1 to [`BLOCKS_MAX`]) from `lba` on.
///
/// # Panics
/// If there are no blocks or too many.
pub fn verify(cid: CommandId, nsid: Nsid, lba: Lba, blocks: u32) -> Sqe {
    let access = Access::of(lba, blocks);
    let command = Command::Verify(access);
    Request { cid, nsid, data: DataPointer::NONE, command }.to_sqe()
}

/// A Write Uncorrectable of `blocks` blocks (1 to [`BLOCKS_MAX`]) from `lba` on.
///
/// # Panics
/// If there are no blocks or too many.
pub fn write_uncorrectable(cid: CommandId, nsid: Nsid, lba: Lba, blocks: u32) -> Sqe {
    let access = Access::of(lba, blocks);
    let command = Command::WriteUncorrectable(access);
    Request { cid, nsid, data: DataPointer::NONE, command }.to_sqe()
}

/// A Write Zeroes of `blocks` blocks (1 to [`BLOCKS_MAX`]) from `lba` on.
///
/// # Panics
/// If there are no blocks or too many.
pub fn write_zeroes(
    cid: CommandId,
    nsid: Nsid,
    lba: Lba,
    blocks: u32,
    fua: bool,
    deallocate: bool,
) -> Sqe {
    let access = Access { fua, ..Access::of(lba, blocks) };
    let command = Command::WriteZeroes(WriteZeroes { access, deallocate });
    Request { cid, nsid, data: DataPointer::NONE, command }.to_sqe()
}

/// A Dataset Management of `ranges` ranges (1 to [`RANGES_MAX`]), which lie at `data`.
///
/// # Panics
/// If there are no ranges or too many.
pub fn dataset_management(
    cid: CommandId,
    nsid: Nsid,
    ranges: u16,
    deallocate: bool,
    data: DataPointer,
) -> Sqe {
    let command = Command::DatasetManagement(DatasetManagement { ranges, deallocate });
    Request { cid, nsid, data, command }.to_sqe()
}

/// A Copy of `ranges` ranges (1 to [`RANGES_MAX`]), which lie at `data`, to the blocks from `to` on.
///
/// # Panics
/// If there are no ranges or too many.
pub fn copy(cid: CommandId, nsid: Nsid, to: Lba, ranges: u16, data: DataPointer) -> Sqe {
    let copy = CopyTo {
        to,
        ranges,
        format: 0,
        fua: false,
        limited_retry: false,
        source: 0,
        protection: Protection::NONE,
    };
    Request { cid, nsid, data, command: Command::Copy(copy) }.to_sqe()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BusAddr;
    use zerocopy::{FromBytes, IntoBytes};

    /// Read of 8 blocks from LBA 1_2345_6789h of namespace 2, with FUA, as command 0102h.
    #[rustfmt::skip]
    const READ: [u8; 64] = [
        0x02, 0x00, 0x02, 0x01,  0x02, 0x00, 0x00, 0x00,
        0, 0, 0, 0,  0, 0, 0, 0,
        0, 0, 0, 0,  0, 0, 0, 0,
        0x00, 0x0e, 0xdc, 0xba, 0x01, 0x00, 0x00, 0x00,
        0x00, 0x20, 0x43, 0x65, 0x00, 0x00, 0x00, 0x00,
        0x89, 0x67, 0x45, 0x23,  0x01, 0x00, 0x00, 0x00,
        0x07, 0x00, 0x00, 0x40,  0, 0, 0, 0,
        0, 0, 0, 0,  0, 0, 0, 0,
    ];

    const DATA: DataPointer =
        DataPointer::Prp { prp1: BusAddr(0x1_badc_0e00), prp2: BusAddr(0x6543_2000) };

    #[test]
    fn a_read_is_these_sixty_four_bytes() {
        let lba = Lba(0x1_2345_6789);
        let sqe = read(CommandId(0x0102), Nsid(2), lba, 8, true, DATA);
        assert_eq!(sqe.as_bytes(), READ);

        let request = parse(&Sqe::read_from_bytes(&READ).unwrap()).unwrap();
        let access = Access { fua: true, ..Access::of(lba, 8) };
        let command = Command::Read(access);
        assert_eq!(request, Request { cid: CommandId(0x0102), nsid: Nsid(2), data: DATA, command });
    }

    #[test]
    fn the_smallest_and_the_largest_access() {
        for (blocks, nlb) in [(1, 0), (BLOCKS_MAX, 0xffff)] {
            let sqe = write(CommandId(1), Nsid(1), Lba(u64::MAX), blocks, false, DATA);
            assert_eq!(sqe.cdw12.get(), nlb);
            let Command::Write(access) = parse(&sqe).unwrap().command else { panic!("{sqe:?}") };
            assert_eq!((access.lba, access.blocks), (Lba(u64::MAX), blocks));
        }
    }

    #[test]
    fn a_protected_read_is_a_read_that_says_so() {
        let says = Protection { act: true, reference: 7, ..Protection::of_range(0xf, 7, 3, 9) };
        let sqe = protected(read(CommandId(1), Nsid(1), Lba(7), 8, true, DATA), says);
        assert_eq!((sqe.cdw12.get(), sqe.cdw14.get()), (0x7c00_0007, 7));
        assert_eq!(sqe.cdw15.get(), 0x0009_0003);
        let access = Access { fua: true, protection: says, ..Access::of(Lba(7), 8) };
        assert_eq!(parse(&sqe).unwrap().command, Command::Read(access));
    }

    #[test]
    #[should_panic(expected = "0 blocks")]
    fn no_blocks_can_be_built() {
        read(CommandId(1), Nsid(1), Lba(0), 0, false, DATA);
    }

    #[test]
    fn a_flush_is_its_opcode_and_namespace() {
        let sqe = flush(CommandId(9), Nsid::BROADCAST);
        assert_eq!(&sqe.as_bytes()[..8], [0, 0, 9, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(&sqe.as_bytes()[8..], [0; 56]);
        assert_eq!(parse(&sqe).unwrap().command, Command::Flush);
    }

    /// NVM command set 1.0, figures of 3.2.2, 3.2.3 and 3.2.8: where the fields lie.
    #[test]
    fn fields_of_commands_about_ranges() {
        let sqe = write_zeroes(CommandId(1), Nsid(1), Lba(2), 0x100, true, true);
        assert_eq!((sqe.opcode, sqe.cdw10.get(), sqe.cdw12.get()), (8, 2, 0x4200_00ff));
        let sqe = dataset_management(CommandId(1), Nsid(1), 256, true, DATA);
        assert_eq!((sqe.opcode, sqe.cdw10.get(), sqe.cdw11.get()), (9, 0xff, 4));
        let sqe = copy(CommandId(1), Nsid(1), Lba(0x2_0000_0001), 3, DATA);
        assert_eq!((sqe.opcode, sqe.cdw10.get(), sqe.cdw11.get()), (0x19, 1, 2));
        assert_eq!(sqe.cdw12.get(), 2);
        let formatted = Sqe { cdw12: 0x4000_0102.into(), ..sqe };
        let Command::Copy(copy) = parse(&formatted).unwrap().command else { panic!("{sqe:?}") };
        assert_eq!((copy.ranges, copy.format, copy.fua), (3, 1, true));
        let sqe = compare(CommandId(1), Nsid(1), Lba(7), 1, DATA);
        assert_eq!((sqe.opcode, sqe.cdw10.get(), sqe.cdw12.get()), (5, 7, 0));
    }

    #[test]
    fn only_known_opcodes_parse() {
        let all = [
            opcode::FLUSH,
            opcode::READ,
            opcode::WRITE,
            opcode::WRITE_UNCORRECTABLE,
            opcode::COMPARE,
            opcode::VERIFY,
            opcode::WRITE_ZEROES,
            opcode::DATASET_MANAGEMENT,
            opcode::COPY,
            opcode::RESERVATION_REGISTER,
            opcode::RESERVATION_REPORT,
            opcode::RESERVATION_ACQUIRE,
            opcode::RESERVATION_RELEASE,
        ];
        for opcode in 0..=u8::MAX {
            let known = all.contains(&opcode);
            // RTYPE of 1, which is legal in every command.
            let parsed = parse(&Sqe { opcode, cdw10: 0x100.into(), ..Sqe::default() });
            assert_eq!(parsed.is_ok(), known, "opcode {opcode:#x}");
            assert!(known || parsed == Err(Status::INVALID_OPCODE));
        }
    }
}
