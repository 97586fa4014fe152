//! Client or server killed by `kill -9` at random times, under verified load.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bus::vfio_user::Sharing;
use host::BlockDevice;
use runtime::Rng;
use wire::Lba;
use workload::verify::{Ledger, Stamps};

use crate::common::flushed::{ALL_BLOCKS, check_all, write_until_killed};
use crate::common::{Folder, plan};
use crate::vfio_user::env_or;
use crate::vfio_user::serving::serve;
use crate::vfio_user::work::driven;

fn rng(part: &str) -> (u64, Rng) {
    let seed = env_or("DOORBELL_SEED", 1);
    (seed, Rng::for_part(seed, part))
}

#[test]
fn flushed_data_survives_server_kill() {
    let (seed, mut rng) = rng("kill server");
    let folder = Folder::new("vfu-flushed");
    let image = folder.path("image");
    let plan = plan("live", &[("host.memory", "64 MiB"), ("medium.block", "512 B")]);
    let ledger = Rc::new(RefCell::new(Ledger::new(ALL_BLOCKS)));
    let mut longest = Duration::ZERO;
    for round in 1..=env_or("DOORBELL_KILLS", 4) {
        let when = format!("round {round}, DOORBELL_SEED={seed}");
        let mut server = serve(&folder, Some(&image));
        let socket = server.socket.clone();
        let (kept, after) = (ledger.clone(), 1 + rng.below(2_000));
        let mut killed = None;
        driven(&plan, &socket, Sharing::Mapped, async |rt, driver| {
            let kill = || {
                server.kill();
                killed = Some(Instant::now());
            };
            write_until_killed(rt, Rc::new(driver.disk(0)), kept, after, kill).await
        });
        // Every writer has failed with an error, and has ended.
        let noticed = killed.expect("it was killed").elapsed();
        longest = longest.max(noticed);
        ledger.borrow_mut().power_cut();

        let server = serve(&folder, Some(&image));
        let kept = ledger.clone();
        driven(&plan, &server.socket, Sharing::Mapped, async |_, driver| {
            check_all(driver.disk(0), kept, &when).await;
            driver.stop().await.expect("an orderly end");
        });
    }
    println!("the longest until every writer knew: {longest:?}");
}

/// Blocks of one write.
const BLOCKS: u64 = 8;
const BLOCK_BYTES: u64 = 512;
/// Extents that the killed client writes, one after the other, round after round.
const PLACES: u64 = 64;

/// Not a test: the process that is killed. In each round it writes all extents with the number of the
/// round, flushes, and prints the number.
#[test]
fn client_process() {
    let Some(socket) = std::env::var_os("DOORBELL_CLIENT_SOCKET") else { return };
    let first = env_or("DOORBELL_CLIENT_ROUND", 0);
    let plan = plan("live", &[("host.memory", "64 MiB"), ("medium.block", "512 B")]);
    driven(&plan, &PathBuf::from(socket), Sharing::Mapped, async |_, driver| {
        let (disk, stamps) = (driver.disk(0), Stamps::new(1));
        let mut bytes = vec![0; (BLOCKS * BLOCK_BYTES) as usize];
        let mut buffer = disk.buffer(bytes.len()).expect("host memory");
        for round in first.. {
            for place in 0..PLACES {
                let lba = place * BLOCKS;
                stamps.fill(&mut bytes, lba, BLOCK_BYTES as u32, round as u32);
                buffer.copy_in(0, &bytes);
                let (back, result) = disk.write(Lba(lba), buffer, false).await;
                buffer = back;
                result.expect("the server lives");
            }
            disk.flush().await.expect("the server lives");
            println!("\nflushed {round}");
        }
    });
}

#[test]
fn flushed_data_survives_client_kill() {
    let (seed, mut rng) = rng("kill client");
    let folder = Folder::new("vfu-client");
    let image = folder.path("image");
    let mut server = serve(&folder, Some(&image));
    let plan = plan("live", &[("host.memory", "64 MiB"), ("medium.block", "512 B")]);
    let (mut next, mut longest) = (1, Duration::ZERO);
    for kill in 1..=env_or("DOORBELL_KILLS", 4) {
        let when = format!("kill {kill}, DOORBELL_SEED={seed}");
        let mut client = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "vfio_user::kills::client_process", "--nocapture"])
            .env("DOORBELL_CLIENT_SOCKET", &server.socket)
            .env("DOORBELL_CLIENT_ROUND", next.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a client");
        let lines = BufReader::new(client.stdout.take().expect("a pipe")).lines();
        let flushed = lines.map_while(Result::ok).filter_map(|line| {
            line.strip_prefix("flushed ").and_then(|round| round.parse::<u64>().ok())
        });
        // Killed after `rounds` rounds and a random delay, in the middle of the next.
        let rounds = rng.below(20);
        let mut last = None;
        let mut flushed = flushed.take_while(|round| {
            last = Some(*round);
            *round < next + rounds
        });
        let _ = flushed.by_ref().last();
        std::thread::sleep(Duration::from_micros(rng.below(3_000)));
        client.kill().expect("our own child");
        let killed = Instant::now();
        client.wait().expect("our own child");
        drop(flushed);
        let last = last.unwrap_or_else(|| panic!("{when}: the client ended by itself"));
        server.log_has_within("waiting for a client");
        let noticed = killed.elapsed();
        longest = longest.max(noticed);
        next = driven(&plan, &server.socket, Sharing::Mapped, async |_, driver| {
            let newest = newest(driver.disk(0), last, &when).await;
            driver.stop().await.expect("an orderly end");
            newest + 1
        });
        server.log_has_within("waiting for a client");
    }
    println!("the longest until the server waited again: {longest:?}");
    assert!(server.lives());
}

/// Reads all extents: every block holds the last flushed round, or a later one. Returns the newest.
async fn newest<D: BlockDevice>(disk: D, flushed: u64, when: &str) -> u64 {
    let (stamps, mut newest) = (Stamps::new(1), 0);
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    let mut buffer = disk.buffer(bytes.len()).expect("host memory");
    for lba in 0..PLACES * BLOCKS {
        let (back, result) = disk.read(Lba(lba), buffer).await;
        buffer = back;
        result.expect("the device reads");
        buffer.copy_out(0, &mut bytes);
        let mut wanted = bytes.clone();
        // An extent is written by one command: all of it holds one round.
        let round = (flushed..flushed + 1_000).find(|round| {
            stamps.fill(&mut wanted, lba, BLOCK_BYTES as u32, *round as u32);
            wanted == bytes
        });
        let round = round.unwrap_or_else(|| panic!("{when}: block {lba} is older than {flushed}"));
        newest = newest.max(round);
    }
    newest
}
