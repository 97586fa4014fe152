//! One executor over two clocks.
//!
//! Tasks are bound to the thread that made the [`Rt`] and need no `Send`. A wait records the *number*
//! of the task that waits, so that waking is a push onto a queue: no reference count, no lock, no
//! allocation. A combinator that hands its children a waker of its own (as `FuturesUnordered` does)
//! works too: [`Parked`] then keeps that waker beside the number.
//!
//! Virtual: when nothing is ready, the clock jumps to the next timer. Wall: tasks that wait for memory
//! to change are polled pass after pass, and a world in which nothing happens backs off by
//! [`WallClock::idle`].
//!
//! Who is polled next is decided in `pass.rs`, when timers fire in `timers.rs`, and where time may pass
//! without one in `sleep.rs`.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

use crate::log::{Entry, Log};
use crate::pass::{LOOKS_UNTIL_IDLE, Pass};
use crate::rng::Rng;
use crate::sleep::{Sleep, straight};
use crate::time::{Span, Time};
use crate::timers::Timers;
use crate::trace::{NO_TRACE, Traces};

/// The clock of the live world, and how to pass idle time on this platform.
pub trait WallClock {
    /// The moment now, from an epoch that every thread of the program shares.
    fn now(&self) -> Time;
    /// Called after `looks` looks in a row that found nothing, a thousand or more: spin, yield or sleep,
    /// but not past `until`.
    fn idle(&self, looks: u32, until: Time);
    /// Called where nobody waits for memory: nothing can happen in this world before `until`. May return
    /// earlier, and must not later than a millisecond from now.
    fn sleep_for(&self, until: Time) {
        self.idle(LOOKS_UNTIL_IDLE, until);
    }
}

pub(crate) enum Clock {
    Virtual,
    Wall(&'static dyn WallClock),
}

/// The number of a task in its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(pub(crate) u32);

/// The future that [`Rt::block_on`] was given.
const MAIN: TaskId = TaskId(0);
/// Polled from outside: some other executor, whose waker is then kept.
pub(crate) const OUTSIDE: TaskId = TaskId(u32::MAX);

/// What is polled step by step: the world between two of its polls goes on as it may. One waker at one
/// place: it is told from others by its address, and every crate that asks for the no-op waker gets its own.
pub(crate) static OURS: &Waker = Waker::noop();

struct Task {
    /// None while it is being polled, and when it has ended.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    queued: bool,
    trace: u32,
}

/// A task that is about to be polled: what it waits in, and the journey that it has along.
type Taken = (Pin<Box<dyn Future<Output = ()>>>, u32);

/// A word that is never loaded together with its neighbours. Two words that were stored one by one, and are
/// loaded at once, are not taken from the store buffer: the load waits until both stores have left it, in
/// their order. Live, what stands before them is a doorbell, whose line another core has to give up first.
#[repr(align(16))]
pub(crate) struct ByItself<T>(pub Cell<T>);

pub(crate) struct Core {
    pub clock: Clock,
    /// The moment now, in virtual time.
    pub now: Cell<Time>,
    pub ready: RefCell<VecDeque<TaskId>>,
    /// Who waits for memory, and how far this pass over them has come (wall clock only).
    pub pass: RefCell<Pass>,
    tasks: RefCell<Vec<Task>>,
    free: RefCell<Vec<TaskId>>,
    pub timers: RefCell<Timers>,
    /// The moment of the next timer; on the wall clock, or an earlier one.
    pub next_timer: Cell<Time>,
    /// See [`Rt::looks`].
    pub looks: Cell<u32>,
    /// See [`Rt::goes_on`].
    pub luck: Cell<u32>,
    pub current: ByItself<TaskId>,
    /// A task is being polled from inside another: see [`Rt::hand_over`].
    handed_over: Cell<bool>,
    trace: ByItself<u32>,
    pub timed_events: Cell<u64>,
    /// Whoever waits for this one is woken before the next.
    pub watched_event: Cell<u64>,
    event_watcher: Cell<TaskId>,
    pub progress: Cell<bool>,
    /// The waker of tasks that are alone in their turn.
    pub straight: &'static Waker,
    /// Virtual time, in which such a task may go on in place.
    pub in_place: bool,
    /// Ready tasks are picked at random.
    shuffled: Cell<bool>,
    shuffle: RefCell<Option<Rng>>,
    traces: Option<Traces>,
    log: Log,
}

/// A handle to the executor, its clock, its journeys and its log, and the queue from which on journeys are
/// counted by it. Cheap to clone.
#[derive(Clone)]
pub struct Rt(pub(crate) Rc<Core>, pub(crate) u16);

/// Who waits: a task, and the waker of a foreign combinator inside it, if any.
#[derive(Debug)]
pub struct Parked {
    task: TaskId,
    foreign: Option<Waker>,
}

impl Parked {
    pub(crate) fn new(task: TaskId, foreign: Option<Waker>) -> Parked {
        Parked { task, foreign }
    }

