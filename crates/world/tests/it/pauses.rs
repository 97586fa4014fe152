//! Time-outs that are early: host and device pause at any step, as threads do whose core is taken, and the
//! time-outs are about as long as a command takes. Every read has the right data or an error, and every run
//! ends.
//!
//! The workload engine keeps a reference to the buffer that it gives to a driver and looks at that, as most
//! callers do. In virtual time pauses are drawn from a seed ([`runtime::Rt::pause_tasks`]); live, a third
//! thread takes the cores from host and device.
//!
//! `DOORBELL_PAUSES=10000` sets the number of seeds in virtual time, and of live runs, of all cases together.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bus::sim::{SimBus, SimSpec};
use bus::{Buffer, OutOfMemory};
use host::{BlockDevice, Geometry, IoError};
use runtime::{Either, Log, Rng, Rt, Span, race};
use testing::{operations, plan, turn, work};
use wire::Lba;
use world::device::{Clock, Device, MediumState};
use world::interfaces::{BLOCK, DCX, FASTPATH, HOST_FLASH, NVME, Row};
use world::{Options, RunError, RunResult};

/// Few blocks, so that what lies in a buffer is often of the same blocks.
const JOB: &str = "[mixed]\nrw=randrw\nbs=4k\nsize=256k\nio_size=1m\niodepth=8\nverify=crc32c\n";

/// Fewer operations, of a live run.
const SHORT: &str = "[short]\nrw=randrw\nbs=4k\nsize=256k\niodepth=8\nverify=crc32c\n";

type Sets = &'static [(&'static str, &'static str)];

/// Commands in flight: as many as the jobs have, and a tag's time-out is a multiple of it.
const EACH: Sets = &[("host.queue_depth", "8")];

