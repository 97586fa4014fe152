//! Several namespaces, their management and attachment: NVMe base 2.0, 5.22 and 5.23.

use device::nvme::Options;
use media::Labels;
use runtime::Span;
use wire::nvme::admin::{self, FormatNvm};
use wire::nvme::entry::Sqe;
use wire::nvme::identify::{IdentifyNamespace, NamespaceList, cns};
use wire::nvme::io;
use wire::nvme::log::{ErrorInformation, lid};
use wire::nvme::status::Status;
use wire::{Lba, Nsid};
use zerocopy::{FromZeros, IntoBytes};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, PATIENCE, Pair, pattern};

/// Blocks of the bench's medium.
const BLOCKS: u64 = 1 << 20;

async fn namespace(w: &mut World, nsid: u32) -> IdentifyNamespace {
    w.raw.identify(Nsid(nsid), cns::ALLOCATED_NAMESPACE).await
}

async fn listed(w: &mut World, cns: u8) -> Vec<u32> {
    let list: NamespaceList = w.raw.identify(Nsid::NONE, cns).await;
    list.iter().map(|nsid| nsid.0).collect()
}

async fn both_lists(w: &mut World) -> (Vec<u32>, Vec<u32>) {
    (listed(w, cns::ACTIVE_NAMESPACES).await, listed(w, cns::ALLOCATED_NAMESPACES).await)
}

/// Command that creates a namespace of `blocks` blocks in format `flbas`.
fn creation(w: &World, blocks: u64, flbas: u8) -> Sqe {
    let mut wanted = IdentifyNamespace::new_zeroed();
    (wanted.nsze, wanted.ncap, wanted.flbas) = (blocks.into(), blocks.into(), flbas);
    created_as(w, &wanted)
}

fn created_as(w: &World, wanted: &IdentifyNamespace) -> Sqe {
    let at = w.raw.place(4096, 4096);
    w.raw.memory.write(at, wanted.as_bytes()).unwrap();
    admin::create_namespace(w.raw.cid(), w.raw.data(at, 4096))
}

fn attachment(w: &World, nsid: u32, attach: bool, controllers: &[u16]) -> Sqe {
    let at = w.raw.place(4096, 4096);
    let list = [&[controllers.len() as u16], controllers].concat();
    w.raw.memory.write(at, list.as_bytes()).unwrap();
    admin::attach_namespace(w.raw.cid(), Nsid(nsid), attach, w.raw.data(at, 4096))
}

async fn refused(w: &mut World, sqe: Sqe, status: Status) {
    assert_eq!(w.raw.admin(&sqe).await.status(), status.with_dnr(), "{sqe:?}");
}

/// Reads, or writes if `write` is given, 4096 bytes at `lba`; returns them.
async fn moved(w: &World, pair: &mut Pair, nsid: u32, lba: u64, write: Option<&[u8]>) -> Vec<u8> {
    let at = w.raw.place(4096, 4096);
    w.raw.memory.write(at, write.unwrap_or(&[0x77; 4096])).unwrap();
    let make = if write.is_some() { io::write } else { io::read };
    let sqe = make(w.raw.cid(), Nsid(nsid), Lba(lba), 8, false, w.raw.data(at, 4096));
    assert_eq!(w.raw.run(pair, &sqe).await.status(), Status::SUCCESS, "{sqe:?}");
    w.raw.bytes(at, 4096)
}

fn several(namespaces: u16) -> Setup {
    Setup { options: Options { namespaces, ..Options::default() }, ..Setup::default() }
}

/// The witness checks medium writes by block alone, not by namespace: switch it off.
fn without_witness(w: &World) {
    w.medium.witness.replace(None);
}

