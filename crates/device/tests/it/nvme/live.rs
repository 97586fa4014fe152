//! The malicious host in the live world: one thread is the controller, one runs the script, and a third
//! overwrites queues, lists and doorbells while both run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bus::live::{LiveHost, Shared};
use device::nvme::Options;
use runtime::{Log, Rng, Rt, STD_CLOCK, Span};
use wire::BusAddr;
use wire::nvme::registers::{CAP, CC, DOORBELLS};

use crate::nvme::hostile::Watchdog;
use crate::raw::nvme::script::Script;
use crate::raw::nvme::world::{Setup, device};
use crate::raw::nvme::{Raw, Settings};

/// Steps of the script in a round.
const STEPS: u64 = 200;

/// Rounds after which a run without enough work has failed.
const ROUNDS_MAX: u64 = 100_000;

/// Counts published by the controller's thread.
#[derive(Default, Debug)]
struct Counts {
    transfers: AtomicU64,
    refused: AtomicU64,
    completions: AtomicU64,
    lives: AtomicU64,
}

/// Tells the other threads to stop, however its own ends.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn controller(shared: &Shared, setup: &Setup, stop: &AtomicBool, counts: &Counts) {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let (medium, witness) = device(shared.device(&rt), setup);
    medium.span.set(Span::ZERO);
    let publish = || {
        counts.transfers.store(witness.transfers.get(), Ordering::Release);
        counts.refused.store(witness.refused.get(), Ordering::Release);
        counts.completions.store(witness.completions.borrow().values().sum(), Ordering::Release);
        counts.lives.store(witness.lives.get(), Ordering::Release);
    };
    rt.block_on(async {
        while !stop.load(Ordering::Acquire) {
            rt.sleep(Span::ms(1)).await;
            publish();
        }
    });
    rt.drop_tasks();
    publish();
}

/// Lets the host thread pause the scribbler while the host keeps to the protocol.
#[derive(Default)]
struct Gate {
    closed: AtomicBool,
    stands: AtomicBool,
}

impl Gate {
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        while !self.stands.load(Ordering::Acquire) {
            thread::yield_now();
        }
    }

    fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// The scribbler waits here while the gate is closed.
    fn pass(&self, stop: &AtomicBool) {
        while self.closed.load(Ordering::Acquire) && !stop.load(Ordering::Acquire) {
            self.stands.store(true, Ordering::Release);
            thread::yield_now();
        }
        self.stands.store(false, Ordering::Release);
    }
}

/// Overwrites registers, doorbells and memory, as fast as possible.
fn scribble(shared: &Shared, options: &Options, seed: u64, gate: &Gate, stop: &AtomicBool) {
    let mut rng = Rng::for_part(seed, "scribbler");
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let raw = Raw::<LiveHost>::new(shared.host(&rt));
    let (base, bytes) = (raw.memory.base().0, raw.memory.bytes() as u64);
    while !stop.load(Ordering::Acquire) {
        gate.pass(stop);
        match rng.below(1 << 14) {
            0 => raw.set(CC, Settings::default().cc.with_en(rng.chance(7, 8)).into_bits()),
            1 => raw.set(rng.below(0x40) as u32 & !3, rng.next_u64() as u32),
            2..1024 => {
                let doorbells = 2 * (u64::from(options.io_queues) + 2);
                raw.set(DOORBELLS + 4 * rng.below(doorbells) as u32, rng.below(40) as u32);
            }
            _ => {
                // Valid page addresses, so that lists and entries turn into others, not only into noise.
                let page = base + rng.below(bytes / 4096 + 4) * 4096;
                let word = if rng.chance(1, 2) { rng.next_u64() } else { page };
                let at = BusAddr(base + 8 * rng.below(bytes / 8));
                raw.memory.write(at, &word.to_le_bytes()).expect("inside");
            }
        }
    }
}

