//! Operations longer than one command: their commands run at once.
//!
//! Each of the `iodepth` tasks of an engine has helper tasks, made when an operation first needs them and
//! kept until the job ends, so that later operations allocate nothing. A helper takes the next part of the
//! buffer until none is left. So an operation has at most as many commands in flight as the queue has slots,
//! and the trace of a helper is a path through the operation: commands one after the other, from its
//! beginning on. The path that ends last is the operation's latency.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bus::{Buffer, HostPort};
use host::{BlockDevice, IoError};
use runtime::{Signal, TaskId};
use wire::Lba;

use super::op_trace::{CommandTrace, OpTrace};
use super::{Engine, Way};

/// The operation that the helpers of a task work on.
struct Transfer {
    way: Way,
    lba: u64,
    buffer: Buffer,
}

struct Helper {
    task: Cell<Option<TaskId>>,
    /// The helper has an operation to work on.
    is_due: Cell<bool>,
    trace: RefCell<CommandTrace>,
}

/// State that a task and its helpers share.
struct Shared {
    transfer: RefCell<Option<Transfer>>,
    /// First byte of the next command.
    next: Cell<usize>,
    busy: Cell<usize>,
    /// The helper whose command ended last.
    last: Cell<usize>,
    /// The failed command with the lowest first byte.
    failed: RefCell<Option<(usize, IoError)>>,
    ended: Signal,
    closed: Cell<bool>,
}

pub(super) struct Several<D, P> {
    engine: Rc<Engine<D, P>>,
    shared: Rc<Shared>,
    helpers: RefCell<Vec<Rc<Helper>>>,
}

impl<D: BlockDevice + Clone + 'static, P: HostPort> Several<D, P> {
    pub fn new(engine: Rc<Engine<D, P>>) -> Several<D, P> {
        let shared = Shared {
            transfer: RefCell::new(None),
            next: Cell::new(0),
            busy: Cell::new(0),
            last: Cell::new(0),
            failed: RefCell::new(None),
            ended: Signal::default(),
            closed: Cell::new(false),
        };
        Several { engine, shared: Rc::new(shared), helpers: RefCell::default() }
    }

    /// Reads or writes all of `buffer`; adds the longest path to the trace.
    ///
    /// # Errors
    /// That of the failed command with the lowest LBA. No further command begins after a failure.
    pub async fn transfer(
        &self,
        way: Way,
        lba: u64,
        buffer: Buffer,
        op_trace: &mut OpTrace,
    ) -> Result<(), IoError> {
        let (engine, shared) = (&self.engine, &self.shared);
        let commands = buffer.bytes().div_ceil(engine.command_bytes_max);
        let at_once = commands.min(engine.setup.commands_max.max(1) as usize);
        self.make(at_once, op_trace.has_timeline());
        shared.transfer.replace(Some(Transfer { way, lba, buffer }));
        shared.next.set(0);
        shared.failed.replace(None);
        shared.busy.set(at_once);
        for helper in &self.helpers.borrow()[..at_once] {
            helper.is_due.set(true);
            helper.task.get().into_iter().for_each(|task| engine.rt.wake(task));
        }
        while shared.busy.get() > 0 {
            shared.ended.changed(&engine.rt, shared.ended.version()).await;
        }
        shared.transfer.replace(None);
        self.add_paths(at_once, op_trace);
        shared.failed.take().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Makes helpers, if there are fewer than `wanted`.
    fn make(&self, wanted: usize, has_timeline: bool) {
        let mut helpers = self.helpers.borrow_mut();
        while helpers.len() < wanted {
            let helper = Rc::new(Helper {
                task: Cell::new(None),
                is_due: Cell::new(false),
                trace: RefCell::new(CommandTrace::new(has_timeline)),
            });
            let (engine, shared) = (self.engine.clone(), self.shared.clone());
            engine.workers.set(engine.workers.get() + 1);
            let help = engine.clone().help(shared, helper.clone(), helpers.len());
            helper.task.set(Some(engine.rt.spawn(help)));
            helpers.push(helper);
        }
    }

    fn add_paths(&self, at_once: usize, op_trace: &mut OpTrace) {
        let (helpers, last) = (self.helpers.borrow(), self.shared.last.get());
        let longest = helpers[last].trace.borrow();
        longest.sums.iter().for_each(|(stage, ps)| op_trace.longest.sums.add(stage, ps));
        op_trace.longest.traced &= longest.traced;
        if op_trace.has_timeline() {
            let traces = helpers[..at_once].iter().map(|helper| helper.trace.borrow());
            op_trace.paths.extend(traces.filter_map(|trace| trace.path.clone()));
            op_trace.longest_path = last;
        }
    }
}

impl<D, P> Drop for Several<D, P> {
    /// Ends the helpers, each at its next turn.
    fn drop(&mut self) {
        self.shared.closed.set(true);
        for helper in self.helpers.borrow().iter() {
            helper.task.get().into_iter().for_each(|task| self.engine.rt.wake(task));
        }
    }
}

impl<D: BlockDevice + Clone + 'static, P: HostPort> Engine<D, P> {
    async fn help(self: Rc<Self>, shared: Rc<Shared>, helper: Rc<Helper>, number: usize) {
        let is_due = || match shared.closed.get() {
            true => Poll::Ready(false),
            false if helper.is_due.take() => Poll::Ready(true),
            false => Poll::Pending,
        };
        while poll_fn(|_| is_due()).await {
            helper.trace.borrow_mut().begin();
            while let Some((from, lba, part)) = self.take_part(&shared) {
                self.run_part(&shared, &helper, from, lba, part).await;
                shared.last.set(number);
            }
            shared.busy.set(shared.busy.get() - 1);
            if shared.busy.get() == 0 {
                shared.ended.notify(&self.rt);
            }
        }
        self.workers.set(self.workers.get() - 1);
        self.ended.notify(&self.rt);
    }

    /// First byte, LBA and buffer of the next command.
    fn take_part(&self, shared: &Shared) -> Option<(usize, u64, Buffer)> {
        // The operation's task may have been dropped: then no further command begins.
        if shared.closed.get() {
            return None;
        }
        let transfer = shared.transfer.borrow();
        let (transfer, from) = (transfer.as_ref()?, shared.next.get());
        let left = transfer.buffer.bytes().checked_sub(from).filter(|left| *left > 0)?;
        let bytes = left.min(self.command_bytes_max);
        shared.next.set(from + bytes);
        let lba = transfer.lba + self.blocks(from as u64);
        Some((from, lba, transfer.buffer.part(from, bytes)))
    }

    async fn run_part(
        &self,
        shared: &Shared,
        helper: &Helper,
        from: usize,
        lba: u64,
        part: Buffer,
    ) {
        helper.trace.borrow_mut().names(lba, part.bytes() as u32);
        let way = shared.transfer.borrow().as_ref().map(|transfer| transfer.way);
        let (_, result) = match way {
            Some(Way::Write { fua }) => pin!(self.disk.write(Lba(lba), part, fua)).await,
            _ => pin!(self.disk.read(Lba(lba), part)).await,
        };
        helper.trace.borrow_mut().add(&self.rt);
        let Err(error) = result else { return };
        // The other commands in flight end; no further one begins.
        shared.next.set(usize::MAX);
        let mut failed = shared.failed.borrow_mut();
        if failed.as_ref().is_none_or(|(first, _)| from < *first) {
            *failed = Some((from, error));
        }
    }
}