/// Namespaces have disjoint blocks.
#[test]
fn namespaces_have_disjoint_blocks() {
    several(3).run(async |mut w: World| {
        without_witness(&w);
        let mut pair = w.raw.up().await;
        assert_eq!(both_lists(&mut w).await, (vec![1, 2, 3], vec![1, 2, 3]));
        let each = namespace(&mut w, 1).await.nsze.get();
        assert!(each % 8 == 0 && 3 * each <= BLOCKS && 3 * each + 24 > BLOCKS, "{each}");
        let mut names = Vec::new();
        for nsid in 1..=3 {
            let ns = namespace(&mut w, nsid).await;
            assert_eq!(ns.nsze.get(), each);
            names.push(ns.eui64);
            for lba in [0, each - 8] {
                let data = pattern(lba + u64::from(nsid), 4096);
                moved(&w, &mut pair, nsid, lba, Some(&data)).await;
            }
        }
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        for nsid in 1..=3_u32 {
            for lba in [0, each - 8] {
                let data = pattern(lba + u64::from(nsid), 4096);
                assert_eq!(moved(&w, &mut pair, nsid, lba, None).await, data);
                assert_eq!(w.medium.peek(u64::from(nsid - 1) * each + lba, 4096), data);
            }
            let at = w.raw.place(512, 4096);
            let data = w.raw.data(at, 512);
            let sqe = io::read(w.raw.cid(), Nsid(nsid), Lba(each), 1, false, data);
            let status = w.raw.run(&mut pair, &sqe).await.status();
            assert_eq!(status, Status::LBA_OUT_OF_RANGE.with_dnr());
        }
        let sqe = io::flush(w.raw.cid(), Nsid::BROADCAST);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
    });
}

/// Formatting one namespace leaves the others as they are; broadcast formats all.
#[test]
fn format_affects_one_namespace_broadcast_affects_all() {
    several(2).run(async |mut w: World| {
        without_witness(&w);
        let mut pair = w.raw.up().await;
        let data = pattern(3, 4096);
        moved(&w, &mut pair, 1, 8, Some(&data)).await;
        let large = FormatNvm { format: 1, ..FormatNvm::default() };
        w.raw.admin_ok(&admin::format_nvm(w.raw.cid(), Nsid(2), large)).await;
        let sizes = (namespace(&mut w, 1).await.nsze.get(), namespace(&mut w, 2).await.nsze.get());
        assert_eq!(sizes, (BLOCKS / 2, BLOCKS / 16));
        assert_eq!(moved(&w, &mut pair, 1, 8, None).await, data);
        w.raw.admin_ok(&admin::format_nvm(w.raw.cid(), Nsid::BROADCAST, large)).await;
        assert_eq!(namespace(&mut w, 1).await.nsze.get(), BLOCKS / 16);
        assert_eq!(w.medium.peek(8, 4096), [0; 4096]);
    });
}

