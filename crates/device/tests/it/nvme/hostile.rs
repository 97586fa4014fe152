//! Malicious host in virtual time: the controller neither panics nor hangs, accesses only memory that the
//! host named, and serves a host that resets it properly.
//!
//! A failure prints its repro arguments. `cargo test -p doorbell-device --test it nvme::hostile -- --ignored`
//! runs longer, with the seed in `DOORBELL_SEED` and the number of steps in `DOORBELL_OPS`; `tools/hostile`
//! goes on from seed to seed until a given number of commands have completed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use runtime::{Rng, Span};
use wire::nvme::status::Status;

use crate::raw::nvme::choice::Choice;
use crate::raw::nvme::script::{Script, touches_with_pi};
use crate::raw::nvme::world::{Setup, World};

/// Maximum steps between two proper resets.
const LAP: u64 = 400;
/// Steps between checks that the controller still responds.
const LOOK: u64 = 16;

/// Counts of a run; they show that it was not idle.
#[derive(Debug, Default)]
struct Seen {
    refused: u64,
    transfers: u64,
    completions: BTreeMap<(bool, Status), u64>,
    lives: u64,
    fatal: u64,
}

fn run(seed: u64, steps: u64) -> Seen {
    let watchdog = Watchdog::start(seed, steps);
    let mut rng = Rng::for_part(seed, "hostile host");
    let setup = Setup::drawn(&mut rng);
    setup.run(async |mut w: World| {
        w.medium.span.set(Choice::of(&mut rng, &[Span::ZERO, Span::us(1), Span::us(40)]));
        let mut script = Script::new(&mut w.raw, rng, w.setup.block_bytes);
        script.recover(|| false, true).await;
        w.medium.written.borrow_mut().clear();
        for step in 1..=steps {
            script.step().await;
            watchdog.steps.store(step, Ordering::Relaxed);
            let dead = step % LOOK == 0 && !script.is_alive().await;
            if dead || step % LAP == 0 || step == steps {
                script.recover(|| touches_with_pi(&w.medium.written.borrow()), true).await;
                w.medium.written.borrow_mut().clear();
                w.medium.read.borrow_mut().clear();
            }
        }
        let witness = &w.witness;
        Seen {
            refused: witness.refused.get(),
            transfers: witness.transfers.get(),
            completions: witness.completions.take(),
            lives: witness.lives.get(),
            fatal: witness.fatal.get(),
        }
    })
}

/// Prints the repro arguments of a failed run, and aborts one that hangs.
pub struct Watchdog {
    pub steps: Arc<AtomicU64>,
    seed: u64,
    wanted: u64,
    _end: mpsc::Sender<()>,
}

impl Watchdog {
    pub fn start(seed: u64, wanted: u64) -> Watchdog {
        let (end, ended) = mpsc::channel::<()>();
        let steps = Arc::new(AtomicU64::new(0));
        let watched = steps.clone();
        thread::spawn(move || {
            let mut last = u64::MAX;
            while let Err(mpsc::RecvTimeoutError::Timeout) =
                ended.recv_timeout(Duration::from_secs(120))
            {
                let now = watched.load(Ordering::Relaxed);
                if now == last {
                    eprintln!("hangs after step {now}: DOORBELL_SEED={seed} DOORBELL_OPS={wanted}");
                    std::process::abort();
                }
                last = now;
            }
        });
        Watchdog { steps, seed, wanted, _end: end }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if thread::panicking() {
            let step = self.steps.load(Ordering::Relaxed);
            let Watchdog { seed, wanted, .. } = self;
            eprintln!("after step {step}: repeat with DOORBELL_SEED={seed} DOORBELL_OPS={wanted}");
        }
    }
}

/// A run must be busy to prove anything.
fn assert_busy(seen: &Seen, steps: u64) {
    let completions: u64 = seen.completions.values().sum();
    assert!(completions > steps / 20, "{seen:?}");
    assert!(seen.completions.len() > 16, "{seen:?}");
    assert!(seen.transfers > steps / 5, "{seen:?}");
    assert!(seen.refused > 0 && seen.fatal > 0, "{seen:?}");
    assert!(seen.lives > steps / LAP, "{seen:?}");
}

#[test]
fn hostile_host_script_seed_1() {
    assert_busy(&run(1, 20_000), 20_000);
}

#[test]
fn hostile_host_script_seed_2() {
    assert_busy(&run(2, 20_000), 20_000);
}

#[test]
fn hostile_host_script_seed_3() {
    assert_busy(&run(3, 20_000), 20_000);
}

/// Many controllers, a short run of each.
#[test]
fn hostile_host_script_on_random_setups() {
    for seed in 100..130 {
        run(seed, 2 * LAP);
    }
}

/// The same seed gives the same run.
#[test]
fn hostile_host_run_is_deterministic() {
    let (one, two) = (run(42, 2_000), run(42, 2_000));
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
}

pub fn from_environment(key: &str, otherwise: u64) -> u64 {
    match std::env::var(key) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{key}={text}: expected a number")),
        Err(_) => otherwise,
    }
}

#[test]
#[ignore = "as long as DOORBELL_OPS says"]
fn hostile_host_script_long() {
    let (seed, steps) =
        (from_environment("DOORBELL_SEED", 1), from_environment("DOORBELL_OPS", 200_000));
    eprintln!("{:?}", run(seed, steps));
}

/// One controller per seed, until `DOORBELL_COMMANDS` commands have completed. It starts at `DOORBELL_SEED`,
/// so that a stopped run can be resumed.
#[test]
#[ignore = "until DOORBELL_COMMANDS commands have been answered"]
fn hostile_host_scripts_until_command_count() {
    let first = from_environment("DOORBELL_SEED", 1);
    let wanted = from_environment("DOORBELL_COMMANDS", 100_000);
    let (mut answered, mut refused, mut lives) = (0, 0, 0);
    for seed in first.. {
        let seen = run(seed, 20_000);
        answered += seen.completions.values().sum::<u64>();
        (refused, lives) = (refused + seen.refused, lives + seen.lives);
        if answered >= wanted || seed % 50 == 0 {
            let next = seed + 1;
            println!(
                "{answered} commands, {refused} bad addresses, {lives} resets; next seed {next}"
            );
        }
        if answered >= wanted {
            return;
        }
    }
}
