//! Control of a drive on four device threads, under a host of four: power cuts, pauses, counts.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;

use host::BlockDevice;
use runtime::{STD_CLOCK, WallClock};
use serde_json::{Value, json};
use testing::{Folder, plan};
use wire::Lba;
use world::until;

use crate::hosts::{HostThread, PATIENCE, Resets, Served, THREADS, host};

const SETS: [(&str, &str); 4] = [
    ("medium.capacity", "16 MiB"),
    ("medium.block", "512 B"),
    ("host.memory", "64 MiB"),
    ("host.retries", "100"),
];

const BLOCK: usize = 512;
/// Blocks of a write.
const WRITE_BLOCKS: usize = 8;
const WRITE: usize = BLOCK * WRITE_BLOCKS;
/// Places that each thread writes, and writes in flight of each.
const PLACES: usize = 64;
const DEPTH: usize = 8;

/// Stamps of a place: they rise with each write.
#[derive(Default)]
struct Known {
    submitted: AtomicU64,
    answered: AtomicU64,
}

/// The ledger of all threads.
struct Ledger {
    places: Vec<Known>,
    answers: AtomicU64,
    checked: AtomicU64,
    is_off: AtomicBool,
}

impl Ledger {
    fn new() -> Ledger {
        let places = (0..THREADS * PLACES).map(|_| Known::default()).collect();
        let (answers, checked) = (AtomicU64::new(0), AtomicU64::new(0));
        Ledger { places, answers, checked, is_off: AtomicBool::new(false) }
    }

    fn answers(&self) -> u64 {
        self.answers.load(Ordering::Acquire)
    }

    fn checked(&self) -> u64 {
        self.checked.load(Ordering::Acquire)
    }

