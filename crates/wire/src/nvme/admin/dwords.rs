//! Packing of the fields of each admin command into its dwords, in both directions.

use bitfield_struct::bitfield;

use super::{CreateCq, CreateSq, FormatNvm, GetLogPage, Identify, Priority, Select, SetFeatures};
use crate::QueueId;
use crate::nvme::entry::Sqe;
use crate::nvme::status::Status;

/// Dword 10 of both create commands.
#[bitfield(u32)]
struct QueueDword10 {
    qid: u16,
    /// 0-based.
    qsize: u16,
}

#[bitfield(u32)]
struct CreateSqDword11 {
    pc: bool,
    #[bits(2)]
    qprio: u8,
    #[bits(13)]
    __: u16,
    cqid: u16,
}

#[bitfield(u32)]
struct CreateCqDword11 {
    pc: bool,
    ien: bool,
    #[bits(14)]
    __: u16,
    iv: u16,
}

#[bitfield(u32)]
struct LogDword10 {
    lid: u8,
    #[bits(7)]
    lsp: u8,
    rae: bool,
    numdl: u16,
}

#[bitfield(u32)]
struct LogDword11 {
    numdu: u16,
    lsi: u16,
}

#[bitfield(u32)]
struct LogDword14 {
    #[bits(23)]
    __: u32,
    /// OT: the offset counts entries, not bytes.
    ot: bool,
    csi: u8,
}

#[bitfield(u32)]
struct IdentifyDword10 {
    cns: u8,
    __: u8,
    cntid: u16,
}

#[bitfield(u32)]
struct IdentifyDword11 {
    cns_specific: u16,
    __: u8,
    csi: u8,
}

#[bitfield(u32)]
pub(super) struct AbortDword10 {
    pub sqid: u16,
    pub cid: u16,
}

#[bitfield(u32)]
struct SetDword10 {
    fid: u8,
    #[bits(23)]
    __: u32,
    sv: bool,
}

#[bitfield(u32)]
pub(super) struct GetDword10 {
    pub fid: u8,
    #[bits(3)]
    pub sel: u8,
    #[bits(21)]
    __: u32,
}

/// LBAF is split: low bits first, high bits last.
#[bitfield(u32)]
struct FormatDword10 {
    #[bits(4)]
    lbafl: u8,
    mset: bool,
    #[bits(3)]
    pi: u8,
    pil: bool,
    #[bits(3)]
    ses: u8,
    #[bits(2)]
    lbafu: u8,
    #[bits(18)]
    __: u32,
}

/// Rejects the admin queue, which can be neither created nor deleted.
pub(super) fn io_queue(qid: u16) -> Result<QueueId, Status> {
    if qid == QueueId::ADMIN.0 {
        return Err(Status::INVALID_QUEUE_IDENTIFIER);
    }
    Ok(QueueId(qid))
}

impl QueueDword10 {
    /// Queue identifier and number of entries; a queue of one entry could never be filled (3.3.1).
    fn parse(sqe: &Sqe) -> Result<(QueueId, u32), Status> {
        let dword = QueueDword10::from_bits(sqe.cdw10.get());
        let qid = io_queue(dword.qid())?;
        if dword.qsize() == 0 {
            return Err(Status::INVALID_QUEUE_SIZE);
        }
        Ok((qid, u32::from(dword.qsize()) + 1))
    }

    fn store(sqe: &mut Sqe, qid: QueueId, size: u32) {
        assert!(qid != QueueId::ADMIN, "the admin queue is not created by command");
        assert!((2..=1 << 16).contains(&size), "a queue of {size} entries");
        let dword = QueueDword10::new().with_qid(qid.0).with_qsize((size - 1) as u16);
        sqe.cdw10 = dword.into_bits().into();
    }
}

impl FormatNvm {
    pub(super) fn parse(sqe: &Sqe) -> FormatNvm {
        let dword = FormatDword10::from_bits(sqe.cdw10.get());
        FormatNvm {
            format: dword.lbafu() << 4 | dword.lbafl(),
            metadata_inline: dword.mset(),
            protection: dword.pi(),
            protection_first: dword.pil(),
            erase: dword.ses(),
        }
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        let dword = FormatDword10::new()
            .with_lbafl(self.format & 0xf)
            .with_lbafu(self.format >> 4)
            .with_mset(self.metadata_inline)
            .with_pi(self.protection)
            .with_pil(self.protection_first)
            .with_ses(self.erase);
        sqe.cdw10 = dword.into_bits().into();
    }
}

