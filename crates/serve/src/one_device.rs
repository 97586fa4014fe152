//! One device for the clients of several addresses. Their controllers are tasks of one executor, in one
//! thread; or clients are dealt to several device threads.
//!
//! Each device thread has an executor and the blocks of its clients, and shares no memory with the others on
//! the path of a command. So the medium must consist of blocks in memory without timing: those of different
//! clients have nothing in common.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use media::{Range, Refused};
use runtime::Rt;
use world::device::Device;
use world::interfaces::Extent;
use world::{RunError, until};

use crate::Events;
use crate::extents::{Client, refusal};
use crate::front_end::Job;

/// Runs a device and the sessions of its clients, each a task. Blocks while there is no client. Returns when
/// no address is left that could have one.
pub(crate) fn run<S, F: Future<Output = ()> + 'static>(
    rt: &Rt,
    sessions: Receiver<S>,
    session: impl Fn(S) -> F,
) {
    let clients = Rc::new(Cell::new(0_u32));
    let serve = |next: S| {
        clients.set(clients.get() + 1);
        let (clients, session) = (clients.clone(), session(next));
        rt.spawn(async move {
            session.await;
            clients.set(clients.get() - 1);
        });
    };
    while let Ok(first) = sessions.recv() {
        serve(first);
        rt.block_on(until(rt, || {
            sessions.try_iter().for_each(&serve);
            clients.get() == 0
        }));
    }
}

/// Flushes the device of a thread and saves its state, as the server stops.
pub(crate) fn save(
    job: &Job<'_>,
    thread: usize,
    rt: &Rt,
    device: Rc<Device>,
) -> Result<(), RunError> {
    rt.block_on(device.flush());
    rt.drop_tasks();
    if job.control.stop().is_requested()
        && let Some(device) = Rc::into_inner(device)
    {
        device.switch_off().save(&job.plan)?;
        let addresses = job.addresses.iter().skip(thread).step_by(job.device_threads);
        addresses.for_each(|address| job.events(address).stopped());
    }
    Ok(())
}

/// The device threads of a job, each with its queue of sessions.
pub(crate) struct Threads<'scope, S> {
    queues: Vec<Sender<S>>,
    threads: Vec<ScopedJoinHandle<'scope, Result<(), RunError>>>,
}

impl<S> Threads<'_, S> {
    /// The queue of the thread of client `number`, and the client's place among those of its thread.
    pub fn of(&self, number: usize) -> (Sender<S>, usize) {
        let threads = self.queues.len();
        (self.queues[number % threads].clone(), number / threads)
    }

    /// Returns when no socket is left that could have a client, and all threads have saved.
    ///
    /// # Errors
    /// The first of a thread.
    pub fn ended(self) -> Result<(), RunError> {
        drop(self.queues);
        let ended = self.threads.into_iter().map(ScopedJoinHandle::join);
        let ended: Vec<_> = ended.collect();
        let panicked = |_| RunError::Panicked("a thread of the device");
        ended.into_iter().try_for_each(|ended| ended.map_err(panicked)?)
    }
}

/// Reports whether a device thread has started.
pub(crate) struct Started(Sender<Result<(), RunError>>);

impl Started {
    /// Passes on what has started; `None` after an error, which the server returns.
    pub fn with<T>(self, started: Result<T, RunError>) -> Option<T> {
        let (report, started) = match started {
            Ok(started) => (Ok(()), Some(started)),
            Err(error) => (Err(error), None),
        };
        // Fails only if the server ends already, because of another thread.
        let _ = self.0.send(report);
        started
    }
}

/// Starts the job's device threads. `body` starts the device of a thread, by its number from 0, runs the
/// sessions of its clients until no sender is left, and saves.
pub(crate) fn threads<'scope, 'a: 'scope, S: Send + 'scope>(
    scope: &'scope Scope<'scope, 'a>,
    job: &Job<'_>,
    body: impl Fn(usize, Receiver<S>, Started) -> Result<(), RunError> + Copy + Send + 'scope,
) -> Result<Threads<'scope, S>, RunError> {
    let (started, starts) = channel();
    let (mut queues, mut threads) = (Vec::new(), Vec::new());
    for number in 0..job.device_threads {
        let (give, take) = channel();
        let started = Started(started.clone());
        let builder = Builder::new().name(format!("device {number}"));
        let thread = builder.spawn_scoped(scope, move || body(number, take, started));
        threads.push(
            thread.map_err(|why| RunError::Thread { thread: "a thread of the device", why })?,
        );
        queues.push(give);
    }
    drop(started);
    let started = starts.into_iter().collect::<Result<Vec<_>, _>>()?;
    match started.len() == queues.len() {
        true => Ok(Threads { queues, threads }),
        false => Err(RunError::Panicked("a thread of the device")),
    }
}

/// Commands of one session that were refused as outside the client's extent. They are sent to the thread of
/// its socket: over shared memory the first at once, and the others at its end, so that a client cannot fill
/// the log.
pub(crate) struct Refusals {
    before: u64,
    sent: bool,
    to: Sender<Refused>,
}

impl Refusals {
    pub fn new<P: bus::DevicePort>(of: &Extent<P>, to: Sender<Refused>) -> Refusals {
        let _ = of.part.take_first_refused();
        Refusals { before: of.part.refused().commands, sent: false, to }
    }

    /// Sends the first one, if there is one.
    pub fn send_first<P: bus::DevicePort>(&mut self, of: &Extent<P>) {
        if !self.sent
            && let Some(latest) = of.part.take_first_refused()
        {
            self.sent = true;
            self.before += 1;
            // Fails only if the thread of the socket has ended: there is no place for reports then.
            let _ = self.to.send(Refused { commands: 1, latest });
        }
    }

    /// Sends what has not been sent.
    pub fn send_rest<P: bus::DevicePort>(self, of: &Extent<P>) {
        let refused = of.part.refused();
        if refused.commands > self.before {
            let commands = refused.commands - self.before;
            let _ = self.to.send(Refused { commands, ..refused });
        }
    }
}

/// Reports refusals of a session until its controllers have stopped.
pub(crate) fn report(events: &Events<'_>, client: Option<&Client>, refused: &Receiver<Refused>) {
    for refused in refused {
        if let Some(client) = client {
            events.note(refusal(client, refused));
        }
    }
}

/// The ranges of the clients of a device thread.
pub(crate) fn ranges(job: &Job<'_>, thread: usize) -> Vec<Range> {
    let clients = job.clients.iter().skip(thread).step_by(job.device_threads);
    clients.map(|client| client.range).collect()
}
