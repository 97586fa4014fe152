//! The engine: keeps a job's operations in flight against a disk, and notes what it sees.
//!
//! One engine runs one clone of a job. Its operations come from a pattern or a recording; as many
//! tasks as the job's depth take them, one after the other. An operation with an intended arrival is
//! timed from that moment, so that what waits behind others is not forgotten.

mod checks;
mod hold;

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bus::{Buffer, Cost, HostPort};
use host::{BlockDevice, Geometry, IoError, Kind};
use runtime::{Rt, STAGES_MAX, Signal, Span, StageSums, Time};
use wire::Lba;
use workload::job::Job;
use workload::pattern::{Op, OpKind, Ops};
use workload::stats::{Breakdown, JobStats};
use workload::trace::TraceError;
use workload::verify::ReadTicket;

use crate::run_recorder::RunRecorder;
use crate::series::Recorder;
pub use checks::Checks;
pub use hold::Hold;

/// What a journey has sums for, a breakdown has room for.
const _: () = assert!(STAGES_MAX == workload::limits::STAGES_MAX);

/// Errors of one run that are kept with their text.
const ERRORS_KEPT: usize = 20;
/// Verified blocks read back with one operation, bytes.
const READ_BACK_BYTES: u32 = 128 * 1024;

pub enum Source {
    /// A pattern of a job file.
    Pattern(Box<Ops>),
    Recorded(Box<dyn Iterator<Item = Result<Op, TraceError>>>),
}

impl Source {
    /// The next operation; what it says of a recording that makes no sense goes to `failed`.
    fn next(&mut self, failed: impl FnOnce(TraceError)) -> Option<Op> {
        match self {
            Source::Pattern(ops) => ops.next(),
            Source::Recorded(ops) => ops.next()?.map_err(failed).ok(),
        }
    }

    fn stop(&mut self) {
        match self {
            Source::Pattern(ops) => ops.stop(),
            Source::Recorded(ops) => *ops = Box::new(std::iter::empty()),
        }
    }
}

/// Operations that have ended, of engines on one thread; others look. Nothing else lies in its cache lines,
/// so that threads which count do not take them from each other.
#[derive(Default)]
#[repr(align(128))]
pub struct Progress(AtomicU64);

impl Progress {
    pub fn operations(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// So many. One thread alone says so: no locked addition.
    pub fn set(&self, operations: u64) {
        self.0.store(operations, Ordering::Relaxed);
    }
}

/// What one clone of a job has seen.
#[derive(Default)]
pub struct JobResult {
    /// Latencies, counts and where the time went.
    pub stats: JobStats,
    /// From the first operation to the end of the last, without the ramp.
    pub measured: Span,
    /// The same, with the ramp and the start's delay.
    pub elapsed: Span,
    /// The sum of the times that operations were in flight, from submission to completion: what
    /// Little's law counts with.
    pub in_flight: Span,
    /// The first failures, in words.
    pub messages: Vec<String>,
    /// Failures that no operation could be blamed for: a recording that ends in nonsense.
    pub failures: u64,
    /// Blocks whose contents were checked.
    pub blocks_verified: u64,
}

impl JobResult {
    /// Operations that failed or came back wrong, and whatever else went wrong.
    pub fn errors(&self) -> u64 {
        self.stats.errors() + self.failures
    }

    /// Takes in what another clone of the job has seen at the same time.
    pub fn merge(&mut self, other: &JobResult) {
        self.stats.merge(&other.stats);
        self.measured = self.measured.max(other.measured);
        self.elapsed = self.elapsed.max(other.elapsed);
        self.in_flight += other.in_flight;
        let room = ERRORS_KEPT.saturating_sub(self.messages.len());
        self.messages.extend(other.messages.iter().take(room).cloned());
        self.failures += other.failures;
        self.blocks_verified += other.blocks_verified;
    }

    fn say(&mut self, message: String) {
        // What all places of a job's depth say alike is said once.
        if self.messages.len() < ERRORS_KEPT && self.messages.last() != Some(&message) {
            self.messages.push(message);
        }
    }