/// An interface with short time-outs.
struct Case {
    row: &'static Row,
    plan: &'static str,
    sets: Sets,
    /// Name of the log entry of a time-out, and its second number, if that tells it apart.
    timeout: (&'static str, Option<u64>),
}

/// Slot number of a fence, which a late read of DC Express sends.
const FENCE: u64 = 0xffff;

const fn dcx(sets: Sets) -> Case {
    Case { row: DCX, plan: "dc-express", sets, timeout: ("stores", Some(FENCE)) }
}

const fn other(row: &'static Row, plan: &'static str, sets: Sets, timeout: &'static str) -> Case {
    Case { row, plan, sets, timeout: (timeout, None) }
}

const CASES: &[Case] = &[
    dcx(&[("dcx.max_latency", "1 us"), ("host.retries", "0")]),
    dcx(&[("dcx.max_latency", "2 us"), ("host.retries", "3"), ("dcx.anticipate", "false")]),
    dcx(&[("dcx.max_latency", "2 us"), ("dcx.tag_bits", "8")]),
    dcx(&[("dcx.max_latency", "1 us"), ("dcx.tag_bits", "64"), ("host.retries", "1")]),
    dcx(&[("dcx.max_latency", "1 us"), ("link.relaxed_ordering", "false")]),
    dcx(&[("dcx.max_latency", "10 us"), ("dcx.writes", "polled"), ("host.timeout", "100 us")]),
    dcx(&[("dcx.max_latency", "2 us"), ("host.completion", "interrupt")]),
    dcx(&[("dcx.max_latency", "2 us"), ("dcx.tags", "device"), ("dcx.grain", "128 B")]),
    other(NVME, "dc-express", &[("host.timeout", "100 us")], "timeout"),
    other(BLOCK, "descriptor-blocks", &[("host.timeout", "100 us")], "reset"),
    other(FASTPATH, "fastpath", &[("host.timeout", "100 us")], "timeout"),
    other(HOST_FLASH, "small-flash", &[("host.timeout", "1200 us")], "endpoint gone"),
];

/// Runs of each of `cases` cases.
fn runs(cases: usize, default: u64) -> u64 {
    std::env::var("DOORBELL_PAUSES").map_or(default, |runs| {
        runs.parse::<u64>().expect("a number of runs").div_ceil(cases as u64)
    })
}

#[derive(Debug, Default)]
struct Sum {
    operations: u64,
    timeouts: u64,
    errors: u64,
    wrong: Vec<String>,
}

impl Sum {
    fn add(&mut self, case: &Case, run: u64, run_result: Result<RunResult, RunError>) {
        let run_result = match run_result {
            Ok(run_result) => run_result,
            // Its drive is given up after the first time-out, which may be while it mounts.
            Err(_) if core::ptr::eq(case.row, HOST_FLASH) => return self.errors += 1,
            Err(error) => panic!("{} {:?}, run {run}: {error}", case.row.name, case.sets),
        };
        for (_, job_result) in &run_result.jobs {
            self.operations += operations(job_result);
            self.errors += job_result.errors();
            let wrong = job_result.messages.iter().filter(|message| message.contains("verify"));
            self.wrong.extend(wrong.map(|message| format!("run {run}: {message}")));
        }
    }
}

fn simulate(case: &Case, seed: u64, sum: &mut Sum) {
    let plan = plan(case.plan, &[EACH, case.sets].concat());
    let log = Log::kept();
    let options = Options { log: log.clone(), pauses: Some(seed), ..Options::default() };
    let run_result = world::simulate(case.row, &plan, &work(JOB), options);
    sum.add(case, seed, run_result);
    let (what, number) = case.timeout;
    let entries = log.entries().into_iter().filter(|entry| {
        let it = (entry.component, entry.what) == ("host", what);
        it && number.is_none_or(|number| entry.b == number)
    });
    sum.timeouts += entries.count() as u64;
}

#[test]
fn early_timeouts_in_virtual_time_give_no_wrong_data() {
    for case in CASES {
        let (mut sum, name) = (Sum::default(), format!("{} {:?}", case.row.name, case.sets));
        (0..runs(CASES.len(), 5)).for_each(|seed| simulate(case, seed, &mut sum));
        println!("{name}: {sum:?}");
        assert_eq!(sum.wrong, [""; 0], "{name}");
        assert!(sum.operations > 0 && sum.timeouts > 0, "{name}: {sum:?}");
    }
}

/// A disk with time-outs of its own: a late read is left alone, and repeated in the same memory, in which the
/// first may still land. A driver must not do this.
struct Impatient<D> {
    rt: Rt,
    disk: D,
    timeout: Span,
}

impl<D: BlockDevice> BlockDevice for Impatient<D> {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.disk.buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let again = into.part(0, into.bytes());
        match race(self.disk.read(lba, into), self.rt.sleep(self.timeout)).await {
            Either::First(done) => done,
            Either::Second(()) => self.disk.read(lba, again).await,
        }
    }

    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        self.disk.write(lba, from, fua).await
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.disk.flush().await
    }
}

const BYTES: usize = 4096;
const BLOCKS: u64 = (BYTES / 512) as u64;
const PLACES: u64 = 16;

/// Reads of this number by 4 callers, each in memory of its own; returns how many ended with other data.
async fn wrong_reads(rt: &Rt, disk: Rc<impl BlockDevice + 'static>, seed: u64, reads: u64) -> u64 {
    for place in 0..PLACES {
        let buffer = disk.buffer(BYTES).expect("memory");
        buffer.copy_in(0, &[place as u8 + 1; BYTES]);
        disk.write(Lba(place * BLOCKS), buffer, false).await.1.expect("a good write");
    }
    let rng = Rc::new(RefCell::new(Rng::for_part(seed, "places")));
    let (left, wrong) = (Rc::new(Cell::new(4)), Rc::new(Cell::new(0)));
    for _ in 0..left.get() {
        let (disk, rng) = (disk.clone(), rng.clone());
        let (left, wrong) = (left.clone(), wrong.clone());
        rt.spawn(async move {
            let mine = disk.buffer(BYTES).expect("memory");
            for _ in 0..reads / 4 {
                let place = rng.borrow_mut().below(PLACES);
                let read = disk.read(Lba(place * BLOCKS), mine.part(0, BYTES)).await;
                let mut found = [0; BYTES];
                mine.copy_out(0, &mut found);
                wrong.set(
                    wrong.get() + u64::from(read.1.is_ok() && found != [place as u8 + 1; BYTES]),
                );
            }
            left.set(left.get() - 1);
        });
    }
    while left.get() > 0 {
        rt.sleep(Span::us(10)).await;
    }
    wrong.get()
}

