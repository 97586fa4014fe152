//! Weighted round robin with an urgent class: NVMe base 2.0, 3.4.4.2.

use std::collections::BTreeMap;

use wire::nvme::admin::{self, Priority};
use wire::nvme::features::{Arbitration, fid};
use wire::nvme::io;
use wire::nvme::registers::Cc;
use wire::nvme::status::Status;

use crate::raw::nvme::world::{Setup, World};
use crate::raw::nvme::{NS, Settings, sq_of};

/// Commands submitted to each queue.
const EACH: u32 = 900;

/// Runs queues of each class with these weights on a controller with few slots, so that commands wait for
/// slots. Returns the queue numbers in the order of fetches; a queue's class is its number modulo 4.
fn fetched(
    queues: [u16; 4],
    weights: [u32; 3],
    burst: u32,
    slots: u16,
    most: Option<u32>,
) -> Vec<u64> {
    let options = device::nvme::Options {
        slots,
        fetchers: 2,
        fetch_max: 8,
        urgent_burst_max: most,
        io_queues: 64,
        ..Default::default()
    };
    Setup { options, ..Setup::default() }.run(async |mut w: World| {
        let settings = Settings::default();
        w.raw.enable(Settings { cc: settings.cc.with_ams(Cc::AMS_WEIGHTED), ..settings }).await;
        w.raw.ask_for_queues().await;
        let [high, medium, low] = weights;
        let value = Arbitration::weighted(high, medium, low).with_burst(Some(burst)).into_bits();
        let sqe = admin::set_feature(w.raw.cid(), fid::ARBITRATION, value);
        w.raw.admin_ok(&sqe).await;
        let mut cq = w.raw.create_cq(1, 4096).await;
        let mut sqs = Vec::new();
        let classes = [Priority::Urgent, Priority::High, Priority::Medium, Priority::Low];
        for (class, (priority, count)) in (0..).zip(classes.into_iter().zip(queues)) {
            for number in 0..count {
                let qid = 4 * (number + 1) + class;
                let at = w.raw.place(u64::from(EACH + 16) * 64, 4096);
                let create = admin::CreateSq { priority, ..sq_of(qid, EACH + 16, 1) };
                let sqe = admin::create_sq(w.raw.cid(), at, create);
                w.raw.admin_ok(&sqe).await;
                sqs.push(crate::raw::nvme::Sq::new(wire::QueueId(qid), at, EACH + 16));
            }
        }
        for sq in &mut sqs {
            (0..EACH).for_each(|_| w.raw.store(sq, &io::flush(w.raw.cid(), NS)));
        }
        sqs.iter().for_each(|sq| w.raw.ring(sq));
        for _ in 0..EACH * sqs.len() as u32 {
            assert_eq!(w.raw.next(&mut cq).await.status(), Status::SUCCESS);
        }
        let log = w.log.entries();
        let io = |entry: &&runtime::Entry| (entry.component, entry.what) == ("device", "fetched");
        log.iter().filter(io).map(|entry| entry.a).filter(|qid| *qid > 0).collect()
    })
}

/// Commands fetched per class, counted while all of `classes` had some left.
fn shares(order: &[u64], classes: &[u64]) -> BTreeMap<u64, u32> {
    let all = |class: u64| order.iter().filter(|qid| **qid % 4 == class).count();
    let mut got: BTreeMap<u64, u32> = classes.iter().map(|class| (*class, 0)).collect();
    for qid in order {
        if let Some(count) = got.get_mut(&(qid % 4)) {
            *count += 1;
            if *count as usize == all(qid % 4) {
                break;
            }
        }
    }
    got
}

/// Shares follow the weights within 5 %, with any burst and any number of queues in a class.
#[test]
fn wrr_shares_follow_weights() {
    for (queues, weights, burst, slots) in [
        ([0, 1, 1, 1], [4, 2, 1], 1, 4),
        ([0, 1, 1, 1], [4, 2, 1], 8, 8),
        ([0, 3, 1, 2], [4, 2, 1], 4, 5),
        ([0, 1, 2, 4], [1, 1, 1], 2, 8),
        ([0, 2, 1, 1], [7, 5, 3], 1, 2),
    ] {
        let order = fetched(queues, weights, burst, slots, None);
        let got = shares(&order, &[1, 2, 3]);
        let (sum, all) = (got.values().sum::<u32>(), weights.iter().sum::<u32>());
        for (class, weight) in (1..).zip(weights) {
            let (share, due) =
                (f64::from(got[&class]) / f64::from(sum), f64::from(weight) / f64::from(all));
            assert!((share / due - 1.0).abs() <= 0.05, "{queues:?} {weights:?} {burst}: {got:?}");
        }
        // Within a class, queues take turns.
        for class in 1..4_u64 {
            let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
            for qid in order.iter().filter(|qid| **qid % 4 == class) {
                *counts.entry(*qid).or_default() += 1;
                let (low, high) = (counts.values().min().unwrap(), counts.values().max().unwrap());
                let begun = counts.len() == usize::from(queues[class as usize]);
                assert!(!begun || high - low <= 3 * burst, "class {class}: {counts:?}");
            }
        }
    }
}

/// As specified, the urgent class starves the others; with this controller's own bound it does not.
#[test]
fn wrr_urgent_class_first_and_bounded_by_urgent_burst() {
    let urgent_before = |order: &[u64]| {
        let last = order.iter().rposition(|qid| qid % 4 == 0).expect("an urgent one");
        order[..last].iter().filter(|qid| **qid % 4 != 0).count()
    };
    let queues = [1, 1, 1, 1];
    // The first doorbells ring before the urgent one is seen, and two fetches may be under way.
    let starving = urgent_before(&fetched(queues, [4, 2, 1], 4, 4, None));
    assert!(starving <= 16, "{starving} went before the last urgent one");
    let order = fetched(queues, [4, 2, 1], 4, 4, Some(16));
    let bounded = urgent_before(&order);
    assert!((10..=80).contains(&bounded), "{bounded} went before the last urgent one");
    let mut run = 0;
    for qid in &order[..order.iter().rposition(|qid| qid % 4 == 0).unwrap()] {
        run = if qid % 4 == 0 { run + 1 } else { 0 };
        assert!(run <= 16 + 8, "{run} urgent commands in a row, while others waited");
    }
}

/// Without weighted arbitration QPRIO has no effect.
#[test]
fn round_robin_ignores_queue_priority() {
    Setup::default().run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        w.raw.ask_for_queues().await;
        let mut cq = w.raw.create_cq(1, 64).await;
        let mut sqs = Vec::new();
        for (qid, priority) in [(1, Priority::Low), (2, Priority::Urgent)] {
            let at = w.raw.place(64 * 64, 4096);
            let create = admin::CreateSq { priority, ..sq_of(qid, 64, 1) };
            let sqe = admin::create_sq(w.raw.cid(), at, create);
            w.raw.admin_ok(&sqe).await;
            sqs.push(crate::raw::nvme::Sq::new(wire::QueueId(qid), at, 64));
        }
        for sq in &mut sqs {
            (0..20).for_each(|_| w.raw.store(sq, &io::flush(w.raw.cid(), NS)));
            w.raw.ring(sq);
        }
        let mut first = Vec::new();
        for _ in 0..40 {
            let cqe = w.raw.next(&mut cq).await;
            first.push(cqe.sq_id.get());
        }
        assert!(first[..20].contains(&1), "the low queue has its turn: {first:?}");
    });
}
