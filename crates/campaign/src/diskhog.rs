//! diskhog: threads that read or write a disk at full speed, each in its own range, and a monitor that
//! samples the throughput of each core. After Kristian Elsebø, "Improving Disk Performance in Vortex With
//! NVMe" (2015), section 5.3.
//!
//! A request is split into pieces of the size of a kernel's buffers, if the plan has them, and completes with
//! its last piece; a thread may issue a batch of requests before it waits. All I/O goes through the SCSI
//! layer, on queues according to `[host.sharing]`. With write-behind in the kernel, a written piece completes
//! when it has been copied, unless more are in flight than the queues take.

mod data;
mod live;
mod predict;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bus::sim::{SimBus, SimHost};
use bus::{Buffer, Cost, HostPort, OutOfMemory};
use host::nvme::{Policy, Shape};
use host::{BlockDevice, IoError};
use runtime::{Entry, Log, Rng, Rt, Signal, Span, Time};
use wire::Lba;
use workload::stats::Windows;

use plan::Plan;
use world::device;
use world::interfaces::{Connected, Disk, SCSI, ScsiDriver, spread_options};
use world::{self, RunError, ThreadUse, Warning};

use data::Data;
pub use live::live;
pub use predict::{LockCosts, Runs, favoured, measure_locks, predict};

/// First doorbell (NVMe over PCIe 1.0, 3.1.2), with a stride of four bytes.
const DOORBELLS: u64 = 0x1000;
/// Bytes to which the cost "copy" applies.
const COPY_BYTES: u32 = 4096;

#[derive(Clone, Debug)]
pub struct Hog {
    /// Number of threads, each on its own core.
    pub threads: u32,
    /// Bytes per request.
    pub bytes: u64,
    pub write: bool,
    /// Requests that a thread issues before it waits for all of them.
    pub batch: u32,
    /// True for random positions in the thread's range, false for sequential ones.
    pub random: bool,
    /// Ramp-up time, not measured.
    pub ramp: Span,
    pub time: Span,
    /// Sampling interval of the monitor.
    pub interval: Span,
    /// Live: bytes of its range that each thread uses. All data in them is known and compared.
    pub region_bytes: u64,
}

impl Hog {
    /// The thesis's throughput workload: requests of 4 MB, one at a time.
    pub fn sequential(threads: u32) -> Hog {
        Hog {
            threads,
            bytes: 4 << 20,
            write: false,
            batch: 1,
            random: false,
            ramp: Span::ZERO,
            time: Span::s(1),
            interval: Span::s(1),
            region_bytes: 8 << 20,
        }
    }