/// Wrong reads of a run with pauses of this seed, with the driver's time-outs or with those of a caller.
fn with_pauses(seed: u64, impatient: bool) -> u64 {
    let latency = if impatient { "20 us" } else { "2 us" };
    let sets = [EACH, &[("dcx.max_latency", latency), ("host.retries", "0")]].concat();
    let plan = plan("dc-express", &sets);
    let rt = Rt::simulated(None, Log::Off);
    let spec = SimSpec { register_bytes: (DCX.register_bytes)(&plan), ..plan.sim_spec() };
    let bus = SimBus::new(&rt, spec);
    rt.pause_tasks(Rng::for_part(seed, "pauses"));
    let state = MediumState::new(&plan).expect("a medium in memory");
    let device = Device::start(DCX, bus.device(), state, Clock::Virtual, &plan);
    device.expect("a plan with timing");
    let wrong = rt.block_on(async {
        let driver = DCX.connect(vec![bus.host(0)], &plan).await.expect("the device is there");
        match impatient {
            false => wrong_reads(&rt, Rc::new(driver.disk(0)), seed, 200).await,
            true => {
                let (disk, timeout) = (driver.disk(0), Span::us(16));
                let disk = Impatient { rt: rt.clone(), disk, timeout };
                wrong_reads(&rt, Rc::new(disk), seed, 200).await
            }
        }
    });
    rt.drop_tasks();
    wrong
}

/// The pauses and the comparison find what they are for: memory that is used again after a time-out alone.
#[test]
fn memory_used_again_after_a_timeout_gives_wrong_data() {
    let wrong = |impatient| (0..4).map(|seed| with_pauses(seed, impatient)).sum::<u64>();
    assert_eq!(wrong(false), 0);
    assert!(wrong(true) > 0, "no read was harmed");
}

/// Cases of live runs, with time-outs of 8 to 800 us.
const LIVE: &[Case] = &[
    dcx(&[("dcx.max_latency", "1 us"), ("host.retries", "0")]),
    dcx(&[("dcx.max_latency", "10 us"), ("host.retries", "3"), ("dcx.tag_bits", "64")]),
    dcx(&[("dcx.max_latency", "3 us"), ("dcx.tag_bits", "8"), ("dcx.anticipate", "false")]),
    dcx(&[("dcx.max_latency", "100 us"), ("host.retries", "0")]),
    dcx(&[("dcx.max_latency", "10 us"), ("dcx.writes", "polled"), ("host.timeout", "100 us")]),
    dcx(&[("dcx.max_latency", "5 us"), ("dcx.tags", "device"), ("dcx.grain", "128 B")]),
    other(NVME, "live", &[("host.timeout", "100 us")], "timeout"),
    other(BLOCK, "live", &[("host.timeout", "10 us")], "reset"),
    other(FASTPATH, "live", &[("host.timeout", "100 us")], "timeout"),
    other(HOST_FLASH, "small-flash", &[("host.timeout", "5 ms")], "endpoint gone"),
];

/// Runs `f` while another thread takes one of the cores again and again.
fn under_load<T>(f: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                (0..20_000).for_each(|turn| assert!(std::hint::black_box(turn) < 20_000));
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        stop.store(true, Ordering::Relaxed);
        load.join().expect("it only counts");
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn early_timeouts_live_give_no_wrong_data() {
    let _turn = turn();
    for case in LIVE {
        let (mut sum, name) = (Sum::default(), format!("{} {:?}", case.row.name, case.sets));
        let plan = plan(case.plan, &[EACH, case.sets].concat());
        under_load(|| {
            for run in 0..runs(LIVE.len(), 10) {
                let done =
                    world::live_in_threads(case.row, &plan, &work(SHORT), Options::default());
                sum.add(case, run, done);
            }
        });
        println!("{name}: {sum:?}");
        assert_eq!(sum.wrong, [""; 0], "{name}");
        assert!(sum.operations > 0, "{name}: {sum:?}");
    }
}
