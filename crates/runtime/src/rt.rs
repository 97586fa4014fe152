//! One executor over two clocks; the crate documentation describes it.
//!
//! A wait records the *number* of its task instead of a cloned `Waker`. A combinator that gives its children
//! a waker of its own (as `FuturesUnordered` does) works too: [`Parked`] then keeps that waker together with
//! the number.
//!
//! `turns.rs` gives tasks their turns on the wall clock, `timers.rs` fires timers, `sleep.rs` lets virtual
//! time pass without a timer.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

use crate::clock::{Clock, Idle, IdleSleep, Progress, WallClock};
use crate::log::{Entry, Log};
use crate::pass::Pass;
use crate::pauses::{draw, paused};
use crate::rng::Rng;
use crate::task::{MAIN, OURS, OUTSIDE, Parked, TaskId, straight};
use crate::time::Time;
use crate::timers::Timers;
use crate::traces::{NO_TRACE, Traces};

struct Task {
    /// `None` while the task is being polled and after it has ended.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    queued: bool,
    trace: u32,
}

/// A task about to be polled: its future and its request trace.
type Taken = (Pin<Box<dyn Future<Output = ()>>>, u32);

/// A word that is never loaded together with its neighbours. If two words were stored separately and are
/// loaded at once, store forwarding fails: the load waits until both stores have left the store buffer, in
/// order. Live, the store before them is often a doorbell, and that cache line must first be taken from
/// another core.
#[repr(align(16))]
pub(crate) struct ByItself<T>(pub Cell<T>);

pub(crate) struct Core {
    pub clock: Clock,
    /// Current virtual time.
    pub now: Cell<Time>,
    pub ready: RefCell<VecDeque<TaskId>>,
    /// Tasks that wait for memory, and progress of the current pass (wall clock only).
    pub pass: RefCell<Pass>,
    tasks: RefCell<Vec<Task>>,
    free: RefCell<Vec<TaskId>>,
    pub timers: RefCell<Timers>,
    /// Time of the next timer; on the wall clock, that or an earlier time.
    pub next_timer: Cell<Time>,
    /// See [`Rt::looks`].
    pub looks: Cell<u32>,
    /// See [`Rt::goes_on`].
    pub luck: Cell<u32>,
    pub current: ByItself<TaskId>,
    /// True while a task is polled from inside another: see [`Rt::hand_over`].
    handed_over: Cell<bool>,
    trace: ByItself<u32>,
    pub timed_events: Cell<u64>,
    /// Count of timed events at which the watcher is woken, before the next timer fires.
    pub watched_event: Cell<u64>,
    event_watcher: Cell<TaskId>,
    pub progress: Cell<Progress>,
    pub idle: Idle,
    /// Waker of tasks that are polled alone in their turn.
    pub straight: &'static Waker,
    /// True in virtual time, if such a task may continue in place.
    pub in_place: bool,
    /// Ready tasks are picked at random.
    shuffled: Cell<bool>,
    shuffle: RefCell<Option<Rng>>,
    /// Draws the pauses of the tasks that are spawned.
    pub pauses: RefCell<Option<Rng>>,
    traces: Option<Traces>,
    log: Log,
}

/// A handle to the executor, its clock, its request traces and its log, with the first queue number for
/// request traces. Cheap to clone.
#[derive(Clone)]
pub struct Rt(pub(crate) Rc<Core>, pub(crate) u16);

impl Rt {
    /// An executor in virtual time.
    pub fn simulated(traces: Option<Traces>, log: Log) -> Rt {
        Rt::new(Clock::Virtual, traces, log)
    }

