//! A controller whose queues are dealt to threads; here all parts are on one executor, in virtual time.

use runtime::Span;
use wire::nvme::admin;
use wire::nvme::io;
use wire::nvme::log::{ErrorInformation, SmartHealth, lid};
use wire::nvme::status::Status;
use wire::{Lba, QueueId};

use crate::raw::nvme::world::{Setup, World};
use crate::raw::nvme::{NS, Pair, SILENCE, Settings, cq_of, sq_of};

fn dealt(threads: usize) -> Setup {
    Setup { threads, label: None, ..Setup::default() }
}

async fn ready(w: &mut World) {
    w.raw.enable(Settings::default()).await;
    w.raw.ask_for_queues().await;
}

/// Writes and reads a block; returns the status of the read.
async fn moves(w: &World, pair: &mut Pair, lba: u64) -> Status {
    let at = w.raw.place(4096, 4096);
    let write = io::write(w.raw.cid(), NS, Lba(lba), 1, false, w.raw.data(at, 512));
    assert_eq!(w.raw.run(pair, &write).await.status(), Status::SUCCESS);
    let read = io::read(w.raw.cid(), NS, Lba(lba), 1, false, w.raw.data(at, 512));
    w.raw.run(pair, &read).await.status()
}

/// Queues 1 and 4 are of the thread that has ended.
#[test]
fn queues_of_an_ended_thread_are_refused_and_others_served() {
    Setup { ended: Some(1), ..dealt(3) }.run(async |mut w: World| {
        ready(&mut w).await;
        for qid in [1, 4] {
            let create = admin::create_cq(w.raw.cid(), w.raw.place(4096, 4096), cq_of(qid, 64));
            let refused = w.raw.admin(&create).await.status();
            assert_eq!(refused, Status::INTERNAL_ERROR.with_dnr(), "queue {qid}");
        }
        for qid in [2, 3, 5] {
            let mut pair = w.raw.create_pair(qid, 64).await;
            assert_eq!(moves(&w, &mut pair, 7).await, Status::SUCCESS, "queue {qid}");
        }
    });
}

/// The log and the counts are of the controller, whichever thread completed the command.
#[test]
fn error_log_and_health_are_of_all_threads() {
    dealt(3).run(async |mut w: World| {
        ready(&mut w).await;
        for qid in 1..=3 {
            let mut pair = w.raw.create_pair(qid, 64).await;
            assert_eq!(moves(&w, &mut pair, 1).await, Status::SUCCESS);
            let at = w.raw.place(4096, 4096);
            let beyond = io::read(w.raw.cid(), NS, Lba(1 << 40), 1, false, w.raw.data(at, 512));
            let failed = w.raw.run(&mut pair, &beyond).await.status();
            assert_eq!(failed.kind(), Status::LBA_OUT_OF_RANGE);
        }
        let health: SmartHealth = w.raw.log(lid::SMART_HEALTH).await;
        assert_eq!((health.host_reads.get(), health.host_writes.get()), (3, 3));
        assert_eq!(health.error_log_entries.get(), 3);
        let log: [ErrorInformation; 4] = w.raw.log(lid::ERROR).await;
        assert_eq!(log.map(|entry| entry.sqid.get()), [3, 2, 1, 0]);
    });
}

