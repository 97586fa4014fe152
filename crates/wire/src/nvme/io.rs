//! I/O commands of the NVM command set (NVM command set 1.0, 3.2).
//!
//! To add a command, add a variant and its arms in [`parse`] and in [`Request::to_sqe`]; the compiler then
//! reports every controller that does not handle it yet.

use bitfield_struct::bitfield;

use super::access::{Dword12, protection, store_tags};
use super::dsm::{Attributes, DatasetManagement};
use super::entry::{self, DataPointer, Sqe};
use super::host_map::PlacedRead;
use super::opcode::io as opcode;
use super::pi::Protection;
use super::reservation::{Acquire, Register, Release, Report};
use super::status::Status;
use crate::{BusAddr, CommandId, Lba, Nsid};

pub use super::access::{Access, BLOCKS_MAX};

/// A valid I/O command, and its data pointer.
pub type Request = entry::Request<Command>;

/// An I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Makes durable the writes completed before (NVMe base 2.0, 7.1).
    Flush,
    /// Blocks to the host.
    Read(Access),
    /// Blocks from the host.
    Write(Access),
    /// 3.2.1: compares blocks from the host with those of the namespace.
    Compare(Access),
    /// 3.2.6: reads and checks blocks without a transfer.
    Verify(Access),
    /// 3.2.7: makes blocks unreadable until they are written.
    WriteUncorrectable(Access),
    /// 3.2.8: writes zeros without a transfer.
    WriteZeroes(WriteZeroes),
    /// 3.2.3: hints for ranges of blocks, given in the data: [`super::ranges::DsmRange`].
    DatasetManagement(DatasetManagement),
    /// 3.2.2: copies ranges given in the data ([`super::ranges::CopyRange`]) to one destination.
    Copy(CopyTo),
    /// NVMe base 2.0, 7.3: registers, replaces or unregisters a key of the host.
    ReservationRegister(Register),
    /// NVMe base 2.0, 7.5: reports registrants and the reservation holder.
    ReservationReport(Report),
    /// NVMe base 2.0, 7.2: acquires or preempts a reservation.
    ReservationAcquire(Acquire),
    /// NVMe base 2.0, 7.4: releases or clears a reservation.
    ReservationRelease(Release),
    /// Vendor specific: blocks to the host, from places that the host names.
    ReadPlaced(PlacedRead),
    /// Vendor specific: to the host, the place of each mapping unit that these blocks touch.
    ReadMap(Access),
}

/// Parameters of Write Zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteZeroes {
    /// Blocks and flags, as for a write.
    pub access: Access,
    /// DEAC: the blocks may be deallocated.
    pub deallocate: bool,
}

/// Parameters of Copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyTo {
    /// First block of the destination.
    pub to: Lba,
    /// Number of source ranges: 1 to 256.
    pub ranges: u16,
    /// Format of the range descriptors; 0 is [`super::ranges::CopyRange`].
    pub format: u8,
    /// FUA for the destination.
    pub fua: bool,
    /// LR for the source.
    pub limited_retry: bool,
    /// PRINFOR: checks of each source range, by the tags of the range, and whether PI is stripped.
    pub source: u8,
    /// PRINFOW and the tags of the destination.
    pub protection: Protection,
}

/// Maximum number of ranges per command.
pub const RANGES_MAX: u16 = 1 << 8;

