//! Completion queues, arbitration and interrupts: NVMe base 2.0, 3.3.1, 3.4.4; NVMe over PCIe 1.0, 3.5.

use std::collections::BTreeMap;

use runtime::Span;
use wire::nvme::admin::{self, CreateCq};
use wire::nvme::features::{Arbitration, InterruptCoalescing, InterruptVectorConfig, fid};
use wire::nvme::io;
use wire::nvme::status::Status;
use wire::{Lba, QueueId};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{Cq, NS, SILENCE, Settings, cq_of, pattern};

async fn ready(w: &mut World) {
    w.raw.enable(Settings::default()).await;
    w.raw.ask_for_queues().await;
}

/// 3.4.4.1: round robin. While all queues have work, none is more than a burst ahead of another.
#[test]
fn round_robin_is_fair_with_any_burst() {
    for (ab, fetchers) in [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (7, 1), (0, 4), (2, 4), (5, 4)] {
        let options =
            device::nvme::Options { slots: 32, fetchers, fetch_max: 8, ..Default::default() };
        let setup = Setup { options, ..Setup::default() };
        setup.run(async |mut w: World| {
            ready(&mut w).await;
            let value = Arbitration::new().with_ab(ab).into_bits();
            let sqe = admin::set_feature(w.raw.cid(), fid::ARBITRATION, value);
            w.raw.admin_ok(&sqe).await;
            let mut cq = w.raw.create_cq(1, 1024).await;
            let mut sqs = Vec::new();
            for qid in 1..=4 {
                sqs.push(w.raw.create_sq(qid, 128, 1).await);
            }
            for sq in &mut sqs {
                (0..100).for_each(|_| w.raw.store(sq, &io::flush(w.raw.cid(), NS)));
            }
            sqs.iter().for_each(|sq| w.raw.ring(sq));
            for _ in 0..400 {
                assert_eq!(w.raw.next(&mut cq).await.status(), Status::SUCCESS);
            }
            let fetched = w.log.entries();
            let fetched = fetched.iter().filter(|e| (e.component, e.what) == ("device", "fetched"));
            let mut counts: BTreeMap<u64, u32> = (1..=4).map(|qid| (qid, 0)).collect();
            // Without a limit, a turn is what the queue has.
            let burst = Arbitration::from_bits(value).burst().unwrap_or(100);
            let mut bursts = Vec::new();
            for entry in fetched.filter(|e| e.a > 0) {
                *counts.get_mut(&entry.a).expect("one of the four") += 1;
                match bursts.last_mut() {
                    Some((qid, length)) if *qid == entry.a => *length += 1,
                    _ => bursts.push((entry.a, 1)),
                }
                let (low, high) = (counts.values().min().unwrap(), counts.values().max().unwrap());
                // Each fetcher may be one burst ahead; the first queue's doorbell came first.
                let ahead = burst * (u32::from(fetchers) + 1);
                assert!(*high == 100 || high - low <= ahead, "burst {burst}: {counts:?}");
            }
            assert!(counts.values().all(|count| *count == 100), "{counts:?}");
            if fetchers == 1 {
                let longest = bursts.iter().map(|(_, length)| *length).max().unwrap();
                assert_eq!(longest, burst, "as many as are allowed, and no more");
            }
        });
    }
}

/// More commands in more queues than there are slots: a fetcher that waited while others took the slots uses
/// the current queue state, not the state before its wait.
#[test]
fn flood_of_16_queues_with_few_slots_completes() {
    for (slots, fetchers) in [(1, 1), (1, 4), (5, 4), (20, 4), (37, 3)] {
        let options = device::nvme::Options { slots, fetchers, ..Default::default() };
        let setup = Setup { options, shuffle: Some(u64::from(slots)), ..Setup::default() };
        setup.run(async |mut w: World| {
            ready(&mut w).await;
            let mut cq = w.raw.create_cq(1, 4096).await;
            let mut sqs = Vec::new();
            for qid in 1..=16 {
                sqs.push(w.raw.create_sq(qid, 64, 1).await);
            }
            let mut rng = runtime::Rng::new(7);
            for _ in 0..40 {
                let mut open = 0;
                for sq in &mut sqs {
                    let more = rng.below(40) * rng.below(2);
                    (0..more).for_each(|_| w.raw.store(sq, &io::flush(w.raw.cid(), NS)));
                    w.raw.ring(sq);
                    open += more;
                    w.rt.sleep(Span::ns(rng.below(800) * rng.below(2))).await;
                }
                for _ in 0..open {
                    assert_eq!(w.raw.next(&mut cq).await.status(), Status::SUCCESS);
                }
            }
        });
    }
}