/// A command of another thread is aborted there, and a queue of another thread is deleted there: the commands
/// in flight complete first.
#[test]
fn abort_and_deletion_reach_commands_of_other_threads() {
    dealt(2).run(async |mut w: World| {
        ready(&mut w).await;
        let mut pair = w.raw.create_pair(1, 64).await;
        let at = w.raw.place(4096, 4096);
        w.medium.close();
        let mut submit = |w: &World| {
            let read = io::read(w.raw.cid(), NS, Lba(0), 1, false, w.raw.data(at, 512));
            w.raw.submit(&mut pair.sq, &read);
            read.cid.get()
        };
        let (aborted, left) = (submit(&w), submit(&w));
        w.rt.sleep(SILENCE).await;
        let cid = wire::CommandId(aborted);
        let abort = admin::abort(w.raw.cid(), QueueId(1), cid);
        assert_eq!(w.raw.admin_ok(&abort).await & 1, 0, "it was aborted");
        let cqe = w.raw.next(&mut pair.cq).await;
        assert_eq!((cqe.cid.get(), cqe.status().kind()), (aborted, Status::ABORT_REQUESTED));
        let in_use = admin::delete_cq(w.raw.cid(), QueueId(1));
        let refused = w.raw.admin(&in_use).await.status();
        assert_eq!(refused.kind(), Status::INVALID_QUEUE_DELETION);
        w.raw.admin_ok(&admin::delete_sq(w.raw.cid(), QueueId(1))).await;
        let cqe = w.raw.next(&mut pair.cq).await;
        assert_eq!((cqe.cid.get(), cqe.status()), (left, Status::ABORTED_SQ_DELETION));
        w.raw.admin_ok(&admin::delete_cq(w.raw.cid(), QueueId(1))).await;
        let again = admin::delete_sq(w.raw.cid(), QueueId(1));
        let refused = w.raw.admin(&again).await.status();
        assert_eq!(refused.kind(), Status::INVALID_QUEUE_IDENTIFIER);
        let orphan = admin::create_sq(w.raw.cid(), at, sq_of(1, 16, 1));
        let refused = w.raw.admin(&orphan).await.status();
        assert_eq!(refused.kind(), Status::COMPLETION_QUEUE_INVALID);
    });
}

/// After a reset no command of the time before it runs, on any thread: doorbells are zero before a queue is
/// made again, and entries that are left in memory are not fetched.
#[test]
fn reset_ends_the_commands_of_all_threads() {
    dealt(3).run(async |mut w: World| {
        ready(&mut w).await;
        let mut pairs = Vec::new();
        for qid in 1..=3 {
            pairs.push(w.raw.create_pair(qid, 64).await);
        }
        let at = w.raw.place(4096, 4096);
        w.medium.close();
        for pair in &mut pairs {
            for _ in 0..3 {
                let write = io::write(w.raw.cid(), NS, Lba(9), 1, false, w.raw.data(at, 512));
                w.raw.submit(&mut pair.sq, &write);
            }
        }
        w.rt.sleep(SILENCE).await;
        w.raw.disable().await;
        w.medium.open();
        w.rt.sleep(SILENCE).await;
        assert_eq!(w.medium.peek(9, 512), vec![0; 512], "no write took effect");
        ready(&mut w).await;
        for qid in 1..=3 {
            let mut pair = w.raw.create_pair(qid, 64).await;
            assert_eq!(moves(&w, &mut pair, 3).await, Status::SUCCESS, "queue {qid}");
        }
        let health: SmartHealth = w.raw.log(lid::SMART_HEALTH).await;
        assert_eq!((health.host_reads.get(), health.host_writes.get()), (3, 3));
    });
}

/// A reset at any time while a queue is being made or deleted: afterwards the queue can be made again, and
/// nothing is left of it on its thread.
#[test]
fn reset_while_queues_are_made_leaves_nothing_of_them() {
    for ns in (0..3000).step_by(20) {
        let setup = Setup { shuffle: Some(ns), ..dealt(2) };
        setup.run(async |mut w: World| {
            ready(&mut w).await;
            let (at, rings) = (w.raw.place(4096, 4096), w.raw.place(4096, 4096));
            let cq = admin::create_cq(w.raw.cid(), at, cq_of(1, 64));
            let sq = admin::create_sq(w.raw.cid(), rings, sq_of(1, 64, 1));
            w.raw.submit_admin(&cq);
            w.raw.submit_admin(&sq);
            w.raw.submit_admin(&admin::delete_sq(w.raw.cid(), QueueId(1)));
            w.rt.sleep(Span::ns(ns)).await;
            w.raw.disable().await;
            ready(&mut w).await;
            let mut pair = w.raw.create_pair(1, 64).await;
            assert_eq!(moves(&w, &mut pair, 3).await, Status::SUCCESS, "a reset after {ns} ns");
        });
    }
}