    /// Something went wrong that no operation can be blamed for.
    pub fn fail(&mut self, message: String) {
        self.failures += 1;
        self.say(message);
    }
}

/// A layer of software above the driver, as a cost of the plan: the kernel's block layer, fio itself.
#[derive(Clone, Copy)]
pub struct Layer {
    pub cost: Cost,
    /// Its place in the list of stages.
    pub stage: usize,
}

/// What an engine is made of.
pub struct Setup<P> {
    /// Where its software costs are spent.
    pub port: P,
    pub job: Job,
    /// How long it waits before the first.
    pub start_delay: Span,
    /// Verification, if the job asks for it.
    pub checks: Option<Arc<Checks>>,
    pub layers: Vec<Layer>,
    /// The stages of this world.
    pub stages: &'static [&'static str],
    /// The place of "queueing delay" among them.
    pub arrival_stage: Option<usize>,
    /// Counts operations, for whoever watches.
    pub progress: Arc<Progress>,
    /// Holds the work up, if somebody is to keep step with it.
    pub hold: Option<Rc<Hold>>,
    /// Takes the run down over time, if somebody wants that.
    pub series: Option<Rc<Recorder>>,
    /// Takes down what arrives, if somebody wants that.
    pub run_recorder: Option<Rc<RunRecorder>>,
}

struct Engine<D, P> {
    rt: Rt,
    disk: D,
    setup: Setup<P>,
    source: RefCell<Source>,
    job_result: RefCell<JobResult>,
    start: Cell<Time>,
    in_flight: Cell<u32>,
    workers: Cell<u32>,
    ended: Signal,
    stopped: Cell<bool>,
    block_bytes: u32,
    /// The disk's longest command, in bytes.
    command_bytes_max: usize,
}

/// When an operation ended, and how long it took.
struct Done {
    at: Time,
    total: Span,
    /// Of that, before it was begun.
    late: Span,
}

/// Where an operation's time went: the software above the driver, then its commands' journeys.
struct Went {
    stages: StageSums,
    /// Every command of it was followed.
    followed: bool,
}

impl Went {
    fn new() -> Went {
        Went { stages: StageSums::new(), followed: true }
    }

    fn begin(&mut self) {
        self.followed = true;
        self.stages.clear();
    }

    /// One more of its commands has ended.
    fn add_request_trace(&mut self, rt: &Rt) {
        self.followed &= rt.add_trace_to(&mut self.stages);
    }

    fn add(&mut self, stage: usize, span: Span) {
        self.stages.add(stage, span.0);
    }
}

/// Runs one clone of a job to its end.
pub async fn run<D, P>(rt: &Rt, source: Source, disk: D, setup: Setup<P>) -> JobResult
where
    D: BlockDevice + Clone + 'static,
    P: HostPort,
{
    let begun = rt.now();
    rt.sleep(setup.start_delay).await;
    let depth = setup.job.iodepth.max(1);
    let shape = disk.geometry();
    let engine = Rc::new(Engine {
        rt: rt.clone(),
        job_result: RefCell::new(JobResult { stats: blank(setup.stages), ..JobResult::default() }),
        source: RefCell::new(source),
        start: Cell::new(rt.now()),
        in_flight: Cell::new(0),
        workers: Cell::new(depth),
        ended: Signal::default(),
        stopped: Cell::new(false),
        block_bytes: shape.block_bytes,
        command_bytes_max: shape.transfer_bytes_max as usize,
        disk,
        setup,
    });
    // All or none: a job that its depth does not fit says so once, and does not run at another depth.
    match engine.buffers(depth) {
        Ok(buffers) => {
            for buffer in buffers {
                rt.spawn(engine.clone().work(buffer));
            }
        }
        Err(error) => {
            engine.workers.set(0);
            engine.job_result.borrow_mut().fail(error);
        }
    }
    while engine.workers.get() > 0 {
        let version = engine.ended.version();
        engine.ended.changed(rt, version).await;
    }
    let (ended, ramp) = (rt.now(), engine.setup.job.ramp_time);
    engine.read_back().await;
    let mut job_result = engine.job_result.take();
    job_result.measured = ended.since(engine.start.get()).saturating_sub(ramp);
    job_result.elapsed = ended.since(begun);
    job_result
}

