//! Microbenchmarks of this program on this machine: communication between two cores, calls, copies, driver
//! code.
//!
//! ```text
//!   plan, row ─► host and device on one thread, taking turns ─► CPU time of a command, by end
//! ```
//!
//! A crate of its own because what it measures, and the loops around that, are optimised, and the tools that
//! print the results are not.

use std::future::{Future, poll_fn};
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::task::{Context, Poll};

use bus::live::Shared;
use bus::{Buffer, HostPort, Memory};
use host::{BlockDevice, IoError};
use memmap2::MmapMut;
use runtime::{Either, Log, Rng, Rt, STD_CLOCK, Span, Time, WallClock, race};
use wire::{BusAddr, Lba};
use workload::trace::Mapping;

use plan::Plan;
use world::device::{Clock, Device, MediumState};
use world::interfaces::{Disk, NVME, Row};
use world::work::Work;
use world::{self, Options, RunError};

/// Round trips timed together: the cost of reading the clock would hide a single one.
pub const ROUND_TRIPS: u64 = 64;

/// Turns of the device's executor, more than enough for all work of 32 commands.
const DEVICE_TURNS: u32 = 256;

/// Two cache lines, because processors fetch lines in pairs.
#[repr(align(128))]
struct Word(AtomicU64);

/// Polls before the core is yielded: with more busy threads than cores, the other end may be waiting for this
/// core.
const SPINS: u32 = 4_000;

impl Word {
    #[inline]
    fn wait_for(&self, value: u64) {
        let mut spins = 0;
        while self.0.load(Ordering::Acquire) != value {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }
}

/// Lines that one core writes before another reads them.
const LINES: usize = 64;

/// Round trip between two cores: a word that one thread stores and the other waits for, and another word
/// back. Returns the median and the 99th percentile of `samples` samples.
pub fn round_trip(samples: usize) -> (Span, Span) {
    let (there, back) = (Word(AtomicU64::new(0)), Word(AtomicU64::new(0)));
    let last = samples as u64 * ROUND_TRIPS;
    let mut spans: Vec<Span> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=last {
                there.wait_for(turn);
                back.0.store(turn, Ordering::Release);
            }
        });
        let mut turn = 0;
        (0..samples)
            .map(|_| {
                let begun = STD_CLOCK.now();
                for _ in 0..ROUND_TRIPS {
                    turn += 1;
                    there.0.store(turn, Ordering::Release);
                    back.wait_for(turn);
                }
                STD_CLOCK.now().since(begun) / ROUND_TRIPS
            })
            .collect()
    });
    (median(&mut spans), spans[samples * 99 / 100])
}

/// Read time of a cache line that another core has written: dependent reads, where each line gives the
/// location of the next, and many overlapping ones. Medians, per line.
pub fn lines(samples: usize) -> (Span, Span) {
    let lines: Vec<Word> = (0..LINES).map(|_| Word(AtomicU64::new(0))).collect();
    let (written, read) = (Word(AtomicU64::new(0)), Word(AtomicU64::new(0)));
    let mut order: Vec<usize> = (1..LINES).collect();
    let mut rng = Rng::for_part(1, "lines");
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
    let (lines, written, read, order) = (&lines, &written, &read, &order);
    let (mut alone, mut together) = std::thread::scope(|scope| {
        scope.spawn(move || {
            for turn in 1..=2 * samples as u64 {
                let mut at = 0;
                for &next in order.iter().chain([&0]) {
                    lines[at].0.store(next as u64, Ordering::Relaxed);
                    at = next;
                }
                written.0.store(turn, Ordering::Release);
                read.wait_for(turn);
            }
        });
        let (mut alone, mut together) = (Vec::new(), Vec::new());
        for turn in 1..=2 * samples as u64 {
            written.wait_for(turn);
            let begun = STD_CLOCK.now();
            let stats = if turn % 2 == 0 {
                let follow = |at: usize, _| lines[at].0.load(Ordering::Relaxed) as usize;
                (0..LINES).fold(0, follow) as u64
            } else {
                lines.iter().map(|line| line.0.load(Ordering::Relaxed)).sum()
            };
            let span = STD_CLOCK.now().since(std::hint::black_box((begun, stats)).0);
            if turn % 2 == 0 { &mut alone } else { &mut together }.push(span / LINES as u64);
            read.0.store(turn, Ordering::Release);
        }
        (alone, together)
    });
    (median(&mut alone), median(&mut together))
}

