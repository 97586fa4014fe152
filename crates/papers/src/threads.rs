//! Threads with synchronous direct I/O, as in the fio runs of papers: each issues one request at a time. In
//! an open loop they take requests as these arrive, whether or not others have ended.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::HostPort;
use bus::link::Way;
use bus::sim::SimHost;
use host::BlockDevice;
use runtime::{Log, Rng, Rt, Span, Time};
use wire::Lba;

use super::ExhibitError;
use super::measure::Machine;
use world::interfaces::{Block, Driver, Interface};
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

#[derive(Default)]
struct Tally {
    requests: Cell<u64>,
    took: Cell<u64>,
    first: Cell<Option<Time>>,
    last: Cell<Time>,
    tlps: Cell<[u64; 2]>,
    failed: RefCell<Option<ExhibitError>>,
}

impl Tally {
    fn note(&self, begun: Time, now: Time) {
        // From one completion to another: requests in flight at both ends of the window count once.
        if self.first.get().is_none() {
            return self.first.set(Some(now));
        }
        self.requests.set(self.requests.get() + 1);
        self.took.set(self.took.get() + now.since(begun).0);
        self.last.set(now);
    }
}

/// Runs threads on a machine, through descriptor blocks, and measures them.
pub(super) fn run(machine: &Machine, threads: Threads) -> Result<Done, ExhibitError> {
    machine.once(format!("{threads:?}"), |machine| run_once(machine, threads))
}

fn run_once(machine: &Machine, threads: Threads) -> Result<Done, ExhibitError> {
    let plan = machine.open()?;
    let cores = plan.host.cores.min(plan.host.queues);
    let tally = Rc::new(Tally::default());
    world::on_cores_in_virtual_time::<Block, _>(
        &plan,
        Log::Off,
        cores,
        async |rt, bus, driver| {
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
                let layers = LAYERS.iter().filter(|layer| Block::STAGES.contains(layer));
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
        },
    )?;
    if let Some(failed) = tally.failed.take() {
        return Err(failed);
    }
    let requests = tally.requests.get();
    if requests == 0 {
        return Ok(Done { kiops: 0.0, us: 0.0, tlps: (0.0, 0.0) });
    }
    let span = tally.last.get().since(tally.first.get().expect("the first"));
    Ok(Done {
        kiops: requests as f64 / span.as_us_f64() * 1e3,
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
    async fn work<D: BlockDevice>(self, rt: Rt, disk: D, mut rng: Rng) {
        let bytes = self.threads.bytes;
        let block = u64::from(disk.geometry().block_bytes);
        let mut buffer = match disk.buffer(bytes as usize) {
            Ok(buffer) => buffer,
            Err(error) => return self.fail(error),
        };
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
            if self.window.0 <= now && now < self.window.1 {
                self.tally.note(begun, now);
            }
            rt.detach_trace();
            rt.sleep(self.threads.think).await;
        }
    }

    fn fail(&self, error: impl Into<ExhibitError>) {
        self.tally.failed.replace(Some(error.into()));
    }
}
