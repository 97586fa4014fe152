//! Fused operations: NVMe base 2.0, 3.4.2.

use device::nvme::Options;
use wire::nvme::entry::Sqe;
use wire::nvme::status::Status;
use wire::nvme::{admin, io};
use wire::{BusAddr, CommandId, Lba, Nsid, QueueId};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Pair, SILENCE, pattern};

const MISSING: Status = Status::ABORTED_MISSING_FUSED.with_dnr();
const FAILED: Status = Status::ABORTED_FAILED_FUSED;
const INVALID: Status = Status::INVALID_FIELD.with_dnr();

fn half(sqe: Sqe, fuse: u8) -> Sqe {
    Sqe { flags: sqe.flags.with_fuse(fuse), ..sqe }
}

/// A fused pair on one block: Compare with one buffer, Write of another.
fn pair_of(w: &World, lba: u64, compared: BusAddr, written: BusAddr) -> [Sqe; 2] {
    let compare = io::compare(w.raw.cid(), NS, Lba(lba), 1, w.raw.data(compared, 512));
    let write = io::write(w.raw.cid(), NS, Lba(lba), 1, false, w.raw.data(written, 512));
    [half(compare, 1), half(write, 2)]
}

/// Submits these with one doorbell; returns the status of each, in their order.
async fn run(w: &World, pair: &mut Pair, sqes: &[Sqe]) -> Vec<Status> {
    sqes.iter().for_each(|sqe| w.raw.store(&mut pair.sq, sqe));
    w.raw.ring(&pair.sq);
    let mut ended = Vec::new();
    for _ in sqes {
        let cqe = w.raw.next(&mut pair.cq).await;
        ended.push((cqe.id(), cqe.status()));
    }
    let status_of = |cid: CommandId| ended.iter().find(|(id, _)| *id == cid).expect("it ended").1;
    sqes.iter().map(|sqe| status_of(sqe.id())).collect()
}

/// Both or neither: small controllers and large ones, with the pair anywhere in the queue.
#[test]
fn fused_write_is_done_only_if_compare_succeeds() {
    for (slots, fetch_max, burst) in [(1, 1, None), (4, 16, Some(1)), (256, 16, None)] {
        let options = Options { slots, fetch_max, arbitration_burst: burst, ..Options::default() };
        Setup { options, ..Setup::default() }.run(async |mut w: World| {
            w.raw.up().await;
            // An odd number of entries: pairs span the queue's end in every second pass.
            let mut pair = w.raw.create_pair(2, 7).await;
            let (old, new) = (w.raw.place(4096, 4096), w.raw.place(4096, 4096));
            for turn in 0..20 {
                w.medium.poke(5, &pattern(turn, 512));
                let before = pattern(turn + u64::from(turn % 3 == 1), 512);
                w.raw.memory.write(old, &before).unwrap();
                w.raw.memory.write(new, &pattern(100 + turn, 512)).unwrap();
                let sqes = pair_of(&w, 5, old, new);
                let ended = run(&w, &mut pair, &sqes).await;
                let differs = turn % 3 == 1;
                let wanted = match differs {
                    true => [Status::COMPARE_FAILURE.with_dnr(), FAILED],
                    false => [Status::SUCCESS; 2],
                };
                assert_eq!(ended, wanted, "turn {turn}");
                let held = if differs { pattern(turn, 512) } else { pattern(100 + turn, 512) };
                assert_eq!(w.medium.peek(5, 512), held, "turn {turn}");
            }
        });
    }
}

/// A half that is alone, or next to a command that is not its other half.
#[test]
fn fused_half_without_partner_is_aborted() {
    for (slots, fetch_max) in [(1, 1), (1, 16), (8, 3), (256, 16)] {
        let options = Options { slots, fetch_max, ..Options::default() };
        Setup { options, ..Setup::default() }.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let at = w.raw.place(4096, 4096);
            let held = w.medium.peek(5, 512);
            w.raw.memory.write(at, &held).unwrap();
            let ok = Status::SUCCESS;
            // F: a first, S: a second, N: neither.
            for (what, wanted) in [
                ("F", vec![MISSING]),
                ("S", vec![MISSING]),
                ("FN", vec![MISSING, ok]),
                ("NS", vec![ok, MISSING]),
                ("FF", vec![MISSING; 2]),
                ("FFFFF", vec![MISSING; 5]),
                ("FFS", vec![MISSING, ok, ok]),
                ("FSS", vec![ok, ok, MISSING]),
                ("SF", vec![MISSING; 2]),
                ("FNS", vec![MISSING, ok, MISSING]),
                ("FSFSNFS", vec![ok; 7]),
            ] {
                let make = |half_of: char| {
                    let [first, second] = pair_of(&w, 5, at, at);
                    match half_of {
                        'F' => first,
                        'S' => second,
                        _ => io::flush(w.raw.cid(), NS),
                    }
                };
                let sqes: Vec<Sqe> = what.chars().map(make).collect();
                assert_eq!(run(&w, &mut pair, &sqes).await, wanted, "{what}, {slots}, {fetch_max}");
            }
        });
    }
}

