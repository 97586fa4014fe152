//! A device whose host keeps the map of its flash, and outlives it: a host that is gone takes its map along,
//! and the next one asks for it.

use bus::live::LiveHost;
use std::cell::RefCell;
use std::rc::Rc;

use crate::common::flushed::{ALL_BLOCKS, check_all};
use crate::common::{Folder, Server, doorbell, over_socket_by, plan};
use host::BlockDevice;
use wire::Lba;
use workload::verify::{Ledger, Stamps};
use world::interfaces::{HOST_MAP, HostMapDriver};

const SETS: [(&str, &str); 6] = [
    ("medium.pace", "immediate"),
    ("medium.keep", "everything"),
    ("medium.flash.blocks", "64"),
    // The smallest: one part of the map, and 512 changes.
    ("medium.flash.map_cache", "8 KiB"),
    // So few that most are dropped.
    ("map.moves", "16"),
    ("host.memory", "16 MiB"),
];

const BLOCKS: u32 = 8;

/// Overwrites every block once, in steps of `stride` writes.
async fn overwrite<D: BlockDevice>(disk: &D, ledger: &Rc<RefCell<Ledger>>, stride: u64) {
    let (stamps, block_bytes) = (Stamps::new(1), disk.geometry().block_bytes);
    let mut bytes = vec![0; (BLOCKS * block_bytes) as usize];
    let mut buffer = disk.buffer(bytes.len()).expect("host memory");
    let writes = ALL_BLOCKS / u64::from(BLOCKS);
    for at in 0..writes {
        let lba = at * stride % writes * u64::from(BLOCKS);
        let write = ledger.borrow_mut().start_write(lba, BLOCKS);
        stamps.fill(&mut bytes, lba, block_bytes, write.version);
        buffer.copy_in(0, &bytes);
        let (back, done) = disk.write(Lba(lba), buffer, false).await;
        buffer = back;
        done.expect("a write");
        ledger.borrow_mut().finish_write(write, false);
    }
}

/// Writes 6 MiB elsewhere, so that the device has merged its changes of the blocks in the ledger.
async fn crowd<D: BlockDevice>(disk: &D) {
    let block_bytes = disk.geometry().block_bytes;
    let mut buffer = disk.buffer(64 << 10).expect("host memory");
    let blocks = u64::from((64 << 10) / block_bytes);
    for at in 0..100 {
        let (back, done) = disk.write(Lba(ALL_BLOCKS + at * blocks), buffer, false).await;
        buffer = back;
        done.expect("a write");
    }
}

#[test]
fn next_host_fetches_map_and_reads_data_of_dead_host() {
    let folder = Folder::new("host-map");
    let sets = SETS.iter().flat_map(|(key, value)| ["--set".into(), format!("{key}={value}")]);
    let mut command =
        doorbell(&folder, &["serve", "small-flash", "--interface", "host-map", "--shm", "socket"]);
    let mut server = Server::listening(&folder, command.args(sets));
    let (plan, socket) = (plan("small-flash", &SETS), folder.path("socket"));
    let ledger = Rc::new(RefCell::new(Ledger::new(ALL_BLOCKS)));
    for (round, stride) in [1, 5, 77].into_iter().enumerate() {
        let records = ledger.clone();
        over_socket_by(HOST_MAP, &plan, &socket, async |_, driver| {
            // Of what the host before wrote, this one knows nothing.
            check_all(driver.disk(0), records.clone(), &format!("host {round}")).await;
            let counts = driver.typed::<HostMapDriver<LiveHost>>().map().counts();
            assert!(round == 0 || counts.parts > 0 && counts.places > 0, "{counts:?}");
            overwrite(&driver.disk(0), &records, stride).await;
            crowd(&driver.disk(0)).await;
            check_all(driver.disk(0), records, &format!("host {round} again")).await;
            // Without an orderly end.
        });
        server.expect_event("client connected");
        server.expect_event("client disconnected");
        server.expect_event("waiting for a client");
    }
    assert!(server.lives());
}

/// Every place of the host is wrong: it asks again, and reads what it wrote.
#[test]
fn corrupt_map_costs_stale_places_and_no_data() {
    let folder = Folder::new("host-map-corrupt");
    let sets = SETS.iter().flat_map(|(key, value)| ["--set".into(), format!("{key}={value}")]);
    let mut command =
        doorbell(&folder, &["serve", "small-flash", "--interface", "host-map", "--shm", "socket"]);
    let mut server = Server::listening(&folder, command.args(sets));
    let (plan, socket) = (plan("small-flash", &SETS), folder.path("socket"));
    let ledger = Rc::new(RefCell::new(Ledger::new(ALL_BLOCKS)));
    over_socket_by(HOST_MAP, &plan, &socket, async |_, driver| {
        let disk = driver.disk(0);
        overwrite(&disk, &ledger, 5).await;
        crowd(&disk).await;
        disk.flush().await.expect("a flush");
        check_all(disk.clone(), ledger.clone(), "a correct map").await;
        for (way, wrong) in
            [|place: u32| place ^ 1, |place: u32| place.rotate_left(9), |_| 0, |_| u32::MAX - 1]
                .into_iter()
                .enumerate()
        {
            let before = driver.typed::<HostMapDriver<LiveHost>>().map().counts().stale;
            driver.typed::<HostMapDriver<LiveHost>>().map().corrupt(wrong);
            // Another part of the map, so that the device does not have that of the ledger in memory.
            let buffer = disk.buffer(4096).expect("host memory");
            disk.read(Lba(3 * ALL_BLOCKS), buffer).await.1.expect("a read");
            check_all(disk.clone(), ledger.clone(), &format!("corrupt map {way}")).await;
            assert!(
                driver.typed::<HostMapDriver<LiveHost>>().map().counts().stale > before,
                "{way}: {:?}",
                driver.typed::<HostMapDriver<LiveHost>>().map().counts()
            );
        }
        driver.stop().await.expect("an orderly end");
    });
    server.expect_event("client connected");
    server.expect_event("client disconnected");
    assert!(server.lives());
}
