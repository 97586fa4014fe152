//! FastPath live: clients in threads and in processes, one of them hostile; the ordinary driver beside
//! them; a drive in another process; functions in the way of data.

use std::process::Command;

use crate::common::{Folder, only, plan, serve, shares, simulate_by, work};
use fnvme::engine::{
    Client, Direction, Drive, Error, Handle, Refusal, Request, STAGING_BYTES, Service, Status,
    Transfer,
};
use fnvme::functions;
use host::fastpath::ring::{self, Caller};
use plan::Plan;
use wire::BusAddr;
use workload::pattern::OpKind;
use world::Options;
use world::interfaces::{FASTPATH, Fastpath, Interface};

const SMALL: [(&str, &str); 3] =
    [("medium.capacity", "32 MiB"), ("host.memory", "128 MiB"), ("host.queue_depth", "16")];

fn small() -> Plan {
    plan("live", &SMALL)
}

fn service(own_thread: bool) -> Service {
    // A quarter of the drive is the ordinary driver's.
    Service::start(&small(), &Drive::Here { own_thread }, 16384).unwrap_or_else(|e| panic!("{e}"))
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = runtime::Rng::new(seed);
    (0..bytes / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Writes all of a client's area, and reads it back.
fn verify(client: &Client, seed: u64, block_size: u32) {
    let bytes = client.buffer_bytes();
    let written = pattern(seed, bytes as usize);
    client.copy_in(0, &written).unwrap();
    client.transfer(Direction::Write, 0, bytes, block_size).unwrap();
    client.copy_in(0, &vec![0; bytes as usize]).unwrap();
    client.begin(Direction::Read, 0, bytes, block_size).unwrap();
    client.settle().unwrap();
    let mut seen = vec![0; bytes as usize];
    client.copy_out(0, &mut seen).unwrap();
    assert!(seen == written, "block size {block_size}");
}

#[test]
fn eight_handles_in_eight_threads_and_the_ordinary_driver_beside_them() {
    let _turn = testing::turn();
    for own_thread in [false, true] {
        let service = service(own_thread);
        std::thread::scope(|scope| {
            for number in 0..8_u64 {
                let service = &service;
                scope.spawn(move || {
                    let client = service.open(128 << 10).unwrap();
                    for round in 0..4 {
                        verify(&client, number * 100 + round, 512 << ((number + round) % 5));
                    }
                    client.flush().unwrap();
                });
            }
            for number in 0..16_u64 {
                let written = pattern(1000 + number, 4096);
                service.ordinary(number * 8, written.clone(), true).unwrap();
                assert!(service.ordinary(number * 8, vec![0; 4096], false).unwrap() == written);
            }
        });
        // What was written by the one way is not where the other writes, and is still there.
        for number in 0..16_u64 {
            let seen = service.ordinary(number * 8, vec![0; 4096], false).unwrap();
            assert!(seen == pattern(1000 + number, 4096));
        }
        let latency = service.latency().unwrap();
        assert_eq!((latency.failed, latency.refused), (0, 0));
        assert!(latency.requests >= 8 * 9 && latency.least_ns > 0, "{latency:?}");
    }
}

/// Every attempt to get at what is another's, from this client's ring.
fn attempts(mine: Handle, other: Handle, area: u64, buffer: u64) -> Vec<(Request, Refusal)> {
    let ask = |handle: Handle, offset, size, buffer_offset| {
        let (direction, block_size) = (Direction::Write, 512);
        let transfer = Transfer { direction, offset, size, block_size, buffer_offset };
        Request::transfer(0, handle.fp_id, handle.generation, &transfer)
    };
    let forged = |fp_id| Handle { fp_id, ..mine };
    let mut attempts = vec![
        (ask(other, 0, 512, 0), Refusal::Handle),
        (ask(Handle { generation: other.generation + 1, ..other }, 0, 512, 0), Refusal::Handle),
        (Request::flush(0, other.fp_id, other.generation), Refusal::Handle),
        (ask(Handle { generation: mine.generation + 1, ..mine }, 0, 512, 0), Refusal::Stale),
        (ask(Handle { generation: mine.generation - 1, ..mine }, 0, 512, 0), Refusal::Stale),
        (ask(mine, area, 512, 0), Refusal::Area),
        (ask(mine, area - 512, 1024, 0), Refusal::Area),
        (ask(mine, u64::MAX - 511, 512, 0), Refusal::Area),
        (ask(mine, u64::MAX - 511, 1024, 0), Refusal::Area),
        (ask(mine, 0, 512, buffer), Refusal::Buffer),
        (ask(mine, 0, 1024, buffer - 512), Refusal::Buffer),
        (ask(mine, 0, 512, u64::MAX - 511), Refusal::Buffer),
        (ask(mine, 0, 0, 0), Refusal::Size),
        (ask(mine, 0, u32::MAX, 0), Refusal::Size),
        (Request { opcode: 0x80, ..ask(mine, 0, 512, 0) }, Refusal::Opcode),
        (Request { reserved: 0xff, ..ask(mine, 0, 512, 0) }, Refusal::Opcode),
    ];
    attempts.extend((100..140).map(|fp_id| (ask(forged(fp_id), 0, 512, 0), Refusal::Handle)));
    attempts
}

#[test]
fn a_clients_ring_gets_at_nothing_of_another_clients() {
    let _turn = testing::turn();
    let service = service(false);
    let (mine, other) = (service.open(64 << 10).unwrap(), service.open(64 << 10).unwrap());
    verify(&other, 1, 4096);
    let buffer = mine.buffer_bytes() + STAGING_BYTES;
    for (request, refusal) in attempts(mine.handle(), other.handle(), 64 << 10, buffer) {
        let ticket = mine.submit(&request).unwrap();
        let refused = Err(Error::Answer(Status::Engine(refusal)));
        assert_eq!(mine.wait(ticket), refused, "{request:?}");
    }
    // A freed handle's number and its area are another's by and by, and never the old owner's.
    let (was, bytes) = (other.handle(), other.buffer_bytes());
    drop(other);
    let again = service.open(bytes).unwrap();
    assert_eq!((again.handle().fp_id, again.handle().generation), (was.fp_id, was.generation + 1));
    verify(&again, 2, 512);
    verify(&mine, 3, 8192);
}

/// Not a test by itself: the hostile process of the next one, which runs this very program.
#[test]
fn hostile_process() {
    let Ok(words) = std::env::var("DOORBELL_HOSTILE") else { return };
    let (socket, other) = words.split_once(' ').expect("a socket, and another's handle");
    let (fp_id, generation) = other.split_once(' ').expect("number and generation");
    let other = Handle { fp_id: fp_id.parse().unwrap(), generation: generation.parse().unwrap() };
    // As a client behaves, so that it has something to lose.
    let client = Client::connect(socket.as_ref(), 64 << 10).expect("the engine is there");
    verify(&client, 9, 4096);
    let buffer = client.buffer_bytes() + STAGING_BYTES;
    for (request, refusal) in attempts(client.handle(), other, 64 << 10, buffer) {
        let ticket = client.submit(&request).unwrap();
        let refused = Err(Error::Answer(Status::Engine(refusal)));
        assert_eq!(client.wait(ticket), refused, "{request:?}");
    }
    verify(&client, 10, 512);
    // And as none does: memory that begins where the engine's does, words of no sense, an overrun ring.
    let bytes = ring::BYTES + (STAGING_BYTES as usize) + (64 << 10);
    for nonsense in [0x1_0000_0000_u64, 0, 1 << 44] {
        let base = BusAddr(nonsense);
        let (shared, peer) =
            bus::live::connect(socket.as_ref(), bytes, base).expect("a second door");
        let handle = shared.load(0);
        let (fp_id, generation) = (handle as u16, (handle >> 16) as u16);
        let mut caller = Caller::new(&shared.host_memory, base).unwrap();
        for _ in 0..10 {
            assert!(caller.send(&Request::flush(0, fp_id, generation.wrapping_add(1))));
        }
        while caller.receive().is_none() {
            std::thread::yield_now();
        }
        shared.host_memory.write(base, &pattern(nonsense, ring::BYTES)).unwrap();
        shared.host_memory.store_u32(base, u32::MAX).unwrap();
        drop(peer);
    }
    println!("hostile: all refused");
}

#[test]
fn a_hostile_process_gets_at_nothing() {
    let _turn = testing::turn();
    let folder = Folder::new("fastpath");
    let socket = folder.path("engine");
    let mut service = service(false);
    service.listen(&socket).unwrap();
    let mine = service.open(64 << 10).unwrap();
    verify(&mine, 5, 4096);
    let Handle { fp_id, generation } = mine.handle();
    for _ in 0..3 {
        let mut hostile = Command::new(std::env::current_exe().unwrap());
        hostile.args([
            "--exact",
            "fastpath_live::hostile_process",
            "--nocapture",
            "--test-threads=1",
        ]);
        hostile.env("DOORBELL_HOSTILE", format!("{} {fp_id} {generation}", socket.display()));
        let output = hostile.output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains("hostile: all refused"), "{said}{why}");
        let mut seen = vec![0; 64 << 10];
        mine.transfer(Direction::Read, 0, 64 << 10, 8192).unwrap();
        mine.copy_out(0, &mut seen).unwrap();
        assert!(seen == pattern(5, 64 << 10), "what is ours is as it was");
    }
    // Its areas are free again: the rest of the drive can be had.
    drop(mine);
    drop(service.open(20 << 20).unwrap());
}

const KEY: &str = "2718281828459045235360287471352631415926535897932384626433832795";

/// The plan's function is every client's: what lies on the drive is not what any of them wrote.
#[test]
fn what_lies_on_the_drive_is_encrypted() {
    let _turn = testing::turn();
    let word = format!("aes-xts:{KEY}");
    let plan = plan("live", &[SMALL.as_slice(), &[("fastpath.function", &word)]].concat());
    let service = Service::start(&plan, &Drive::Here { own_thread: false }, 16384).unwrap();
    let clients = [service.open(64 << 10).unwrap(), service.open(64 << 10).unwrap()];
    for client in &clients {
        for block_size in [512, 4096, 8192] {
            verify(client, 7, block_size);
        }
    }
    let written = pattern(7, 64 << 10);
    let there = [0, 128].map(|n| service.ordinary(16384 + n, vec![0; 64 << 10], false).unwrap());
    for there in &there {
        assert!(there.chunks(16).zip(written.chunks(16)).all(|(there, here)| there != here));
    }
    assert_ne!(there[0], there[1], "the same data at two places");
}

/// A drive that turns a bit over and says that all is well: the seal knows better, and without it nobody.
#[test]
fn a_seal_finds_what_a_drive_got_wrong() {
    let _turn = testing::turn();
    let fault = r#"[{ name = "x", what = "corrupt-data", command = "read", nth = 3 }]"#;
    let plan = plan("live", &[SMALL.as_slice(), &[("faults", fault)]].concat());
    for (word, found) in [("none", false), ("crc32c", true)] {
        let service = Service::start(&plan, &Drive::Here { own_thread: false }, 0).unwrap();
        let client = match functions::named(word).unwrap() {
            Some(function) => service.open_through(64 << 10, function).unwrap(),
            None => service.open(64 << 10).unwrap(),
        };
        let written = pattern(3, 64 << 10);
        client.copy_in(0, &written).unwrap();
        client.transfer(Direction::Write, 0, 64 << 10, 4096).unwrap();
        client.copy_in(0, &vec![0; 64 << 10]).unwrap();
        let read = client.transfer(Direction::Read, 0, 64 << 10, 4096);
        let mut seen = vec![0; 64 << 10];
        client.copy_out(0, &mut seen).unwrap();
        if found {
            let refused = Status::Engine(Refusal::Function);
            assert_eq!(read, Err(Error::Answer(refused)), "{word}");
            assert!(seen[8192..12288].iter().all(|byte| *byte == 0), "nothing of it arrives");
        } else {
            assert_eq!(read, Ok(()));
            assert_eq!(seen.iter().zip(&written).filter(|(a, b)| a != b).count(), 1);
        }
        // Once only.
        assert_eq!(client.transfer(Direction::Read, 0, 64 << 10, 4096), Ok(()));
    }
}

/// Simulated, a function costs the engine what the plan says, in a stage of its own.
#[test]
fn a_function_has_its_stage() {
    // What was never written is no zeros when it has been decrypted: all is written before it is read.
    let job = work("[j]\nrw=randwrite\nbs=4k\nsize=256k\nverify=crc32c\n");
    let word = format!("aes-xts:{KEY}");
    for (word, ns) in [("none", 0), ("crc32c", 8 * 512), (&word, 8 * 512)] {
        let plan = plan("fastpath", &[("fastpath.function", word)]);
        let run_result = simulate_by(FASTPATH, &plan, &job, Options::default());
        let place = Fastpath::STAGES.iter().position(|stage| *stage == "function").unwrap();
        let shares = shares(only(&run_result), OpKind::Write);
        assert_eq!(shares.stages_ps[place], f64::from(ns) * 1000.0, "{word}");
        assert_eq!(shares.unexplained_ps, 0.0);
        assert_eq!(only(&run_result).blocks_verified, 512, "{word}");
    }
}

#[test]
fn a_drive_in_another_process_and_its_death() {
    let _turn = testing::turn();
    let folder = Folder::new("fastpath-shm");
    let mut server = serve(&folder, "--shm", &[], None);
    let drive = Drive::Served(folder.path("socket"));
    let service = Service::start(&small(), &drive, 0).unwrap_or_else(|error| panic!("{error}"));
    let client = service.open(1 << 20).unwrap();
    for (seed, block_size) in [(1, 512), (2, 4096), (3, 8192)] {
        verify(&client, seed, block_size);
    }
    server.kill();
    let ended = client.transfer(Direction::Read, 0, 4096, 4096);
    let known =
        [Refusal::Controller, Refusal::TimeOut].map(|r| Err(Error::Answer(Status::Engine(r))));
    assert!(known.contains(&ended), "{ended:?}");
}
