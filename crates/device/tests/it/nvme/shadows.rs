//! Shadow doorbells: NVMe base 2.0, 5.11.

use bus::HostPort;
use device::nvme::Options;
use wire::nvme::entry::Sqe;
use wire::nvme::registers::{DOORBELLS, cq_head_doorbell, sq_tail_doorbell};
use wire::nvme::status::Status;
use wire::nvme::{admin, io};
use wire::{BusAddr, CommandId, Lba, QueueId};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{Cq, NS, Pair, SILENCE, Settings, Sq};

/// A host with shadow doorbells.
struct Keeper {
    told: BusAddr,
    asked: BusAddr,
    /// Doorbell registers written, and doorbell writes saved.
    last_tail: u32,
    saved: u32,
}

impl Keeper {
    /// Configures shadow doorbells on an enabled controller.
    async fn new(w: &mut World) -> Keeper {
        let told = w.raw.place(8192, 4096);
        w.raw.memory.write(told, &[0; 8192]).unwrap();
        let asked = BusAddr(told.0 + 4096);
        let sqe = admin::doorbell_buffers(w.raw.cid(), told, asked);
        w.raw.admin_ok(&sqe).await;
        Keeper { told, asked, last_tail: 0, saved: 0 }
    }

    fn word(&self, page: BusAddr, doorbell: u32) -> BusAddr {
        BusAddr(page.0 + u64::from(doorbell - DOORBELLS))
    }

    fn tell(&mut self, w: &World, doorbell: u32, new: u32) {
        let word = |page| w.raw.memory.load_u32(self.word(page, doorbell)).unwrap();
        let old = word(self.told);
        w.raw.memory.store_u32(self.word(self.told, doorbell), new).unwrap();
        w.raw.host.fence();
        let behind = |value: u32| (new as u16).wrapping_sub(value as u16);
        if behind(word(self.asked)).wrapping_sub(1) < behind(old) {
            w.raw.set(doorbell, new);
            self.last_tail += 1;
        } else {
            self.saved += 1;
        }
    }

    fn submit(&mut self, w: &World, sq: &mut Sq, sqe: &Sqe) {
        w.raw.store(sq, sqe);
        self.tell(w, sq_tail_doorbell(sq.qid, 0), sq.tail);
    }

    async fn next(&mut self, w: &World, cq: &mut Cq) -> (CommandId, Status) {
        let cqe =
            w.raw.within(crate::raw::nvme::PATIENCE, w.raw.peek(cq)).await.expect("a completion");
        w.raw.take(cq);
        self.tell(w, cq_head_doorbell(cq.qid, 0), cq.head);
        (cqe.id(), cqe.status())
    }

    async fn run(&mut self, w: &World, pair: &mut Pair, sqe: &Sqe) -> Status {
        self.submit(w, &mut pair.sq, sqe);
        let (cid, status) = self.next(w, &mut pair.cq).await;
        assert_eq!(cid, sqe.id());
        status
    }
}

/// Queues of every length, created before and after the configuration, with one command at a time and with a
/// full queue: all complete, and with a full queue most doorbell writes are saved.
#[test]
fn shadow_doorbells_save_register_writes() {
    for (slots, fetch_max) in [(1, 1), (256, 16)] {
        let options = Options { slots, fetch_max, ..Options::default() };
        Setup { options, ..Setup::default() }.run(async |mut w: World| {
            w.raw.enable(Settings::default()).await;
            let before = w.raw.create_pair(1, 5).await;
            let mut keeper = Keeper::new(&mut w).await;
            let (two, many) = (w.raw.create_pair(2, 2).await, w.raw.create_pair(3, 40).await);
            let at = w.raw.place(4096, 4096);
            let data = w.raw.data(at, 512);
            for mut pair in [before, two, many] {
                let room = pair.sq.entries - 1;
                for at_once in [1, room] {
                    for _ in 0..60 {
                        for _ in 0..at_once {
                            let sqe = io::read(w.raw.cid(), NS, Lba(5), 1, false, data);
                            keeper.submit(&w, &mut pair.sq, &sqe);
                        }
                        for _ in 0..at_once {
                            let (_, status) = keeper.next(&w, &mut pair.cq).await;
                            assert_eq!(status, Status::SUCCESS);
                        }
                    }
                }
            }
            let (last_tail, saved) = (keeper.last_tail, keeper.saved);
            assert!(saved > last_tail, "{saved} saved, {last_tail} rung");
        });
    }
}

