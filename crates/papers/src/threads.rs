//! Threads with synchronous direct I/O, as in the fio runs of papers: each issues one request at a time. In
//! an open loop they take requests as these arrive, whether or not others have ended.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::HostPort;
use bus::link::Way;
use bus::sim::SimHost;
use host::BlockDevice;
use runtime::{Log, Rng, Rt, Signal, Span, Time, race};
use wire::Lba;

use super::ExhibitError;
use super::measure::Machine;
use world::interfaces::{BLOCK, Disk};
use world::{self, LAYERS};

/// Size of the region that threads access, bytes.
const REGION: u64 = 64 << 20;
/// Warm-up time, not measured.
const WARM: Span = Span::ms(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Threads {
    pub number: u32,
    /// Bytes per request.
    pub bytes: u32,
    /// Writes in a hundred requests, at random.
    pub writes: u8,
    /// Think time between two requests, not spent on any core.
    pub think: Span,
    /// Mean time between the arrivals of an open loop, a Poisson process; none: a closed loop. Latency begins
    /// with the arrival.
    pub every: Option<Span>,
    pub window: Span,
}

impl Threads {
    /// Reads of 4 KiB by `number` threads.
    pub fn reading(number: u32) -> Threads {
        Threads {
            number,
            bytes: 4096,
            writes: 0,
            think: Span::ZERO,
            every: None,
            window: Span::ms(10),
        }
    }

    /// Writes of 4 KiB by `number` threads.
    pub fn writing(number: u32) -> Threads {
        Threads { writes: 100, ..Threads::reading(number) }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    /// Thousand requests per second.
    pub kiops: f64,
    /// Mean latency, us.
    pub us: f64,
    /// TLPs for each request, towards the host and towards the device.
    pub tlps: (f64, f64),
}

impl Done {
    /// Throughput in MiB/s for requests of this size.
    pub fn mib_s(&self, bytes: u32) -> f64 {
        self.kiops * 1e3 * f64::from(bytes) / f64::from(1 << 20)
    }
}

/// Requests of all threads in a window.
///
/// A thread goes from completion to completion in cycles, and a cycle that crosses an edge of the window
/// counts by its part inside. Counts of whole requests are off by what happens to lie at the edges: of blocks
/// that complete at once, a block too many.
#[derive(Default)]
struct Tally {
    /// Cycles of all threads within the window.
    cycles: Cell<f64>,
    /// Completions within the window, and their latencies.
    requests: Cell<u64>,
    took: Cell<u64>,
    /// Threads that have completed a request after the window.
    over: Cell<u32>,
    all_over: Signal,
    tlps: Cell<[u64; 2]>,
    failed: RefCell<Option<ExhibitError>>,
}

impl Tally {
    /// Records a request that ended `now`, of a thread whose last one ended at `last`.
    fn note(&self, window: (Time, Time), last: Time, begun: Time, now: Time) {
        self.cycles.set(self.cycles.get() + part_within(window, last, now));
        if window.0 <= now && now < window.1 {
            self.requests.set(self.requests.get() + 1);
            self.took.set(self.took.get() + now.since(begun).0);
        }
    }

    /// Returns when each of `threads` has completed a request after the window, or never will.
    async fn all_over(&self, rt: &Rt, threads: u32, limit: Time) {
        let all = async {
            while self.over.get() < threads {
                self.all_over.changed(rt, self.all_over.version()).await;
            }
        };
        race(all, rt.sleep_until(limit)).await;
    }
}

/// Part of a cycle that lies within the window.
fn part_within(window: (Time, Time), from: Time, to: Time) -> f64 {
    let inside = to.min(window.1).0.saturating_sub(from.max(window.0).0);
    if inside == 0 { 0.0 } else { inside as f64 / to.since(from).0 as f64 }
}

/// Runs threads on a machine, through descriptor blocks, and measures them.
pub(super) fn run(machine: &Machine, threads: Threads) -> Result<Done, ExhibitError> {
    machine.once(format!("{threads:?}"), |machine| run_once(machine, threads))
}

fn run_once(machine: &Machine, threads: Threads) -> Result<Done, ExhibitError> {
    let plan = machine.open()?;
    let cores = plan.host.cores.min(plan.host.queues);
    let tally = Rc::new(Tally::default());
    world::in_virtual_time(BLOCK, &plan, Log::Off, cores, async |rt, bus, driver| {
        let begin = rt.now() + WARM;
        let window = (begin, begin + threads.window);
        let ways = [Way::Up, Way::Down];
        let arrivals = threads.every.map(|every| {
            Rc::new(Arrivals {
                every,
                due: Cell::new(rt.now()),
                rng: RefCell::new(Rng::for_part(plan.run.seed, "arrivals")),
            })
        });
        for number in 0..threads.number {
            let port = bus.host(number % cores);
            let layers = LAYERS.iter().filter(|layer| BLOCK.stages.contains(layer));
            let layers: Vec<_> = layers.map(|layer| port.cost(layer)).collect();
            let disk = driver.disk(number as usize);
            let rng = Rng::for_part(plan.run.seed, &format!("thread {number}"));
            let (tally, arrivals) = (tally.clone(), arrivals.clone());
            let thread = Thread { port, layers, threads, window, tally, arrivals };
            rt.spawn(thread.work(rt.clone(), disk, rng));
        }
        rt.sleep_until(window.0).await;
        let before = ways.map(|way| bus.link_packets(way).tlps());
        rt.sleep_until(window.1).await;
        let after = ways.map(|way| bus.link_packets(way).tlps());
        tally.tlps.set([after[0] - before[0], after[1] - before[1]]);
        tally.all_over(rt, threads.number, window.1 + threads.window).await;
    })?;
    if let Some(failed) = tally.failed.take() {
        return Err(failed);
    }
    let requests = tally.requests.get();
    if requests == 0 {
        return Ok(Done { kiops: 0.0, us: 0.0, tlps: (0.0, 0.0) });
    }
    Ok(Done {
        kiops: tally.cycles.get() / threads.window.as_us_f64() * 1e3,
        us: Span(tally.took.get()).as_us_f64() / requests as f64,
        tlps: {
            let [up, down] = tally.tlps.get().map(|tlps| tlps as f64 / requests as f64);
            (up, down)
        },
    })
}

/// Arrivals of an open loop, which threads take in their order.
struct Arrivals {
    every: Span,
    due: Cell<Time>,
    rng: RefCell<Rng>,
}

impl Arrivals {
    fn take(&self) -> Time {
        let due = self.due.get();
        self.due.set(due + self.rng.borrow_mut().exponential(self.every));
        due
    }
}

struct Thread {
    port: SimHost,
    layers: Vec<bus::Cost>,
    threads: Threads,
    window: (Time, Time),
    tally: Rc<Tally>,
    arrivals: Option<Rc<Arrivals>>,
}

impl Thread {
    async fn work(self, rt: Rt, disk: Disk, mut rng: Rng) {
        let bytes = self.threads.bytes;
        let block = u64::from(disk.geometry().block_bytes);
        let mut buffer = match disk.buffer(bytes as usize) {
            Ok(buffer) => buffer,
            Err(error) => return self.fail(error),
        };
        let mut last = rt.now();
        loop {
            let begun = match &self.arrivals {
                None => rt.now(),
                Some(arrivals) => {
                    let due = arrivals.take();
                    if due > rt.now() {
                        rt.sleep_until(due).await;
                    }
                    due
                }
            };
            for layer in &self.layers {
                self.port.spend(*layer).await;
            }
            let lba = Lba(rng.below(REGION / u64::from(bytes)) * u64::from(bytes) / block);
            let writes = u64::from(self.threads.writes);
            let (back, done) = match writes == 100 || writes > 0 && rng.below(100) < writes {
                true => disk.write(lba, buffer, false).await,
                false => disk.read(lba, buffer).await,
            };
            if let Err(error) = done {
                return self.fail(error);
            }
            buffer = back;
            let now = rt.now();
            self.tally.note(self.window, last, begun, now);
            if now >= self.window.1 {
                self.tally.over.set(self.tally.over.get() + 1);
                return self.tally.all_over.notify(&rt);
            }
            last = now;
            rt.detach_trace();
            rt.sleep(self.threads.think).await;
        }
    }

    fn fail(&self, error: impl Into<ExhibitError>) {
        self.tally.failed.replace(Some(error.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight threads whose requests take 48 us, in bursts: 8 in 48 us wherever the window begins and ends.
    /// From the first completion to the last of a window there would be up to 8 more than that.
    #[test]
    fn rate_of_bursts_does_not_depend_on_edges_of_window() {
        let at = |us| Time(Span::us(us).0);
        for begin in 0..48 {
            let window = (at(1000 + begin), at(1100 + begin));
            let tally = Tally::default();
            for thread in 0..8 {
                let ends = (0..40).map(|turn| at(48 * turn + thread));
                let pairs = ends.clone().zip(ends.skip(1));
                pairs.for_each(|(last, now)| tally.note(window, last, last, now));
            }
            let expected = 8.0 * 100.0 / 48.0;
            assert!((tally.cycles.get() - expected).abs() < 1e-9, "{}", tally.cycles.get());
        }
    }

    #[test]
    fn cycle_longer_than_window_counts_by_its_part() {
        let window = (Time(100), Time(200));
        assert_eq!(part_within(window, Time(0), Time(400)), 0.25);
        assert_eq!(part_within(window, Time(0), Time(100)), 0.0);
        assert_eq!(part_within(window, Time(200), Time(300)), 0.0);
        assert_eq!(part_within(window, Time(150), Time(150)), 0.0);
    }
}