/// Invalid pairs: other commands, other blocks, more than one block.
#[test]
fn fused_pair_rejects_mismatched_halves() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(64 << 10, 4096);
        let data = w.raw.data(at, 512);
        let compare = |lba, blocks| io::compare(w.raw.cid(), NS, Lba(lba), blocks, data);
        let write = |lba, blocks| io::write(w.raw.cid(), NS, Lba(lba), blocks, false, data);
        let other = |sqe: Sqe| Sqe { nsid: 2.into(), ..sqe };
        let past = Status::LBA_OUT_OF_RANGE.with_dnr();
        let cases = [
            (compare(5, 1), write(6, 1), [INVALID; 2]),
            (compare(5, 1), write(5, 2), [INVALID; 2]),
            (compare(5, 1), other(write(5, 1)), [INVALID; 2]),
            (write(5, 1), compare(5, 1), [INVALID; 2]),
            (compare(5, 1), compare(5, 1), [INVALID; 2]),
            (other(compare(5, 1)), other(write(5, 1)), [INVALID, FAILED]),
            (compare(1 << 20, 1), write(1 << 20, 1), [past, FAILED]),
            (compare(5, 2), write(5, 2), [Status::ATOMIC_WRITE_UNIT_EXCEEDED.with_dnr(), FAILED]),
        ];
        for (number, (first, second, wanted)) in cases.into_iter().enumerate() {
            let ended = run(&w, &mut pair, &[half(first, 1), half(second, 2)]).await;
            assert_eq!(ended, wanted, "case {number}");
        }
        assert!(w.medium.written.borrow().is_empty());
    });
}

/// Of many concurrent increments none is lost: each successful compare is followed by its write.
#[test]
fn fused_compare_and_write_is_atomic() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        w.medium.span.set(runtime::Span::us(5));
        let at = w.raw.place(64 * 4096, 4096);
        let page = |number: u64| BusAddr(at.0 + 4096 * number);
        let block = |number: u8| vec![number; 512];
        let mut held = 0;
        for round in 0..12 {
            // Six commands try to increment the current value, and six plain writes follow them.
            let (mut tried, mut plain) = (Vec::new(), Vec::new());
            for number in 0..6 {
                w.raw.memory.write(page(2 * number), &block(held)).unwrap();
                w.raw.memory.write(page(2 * number + 1), &block(held + 1)).unwrap();
                let sqes = pair_of(&w, 9, page(2 * number), page(2 * number + 1));
                sqes.iter().for_each(|sqe| w.raw.store(&mut pair.sq, sqe));
                tried.push(sqes[1].id());
                w.raw.memory.write(page(20 + number), &block(200 + round)).unwrap();
                let data = w.raw.data(page(20 + number), 512);
                let sqe = io::write(w.raw.cid(), NS, Lba(9), 1, false, data);
                if round % 2 == 1 {
                    w.raw.store(&mut pair.sq, &sqe);
                    plain.push(sqe.id());
                }
            }
            w.raw.ring(&pair.sq);
            let mut counted = 0;
            for _ in 0..2 * tried.len() + plain.len() {
                let cqe = w.raw.next(&mut pair.cq).await;
                counted += u32::from(tried.contains(&cqe.id()) && cqe.status().is_ok());
            }
            let found = w.medium.peek(9, 512)[0];
            if plain.is_empty() {
                assert_eq!((counted, found), (1, held + 1), "one alone can count up");
                held = found;
            } else {
                assert!(counted <= 1 && [held + 1, 200 + round].contains(&found), "{found}");
                w.medium.poke(9, &block(held));
            }
        }
    });
}

/// An abort of either half ends both.
#[test]
fn abort_of_fused_half_ends_both() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        for second in [false, true] {
            w.medium.close();
            let sqes = pair_of(&w, 5, at, at);
            sqes.iter().for_each(|sqe| w.raw.store(&mut pair.sq, sqe));
            w.raw.ring(&pair.sq);
            w.rt.sleep(SILENCE).await;
            let victim = sqes[usize::from(second)].id();
            let abort = admin::abort(w.raw.cid(), QueueId(1), victim);
            assert_eq!(w.raw.admin_ok(&abort).await & 1, 0, "it is aborted");
            w.medium.open();
            for sqe in sqes {
                let cqe = w.raw.next(&mut pair.cq).await;
                let wanted = if sqe.id() == victim { Status::ABORT_REQUESTED } else { FAILED };
                assert_eq!((cqe.id(), cqe.status()), (sqe.id(), wanted));
            }
        }
        assert!(w.medium.written.borrow().is_empty());
        assert_eq!(w.raw.next_within(&mut pair.cq, SILENCE).await, None);
    });
}

/// A first half whose second is never announced, and deletion of its queue.
#[test]
fn delete_sq_with_pending_fused_half() {
    let options = Options { fetch_max: 1, ..Options::default() };
    Setup { options, ..Setup::default() }.run(async |mut w: World| {
        w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let mut pair = w.raw.create_pair(2, 16).await;
        for _ in 0..3 {
            let [first, _] = pair_of(&w, 5, at, at);
            w.raw.store(&mut pair.sq, &first);
            // The tail announces two entries, and is taken back when the first has been fetched.
            w.raw.set(wire::nvme::registers::sq_tail_doorbell(QueueId(2), 0), pair.sq.tail + 1);
            w.rt.sleep(runtime::Span::ns(900)).await;
            let sqe = admin::delete_sq(w.raw.cid(), QueueId(2));
            w.raw.admin_ok(&sqe).await;
            let sq = w.raw.create_sq(2, 16, 2).await;
            pair.sq = sq;
        }
        while w.raw.next_within(&mut pair.cq, SILENCE).await.is_some() {}
        let sqes = pair_of(&w, 5, at, at);
        assert_eq!(run(&w, &mut pair, &sqes).await, [Status::SUCCESS; 2]);
        let sqe = io::flush(w.raw.cid(), Nsid(1));
        assert_eq!(run(&w, &mut pair, &[sqe]).await, [Status::SUCCESS]);
    });
}
