//! Owner of a FastPath block: its clock, its setup, and callers that wait for responses.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;

use bus::{Buffer, Cost, HostPort};
use runtime::{Pool, Rt, Signal, Span, Stage, stage};
use wire::BusAddr;
use wire::fastpath::registers::{
    self, Control, Counter, Handle, Status, handle_words, request_words,
};
use wire::fastpath::{Request, Response};
use zerocopy::IntoBytes;

use crate::axi::{Access, Lite, Master, Sequence, Timing};
use crate::pins::{Block, Inputs, Outputs};

/// Cycle time at the paper's 125 MHz.
const CYCLE: Span = Span::ns(8);

/// Address of the drive's registers as seen by the block: below 4 GiB, like a 32-bit BAR.
const REGISTERS_AT: u64 = 0xf000_0000;

/// Stages of a traced request: the wait for a tag, writing the request registers, and from there until the
/// response has been read.
pub const STAGES: &[&str] = &["request wait", "post request", "hardware"];

/// Maximum number of requests in flight; the FIFO of the block has room for more.
const REQUESTS: u16 = 16;

/// The drive's queue pair that the block owns, and parameters of the drive.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Submission queue: whole pages.
    pub submission_queue: BusAddr,
    /// Completion queue: whole pages.
    pub completion_queue: BusAddr,
    /// Number of entries of each of the two queues.
    pub depth: u16,
    /// Queue identifier of both queues.
    pub queue_id: u16,
    /// Register offset of the tail doorbell, bytes.
    pub tail_doorbell: u32,
    /// Register offset of the head doorbell, bytes.
    pub head_doorbell: u32,
    /// Namespace identifier (NSID) in all commands.
    pub namespace: u32,
    /// LBA size as a power of two.
    pub lba_shift: u8,
    /// Completions per write of the head doorbell.
    pub batch: u16,
    /// Cycles between polls of an empty completion queue.
    pub poll_interval: u16,
    /// Time limit of a request.
    pub timeout: Span,
}

/// A register access that the block answered with SLVERR; holds the register offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusError(pub u32);

impl fmt::Display for BusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the block refused an access to its register at {:#x}", self.0)
    }
}

impl core::error::Error for BusError {}

/// A block on a bus. Clones share it; its clock runs only while there is work.
pub struct Engine<P: HostPort>(Rc<Core<P>>);

impl<P: HostPort> Clone for Engine<P> {
    fn clone(&self) -> Engine<P> {
        Engine(self.0.clone())
    }
}

/// A caller on its own core.
pub(crate) struct Caller<P: HostPort> {
    pub port: P,
    /// Queue number of its request traces.
    pub traces: u16,
    /// Costs of passing a request to the block and of taking its response.
    pub request: Cost,
    pub take_response: Cost,
}

struct Core<P: HostPort> {
    port: P,
    lite: RefCell<Lite>,
    /// Notified when a sequence of accesses is queued.
    asked: Signal,
    /// Notified when a sequence of accesses has ended or a response has arrived.
    ended: Signal,
    tags: Pool<u16>,
    under_way: Cell<u32>,
    /// Tags of requests whose futures were dropped; freed with their responses.
    orphans: RefCell<BTreeSet<u16>>,
    /// Buffers that the drive may access, by tag.
    keeps: RefCell<BTreeMap<u16, Buffer>>,
    stages: [Stage; 3],
    responses: RefCell<BTreeMap<u16, Response>>,
    cycles: Cell<u64>,
}

impl<P: HostPort> Engine<P> {
    /// Resets the block, configures and enables it.
    ///
    /// # Errors
    /// The block rejected the setup.
    pub async fn start(
        port: P,
        block: impl Block + 'static,
        setup: &Setup,
        timing: Timing,
    ) -> Result<Engine<P>, BusError> {
        let core = Rc::new(Core {
            port: port.clone(),
            lite: RefCell::default(),
            asked: Signal::default(),
            ended: Signal::default(),
            tags: Pool::new((0..REQUESTS).rev()),
            under_way: Cell::new(0),
            orphans: RefCell::default(),
            keeps: RefCell::default(),
            stages: [
                stage!(port.rt(), STAGES, "request wait"),
                stage!(port.rt(), STAGES, "post request"),
                stage!(port.rt(), STAGES, "hardware"),
            ],
            responses: RefCell::default(),
            cycles: Cell::new(0),
        });
        let master = Master::new(port.clone(), timing, REGISTERS_AT);
        port.rt().spawn(clock(core.clone(), block, master));
        let engine = Engine(core);
        engine.set_up(setup).await?;
        Ok(engine)
    }