/// Created, attached, used, detached and deleted; the namespaces survive the controller.
#[test]
fn namespace_create_attach_detach_delete_survives_restart() {
    let label = on_a_bench(async |mut w: World| {
        without_witness(&w);
        let mut pair = w.raw.up().await;
        w.medium.poke(16, &pattern(1, 4096));
        w.raw.admin_ok(&admin::delete_namespace(w.raw.cid(), NS)).await;
        assert_eq!(both_lists(&mut w).await, (vec![], vec![]));
        let large = creation(&w, 1000, 1);
        assert_eq!(w.raw.admin_ok(&large).await, 1, "the number of the first");
        let small = creation(&w, 5001, 0);
        assert_eq!(w.raw.admin_ok(&small).await, 2);
        assert_eq!(both_lists(&mut w).await, (vec![], vec![1, 2]));
        // Data of the deleted namespace are not readable.
        let controller = w.raw.identify_controller().await;
        // The next namespace begins where it may have either format.
        assert_eq!(controller.unvmcap.get(), u128::from(BLOCKS - 8000 - 5008) * 512);
        let inactive = io::flush(w.raw.cid(), Nsid(2));
        let status = w.raw.run(&mut pair, &inactive).await.status();
        assert_eq!(status, Status::INVALID_FIELD.with_dnr());
        for nsid in [1, 2] {
            let sqe = attachment(&w, nsid, true, &[1]);
            w.raw.admin_ok(&sqe).await;
        }
        assert_eq!(w.medium.peek(16, 4096), [0; 4096]);
        assert_eq!(namespace(&mut w, 1).await.nsze.get(), 1000);
        moved(&w, &mut pair, 2, 4993, Some(&pattern(8, 4096))).await;
        assert_eq!(w.medium.peek(8000 + 4993, 4096), pattern(8, 4096));
        let sqe = attachment(&w, 1, false, &[1]);
        w.raw.admin_ok(&sqe).await;
        assert_eq!(both_lists(&mut w).await, (vec![2], vec![1, 2]));
        Some(w.medium.label())
    });
    Setup { label, ..Setup::default() }.run(async |mut w: World| {
        w.raw.up().await;
        assert_eq!(both_lists(&mut w).await, (vec![2], vec![1, 2]), "another controller");
        let (one, two) = (namespace(&mut w, 1).await, namespace(&mut w, 2).await);
        assert_eq!((one.nsze.get(), one.flbas, two.nsze.get()), (1000, 1, 5001));
        // An identifier is never used twice.
        let old = one.eui64;
        w.raw.admin_ok(&admin::delete_namespace(w.raw.cid(), NS)).await;
        let sqe = creation(&w, 1000, 1);
        assert_eq!(w.raw.admin_ok(&sqe).await, 1, "its number and its place are free again");
        assert!(namespace(&mut w, 1).await.eui64 != old);
    });
}

/// 5.17.2.1 and 5.23.1: UNVMCAP is room that a namespace gets, also where free room is in pieces, and the
/// error log has the bytes that a larger one needs.
#[test]
fn unvmcap_can_be_allocated_and_error_log_has_the_bytes_needed() {
    several(4).run(async |mut w: World| {
        without_witness(&w);
        w.raw.up().await;
        let each = BLOCKS / 4;
        for nsid in [1, 3] {
            w.raw.admin_ok(&admin::delete_namespace(w.raw.cid(), Nsid(nsid))).await;
        }
        let free = async |w: &mut World| {
            let bytes = w.raw.identify_controller().await.unvmcap.get();
            u64::try_from(bytes / 512).expect("blocks")
        };
        assert_eq!(free(&mut w).await, each, "two pieces of this length");
        for (blocks, format, bytes) in [
            (each + 1, 0, (each + 1) * 512),
            (2 * each, 0, 2 * each * 512),
            (each / 8 + 1, 1, (each + 8) * 512),
            (u64::MAX, 0, u64::MAX),
            (u64::MAX, 1, u64::MAX),
        ] {
            let too_large = creation(&w, blocks, format);
            refused(&mut w, too_large, Status::NAMESPACE_INSUFFICIENT_CAPACITY).await;
            let log: [ErrorInformation; 1] = w.raw.log(lid::ERROR).await;
            assert_eq!(log[0].command_specific.get(), bytes, "{blocks} in format {format}");
        }
        for expected in [each, 0] {
            let blocks = free(&mut w).await;
            let sqe = creation(&w, blocks, 0);
            w.raw.admin_ok(&sqe).await;
            assert_eq!(free(&mut w).await, expected, "after one of {blocks} blocks");
        }
        let none = creation(&w, 0, 0);
        refused(&mut w, none, Status::INVALID_FIELD).await;
        let log: [ErrorInformation; 1] = w.raw.log(lid::ERROR).await;
        assert_eq!(log[0].command_specific.get(), 0, "nothing of an earlier command");
    });
}

