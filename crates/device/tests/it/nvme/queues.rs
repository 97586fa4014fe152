//! Creating and deleting I/O queues: NVMe base 2.0, 5.4 to 5.7.

use std::collections::BTreeSet;

use wire::nvme::admin::{self, CreateCq, CreateSq};
use wire::nvme::entry::Sqe;
use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba, Nsid, QueueId};

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

/// An entry as no builder makes it: dwords 10 and 11, and PRP1.
fn by_hand(opcode: u8, w: &World, cdw10: u32, cdw11: u32, at: BusAddr) -> Sqe {
    Sqe {
        opcode,
        cid: w.raw.cid().0.into(),
        prp1: at.0.into(),
        cdw10: cdw10.into(),
        cdw11: cdw11.into(),
        ..Sqe::default()
    }
}

/// 5.4.
#[test]
fn completion_queues_that_cannot_be() {
    small().run(async |mut w: World| {
        ready(&mut w).await;
        let at = w.raw.place(1 << 16, 1 << 12);
        let make = |create: CreateCq, at: BusAddr| admin::create_cq(w.raw.cid(), at, create);
        let good = cq_of(1, 16);
        let id = Status::INVALID_QUEUE_IDENTIFIER;
        let size = Status::INVALID_QUEUE_SIZE;
        let vector = Status::INVALID_INTERRUPT_VECTOR;
        let offset = Status::INVALID_PRP_OFFSET;
        let cases = [
            ("a number past the last", make(cq_of(5, 16), at), id),
            ("the highest number", make(CreateCq { vector: 1, ..cq_of(0xffff, 16) }, at), id),
            ("number 0", by_hand(5, &w, 15 << 16, 3, at), id),
            ("one entry", by_hand(5, &w, 1, 3, at), size),
            ("more entries than MQES", make(cq_of(1, 257), at), size),
            ("65536 entries", make(cq_of(1, 65536), at), size),
            ("vector 64", make(CreateCq { vector: 64, ..good }, at), vector),
            ("vector 65535", make(CreateCq { vector: 0xffff, ..good }, at), vector),
            (
                "pages of a list",
                make(CreateCq { contiguous: false, ..good }, at),
                Status::INVALID_FIELD,
            ),
            ("within a page", make(good, BusAddr(at.0 + 16)), offset),
            ("within a dword", make(good, BusAddr(at.0 + 1)), offset),
        ];
        for (why, sqe, wanted) in cases {
            refused(&mut w, &sqe, wanted, why).await;
        }
        // None of these left anything behind: all four can be made, and each but once.
        for qid in 1..=4 {
            w.raw.create_cq(qid, 256).await;
            let again = admin::create_cq(w.raw.cid(), at, cq_of(qid, 16));
            refused(&mut w, &again, id, "a number in use").await;
        }
    });
}

/// 5.5.
#[test]
fn submission_queues_that_cannot_be() {
    small().run(async |mut w: World| {
        ready(&mut w).await;
        let at = w.raw.place(1 << 16, 1 << 12);
        w.raw.create_cq(2, 16).await;
        let make = |create: CreateSq, at: BusAddr| admin::create_sq(w.raw.cid(), at, create);
        let id = Status::INVALID_QUEUE_IDENTIFIER;
        let size = Status::INVALID_QUEUE_SIZE;
        let offset = Status::INVALID_PRP_OFFSET;
        let cases = [
            ("a number past the last", make(sq_of(5, 16, 2), at), id),
            ("number 0", by_hand(1, &w, 15 << 16, 2 << 16 | 1, at), id),
            ("one entry", by_hand(1, &w, 1, 2 << 16 | 1, at), size),
            ("more entries than MQES", make(sq_of(1, 257, 2), at), size),
            ("the admin completion queue", by_hand(1, &w, 15 << 16 | 1, 1, at), id),
            ("a completion queue past the last", make(sq_of(1, 16, 5), at), id),
            (
                "a completion queue not made",
                make(sq_of(1, 16, 1), at),
                Status::COMPLETION_QUEUE_INVALID,
            ),
            (
                "pages of a list",
                make(CreateSq { contiguous: false, ..sq_of(1, 16, 2) }, at),
                Status::INVALID_FIELD,
            ),
            ("within a page", make(sq_of(1, 16, 2), BusAddr(at.0 + 64)), offset),
        ];
        for (why, sqe, wanted) in cases {
            refused(&mut w, &sqe, wanted, why).await;
        }
        for qid in 1..=4 {
            w.raw.create_sq(qid, 256, 2).await;
            let again = admin::create_sq(w.raw.cid(), at, sq_of(qid, 16, 2));
            refused(&mut w, &again, id, "a number in use").await;
        }
    });
}