    /// Disables the block, waits until its bus is idle, configures and enables it. The queues are empty
    /// then, and must be empty for the drive too. Handles stay.
    ///
    /// # Errors
    /// The block rejected the setup.
    pub async fn set_up(&self, setup: &Setup) -> Result<(), BusError> {
        self.write(registers::CONTROL, 0).await?;
        while Status::from_bits(self.read(registers::STATUS).await?).on_the_bus() {}
        let doorbell = |offset: u32| REGISTERS_AT + u64::from(offset);
        let pairs = [
            (registers::SUBMISSION_QUEUE, setup.submission_queue.0),
            (registers::COMPLETION_QUEUE, setup.completion_queue.0),
            (registers::TAIL_DOORBELL, doorbell(setup.tail_doorbell)),
            (registers::HEAD_DOORBELL, doorbell(setup.head_doorbell)),
            (registers::TIMEOUT, setup.timeout.0 / CYCLE.0),
        ];
        let words = [
            (registers::QUEUE_DEPTH, u32::from(setup.depth)),
            (registers::NAMESPACE, setup.namespace),
            (registers::LBA_SHIFT, u32::from(setup.lba_shift)),
            (registers::QUEUE_ID, u32::from(setup.queue_id)),
            (registers::BATCH, u32::from(setup.batch)),
            (registers::POLL_INTERVAL, u32::from(setup.poll_interval)),
        ];
        let halves = pairs.iter().flat_map(|(offset, value)| {
            [(*offset, *value as u32), (offset + 4, (value >> 32) as u32)]
        });
        let enable = Control::new().with_enable(true).with_interrupt(true).into_bits();
        let all = halves.chain(words).chain([(registers::CONTROL, enable)]);
        self.access(all.map(|(offset, value)| Access::Write(offset, value)).collect()).await?;
        Ok(())
    }

    /// Sets the handle with number `fp_id`.
    ///
    /// # Errors
    /// The block rejected the handle.
    pub async fn set_handle(&self, fp_id: u16, handle: &Handle) -> Result<(), BusError> {
        self.window(registers::HANDLE, &handle_words(fp_id, handle)).await
    }

    /// Performs a request. Its tag is replaced by one of the engine's. If the future is dropped, the drive
    /// may still write to the handle's buffer.
    ///
    /// # Errors
    /// The block rejected the request: it is disabled.
    pub async fn perform(&self, request: &Request) -> Result<Response, BusError> {
        self.perform_for(None, request, None).await.0
    }

    /// Same as [`perform`](Self::perform), with the costs and the request trace of a caller, and with a
    /// buffer held until the response. If the engine failed and the drive may still write to the buffer, it
    /// is never reused.
    pub(crate) async fn perform_for(
        &self,
        caller: Option<&Caller<P>>,
        request: &Request,
        keep: Option<Buffer>,
    ) -> (Result<Response, BusError>, Option<Buffer>) {
        let (core, rt) = (&*self.0, self.0.rt());
        let begun = rt.now();
        let tag = core.tags.take(rt).await;
        if let Some(caller) = caller {
            rt.begin_trace(caller.traces, tag, begun);
            rt.record(core.stages[0]);
            caller.port.spend(caller.request).await;
        }
        let request = Request { tag: tag.into(), ..*request };
        core.under_way.set(core.under_way.get() + 1);
        if let Some(keep) = keep {
            core.keeps.borrow_mut().insert(tag, keep);
        }
        let mut asking = Asking { core, tag, is_over: false };
        let posted = self.window(registers::REQUEST, &request_words(&request)).await;
        rt.record(core.stages[1]);
        let response = match posted {
            Ok(()) => Ok(core.response(tag).await),
            Err(error) => Err(error),
        };
        rt.record(core.stages[2]);
        if let Some(caller) = caller {
            caller.port.spend(caller.take_response).await;
        }
        asking.is_over = true;
        let keep = core.keeps.borrow_mut().remove(&tag);
        (response, keep)
    }

    /// Reads the status register.
    ///
    /// # Errors
    /// A bus error, which no block returns here.
    pub async fn status(&self) -> Result<Status, BusError> {
        Ok(Status::from_bits(self.read(registers::STATUS).await?))
    }

    /// Reads a counter.
    ///
    /// # Errors
    /// A bus error, which no block returns here.
    pub async fn counter(&self, counter: Counter) -> Result<u32, BusError> {
        self.read(counter.offset()).await
    }

    /// Clock cycles since the start, without pauses of the clock.
    pub fn cycles(&self) -> u64 {
        self.0.cycles.get()
    }

    async fn window(&self, offset: u32, words: &[u32]) -> Result<(), BusError> {
        let writes = (offset..).step_by(4).zip(words);
        self.access(writes.map(|(offset, word)| Access::Write(offset, *word)).collect()).await?;
        Ok(())
    }

    async fn write(&self, offset: u32, value: u32) -> Result<(), BusError> {
        self.window(offset, &[value]).await
    }