#[test]
fn create_and_delete_namespace_reject_invalid_fields() {
    on_a_bench(async |mut w: World| {
        w.raw.up().await;
        let too_large = creation(&w, 8, 0);
        refused(&mut w, too_large, Status::NAMESPACE_INSUFFICIENT_CAPACITY).await;
        w.raw.admin_ok(&admin::delete_namespace(w.raw.cid(), NS)).await;
        let mut thin = IdentifyNamespace::new_zeroed();
        (thin.nsze, thin.ncap) = (80.into(), 40.into());
        let mut protected = IdentifyNamespace { ncap: 80.into(), ..thin };
        protected.dps = 1;
        let shared = IdentifyNamespace { ncap: 80.into(), nmic: 1, ..thin };
        for (sqe, status) in [
            (creation(&w, 0, 0), Status::INVALID_FIELD),
            (creation(&w, 8, 2), Status::INVALID_FORMAT),
            (creation(&w, 8, 0x10), Status::INVALID_FORMAT),
            (creation(&w, BLOCKS + 1, 0), Status::NAMESPACE_INSUFFICIENT_CAPACITY),
            (creation(&w, u64::MAX, 1), Status::NAMESPACE_INSUFFICIENT_CAPACITY),
            (created_as(&w, &thin), Status::THIN_PROVISIONING_NOT_SUPPORTED),
            (created_as(&w, &protected), Status::INVALID_FORMAT),
            (created_as(&w, &shared), Status::INVALID_FIELD),
            (admin::delete_namespace(w.raw.cid(), Nsid(1)), Status::INVALID_FIELD),
            (admin::delete_namespace(w.raw.cid(), Nsid(17)), Status::INVALID_NAMESPACE_OR_FORMAT),
        ] {
            refused(&mut w, sqe, status).await;
        }
        let mut other_set = creation(&w, 8, 0);
        other_set.cdw11 = (2 << 24).into();
        refused(&mut w, other_set, Status::COMMAND_SET_NOT_SUPPORTED).await;
        for _ in 0..16 {
            let sqe = creation(&w, 8, 0);
            w.raw.admin_ok(&sqe).await;
        }
        let seventeenth = creation(&w, 8, 0);
        refused(&mut w, seventeenth, Status::NAMESPACE_ID_UNAVAILABLE).await;
    });
}

#[test]
fn attach_namespace_rejects_invalid_requests() {
    on_a_bench(async |mut w: World| {
        w.raw.up().await;
        for (sqe, status) in [
            (attachment(&w, 1, true, &[1]), Status::NAMESPACE_ALREADY_ATTACHED),
            (attachment(&w, 1, false, &[]), Status::CONTROLLER_LIST_INVALID),
            (attachment(&w, 1, false, &[2]), Status::CONTROLLER_LIST_INVALID),
            (attachment(&w, 1, false, &[1, 2]), Status::CONTROLLER_LIST_INVALID),
            (attachment(&w, 2, true, &[1]), Status::INVALID_FIELD),
            (attachment(&w, 0, true, &[1]), Status::INVALID_NAMESPACE_OR_FORMAT),
        ] {
            refused(&mut w, sqe, status).await;
        }
        let sqe = attachment(&w, 1, false, &[1]);
        w.raw.admin_ok(&sqe).await;
        let again = attachment(&w, 1, false, &[1]);
        refused(&mut w, again, Status::NAMESPACE_NOT_ATTACHED).await;
    });
}

/// A medium that stores only blocks has fixed namespaces.
#[test]
fn namespace_management_is_rejected_without_label() {
    let setup = Setup { label: None, ..several(2) };
    setup.run(async |mut w: World| {
        w.raw.up().await;
        assert_eq!(both_lists(&mut w).await, (vec![1, 2], vec![1, 2]));
        for sqe in [
            creation(&w, 8, 0),
            attachment(&w, 1, false, &[1]),
            admin::delete_namespace(w.raw.cid(), NS),
        ] {
            refused(&mut w, sqe, Status::INVALID_OPCODE).await;
        }
    });
}

