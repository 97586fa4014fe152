//! The load generator: keeps a job's operations in flight on a disk and records the results.
//!
//! One engine runs one clone of a job. Its operations come from a pattern or a recording; `iodepth` tasks
//! execute them. The latency of an operation with an intended arrival counts from that arrival, which avoids
//! coordinated omission.

mod checks;
mod hints;
mod hold;
mod job_result;
mod kernel;
mod op_trace;
mod progress;
mod several;

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use bus::{Buffer, Cost, HostPort};
use host::{BlockDevice, IoError, Kind};
use runtime::{Rt, STAGES_MAX, Signal, Span, Time};
use wire::Lba;
use workload::job::Job;
use workload::pattern::{Durability, Op, OpKind};
use workload::stats::{Breakdown, Depths, JobStats};
use workload::verify::ReadTicket;

use crate::error::BUFFER_HINT;
use crate::run_recorder::RunRecorder;
use crate::series::Recorder;
use crate::timeline::Sampler;
use crate::work::Source;
pub use checks::Checks;
pub use hold::Hold;
pub use job_result::JobResult;
pub use kernel::KernelPath;
use op_trace::OpTrace;
pub use progress::Progress;
use several::Several;

/// The stage sums of a request trace fit into a breakdown.
const _: () = assert!(STAGES_MAX == workload::limits::STAGES_MAX);

/// Size of the reads of the read-back pass, bytes.
const READ_BACK_BYTES: u32 = 128 * 1024;

/// A software layer above the driver with a cost in the plan: the kernel's block layer, fio itself.
#[derive(Clone, Copy)]
pub struct Layer {
    pub cost: Cost,
    /// Index in the list of stages.
    pub stage: usize,
}

pub struct Setup<P> {
    /// Port on whose core the software costs are spent.
    pub port: P,
    pub job: Job,
    /// Delay before the first operation.
    pub start_delay: Span,
    /// Verification, if the job has it enabled.
    pub checks: Option<Arc<Checks>>,
    pub layers: Vec<Layer>,
    /// The way of calls through a kernel, if the plan has one.
    pub path: Option<KernelPath>,
    /// The stages of this world.
    pub stages: &'static [&'static str],
    /// Index of "queueing delay" among the stages.
    pub arrival_stage: Option<usize>,
    pub progress: Arc<Progress>,
    /// Pauses the work for resets, if there are any.
    pub hold: Option<Rc<Hold>>,
    /// Recorder of a time series, if one is requested.
    pub series: Option<Rc<Recorder>>,
    /// Sampler of a timeline, if one is requested.
    pub sampler: Option<Rc<Sampler>>,
    /// Maximum number of commands of one operation in flight: the slots of the queue.
    pub commands_max: u32,
    /// Recorder of arrivals, if a recording is requested.
    pub run_recorder: Option<Rc<RunRecorder>>,
    /// Size of the buffer of each task.
    pub buffer_bytes: usize,
}

struct Engine<D, P> {
    rt: Rt,
    disk: D,
    setup: Setup<P>,
    source: RefCell<Source>,
    job_result: RefCell<JobResult>,
    start: Cell<Time>,
    in_flight: Cell<u32>,
    /// Completions since the last pause.
    completed: Cell<u32>,
    workers: Cell<u32>,
    ended: Signal,
    stopped: Cell<bool>,
    block_bytes: u32,
    /// Maximum transfer size of a command of the disk, in bytes.
    command_bytes_max: usize,
}

/// One of the tasks of an engine, or the read-back pass.
struct Caller<D, P> {
    op_trace: OpTrace,
    several: Several<D, P>,
}

#[derive(Clone, Copy)]
enum Way {
    Read,
    Write { fua: bool },
}

/// Completion time and latency of an operation.
struct Done {
    at: Time,
    total: Span,
    /// Part of `total` before submission.
    late: Span,
}