    async fn read(&self, offset: u32) -> Result<u32, BusError> {
        let values = self.access(alloc::vec![Access::Read(offset)]).await?;
        Ok(values[0])
    }

    /// Performs a sequence of register accesses that no other access interrupts.
    async fn access(&self, accesses: Vec<Access>) -> Result<Vec<u32>, BusError> {
        let (core, rt) = (&*self.0, self.0.port.rt());
        let sequence = core.push(accesses);
        core.asked.notify(rt);
        while !sequence.borrow().is_done {
            core.ended.changed(rt, core.ended.version()).await;
        }
        let sequence = sequence.borrow();
        sequence.error.map_or_else(|| Ok(sequence.values.clone()), |offset| Err(BusError(offset)))
    }
}

impl<P: HostPort> Core<P> {
    fn rt(&self) -> &Rt {
        self.port.rt()
    }

    fn push(&self, accesses: Vec<Access>) -> Rc<RefCell<Sequence>> {
        let sequence = Sequence { accesses, values: Vec::new(), error: None, is_done: false };
        let sequence = Rc::new(RefCell::new(sequence));
        self.lite.borrow_mut().push(sequence.clone());
        sequence
    }

    async fn response(&self, tag: u16) -> Response {
        loop {
            if let Some(response) = self.responses.borrow_mut().remove(&tag) {
                return response;
            }
            self.ended.changed(self.rt(), self.ended.version()).await;
        }
    }

    /// Stores a response that was read word by word.
    fn keep(&self, words: &[u32]) {
        let mut response = Response::default();
        response.as_mut_bytes().copy_from_slice(words.as_bytes());
        let tag = response.tag.get();
        if may_still_write(&response)
            && let Some(keep) = self.keeps.borrow().get(&tag)
        {
            core::mem::forget(keep.part(0, keep.bytes()));
        }
        if self.orphans.borrow_mut().remove(&tag) {
            self.keeps.borrow_mut().remove(&tag);
            self.free(tag);
        } else {
            self.responses.borrow_mut().insert(tag, response);
        }
    }

    fn free(&self, tag: u16) {
        self.under_way.set(self.under_way.get() - 1);
        self.tags.give(self.rt(), tag);
    }
}

/// Returns true if the engine has abandoned commands that the drive may still execute.
fn may_still_write(response: &Response) -> bool {
    use wire::fastpath::{Refusal, Status};
    let failed = [Refusal::TimeOut, Refusal::Bus, Refusal::Controller];
    matches!(response.status(), Status::Engine(refusal) if failed.contains(&refusal))
}

/// A request in flight, with its tag.
struct Asking<'a, P: HostPort> {
    core: &'a Core<P>,
    tag: u16,
    is_over: bool,
}

impl<P: HostPort> Drop for Asking<'_, P> {
    fn drop(&mut self) {
        let has_come = self.core.responses.borrow_mut().remove(&self.tag).is_some();
        if self.is_over || has_come {
            self.core.free(self.tag);
        } else {
            self.core.orphans.borrow_mut().insert(self.tag);
        }
    }
}

/// The clock: one timed event per cycle, while a caller waits or the bus is not idle.
async fn clock<P: HostPort>(core: Rc<Core<P>>, mut block: impl Block, mut master: Master<P>) {
    let rt = core.rt().clone();
    let mut outputs = Outputs::default();
    for _ in 0..4 {
        outputs = block.cycle(&Inputs::default());
    }
    let mut taking: Option<Rc<RefCell<Sequence>>> = None;
    // The block may write the head doorbell after the last response: it gets this number of cycles.
    const LINGER: u32 = 64;
    let mut idle = 0;
    loop {
        if idle > LINGER {
            let version = core.asked.version();
            if core.lite.borrow().is_idle() {
                core.asked.changed(&rt, version).await;
            }
            idle = 0;
        }
        let cycle = core.cycles.get();
        let mut inputs = Inputs { reset_n: 1, ..Inputs::default() };
        core.lite.borrow().drive(&mut inputs);
        master.drive(cycle, &mut inputs);
        let before = outputs;
        outputs = block.cycle(&inputs);
        master.crossed(cycle, &inputs, &before);
        let ended = core.lite.borrow_mut().crossed(&inputs, &before);
        if let Some(sequence) = taking.take_if(|sequence| sequence.borrow().is_done) {
            core.keep(&sequence.borrow().values);
        }
        if taking.is_none() && outputs.irq == 1 {
            let words = (0..4).map(|word| Access::Read(registers::RESPONSE + 4 * word));
            taking = Some(core.push(words.collect()));
        }
        if ended {
            core.ended.notify(&rt);
        }
        let busy = core.under_way.get() > 0 || !core.lite.borrow().is_idle() || !master.is_idle();
        idle = if busy { 0 } else { idle + 1 };
        core.cycles.set(cycle + 1);
        rt.sleep(CYCLE).await;
    }
}
