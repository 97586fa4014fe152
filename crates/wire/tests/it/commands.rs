//! Round trips of requests through their bytes, and parsing of arbitrary bytes.

use proptest::prelude::*;
use wire::nvme::admin::{self, CreateCq, CreateSq, FormatNvm, GetLogPage, Identify, SetFeatures};
use wire::nvme::collect::Collect;
use wire::nvme::dsm::{Attributes, DatasetManagement};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::host_map::PlacedRead;
use wire::nvme::io::{self, Access, BLOCKS_MAX, CopyTo, RANGES_MAX, WriteZeroes};
use wire::nvme::pi::Protection;
use wire::nvme::sgl::Descriptor;
use wire::nvme::status::Status;
use wire::{BusAddr, CommandId, Lba, Nsid, QueueId};
use zerocopy::{FromBytes, IntoBytes};

fn data() -> impl Strategy<Value = DataPointer> {
    any::<(u64, u64)>()
        .prop_map(|(prp1, prp2)| DataPointer::Prp { prp1: BusAddr(prp1), prp2: BusAddr(prp2) })
}

/// A data pointer as in an I/O command.
fn io_data() -> impl Strategy<Value = DataPointer> {
    let sgl = any::<(u64, u64)>()
        .prop_map(|(low, high)| DataPointer::Sgl(Descriptor::from_words(low, high)));
    prop_oneof![data(), sgl]
}

fn io_command() -> impl Strategy<Value = io::Command> {
    let said = (0..16_u8, any::<(u32, u16, u16)>()).prop_map(|(prinfo, (reference, tag, mask))| {
        Protection::of_range(prinfo, reference, tag, mask)
    });
    let access = (any::<(u64, u64)>(), 1..=BLOCKS_MAX, any::<(bool, bool)>(), said.clone())
        .prop_map(|((lba, metadata), blocks, (fua, limited_retry), protection)| {
            let (lba, metadata) = (Lba(lba), BusAddr(metadata));
            Access { lba, blocks, fua, limited_retry, protection, metadata }
        });
    let dsm = (1..=RANGES_MAX, 0..8_u32).prop_map(|(ranges, attributes)| DatasetManagement {
        ranges,
        attributes: Attributes::from_bits(attributes),
    });
    let copy = (any::<u64>(), 1..=RANGES_MAX, (0..16_u8, 0..16_u8), any::<(bool, bool)>(), said)
        .prop_map(|(to, ranges, (format, source), (fua, limited_retry), protection)| {
            let to = Lba(to);
            let copy = CopyTo { to, ranges, format, fua, limited_retry, source, protection };
            io::Command::Copy(copy)
        });
    let zeroes = (access.clone(), any::<bool>())
        .prop_map(|(access, deallocate)| WriteZeroes { access, deallocate });
    prop_oneof![
        Just(io::Command::Flush),
        access.clone().prop_map(io::Command::Read),
        access.clone().prop_map(io::Command::Write),
        access.clone().prop_map(io::Command::Compare),
        access.clone().prop_map(io::Command::Verify),
        access.clone().prop_map(io::Command::ReadMap),
        (access, any::<u32>())
            .prop_map(|(access, place)| { io::Command::ReadPlaced(PlacedRead { access, place }) }),
        zeroes.prop_map(io::Command::WriteZeroes),
        dsm.prop_map(io::Command::DatasetManagement),
        copy,
    ]
}

fn io_queue() -> impl Strategy<Value = QueueId> {
    (1..=u16::MAX).prop_map(QueueId)
}

fn create() -> impl Strategy<Value = admin::Command> {
    use admin::Priority::{High, Low, Medium, Urgent};
    let priority = prop::sample::select(vec![Urgent, High, Medium, Low]);
    let size = 2..=1u32 << 16;
    let sq = (io_queue(), size.clone(), io_queue(), priority, any::<bool>()).prop_map(
        |(qid, size, cqid, priority, contiguous)| {
            admin::Command::CreateSq(CreateSq { qid, size, cqid, priority, contiguous })
        },
    );
    let cq = (io_queue(), size, any::<(u16, bool, bool)>()).prop_map(
        |(qid, size, (vector, irq_enabled, contiguous))| {
            admin::Command::CreateCq(CreateCq { qid, size, vector, irq_enabled, contiguous })
        },
    );
    prop_oneof![sq, cq]
}

