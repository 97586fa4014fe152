//! Creating and deleting I/O queues: NVMe base 2.0, 5.4 to 5.7.

use std::collections::BTreeSet;

use wire::nvme::admin::{self, CreateCq};
use wire::nvme::entry::Sqe;
use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba, QueueId};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{Cq, NS, Pair, SILENCE, Settings, Sq, cq_of, sq_of};

async fn refused(w: &mut World, sqe: &Sqe, wanted: Status, why: &str) {
    let cqe = w.raw.admin(sqe).await;
    assert_eq!(cqe.status(), wanted.with_dnr(), "{why}");
}

async fn ready(w: &mut World) {
    w.raw.enable(Settings::default()).await;
    w.raw.ask_for_queues().await;
}

fn small() -> Setup {
    let options =
        device::nvme::Options { io_queues: 4, queue_entries_max: 256, ..Default::default() };
    Setup { options, ..Setup::default() }
}

/// 5.5: an out-of-range CQID and an absent CQ have different statuses.
#[test]
fn sq_create_rejects_unknown_cqid() {
    small().run(async |mut w: World| {
        ready(&mut w).await;
        let at = w.raw.place(4096, 4096);
        let wanted = [
            (0, Status::INVALID_QUEUE_IDENTIFIER),
            (1, Status::COMPLETION_QUEUE_INVALID),
            (5, Status::INVALID_QUEUE_IDENTIFIER),
        ];
        for (cqid, wanted) in wanted {
            let mut sqe = admin::create_sq(w.raw.cid(), at, sq_of(1, 16, 1));
            // The builders cannot form it: CQID is the upper half of CDW11.
            sqe.cdw11 = (sqe.cdw11.get() & 0xffff | cqid << 16).into();
            refused(&mut w, &sqe, wanted, "a completion queue").await;
        }
    });
}

/// 5.4, 5.5: an address range that wraps is invalid. The queue is rejected, or never accessed.
#[test]
fn queue_create_rejects_address_range_wrap() {
    small().run(async |mut w: World| {
        ready(&mut w).await;
        let last = BusAddr(0u64.wrapping_sub(4096));
        let sqe = admin::create_cq(w.raw.cid(), last, CreateCq { size: 256, ..cq_of(1, 256) });
        assert_eq!(w.raw.admin(&sqe).await.status(), Status::SUCCESS, "to the very end");
        let sqe = admin::create_cq(w.raw.cid(), BusAddr(last.0), cq_of(2, 256));
        assert_eq!(w.raw.admin(&sqe).await.status(), Status::SUCCESS);
        let sqe = admin::create_sq(w.raw.cid(), last, sq_of(1, 65, 1));
        refused(&mut w, &sqe, Status::INVALID_FIELD, "past the end").await;
    });
}

/// Submits one read without waiting; returns its CID.
fn submit_read(w: &World, sq: &mut Sq, at: BusAddr) -> u16 {
    let sqe = io::read(w.raw.cid(), NS, Lba(0), 1, false, w.raw.data(at, 512));
    w.raw.submit(sq, &sqe);
    sqe.cid.get()
}

/// 5.7: commands in flight complete as Aborted due to SQ Deletion, each once, and then the deletion.
#[test]
fn sq_delete_completes_commands_in_flight_first() {
    on_a_bench(async |mut w: World| {
        let Pair { mut sq, mut cq } = w.raw.up().await;
        let mut other = w.raw.create_sq(2, 64, 1).await;
        let at = w.raw.place(4096, 4096);
        w.medium.close();
        let mut in_flight: BTreeSet<u16> = (0..20).map(|_| submit_read(&w, &mut sq, at)).collect();
        let bystander = submit_read(&w, &mut other, at);
        w.rt.sleep(SILENCE).await;
        assert_eq!(w.medium.waiting.get(), 21, "all of them are on the medium");
        w.raw.admin_ok(&admin::delete_sq(w.raw.cid(), QueueId(1))).await;
        // The deletion has completed: so have all the others, and their entries are present.
        for left in (0..20).rev() {
            let cqe =
                w.raw.next_within(&mut cq, runtime::Span::us(1)).await.expect("already there");
            assert_eq!(cqe.status(), Status::ABORTED_SQ_DELETION);
            assert_eq!(cqe.queue(), QueueId(1));
            assert!(in_flight.remove(&cqe.cid.get()), "{:?} twice", cqe.id());
            assert_eq!(in_flight.len(), left);
        }
        assert_eq!(w.raw.next_within(&mut cq, SILENCE).await, None);
        w.medium.open();
        let cqe = w.raw.next(&mut cq).await;
        assert_eq!((cqe.cid.get(), cqe.queue()), (bystander, QueueId(2)));
        assert_eq!(cqe.status(), Status::SUCCESS, "another queue's command goes on");
        assert_eq!(w.raw.next_within(&mut cq, SILENCE).await, None);
    });
}