/// Malicious rounds, each ending with a proper reset while the scribbler is paused; goes on while
/// `goes_on(round)` is true.
fn host(shared: &Shared, setup: &Setup, seed: u64, gate: &Gate, goes_on: impl Fn(u64) -> bool) {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let mut raw = Raw::new(shared.host(&rt));
    raw.stride = setup.stride();
    let watchdog = Watchdog::start(seed, ROUNDS_MAX);
    let mut script = Script::new(&mut raw, Rng::for_part(seed, "live"), setup.block_bytes);
    rt.block_on(async {
        for round in (0..ROUNDS_MAX).take_while(|&round| goes_on(round)) {
            gate.close();
            // Overwritten blocks are not checked here: the witness checks each write as it happens.
            script.recover(|| true, true).await;
            gate.open();
            for step in 0..STEPS {
                script.step().await;
                if step % 16 == 0 {
                    rt.sleep(Span::us(20)).await;
                }
            }
            watchdog.steps.store(round, Ordering::Relaxed);
        }
        gate.close();
        script.recover(|| true, true).await;
    });
}

/// Runs until `enough(rounds, counts)` is true.
fn run(seed: u64, enough: impl Fn(u64, &Counts) -> bool) -> Counts {
    let options = Options { slots: 32, io_queues: 5, queue_entries_max: 256, ..Options::default() };
    let setup =
        Setup { options, memory_bytes: 2 << 20, logged: false, label: None, ..Setup::default() };
    let window = setup.options.register_bytes();
    let shared = Shared::between_threads(setup.memory_bytes, setup.memory_base, window)
        .expect("memory for two threads");
    let (stop, gate, counts) = (AtomicBool::new(false), Gate::default(), Counts::default());
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        scope.spawn(|| controller(&shared, &setup, &stop, &counts));
        scope.spawn(|| scribble(&shared, &setup.options, seed, &gate, &stop));
        host(&shared, &setup, seed, &gate, |round| !enough(round, &counts));
        drop(stopping);
    });
    counts
}

/// The work done in a round depends on the scheduler, so the rounds go on until there was enough.
#[test]
fn hostile_host_and_scribbler_live() {
    let seen = |counter: &AtomicU64| counter.load(Ordering::Acquire);
    let enough = |round: u64, counts: &Counts| {
        round >= 24
            && seen(&counts.lives) > 24
            && seen(&counts.transfers) > 1000
            && seen(&counts.completions) > 500
            && seen(&counts.refused) > 0
    };
    let counts = run(1, enough);
    assert!(enough(u64::MAX, &counts), "{counts:?} after {ROUNDS_MAX} rounds");
}

/// CC written again while the controller executes its last value: whether the watcher or the executing task
/// reads it first, the newest value counts.
#[test]
fn cc_rewritten_during_enable_takes_latest_value() {
    let setup = Setup { memory_bytes: 2 << 20, logged: false, ..Setup::default() };
    let window = setup.options.register_bytes();
    let shared = Shared::between_threads(setup.memory_bytes, setup.memory_base, window)
        .expect("memory for two threads");
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        scope.spawn(|| controller(&shared, &setup, &stop, &counts));
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let mut raw = Raw::new(shared.host(&rt));
        let queues = Some((raw.place(4096, 4096), raw.place(4096, 4096)));
        let settings = || Settings { queues, ..Settings::default() };
        rt.block_on(async {
            // CAP, and with it the timeout, reads as zero until the controller's thread has started.
            while shared.load(CAP) == 0 {
                rt.sleep(Span::us(100)).await;
            }
            for round in 0..1_000 {
                raw.start(settings());
                (0..round % 100 * 8).for_each(|_| std::hint::spin_loop());
                raw.disable().await;
                raw.enable(settings()).await;
                raw.disable().await;
            }
        });
        drop(stopping);
    });
}

#[test]
#[ignore = "as long as DOORBELL_OPS says, in rounds"]
fn hostile_host_and_scribbler_live_long() {
    let seed = crate::nvme::hostile::from_environment("DOORBELL_SEED", 1);
    let rounds = crate::nvme::hostile::from_environment("DOORBELL_OPS", 2_000);
    eprintln!("{:?}", run(seed, |round, _| round >= rounds));
}
