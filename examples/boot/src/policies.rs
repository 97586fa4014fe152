//! diskhog under the thesis's queue policies: cores share queues by real locks. The first core creates the
//! queues; each core opens those of its policy and shows them as a SCSI disk of its own.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bus::{Arena, Memory};
use host::nvme::{CommonSpread, Policy, QueueOptions, SpinLock, SpinOrder, SpreadOptions};
use runtime::{Log, Rt, Span, Time, WallClock};
use scsi::of_nvme;
use wire::scsi::inquiry::Identity;

use crate::clock::CLOCK;
use crate::console::{say, verdict};
use crate::cores::{self, CORES_MAX};
use crate::cpu::{self, Registers};
use crate::diskhog::{self, DEPTH, Progress, Share};
use crate::lock::Lock;
use crate::nvme::Device;
use crate::port::Port;

/// Depth of a queue: what one core has in flight. A queue that several cores share is full.
const QUEUE_DEPTH: u16 = DEPTH;
/// Queues of round robin and of pools, for each core.
const QUEUES_PER_CORE: usize = 2;
/// Timeout for all cores to come to a gate, beside the time of the work before it.
const GATE: Span = Span::s(30);
/// Batches of a measurement, of which the median counts, and turns of each.
const BATCHES: usize = 33;
const BATCH: u32 = 64;

static PROGRESS: [Progress; CORES_MAX] = [const { Progress::new() }; CORES_MAX];

/// Most queues that a device is asked for.
pub fn queues(cores: usize) -> usize {
    cores * QUEUES_PER_CORE
}

/// Points that all cores pass together.
#[derive(Clone, Copy)]
enum Gate {
    Attached,
    Worked,
    Left,
}

/// State of a run, common to its cores.
struct Machine {
    spread: CommonSpread,
    registers: Registers,
    first_message: usize,
    identity: Identity,
    cores: usize,
    span: Span,
    /// Cores that have come to each gate.
    gates: [AtomicU32; 3],
    /// End of the work, picoseconds; 0 until the first core sets it.
    until: AtomicU64,
    failed: Lock<Option<String>>,
}

/// Runs diskhog for `span` under each policy, with locks of both orders where cores share queues. Returns
/// false if another core may still use its memory.
pub async fn run(rt: &Rt, device: &Device, parts: &[Memory], span: Span) -> bool {
    let cores = parts.len() + 1;
    let home = cores - 1;
    if cores > 1 {
        let (lock, transfer) = (lock_cost(), transfer_cost());
        say(format_args!(
            "# policies: {cores} cores, {DEPTH} commands of each, queues of {QUEUE_DEPTH}, home core {home}, \
             lock {} ps, line {} ps",
            lock.0, transfer.0
        ));
    }
    for policy in Policy::ALL {
        for order in [SpinOrder::Unfair, SpinOrder::Fair] {
            if order == SpinOrder::Fair && !policy.is_shared() {
                continue;
            }
            let options = SpreadOptions {
                policy,
                queues: (device.controller.identity().queues as usize).min(queues(cores)) as u16,
                each: QueueOptions { depth: QUEUE_DEPTH, ..QueueOptions::default() },
                order,
                home: home as u16,
                seed: 0,
                transfer: Span::ZERO,
            };
            let name = format!("{} policy {}", device.name, name(policy, order));
            let worked = one(rt, device, parts, &options, span).await;
            let is_over = worked.is_ok();
            verdict(format_args!("{name}"), worked);
            if !is_over {
                return false;
            }
        }
    }
    true
}

fn name(policy: Policy, order: SpinOrder) -> &'static str {
    match (policy, order) {
        (Policy::Single, SpinOrder::Fair) => "single, fair",
        (Policy::Single, _) => "single, unfair",
        (Policy::RoundRobin, SpinOrder::Fair) => "round-robin, fair",
        (Policy::RoundRobin, _) => "round-robin, unfair",
        (Policy::PerCore, _) => "per-core",
        (Policy::Pool, _) => "pool",
    }
}

/// Runs one policy to its end, and describes the result.
async fn one(
    rt: &Rt,
    device: &Device,
    parts: &[Memory],
    options: &SpreadOptions,
    span: Span,
) -> Result<String, String> {
    let cores = parts.len() + 1;
    let created = CommonSpread::create(&device.controller, cores as u16, options).await;
    let (spread, memory) = created.map_err(|error| error.to_string())?;
    let identity = device.controller.identity();
    PROGRESS.iter().for_each(Progress::clear);
    let machine = Arc::new(Machine {
        spread,
        registers: device.registers,
        first_message: device.first_message,
        identity: of_nvme(&identity.controller, &identity.namespace),
        cores,
        span,
        gates: [const { AtomicU32::new(0) }; 3],
        until: AtomicU64::new(0),
        failed: Lock::new(None),
    });
    for (number, part) in parts.iter().enumerate() {
        let (machine, memory, core) = (machine.clone(), part.clone(), number + 1);
        cores::give(core, Box::new(move || machine.away(core, memory)));
    }
    machine.fail_with(machine.work(rt, &device.port, 0).await);
    // A core that has failed leaves too: no core runs on memory that is deleted.
    machine.pass(rt, Gate::Left).await?;
    for memory in memory {
        let deleted = device.controller.delete_common(memory).await;
        deleted.map_err(|error| error.to_string())?;
    }
    if let Some(why) = machine.failed.lock().take() {
        return Err(why);
    }
    match machine.spread.violations() {
        0 => Ok(machine.described()),
        wrong => Err(format!("{wrong} invalid completions, expected none")),
    }
}