/// 5.4, 5.5: an address that wraps round is none. The queue is refused, or never touched.
#[test]
fn queues_past_the_end_of_the_address_space() {
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

/// 5.6, 5.7: what is deleted is gone, what is in use is not, and what is not there cannot be.
#[test]
fn deletion_has_an_order() {
    small().run(async |mut w: World| {
        ready(&mut w).await;
        w.raw.create_cq(3, 16).await;
        w.raw.create_sq(1, 16, 3).await;
        w.raw.create_sq(4, 16, 3).await;
        let id = Status::INVALID_QUEUE_IDENTIFIER;
        for qid in [0, 2, 5, 0xffff].map(QueueId) {
            let (opcode_sq, opcode_cq) = (0x00, 0x04);
            for opcode in [opcode_sq, opcode_cq] {
                let sqe = by_hand(opcode, &w, u32::from(qid.0), 0, BusAddr(0));
                refused(&mut w, &sqe, id, "no such queue").await;
            }
        }
        let delete_cq = |w: &World| admin::delete_cq(w.raw.cid(), QueueId(3));
        for qid in [4, 1].map(QueueId) {
            let sqe = delete_cq(&w);
            refused(&mut w, &sqe, Status::INVALID_QUEUE_DELETION, "in use").await;
            w.raw.admin_ok(&admin::delete_sq(w.raw.cid(), qid)).await;
            let sqe = admin::delete_sq(w.raw.cid(), qid);
            refused(&mut w, &sqe, id, "deleted already").await;
        }
        let sqe = delete_cq(&w);
        w.raw.admin_ok(&sqe).await;
        let sqe = delete_cq(&w);
        refused(&mut w, &sqe, id, "deleted already").await;
    });
}

/// One read, submitted and not waited for.
fn submit_read(w: &World, sq: &mut Sq, at: BusAddr) -> u16 {
    let sqe = io::read(w.raw.cid(), NS, Lba(0), 1, false, w.raw.data(at, 512));
    w.raw.submit(sq, &sqe);
    sqe.cid.get()
}

/// 5.7: commands in flight complete as Aborted due to SQ Deletion, each once, and then the deletion.
#[test]
fn deleting_a_queue_completes_what_is_in_flight_first() {
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
        // The deletion has completed: so have all the others, and their entries are there.
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

/// The same with a full completion queue: the deletion waits for the host to make room.
#[test]
fn deleting_a_queue_waits_for_room_in_its_completion_queue() {
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

/// A queue that is deleted while its entries are being fetched, and made again at the same place: no
/// command of the old one runs in the new one, and none of the new one is lost.
#[test]
fn a_queue_made_again_has_nothing_of_the_old_one() {
    // A fetch that takes longer than deleting and making a queue does.
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

/// The doorbells of a queue that is made again still hold what the host last wrote there.
#[test]
fn stale_doorbells_do_not_ring_for_a_new_queue() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        for _ in 0..13 {
            let sqe = io::flush(w.raw.cid(), NS);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        }
        w.raw.admin_ok(&admin::delete_sq(w.raw.cid(), QueueId(1))).await;
        w.raw.admin_ok(&admin::delete_cq(w.raw.cid(), QueueId(1))).await;
        // Smaller ones: 13 would be outside of either.
        let mut cq = w.raw.create_cq(1, 4).await;
        let mut sq = w.raw.create_sq(1, 8, 1).await;
        assert_eq!(w.raw.next_within(&mut cq, SILENCE).await, None, "thirteen entries of nothing");
        assert_eq!(w.medium.flushes.get(), 13);
        // A full lap of both, and the completion queue is known to be empty at first.
        for _ in 0..9 {
            let mut pair = Pair { sq, cq };
            let sqe = io::flush(w.raw.cid(), NS);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
            Pair { sq, cq } = pair;
        }
    });
}

/// 3.3.1: several submission queues may share a completion queue.
#[test]
fn completions_of_several_queues_in_one() {
    on_a_bench(async |mut w: World| {
        ready(&mut w).await;
        let mut cq = w.raw.create_cq(2, 8).await;
        let mut sqs = Vec::new();
        for qid in 1..=5 {
            sqs.push(w.raw.create_sq(qid, 4, 2).await);
        }
        for round in 0..20 {
            let mut wanted = BTreeSet::new();
            for sq in &mut sqs {
                let sqe = io::flush(w.raw.cid(), Nsid(1));
                w.raw.submit(sq, &sqe);
                wanted.insert((sq.qid.0, sqe.cid.get(), sq.tail as u16));
            }
            for _ in 0..5 {
                let cqe = w.raw.next(&mut cq).await;
                let seen = (cqe.queue().0, cqe.cid.get(), cqe.sq_head.get());
                assert!(wanted.remove(&seen), "round {round}: {cqe:?}, of {wanted:?}");
            }
        }
    });
}

/// The largest queue that there is: 65536 entries, once round and a little.
#[test]
fn the_largest_queues_wrap() {
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
