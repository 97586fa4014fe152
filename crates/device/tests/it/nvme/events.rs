//! Asynchronous Event Request: NVMe base 2.0, 5.2.

use wire::nvme::admin;
use wire::nvme::event::AsyncEvent;
use wire::nvme::io;
use wire::nvme::log::{ErrorInformation, lid};
use wire::nvme::registers::{cq_head_doorbell, sq_tail_doorbell};
use wire::nvme::status::Status;
use wire::{CommandId, QueueId};

use crate::raw::nvme::world::{World, on_a_bench};
use crate::raw::nvme::{NS, SILENCE, Settings};

const SQ1: u32 = sq_tail_doorbell(QueueId(1), 0);
const CQ1: u32 = cq_head_doorbell(QueueId(1), 0);

/// Submits an Asynchronous Event Request.
fn request(w: &mut World) -> CommandId {
    let sqe = admin::async_event_request(w.raw.cid());
    w.raw.submit_admin(&sqe);
    sqe.id()
}

/// The next event, or `None` if none comes.
async fn event(w: &mut World) -> Option<(CommandId, AsyncEvent)> {
    let cqe = w.raw.next_admin(SILENCE).await?;
    assert_eq!(cqe.status(), Status::SUCCESS);
    Some((cqe.id(), AsyncEvent::from_bits(cqe.dw0.get())))
}

async fn read_error_log(w: &mut World) {
    w.raw.log::<ErrorInformation>(lid::ERROR).await;
}

/// An invalid CQ head is also reported, once the controller needs the head.
#[test]
fn invalid_cq_head_raises_one_event_until_log_read() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        w.raw.ask_for_queues().await;
        let mut cq = w.raw.create_cq(1, 4).await;
        let mut sq = w.raw.create_sq(1, 64, 1).await;
        for bad in [4, 4, 5, 1 << 16, u32::MAX] {
            let asked = request(&mut w);
            // Three fill the queue; the fourth needs a free entry, and the head is read.
            for _ in 0..4 {
                w.raw.submit(&mut sq, &io::flush(w.raw.cid(), NS));
            }
            w.rt.sleep(SILENCE).await;
            w.raw.set(CQ1, bad);
            let wanted = Some((asked, AsyncEvent::INVALID_DOORBELL_VALUE));
            assert_eq!(event(&mut w).await, wanted, "head {bad}");
            request(&mut w);
            w.raw.set(SQ1, 64);
            w.raw.ring(&sq);
            assert_eq!(event(&mut w).await, None, "masked until the page is read");
            read_error_log(&mut w).await;
            for _ in 0..4 {
                assert_eq!(w.raw.next(&mut cq).await.status(), Status::SUCCESS);
            }
            w.raw.disable().await;
            w.raw.enable(Settings::default()).await;
            w.raw.ask_for_queues().await;
            cq = w.raw.create_cq(1, 4).await;
            sq = w.raw.create_sq(1, 64, 1).await;
        }
    });
}

/// The admin completion queue is full when an event occurs: it is reported once there is an entry.
#[test]
fn aer_waits_for_free_admin_cq_entry() {
    on_a_bench(async |mut w: World| {
        let aqa = Settings::default().aqa.with_acqs(1);
        w.raw.enable(Settings { aqa, ..Settings::default() }).await;
        w.raw.ask_for_queues().await;
        w.raw.create_pair(1, 16).await;
        let asked = request(&mut w);
        w.rt.sleep(SILENCE).await;
        // One completion fills a queue of two entries.
        let sqe = admin::get_feature(w.raw.cid(), 1);
        w.raw.submit_admin(&sqe);
        w.raw.peek(&w.raw.admin.cq).await;
        w.raw.set(SQ1, 1000);
        w.rt.sleep(SILENCE).await;
        assert_eq!(w.raw.next_admin(SILENCE).await.map(|cqe| cqe.id()), Some(sqe.id()));
        let wanted = Some((asked, AsyncEvent::INVALID_DOORBELL_VALUE));
        assert_eq!(event(&mut w).await, wanted);
    });
}

/// A bad doorbell of one queue does not delay commands of another.
#[test]
fn invalid_sq_tail_does_not_block_other_queues() {
    let options = device::nvme::Options { slots: 1, fetchers: 1, ..Default::default() };
    let setup = crate::raw::nvme::world::Setup { options, ..Default::default() };
    setup.run(async |mut w: World| {
        let mut one = w.raw.up().await;
        w.raw.create_pair(2, 16).await;
        w.medium.close();
        w.raw.submit(&mut one.sq, &io::flush(w.raw.cid(), NS));
        w.rt.sleep(SILENCE).await;
        // The only slot is taken: both doorbells wait when it is free again, the bad one first.
        w.raw.set(sq_tail_doorbell(QueueId(2), 0), 4711);
        w.raw.submit(&mut one.sq, &io::flush(w.raw.cid(), NS));
        w.rt.sleep(SILENCE).await;
        w.medium.open();
        // No doorbell is rung from here on.
        for _ in 0..2 {
            let come = w.raw.within(SILENCE, w.raw.peek(&one.cq)).await;
            assert_eq!(come.map(|cqe| cqe.status()), Some(Status::SUCCESS));
            w.raw.take(&mut one.cq);
        }
    });
}