/// Command dword 12 of Copy, without directives.
#[bitfield(u32)]
struct CopyDword12 {
    /// NR, 0-based.
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

/// Parses an entry of an I/O submission queue.
///
/// Reserved fields are ignored, as the specification allows, and so are the hints about access patterns that
/// a read or write carries (DSM). The controller checks the existence of the namespace and the blocks.
///
/// # Errors
/// Invalid Opcode for an unknown command; Invalid Field for a fused one, one with a scatter gather list for
/// metadata, or reserved values of a reservation command.
#[inline]
pub fn parse(sqe: &Sqe) -> Result<Request, Status> {
    // Each variant is built in place: a later move would be piece by piece.
    let access = || Access::parse(sqe);
    match sqe.opcode {
        opcode::FLUSH => sqe.finish_io(Command::Flush),
        opcode::READ => sqe.finish_io(Command::Read(access())),
        opcode::WRITE => sqe.finish_io(Command::Write(access())),
        opcode::COMPARE => sqe.finish_io(Command::Compare(access())),
        opcode::VERIFY => sqe.finish_io(Command::Verify(access())),
        opcode::WRITE_UNCORRECTABLE => sqe.finish_io(Command::WriteUncorrectable(access())),
        opcode::WRITE_ZEROES => {
            let deallocate = Dword12::from_bits(sqe.cdw12.get()).deac();
            sqe.finish_io(Command::WriteZeroes(WriteZeroes { access: access(), deallocate }))
        }
        opcode::DATASET_MANAGEMENT => {
            let ranges = u16::from(sqe.cdw10.get() as u8) + 1;
            let attributes = Attributes::from_bits(sqe.cdw11.get());
            sqe.finish_io(Command::DatasetManagement(DatasetManagement { ranges, attributes }))
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
        opcode::READ_PLACED => sqe.finish_io(Command::ReadPlaced(PlacedRead::parse(sqe))),
        opcode::READ_MAP => sqe.finish_io(Command::ReadMap(access())),
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
            | Command::WriteUncorrectable(access)
            | Command::ReadMap(access) => access.store(&mut sqe),
            Command::ReadPlaced(read) => read.store(&mut sqe),
            Command::WriteZeroes(zeroes) => {
                zeroes.access.store(&mut sqe);
                let dword12 = Dword12::from_bits(sqe.cdw12.get());
                sqe.cdw12 = dword12.with_deac(zeroes.deallocate).into_bits().into();
            }
            Command::DatasetManagement(dsm) => {
                sqe.cdw10 = u32::from(from_zero(dsm.ranges)).into();
                sqe.cdw11 = dsm.attributes.into_bits().into();
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
    /// Opcode of the command.
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
            Command::ReadPlaced(_) => opcode::READ_PLACED,
            Command::ReadMap(_) => opcode::READ_MAP,
        }
    }
}

/// 0-based count of ranges, as in a command.
fn from_zero(ranges: u16) -> u8 {
    assert!((1..=RANGES_MAX).contains(&ranges), "{ranges} ranges in one command");
    (ranges - 1) as u8
}

/// The entry of a command that is only an access. This path for the most frequent commands avoids the match
/// over all others.
#[inline]
fn transfer(opcode: u8, request: &entry::Request<Access>) -> Sqe {
    let mut sqe = Sqe::start(opcode, request);
    request.command.store(&mut sqe);
    sqe
}

/// Adds PI fields to a command that names blocks.
#[inline]
pub fn protected(sqe: Sqe, pi_fields: Protection) -> Sqe {
    let dword12 = Dword12::from_bits(sqe.cdw12.get()).with_prinfo(pi_fields.prinfo());
    let mut sqe = Sqe { cdw12: dword12.into_bits().into(), ..sqe };
    store_tags(&mut sqe, &pi_fields);
    sqe
}

/// Adds a metadata address to a Read, Write or Compare.
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
    let command = Access { fua, ..Access::of(lba, blocks) };
    transfer(opcode::READ, &entry::Request { cid, nsid, data, command })
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
    let command = Command::Verify(Access::of(lba, blocks));
    Request { cid, nsid, data: DataPointer::NONE, command }.to_sqe()
}

/// A Write Uncorrectable of `blocks` blocks (1 to [`BLOCKS_MAX`]) from `lba` on.
///
/// # Panics
/// If there are no blocks or too many.
pub fn write_uncorrectable(cid: CommandId, nsid: Nsid, lba: Lba, blocks: u32) -> Sqe {
    let command = Command::WriteUncorrectable(Access::of(lba, blocks));
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

/// A Dataset Management of `ranges` ranges (1 to [`RANGES_MAX`]), listed at `data`.
///
/// # Panics
/// If there are no ranges or too many.
pub fn dataset_management(
    cid: CommandId,
    nsid: Nsid,
    ranges: u16,
    attributes: Attributes,
    data: DataPointer,
) -> Sqe {
    let command = Command::DatasetManagement(DatasetManagement { ranges, attributes });
    Request { cid, nsid, data, command }.to_sqe()
}

/// A Copy of `ranges` ranges (1 to [`RANGES_MAX`]), listed at `data`, to the blocks from `to` on.
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

/// A Read Placed of `blocks` blocks (1 to [`BLOCKS_MAX`]) from `lba` on: `place` is
/// that of the only mapping unit, or the list of places is at `list`.
///
/// # Panics
/// If there are no blocks or too many.
pub fn read_placed(
    cid: CommandId,
    nsid: Nsid,
    (lba, blocks): (Lba, u32),
    (place, list): (u32, BusAddr),
    data: DataPointer,
) -> Sqe {
    let access = Access { metadata: list, ..Access::of(lba, blocks) };
    Request { cid, nsid, data, command: Command::ReadPlaced(PlacedRead { access, place }) }.to_sqe()
}

/// A Read Map for `blocks` blocks (1 to [`BLOCKS_MAX`]) from `lba` on.
///
/// # Panics
/// If there are no blocks or too many.
pub fn read_map(cid: CommandId, nsid: Nsid, lba: Lba, blocks: u32, data: DataPointer) -> Sqe {
    Request { cid, nsid, data, command: Command::ReadMap(Access::of(lba, blocks)) }.to_sqe()
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
    fn read_matches_golden_bytes() {
        let lba = Lba(0x1_2345_6789);
        let sqe = read(CommandId(0x0102), Nsid(2), lba, 8, true, DATA);
        assert_eq!(sqe.as_bytes(), READ);

        let request = parse(&Sqe::read_from_bytes(&READ).unwrap()).unwrap();
        let access = Access { fua: true, ..Access::of(lba, 8) };
        let command = Command::Read(access);
        assert_eq!(request, Request { cid: CommandId(0x0102), nsid: Nsid(2), data: DATA, command });
    }

    #[test]
    fn nlb_of_smallest_and_largest_access() {
        for (blocks, nlb) in [(1, 0), (BLOCKS_MAX, 0xffff)] {
            let sqe = write(CommandId(1), Nsid(1), Lba(u64::MAX), blocks, false, DATA);
            assert_eq!(sqe.cdw12.get(), nlb);
            let Command::Write(access) = parse(&sqe).unwrap().command else { panic!("{sqe:?}") };
            assert_eq!((access.lba, access.blocks), (Lba(u64::MAX), blocks));
        }
    }

    #[test]
    fn protected_read_sets_pi_fields() {
        let pi_fields =
            Protection { act: true, reference: 7, ..Protection::of_range(0xf, 7, 3, 9) };
        let sqe = protected(read(CommandId(1), Nsid(1), Lba(7), 8, true, DATA), pi_fields);
        assert_eq!((sqe.cdw12.get(), sqe.cdw14.get()), (0x7c00_0007, 7));
        assert_eq!(sqe.cdw15.get(), 0x0009_0003);
        let access = Access { fua: true, protection: pi_fields, ..Access::of(Lba(7), 8) };
        assert_eq!(parse(&sqe).unwrap().command, Command::Read(access));
    }

    #[test]
    #[should_panic(expected = "0 blocks")]
    fn read_of_zero_blocks_panics() {
        read(CommandId(1), Nsid(1), Lba(0), 0, false, DATA);
    }

    #[test]
    fn flush_has_opcode_and_nsid_only() {
        let sqe = flush(CommandId(9), Nsid::BROADCAST);
        assert_eq!(&sqe.as_bytes()[..8], [0, 0, 9, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(&sqe.as_bytes()[8..], [0; 56]);
        assert_eq!(parse(&sqe).unwrap().command, Command::Flush);
    }

    /// NVM command set 1.0, figures of 3.2.2, 3.2.3 and 3.2.8: positions of the fields.
    #[test]
    fn dsm_copy_write_zeroes_field_layout() {
        let sqe = write_zeroes(CommandId(1), Nsid(1), Lba(2), 0x100, true, true);
        assert_eq!((sqe.opcode, sqe.cdw10.get(), sqe.cdw12.get()), (8, 2, 0x4200_00ff));
        let sqe = dataset_management(CommandId(1), Nsid(1), 256, Attributes::DEALLOCATE, DATA);
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
    fn io_parse_rejects_unknown_opcodes() {
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
            opcode::READ_PLACED,
            opcode::READ_MAP,
        ];
        for opcode in 0..=u8::MAX {
            let of_rtype_1 = Sqe { opcode, cdw10: 0x100.into(), ..Sqe::default() };
            let expected = (!all.contains(&opcode)).then_some(Status::INVALID_OPCODE);
            assert_eq!(parse(&of_rtype_1).err(), expected, "opcode {opcode:#x}");
        }
    }
}
