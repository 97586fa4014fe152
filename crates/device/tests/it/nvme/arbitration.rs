//! Arbitration: round robin, and weighted round robin with an urgent class (NVMe base 2.0, 3.4.4).

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

/// Three queues of two groups: the only one of its group gets as much as the other two together.
#[test]
fn queue_groups_have_equal_shares() {
    let served = |queue_groups| {
        let options = device::nvme::Options {
            slots: 4,
            fetch_max: 2,
            arbitration_burst: Some(2),
            queue_groups,
            ..Default::default()
        };
        let order = Setup { options, ..Setup::default() }.run(async |mut w: World| {
            w.raw.enable(Settings::default()).await;
            w.raw.ask_for_queues().await;
            let mut cq = w.raw.create_cq(1, 1024).await;
            let mut sqs = Vec::new();
            for qid in [1, 2, 3] {
                sqs.push(w.raw.create_sq(qid, 256, 1).await);
            }
            let begin = w.log.entries().len();
            for sq in &mut sqs {
                (0..240).for_each(|_| w.raw.store(sq, &io::flush(w.raw.cid(), NS)));
            }
            sqs.iter().for_each(|sq| w.raw.ring(sq));
            for _ in 0..720 {
                assert_eq!(w.raw.next(&mut cq).await.status(), Status::SUCCESS);
            }
            let log = &w.log.entries()[begin..];
            let is_fetch =
                |entry: &&runtime::Entry| (entry.component, entry.what) == ("device", "fetched");
            log.iter().filter(is_fetch).map(|entry| entry.a).collect::<Vec<_>>()
        });
        [1, 2, 3].map(|qid| order[..240].iter().filter(|one| **one == qid).count())
    };
    let near = |found: [usize; 3], expected: [usize; 3]| {
        let all = found.iter().zip(expected).all(|(found, expected)| found.abs_diff(expected) <= 8);
        assert!(all, "{found:?}, expected {expected:?}");
    };
    near(served(1), [80, 80, 80]);
    near(served(2), [60, 120, 60]);
}

/// Queues in the order of fetches, where each of two I/O queues and the admin queue has commands before
/// any of the doorbells is seen. `burst`: none is no limit.
fn in_turns(by_weight: bool, burst: Option<u32>, fetch_max: u32, counts: [u16; 3]) -> Vec<u64> {
    let options = device::nvme::Options {
        slots: 256,
        fetchers: 3,
        fetch_max,
        arbitration_burst: burst,
        ..Default::default()
    };
    Setup { options, ..Setup::default() }.run(async |mut w: World| {
        let settings = Settings::default();
        let ams = if by_weight { Cc::AMS_WEIGHTED } else { settings.cc.ams() };
        w.raw.enable(Settings { cc: settings.cc.with_ams(ams), ..settings }).await;
        w.raw.ask_for_queues().await;
        let mut cq = w.raw.create_cq(1, 1024).await;
        let mut sqs = Vec::new();
        for qid in [1, 2] {
            sqs.push(w.raw.create_sq(qid, 256, 1).await);
        }
        let begin = w.log.entries().len();
        let [of_admin, rest @ ..] = counts;
        for (sq, count) in sqs.iter_mut().zip(rest) {
            (0..count).for_each(|_| w.raw.store(sq, &io::flush(w.raw.cid(), NS)));
        }
        let mut admin_sq = w.raw.admin.sq;
        for _ in 0..of_admin {
            let sqe = admin::get_feature(w.raw.cid(), fid::ARBITRATION);
            w.raw.store(&mut admin_sq, &sqe);
        }
        w.raw.admin.sq = admin_sq;
        sqs.iter().for_each(|sq| w.raw.ring(sq));
        w.raw.ring(&admin_sq);
        let mut admin_cq = w.raw.admin.cq;
        for _ in 0..of_admin {
            assert_eq!(w.raw.next(&mut admin_cq).await.status(), Status::SUCCESS);
        }
        w.raw.admin.cq = admin_cq;
        for _ in 0..rest.into_iter().sum::<u16>() {
            assert_eq!(w.raw.next(&mut cq).await.status(), Status::SUCCESS);
        }
        let log = w.log.entries();
        let is_fetch =
            |entry: &&runtime::Entry| (entry.component, entry.what) == ("device", "fetched");
        log[begin..].iter().filter(is_fetch).map(|entry| entry.a).collect()
    })
}

/// Lengths of runs of one queue.
fn runs(order: &[u64]) -> Vec<(u64, usize)> {
    order.chunk_by(|one, other| one == other).map(|run| (run[0], run.len())).collect()
}

/// A burst of 64 is 64 commands of one queue, however few one fetch brings.
#[test]
fn burst_larger_than_a_fetch_takes_several() {
    let burst_of = |burst, fetch_max| runs(&in_turns(false, burst, fetch_max, [0, 200, 200]));
    assert_eq!(burst_of(Some(64), 8)[..6], [(1, 64), (2, 64), (1, 64), (2, 64), (1, 64), (2, 64)]);
    assert_eq!(burst_of(Some(32), 8)[..4], [(1, 32), (2, 32), (1, 32), (2, 32)]);
    assert_eq!(burst_of(Some(8), 8)[..4], [(1, 8), (2, 8), (1, 8), (2, 8)]);
    assert_eq!(burst_of(Some(8), 64)[..4], [(1, 8), (2, 8), (1, 8), (2, 8)]);
    // Without a limit, a turn is what the queue has.
    assert_eq!(burst_of(None, 8), [(1, 200), (2, 200)]);
}

/// The admin queue has its turn as any other, and no more.
#[test]
fn round_robin_serves_admin_queue_in_turn() {
    let order = in_turns(false, Some(4), 8, [20, 60, 60]);
    let before_last = order.iter().rposition(|qid| *qid == 0).expect("admin commands");
    let io = order[..before_last].iter().filter(|qid| **qid > 0).count();
    assert!((16..=48).contains(&io), "{io} I/O commands before the last of 20: {:?}", runs(&order));
    assert!(runs(&order).iter().all(|(_, length)| *length <= 8), "{:?}", runs(&order));
}

/// By weight the admin queue goes before all others, between the fetches of a burst, too; the burst goes on.
#[test]
fn admin_commands_do_not_end_a_burst() {
    let order = in_turns(true, Some(64), 8, [20, 200, 200]);
    let last = order.iter().rposition(|qid| *qid == 0).expect("admin commands");
    assert!(runs(&order[..last]).len() > 3, "the admin queue came in between: {:?}", runs(&order));
    let io: Vec<u64> = order.into_iter().filter(|qid| *qid > 0).collect();
    assert_eq!(runs(&io)[..4].iter().map(|run| run.1).collect::<Vec<_>>(), [64; 4]);
}