    /// An executor on a real clock.
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
            progress: Cell::new(Progress::Nothing),
            idle: Idle::new(),
            straight,
            in_place,
            shuffled: Cell::new(false),
            shuffle: RefCell::new(None),
            pauses: RefCell::new(None),
            traces,
            log,
        };
        Rt(Rc::new(core), 0)
    }

    /// From now on, picks ready tasks at random instead of in order. A test that still passes does not
    /// depend on an unspecified order.
    pub fn shuffle_ready_tasks(&self, rng: Rng) {
        *self.0.shuffle.borrow_mut() = Some(rng);
        self.0.shuffled.set(true);
    }

    /// From now on, each task that is spawned may pause before each of its turns, for as long as is drawn, as
    /// a thread may whose core is taken. Only in virtual time: what a task finds is then never too old to be
    /// true, only too late.
    ///
    /// # Panics
    /// On the wall clock, where threads pause by themselves.
    pub fn pause_tasks(&self, rng: Rng) {
        assert!(matches!(self.0.clock, Clock::Virtual), "pauses are drawn in virtual time");
        *self.0.pauses.borrow_mut() = Some(rng);
    }

    /// Current time.
    #[inline]
    pub fn now(&self) -> Time {
        match self.0.clock {
            Clock::Virtual => self.0.now.get(),
            Clock::Wall(clock) => clock.now(),
        }
    }

    /// Number of timers fired: the timed events of a simulated run.
    pub fn timed_events(&self) -> u64 {
        self.0.timed_events.get()
    }

    /// Waits, in virtual time, until `events` timers have fired in all and the tasks that they woke have
    /// run, before the next timer fires. At most one task may wait like this.
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
        self.spawn_boxed(Box::pin(future))
    }

    /// As [`spawn`](Rt::spawn), compiled once for all tasks.
    fn spawn_boxed(&self, future: Pin<Box<dyn Future<Output = ()>>>) -> TaskId {
        let future = match self.0.pauses.borrow().is_some() {
            false => future,
            true => {
                let rt = self.clone();
                let pause = move || {
                    let span = rt.0.pauses.borrow_mut().as_mut().and_then(draw)?;
                    let rt = rt.clone();
                    Some(async move { rt.sleep(span).await })
                };
                Box::pin(paused(future, pause))
            }
        };
        let task = Task { future: Some(future), queued: false, trace: NO_TRACE };
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

    /// Makes a task ready. Has no effect on a task that is queued already or has ended.
    #[inline]
    pub fn wake(&self, id: TaskId) {
        if self.queue(id) {
            self.0.ready.borrow_mut().push_back(id);
        }
    }

    /// Returns true if the task must be pushed onto a queue now: it belongs to this executor and is in no
    /// queue.
    #[inline]
    pub(crate) fn queue(&self, id: TaskId) -> bool {
        id != OUTSIDE
            && !core::mem::replace(&mut self.0.tasks.borrow_mut()[id.0 as usize].queued, true)
    }

    /// Records the current task, to be woken by [`Rt::unpark`].
    #[inline]
    pub fn park(&self, cx: &Context<'_>) -> Parked {
        let foreign = if self.is_ours(cx) { None } else { Some(cx.waker().clone()) };
        Parked::new(self.0.current.0.get(), foreign)
    }

    #[inline]
    pub(crate) fn is_ours(&self, cx: &Context<'_>) -> bool {
        cx.waker().will_wake(self.0.straight) || cx.waker().will_wake(OURS)
    }

    /// Wakes a recorded task.
    #[inline]
    pub fn unpark(&self, parked: Parked) {
        if let Some(waker) = parked.foreign {
            waker.wake();
        }
        self.wake(parked.task);
    }

    /// Wakes a recorded task that can continue with the caller's result. Live, the task is polled inline,
    /// before the caller continues, and skips the queue. In virtual time no time passes either way, and the
    /// task is queued as after [`Rt::unpark`].
    ///
    /// The caller must hold no borrow that the other task may need.
    #[inline]
    pub fn hand_over(&self, parked: Parked) {
        match self.0.clock {
            Clock::Wall(_) if parked.foreign.is_none() => self.run(parked.task),
            _ => self.unpark(parked),
        }
    }

    /// Same as [`Rt::hand_over`], for a task identified by its number.
    #[inline]
    pub fn hand_over_to(&self, task: TaskId) {
        match self.0.clock {
            Clock::Wall(_) => self.run(task),
            Clock::Virtual => self.wake(task),
        }
    }

    /// Polls a task from inside another, one level deep, so that the stack is bounded. A task in a queue
    /// keeps its place there.
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

    /// Polls the current task again in the next pass. Only for waits on memory in the live world: in
    /// virtual time nothing changes without an event, so the loop would never end. A `patient` task, whose
    /// checks have long failed, is polled in some passes only.
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

    /// Number of checks that a wait on memory may make before it yields: more than one if no other task
    /// waits.
    #[inline]
    pub fn looks(&self) -> u32 {
        self.0.looks.get()
    }

    /// Returns true if a wait whose condition holds at once may continue in its turn. The number per pass
    /// is bounded, or such a task could starve all others, watchdogs among them.
    #[inline]
    pub fn may_go_on(&self) -> bool {
        self.0.luck.get() > 0
    }

    /// Records that a wait found its condition true at once and continues.
    #[inline]
    pub fn goes_on(&self) {
        self.0.luck.set(self.0.luck.get().saturating_sub(1));
    }

    /// Reports to the idle back-off that something happened in this pass.
    #[inline]
    pub fn progress(&self) {
        self.0.progress.set(Progress::Work);
    }

    /// Sets when the executor sleeps.
    pub fn sleep_when_idle(&self, sleep: IdleSleep) {
        self.0.idle.sleep.set(sleep);
    }

    /// Number of times that it has slept because it was idle.
    pub fn idle_sleeps(&self) -> u64 {
        self.0.idle.sleeps.get()
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

    /// Wakes a task at the given time, whether or not it waits: for a component that keeps its own list of
    /// deadlines.
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

    /// Arms a timer for a recorded task; the returned number disarms it.
    #[inline]
    pub(crate) fn arm(&self, at: Time, parked: Parked) -> u64 {
        self.note_timer(at);
        self.0.timers.borrow_mut().arm(at, parked)
    }

    /// Cancels a timer, so that it does not advance the clock.
    pub(crate) fn disarm(&self, at: Time, number: u64) {
        let mut timers = self.0.timers.borrow_mut();
        timers.disarm(at, number);
        self.0.next_timer.set(timers.next_at());
    }

    /// Runs until `main` is done.
    ///
    /// # Panics
    /// In virtual time, if no task is ready and no timer is set: a deadlock is a fault of the model, and
    /// better reported than waited for.
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

    /// Takes out the future of a task to poll it, unless the task is being polled or has ended. A task in a
    /// queue is taken only if `was_queued`: it was just popped from there.
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

    /// Virtual time: the next ready task, or the task of the next timer.
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
            self.fired(Parked::new(task, foreign));
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

    /// Writes an entry to the event log, if it is on.
    #[inline]
    pub fn log(&self, component: &'static str, what: &'static str, a: u64, b: u64) {
        if self.0.log.is_on() {
            self.0.log.put(&Entry { at: self.now(), component, what, a, b });
        }
    }

    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.0.traces.as_ref()
    }

    pub(crate) fn trace_cell(&self) -> &Cell<u32> {
        &self.0.trace.0
    }

    /// Drops one task. The task must not have ended by itself, as its number may then belong to another. A
    /// task that is being polled continues.
    pub fn end(&self, id: TaskId) {
        let future = self.0.tasks.borrow_mut()[id.0 as usize].future.take();
        // Dropping may wake other tasks, so nothing is borrowed here.
        if future.map(drop).is_some() {
            self.0.free.borrow_mut().push(id);
        }
    }

    /// Drops every task, as a power cut does to software.
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
