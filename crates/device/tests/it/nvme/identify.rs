//! Identify: NVMe base 2.0, 5.17.

use wire::Nsid;
use wire::nvme::admin::{Command, Identify, Request};
use wire::nvme::identify::{
    IdDescriptors, IdentifyController, IdentifyNamespace, NamespaceList, ascii_text, cns, csi,
    oacs, oncs, vwc,
};
use wire::nvme::log::sanicap;
use wire::nvme::registers::VERSION_1_4;
use wire::nvme::status::Status;
use zerocopy::FromBytes;

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Settings};

/// The 4096 bytes returned, or the error status.
async fn identify(w: &mut World, nsid: Nsid, ask: Identify) -> Result<Vec<u8>, Status> {
    let at = w.raw.place(4096, 4096);
    w.raw.memory.write(at, &[0xa5; 4096]).unwrap();
    let (cid, data) = (w.raw.cid(), w.raw.data(at, 4096));
    let sqe = Request { cid, nsid, data, command: Command::Identify(ask) }.to_sqe();
    let cqe = w.raw.admin(&sqe).await;
    let answer = w.raw.bytes(at, 4096);
    if !cqe.status().is_ok() {
        assert!(answer.iter().all(|byte| *byte == 0xa5), "data with {}", cqe.status());
    }
    cqe.status().ok().map(|()| answer)
}

async fn by_cns(w: &mut World, nsid: Nsid, cns: u8) -> Result<Vec<u8>, Status> {
    identify(w, nsid, Identify { cns, ..Identify::default() }).await
}

/// 5.17.2.1.
#[test]
fn identify_controller_fields() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let bytes = by_cns(&mut w, Nsid::NONE, cns::CONTROLLER).await.unwrap();
        let c = IdentifyController::read_from_bytes(&bytes).unwrap();
        let mpsmin = 4096;
        let most = u64::from(w.setup.options.transfer_bytes_max);
        assert_eq!(c.transfer_bytes_max(mpsmin), Some(most));
        assert_eq!((c.ver.get(), c.cntrltype, c.nn.get()), (VERSION_1_4, 1, 16));
        assert_eq!((c.sqes, c.cqes), (0x66, 0x44), "64 and 16 bytes, no more, no less");
        assert_eq!((u32::from(c.acl), u32::from(c.aerl)), (3, 3));
        let optional = oncs::COMPARE
            | oncs::WRITE_UNCORRECTABLE
            | oncs::DATASET_MANAGEMENT
            | oncs::WRITE_ZEROES
            | oncs::RESERVATIONS
            | oncs::VERIFY
            | oncs::COPY;
        assert_eq!(c.oncs.get(), optional | oncs::FEATURE_SELECT);
        let managed =
            oacs::FORMAT | oacs::NAMESPACE_MANAGEMENT | oacs::SELF_TEST | oacs::DOORBELL_BUFFER;
        assert_eq!((c.oacs.get(), c.fuses.get()), (managed, 1));
        // SGLs at any byte, with bit buckets, and longer than the data.
        assert_eq!(c.sgls.get(), 0x5_0001);
        assert_eq!((c.tnvmcap.get(), c.unvmcap.get()), (512 << 20, 0));
        assert_eq!((c.cdfs.get(), c.elpe, c.fna), (1, 63, 0));
        let sanitize = sanicap::BLOCK_ERASE | sanicap::OVERWRITE | sanicap::NOT_MODIFIED_AFTERWARDS;
        assert_eq!(c.sanicap.get(), sanitize);
        assert_eq!(c.vwc, vwc::PRESENT | vwc::BROADCAST_FLUSH);
        for text in [&c.sn[..], &c.mn[..], &c.fr[..]] {
            assert!(!ascii_text(text).unwrap_or_default().is_empty());
        }
        assert!(c.subnqn.starts_with(b"nqn.2014-08.org.nvmexpress:uuid:"));
        assert!(c.subnqn.contains(&0), "it ends with a zero");
    });
}