    pub(crate) fn into_parts(self) -> (TaskId, Option<Waker>) {
        (self.task, self.foreign)
    }
}

impl Rt {
    /// A world in virtual time.
    pub fn simulated(traces: Option<Traces>, log: Log) -> Rt {
        Rt::new(Clock::Virtual, traces, log)
    }

    /// A world on a real clock.
    pub fn live(clock: &'static dyn WallClock, traces: Option<Traces>, log: Log) -> Rt {
        Rt::new(Clock::Wall(clock), traces, log)
    }

    fn new(clock: Clock, traces: Option<Traces>, log: Log) -> Rt {
        let main = Task { future: None, queued: false, trace: NO_TRACE };
        let straight = straight();
        let in_place = matches!(clock, Clock::Virtual) && !straight.will_wake(OURS);
        let core = Core {
            clock,
            now: Cell::new(Time::ZERO),
            ready: RefCell::new(VecDeque::with_capacity(256)),
            pass: RefCell::new(Pass::new()),
            tasks: RefCell::new(alloc::vec![main]),
            free: RefCell::new(Vec::new()),
            timers: RefCell::new(Timers::new()),
            next_timer: Cell::new(Time::NEVER),
            looks: Cell::new(1),
            luck: Cell::new(0),
            current: ByItself(Cell::new(OUTSIDE)),
            handed_over: Cell::new(false),
            trace: ByItself(Cell::new(NO_TRACE)),
            timed_events: Cell::new(0),
            watched_event: Cell::new(u64::MAX),
            event_watcher: Cell::new(OUTSIDE),
            progress: Cell::new(false),
            straight,
            in_place,
            shuffled: Cell::new(false),
            shuffle: RefCell::new(None),
            traces,
            log,
        };
        Rt(Rc::new(core), 0)
    }

    /// From here on, a ready task is picked at random instead of in order: a test that still passes
    /// does not lean on an order that nobody promised.
    pub fn shuffle_ready_tasks(&self, rng: Rng) {
        *self.0.shuffle.borrow_mut() = Some(rng);
        self.0.shuffled.set(true);
    }

    /// The moment now.
    #[inline]
    pub fn now(&self) -> Time {
        match self.0.clock {
            Clock::Virtual => self.0.now.get(),
            Clock::Wall(clock) => clock.now(),
        }
    }

    /// How many timers have fired: the timed events of a simulated run.
    pub fn timed_events(&self) -> u64 {
        self.0.timed_events.get()
    }

    /// Waits, in virtual time, until so many timers have fired in all and everything that they woke has
    /// had its turn: before the next one fires. One task at a time may wait so.
    pub async fn after_events(&self, events: u64) {
        core::future::poll_fn(|_| {
            if self.timed_events() >= events {
                return Poll::Ready(());
            }
            self.0.watched_event.set(events);
            self.0.event_watcher.set(self.0.current.0.get());
            Poll::Pending
        })
        .await;
    }

