//! A map of flash on the host: `wire::nvme::host_map`.

use media::MediaError;
use wire::nvme::admin;
use wire::nvme::event::AsyncEvent;
use wire::nvme::features::fid;
use wire::nvme::host_map::{HostMap, MOVES_PER_PAGE, Move, Moves, NO_PLACE};
use wire::nvme::io;
use wire::nvme::log::{SmartHealth, lid};
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};
use zerocopy::FromBytes;

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Pair, SILENCE, Settings};

fn with_map() -> Setup {
    Setup { mapped: true, ..Setup::default() }
}

/// Reads blocks by a place or a list of places.
async fn read(
    w: &World,
    pair: &mut Pair,
    (lba, blocks): (u64, u32),
    place: (u32, BusAddr),
) -> Status {
    let bytes = u64::from(blocks) * 512;
    let data = w.raw.data(w.raw.place(bytes, 4096), bytes);
    let sqe = io::read_placed(w.raw.cid(), NS, (Lba(lba), blocks), place, data);
    w.raw.run(pair, &sqe).await.status().kind()
}

async fn enable(w: &mut World, moves: u32) -> Status {
    let value = HostMap::new().with_moves(moves).into_bits();
    let sqe = admin::set_feature(w.raw.cid(), fid::HOST_MAP, value);
    w.raw.admin(&sqe).await.status().kind()
}

async fn moves(w: &mut World) -> (Moves, Vec<(u32, u32)>) {
    let at = w.raw.place(4096, 4096);
    let data = w.raw.data(at, 4096);
    let sqe = admin::get_log_part(w.raw.cid(), lid::MOVES, (0, 4096), false, data);
    w.raw.admin_ok(&sqe).await;
    let bytes = w.raw.bytes(at, 4096);
    let header = Moves::read_from_prefix(&bytes).expect("long enough").0;
    let rows = bytes[size_of::<Moves>()..].chunks_exact(size_of::<Move>());
    let row = |bytes| Move::read_from_bytes(bytes).expect("of this length");
    let rows = rows.map(row).map(|row| (row.unit.get(), row.place.get()));
    (header, rows.take(header.count.get() as usize).collect())
}

#[test]
fn placed_commands_are_rejected_without_map() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let found = read(&w, &mut pair, (0, 8), (5, BusAddr(0))).await;
        assert_eq!(found, Status::INVALID_OPCODE);
        let data = w.raw.data(w.raw.place(64, 4096), 4);
        let sqe = io::read_map(w.raw.cid(), NS, Lba(0), 8, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status().kind(), Status::INVALID_OPCODE);
        assert_eq!(enable(&mut w, 100).await, Status::INVALID_FIELD);
        let sqe = admin::get_log_page(w.raw.cid(), lid::MOVES, 64, w.raw.page().1);
        assert_eq!(w.raw.admin(&sqe).await.status().kind(), Status::INVALID_LOG_PAGE);
    });
}

#[test]
fn place_of_one_unit_is_in_command_and_others_in_list() {
    with_map().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        assert_eq!(read(&w, &mut pair, (9, 7), (5, BusAddr(0))).await, Status::SUCCESS);
        assert_eq!(w.medium.places.take(), [[5]]);
        // Blocks 15 to 24 touch three units.
        let list = w.raw.place(64, 64);
        let words: Vec<u8> =
            [11_u32, NO_PLACE, 13].iter().flat_map(|at| at.to_le_bytes()).collect();
        w.raw.memory.write(list, &words).expect("host memory");
        assert_eq!(read(&w, &mut pair, (15, 10), (5, list)).await, Status::SUCCESS);
        assert_eq!(w.medium.places.take(), [[11, NO_PLACE, 13]]);
    });
}

