//! Set and Get Features: NVMe base 2.0, 5.15 and 5.27.

use wire::nvme::admin;
use wire::nvme::entry::Sqe;
use wire::nvme::features::{NumberOfQueues, fid};
use wire::nvme::io;
use wire::nvme::status::Status;

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Settings, pattern};

fn set(w: &World, fid: u8, cdw11: u32) -> Sqe {
    admin::set_feature(w.raw.cid(), fid, cdw11)
}

/// 5.27.1.5: all queues are granted, whatever the request; not after the first queue exists.
#[test]
fn set_number_of_queues_fails_once_a_queue_exists() {
    let options = device::nvme::Options { io_queues: 5, ..Default::default() };
    Setup { options, ..Setup::default() }.run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let five = NumberOfQueues::of(5, 5);
        let get = admin::get_feature(w.raw.cid(), fid::NUMBER_OF_QUEUES);
        assert_eq!(w.raw.admin_ok(&get).await, five.into_bits());
        let at = w.raw.place(4096, 4096);
        // Firmware creates its queue without setting the number of queues.
        let early = admin::create_cq(w.raw.cid(), at, crate::raw::nvme::cq_of(1, 16));
        w.raw.admin_ok(&early).await;
        let sqe = set(&w, fid::NUMBER_OF_QUEUES, five.into_bits());
        let late = w.raw.admin(&sqe).await.status();
        assert_eq!(late, Status::COMMAND_SEQUENCE_ERROR.with_dnr(), "with a queue that is there");
        w.raw.admin_ok(&admin::delete_cq(w.raw.cid(), wire::QueueId(1))).await;
        for wanted in [NumberOfQueues::of(1, 1), five, NumberOfQueues::of(65535, 2)] {
            let sqe = set(&w, fid::NUMBER_OF_QUEUES, wanted.into_bits());
            assert_eq!(w.raw.admin_ok(&sqe).await, five.into_bits());
        }
        for qid in 1..=5 {
            w.raw.create_pair(qid, 8).await;
        }
        let sqe = set(&w, fid::NUMBER_OF_QUEUES, five.into_bits());
        let late = w.raw.admin(&sqe).await.status();
        assert_eq!(late, Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    });
}

/// 5.27.1.4: without a cache every completed write is durable, and so are earlier ones.
#[test]
fn writes_are_durable_at_completion_without_cache() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        w.raw.memory.write(at, &pattern(3, 4096)).unwrap();
        let data = w.raw.data(at, 4096);
        let write = |w: &World, fua| io::write(w.raw.cid(), NS, wire::Lba(0), 8, fua, data);
        let read = |w: &World, fua| io::read(w.raw.cid(), NS, wire::Lba(0), 8, fua, data);
        let steps: [(Sqe, u32); 4] = [
            (write(&w, false), 0),
            (write(&w, true), 1),
            (read(&w, false), 1),
            (read(&w, true), 2),
        ];
        for (sqe, flushes) in steps {
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
            assert_eq!(w.medium.flushes.get(), flushes, "with the cache: {sqe:?}");
        }
        let sqe = set(&w, fid::VOLATILE_WRITE_CACHE, 0);
        let off = w.raw.admin(&sqe).await.status();
        assert_eq!((off, w.medium.flushes.get()), (Status::SUCCESS, 3), "what came before");
        let sqe = write(&w, false);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(w.medium.flushes.get(), 4, "without the cache");
        let sqe = set(&w, fid::VOLATILE_WRITE_CACHE, 1);
        let on = w.raw.admin(&sqe).await.status();
        assert_eq!(on, Status::SUCCESS);
        let sqe = write(&w, false);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert_eq!(w.medium.flushes.get(), 4, "with the cache again");
    });
}