    /// Starts a task that runs until it ends or the executor is dropped.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) -> TaskId {
        let task = Task { future: Some(Box::pin(future)), queued: false, trace: NO_TRACE };
        let mut tasks = self.0.tasks.borrow_mut();
        let id = match self.0.free.borrow_mut().pop() {
            Some(id) => {
                tasks[id.0 as usize] = task;
                id
            }
            None => {
                assert!(tasks.len() < OUTSIDE.0 as usize, "tasks are numbered with 32 bits");
                tasks.push(task);
                TaskId(tasks.len() as u32 - 1)
            }
        };
        drop(tasks);
        self.wake(id);
        id
    }

    /// Makes a task ready. Waking twice is waking once; waking a task that has ended does nothing.
    #[inline]
    pub fn wake(&self, id: TaskId) {
        if self.queue(id) {
            self.0.ready.borrow_mut().push_back(id);
        }
    }

    /// Whether the task is to be put into a queue now: it is ours, and stands in none.
    #[inline]
    pub(crate) fn queue(&self, id: TaskId) -> bool {
        id != OUTSIDE
            && !core::mem::replace(&mut self.0.tasks.borrow_mut()[id.0 as usize].queued, true)
    }

    /// Notes who is polling, to be woken by [`Rt::unpark`].
    #[inline]
    pub fn park(&self, cx: &Context<'_>) -> Parked {
        let foreign = if self.is_ours(cx) { None } else { Some(cx.waker().clone()) };
        Parked { task: self.0.current.0.get(), foreign }
    }

    #[inline]
    pub(crate) fn is_ours(&self, cx: &Context<'_>) -> bool {
        cx.waker().will_wake(self.0.straight) || cx.waker().will_wake(OURS)
    }

    /// Wakes who was noted.
    #[inline]
    pub fn unpark(&self, parked: Parked) {
        if let Some(waker) = parked.foreign {
            waker.wake();
        }
        self.wake(parked.task);
    }

    /// Wakes who was noted, as what it waited for is the caller's next step. Live, it is polled here and
    /// now, before the caller goes on: what is handed from task to task then takes no turn in a queue.
    /// In virtual time no time passes either way, and it takes its turn as after [`Rt::unpark`].
    ///
    /// The caller must hold nothing borrowed that the other may want.
    #[inline]
    pub fn hand_over(&self, parked: Parked) {
        match self.0.clock {
            Clock::Wall(_) if parked.foreign.is_none() => self.run(parked.task),
            _ => self.unpark(parked),
        }
    }

    /// See [`Rt::hand_over`]; for a task that is known by its number.
    #[inline]
    pub fn hand_over_to(&self, task: TaskId) {
        match self.0.clock {
            Clock::Wall(_) => self.run(task),
            Clock::Virtual => self.wake(task),
        }
    }

    /// Polls a task from inside another: one deep, so that the stack has a bound. Who stands in a queue
    /// already keeps that place.
    fn run(&self, id: TaskId) {
        if id == OUTSIDE || self.0.handed_over.get() {
            return self.wake(id);
        }
        match self.take_task(id, false) {
            Some(idle) => {
                self.0.handed_over.set(true);
                self.poll_taken(id, idle);
                self.0.handed_over.set(false);
            }
            None => self.wake(id),
        }
    }

    /// Polls the current task again in the next pass. For waits on memory in the live world only:
    /// in virtual time nothing changes without an event, so asking again would never end. Who has
    /// been `patient`, and found nothing for long, is asked in some passes only.
    ///
    /// # Panics
    /// In virtual time.
    #[inline]
    pub fn poll_again(&self, cx: &Context<'_>, patient: bool) {
        assert!(matches!(self.0.clock, Clock::Wall(_)), "virtual time is never polled");
        if !self.is_ours(cx) {
            cx.waker().wake_by_ref();
        }
        let id = self.0.current.0.get();
        if self.queue(id) {
            self.0.pass.borrow_mut().again(id, patient);
        }
    }

    /// How often a wait on memory may look before it lets others have their turn: more than once where
    /// there are no others.
    #[inline]
    pub fn looks(&self) -> u32 {
        self.0.looks.get()
    }

