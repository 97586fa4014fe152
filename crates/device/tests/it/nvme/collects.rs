//! Host-directed GC of the flash: `wire::nvme::collect`.

use ftl::NotCollected;
use ftl::policy::GcControl;
use wire::nvme::admin;
use wire::nvme::collect::{Collect, SuperblockRow, Survey};
use wire::nvme::event::AsyncEvent;
use wire::nvme::features::fid;
use wire::nvme::log::{CommandEffects, lid};
use wire::nvme::opcode;
use wire::nvme::status::Status;
use zerocopy::FromBytes;

use crate::raw::nvme::flash::SUPERBLOCKS;
use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{SILENCE, Settings};

const WHICH: Collect = Collect { superblock: 3, erases: 5, rows: 2 };

fn with_flash() -> Setup {
    Setup { led: true, ..Setup::default() }
}

async fn lead(w: &mut World, below: u32) -> Status {
    let sqe = admin::set_feature(w.raw.cid(), fid::HOST_COLLECTION, below);
    w.raw.admin(&sqe).await.status().kind()
}

async fn collect(w: &mut World, what: Collect) -> (Status, u32) {
    let sqe = admin::collect(w.raw.cid(), what);
    let cqe = w.raw.admin(&sqe).await;
    (cqe.status().kind(), cqe.dw0.get())
}

/// Part of the superblock table: `(offset, bytes)`.
async fn table(w: &mut World, (offset, bytes): (u64, u64), retain: bool) -> Vec<u8> {
    let at = w.raw.place(bytes, 4096);
    let data = w.raw.data(at, bytes);
    let part = (offset, bytes);
    let sqe = admin::get_log_part(w.raw.cid(), lid::SUPERBLOCKS, part, retain, data);
    w.raw.admin_ok(&sqe).await;
    w.raw.bytes(at, bytes as usize)
}

async fn event(w: &mut World) -> Option<AsyncEvent> {
    let cqe = w.raw.next_admin(SILENCE).await?;
    Some(AsyncEvent::from_bits(cqe.dw0.get()))
}

fn ask_for_event(w: &mut World) {
    let sqe = admin::async_event_request(w.raw.cid());
    w.raw.submit_admin(&sqe);
}

#[test]
fn collect_is_rejected_without_flash() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        assert_eq!(collect(&mut w, WHICH).await.0, Status::INVALID_OPCODE);
        assert_eq!(lead(&mut w, 100).await, Status::INVALID_FIELD);
        let get = admin::get_feature(w.raw.cid(), fid::HOST_COLLECTION);
        assert_eq!(w.raw.admin(&get).await.status().kind(), Status::INVALID_FIELD);
        let data = w.raw.data(w.raw.place(64, 4096), 64);
        let sqe = admin::get_log_page(w.raw.cid(), lid::SUPERBLOCKS, 64, data);
        assert_eq!(w.raw.admin(&sqe).await.status().kind(), Status::INVALID_LOG_PAGE);
    });
}

#[test]
fn superblock_log_lists_gc_candidates() {
    with_flash().run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let bytes = table(&mut w, (0, 4096), true).await;
        let survey = Survey::read_from_prefix(&bytes).expect("long enough").0;
        assert_eq!((survey.left.get(), survey.hold.get(), survey.start.get()), (1000, 200, 250));
        let (superblocks, units) = (survey.superblocks.get(), survey.superblock_units.get());
        assert_eq!((superblocks, units, survey.gc_parallelism.get()), (SUPERBLOCKS, 100, 7));
        let row = |bytes: &[u8], at: usize| {
            let row = SuperblockRow::read_from_prefix(&bytes[at..]).expect("long enough").0;
            (row.valid.get(), row.units.get(), row.erases.get(), row.age.get())
        };
        assert_eq!(row(&bytes, 64), (0, 400, 5, 1));
        assert_eq!(row(&bytes, 80), (0, 0, 0, 0), "one that can't be collected");
        assert_eq!(row(&bytes, 64 + 39 * 16), (39, 400, 5, u32::MAX), "as old as can be said");
        let rest = table(&mut w, (4096, 832), true).await;
        let last = 64 + (SUPERBLOCKS as usize - 1) * 16 - 4096;
        assert_eq!(row(&rest, last), (299, 400, 5, 1 << 19));
        assert!(rest[last + 16..].iter().all(|byte| *byte == 0), "nothing lies behind");
        let data = w.raw.data(w.raw.place(4096, 4096), 4096);
        let sqe = admin::get_log_page(w.raw.cid(), lid::COMMANDS_SUPPORTED, 4096, data);
        w.raw.admin_ok(&sqe).await;
        let at = data.prps().expect("PRPs").0;
        let effects = CommandEffects::read_from_bytes(&w.raw.bytes(at, 4096)).expect("a page");
        assert_eq!(effects.admin[usize::from(opcode::admin::COLLECT)].get(), 1, "and it is listed");
    });
}

