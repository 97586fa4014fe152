//! FastPath live: clients in threads and in processes, one of them hostile; an NVMe driver on the same
//! drive; a drive in another process; functions in the data path.

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
use world::interfaces::FASTPATH;

const SMALL: [(&str, &str); 3] =
    [("medium.capacity", "32 MiB"), ("host.memory", "128 MiB"), ("host.queue_depth", "16")];

fn small() -> Plan {
    plan("live", &SMALL)
}

fn service(own_thread: bool) -> Service {
    // A quarter of the drive belongs to the NVMe driver.
    Service::start(&small(), &Drive::Here { own_thread }, 16384).unwrap_or_else(|e| panic!("{e}"))
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = runtime::Rng::new(seed);
    (0..bytes / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// Writes a client's whole area, and reads it back.
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
fn eight_handles_in_eight_threads_with_nvme_driver() {
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
        // The two paths write disjoint areas, and both keep their data.
        for number in 0..16_u64 {
            let seen = service.ordinary(number * 8, vec![0; 4096], false).unwrap();
            assert!(seen == pattern(1000 + number, 4096));
        }
        let latency = service.latency().unwrap();
        assert_eq!((latency.failed, latency.refused), (0, 0));
        assert!(latency.requests >= 8 * 9 && latency.least_ns > 0, "{latency:?}");
    }
}

/// Every attempt to access another client's resources from this client's ring.
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
fn ring_cannot_access_resources_of_other_client() {
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
    // The number of a freed handle and its area are reused in time, but never valid for the old owner.
    let (was, bytes) = (other.handle(), other.buffer_bytes());
    drop(other);
    let again = service.open(bytes).unwrap();
    assert_eq!((again.handle().fp_id, again.handle().generation), (was.fp_id, was.generation + 1));
    verify(&again, 2, 512);
    verify(&mine, 3, 8192);
}

/// Not a test: the process that `hostile_process_cannot_access_other_clients` runs.
#[test]
fn hostile_process() {
    let Ok(words) = std::env::var("DOORBELL_HOSTILE") else { return };
    let (socket, other) = words.split_once(' ').expect("a socket, and another's handle");
    let (fp_id, generation) = other.split_once(' ').expect("number and generation");
    let other = Handle { fp_id: fp_id.parse().unwrap(), generation: generation.parse().unwrap() };
    // First as a well-behaved client, so that it owns resources.
    let client = Client::connect(socket.as_ref(), 64 << 10).expect("the engine is there");
    verify(&client, 9, 4096);
    let buffer = client.buffer_bytes() + STAGING_BYTES;
    for (request, refusal) in attempts(client.handle(), other, 64 << 10, buffer) {
        let ticket = client.submit(&request).unwrap();
        let refused = Err(Error::Answer(Status::Engine(refusal)));
        assert_eq!(client.wait(ticket), refused, "{request:?}");
    }
    verify(&client, 10, 512);
    // Then as a hostile one: memory at the engine's addresses, invalid words, an overrun ring.
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
fn hostile_process_cannot_access_other_clients() {
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
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && printed.contains("hostile: all refused"),
            "{printed}{why}"
        );
        let mut seen = vec![0; 64 << 10];
        mine.transfer(Direction::Read, 0, 64 << 10, 8192).unwrap();
        mine.copy_out(0, &mut seen).unwrap();
        assert!(seen == pattern(5, 64 << 10), "what is ours is as it was");
    }
    // Its areas are free again: the rest of the drive can be allocated.
    drop(mine);
    drop(service.open(20 << 20).unwrap());
}

const KEY: &str = "2718281828459045235360287471352631415926535897932384626433832795";

/// The plan's function applies to every client: the data on the drive differ from the data written.
#[test]
fn data_on_medium_is_encrypted() {
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
    // The areas begin behind the directory of 8 KiB.
    let there = [16, 144].map(|n| service.ordinary(16384 + n, vec![0; 64 << 10], false).unwrap());
    for there in &there {
        assert!(there.chunks(16).zip(written.chunks(16)).all(|(there, here)| there != here));
    }
    assert_ne!(there[0], there[1], "the same data at two places");
}

/// A drive flips a bit and reports success: the seal detects it; without a seal it goes unnoticed.
#[test]
fn seal_detects_flipped_bit() {
    let _turn = testing::turn();
    // The engine has read the two copies of its directory before.
    let fault = r#"[{ name = "x", what = "corrupt-data", command = "read", nth = 5 }]"#;
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
        // The fault is injected once.
        assert_eq!(client.transfer(Direction::Read, 0, 64 << 10, 4096), Ok(()));
    }
}

/// Simulated, a function takes the engine the time in the plan, as a trace stage of its own.
#[test]
fn function_time_has_a_trace_stage() {
    // Unwritten blocks do not decrypt to zeros: all are written before they are read.
    let job = work("[j]\nrw=randwrite\nbs=4k\nsize=256k\nverify=crc32c\n");
    let word = format!("aes-xts:{KEY}");
    for (word, ns) in [("none", 0), ("crc32c", 8 * 512), (&word, 8 * 512)] {
        let plan = plan("fastpath", &[("fastpath.function", word)]);
        let run_result = simulate_by(FASTPATH, &plan, &job, Options::default());
        let place = FASTPATH.stages.iter().position(|stage| *stage == "function").unwrap();
        let shares = shares(only(&run_result), OpKind::Write);
        assert_eq!(shares.stages_ps[place], f64::from(ns) * 1000.0, "{word}");
        assert_eq!(shares.unexplained_ps, 0.0);
        assert_eq!(only(&run_result).blocks_verified, 512, "{word}");
    }
}

#[test]
fn drive_in_another_process_is_killed() {
    let _turn = testing::turn();
    for front_end in ["--shm", "--vfio-user"] {
        let folder = Folder::new("fastpath-served");
        let mut server = serve(&folder, front_end, &[], None);
        let socket = folder.path("socket");
        let drive = match front_end {
            "--shm" => Drive::Served(socket),
            _ => Drive::VfioUser(socket),
        };
        let started = Service::start(&small(), &drive, 0);
        let mut service = started.unwrap_or_else(|error| panic!("{front_end}: {error}"));
        let client = service.open(1 << 20).unwrap();
        for (seed, block_size) in [(1, 512), (2, 4096), (3, 8192)] {
            verify(&client, seed, block_size);
        }
        // The drive does not reach the memory of other processes.
        let refused = service.listen(&folder.path("engine")).expect_err(front_end).to_string();
        assert!(refused.contains("outside this process"), "{refused}");
        server.kill();
        let ended = client.transfer(Direction::Read, 0, 4096, 4096);
        let known =
            [Refusal::Controller, Refusal::TimeOut].map(|r| Err(Error::Answer(Status::Engine(r))));
        assert!(known.contains(&ended), "{front_end}: {ended:?}");
    }
}
