//! Commands that a live controller executes where it fetches them: the same results and counts as through
//! slots, also if the completion queue is full or the command fails.

use std::rc::Rc;

use bus::live::{LiveHost, Shared};
use device::nvme::{Controller, Options};
use media::contents::{Backing, Contents, Keep, Spec};
use media::{Banked, Pace};
use runtime::{Log, Rt, STD_CLOCK};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::io;
use wire::nvme::log::{ErrorInformation, SmartHealth, lid};
use wire::nvme::registers::{CC, Cc, Csts};
use wire::nvme::status::Status;
use wire::{BusAddr, CommandId, Lba, QueueId};

use crate::raw::nvme::{Cq, NS, Pair, Raw, SILENCE, Settings, Sq, pattern};

const BLOCK: usize = 512;
const CAPACITY: u64 = 1 << 20;
const COMMANDS: u64 = 8;

/// Runs a test with host and controller in one thread. The pair's completion queue has `entries` entries.
fn with_pair(entries: u32, test: impl AsyncFnOnce(&mut Raw<LiveHost>, Pair)) {
    with_options(Options::default(), async |raw| {
        let cq = raw.create_cq(1, entries).await;
        let sq = raw.create_sq(1, 32, 1).await;
        test(raw, Pair { sq, cq }).await;
    });
}

/// As [`with_pair`], without queues for I/O.
fn with_options(options: Options, test: impl AsyncFnOnce(&mut Raw<LiveHost>)) {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let shared = Shared::between_threads(1 << 20, BusAddr(1 << 32), options.register_bytes())
        .expect("memory");
    let backing = Backing::Memory;
    let spec = Spec { capacity_bytes: CAPACITY, block_bytes: 512, keep: Keep::Everything, backing };
    let contents = Contents::new(spec).expect("contents");
    let medium = Rc::new(Banked::new(&rt, contents, Pace::Immediate));
    let controller = Controller::start(shared.device(&rt), medium, options);
    let mut raw = Raw::new(shared.host(&rt));
    rt.block_on(async {
        raw.enable(Settings::default()).await;
        raw.ask_for_queues().await;
        test(&mut raw).await;
    });
    controller.stop();
}

/// Reads the completions of `commands` commands as they come, each after those that the queue has room for.
async fn completions(raw: &Raw<LiveHost>, cq: &mut Cq, commands: u64) -> Vec<(CommandId, Status)> {
    let mut found = Vec::new();
    for _ in 0..commands {
        let cqe = raw.next(cq).await;
        found.push((CommandId(cqe.cid.get()), cqe.status()));
    }
    found
}

/// Stores eight one-block commands, rings once, and returns their identifiers.
fn submit(
    raw: &Raw<LiveHost>,
    sq: &mut Sq,
    build: impl Fn(CommandId, Lba, DataPointer) -> Sqe,
    at: BusAddr,
) -> Vec<CommandId> {
    let cids: Vec<_> = (0..COMMANDS)
        .map(|n| {
            let cid = raw.cid();
            let data = raw.data(BusAddr(at.0 + n * BLOCK as u64), BLOCK as u64);
            raw.store(sq, &build(cid, Lba(n), data));
            cid
        })
        .collect();
    raw.ring(sq);
    cids
}

#[test]
fn full_completion_queue_delays_commands_and_repeats_none() {
    // Three entries are usable: of a burst of eight, five find no room.
    with_pair(4, async |raw, Pair { mut sq, mut cq }| {
        let data = pattern(1, COMMANDS as usize * BLOCK);
        let (from, to) = (raw.place(data.len() as u64, 4096), raw.place(data.len() as u64, 4096));
        raw.memory.write(from, &data).expect("inside");
        let write = |cid, lba, data| io::write(cid, NS, lba, 1, false, data);
        let read = |cid, lba, data| io::read(cid, NS, lba, 1, false, data);
        for (build, at) in [(&write as &dyn Fn(_, _, _) -> _, from), (&read, to)] {
            let cids = submit(raw, &mut sq, build, at);
            let done = completions(raw, &mut cq, COMMANDS).await;
            let all: Vec<_> = cids.into_iter().map(|cid| (cid, Status::SUCCESS)).collect();
            assert_eq!(done, all, "each once, in order");
        }
        assert_eq!(raw.bytes(to, data.len()), data);
        let health: SmartHealth = raw.log(lid::SMART_HEALTH).await;
        let counts = (health.host_reads.get(), health.host_writes.get());
        assert_eq!(counts, (u128::from(COMMANDS), u128::from(COMMANDS)));
    });
}