    /// Checks what was read from a place: each block is of one write, not older than what was answered.
    fn check(&self, place: usize, data: &[u8]) {
        let known = &self.places[place];
        let answered = known.answered.load(Ordering::Acquire);
        let submitted = known.submitted.load(Ordering::Acquire);
        for (block, data) in data.chunks(BLOCK).enumerate() {
            let words: Vec<u64> = data
                .chunks(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")))
                .collect();
            let at = format!("place {place}, block {block}");
            assert!(words.iter().all(|word| *word == words[0]), "{at} is torn");
            let (of, stamp) = (words[0] >> 32, words[0] & 0xffff_ffff);
            assert!(words[0] == 0 || of == place as u64, "{at} has data of place {of}");
            assert!(
                (answered..=submitted).contains(&stamp),
                "{at} has write {stamp}, expected {answered} to {submitted}"
            );
        }
        self.checked.fetch_add(1, Ordering::AcqRel);
    }

    /// Writes a place once. An error is one of a drive whose power was cut.
    async fn write(&self, own: &HostThread, place: usize) {
        let known = &self.places[place];
        let stamp = known.submitted.fetch_add(1, Ordering::AcqRel) + 1;
        let word = (place as u64) << 32 | stamp;
        let buffer = own.queue.buffer(WRITE).expect("memory");
        let data: Vec<u8> = (0..WRITE / 8).flat_map(|_| word.to_le_bytes()).collect();
        buffer.copy_in(0, &data);
        match own.queue.write(lba(place), buffer, false).await.1 {
            Ok(()) => {
                known.answered.store(stamp, Ordering::Release);
                self.answers.fetch_add(1, Ordering::AcqRel);
            }
            Err(error) => {
                assert!(self.is_off.load(Ordering::Acquire), "place {place}: {error}");
                core::future::pending().await
            }
        }
    }

    async fn read(&self, own: &HostThread, place: usize) {
        let buffer = own.queue.buffer(WRITE).expect("memory");
        let (buffer, read) = own.queue.read(lba(place), buffer).await;
        if let Err(error) = read {
            assert!(self.is_off.load(Ordering::Acquire), "place {place}: {error}");
            core::future::pending().await
        }
        let mut data = [0; WRITE];
        buffer.copy_out(0, &mut data);
        self.check(place, &data);
    }
}

fn lba(place: usize) -> Lba {
    Lba((place * WRITE_BLOCKS) as u64)
}

fn places(number: usize) -> std::ops::Range<usize> {
    PLACES * number..PLACES * (number + 1)
}

/// Runs `lane` for each of [`DEPTH`] numbers, until all have ended.
async fn at_once(lane: impl AsyncFn(usize)) {
    let mut lanes: Vec<_> = (0..DEPTH).map(|number| Some(Box::pin(lane(number)))).collect();
    poll_fn(|cx| {
        for lane in &mut lanes {
            if lane.as_mut().is_some_and(|lane| lane.as_mut().poll(cx).is_ready()) {
                *lane = None;
            }
        }
        match lanes.iter().all(Option::is_none) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
}

/// Waits for what another thread brings about.
fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let since = STD_CLOCK.now();
    while !condition() {
        assert!(STD_CLOCK.now().since(since) < PATIENCE, "no end of waiting for {what}");
        std::thread::yield_now();
    }
}

fn count(stats: &Value, kind: &str, of: &str) -> u64 {
    stats["commands"][kind][of].as_u64().unwrap_or_else(|| panic!("{kind} {of}: {stats}"))
}

/// Reads all places, then writes them until the device has gone.
async fn reads_and_writes(ledger: &Ledger, own: &HostThread) {
    assert!(!ledger.is_off.load(Ordering::Acquire), "a client is served without power");
    at_once(async |lane| {
        let places = places(own.number).skip(lane).step_by(DEPTH);
        for place in places.clone() {
            ledger.read(own, place).await;
        }
        for place in places.cycle() {
            ledger.write(own, place).await;
        }
    })
    .await;
}

/// Power cuts under writes: all that was answered is there, and nothing is served without power.
fn cuts(front_end: &'static str) {
    /// Writes that are answered before each cut.
    const ANSWERS: u64 = 2_000;
    const ROUNDS: u64 = 6;
    let _turn = testing::turn();
    let (folder, plan) = (Folder::new(&format!("power-{front_end}")), plan("live", &SETS));
    let (served, ledger) = (Served::start(&folder, front_end, &plan), Ledger::new());
    let work = async |own: HostThread| reads_and_writes(&ledger, &own).await;
    for round in 0..ROUNDS {
        let (before, checked, resets) = (ledger.answers(), ledger.checked(), Resets::default());
        std::thread::scope(|scope| {
            let _ends = served.ends_with_test(&resets);
            let host = scope.spawn(|| host(&plan, served.connect(&plan), &resets, &work));
            if round > 0 {
                is_off(&served, round);
                ledger.is_off.store(false, Ordering::Release);
                served.call("power.restore");
            }
            let wait = |what, condition: &dyn Fn() -> bool| {
                wait(what, || host.is_finished() || condition());
            };
            // A thread that has no core yet reads while the others already write.
            let all = checked + (THREADS * PLACES) as u64;
            wait("reads of all threads", &|| ledger.checked() == all);
            wait("answers", &|| ledger.answers() >= before + ANSWERS / 2);
            // Resets are under way in some rounds, and a pause in others.
            if round % 3 == 1 {
                resets.wanted.store(3, Ordering::Release);
                wait("a reset", &|| resets.done.load(Ordering::Acquire) > 0);
            }
            wait("answers", &|| ledger.answers() >= before + ANSWERS);
            ledger.is_off.store(true, Ordering::Release);
            if round % 3 == 2 {
                served.call("pause");
            }
            served.call("power.cut");
            assert!(host.join().expect("it verifies"), "the client is disconnected");
            assert_eq!(ledger.checked(), all, "round {round}");
        });
        if round % 3 == 2 {
            served.call("resume");
        }
    }
    served.call("power.restore");
    ledger.is_off.store(false, Ordering::Release);
    let last = async |own: HostThread| {
        for place in places(own.number) {
            ledger.read(&own, place).await;
        }
    };
    let has_gone = host(&plan, served.connect(&plan), &Resets::default(), &last);
    assert!(!has_gone, "a host leaves a drive that runs");
    served.stop();
}

/// A drive without power, of this many clients so far.
fn is_off(served: &Served, accepted: u64) {
    // The connection ends after the device.
    wait("the end of a session", || served.stats()["clients"] == json!(0));
    // A client is connecting.
    for _ in 0..20 {
        let stats = served.stats();
        assert_eq!((&stats["powered"], &stats["clients"]), (&json!(false), &json!(0)), "{stats}");
    }
    let clients = served.call("clients")["drives"][0].clone();
    assert_eq!(clients["accepted"], json!(accepted), "{clients}");
}

#[test]
fn acknowledged_writes_survive_power_cuts_of_four_device_threads() {
    cuts("shm");
}

#[test]
fn acknowledged_writes_survive_power_cuts_of_four_device_threads_over_vfio_user() {
    cuts("vfio-user");
}

/// The counts of a drive are those of all threads, over a reset and over sessions.
fn counts(front_end: &'static str) {
    let _turn = testing::turn();
    let (folder, plan) = (Folder::new(&format!("counts-{front_end}")), plan("live", &SETS));
    let (served, ledger) = (Served::start(&folder, front_end, &plan), Ledger::new());
    // Phases of the host, and how many threads have ended them.
    let (phase, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let commands = async |own: &HostThread| {
        // Another number for each thread.
        for place in places(own.number).take(10 + own.number) {
            ledger.write(own, place).await;
            ledger.read(own, place).await;
            ledger.read(own, place).await;
        }
        own.queue.flush().await.expect("a flush");
        ended.fetch_add(1, Ordering::AcqRel);
    };
    let work = async |own: HostThread| {
        let before = phase.load(Ordering::Acquire);
        commands(&own).await;
        until(&own.rt, || phase.load(Ordering::Acquire) > before).await;
        commands(&own).await;
        until(&own.rt, || phase.load(Ordering::Acquire) > before + 1).await;
    };
    let of_all = (0..THREADS as u64).map(|number| 10 + number).sum::<u64>();
    let expect = |times: u64, when: &str| {
        let stats = served.stats();
        for (kind, commands, bytes) in [
            ("write", of_all, WRITE as u64),
            ("read", 2 * of_all, WRITE as u64),
            ("flush", THREADS as u64, 0),
        ] {
            let found = (count(&stats, kind, "commands"), count(&stats, kind, "bytes"));
            let expected = (times * commands, times * commands * bytes);
            assert_eq!(found, expected, "{kind}, {when}");
        }
    };
    for session in 0..2 {
        let resets = Resets::default();
        std::thread::scope(|scope| {
            let _ends = served.ends_with_test(&resets);
            let host = scope.spawn(|| host(&plan, served.connect(&plan), &resets, &work));
            let have_ended = |times: u64| {
                wait("commands", || ended.load(Ordering::Acquire) as u64 == times * THREADS as u64);
            };
            have_ended(2 * session + 1);
            expect(2 * session + 1, "in a session");
            assert_eq!(served.stats()["clients"], json!(1));
            resets.wanted.store(1, Ordering::Release);
            wait("a reset", || resets.done.load(Ordering::Acquire) == 1);
            expect(2 * session + 1, "after a reset");
            phase.fetch_add(1, Ordering::AcqRel);
            have_ended(2 * session + 2);
            expect(2 * session + 2, "after a reset and more");
            phase.fetch_add(1, Ordering::AcqRel);
            assert!(!host.join().expect("it verifies"), "it leaves a drive that runs");
        });
        served.waits();
        expect(2 * session + 2, "after a session");
    }
    served.stop();
}

#[test]
fn stats_add_the_commands_of_four_device_threads() {
    counts("shm");
}

#[test]
fn stats_add_the_commands_of_four_device_threads_over_vfio_user() {
    counts("vfio-user");
}

/// In a pause no thread completes a command; other verbs that threads cannot offer are refused.
#[test]
fn four_device_threads_pause_and_refuse_other_changes() {
    let _turn = testing::turn();
    let (folder, plan) = (Folder::new("pauses"), plan("live", &SETS));
    let (served, ledger) = (Served::start(&folder, "shm", &plan), Ledger::new());
    let work = async |own: HostThread| reads_and_writes(&ledger, &own).await;
    let resets = Resets::default();
    std::thread::scope(|scope| {
        let _ends = served.ends_with_test(&resets);
        let host = scope.spawn(|| host(&plan, served.connect(&plan), &resets, &work));
        for round in 1..=3 {
            let more = ledger.answers() + 500;
            wait("answers", || host.is_finished() || ledger.answers() >= more);
            served.call("pause");
            let paused = count(&served.stats(), "write", "commands");
            for _ in 0..50 {
                let stats = served.stats();
                assert_eq!(count(&stats, "write", "commands"), paused, "in pause {round}");
                assert_eq!(stats["paused"], json!(true), "in pause {round}");
            }
            served.call("resume");
        }
        let fault = json!({ "fault": "{ name = \"late\", what = \"delay\", span = \"1 us\" }" });
        for (method, parameters) in [
            ("faults.inject", fault),
            ("faults.clear", json!({})),
            ("timing.set", json!({ "key": "first_byte", "value": "1 us" })),
            ("save", json!({})),
            ("fork", json!({ "file": "/nowhere/state" })),
            ("wear", json!({ "years": 1 })),
        ] {
            let error = served.ask(method, &parameters).expect_err("refused");
            let drive = served.socket.display();
            let expected = format!("{drive}: {method}: found 4 device threads, expected one");
            assert_eq!(error, expected);
        }
        let more = ledger.answers() + 500;
        wait("answers", || host.is_finished() || ledger.answers() >= more);
        ledger.is_off.store(true, Ordering::Release);
        served.call("power.cut");
        assert!(host.join().expect("it verifies"), "the client is disconnected");
    });
    served.stop();
}