#[test]
fn bad_list_of_places_or_blocks_reads_nothing() {
    with_map().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let end = w.setup.memory_base.0 + w.setup.memory_bytes as u64;
        for (list, status) in [
            (w.raw.place(64, 64).0 + 2, Status::INVALID_FIELD),
            (u64::MAX - 3, Status::INVALID_FIELD),
            (end, Status::DATA_TRANSFER_ERROR),
            (end - 4, Status::DATA_TRANSFER_ERROR),
            (0, Status::DATA_TRANSFER_ERROR),
        ] {
            let found = read(&w, &mut pair, (0, 16), (5, BusAddr(list))).await;
            assert_eq!(found, status, "{list:#x}");
        }
        let blocks = w.setup.blocks;
        for lba in [blocks - 7, blocks, u64::MAX - 8] {
            let found = read(&w, &mut pair, (lba, 8), (5, BusAddr(0))).await;
            assert_eq!(found, Status::LBA_OUT_OF_RANGE, "{lba}");
        }
        assert!(w.medium.places.take().is_empty());
    });
}

/// A stale place is the host's error, not one of the medium.
#[test]
fn stale_place_has_own_status_and_counts_no_media_error() {
    with_map().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        w.medium.fails.set(Some(MediaError::Stale));
        assert_eq!(read(&w, &mut pair, (0, 8), (5, BusAddr(0))).await, Status::STALE_PLACE);
        let health: SmartHealth = w.raw.log(lid::SMART_HEALTH).await;
        assert_eq!(health.media_errors.get(), 0);
        w.medium.fails.set(Some(MediaError::Unreadable));
        let found = read(&w, &mut pair, (0, 8), (5, BusAddr(0))).await;
        assert_eq!(found, Status::UNRECOVERED_READ_ERROR);
        let health: SmartHealth = w.raw.log(lid::SMART_HEALTH).await;
        assert_eq!(health.media_errors.get(), 1);
    });
}

#[test]
fn read_map_returns_place_of_each_unit() {
    with_map().run(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(12, 4096);
        let sqe = io::read_map(w.raw.cid(), NS, Lba(15), 10, w.raw.data(at, 12));
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        let words: Vec<u8> =
            [1001_u32, 1002, 1003].iter().flat_map(|at| at.to_le_bytes()).collect();
        assert_eq!(w.raw.bytes(at, 12), words);
        let sqe = io::read_map(w.raw.cid(), NS, Lba(w.setup.blocks), 8, w.raw.data(at, 12));
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status().kind(), Status::LBA_OUT_OF_RANGE);
    });
}

#[test]
fn moves_are_reported_once_until_they_are_read() {
    with_map().run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        assert_eq!(enable(&mut w, HostMap::MOVES_MAX + 1).await, Status::INVALID_FIELD);
        assert_eq!(enable(&mut w, 4).await, Status::SUCCESS);
        let get = admin::get_feature(w.raw.cid(), fid::HOST_MAP);
        assert_eq!(w.raw.admin_ok(&get).await, 4);
        for _ in 0..2 {
            let sqe = admin::async_event_request(w.raw.cid());
            w.raw.submit_admin(&sqe);
        }
        let flash = w.medium.flash.clone();
        flash.move_to(3, 33);
        assert!(w.raw.next_admin(SILENCE).await.is_none(), "one of four");
        flash.move_to(4, NO_PLACE);
        let event = w.raw.next_admin(SILENCE).await.expect("half are waiting");
        assert_eq!(AsyncEvent::from_bits(event.dw0.get()), AsyncEvent::MOVED);
        flash.move_to(5, 55);
        assert!(w.raw.next_admin(SILENCE).await.is_none(), "it is masked");
    });
}

#[test]
fn moves_page_removes_returned_moves_and_reset_ends_them() {
    with_map().run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        assert_eq!(enable(&mut w, 4096).await, Status::SUCCESS);
        let flash = w.medium.flash.clone();
        (0..MOVES_PER_PAGE + 2).for_each(|unit| flash.move_to(unit, unit + 9));
        let (header, rows) = moves(&mut w).await;
        assert_eq!((header.unit_bytes.get(), header.dropped.get()), (4096, 7));
        assert_eq!((rows.len(), rows[0]), (MOVES_PER_PAGE as usize, (0, 9)));
        let (_, rows) = moves(&mut w).await;
        assert_eq!(rows, [(510, 519), (511, 520)]);
        w.raw.disable().await;
        assert_eq!(flash.moves_most.get(), 0, "the next host has not asked for any");
    });
}