/// NVM command set 1.0, 4.1.5.1.
#[test]
fn identify_namespace_matches_medium_geometry() {
    for (blocks, block_bytes) in [(1 << 20, 512), (77, 4096)] {
        let setup = Setup { blocks, block_bytes, ..Setup::default() };
        setup.run(async |mut w: World| {
            w.raw.enable(Settings::default()).await;
            let bytes = by_cns(&mut w, NS, cns::NAMESPACE).await.unwrap();
            let n = IdentifyNamespace::read_from_bytes(&bytes).unwrap();
            assert_eq!((n.nsze.get(), n.ncap.get(), n.nuse.get()), (blocks, blocks, blocks));
            assert_eq!(u32::from(n.lbaf[0].ds), block_bytes.ilog2());
            // Blocks of 4096 bytes are offered if the medium's are smaller.
            let formats = if block_bytes == 512 { 2 } else { 1 };
            assert_eq!((n.nlbaf, n.flbas, n.dps), (formats - 1, 0, 0), "no protection");
            let lengths: Vec<u8> = n.lbaf.iter().map(|format| format.ds).collect();
            let wanted = [block_bytes.ilog2() as u8, 12];
            assert_eq!(lengths[..usize::from(formats)], wanted[..usize::from(formats)]);
            assert!(lengths[usize::from(formats)..].iter().all(|ds| *ds == 0));
            let allocated = by_cns(&mut w, NS, cns::ALLOCATED_NAMESPACE).await.unwrap();
            assert_eq!(allocated, bytes);
            let common = by_cns(&mut w, Nsid::BROADCAST, cns::NAMESPACE).await.unwrap();
            let common = IdentifyNamespace::read_from_bytes(&common).unwrap();
            assert_eq!((common.nsze.get(), common.lbaf[0]), (0, n.lbaf[0]));
        });
    }
}

/// 5.17.2.2, 5.17.2.3, 5.17.2.9: lists hold the numbers above the given one.
#[test]
fn identify_namespace_lists_and_descriptors() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        for list in
            [cns::ACTIVE_NAMESPACES, cns::ALLOCATED_NAMESPACES, cns::COMMAND_SET_ACTIVE_NAMESPACES]
        {
            for (after, wanted) in [(0, vec![NS]), (1, vec![]), (0xffff_fffd, vec![])] {
                let bytes = by_cns(&mut w, Nsid(after), list).await.unwrap();
                let got = NamespaceList::read_from_bytes(&bytes).unwrap();
                assert_eq!(got.iter().collect::<Vec<_>>(), wanted, "CNS {list:#x} after {after}");
            }
            for after in [0xffff_fffe, 0xffff_ffff] {
                let refused = by_cns(&mut w, Nsid(after), list).await.unwrap_err();
                assert_eq!(refused, Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
            }
        }
        let bytes = by_cns(&mut w, NS, cns::NAMESPACE_DESCRIPTORS).await.unwrap();
        let names = IdDescriptors::parse(bytes[..].try_into().unwrap()).unwrap();
        assert_eq!(names.csi, Some(csi::NVM));
        assert!(names.eui64.is_some_and(|eui64| eui64 != [0; 8]));
    });
}

/// 5.17.1: every CNS is either supported or rejected as an invalid field; an invalid namespace is rejected.
#[test]
fn identify_rejects_unknown_cns() {
    let answered = [
        cns::NAMESPACE,
        cns::CONTROLLER,
        cns::ACTIVE_NAMESPACES,
        cns::NAMESPACE_DESCRIPTORS,
        cns::COMMAND_SET_NAMESPACE,
        cns::COMMAND_SET_CONTROLLER,
        cns::COMMAND_SET_ACTIVE_NAMESPACES,
        cns::ALLOCATED_NAMESPACES,
        cns::ALLOCATED_NAMESPACE,
        cns::CONTROLLERS_OF_NAMESPACE,
        cns::CONTROLLERS,
    ];
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        for number in 0..=u8::MAX {
            match by_cns(&mut w, NS, number).await {
                Ok(_) => assert!(answered.contains(&number), "CNS {number:#x}"),
                Err(status) => {
                    assert_eq!(status, Status::INVALID_FIELD.with_dnr(), "CNS {number:#x}");
                    assert!(!answered.contains(&number), "CNS {number:#x}");
                }
            }
        }
        for number in [
            cns::NAMESPACE,
            cns::NAMESPACE_DESCRIPTORS,
            cns::COMMAND_SET_NAMESPACE,
            cns::ALLOCATED_NAMESPACE,
        ] {
            for nsid in [0, 17, 0xffff_fffe] {
                let refused = by_cns(&mut w, Nsid(nsid), number).await.unwrap_err();
                assert_eq!(refused, Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
            }
            // For an inactive namespace the structure is zeros, and there are no descriptors.
            let inactive = by_cns(&mut w, Nsid(2), number).await;
            match number {
                cns::NAMESPACE | cns::ALLOCATED_NAMESPACE => {
                    assert!(inactive.unwrap().iter().all(|byte| *byte == 0));
                }
                _ => assert_eq!(inactive.unwrap_err(), Status::INVALID_FIELD.with_dnr()),
            }
        }
        let zoned = Identify { cns: cns::COMMAND_SET_CONTROLLER, csi: 2, ..Identify::default() };
        let refused = identify(&mut w, Nsid::NONE, zoned).await.unwrap_err();
        assert_eq!(refused, Status::INVALID_FIELD.with_dnr());
    });
}
