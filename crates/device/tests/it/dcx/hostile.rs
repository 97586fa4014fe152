//! Malicious host, simulated and live: the front end neither panics nor hangs, writes only memory named by an
//! enabled queue, and serves a queue that is disabled and enabled properly.
//!
//! A failure prints its repro arguments. `cargo test -p doorbell-device --test it dcx::hostile -- --ignored`
//! runs longer, with the seed in `DOORBELL_SEED` and the number of steps in `DOORBELL_OPS`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bus::HostPort;
use bus::live::Shared;
use runtime::{Log, Rng, Rt, STD_CLOCK, Span};
use wire::BusAddr;
use wire::dcx::registers::Group;

use crate::nvme::hostile::from_environment;
use crate::nvme::live::Stop;
use crate::raw::dcx::script::{Script, drawn};
use crate::raw::dcx::world::{DCX_FROM, Device, Setup, World, device};
use crate::raw::dcx::{LIVE_PATIENCE, Raw};

/// Maximum steps between two proper restarts of every queue.
const LAP: u64 = 100;

/// Counts of a run; they show that it was not idle.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    transfers: u64,
    refused: u64,
    codes: usize,
    lives: u64,
    faults: u64,
    sleeps: u64,
}

/// Prints the repro arguments of a failed run.
struct Repeat(u64, u64);

impl Drop for Repeat {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with DOORBELL_SEED={} DOORBELL_OPS={}", self.0, self.1);
        }
    }
}

fn run(seed: u64, steps: u64) -> Seen {
    let _repeat = Repeat(seed, steps);
    let mut rng = Rng::for_part(seed, "hostile host");
    drawn(&mut rng).run(async |w: World| {
        w.medium.span.set(Span::ns(rng.below(3) * 700));
        let mut script = Script::new(&w.raw, rng, &w.setup);
        for step in 0..steps {
            script.step().await;
            if step % LAP == 0 {
                script.recover(true).await;
            }
        }
        script.recover(true).await;
        seen(&w)
    })
}

fn seen(w: &World) -> Seen {
    Seen {
        transfers: w.witness.transfers.get(),
        refused: w.witness.refused.get(),
        codes: w.witness.reports.borrow().len(),
        lives: w.witness.lives.get(),
        faults: w.witness.faults.get(),
        sleeps: w.front.counts().sleeps,
    }
}

#[test]
fn hostile_host_script() {
    for seed in 1..4 {
        let seen = run(seed, 8_000);
        let busy = seen.transfers > 500 && seen.refused > 5 && seen.codes >= 5;
        assert!(busy && seen.lives > 50 && seen.faults > 5, "{seed}: {seen:?}");
    }
}

#[test]
fn hostile_host_script_on_random_setups() {
    let sleeps: u64 = (100..160).map(|seed| run(seed, 6 * LAP).sleeps).sum();
    assert!(sleeps > 0);
}

#[test]
fn hostile_host_run_is_deterministic() {
    assert_eq!(run(42, 1500), run(42, 1500));
}

#[test]
#[ignore = "as long as DOORBELL_OPS says"]
fn hostile_host_script_long() {
    let (seed, steps) =
        (from_environment("DOORBELL_SEED", 1), from_environment("DOORBELL_OPS", 200_000));
    eprintln!("{:?}", run(seed, steps));
}

/// Live: one thread is the device, one runs the script, and a third overwrites rings and registers while both
/// run.
fn run_live(seed: u64, laps: u64) -> u64 {
    let _repeat = Repeat(seed, laps);
    let setup = Setup { memory_bytes: 2 << 20, ..Setup::default() };
    let window = setup.spec().register_bytes;
    let base = setup.spec().memory_base;
    let shared = Shared::between_threads(setup.memory_bytes, base, window).expect("memory");
    let (stop, stand, transfers) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let rt = Rt::live(&STD_CLOCK, None, Log::Off);
            let Device { medium, witness, .. } = device(shared.device(&rt), &setup);
            medium.span.set(Span::ZERO);
            rt.block_on(async {
                while !stop.load(Ordering::Acquire) {
                    rt.sleep(Span::ms(1)).await;
                    transfers.store(witness.transfers.get(), Ordering::Release);
                }
            });
            rt.drop_tasks();
        });
        scope.spawn(|| scribble(&shared, &setup, seed, &stop, &stand));
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let mut raw = Raw::new(shared.host(&rt), setup.options.block, DCX_FROM);
        raw.patience = LIVE_PATIENCE;
        let mut script = Script::new(&raw, Rng::for_part(seed, "live"), &setup);
        let over = Stop(&stop);
        rt.block_on(async {
            for _ in 0..laps {
                // 1: the scribbler must pause; 2: it has paused.
                stand.store(1, Ordering::Release);
                while stand.load(Ordering::Acquire) != 2 {
                    std::thread::yield_now();
                }
                script.recover(false).await;
                stand.store(0, Ordering::Release);
                for _ in 0..LAP {
                    script.step().await;
                }
            }
        });
        drop(over);
    });
    transfers.load(Ordering::Acquire)
}

/// Writes over what lies in the rings' part of host memory, and over registers, as fast as it can.
fn scribble(shared: &Shared, setup: &Setup, seed: u64, stop: &AtomicBool, stand: &AtomicU64) {
    let mut rng = Rng::for_part(seed, "scribbler");
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let host = shared.host(&rt);
    let memory = host.arena().memory().clone();
    let from = memory.base().0 + DCX_FROM;
    while !stop.load(Ordering::Acquire) {
        if stand.load(Ordering::Acquire) > 0 {
            stand.store(2, Ordering::Release);
            std::thread::yield_now();
            continue;
        }
        match rng.below(1 << 12) {
            0 => {
                let queue = rng.below(u64::from(setup.options.queues)) as u32;
                let group = Group::of(setup.options.block, queue);
                let register = group.commands + 4 * rng.below(8) as u32;
                host.write32(register, rng.next_u64() as u32 & 0xfff);
            }
            1..64 => {
                let queue = rng.below(u64::from(setup.options.queues)) as u32;
                let group = Group::of(setup.options.block, queue);
                host.write32(group.doorbell, rng.below(64) as u32);
            }
            _ => {
                let at = BusAddr(from + 4 * rng.below(4096));
                memory.store_u32(at, rng.below(32) as u32).expect("inside");
            }
        }
    }
}

/// The work done in a lap depends on the scheduler, so the test goes on until there were enough transfers.
#[test]
fn hostile_host_and_scribbler_live() {
    let mut transfers = 0;
    for seed in 1..200 {
        transfers += run_live(seed, 8);
        if transfers > 2000 {
            return;
        }
    }
    panic!("the device has hardly moved: {transfers} transfers");
}

#[test]
#[ignore = "as long as DOORBELL_OPS says, in laps"]
fn hostile_host_and_scribbler_live_long() {
    let (seed, laps) =
        (from_environment("DOORBELL_SEED", 1), from_environment("DOORBELL_OPS", 1000));
    eprintln!("{} transfers", run_live(seed, laps));
}