#[test]
fn collect_completes_after_superblock_is_collected() {
    with_flash().run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let sqe = admin::collect(w.raw.cid(), WHICH);
        w.raw.submit_admin(&sqe);
        assert!(w.raw.next_admin(SILENCE).await.is_none(), "it is gone over");
        let flash = w.medium.flash.clone();
        assert_eq!(flash.named.take(), [(3, 5, 2)]);
        flash.end(Ok(77));
        let cqe = w.raw.next_admin(SILENCE).await.expect("an answer");
        assert_eq!((cqe.status(), cqe.dw0.get()), (Status::SUCCESS, 77));
        for (why, status) in [
            (NotCollected::Number { superblocks: 3 }, Status::INVALID_FIELD),
            (NotCollected::Busy, Status::COMMAND_SEQUENCE_ERROR),
            (NotCollected::Changed, Status::COMMAND_SEQUENCE_ERROR),
            (NotCollected::WornOut, Status::INTERNAL_ERROR),
        ] {
            flash.end(Err(why));
            assert_eq!(collect(&mut w, WHICH).await.0, status, "{why}");
        }
    });
}

/// The event is sent once, until the log page is read without RAE.
#[test]
fn space_short_event_is_masked_until_log_is_read() {
    with_flash().run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        ask_for_event(&mut w);
        w.medium.flash.leave(200);
        assert_eq!(event(&mut w).await, None, "nobody leads");
        w.medium.flash.leave(201);
        assert_eq!(lead(&mut w, 201).await, Status::SUCCESS);
        assert_eq!(event(&mut w).await, None, "there is enough");
        w.medium.flash.leave(200);
        assert_eq!(event(&mut w).await, Some(AsyncEvent::SPACE_SHORT));
        ask_for_event(&mut w);
        assert_eq!(event(&mut w).await, None, "it has been told");
        table(&mut w, (0, 64), true).await;
        assert_eq!(event(&mut w).await, None, "it keeps that");
        let data = w.raw.data(w.raw.place(64, 4096), 64);
        let sqe = admin::get_log_page(w.raw.cid(), lid::SUPERBLOCKS, 64, data);
        w.raw.submit_admin(&sqe);
        // One of the two completions is the log page's.
        let both = [event(&mut w).await, event(&mut w).await];
        assert!(both.contains(&Some(AsyncEvent::SPACE_SHORT)), "{both:?}");
        w.medium.flash.leave(201);
        table(&mut w, (0, 64), false).await;
        ask_for_event(&mut w);
        assert_eq!(event(&mut w).await, None, "there is enough");
        w.medium.flash.leave(200);
        assert_eq!(event(&mut w).await, Some(AsyncEvent::SPACE_SHORT));
    });
}

#[test]
fn host_directed_gc_ends_when_disabled_or_reset() {
    with_flash().run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let flash = w.medium.flash.clone();
        for (below, led) in
            [(9, GcControl::Named(9)), (0, GcControl::Own), (7, GcControl::Named(7))]
        {
            assert_eq!(lead(&mut w, below).await, Status::SUCCESS);
            assert_eq!(flash.led.get(), led);
            let get = admin::get_feature(w.raw.cid(), fid::HOST_COLLECTION);
            assert_eq!(w.raw.admin_ok(&get).await, below);
        }
        // A command in progress is cut by the reset, and posts no completion.
        let sqe = admin::collect(w.raw.cid(), WHICH);
        w.raw.submit_admin(&sqe);
        assert!(w.raw.next_admin(SILENCE).await.is_none());
        w.raw.disable().await;
        assert_eq!(flash.led.get(), GcControl::Own);
        w.raw.enable(Settings::default()).await;
        let get = admin::get_feature(w.raw.cid(), fid::HOST_COLLECTION);
        assert_eq!(w.raw.admin_ok(&get).await, 0);
    });
}