impl CreateSq {
    pub(super) fn parse(sqe: &Sqe) -> Result<CreateSq, Status> {
        let (qid, size) = QueueDword10::parse(sqe)?;
        let dword11 = CreateSqDword11::from_bits(sqe.cdw11.get());
        Ok(CreateSq {
            qid,
            size,
            cqid: io_queue(dword11.cqid())?,
            priority: match dword11.qprio() {
                0 => Priority::Urgent,
                1 => Priority::High,
                2 => Priority::Medium,
                _ => Priority::Low,
            },
            contiguous: dword11.pc(),
        })
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        assert!(self.cqid != QueueId::ADMIN, "I/O commands don't complete to the admin queue");
        QueueDword10::store(sqe, self.qid, self.size);
        let dword11 = CreateSqDword11::new()
            .with_pc(self.contiguous)
            .with_qprio(self.priority as u8)
            .with_cqid(self.cqid.0);
        sqe.cdw11 = dword11.into_bits().into();
    }
}

impl CreateCq {
    pub(super) fn parse(sqe: &Sqe) -> Result<CreateCq, Status> {
        let (qid, size) = QueueDword10::parse(sqe)?;
        let dword11 = CreateCqDword11::from_bits(sqe.cdw11.get());
        Ok(CreateCq {
            qid,
            size,
            vector: dword11.iv(),
            irq_enabled: dword11.ien(),
            contiguous: dword11.pc(),
        })
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        QueueDword10::store(sqe, self.qid, self.size);
        let dword11 = CreateCqDword11::new()
            .with_pc(self.contiguous)
            .with_ien(self.irq_enabled)
            .with_iv(self.vector);
        sqe.cdw11 = dword11.into_bits().into();
    }
}

impl GetLogPage {
    pub(super) fn parse(sqe: &Sqe) -> Result<GetLogPage, Status> {
        let dword10 = LogDword10::from_bits(sqe.cdw10.get());
        let dword11 = LogDword11::from_bits(sqe.cdw11.get());
        let dword14 = LogDword14::from_bits(sqe.cdw14.get());
        let offset = u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get());
        if dword14.ot() || !offset.is_multiple_of(4) {
            // No log page here is a list of entries of one size, so none supports an index.
            return Err(Status::INVALID_FIELD);
        }
        let dwords = (u64::from(dword11.numdu()) << 16 | u64::from(dword10.numdl())) + 1;
        Ok(GetLogPage {
            lid: dword10.lid(),
            lsp: dword10.lsp(),
            lsi: dword11.lsi(),
            retain_event: dword10.rae(),
            bytes: 4 * dwords,
            offset,
            csi: dword14.csi(),
        })
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        assert!(
            self.bytes.is_multiple_of(4)
                && (4..=1 << 34).contains(&self.bytes)
                && self.offset.is_multiple_of(4),
            "{} bytes at {} of log page {:#x}: not whole dwords, or too many",
            self.bytes,
            self.offset,
            self.lid
        );
        assert!(self.lsp < 1 << 7, "LSP {:#x} has more than seven bits", self.lsp);
        let numd = self.bytes / 4 - 1;
        let dword10 = LogDword10::new()
            .with_lid(self.lid)
            .with_lsp(self.lsp)
            .with_rae(self.retain_event)
            .with_numdl(numd as u16);
        let dword11 = LogDword11::new().with_numdu((numd >> 16) as u16).with_lsi(self.lsi);
        sqe.cdw10 = dword10.into_bits().into();
        sqe.cdw11 = dword11.into_bits().into();
        sqe.cdw12 = (self.offset as u32).into();
        sqe.cdw13 = ((self.offset >> 32) as u32).into();
        sqe.cdw14 = LogDword14::new().with_csi(self.csi).into_bits().into();
    }
}

impl Identify {
    pub(super) fn parse(sqe: &Sqe) -> Identify {
        let dword10 = IdentifyDword10::from_bits(sqe.cdw10.get());
        let dword11 = IdentifyDword11::from_bits(sqe.cdw11.get());
        Identify {
            cns: dword10.cns(),
            cntid: dword10.cntid(),
            cns_specific: dword11.cns_specific(),
            csi: dword11.csi(),
        }
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        let dword10 = IdentifyDword10::new().with_cns(self.cns).with_cntid(self.cntid);
        let dword11 =
            IdentifyDword11::new().with_cns_specific(self.cns_specific).with_csi(self.csi);
        sqe.cdw10 = dword10.into_bits().into();
        sqe.cdw11 = dword11.into_bits().into();
    }
}