/// Commands in flight complete as aborted before the deletion does, and do nothing afterwards.
#[test]
fn delete_namespace_aborts_its_commands_in_flight() {
    several(2).run(async |mut w: World| {
        without_witness(&w);
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        w.medium.close();
        let data = w.raw.data(at, 4096);
        let inside = io::write(w.raw.cid(), Nsid(2), Lba(0), 8, false, data);
        let beside = io::write(w.raw.cid(), Nsid(1), Lba(0), 8, false, data);
        w.raw.submit(&mut pair.sq, &inside);
        w.raw.submit(&mut pair.sq, &beside);
        w.medium.until_waiting(2).await;
        let delete = admin::delete_namespace(w.raw.cid(), Nsid(2));
        w.raw.admin_ok(&delete).await;
        let cqe = w.raw.next(&mut pair.cq).await;
        assert_eq!((cqe.id(), cqe.status().kind()), (inside.id(), Status::ABORT_REQUESTED));
        w.medium.open();
        let cqe = w.raw.next(&mut pair.cq).await;
        assert_eq!((cqe.id(), cqe.status()), (beside.id(), Status::SUCCESS));
        assert!(w.medium.written.borrow().iter().all(|at| at.block == 0), "the other's block");
    });
}

/// A reset during a creation leaves neither the namespace nor its capacity taken.
#[test]
fn reset_during_namespace_creation_leaves_nothing() {
    on_a_bench(async |mut w: World| {
        w.raw.up().await;
        w.raw.admin_ok(&admin::delete_namespace(w.raw.cid(), NS)).await;
        w.medium.close();
        let sqe = creation(&w, BLOCKS, 0);
        w.raw.submit_admin(&sqe);
        w.medium.until_waiting(1).await;
        assert_eq!(w.raw.next_admin(Span::us(50)).await.map(|cqe| cqe.status()), None);
        w.raw.disable().await;
        w.medium.open();
        w.raw.up().await;
        assert_eq!(both_lists(&mut w).await, (vec![], vec![]));
        let sqe = creation(&w, BLOCKS, 0);
        w.raw.submit_admin(&sqe);
        let cqe = w.raw.next_admin(PATIENCE).await.expect("a completion");
        assert_eq!(cqe.status(), Status::SUCCESS);
    });
}

/// A stored label with overlapping, out-of-range or duplicate entries counts as none.
#[test]
fn invalid_namespace_labels_are_ignored() {
    let entry = |nsid: u8, start: u64, blocks: u64| {
        let head = [nsid, 9, 1, 0, 0, 0, 0, 0];
        [&head[..], &start.to_le_bytes(), &blocks.to_le_bytes()].concat()
    };
    let label = |entries: &[Vec<u8>]| {
        let head = [&b"DBNS\x02"[..], &[0; 4], &[entries.len() as u8]].concat();
        [head, entries.concat()].concat()
    };
    let good = label(&[entry(3, 0, 64), entry(5, 64, 64)]);
    let cut = good[..good.len() - 1].to_vec();
    for (label, active) in [
        (good, vec![3, 5]),
        (cut, vec![1]),
        (label(&[entry(3, 0, 64), entry(3, 64, 64)]), vec![1]),
        (label(&[entry(3, 0, 64), entry(4, 56, 64)]), vec![1]),
        (label(&[entry(0, 0, 64)]), vec![1]),
        (label(&[entry(17, 0, 64)]), vec![1]),
        (label(&[entry(1, 4, 64)]), vec![1]),
        (label(&[entry(1, 0, BLOCKS + 8)]), vec![1]),
        (label(&[entry(1, u64::MAX - 7, 64)]), vec![1]),
        (label(&[entry(1, 0, 0)]), vec![1]),
    ] {
        let setup = Setup { label: Some(label.clone()), ..Setup::default() };
        setup.run(async |mut w: World| {
            w.raw.up().await;
            let found = listed(&mut w, cns::ACTIVE_NAMESPACES).await;
            assert_eq!(found, active, "{label:02x?}");
        });
    }
}