/// Consecutive copies that are timed together.
const COPIES: u64 = 64;
/// Number of buffers, used in rotation.
const BUFFERS: u64 = 32;
const SOURCE_BYTES: usize = 1 << 20;

/// Time of a copy of `bytes` bytes from local memory to one of 32 buffers, all cached; median.
pub fn copy(bytes: usize, samples: usize) -> Span {
    let from = vec![1; SOURCE_BYTES];
    let to = Memory::private(BUFFERS as usize * bytes, BusAddr(0));
    let mut rng = Rng::for_part(1, "copies");
    let places = (SOURCE_BYTES / bytes) as u64;
    let mut spans: Vec<Span> = (0..samples)
        .map(|_| {
            let begun = STD_CLOCK.now();
            for turn in 0..COPIES {
                let place = rng.below(places) as usize * bytes;
                let at = BusAddr(turn % BUFFERS * bytes as u64);
                to.write(at, &from[place..place + bytes]).expect("inside");
            }
            STD_CLOCK.now().since(begun) / COPIES
        })
        .collect();
    median(&mut spans)
}

/// Memory of a filled drive, to find what copies out of it and into it cost at least.
pub struct Filled {
    bytes: MmapMut,
    buffers: Vec<u8>,
    rng: Rng,
}

/// Lines at the beginning of a copy that are prefetched; the processor finds the rest by itself.
const PREFETCHED_BYTES: usize = 512;

/// Lone copies that are timed together: the clock is looked at seldom.
const LONE_COPIES: u64 = 16;

/// Copies that are timed together, each beside others.
const COPIES_TOGETHER: usize = 64;

/// Time of one call of `work`: the median of means of [`COPIES_TOGETHER`] calls. A mean of all would have
/// each pause of the thread in it, and the first calls, before memory and caches are there.
fn typical(calls: usize, mut now: impl FnMut() -> Time, mut work: impl FnMut(usize)) -> Span {
    let mut means: Vec<Span> = (0..calls.div_ceil(COPIES_TOGETHER).max(1))
        .map(|batch| {
            let begun = now();
            (0..COPIES_TOGETHER).for_each(|call| work(batch * COPIES_TOGETHER + call));
            now().since(begun) / COPIES_TOGETHER as u64
        })
        .collect();
    median(&mut means)
}

impl Filled {
    /// Writes all of `bytes` bytes, on huge pages where the system has them.
    pub fn new(bytes: usize) -> std::io::Result<Filled> {
        let mut region = MmapMut::map_anon(bytes)?;
        // Small pages are slower, not wrong.
        #[cfg(target_os = "linux")]
        let _ = region.advise(memmap2::Advice::HugePage);
        for (number, page) in region.chunks_mut(4096).enumerate() {
            page.fill(number as u8 | 1);
        }
        Ok(Filled { bytes: region, buffers: Vec::new(), rng: Rng::for_part(1, "floor") })
    }

    /// Time of a copy of `bytes` bytes between a random place of this memory and one of 32 buffers, on one
    /// core, of `samples` copies: the median of means of some. The beginning of each is prefetched two copies
    /// ahead.
    pub fn copy(&mut self, bytes: usize, direction: Direction, samples: usize) -> Span {
        self.buffers.resize(BUFFERS as usize * bytes, 0);
        let places = (self.bytes.len() / bytes) as u64;
        let mut next = || self.rng.below(places) as usize * bytes;
        let mut ahead = [next(), next()];
        let copy = |turn: usize| {
            let place = std::mem::replace(&mut ahead[turn % 2], next());
            let soon = ahead[turn % 2];
            runtime::prefetch(&self.bytes[soon..soon + bytes.min(PREFETCHED_BYTES)]);
            let buffer = turn % BUFFERS as usize * bytes;
            let (inside, outside) =
                (&mut self.bytes[place..place + bytes], &mut self.buffers[buffer..buffer + bytes]);
            match direction {
                Direction::Read => outside.copy_from_slice(inside),
                Direction::Write => inside.copy_from_slice(outside),
            }
            std::hint::black_box(outside);
        };
        typical(samples, || STD_CLOCK.now(), copy)
    }

