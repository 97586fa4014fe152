//! Get Log Page: NVMe base 2.0, 5.16.

use wire::Lba;
use wire::Nsid;
use wire::nvme::admin::{Command, GetLogPage, Request};
use wire::nvme::io;
use wire::nvme::log::{ErrorInformation, FirmwareSlots, SmartHealth, lid};
use wire::nvme::status::Status;
use zerocopy::FromBytes;

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, Settings};

fn page(lid: u8, bytes: u64, offset: u64) -> GetLogPage {
    GetLogPage { lid, lsp: 0, lsi: 0, retain_event: false, bytes, offset, csi: 0 }
}

async fn log(w: &mut World, ask: GetLogPage) -> Result<Vec<u8>, Status> {
    let room = ask.bytes.min(1 << 20);
    let at = w.raw.place(room, 4096);
    w.raw.memory.write(at, &vec![0xa5; room as usize]).unwrap();
    let (cid, data) = (w.raw.cid(), w.raw.data(at, room));
    let command = Command::GetLogPage(ask);
    let sqe = Request { cid, nsid: Nsid::BROADCAST, data, command }.to_sqe();
    let cqe = w.raw.admin(&sqe).await;
    cqe.status().ok().map(|()| w.raw.bytes(at, room as usize))
}

/// 5.16.1: error information, health, firmware slots, effects of commands, self-tests, reservations,
/// sanitize; no other page.
#[test]
fn get_log_page_supports_only_listed_pages() {
    on_a_bench(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        for lid in 0..=u8::MAX {
            w.raw.forget_places();
            w.raw.place(64 << 10, 4096);
            match log(&mut w, page(lid, 512, 0)).await {
                Ok(_) => assert!([1, 2, 3, 5, 6, 0x80, 0x81].contains(&lid), "log page {lid:#x}"),
                Err(status) => {
                    assert_eq!(status, Status::INVALID_LOG_PAGE.with_dnr(), "log page {lid:#x}");
                    assert!(![1, 2, 3, 5, 6, 0x80, 0x81].contains(&lid), "log page {lid:#x}");
                }
            }
        }
        let bytes = log(&mut w, page(lid::FIRMWARE_SLOTS, 512, 0)).await.unwrap();
        let slots = FirmwareSlots::read_from_bytes(&bytes).unwrap();
        assert_eq!(slots.afi, 1);
        assert_ne!(slots.revisions[0], [0; 8]);
    });
}

/// 5.16.1.3: commands, data and errors are counted.
#[test]
fn smart_log_counts_commands_data_and_errors() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(1 << 20, 4096);
        let data = w.raw.data(at, 1 << 20);
        for lba in [0, 2048] {
            let sqe = io::read(w.raw.cid(), NS, Lba(lba), 2048, false, data);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        }
        let sqe = io::write(w.raw.cid(), NS, Lba(7), 1, false, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        w.medium.fails.set(Some(media::MediaError::Unreadable));
        let sqe = io::read(w.raw.cid(), NS, Lba(7), 1, false, data);
        let status = w.raw.run(&mut pair, &sqe).await.status();
        assert_eq!(status.kind(), Status::UNRECOVERED_READ_ERROR);
        let bytes = log(&mut w, page(lid::SMART_HEALTH, 512, 0)).await.unwrap();
        let health = SmartHealth::read_from_bytes(&bytes).unwrap();
        // Data units are 1000 blocks of 512 bytes, rounded up: 4096 blocks are five.
        assert_eq!((health.host_reads.get(), health.data_units_read.get()), (2, 5));
        assert_eq!((health.host_writes.get(), health.data_units_written.get()), (1, 1));
        assert_eq!((health.media_errors.get(), health.error_log_entries.get()), (1, 1));
        assert_eq!((health.critical_warning, health.available_spare), (0, 100));
    });
}

/// 5.16: part of a page, more than a page, none of it.
#[test]
fn get_log_page_offsets_and_lengths() {
    let setup = Setup { memory_bytes: 16 << 20, ..Setup::default() };
    setup.run(async |mut w: World| {
        w.raw.enable(Settings::default()).await;
        let whole = log(&mut w, page(lid::FIRMWARE_SLOTS, 512, 0)).await.unwrap();
        for (bytes, offset) in [(4, 0), (4, 8), (100, 8), (512, 8), (4, 508), (4096, 0), (8, 512)] {
            let part = log(&mut w, page(lid::FIRMWARE_SLOTS, bytes, offset)).await.unwrap();
            let mut wanted = whole[offset as usize..].to_vec();
            wanted.resize(bytes as usize, 0);
            assert_eq!(part, wanted, "{bytes} bytes at {offset}");
        }
        let bad = Err(Status::INVALID_FIELD.with_dnr());
        for offset in [516, 1 << 32, u64::MAX - 3] {
            assert_eq!(log(&mut w, page(lid::FIRMWARE_SLOTS, 4, offset)).await, bad, "{offset}");
        }
        assert!(log(&mut w, page(lid::SMART_HEALTH, 1 << 20, 0)).await.is_ok());
        for bytes in [(1 << 20) + 4, 1 << 32, 1 << 34] {
            assert_eq!(log(&mut w, page(lid::SMART_HEALTH, bytes, 0)).await, bad, "{bytes}");
        }
    });
}

/// 5.16.1.2: newest entry first, up to ELPE entries, numbered over the controller's life; a completion sets M
/// if there is an entry for it.
#[test]
fn error_log_holds_failed_commands_newest_first() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let (_, data) = w.raw.page();
        let empty = log(&mut w, page(lid::ERROR, 4096, 0)).await.unwrap();
        assert_eq!(empty, [0; 4096]);
        let sqe = io::read(w.raw.cid(), NS, Lba((1 << 20) - 2), 8, false, data);
        let status = w.raw.run(&mut pair, &sqe).await.status();
        assert!(w.raw.more.get(), "more in the error log");
        assert_eq!(status, Status::LBA_OUT_OF_RANGE.with_dnr());
        let bytes = log(&mut w, page(lid::ERROR, 64, 0)).await.unwrap();
        let entry = ErrorInformation::read_from_bytes(&bytes).unwrap();
        assert_eq!(entry.error_count.get(), 1);
        assert_eq!((entry.sqid.get(), entry.cid.get(), entry.nsid.get()), (1, sqe.cid.get(), 1));
        assert_eq!(entry.status_and_phase.get() >> 1, status.with_more().bits());
        assert_eq!(entry.lba.get(), 1 << 20, "the first that is not there");
        let sqe = io::flush(w.raw.cid(), NS);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        assert!(!w.raw.more.get());
        for _ in 0..70 {
            let sqe = io::flush(w.raw.cid(), Nsid(9));
            assert!(!w.raw.run(&mut pair, &sqe).await.status().is_ok());
        }
        let bytes = log(&mut w, page(lid::ERROR, 4096, 0)).await.unwrap();
        for (index, entry) in (0..).zip(bytes.chunks_exact(64)) {
            let entry = ErrorInformation::read_from_bytes(entry).unwrap();
            assert_eq!((entry.error_count.get(), entry.nsid.get()), (71 - index, 9));
        }
        // A reset keeps the log.
        w.raw.disable().await;
        w.raw.up().await;
        assert_eq!(log(&mut w, page(lid::ERROR, 4096, 0)).await.unwrap(), bytes);
    });
}