/// A host that consumes completions late: a full completion queue reads the shadow of its head.
#[test]
fn full_cq_reads_shadow_of_head() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let mut keeper = Keeper::new(&mut w).await;
        let cq = w.raw.create_cq(2, 3).await;
        let mut pair = Pair { sq: w.raw.create_sq(2, 64, 2).await, cq };
        for round in 0..30 {
            for _ in 0..7 {
                keeper.submit(&w, &mut pair.sq, &io::flush(w.raw.cid(), NS));
            }
            if round % 2 == 0 {
                w.rt.sleep(SILENCE).await;
            }
            for _ in 0..7 {
                let (_, status) = keeper.next(&w, &mut pair.cq).await;
                assert_eq!(status, Status::SUCCESS);
            }
        }
    });
}

/// The admin queues have shadows too; a host that ignores those, as Linux does, rings for each command.
#[test]
fn admin_queue_works_with_and_without_shadow() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let mut keeper = Keeper::new(&mut w).await;
        for _ in 0..100 {
            w.raw.admin_ok(&admin::get_feature(w.raw.cid(), 1)).await;
        }
        let mut pair = w.raw.create_pair(1, 8).await;
        let flush = io::flush(w.raw.cid(), NS);
        assert_eq!(keeper.run(&w, &mut pair, &flush).await, Status::SUCCESS);
        w.raw.admin_ok(&admin::get_feature(w.raw.cid(), 1)).await;
        // From here on it uses the admin queue's shadows.
        let mut admin_pair = w.raw.admin;
        for _ in 0..100 {
            let sqe = admin::get_feature(w.raw.cid(), 1);
            assert_eq!(keeper.run(&w, &mut admin_pair, &sqe).await, Status::SUCCESS);
        }
    });
}

/// A recreated queue does not take its old shadow value for new commands.
#[test]
fn recreated_queue_ignores_stale_shadow() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let mut keeper = Keeper::new(&mut w).await;
        let mut pair = w.raw.create_pair(1, 16).await;
        for round in 0..4 {
            for _ in 0..5 + round {
                let flush = io::flush(w.raw.cid(), NS);
                assert_eq!(keeper.run(&w, &mut pair, &flush).await, Status::SUCCESS);
            }
            w.raw.admin_ok(&admin::delete_sq(w.raw.cid(), QueueId(1))).await;
            w.raw.admin_ok(&admin::delete_cq(w.raw.cid(), QueueId(1))).await;
            pair = w.raw.create_pair(1, 16).await;
            assert_eq!(w.raw.next_within(&mut pair.cq, SILENCE).await, None);
            // The host's own copy starts at zero with the queue.
            for doorbell in [sq_tail_doorbell(QueueId(1), 0), cq_head_doorbell(QueueId(1), 0)] {
                let word = keeper.word(keeper.told, doorbell);
                w.raw.memory.store_u32(word, 0).unwrap();
            }
        }
    });
}

/// Misaligned and unreachable pages; a shadow value past the queue's end.
#[test]
fn invalid_shadow_pages_and_values_are_rejected() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let at = w.raw.place(8192, 4096);
        let past = BusAddr(w.raw.memory.base().0 + w.raw.memory.bytes() as u64);
        for (told, asked, wanted) in [
            (BusAddr(at.0 + 4), at, Status::INVALID_FIELD),
            (at, BusAddr(at.0 + 2048), Status::INVALID_FIELD),
            (past, at, Status::DATA_TRANSFER_ERROR),
            (at, past, Status::DATA_TRANSFER_ERROR),
        ] {
            let sqe = admin::doorbell_buffers(w.raw.cid(), told, asked);
            assert_eq!(w.raw.admin(&sqe).await.status(), wanted.with_dnr());
        }
        let mut keeper = Keeper::new(&mut w).await;
        let mut pair = w.raw.create_pair(1, 16).await;
        let flush = io::flush(w.raw.cid(), NS);
        assert_eq!(keeper.run(&w, &mut pair, &flush).await, Status::SUCCESS);
        keeper.tell(&w, sq_tail_doorbell(QueueId(1), 0), 77);
        w.rt.sleep(SILENCE).await;
        assert!(!w.raw.csts().await.cfs());
        assert_eq!(w.raw.next_within(&mut pair.cq, SILENCE).await, None);
        w.raw.disable().await;
    });
}