    /// Time of one such copy that has no other beside it, as that of a drive with one command in flight:
    /// median of means of some copies, of which each begins when others can see all of the one before.
    pub fn lone_copy(&mut self, bytes: usize, direction: Direction, samples: usize) -> Span {
        self.buffers.resize(bytes, 0);
        let places = (self.bytes.len() / bytes) as u64;
        let mut copy = || {
            let place = self.rng.below(places) as usize * bytes;
            let (inside, outside) = (&mut self.bytes[place..place + bytes], &mut self.buffers);
            match direction {
                Direction::Read => outside[..bytes].copy_from_slice(inside),
                Direction::Write => inside.copy_from_slice(&outside[..bytes]),
            }
            std::hint::black_box((inside, outside));
            fence(Ordering::SeqCst);
        };
        let mut means: Vec<Span> = (0..samples)
            .map(|_| {
                let begun = STD_CLOCK.now();
                (0..LONE_COPIES).for_each(|_| copy());
                STD_CLOCK.now().since(begun) / LONE_COPIES
            })
            .collect();
        median(&mut means)
    }
}

/// Whether data leave a drive or enter it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

/// Polls that are timed together: fewer than those after which an idle executor sleeps.
const LOOKS: u64 = 512;

/// Reads in the two runs whose difference [`simulated_read`] measures, equal to those that
/// `tools/instructions` counts.
const READS: [u64; 2] = [4_096, 20_480];

/// CPU time of this machine per read in virtual time, with 32 in flight on plan `gen4`: code of driver and
/// device, without waits. Median.
pub fn simulated_read(samples: usize) -> Result<Span, RunError> {
    let plan = Plan::open("gen4", &[]).expect("a built-in plan");
    let timed = |reads: u64| -> Result<Span, RunError> {
        let job = format!("[r]\nrw=randread\nbs=4k\niodepth=32\nsize=1g\nnumber_ios={reads}\n");
        let work = Work::parse(Path::new("pace"), &job, Mapping::default()).expect("a job");
        let begun = STD_CLOCK.now();
        world::simulate(NVME, &plan, &work, Options::default())?;
        Ok(STD_CLOCK.now().since(begun))
    };
    let mut spans = Vec::new();
    for _ in 0..samples {
        let [few, many] = [timed(READS[0])?, timed(READS[1])?];
        spans.push(many.saturating_sub(few) / (READS[1] - READS[0]));
    }
    Ok(median(&mut spans))
}

/// Measures something while another thread is busy with [`simulated_read`]s: live, both ends are always busy,
/// and a core slows down if it shares execution units or caches with a busy neighbour.
pub fn beside_busy<T>(measure: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                if simulated_read(1).is_err() || stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let measured = measure();
        stop.store(true, Ordering::Relaxed);
        measured
    })
}

/// Time of one poll of a task that waits for memory and is the only one; median.
pub fn look(samples: usize) -> std::io::Result<Span> {
    let shared = Shared::between_threads(4096, BusAddr(0), 4096)?;
    let rt = live();
    let host = shared.host(&rt);
    let mut spans: Vec<Span> = (0..samples)
        .map(|_| {
            let (begun, mut left) = (STD_CLOCK.now(), LOOKS);
            rt.block_on(host.on_memory(BusAddr(0), 4, || {
                left -= 1;
                let stats = shared.host_memory.load_u32(BusAddr(0)).expect("inside");
                (left == 0 || stats != 0).then_some(())
            }));
            STD_CLOCK.now().since(begun) / LOOKS
        })
        .collect();
    Ok(median(&mut spans))
}

/// CPU time of one command on the submitting thread; medians over many rounds.
#[derive(Clone, Copy, Debug)]
pub struct DriverCosts {
    /// From the call to the doorbell.
    pub submit: Span,
    /// From the poll of the completion queue to the end of the call.
    pub complete: Span,
}

/// Measures the CPU cost of a driver: reads of `bytes` bytes, `at_once` in flight. Host and device alternate
/// on this thread, each with its own executor, so that no time is spent waiting for the other end or its
/// cache lines.
pub fn driver_costs(
    row: &'static Row,
    plan: &Plan,
    bytes: usize,
    at_once: usize,
    rounds: usize,
) -> Result<DriverCosts, RunError> {
    let shared = world::shared(row, plan)?;
    let (rt, device) = (live(), live());
    let port = shared.device(&device);
    let _device = Device::start(row, port, MediumState::to_read(plan)?, Clock::Wall, plan)?;
    let host = shared.host(&rt);
    let costs = rt.block_on(async {
        let driver = beside(&rt, &device, row.connect(vec![host], plan)).await?;
        let disk = driver.disk(0);
        let (mut submits, mut completes) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (submit, complete) = round(&rt, &device, &disk, bytes, at_once).await?;
            submits.push(submit);
            completes.push(complete);
        }
        beside(&rt, &device, driver.stop()).await?;
        Ok(DriverCosts { submit: median(&mut submits), complete: median(&mut completes) })
    });
    rt.drop_tasks();
    device.drop_tasks();
    costs
}