/// Runs one clone of a job.
pub async fn run<D, P>(rt: &Rt, source: Source, disk: D, setup: Setup<P>) -> JobResult
where
    D: BlockDevice + Clone + 'static,
    P: HostPort,
{
    let begun = rt.now();
    rt.sleep(setup.start_delay).await;
    let depth = setup.job.iodepth.max(1);
    let shape = disk.geometry();
    let hinted = hints::give(&disk, &source, setup.job.write_hint).await;
    let engine = Rc::new(Engine {
        rt: rt.clone(),
        job_result: RefCell::new(JobResult { stats: blank(setup.stages), ..JobResult::default() }),
        source: RefCell::new(source),
        start: Cell::new(rt.now()),
        in_flight: Cell::new(0),
        completed: Cell::new(0),
        workers: Cell::new(depth),
        ended: Signal::default(),
        stopped: Cell::new(false),
        block_bytes: shape.block_bytes,
        command_bytes_max: shape.transfer_bytes_max as usize,
        disk,
        setup,
    });
    // If not all buffers fit, the job fails with one error and does not run at a lower depth.
    match hinted.and_then(|()| engine.buffers(depth)) {
        Ok(buffers) => {
            if engine.setup.job.ramp_time > Span::ZERO {
                rt.spawn(engine.clone().end_of_ramp());
            }
            for buffer in buffers {
                rt.spawn(engine.clone().work(buffer));
            }
        }
        Err(error) => {
            engine.workers.set(0);
            engine.job_result.borrow_mut().fail(error);
        }
    }
    engine.all_end().await;
    let (ended, ramp) = (rt.now(), engine.setup.job.ramp_time);
    engine.clone().read_back().await;
    engine.all_end().await;
    let mut job_result = engine.job_result.take();
    job_result.measured = ended.since(engine.start.get()).saturating_sub(ramp);
    job_result.elapsed = ended.since(begun);
    job_result
}