#[test]
fn failed_commands_are_reported_and_logged_once() {
    with_pair(32, async |raw, Pair { mut sq, mut cq }| {
        let (_, inside) = raw.page();
        let outside = raw.data(BusAddr(0x10_0000), BLOCK as u64);
        let last = Lba(CAPACITY / BLOCK as u64);
        let cases = [
            (last, inside, Status::LBA_OUT_OF_RANGE),
            (Lba(0), outside, Status::DATA_TRANSFER_ERROR),
        ];
        let mut logged = 0;
        for (lba, data, status) in cases {
            for write in [false, true] {
                let cid = raw.cid();
                let sqe = match write {
                    true => io::write(cid, NS, lba, 1, false, data),
                    false => io::read(cid, NS, lba, 1, false, data),
                };
                let mut pair = Pair { sq, cq };
                let found = raw.run(&mut pair, &sqe).await;
                (sq, cq) = (pair.sq, pair.cq);
                assert_eq!(found.status().kind(), status, "{sqe:?}");
                logged += 1;
                let newest: ErrorInformation = raw.log(lid::ERROR).await;
                assert_eq!((newest.error_count.get(), newest.cid.get()), (logged, cid.0));
                assert_eq!(newest.sqid.get(), QueueId(1).0);
            }
        }
        let health: SmartHealth = raw.log(lid::SMART_HEALTH).await;
        let counts = (health.host_reads.get(), health.host_writes.get());
        assert_eq!((counts, health.media_errors.get()), ((0, 0), 0));
    });
}

/// Commands of a burst are executed one after the other where they are fetched, so that another queue waits
/// for all of them, and for no more: not for the next burst of a queue that stays full.
#[test]
fn lone_command_waits_for_one_burst_of_a_full_queue() {
    for burst in [1, 8, 16] {
        let options = Options {
            slots: 256,
            fetch_max: burst,
            arbitration_burst: Some(burst),
            ..Options::default()
        };
        with_options(options, async |raw| {
            let mut cq = raw.create_cq(1, 256).await;
            let (mut full, mut lone) =
                (raw.create_sq(1, 256, 1).await, raw.create_sq(2, 32, 1).await);
            let (_, data) = raw.page();
            let read = |raw: &Raw<LiveHost>, sq: &mut Sq| {
                raw.store(sq, &io::read(raw.cid(), NS, Lba(1), 1, false, data));
            };
            // The lone queue's turn is over, so that the full one's comes first.
            for sq in [&mut full, &mut lone] {
                read(raw, sq);
                raw.ring(sq);
                raw.next(&mut cq).await;
            }
            (0..200).for_each(|_| read(raw, &mut full));
            (0..2).for_each(|_| read(raw, &mut lone));
            raw.ring(&full);
            raw.ring(&lone);
            let mut order = Vec::new();
            for _ in 0..202 {
                order.push(raw.next(&mut cq).await.sq_id.get());
            }
            let first = order.iter().position(|qid| *qid == 2).expect("it was served");
            // The lone queue may be ahead by the command that it had before.
            assert!((1..=burst as usize + 1).contains(&first), "{burst}: {first}");
            let last = order.iter().rposition(|qid| *qid == 2).expect("it was served");
            assert!(last <= 2 * burst as usize + 2, "{burst}: {last}");
        });
    }
}

/// 3.6.1: a shutdown holds for commands that need no slot as well.
#[test]
fn nothing_is_executed_at_once_after_a_shutdown() {
    with_pair(16, async |raw, Pair { mut sq, mut cq }| {
        let at = raw.place(COMMANDS * BLOCK as u64, 4096);
        raw.memory.write(at, &pattern(3, BLOCK)).unwrap();
        submit(raw, &mut sq, |cid, lba, data| io::write(cid, NS, lba, 1, false, data), at);
        completions(raw, &mut cq, COMMANDS).await;
        raw.set(CC, Settings::default().cc.with_en(true).with_shn(Cc::SHN_NORMAL).into_bits());
        raw.until_csts("shutting down", |csts| csts.shst() == Csts::SHST_COMPLETE).await;
        raw.memory.write(at, &pattern(4, BLOCK)).unwrap();
        submit(raw, &mut sq, |cid, lba, data| io::write(cid, NS, lba, 1, false, data), at);
        raw.until_it_looks().await;
        assert_eq!(raw.next_within(&mut cq, SILENCE).await, None);

        raw.disable().await;
        let mut pair = raw.up().await;
        let read = io::read(raw.cid(), NS, Lba(0), 1, false, raw.data(at, BLOCK as u64));
        assert_eq!(raw.run(&mut pair, &read).await.status(), Status::SUCCESS);
        assert_eq!(raw.bytes(at, BLOCK), pattern(3, BLOCK), "the write before the shutdown");
    });
}