    /// The thesis's IOPS workload: batches of 1000 random requests of 4 KB.
    pub fn operations(threads: u32) -> Hog {
        Hog { bytes: 4096, batch: 1000, random: true, ..Hog::sequential(threads) }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CoreStats {
    /// Bytes transferred during the measurement.
    pub bytes: u64,
    pub requests: u64,
    /// Bytes transferred in each interval.
    pub series: Vec<u64>,
}

#[derive(Clone, Debug)]
pub struct HogStats {
    pub policy: Policy,
    /// Number and size of the queues.
    pub shape: Shape,
    pub measured: Span,
    pub cores: Vec<CoreStats>,
    /// Number of times that a core found a queue's lock taken, from the beginning.
    pub lock_waits: u64,
    /// Live: the operating system's thread of each core, and what it has compared.
    pub threads: Vec<HogThread>,
    /// Live: about the device's thread and those of cores, at most one each.
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HogThread {
    /// Identifier of the thread in the operating system; 0 if it does not tell.
    pub id: u64,
    /// Bytes that were compared with what the thread had written.
    pub verified_bytes: u64,
    /// Its processor use, from its beginning to its end.
    pub used: Option<ThreadUse>,
}

impl HogStats {
    /// Bytes of all cores.
    pub fn bytes(&self) -> u64 {
        self.cores.iter().map(|core| core.bytes).sum()
    }

    /// Throughput in 10^6 bytes per second.
    pub fn megabytes_s(&self) -> f64 {
        self.bytes() as f64 / self.measured.as_us_f64()
    }

    /// Thousand requests per second.
    pub fn kiops(&self) -> f64 {
        let requests: u64 = self.cores.iter().map(|core| core.requests).sum();
        requests as f64 / self.measured.as_us_f64() * 1e3
    }

    /// Throughput of each core, relative to an even share.
    pub fn shares_by_core(&self) -> Vec<f64> {
        let even = self.bytes() as f64 / self.cores.len() as f64;
        self.cores.iter().map(|core| core.bytes as f64 / even.max(1.0)).collect()
    }

    /// Lowest and highest throughput of a core, relative to an even share.
    pub fn shares(&self) -> (f64, f64) {
        let shares = self.shares_by_core();
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        (least, shares.iter().copied().fold(0.0, f64::max))
    }
}

/// Why diskhog could not run, or an operation of it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HogError {
    /// The machine cannot be built.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A setting does not suit the machine.
    #[error("diskhog: {what}: found {found}, expected {expected}")]
    Setting { what: &'static str, found: String, expected: String },
    #[error("diskhog: {0}")]
    Io(#[from] IoError),
    #[error("diskhog: {0}")]
    Memory(#[from] OutOfMemory),
    #[error("diskhog: {0}")]
    Plan(#[from] plan::PlanErrors),
    /// Data read is not the data written.
    #[error(
        "diskhog: core {core}: byte {byte} from LBA {lba} on is {found:#04x}, expected {expected:#04x} of \
         round {round}"
    )]
    Data { core: u32, lba: u64, byte: usize, found: u8, expected: u8, round: u32 },
    /// A thread could not be started or has panicked.
    #[error("diskhog: {0}")]
    Thread(String),
}

/// Runs diskhog in virtual time.
///
/// # Errors
/// The machine cannot be built, or an operation failed.
pub fn simulated(plan: &Plan, hog: &Hog) -> Result<HogStats, HogError> {
    check(plan, hog)?;
    world::in_virtual_time(SCSI, plan, Log::Off, plan.host.cores, async |rt, bus, driver| {
        load(rt, plan, hog, &driver, bus).await
    })?
}

/// Runs diskhog in virtual time, and returns also the most commands that the device had outstanding at a
/// time: tail doorbells that have arrived at it, less completions that it has posted.
///
/// # Errors
/// As [`simulated`].
pub fn outstanding(plan: &Plan, hog: &Hog) -> Result<(HogStats, u64), HogError> {
    check(plan, hog)?;
    let options = spread_options(plan);
    let entries = u64::from(options.shape(plan.host.cores as u16).depth) + 1;
    let device = Rc::new(Outstanding { entries, ..Outstanding::default() });
    let sink = device.clone();
    let stats = world::in_virtual_time(
        SCSI,
        plan,
        Log::To(Rc::new(move |entry| sink.see(entry))),
        plan.host.cores,
        async |rt, bus, driver| load(rt, plan, hog, &driver, bus).await,
    )?;
    Ok((stats?, device.most.get()))
}

/// Commands of I/O queues that a device has, by its event log.
#[derive(Default)]
struct Outstanding {
    /// Entries of a submission queue.
    entries: u64,
    tails: RefCell<BTreeMap<u64, u64>>,
    now: Cell<u64>,
    most: Cell<u64>,
}

impl Outstanding {
    fn see(&self, entry: &Entry) {
        match (entry.component, entry.what) {
            // Submission queues have the even doorbells; the first is the admin queue's.
            ("bus", "register")
                if entry.a > DOORBELLS && (entry.a - DOORBELLS).is_multiple_of(8) =>
            {
                let old = self.tails.borrow_mut().insert(entry.a, entry.b).unwrap_or(0);
                self.now.set(self.now.get() + (entry.b + self.entries - old) % self.entries);
                self.most.set(self.most.get().max(self.now.get()));
            }
            ("device", "completed") if entry.a > 0 => self.now.set(self.now.get() - 1),
            _ => {}
        }
    }
}

/// Checks that the plan's machine supports the workload.
fn check(plan: &Plan, hog: &Hog) -> Result<(), HogError> {
    device::check(SCSI, plan)?;
    let block = u64::from(plan.medium.contents.block_bytes);
    let refuse = |what, found, expected: String| Err(HogError::Setting { what, found, expected });
    if hog.threads == 0 || hog.threads > plan.host.cores {
        let most = plan.host.cores;
        return refuse("threads", hog.threads.to_string(), format!("1 to {most}, host.cores"));
    }
    if hog.bytes == 0 || !hog.bytes.is_multiple_of(block) {
        let expected = format!("whole blocks of {block} bytes");
        return refuse("the length of a request", hog.bytes.to_string(), expected);
    }
    let range = plan.medium.contents.capacity_bytes / u64::from(hog.threads);
    if hog.bytes > range {
        let expected = format!("at most {range}, a thread's part of the disk");
        return refuse("the length of a request", hog.bytes.to_string(), expected);
    }
    let flight = hog.bytes * u64::from(hog.batch) * u64::from(hog.threads);
    if flight > plan.host.memory_bytes / 2 {
        let expected = format!("at most half of host.memory, {} bytes", plan.host.memory_bytes);
        return refuse("what is in flight", flight.to_string(), expected);
    }
    if hog.interval == Span::ZERO || hog.batch == 0 {
        return refuse("interval and batch", "0".into(), "more".into());
    }
    Ok(())
}

/// State shared by the threads and the monitor.
struct Board {
    cores: RefCell<Vec<(CoreStats, Windows)>>,
    begin: Time,
    end: Time,
    running: Cell<u32>,
    ended: Signal,
    failed: RefCell<Option<HogError>>,
    behind: Vec<Option<Rc<Behind>>>,
}

/// Write-behind pieces in flight, of one core or of cores that share their queues.
struct Behind {
    most: u64,
    now: Cell<u64>,
    less: Signal,
}

impl Behind {
    /// One entry per thread, `None` unless the plan's kernel writes behind.
    fn of_threads(plan: &Plan, hog: &Hog, policy: Policy, shape: Shape) -> Vec<Option<Rc<Behind>>> {
        let threads = hog.threads as usize;
        let Some(kernel) = plan.host.kernel.filter(|kernel| kernel.write_behind && hog.write)
        else {
            return vec![None; threads];
        };
        let room = plan.host.memory_bytes / 2 / u64::from(kernel.buffer_bytes);
        let of = |most: u64| {
            Rc::new(Behind { most: most.max(1), now: Cell::new(0), less: Signal::default() })
        };
        if policy.is_shared() {
            return vec![Some(of(shape.outstanding().min(room))); threads];
        }
        let each = shape.outstanding() / u64::from(plan.host.cores);
        let room = room / u64::from(hog.threads);
        (0..threads).map(|_| Some(of(each.min(room)))).collect()
    }

    async fn begin(&self, rt: &Rt) {
        while self.now.get() >= self.most {
            self.less.changed(rt, self.less.version()).await;
        }
        self.now.set(self.now.get() + 1);
    }

    fn end(&self, rt: &Rt) {
        self.now.set(self.now.get() - 1);
        self.less.notify(rt);
    }
}

impl Board {
    /// A board for `running` threads of this executor.
    fn new(hog: &Hog, now: Time, running: u32, behind: Vec<Option<Rc<Behind>>>) -> Rc<Board> {
        let begin = now + hog.ramp;
        let core = (CoreStats::default(), Windows::of(hog.interval));
        Rc::new(Board {
            cores: RefCell::new(vec![core; hog.threads as usize]),
            begin,
            end: begin + hog.time,
            running: Cell::new(running),
            ended: Signal::default(),
            failed: RefCell::default(),
            behind,
        })
    }

    async fn all_ended(&self, rt: &Rt) -> Result<(), HogError> {
        while self.running.get() > 0 {
            self.ended.changed(rt, self.ended.version()).await;
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Counts a completed piece in the interval of its completion.
    fn note(&self, core: u32, bytes: u64, requests: u64, now: Time) {
        if now < self.begin || now >= self.end {
            return;
        }
        let (core, windows) = &mut self.cores.borrow_mut()[core as usize];
        core.bytes += bytes;
        core.requests += requests;
        // Latency is not recorded here.
        windows.count(now.since(self.begin), bytes as u32, Span::ZERO);
    }

    fn stats(&self) -> Vec<CoreStats> {
        let stats = |(core, windows): (CoreStats, Windows)| CoreStats {
            series: windows.counts().iter().map(|window| window.bytes).collect(),
            ..core
        };
        self.cores.take().into_iter().map(stats).collect()
    }

    fn fail(&self, error: impl Into<HogError>) {
        self.failed.borrow_mut().get_or_insert(error.into());
    }
}

async fn load(
    rt: &Rt,
    plan: &Plan,
    hog: &Hog,
    driver: &Connected<SimHost>,
    bus: &SimBus,
) -> Result<HogStats, HogError> {
    let options = spread_options(plan);
    let (policy, shape) = (options.policy, options.shape(plan.host.cores as u16));
    let behind = Behind::of_threads(plan, hog, policy, shape);
    let board = Board::new(hog, rt.now(), hog.threads, behind);
    for core in 0..hog.threads {
        let disk = driver.disk(core as usize);
        let thread = Thread::new(rt, plan, hog, core, (&disk, bus.host(core)), &board, None);
        rt.spawn(thread.work());
    }
    board.all_ended(rt).await?;
    let (cores, lock_waits) = (board.stats(), driver.typed::<ScsiDriver<SimHost>>().lock_waits());
    Ok(HogStats {
        policy,
        shape,
        measured: hog.time,
        cores,
        lock_waits,
        threads: Vec::new(),
        warnings: Vec::new(),
    })
}

/// A thread, and its range.
struct Thread<P> {
    rt: Rt,
    disk: Disk,
    port: P,
    core: u32,
    hog: Hog,
    board: Rc<Board>,
    /// First block of the range, and number of requests that fit.
    first: u64,
    places: u64,
    block_bytes: u64,
    piece_bytes: u64,
    /// Cost per request, per piece, and per 4 KiB copied.
    costs: (Cost, Cost, Option<Cost>),
    rng: RefCell<Rng>,
    buffers: RefCell<Vec<Buffer>>,
    left: Cell<u64>,
    ended: Signal,
    behind: Option<Rc<Behind>>,
    /// Live: what the blocks hold.
    data: Option<Rc<Data>>,
}

impl<P: HostPort> Thread<P> {
    fn new(
        rt: &Rt,
        plan: &Plan,
        hog: &Hog,
        core: u32,
        (disk, port): (&Disk, P),
        board: &Rc<Board>,
        data: Option<Rc<Data>>,
    ) -> Rc<Thread<P>> {
        let geometry = disk.geometry();
        let block_bytes = u64::from(geometry.block_bytes);
        let most = u64::from(geometry.transfer_bytes_max);
        let kernel = plan.host.kernel;
        let piece = kernel.map_or(most, |kernel| most.min(u64::from(kernel.buffer_bytes)));
        let range = geometry.blocks / u64::from(hog.threads);
        Rc::new(Thread {
            rt: rt.clone(),
            disk: disk.clone(),
            core,
            hog: hog.clone(),
            board: board.clone(),
            first: range * u64::from(core),
            places: data.as_ref().map_or(range * block_bytes / hog.bytes, |data| data.places()),
            block_bytes,
            piece_bytes: piece.min(hog.bytes),
            costs: (
                port.cost("system call"),
                port.cost("block driver"),
                kernel.map(|_| port.cost("copy")),
            ),
            port,
            rng: RefCell::new(Rng::for_part(plan.run.seed, &format!("diskhog {core}"))),
            buffers: RefCell::default(),
            left: Cell::new(0),
            ended: Signal::default(),
            behind: board.behind[core as usize].clone(),
            data,
        })
    }

    async fn work(self: Rc<Self>) {
        let mut turn = 0;
        while self.rt.now() < self.board.end && self.board.failed.borrow().is_none() {
            for _ in 0..self.hog.batch {
                let place = match self.hog.random {
                    true => self.rng.borrow_mut().below(self.places),
                    false => turn % self.places,
                };
                turn += 1;
                let place = match &self.data {
                    Some(data) if self.hog.write => data.begin_write(place),
                    _ => place,
                };
                self.request(place).await;
            }
            self.all_pieces_ended().await;
        }
        self.board.running.set(self.board.running.get() - 1);
        self.board.ended.notify(&self.rt);
    }

    async fn all_pieces_ended(&self) {
        while self.left.get() > 0 {
            self.ended.changed(&self.rt, self.ended.version()).await;
        }
    }

    /// Issues the pieces of a request.
    async fn request(self: &Rc<Self>, place: u64) {
        self.port.spend(self.costs.0).await;
        let lba = self.first + place * (self.hog.bytes / self.block_bytes);
        let pieces = self.hog.bytes.div_ceil(self.piece_bytes);
        let left = Rc::new(Cell::new(pieces));
        for piece in 0..pieces {
            let at = piece * self.piece_bytes;
            let bytes = self.piece_bytes.min(self.hog.bytes - at);
            self.port.spend(self.costs.1).await;
            if let Some(behind) = &self.behind {
                behind.begin(&self.rt).await;
            }
            if self.hog.write {
                self.copy(bytes).await;
            }
            let buffer = match self.buffer() {
                Ok(buffer) => buffer,
                Err(error) => return self.board.fail(error),
            };
            match &self.behind {
                Some(_) => {
                    self.note(bytes, &left);
                    // Live, a copy does not yield to the executor: without this, other tasks would starve.
                    self.rt.yield_now().await;
                }
                None => self.left.set(self.left.get() + 1),
            }
            let (thread, left) = (self.clone(), left.clone());
            let lba = Lba(lba + at / self.block_bytes);
            let of = (place, bytes);
            self.rt.spawn(async move { thread.piece(lba, buffer, of, &left).await });
        }
    }

    /// Records that a piece of the caller's request has completed.
    fn note(&self, bytes: u64, request: &Cell<u64>) {
        request.set(request.get() - 1);
        let requests = u64::from(request.get() == 0);
        self.board.note(self.core, bytes, requests, self.rt.now());
    }

    fn buffer(&self) -> Result<Buffer, OutOfMemory> {
        let kept = self.buffers.borrow_mut().pop();
        kept.map_or_else(|| self.disk.buffer(self.piece_bytes as usize), Ok)
    }

    /// Cost of a copy between a kernel's buffer and the caller.
    async fn copy(&self, bytes: u64) {
        if let Some(copy) = self.costs.2 {
            self.port.spend_times(copy, bytes.div_ceil(u64::from(COPY_BYTES)) as u32).await;
        }
    }

    async fn piece(
        &self,
        lba: Lba,
        buffer: Buffer,
        (place, bytes): (u64, u64),
        request: &Cell<u64>,
    ) {
        let part = buffer.part(0, bytes as usize);
        if let Some(data) = &self.data {
            data.prepare(self.hog.write, place, lba, &part);
        }
        let (part, result) = match self.hog.write {
            true => self.disk.write(lba, part, false).await,
            false => self.disk.read(lba, part).await,
        };
        self.rt.detach_trace();
        if !self.hog.write {
            self.copy(bytes).await;
        }
        let result = match &self.data {
            Some(data) if result.is_ok() => data.ended(self.hog.write, place, lba, &part),
            _ => result.map_err(HogError::from),
        };
        match (result, &self.behind) {
            (Ok(()), None) => self.note(bytes, request),
            (Ok(()), Some(_)) => {}
            (Err(error), _) => self.board.fail(error),
        }
        self.buffers.borrow_mut().push(buffer);
        match &self.behind {
            Some(behind) => behind.end(&self.rt),
            None => self.left.set(self.left.get() - 1),
        }
        self.ended.notify(&self.rt);
    }
}