/// What to do where buffers do not fit.
pub const FEWER: &str = "expected a smaller bs, iodepth or numjobs, or a larger host.memory";

/// The bytes of the buffer that each place in a job's depth has.
pub fn buffer_bytes(job: &Job, of: &Geometry) -> usize {
    let of_trace = job.trace.as_ref().map_or(0, |_| of.transfer_bytes_max);
    job.data_bytes_max().max(of_trace).max(of.block_bytes) as usize
}

fn blank(stages: &[&'static str]) -> JobStats {
    let breakdowns = OpKind::ALL.map(|kind| (kind, Breakdown::new(stages))).into();
    JobStats { breakdowns, ..JobStats::default() }
}

impl<D: BlockDevice + Clone + 'static, P: HostPort> Engine<D, P> {
    /// The life of one place in the job's depth.
    async fn work(self: Rc<Self>, buffer: Buffer) {
        self.take_operations(buffer).await;
        self.workers.set(self.workers.get() - 1);
        self.ended.notify(&self.rt);
    }

    /// One for each place of the depth.
    fn buffers(&self, depth: u32) -> Result<Vec<Buffer>, String> {
        let job = &self.setup.job;
        let bytes = buffer_bytes(job, &self.disk.geometry());
        (0..depth).map(|_| self.disk.buffer(bytes)).collect::<Result<_, _>>().map_err(|error| {
            let name = &job.name;
            format!(
                "{name}: iodepth={depth} needs as many buffers of {bytes} bytes: {error}: {FEWER}"
            )
        })
    }

    async fn take_operations(&self, buffer: Buffer) {
        let (mut scratch, mut ticket, mut went) = (Vec::new(), ReadTicket::default(), Went::new());
        let mut now = self.rt.now();
        while let Some(op) = self.next(now) {
            if let Some(hold) = &self.setup.hold {
                hold.passed(&self.rt, &self.setup.progress).await;
            }
            // Noting the last operation and choosing this one is nobody's latency.
            now = self.rt.now();
            let arrival = op.not_before.map_or(now, |after| self.start.get() + after);
            if arrival > now {
                self.rt.sleep_until(arrival).await;
                now = self.rt.now();
            }
            let late = now.since(arrival);
            self.in_flight.set(self.in_flight.get() + 1);
            self.job_result.borrow_mut().stats.depths.note(self.in_flight.get());
            went.begin();
            if !self.setup.layers.is_empty() {
                self.above(&mut went).await;
            }
            // Pinned where it lies: it is not moved for every operation. What is nothing but a read is not
            // put into another future, through which every one of its waits would go.
            let result = if op.kind == OpKind::Read && self.setup.checks.is_none() {
                let read =
                    self.read(self.blocks(op.offset_bytes), &buffer, op.bytes as usize, &mut went);
                pin!(read).await
            } else {
                let perform = self.perform(&op, &buffer, &mut scratch, &mut ticket, &mut went);
                pin!(perform).await
            };
            self.in_flight.set(self.in_flight.get() - 1);
            now = self.rt.now();
            let done = Done { at: now, total: now.since(arrival), late };
            self.note(&op, result, done, &mut went);
            if self.setup.job.thinktime > Span::ZERO {
                self.rt.sleep(self.setup.job.thinktime).await;
                now = self.rt.now();
            }
        }
    }

    fn next(&self, now: Time) -> Option<Op> {
        if self.stopped.get() {
            return None;
        }
        let limit = self.setup.job.runtime.map(|runtime| runtime + self.setup.job.ramp_time);
        if limit.is_some_and(|limit| now.since(self.start.get()) >= limit) {
            self.source.borrow_mut().stop();
        }
        self.source.borrow_mut().next(|error| {
            self.stopped.set(true);
            self.job_result.borrow_mut().fail(error.to_string());
        })
    }

    /// The software above the driver takes its time; by stage.
    async fn above(&self, went: &mut Went) {
        for layer in &self.setup.layers {
            let before = self.rt.now();
            self.setup.port.spend(layer.cost).await;
            went.add(layer.stage, self.rt.now().since(before));
        }
    }

    async fn perform(
        &self,
        op: &Op,
        buffer: &Buffer,
        scratch: &mut Vec<u8>,
        ticket: &mut ReadTicket,
        went: &mut Went,
    ) -> Result<(), String> {
        let disk = &self.disk;
        let (lba, blocks) = (self.blocks(op.offset_bytes), self.blocks(op.bytes.into()) as u32);
        let bytes = op.bytes as usize;
        let checks = self.setup.checks.as_deref();
        match op.kind {
            OpKind::Read => {
                if let Some(checks) = checks {
                    checks.ledger().start_read_again(ticket, lba, blocks);
                }
                pin!(self.read(lba, buffer, bytes, went)).await?;
                checks.map_or(Ok(()), |checks| self.check(checks, ticket, buffer, bytes, scratch))
            }
            OpKind::Write => {
                let Some(checks) = checks else {
                    return self.write(lba, buffer, bytes, went).await;
                };
                let write = checks.ledger().start_write(lba, blocks);
                scratch.resize(op.bytes as usize, 0);
                checks.stamps.fill(scratch, lba, self.block_bytes, write.version);
                buffer.copy_in(0, scratch);
                let result = self.write(lba, buffer, bytes, went).await;
                checks.finish(write, &result);
                result
            }
            OpKind::Trim => {
                let trim = match checks {
                    Some(checks) => Some(checks.start_trim(disk.deallocated(), lba, blocks)?),
                    None => None,
                };
                let result = disk.deallocate(Lba(lba), blocks).await;
                went.add_request_trace(&self.rt);
                let result = result.map_err(|error| self.failed(OpKind::Trim, error));
                if let (Some(checks), Some(trim)) = (checks, trim) {
                    checks.finish(trim, &result);
                }
                result
            }
            OpKind::Flush => {
                let flush = checks.map(|checks| checks.ledger().start_flush());
                let result = disk.flush().await.map_err(|error| self.failed(OpKind::Flush, error));
                went.add_request_trace(&self.rt);
                if let (Some(checks), Some(flush)) = (checks, flush) {
                    let mut ledger = checks.ledger();
                    match result {
                        Ok(()) => ledger.finish_flush(flush),
                        Err(_) => ledger.fail_flush(flush),
                    }
                }
                result
            }
        }
    }

    /// How many blocks so many bytes are. A block is a power of two, and a division takes long.
    fn blocks(&self, bytes: u64) -> u64 {
        bytes >> self.block_bytes.trailing_zeros()
    }

    /// Reads so many bytes to the buffer's beginning, in as many commands as the disk needs for it.
    async fn read(
        &self,
        lba: u64,
        buffer: &Buffer,
        bytes: usize,
        went: &mut Went,
    ) -> Result<(), String> {
        let mut done = 0;
        while done < bytes {
            let (at, part) = self.part(lba, buffer, done, bytes);
            let read = pin!(self.disk.read(at, part));
            let (_, result) = read.await;
            went.add_request_trace(&self.rt);
            result.map_err(|error| self.failed(OpKind::Read, error))?;
            done += self.command_bytes_max;
        }
        Ok(())
    }

    /// Writes as many bytes of the buffer's beginning.
    async fn write(
        &self,
        lba: u64,
        buffer: &Buffer,
        bytes: usize,
        went: &mut Went,
    ) -> Result<(), String> {
        let mut done = 0;
        while done < bytes {
            let (at, part) = self.part(lba, buffer, done, bytes);
            let write = pin!(self.disk.write(at, part, false));
            let (_, result) = write.await;
            went.add_request_trace(&self.rt);
            result.map_err(|error| self.failed(OpKind::Write, error))?;
            done += self.command_bytes_max;
        }
        Ok(())
    }

    /// What one command moves of what is left.
    fn part(&self, lba: u64, buffer: &Buffer, done: usize, bytes: usize) -> (Lba, Buffer) {
        let part = buffer.part(done, self.command_bytes_max.min(bytes - done));
        (Lba(lba + self.blocks(done as u64)), part)
    }

    /// What is said of a failed command. Behind a device that is gone there is nothing left to ask for, nor
    /// of one that has no such command.
    fn failed(&self, kind: OpKind, error: IoError) -> String {
        if matches!(error.kind, Kind::Gone | Kind::Closed | Kind::Unsupported) {
            self.stopped.set(true);
        }
        match kind {
            OpKind::Read => format!("read: {error}"),
            OpKind::Write => format!("write: {error}"),
            OpKind::Trim => format!("trim: {error}"),
            // Its error says so itself.
            OpKind::Flush => error.to_string(),
        }
    }

    fn check(
        &self,
        checks: &Checks,
        ticket: &ReadTicket,
        buffer: &Buffer,
        bytes: usize,
        scratch: &mut Vec<u8>,
    ) -> Result<(), String> {
        scratch.resize(bytes, 0);
        buffer.copy_out(0, scratch);
        self.job_result.borrow_mut().blocks_verified += self.blocks(bytes as u64);
        let ledger = checks.ledger();
        let found = ledger.check_read(
            ticket,
            &checks.stamps,
            scratch,
            self.block_bytes,
            checks.stamps_only,
        );
        found.map_err(|mismatch| {
            if self.setup.job.verify.fatal {
                self.stopped.set(true);
            }
            format!("verify: {mismatch}")
        })
    }

    fn note(&self, op: &Op, result: Result<(), String>, done: Done, went: &mut Went) {
        let operations = self.setup.progress.operations() + 1;
        self.setup.progress.set(operations);
        if let Some(hold) = &self.setup.hold {
            hold.ended(&self.rt, operations);
        }
        let since = done.at.since(self.start.get());
        let ramp = self.setup.job.ramp_time;
        if let Some(run_recorder) = &self.setup.run_recorder {
            run_recorder.note(op, Time(done.at.0 - done.total.0), done.total);
        }
        let mut job_result = self.job_result.borrow_mut();
        job_result.in_flight += done.total.saturating_sub(done.late);
        if let Err(message) = result {
            job_result.stats.of_mut(op.kind).record_error();
            job_result.say(format!("{}: {message}", self.setup.job.name));
            return;
        }
        if let Some(series) = &self.setup.series {
            series.note(op.kind, done.at, op.bytes, done.total);
        }
        if since < ramp {
            return;
        }
        let at = since.saturating_sub(ramp);
        job_result.stats.of_mut(op.kind).record(at, done.total, op.bytes);
        if !went.followed {
            return;
        }
        if let Some(arrival) = self.setup.arrival_stage {
            went.add(arrival, done.late);
        }
        if let Some(breakdown) = job_result.stats.breakdowns.get_mut(&op.kind) {
            breakdown.record(done.total.0, went.stages.iter());
        }
    }

    /// Reads back what was written, if the job asks for it.
    async fn read_back(&self) {
        let Some(checks) = self.setup.checks.clone() else { return };
        if !self.setup.job.verify.read_back {
            return;
        }
        let most = READ_BACK_BYTES / self.block_bytes;
        let (mut from, mut ticket, mut scratch) = (0, ReadTicket::default(), Vec::new());
        let buffer = match self.disk.buffer(READ_BACK_BYTES as usize) {
            Ok(buffer) => buffer,
            Err(error) => return self.job_result.borrow_mut().fail(format!("read back: {error}")),
        };
        loop {
            let next = checks.ledger().next_written(from, most);
            let Some((lba, blocks)) = next else { return };
            checks.ledger().start_read_again(&mut ticket, lba, blocks);
            let (bytes, mut went) = ((blocks * self.block_bytes) as usize, Went::new());
            let result = self.read(lba, &buffer, bytes, &mut went).await;
            let result =
                result.and_then(|()| self.check(&checks, &ticket, &buffer, bytes, &mut scratch));
            if let Err(message) = result {
                let message = format!("{}: read back: {message}", self.setup.job.name);
                self.job_result.borrow_mut().fail(message);
                if self.stopped.get() {
                    return;
                }
            }
            from = lba + u64::from(blocks);
        }
    }
}