impl Machine {
    /// Opens its queues on the calling core, and works until all have ended.
    fn away(&self, core: usize, memory: Memory) {
        let rt = Rt::live(&CLOCK, None, Log::Off);
        let arena = Arena::new(memory);
        let port = Port::new(&rt, &arena, self.registers, self.first_message);
        let worked = rt.block_on(self.work(&rt, &port, core));
        rt.drop_tasks();
        self.fail_with(worked.map_err(|why| format!("core {core}: {why}")));
        self.gates[Gate::Left as usize].fetch_add(1, Ordering::AcqRel);
    }

    fn fail_with(&self, worked: Result<(), String>) {
        if let Err(why) = worked {
            self.failed.lock().get_or_insert(why);
        }
    }

    async fn work(&self, rt: &Rt, port: &Port, core: usize) -> Result<(), String> {
        let opened = self.spread.open(port, core as u16).map_err(|error| error.to_string())?;
        let disk = diskhog::attach(opened, self.identity).await?;
        self.pass(rt, Gate::Attached).await?;
        if core == 0 {
            self.until.store((rt.now() + self.span).0, Ordering::Release);
        }
        let is_set = || Some(self.until.load(Ordering::Acquire)).filter(|until| *until > 0);
        let until = Time(bus::until(rt, is_set).await);
        let share = Share { core, cores: self.cores, until };
        let worked = diskhog::hog(rt, &disk, share, &PROGRESS[core]).await;
        self.fail_with(worked.map_err(|why| format!("core {core}: {why}")));
        // Until then other cores need this one, if it is the home of their queues.
        let passed = self.pass(rt, Gate::Worked).await;
        self.spread.stop();
        passed
    }

    /// Waits until all cores have come to a gate. They keep taking in completions for each other.
    async fn pass(&self, rt: &Rt, gate: Gate) -> Result<(), String> {
        let come = &self.gates[gate as usize];
        come.fetch_add(1, Ordering::AcqRel);
        let by = rt.now() + self.span + GATE;
        let all = bus::until(rt, || match come.load(Ordering::Acquire) as usize {
            come if come == self.cores => Some(Ok(())),
            come if rt.now() >= by => Some(Err(come)),
            _ => None,
        });
        all.await.map_err(|come| format!("{come} cores of {} came to an end", self.cores))
    }

    /// Bytes of each core, and its share, where 1 is even.
    fn described(&self) -> String {
        let shape = self.spread.shape();
        let count = |of: fn(&Progress) -> &AtomicU64| -> Vec<u64> {
            PROGRESS[..self.cores].iter().map(|core| of(core).load(Ordering::Relaxed)).collect()
        };
        let moved = count(|core| &core.in_time);
        let (all, verified) = (moved.iter().sum::<u64>().max(1), count(|core| &core.verified));
        let hundredths = |core: &u64| core * 100 * self.cores as u64 / all;
        let shares = moved.iter().map(hundredths);
        let shares: Vec<_> =
            shares.map(|share| format!("{}.{:02}", share / 100, share % 100)).collect();
        format!(
            "{} queues of {}, {} KiB in {} ms, {} KiB verified, {} lock waits, shares {}",
            shape.queues,
            shape.depth,
            all >> 10,
            self.span.as_ns() / 1_000_000,
            verified.iter().sum::<u64>() >> 10,
            self.spread.lock_waits(),
            shares.join(" ")
        )
    }
}

/// Taking and giving back a free lock whose line is in the core's cache.
fn lock_cost() -> Span {
    let word = SpinLock::new(SpinOrder::Unfair);
    median(|| {
        let begun = CLOCK.now();
        (0..BATCH).for_each(|_| drop(word.lock()));
        CLOCK.now().since(begun) / u64::from(BATCH)
    })
}

/// Half of the time in which a word goes to core 1 and comes back.
fn transfer_cost() -> Span {
    let word = Arc::new(AtomicU32::new(0));
    let (theirs, last) = (word.clone(), BATCHES as u32 * BATCH * 2);
    cores::give(
        1,
        Box::new(move || {
            for turn in (1..last).step_by(2) {
                wait_for(&theirs, turn);
                theirs.store(turn + 1, Ordering::Release);
            }
        }),
    );
    let mut turn = 0;
    median(|| {
        let begun = CLOCK.now();
        for _ in 0..BATCH {
            word.store(turn + 1, Ordering::Release);
            turn += 2;
            wait_for(&word, turn);
        }
        CLOCK.now().since(begun) / u64::from(2 * BATCH)
    })
}

fn wait_for(word: &AtomicU32, value: u32) {
    while word.load(Ordering::Acquire) != value {
        cpu::pause();
    }
}

fn median(mut batch: impl FnMut() -> Span) -> Span {
    let mut all: Vec<Span> = (0..BATCHES).map(|_| batch()).collect();
    all.sort();
    all[BATCHES / 2]
}