fn blank(stages: &[&'static str]) -> JobStats {
    let breakdowns = OpKind::ALL.map(|kind| (kind, Breakdown::new(stages))).into();
    JobStats { breakdowns, ..JobStats::default() }
}

impl<D: BlockDevice + Clone + 'static, P: HostPort> Engine<D, P> {
    /// One of the `iodepth` tasks.
    async fn work(self: Rc<Self>, buffer: Buffer) {
        self.take_operations(buffer, self.caller(self.setup.sampler.clone())).await;
        self.workers.set(self.workers.get() - 1);
        self.ended.notify(&self.rt);
    }

    /// Forgets the depths of the ramp when that is over.
    async fn end_of_ramp(self: Rc<Self>) {
        self.rt.sleep(self.setup.job.ramp_time).await;
        self.job_result.borrow_mut().stats.depths = Depths::default();
    }

    /// Waits until no task of the engine is left.
    async fn all_end(&self) {
        while self.workers.get() > 0 {
            self.ended.changed(&self.rt, self.ended.version()).await;
        }
    }

    fn caller(self: &Rc<Self>, sampler: Option<Rc<Sampler>>) -> Caller<D, P> {
        Caller { op_trace: OpTrace::new(sampler), several: Several::new(self.clone()) }
    }

    /// Allocates a buffer for each task.
    fn buffers(&self, depth: u32) -> Result<Vec<Buffer>, String> {
        let job = &self.setup.job;
        let bytes = self.setup.buffer_bytes;
        (0..depth).map(|_| self.disk.buffer(bytes)).collect::<Result<_, _>>().map_err(|error| {
            let name = &job.name;
            format!(
                "{name}: iodepth={depth} needs {depth} buffers of {bytes} bytes: {error}: {BUFFER_HINT}"
            )
        })
    }

    async fn take_operations(&self, buffer: Buffer, mut caller: Caller<D, P>) {
        let (mut scratch, mut ticket) = (Vec::new(), ReadTicket::default());
        let mut now = self.rt.now();
        while let Some(op) = self.next(now) {
            if let Some(hold) = &self.setup.hold {
                hold.passed(&self.rt, &self.setup.progress).await;
            }
            // The bookkeeping of the engine itself does not count as latency.
            now = self.rt.now();
            let arrival = op.not_before.map_or(now, |after| self.start.get() + after);
            if arrival > now {
                self.rt.sleep_until(arrival).await;
                now = self.rt.now();
            }
            let late = now.since(arrival);
            self.in_flight.set(self.in_flight.get() + 1);
            self.job_result.borrow_mut().stats.depths.note(self.in_flight.get());
            caller.op_trace.begin();
            if !self.setup.layers.is_empty() {
                self.spend_layers(&mut caller.op_trace).await;
            }
            // Boxed, here and below: it is of virtual time alone, and must not lengthen a live read's future.
            if let Some(path) = &self.setup.path {
                Box::pin(self.enter_kernel(path, &mut caller.op_trace)).await;
            }
            // Pinned on the stack, so the future is not moved for every operation. A read without
            // verification is awaited directly, because `perform` would add a level to every poll.
            let result = if op.kind == OpKind::Read && self.setup.checks.is_none() {
                let read = self.read(
                    self.blocks(op.offset_bytes),
                    &buffer,
                    op.bytes as usize,
                    &mut caller,
                );
                pin!(read).await
            } else {
                let perform = self.perform(&op, &buffer, &mut scratch, &mut ticket, &mut caller);
                pin!(perform).await
            };
            if let Some(path) = &self.setup.path {
                Box::pin(self.leave_kernel(path, &mut caller.op_trace)).await;
            }
            self.in_flight.set(self.in_flight.get() - 1);
            now = self.rt.now();
            let done = Done { at: now, total: now.since(arrival), late };
            self.note(&op, result, &done, &mut caller.op_trace);
            if self.thinks() {
                self.rt.sleep(self.setup.job.thinktime).await;
                now = self.rt.now();
            }
        }
    }

    fn next(&self, now: Time) -> Option<Op> {
        if self.stopped.get() || self.setup.progress.is_stopped() {
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

    /// Counts a completion, and returns true if a pause follows it.
    fn thinks(&self) -> bool {
        if self.setup.job.thinktime == Span::ZERO {
            return false;
        }
        let completed = self.completed.get() + 1;
        let pauses = completed >= self.setup.job.thinktime_blocks;
        self.completed.set(if pauses { 0 } else { completed });
        pauses
    }

    /// Spends the costs of the layers above the driver, by stage.
    async fn spend_layers(&self, op_trace: &mut OpTrace) {
        for layer in &self.setup.layers {
            let before = self.rt.now();
            self.setup.port.spend(layer.cost).await;
            op_trace.add_layer(layer.stage, before, self.rt.now());
        }
    }

    async fn perform(
        &self,
        op: &Op,
        buffer: &Buffer,
        scratch: &mut Vec<u8>,
        ticket: &mut ReadTicket,
        caller: &mut Caller<D, P>,
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
                pin!(self.read(lba, buffer, bytes, caller)).await?;
                checks.map_or(Ok(()), |checks| self.check(checks, ticket, buffer, bytes, scratch))
            }
            OpKind::Write => {
                let Durability { preflush, fua } = op.durability;
                if preflush {
                    Box::pin(self.flush(caller)).await?;
                }
                let Some(checks) = checks else {
                    return self.write(lba, buffer, bytes, fua, caller).await;
                };
                let write = checks.ledger().start_write(lba, blocks);
                scratch.resize(op.bytes as usize, 0);
                checks.stamps.fill(scratch, lba, self.block_bytes, write.version);
                buffer.copy_in(0, scratch);
                let result = self.write(lba, buffer, bytes, fua, caller).await;
                checks.finish(write, &result, fua);
                result
            }
            OpKind::Trim => {
                let trim = match checks {
                    Some(checks) => Some(checks.start_trim(disk.deallocated(), lba, blocks)?),
                    None => None,
                };
                let result = disk.deallocate(Lba(lba), blocks).await;
                caller.op_trace.longest.names(lba, op.bytes);
                caller.op_trace.add_request_trace(&self.rt);
                let result = result.map_err(|error| self.failed(OpKind::Trim, error));
                if let (Some(checks), Some(trim)) = (checks, trim) {
                    checks.finish(trim, &result, false);
                }
                result
            }
            OpKind::Flush => self.flush(caller).await,
        }
    }

    async fn flush(&self, caller: &mut Caller<D, P>) -> Result<(), String> {
        let checks = self.setup.checks.as_deref();
        let flush = checks.map(|checks| checks.ledger().start_flush());
        let result = self.disk.flush().await.map_err(|error| self.failed(OpKind::Flush, error));
        caller.op_trace.longest.names(0, 0);
        caller.op_trace.add_request_trace(&self.rt);
        if let (Some(checks), Some(flush)) = (checks, flush) {
            let mut ledger = checks.ledger();
            match result {
                Ok(()) => ledger.finish_flush(flush),
                Err(_) => ledger.fail_flush(flush),
            }
        }
        result
    }

    /// Converts bytes to blocks. The block size is a power of two, so a shift avoids a slow division.
    fn blocks(&self, bytes: u64) -> u64 {
        bytes >> self.block_bytes.trailing_zeros()
    }

    /// Reads `bytes` bytes to the start of the buffer, by several commands if one cannot.
    async fn read(
        &self,
        lba: u64,
        buffer: &Buffer,
        bytes: usize,
        caller: &mut Caller<D, P>,
    ) -> Result<(), String> {
        if let Some(path) = &self.setup.path {
            let part = buffer.part(0, bytes);
            return Box::pin(self.through_kernel(path, Way::Read, lba, part, caller)).await;
        }
        let (part, op_trace) = (buffer.part(0, bytes), &mut caller.op_trace);
        if bytes > self.command_bytes_max {
            let read = caller.several.transfer(Way::Read, lba, part, op_trace);
            return read.await.map_err(|error| self.failed(OpKind::Read, error));
        }
        op_trace.longest.names(lba, bytes as u32);
        let read = pin!(self.disk.read(Lba(lba), part));
        let (_, result) = read.await;
        op_trace.add_request_trace(&self.rt);
        result.map_err(|error| self.failed(OpKind::Read, error))
    }

    /// Writes `bytes` bytes from the start of the buffer likewise.
    async fn write(
        &self,
        lba: u64,
        buffer: &Buffer,
        bytes: usize,
        fua: bool,
        caller: &mut Caller<D, P>,
    ) -> Result<(), String> {
        if let Some(path) = &self.setup.path {
            let part = buffer.part(0, bytes);
            return Box::pin(self.through_kernel(path, Way::Write { fua }, lba, part, caller))
                .await;
        }
        let (part, op_trace) = (buffer.part(0, bytes), &mut caller.op_trace);
        if bytes > self.command_bytes_max {
            let write = caller.several.transfer(Way::Write { fua }, lba, part, op_trace);
            return write.await.map_err(|error| self.failed(OpKind::Write, error));
        }
        op_trace.longest.names(lba, bytes as u32);
        let write = pin!(self.disk.write(Lba(lba), part, fua));
        let (_, result) = write.await;
        op_trace.add_request_trace(&self.rt);
        result.map_err(|error| self.failed(OpKind::Write, error))
    }

    /// Error message of a failed command. Stops the job if the device is gone or does not support the
    /// command.
    fn failed(&self, kind: OpKind, error: IoError) -> String {
        if matches!(error.kind, Kind::Gone | Kind::Closed | Kind::Unsupported) {
            self.stopped.set(true);
        }
        match kind {
            OpKind::Read => format!("read: {error}"),
            OpKind::Write => format!("write: {error}"),
            OpKind::Trim => format!("trim: {error}"),
            // The error text already names the command.
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

    fn note(&self, op: &Op, result: Result<(), String>, done: &Done, op_trace: &mut OpTrace) {
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
        let in_flight = done.total.saturating_sub(done.late);
        if let Err(message) = result {
            job_result.stats.of_mut(op.kind).record_error();
            job_result.push_message(format!("{}: {message}", self.setup.job.name));
            return;
        }
        if let Some(series) = &self.setup.series {
            series.note(op.kind, done.at, op.bytes, done.total);
        }
        if since < ramp + in_flight {
            return;
        }
        job_result.in_flight += in_flight;
        let at = since.saturating_sub(ramp);
        job_result.stats.of_mut(op.kind).record(at, done.total, op.bytes);
        op_trace.sample(op, &self.setup.job.name, done, self.setup.arrival_stage);
        if !op_trace.longest.traced {
            return;
        }
        if let Some(arrival) = self.setup.arrival_stage {
            op_trace.add(arrival, done.late);
        }
        if let Some(breakdown) = job_result.stats.breakdowns.get_mut(&op.kind) {
            breakdown.record(done.total.0, op_trace.longest.sums.iter());
        }
    }

    /// Reads back all written blocks, if the job has `do_verify`.
    async fn read_back(self: Rc<Self>) {
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
        let mut caller = self.caller(None);
        loop {
            let next = checks.ledger().next_written(from, most);
            let next = next.filter(|_| !self.setup.progress.is_stopped());
            let Some((lba, blocks)) = next else { return };
            checks.ledger().start_read_again(&mut ticket, lba, blocks);
            let bytes = (blocks * self.block_bytes) as usize;
            let result = self.read(lba, &buffer, bytes, &mut caller).await;
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