impl SetFeatures {
    pub(super) fn parse(sqe: &Sqe) -> SetFeatures {
        let dword10 = SetDword10::from_bits(sqe.cdw10.get());
        SetFeatures {
            fid: dword10.fid(),
            save: dword10.sv(),
            cdw11: sqe.cdw11.get(),
            cdw12_to_15: [sqe.cdw12, sqe.cdw13, sqe.cdw14, sqe.cdw15].map(|dword| dword.get()),
        }
    }

    pub(super) fn store(&self, sqe: &mut Sqe) {
        sqe.cdw10 = SetDword10::new().with_fid(self.fid).with_sv(self.save).into_bits().into();
        sqe.cdw11 = self.cdw11.into();
        let [cdw12, cdw13, cdw14, cdw15] = self.cdw12_to_15.map(Into::into);
        *sqe = Sqe { cdw12, cdw13, cdw14, cdw15, ..*sqe };
    }
}

impl Select {
    pub(super) fn parse(sel: u8) -> Result<Select, Status> {
        match sel {
            0 => Ok(Select::Current),
            1 => Ok(Select::Default),
            2 => Ok(Select::Saved),
            3 => Ok(Select::Supported),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::admin::{Command, parse};
    use crate::nvme::opcode::admin as opcode;

    fn sqe(opcode: u8, cdw10: u32, cdw11: u32) -> Sqe {
        Sqe { opcode, cdw10: cdw10.into(), cdw11: cdw11.into(), ..Sqe::default() }
    }

    #[test]
    fn create_queue_rejects_invalid_qid_and_size() {
        let no_queue = Err(Status::INVALID_QUEUE_IDENTIFIER);
        let no_size = Err(Status::INVALID_QUEUE_SIZE);
        assert_eq!(parse(&sqe(opcode::DELETE_SQ, 0, 0)), no_queue);
        assert_eq!(parse(&sqe(opcode::DELETE_CQ, 0, 0)), no_queue);
        assert_eq!(parse(&sqe(opcode::CREATE_SQ, 0x00ff_0000, 1 << 16)), no_queue);
        assert_eq!(parse(&sqe(opcode::CREATE_SQ, 0x00ff_0001, 0)), no_queue);
        assert_eq!(parse(&sqe(opcode::CREATE_SQ, 1, 1 << 16)), no_size);
        assert_eq!(parse(&sqe(opcode::CREATE_CQ, 0x00ff_0000, 0)), no_queue);
        assert_eq!(parse(&sqe(opcode::CREATE_CQ, 1, 0)), no_size);
        assert!(parse(&sqe(opcode::CREATE_CQ, 0x0001_0001, 0)).is_ok());
    }

    #[test]
    fn reserved_select_is_invalid_field() {
        for sel in 0..8 {
            let parsed = parse(&sqe(opcode::GET_FEATURES, sel << 8 | 7, 0));
            assert_eq!(parsed.is_ok(), sel < 4, "SEL {sel}");
            assert!(sel < 4 || parsed == Err(Status::INVALID_FIELD));
        }
    }

    #[test]
    fn get_log_page_requires_dword_multiples() {
        let at = |cdw12: u32, cdw14: u32| Sqe {
            cdw12: cdw12.into(),
            cdw14: cdw14.into(),
            ..sqe(opcode::GET_LOG_PAGE, 0xffff_0002, 0x0000_ffff)
        };
        let Command::GetLogPage(get) = parse(&at(8, 0)).unwrap().command else { panic!() };
        assert_eq!((get.lid, get.bytes, get.offset), (2, 1 << 34, 8));
        assert_eq!(parse(&at(2, 0)), Err(Status::INVALID_FIELD), "an offset within a dword");
        assert_eq!(parse(&at(0, 1 << 23)), Err(Status::INVALID_FIELD), "an offset in entries");
    }

    #[test]
    #[should_panic(expected = "a queue of 1 entries")]
    fn create_queue_with_one_entry_panics() {
        QueueDword10::store(&mut Sqe::default(), QueueId(1), 1);
    }
}