fn live() -> Rt {
    Rt::live(&STD_CLOCK, None, Log::Off)
}

fn median(spans: &mut [Span]) -> Span {
    spans.sort();
    spans[spans.len() / 2]
}

/// Runs `work` on the host, alternating with turns of the device.
async fn beside<T>(rt: &Rt, device: &Rt, work: impl Future<Output = T>) -> T {
    let device = async {
        loop {
            turns(device, 1);
            rt.yield_now().await;
        }
    };
    match race(work, device).await {
        Either::First(done) => done,
        Either::Second(()) => unreachable!("the device's turns never end"),
    }
}

/// Not inlined: instruction counting finds it by name.
#[inline(never)]
fn turns(device: &Rt, turns: u32) {
    device.block_on(async {
        for _ in 0..turns {
            device.yield_now().await;
        }
    });
}

/// A prepared read, and its result. Both are dropped after all reads have completed, because dropping is not
/// driver work.
struct Read<'d> {
    read: Pin<Box<dyn Future<Output = Ended> + 'd>>,
    ended: Option<Ended>,
}

type Ended = (Buffer, Result<(), IoError>);

/// Prepares reads, before the driver's work begins. Not inlined, as [`turns`].
#[inline(never)]
fn prepare(disk: &Disk, bytes: usize, at_once: usize) -> Result<Vec<Read<'_>>, RunError> {
    let blocks = bytes as u64 / u64::from(disk.geometry().block_bytes);
    (0..at_once as u64)
        .map(|number| {
            let buffer = disk.buffer(bytes)?;
            Ok(Read { read: disk.boxed_read(Lba(number * blocks), buffer), ended: None })
        })
        .collect()
}

/// First poll of all reads: up to their doorbells. Not inlined, as [`turns`].
#[inline(never)]
fn submit(reads: &mut [Read<'_>], cx: &mut Context<'_>) {
    poll(reads, cx);
}

fn poll(reads: &mut [Read<'_>], cx: &mut Context<'_>) {
    for read in reads.iter_mut().filter(|read| read.ended.is_none()) {
        if let Poll::Ready(ended) = read.read.as_mut().poll(cx) {
            read.ended = Some(ended);
        }
    }
}

/// Collects the results. Not inlined, as [`turns`].
#[inline(never)]
fn put_away(reads: Vec<Read<'_>>) -> Result<(), RunError> {
    let mut ended = reads.into_iter().filter_map(|read| read.ended);
    Ok(ended.try_for_each(|(_, result)| result)?)
}

/// A batch of `at_once` reads: host time per read before and after the device's part.
async fn round(
    rt: &Rt,
    device: &Rt,
    disk: &Disk,
    bytes: usize,
    at_once: usize,
) -> Result<(Span, Span), RunError> {
    let mut reads = prepare(disk, bytes, at_once)?;
    let (mut submitted, mut begun) = (None, rt.now());
    poll_fn(|cx| {
        if submitted.is_none() {
            submit(&mut reads, cx);
            submitted = Some(rt.now().since(begun) / at_once as u64);
            turns(device, DEVICE_TURNS);
            begun = rt.now();
            // Completions of the reads wake this task.
            return Poll::Pending;
        }
        poll(&mut reads, cx);
        if reads.iter().all(|read| read.ended.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let completed = rt.now().since(begun) / at_once as u64;
    put_away(reads)?;
    Ok((submitted.expect("polled at least once"), completed))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Of 20,000 copies of 100 ns the first take long, and one is interrupted for 20 ms: the mean
    /// of all would be 11 times as long.
    #[test]
    fn pause_of_the_thread_does_not_change_the_time_of_a_copy() {
        let time = Cell::new(Time::ZERO);
        let copy = |number: usize| {
            let span = match number {
                0..32 => Span::us(1),
                9_000 => Span::ms(20),
                _ => Span::ns(100),
            };
            time.set(time.get() + span);
        };
        assert_eq!(typical(20_000, || time.get(), copy), Span::ns(100));
        assert!(time.get() > Time::ZERO + Span::ns(1_100) * 20_000);
    }
}