/// NVMe over PCIe 1.0, 3.5: the vector of the queue, here once per completion; none without IEN.
#[test]
fn cq_signals_own_msix_vector_per_completion() {
    on_a_bench(async |mut w: World| {
        ready(&mut w).await;
        let mut pairs = Vec::new();
        for (qid, vector, irq_enabled) in [(1, 5, true), (2, 63, true), (3, 7, false), (4, 5, true)]
        {
            let at = w.raw.place(1024, 4096);
            let create = CreateCq { vector, irq_enabled, ..cq_of(qid, 64) };
            w.raw.admin_ok(&admin::create_cq(w.raw.cid(), at, create)).await;
            let sq = w.raw.create_sq(qid, 64, qid).await;
            pairs.push((vector, crate::raw::nvme::Pair { sq, cq: Cq::new(QueueId(qid), at, 64) }));
        }
        let mut wanted = BTreeMap::new();
        for (number, (vector, pair)) in pairs.iter_mut().enumerate() {
            for _ in 0..=number {
                let sqe = io::flush(w.raw.cid(), NS);
                assert_eq!(w.raw.run(pair, &sqe).await.status(), Status::SUCCESS);
                *wanted.entry(*vector).or_insert(0) += usize::from(*vector != 7);
            }
        }
        w.rt.sleep(SILENCE).await;
        let admin = w.logged("device", "completed", 0);
        assert_eq!(w.interrupts(0), admin, "the admin queue's is vector 0");
        for vector in 1..64 {
            let wanted = wanted.get(&vector).copied().unwrap_or(0);
            assert_eq!(w.interrupts(vector), wanted, "vector {vector}");
        }
        assert_eq!(wanted, BTreeMap::from([(5, 1 + 4), (63, 2), (7, 0)]));
    });
}

/// 5.27.1.6 and 5.27.1.7: up to THR completions share an interrupt, none waits longer than TIME, a failed
/// command is signalled at once, and a vector may be excluded.
#[test]
fn interrupt_coalescing_by_threshold_and_time() {
    on_a_bench(async |mut w: World| {
        ready(&mut w).await;
        let mut pairs = Vec::new();
        for qid in [1, 2] {
            let at = w.raw.place(1024, 4096);
            let create = CreateCq { vector: qid, irq_enabled: true, ..cq_of(qid, 64) };
            w.raw.admin_ok(&admin::create_cq(w.raw.cid(), at, create)).await;
            let sq = w.raw.create_sq(qid, 64, qid).await;
            pairs.push(crate::raw::nvme::Pair { sq, cq: Cq::new(QueueId(qid), at, 64) });
        }
        let limits = InterruptCoalescing::new().with_thr(3).with_time(2).into_bits();
        let sqe = admin::set_feature(w.raw.cid(), fid::INTERRUPT_COALESCING, limits);
        w.raw.admin_ok(&sqe).await;
        let alone = InterruptVectorConfig::new().with_iv(2).with_cd(true).into_bits();
        let sqe = admin::set_feature(w.raw.cid(), fid::INTERRUPT_VECTOR_CONFIG, alone);
        w.raw.admin_ok(&sqe).await;
        w.rt.sleep(Span::us(5)).await;
        let admin = w.interrupts(0);
        let [first, second] = &mut pairs[..] else { unreachable!() };
        for _ in 0..10 {
            for pair in [&mut *first, &mut *second] {
                let sqe = io::flush(w.raw.cid(), NS);
                assert_eq!(w.raw.run(pair, &sqe).await.status(), Status::SUCCESS);
            }
        }
        w.rt.sleep(Span::us(5)).await;
        assert_eq!((w.interrupts(1), w.interrupts(2)), (2, 10), "two of ten wait");
        w.rt.sleep(Span::us(150)).await;
        assert_eq!(w.interrupts(1), 2, "not yet 200 us");
        w.rt.sleep(Span::us(60)).await;
        assert_eq!(w.interrupts(1), 3);
        w.rt.sleep(Span::us(500)).await;
        assert_eq!(w.interrupts(1), 3, "nothing is left");
        // One completion waits; a failed command signals both.
        let sqe = io::flush(w.raw.cid(), NS);
        assert_eq!(w.raw.run(first, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(w.interrupts(1), 3);
        let sqe = io::flush(w.raw.cid(), wire::Nsid(7));
        assert_ne!(w.raw.run(first, &sqe).await.status(), Status::SUCCESS);
        w.rt.sleep(Span::us(500)).await;
        assert_eq!(w.interrupts(1), 4);
        // Coalescing off: pending completions are signalled, and from then on each.
        let sqe = admin::set_feature(w.raw.cid(), fid::INTERRUPT_COALESCING, 0);
        w.raw.admin_ok(&sqe).await;
        w.rt.sleep(Span::us(5)).await;
        let before = w.interrupts(1);
        let sqe = io::flush(w.raw.cid(), NS);
        assert_eq!(w.raw.run(first, &sqe).await.status(), Status::SUCCESS);
        w.rt.sleep(Span::us(5)).await;
        assert_eq!(w.interrupts(1), before + 1);
        assert_eq!(w.interrupts(0), admin + 1, "the admin queue's never wait");
    });
}

/// 3.3.3.2: once the phase shows a new entry, its data have arrived.
#[test]
fn read_data_arrive_before_completion() {
    for relaxed_ordering in [false, true] {
        let options = device::nvme::Options { relaxed_ordering, ..Default::default() };
        Setup { options, ..Setup::default() }.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            w.medium.poke(0, &pattern(4, 256 << 10));
            let at = w.raw.place(256 << 10, 4096);
            for (lba, blocks) in [(0, 1), (1, 8), (3, 128), (0, 512), (17, 300)] {
                w.raw.memory.zero(at, 256 << 10).unwrap();
                let bytes = u64::from(blocks) * 512;
                let sqe = io::read(w.raw.cid(), NS, Lba(lba), blocks, false, w.raw.data(at, bytes));
                assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
                assert_eq!(w.raw.bytes(at, bytes as usize), w.medium.peek(lba, bytes as usize));
            }
        });
    }
}