/// The same with a full completion queue: the deletion waits for free entries.
#[test]
fn sq_delete_waits_for_free_cq_entries() {
    on_a_bench(async |mut w: World| {
        ready(&mut w).await;
        let mut cq = w.raw.create_cq(1, 4).await;
        let mut sq = w.raw.create_sq(1, 64, 1).await;
        let at = w.raw.place(4096, 4096);
        w.medium.close();
        for _ in 0..10 {
            submit_read(&w, &mut sq, at);
        }
        w.rt.sleep(SILENCE).await;
        let delete = admin::delete_sq(w.raw.cid(), QueueId(1));
        w.raw.submit_admin(&delete);
        assert_eq!(w.raw.next_admin(SILENCE).await, None, "three fit, ten wait");
        for _ in 0..10 {
            assert_eq!(w.raw.next(&mut cq).await.status(), Status::ABORTED_SQ_DELETION);
        }
        let cqe = w.raw.next_admin(SILENCE).await.expect("room for all");
        assert_eq!((cqe.id(), cqe.status()), (delete.id(), Status::SUCCESS));
    });
}

/// A queue is deleted while its entries are being fetched, and created again at the same address: no command
/// of the old one runs in the new one, and none of the new one is lost.
#[test]
fn sq_recreate_during_fetch_runs_no_stale_entry() {
    // Some fetches take longer than deleting and creating a queue.
    for host_read in [0, 250, 3_000, 50_000] {
        let setup = Setup { host_read: runtime::Span::ns(host_read), ..Setup::default() };
        setup.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let at = w.raw.place(4096, 4096);
            for lap in 0..20_u16 {
                for _ in 0..5 {
                    submit_read(&w, &mut pair.sq, at);
                }
                w.raw.admin_ok(&admin::delete_sq(w.raw.cid(), QueueId(1))).await;
                w.raw.admin_ok(&admin::delete_cq(w.raw.cid(), QueueId(1))).await;
                let (sq_at, cq_at) = (pair.sq.at, pair.cq.at);
                w.raw.memory.zero(cq_at, 64 * 16).unwrap();
                w.raw.admin_ok(&admin::create_cq(w.raw.cid(), cq_at, cq_of(1, 64))).await;
                w.raw.admin_ok(&admin::create_sq(w.raw.cid(), sq_at, sq_of(1, 64, 1))).await;
                let (sq, cq) = (Sq::new(QueueId(1), sq_at, 64), Cq::new(QueueId(1), cq_at, 64));
                pair = Pair { sq, cq };
                let mut mine = BTreeSet::new();
                for _ in 0..=lap % 7 {
                    let sqe = io::flush(w.raw.cid(), NS);
                    mine.insert(sqe.cid.get());
                    w.raw.submit(&mut pair.sq, &sqe);
                }
                while !mine.is_empty() {
                    let cqe = w.raw.next(&mut pair.cq).await;
                    assert!(mine.remove(&cqe.cid.get()), "lap {lap}: {cqe:?} is of the old queue");
                    assert_eq!(cqe.status(), Status::SUCCESS);
                }
            }
        });
    }
}

/// The largest queue: 65536 entries, wrapped once.
#[test]
fn queues_of_65536_entries_wrap() {
    let options = device::nvme::Options { queue_entries_max: 65_536, ..Default::default() };
    let setup = Setup { options, memory_bytes: 16 << 20, ..Setup::default() };
    setup.run(async |mut w: World| {
        w.medium.span.set(runtime::Span::ZERO);
        ready(&mut w).await;
        let mut pair = w.raw.create_pair(1, 65_536).await;
        let bad = Sqe { opcode: 0x7f, ..Sqe::default() };
        let mut left = 65_536 + 100;
        while left > 0 {
            let now = left.min(5_000);
            for _ in 0..now {
                w.raw.store(&mut pair.sq, &bad);
            }
            w.raw.ring(&pair.sq);
            let mut last = None;
            for _ in 0..now {
                w.raw.peek(&pair.cq).await;
                last = Some(w.raw.next(&mut pair.cq).await);
            }
            let last = last.expect("some");
            assert_eq!(u32::from(last.sq_head.get()), pair.sq.tail);
            left -= now;
        }
        assert_eq!((pair.sq.tail, pair.cq.head, pair.cq.phase), (100, 100, false));
    });
}