    /// Whether a wait that finds at once what it waits for may go on in its turn. Not for ever: whoever
    /// is lucky again and again would keep all others from theirs, watchdogs among them.
    #[inline]
    pub fn may_go_on(&self) -> bool {
        self.0.luck.get() > 0
    }

    /// A wait has found at once what it waited for, and goes on.
    #[inline]
    pub fn goes_on(&self) {
        self.0.luck.set(self.0.luck.get().saturating_sub(1));
    }

    /// Tells the idle back-off that something happened in this pass.
    #[inline]
    pub fn progress(&self) {
        self.0.progress.set(true);
    }

    /// Sleeps until a moment.
    pub fn sleep_until(&self, until: Time) -> Sleep<'_> {
        Sleep::new(self, until)
    }

    /// Sleeps for a span.
    pub fn sleep(&self, span: Span) -> Sleep<'_> {
        self.sleep_until(self.now() + span)
    }

    /// Lets every other ready task run once.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        core::future::poll_fn(|cx| {
            if core::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            self.unpark(self.park(cx));
            Poll::Pending
        })
        .await
    }

    /// Wakes a task at a moment, whether or not it waits: for a part that keeps its own list of what
    /// is due.
    pub fn wake_at(&self, at: Time, task: TaskId) {
        self.note_timer(at);
        self.0.timers.borrow_mut().arm_task(at, task);
    }

    #[inline]
    pub(crate) fn note_timer(&self, at: Time) {
        if at < self.0.next_timer.get() {
            self.0.next_timer.set(at);
        }
    }

    /// Arms a timer for whoever was noted; the number disarms it.
    #[inline]
    pub(crate) fn arm(&self, at: Time, parked: Parked) -> u64 {
        self.note_timer(at);
        self.0.timers.borrow_mut().arm(at, parked)
    }

    /// Takes a timer back, so that it does not move the clock.
    pub(crate) fn disarm(&self, at: Time, number: u64) {
        let mut timers = self.0.timers.borrow_mut();
        timers.disarm(at, number);
        self.0.next_timer.set(timers.next_at());
    }

    /// Runs the world until `main` is done.
    ///
    /// # Panics
    /// In virtual time, if nothing is ready and no timer is set: the world is stuck, which is a
    /// mistake in the model and better seen than waited for.
    pub fn block_on<F: Future>(&self, main: F) -> F::Output {
        let mut main = pin!(main);
        self.wake(MAIN);
        loop {
            let id = match self.0.clock {
                Clock::Virtual => self.next_event(),
                Clock::Wall(clock) => self.next_in_pass(clock),
            };
            if id == MAIN {
                let trace = self.enter_main();
                let poll = main.as_mut().poll(&mut Context::from_waker(OURS));
                self.leave_main(trace);
                if let Poll::Ready(output) = poll {
                    return output;
                }
            } else {
                self.poll_task(id);
            }
        }
    }

    #[inline]
    pub(crate) fn next_ready(&self) -> Option<TaskId> {
        if self.0.shuffled.get() {
            return self.any_ready();
        }
        self.0.ready.borrow_mut().pop_front()
    }

    fn any_ready(&self) -> Option<TaskId> {
        let mut ready = self.0.ready.borrow_mut();
        match self.0.shuffle.borrow_mut().as_mut() {
            Some(rng) if ready.len() > 1 => {
                let pick = rng.below(ready.len() as u64) as usize;
                ready.swap_remove_front(pick)
            }
            _ => ready.pop_front(),
        }
    }

    fn enter_main(&self) -> u32 {
        let mut tasks = self.0.tasks.borrow_mut();
        let main = &mut tasks[MAIN.0 as usize];
        main.queued = false;
        self.0.current.0.set(MAIN);
        self.0.trace.0.replace(main.trace)
    }

    fn leave_main(&self, trace_before: u32) {
        self.0.current.0.set(OUTSIDE);
        let trace = self.0.trace.0.replace(trace_before);
        self.0.tasks.borrow_mut()[MAIN.0 as usize].trace = trace;
    }

    /// Takes a task out to be polled, if it is not being polled and has not ended; one that stands in a
    /// queue, only if it was its turn there that has come.
    #[inline]
    fn take_task(&self, id: TaskId, was_queued: bool) -> Option<Taken> {
        let mut tasks = self.0.tasks.borrow_mut();
        let task = &mut tasks[id.0 as usize];
        if was_queued {
            task.queued = false;
        } else if task.queued {
            return None;
        }
        Some((task.future.take()?, task.trace))
    }

    #[inline(always)]
    fn poll_task(&self, id: TaskId) {
        if let Some(taken) = self.take_task(id, true) {
            self.poll_taken(id, taken);
        }
    }

    #[inline(always)]
    fn poll_taken(&self, id: TaskId, (mut future, trace): Taken) {
        let trace_before = self.0.trace.0.replace(trace);
        let caller = self.0.current.0.replace(id);
        let poll = future.as_mut().poll(&mut Context::from_waker(self.0.straight));
        self.0.current.0.set(caller);
        let trace = self.0.trace.0.replace(trace_before);
        if poll.is_pending() {
            let mut tasks = self.0.tasks.borrow_mut();
            let task = &mut tasks[id.0 as usize];
            (task.future, task.trace) = (Some(future), trace);
        } else {
            // Dropping may wake other tasks, so nothing is borrowed here.
            drop(future);
            self.0.free.borrow_mut().push(id);
        }
    }

    /// Virtual time: the next ready task, or else the one whose moment has come.
    #[inline(always)]
    fn next_event(&self) -> TaskId {
        loop {
            if let Some(id) = self.next_ready() {
                return id;
            }
            if self.0.timed_events.get() >= self.0.watched_event.get() {
                self.0.watched_event.set(u64::MAX);
                self.wake(self.0.event_watcher.get());
                continue;
            }
            let mut timers = self.0.timers.borrow_mut();
            let fired = timers.fire(Time::NEVER);
            self.0.next_timer.set(timers.next_at());
            drop(timers);
            let Some((at, task, foreign)) = fired else { self.is_stuck() };
            self.0.now.set(self.0.now.get().max(at));
            if foreign.is_none() && task != OUTSIDE {
                // It would be the only one in the queue.
                self.0.timed_events.set(self.0.timed_events.get() + 1);
                return task;
            }
            self.fired(Parked { task, foreign });
        }
    }

    #[cold]
    fn is_stuck(&self) -> ! {
        panic!("the world is stuck at {}: no task is ready, no timer is set", self.now());
    }

    #[inline]
    pub(crate) fn fired(&self, parked: Parked) {
        self.0.timed_events.set(self.0.timed_events.get() + 1);
        self.unpark(parked);
    }

    /// Writes a line into the event log, if it is on.
    #[inline]
    pub fn log(&self, who: &'static str, what: &'static str, a: u64, b: u64) {
        if self.0.log.is_on() {
            self.0.log.put(&Entry { at: self.now(), who, what, a, b });
        }
    }

    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.0.traces.as_ref()
    }

    pub(crate) fn trace_cell(&self) -> &Cell<u32> {
        &self.0.trace.0
    }

    /// Drops one task, which must not have ended by itself: its number may be another's by then. One that is
    /// being polled goes on.
    pub fn end(&self, id: TaskId) {
        let future = self.0.tasks.borrow_mut()[id.0 as usize].future.take();
        // Dropping may wake other tasks, so nothing is borrowed here.
        if future.map(drop).is_some() {
            self.0.free.borrow_mut().push(id);
        }
    }

    /// Drops every task: what a power cut does to the software.
    pub fn drop_tasks(&self) {
        let tasks = core::mem::take(&mut *self.0.tasks.borrow_mut());
        let count = tasks.len();
        // The futures see a live executor while they are dropped.
        *self.0.tasks.borrow_mut() =
            (0..count).map(|_| Task { future: None, queued: false, trace: NO_TRACE }).collect();
        drop(tasks);
        self.0.ready.borrow_mut().clear();
        *self.0.pass.borrow_mut() = Pass::new();
        *self.0.free.borrow_mut() = (1..count as u32).rev().map(TaskId).collect();
    }
}