fn get_log_page() -> impl Strategy<Value = admin::Command> {
    let words = (1..=1u64 << 32, 0..1u64 << 62);
    (words, 0..128u8, any::<(u8, u16, bool, u8)>()).prop_map(
        |((dwords, offset), lsp, (lid, lsi, retain_event, csi))| {
            let (bytes, offset) = (4 * dwords, 4 * offset);
            admin::Command::GetLogPage(GetLogPage {
                lid,
                lsp,
                lsi,
                retain_event,
                bytes,
                offset,
                csi,
            })
        },
    )
}

fn admin_command() -> impl Strategy<Value = admin::Command> {
    use admin::Command;
    use admin::Select::{Current, Default, Saved, Supported};
    let select = prop::sample::select(vec![Current, Default, Saved, Supported]);
    prop_oneof![
        create(),
        get_log_page(),
        io_queue().prop_map(|qid| Command::DeleteSq { qid }),
        io_queue().prop_map(|qid| Command::DeleteCq { qid }),
        any::<(u8, u16, u16, u8)>().prop_map(|(cns, cntid, cns_specific, csi)| {
            Command::Identify(Identify { cns, cntid, cns_specific, csi })
        }),
        any::<(u16, u16)>()
            .prop_map(|(sqid, cid)| Command::Abort { sqid: QueueId(sqid), cid: CommandId(cid) }),
        any::<(u8, bool, u32, [u32; 4])>().prop_map(|(fid, save, cdw11, cdw12_to_15)| {
            Command::SetFeatures(SetFeatures { fid, save, cdw11, cdw12_to_15 })
        }),
        (any::<u8>(), select, any::<u32>()).prop_map(|(fid, select, cdw11)| Command::GetFeatures {
            fid,
            select,
            cdw11
        }),
        Just(Command::AsyncEventRequest),
        any::<(u32, u32, u32)>().prop_map(|(superblock, erases, rows)| {
            Command::Collect(Collect { superblock, erases, rows })
        }),
        (0..64_u8, 0..8_u8, 0..8_u8, any::<(bool, bool)>()).prop_map(
            |(format, protection, erase, (metadata_inline, protection_first))| {
                let (inline, first) = (metadata_inline, protection_first);
                Command::FormatNvm(FormatNvm {
                    format,
                    metadata_inline: inline,
                    protection,
                    protection_first: first,
                    erase,
                })
            }
        ),
    ]
}

proptest! {
    #[test]
    fn io_request_round_trip(
        cid: u16, nsid: u32, data in io_data(), command in io_command(),
    ) {
        let request = io::Request { cid: CommandId(cid), nsid: Nsid(nsid), data, command };
        let sqe = Sqe::read_from_bytes(request.to_sqe().as_bytes()).unwrap();
        prop_assert_eq!(io::parse(&sqe), Ok(request));
    }

    #[test]
    fn admin_request_round_trip(
        cid: u16, nsid: u32, data in data(), command in admin_command(),
    ) {
        let request = admin::Request { cid: CommandId(cid), nsid: Nsid(nsid), data, command };
        let sqe = Sqe::read_from_bytes(request.to_sqe().as_bytes()).unwrap();
        prop_assert_eq!(admin::parse(&sqe), Ok(request));
    }

    /// Any 64 bytes parse to a request or a status; an encoded request parses to itself.
    #[test]
    fn arbitrary_sqe_parses_or_returns_status(
        bytes: [[u8; 32]; 2], opcode in prop_oneof![0..=0x0cu8, Just(0x19), Just(0x80)],
        plain: bool,
    ) {
        let mut sqe = Sqe::read_from_bytes(bytes.as_bytes()).unwrap();
        sqe.opcode = opcode;
        if plain {
            sqe.flags = Default::default();
        }
        match io::parse(&sqe) {
            Ok(request) => prop_assert_eq!(io::parse(&request.to_sqe()), Ok(request)),
            Err(status) => prop_assert!(!status.is_ok()),
        }
        match admin::parse(&sqe) {
            Ok(request) => prop_assert_eq!(admin::parse(&request.to_sqe()), Ok(request)),
            Err(status) => prop_assert!(!status.is_ok()),
        }
    }

    #[test]
    fn metadata_sgl_is_invalid_field(psdt in 2..4u8, command in io_command()) {
        let data = DataPointer::NONE;
        let mut sqe = io::Request { cid: CommandId(1), nsid: Nsid(1), data, command }.to_sqe();
        sqe.flags.set_psdt(psdt);
        prop_assert_eq!(io::parse(&sqe), Err(Status::INVALID_FIELD));
    }
}
