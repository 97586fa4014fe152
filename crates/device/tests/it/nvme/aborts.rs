//! Abort: NVMe base 2.0, 5.1. Best effort, and always completed.

use wire::nvme::admin;
use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{CommandId, Lba, QueueId};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, SILENCE, pattern};

/// Bit 0 of dword 0: the command was not aborted.
const NOT_ABORTED: u32 = 1;

async fn abort(w: &mut World, sqid: u16, victim: CommandId) -> u32 {
    let sqe = admin::abort(w.raw.cid(), QueueId(sqid), victim);
    w.raw.admin_ok(&sqe).await
}

/// A command on the medium completes as aborted before the abort completes, and changes nothing.
#[test]
fn abort_of_command_on_medium_succeeds() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        w.medium.poke(8, &pattern(1, 4096));
        w.raw.memory.write(at, &pattern(2, 4096)).unwrap();
        let data = w.raw.data(at, 4096);
        for write in [false, true] {
            w.medium.close();
            let make = if write { io::write } else { io::read };
            let sqe = make(w.raw.cid(), NS, Lba(8), 8, false, data);
            w.raw.submit(&mut pair.sq, &sqe);
            w.rt.sleep(SILENCE).await;
            assert_eq!(w.medium.waiting.get(), 1);
            assert_eq!(abort(&mut w, 1, sqe.id()).await & NOT_ABORTED, 0);
            let cqe = w.raw.within(runtime::Span::ps(1), w.raw.peek(&pair.cq)).await;
            assert!(cqe.is_some(), "its completion is there when the abort's is");
            let cqe = w.raw.next(&mut pair.cq).await;
            assert_eq!((cqe.id(), cqe.status()), (sqe.id(), Status::ABORT_REQUESTED));
            w.medium.open();
            assert_eq!(w.raw.next_within(&mut pair.cq, SILENCE).await, None);
        }
        assert_eq!(w.raw.bytes(at, 4096), pattern(2, 4096), "the read wrote nothing");
        assert_eq!(w.medium.peek(8, 4096), pattern(1, 4096), "the write wrote nothing");
    });
}

/// Absent, unfetched, completed and admin commands are not aborted, and the completion reports that.
#[test]
fn abort_of_absent_or_admin_command_reports_not_aborted() {
    let options = device::nvme::Options { slots: 2, fetchers: 1, ..Default::default() };
    Setup { options, ..Setup::default() }.run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        for (sqid, cid) in [(1, 77), (0, 77), (2, 77), (9, 77), (0xffff, 0xffff)] {
            assert_eq!(abort(&mut w, sqid, CommandId(cid)).await, NOT_ABORTED, "{cid} of {sqid}");
        }
        // Two fill the slots, the third waits in the queue.
        w.medium.close();
        let sqes: Vec<_> = (0..3).map(|_| io::flush(w.raw.cid(), NS)).collect();
        sqes.iter().for_each(|sqe| w.raw.submit(&mut pair.sq, sqe));
        w.rt.sleep(SILENCE).await;
        assert_eq!(w.medium.waiting.get(), 2);
        assert_eq!(abort(&mut w, 1, sqes[2].id()).await, NOT_ABORTED, "not fetched");
        w.medium.open();
        for _ in 0..3 {
            assert_eq!(w.raw.next(&mut pair.cq).await.status(), Status::SUCCESS);
        }
        assert_eq!(abort(&mut w, 1, sqes[0].id()).await, NOT_ABORTED, "completed");
        // An outstanding Asynchronous Event Request, and the abort itself.
        let held = admin::async_event_request(w.raw.cid());
        w.raw.submit_admin(&held);
        w.rt.sleep(SILENCE).await;
        assert_eq!(abort(&mut w, 0, held.id()).await, NOT_ABORTED);
        let own = w.raw.cid();
        let sqe = admin::abort(own, QueueId(0), own);
        assert_eq!(w.raw.admin_ok(&sqe).await, NOT_ABORTED);
    });
}

/// A finished command that waits for a free CQ entry keeps its status, and the abort completes.
#[test]
fn abort_of_command_waiting_for_full_cq() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Default::default()).await;
        w.raw.ask_for_queues().await;
        let mut cq = w.raw.create_cq(1, 2).await;
        let mut sq = w.raw.create_sq(1, 16, 1).await;
        let sqes: Vec<_> = (0..3).map(|_| io::flush(w.raw.cid(), NS)).collect();
        sqes.iter().for_each(|sqe| w.raw.submit(&mut sq, sqe));
        w.rt.sleep(SILENCE).await;
        for sqe in &sqes {
            assert_eq!(abort(&mut w, 1, sqe.id()).await, NOT_ABORTED);
        }
        // One on the medium, its completion queue full: it is aborted, and neither waits for the other.
        w.medium.close();
        let last = io::flush(w.raw.cid(), NS);
        w.raw.submit(&mut sq, &last);
        w.rt.sleep(SILENCE).await;
        assert_eq!(abort(&mut w, 1, last.id()).await, 0);
        w.medium.open();
        for _ in 0..3 {
            assert_eq!(w.raw.next(&mut cq).await.status(), Status::SUCCESS);
        }
        let cqe = w.raw.next(&mut cq).await;
        assert_eq!((cqe.id(), cqe.status()), (last.id(), Status::ABORT_REQUESTED));
        assert_eq!(w.raw.next_within(&mut cq, SILENCE).await, None);
    });
}

/// As many aborts as the admin queue holds, of one command and of many: each is completed.
#[test]
fn abort_flood_is_fully_completed() {
    for shuffle in 0..8 {
        let setup = Setup { shuffle: Some(shuffle), ..Setup::default() };
        setup.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let at = w.raw.place(1 << 20, 4096);
            let data = w.raw.data(at, 1 << 20);
            let mut open = 0;
            for round in 0..20_u32 {
                let mut victims = Vec::new();
                for number in 0..3 {
                    let sqe = io::read(w.raw.cid(), NS, Lba(0), 2048 >> number, false, data);
                    w.raw.submit(&mut pair.sq, &sqe);
                    victims.push(sqe.id());
                }
                w.rt.sleep(runtime::Span::ns(u64::from(round) * 300)).await;
                for number in 0..30 {
                    let sqe = admin::abort(w.raw.cid(), QueueId(1), victims[number % 3]);
                    w.raw.submit_admin(&sqe);
                    open += 1;
                }
                while open > 0 {
                    let cqe = w.raw.next_admin(SILENCE).await.expect("an answer");
                    assert_eq!(cqe.status(), Status::SUCCESS);
                    open -= 1;
                }
                for _ in 0..3 {
                    let status = w.raw.next(&mut pair.cq).await.status();
                    assert!([Status::SUCCESS, Status::ABORT_REQUESTED].contains(&status));
                }
            }
            assert_eq!(w.raw.next_within(&mut pair.cq, SILENCE).await, None);
        });
    }
}

/// Two commands with one identifier are a host error; aborting them still ends.
#[test]
fn abort_of_duplicate_cid_ends() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        w.medium.close();
        let sqe = io::flush(w.raw.cid(), NS);
        for _ in 0..2 {
            w.raw.submit(&mut pair.sq, &sqe);
        }
        w.rt.sleep(SILENCE).await;
        for _ in 0..2 {
            assert_eq!(abort(&mut w, 1, sqe.id()).await, 0);
            assert_eq!(w.raw.next(&mut pair.cq).await.status(), Status::ABORT_REQUESTED);
        }
        assert_eq!(abort(&mut w, 1, sqe.id()).await, NOT_ABORTED);
        w.medium.open();
    });
}
