//! A device whose queues are served by several threads, in any live world.
//!
//! ```text
//!   calling thread    registers, admin queue, its share of the queues    ── port, executor, medium
//!   other threads     their shares                                       ── a port, executor and medium each
//! ```
//!
//! The blocks are shared (`shared_blocks`), and what `device::nvme::Threads` has; nothing else is. A restart
//! of the device (a reset of the function) ends the part of every thread and deals the queues again.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use ::device::faults::Faults;
use ::device::meter;
use ::device::nvme::{DeviceThread, Threads};
use bus::live::Shared;
use bus::vfio_user::{DeviceEnd, VfioUserDevice};
use media::Faulty;
use media::contents::Backing;
use plan::{MediumPace, Plan};
use runtime::{Either, Log, Rt, STD_CLOCK, Traces, race};
use wire::QueueId;

use crate::error::{CheckError, MediumError, RunError};
use crate::interfaces::{DeviceSide, NVME, OneThread, Row, Stop};
use crate::medium::Reach;
use crate::shared_blocks::SharedBlocks;

/// Most device threads of a drive.
pub const THREADS_MAX: u32 = 64;

/// A device, apart from its threads.
pub struct ThreadedDevice {
    row: &'static Row,
    plan: Plan,
    blocks: SharedBlocks,
    traces: Option<Traces>,
    watch: Option<Arc<dyn Watch>>,
}

/// Takes the counts of a device's threads, and holds or ends all of them. It is called on each thread: a
/// command is counted where it is executed.
pub trait Watch: Send + Sync {
    /// Runs beside the part of a thread, as a task of its executor. Its return ends the part.
    fn attend<'a>(&'a self, part: &'a Part<'a>) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

    /// The part has ended, and counts no further command.
    fn account(&self, part: &Part<'_>);
}

/// The part of one thread in a device, from a start to the next.
pub struct Part<'a> {
    pub rt: Rt,
    /// Without faults. Their meter counts the commands of a watched thread.
    pub faults: Rc<Faults>,
    pub thread: &'a DeviceThread,
}

/// The watch of a part, if the device has one.
pub struct Attended<'a>(Option<Pin<Box<dyn Future<Output = ()> + 'a>>>);

impl Attended<'_> {
    /// Runs `work` and the watch beside it. `None` if the watch ends the part first.
    pub fn beside<T>(self, rt: &Rt, work: impl Future<Output = T>) -> Option<T> {
        match self.0 {
            None => Some(rt.block_on(work)),
            Some(watch) => match rt.block_on(race(work, watch)) {
                Either::First(result) => Some(result),
                Either::Second(()) => None,
            },
        }
    }
}

/// One end of a bus, on its way to a device thread.
pub trait ThreadEnd: Send {
    type Port: DeviceSide;

    /// A port for the executor; `last` is that of the device before, whose tasks have been dropped.
    fn port(&mut self, rt: &Rt, last: Option<Self::Port>) -> Self::Port;

    /// Work of the port beside the device's tasks. Need not end.
    fn attend(port: &Self::Port) -> impl Future<Output = ()>;
}

impl ThreadEnd for Shared {
    type Port = bus::live::LiveDevice;

    fn port(&mut self, rt: &Rt, _: Option<Self::Port>) -> Self::Port {
        self.device(rt)
    }

    async fn attend(_: &Self::Port) {
        core::future::pending().await
    }
}

impl ThreadEnd for Option<DeviceEnd> {
    type Port = VfioUserDevice;

    fn port(&mut self, rt: &Rt, last: Option<Self::Port>) -> Self::Port {
        match last {
            Some(port) => port.restart(rt),
            None => self.take().expect("the first port").port(rt),
        }
    }

    async fn attend(port: &Self::Port) {
        port.attend().await;
    }
}

impl ThreadedDevice {
    /// The device of a plan, for [`check`]ed threads. Its blocks read as zeros.
    ///
    /// # Errors
    /// The process has no addresses left for the blocks.
    pub fn new(
        row: &'static Row,
        plan: &Plan,
        traces: Option<Traces>,
    ) -> Result<ThreadedDevice, RunError> {
        let contents = &plan.medium.contents;
        let blocks = contents.capacity_bytes / u64::from(contents.block_bytes);
        let blocks = SharedBlocks::new(blocks, contents.block_bytes).map_err(RunError::Memory)?;
        Ok(ThreadedDevice { row, plan: plan.clone(), blocks, traces, watch: None })
    }

    /// Its threads count their commands for this watch.
    #[must_use]
    pub fn watched_by(self, watch: Arc<dyn Watch>) -> ThreadedDevice {
        ThreadedDevice { watch: Some(watch), ..self }
    }

    fn executor(&self) -> Rt {
        let rt = match &self.watch {
            None => Rt::live(&STD_CLOCK, self.traces.clone(), Log::Off),
            // A table for each thread: its rows are named by slots, of which each thread has its own.
            Some(_) => {
                let traces = meter::traces(self.row.stages);
                meter::beside_traces(&Rt::live(&STD_CLOCK, Some(traces), Log::Off))
            }
        };
        rt.sleep_when_idle(self.plan.device.idle);
        rt
    }

    fn attended<'a>(&'a self, part: &'a Part<'a>) -> Attended<'a> {
        Attended(self.watch.as_ref().map(|watch| watch.attend(part)))
    }

    fn account(&self, part: &Part<'_>) {
        if let Some(watch) = &self.watch {
            watch.account(part);
        }
    }

    /// Runs the device from a start to the next, with this thread as its first: calls `body` with the
    /// executor, the port and the watch. Then no thread accesses the host's memory any more. Returns the port
    /// too.
    ///
    /// # Errors
    /// The interface has no front end for the bus, or no queues that can be dealt.
    pub fn run<P: DeviceSide, T>(
        &self,
        others: &Others<'_>,
        port: impl FnOnce(&Rt) -> P,
        body: impl FnOnce(&Rt, &P, Attended<'_>) -> T,
    ) -> Result<(T, P), RunError> {
        let rt = self.executor();
        let port = port(&rt);
        let ending = Ending(others.deal());
        let (OneThread { stop, .. }, part) = self.start(port.clone(), &ending.0)?;
        let result = body(&rt, &port, self.attended(&part));
        stop();
        rt.drop_tasks();
        self.account(&part);
        drop(part);
        drop(ending);
        Ok((result, port))
    }

    /// Starts the part of a thread at its port.
    fn start<'a, P: DeviceSide>(
        &self,
        port: P,
        thread: &'a DeviceThread,
    ) -> Result<(OneThread, Part<'a>), RunError> {
        let front =
            P::front(self.row).ok_or(MediumError::NoFrontEnd { interface: self.row.name })?;
        let (rt, faults) = (port.rt().clone(), Faults::none());
        if self.watch.is_some() {
            faults.meter.watch(&rt);
        }
        let reach = Rc::new(Reach::Shared(Rc::new(self.blocks.medium())));
        let store = Rc::new(Faulty::new(&rt, reach, faults.harm.clone()));
        let deal = front.deal.ok_or(MediumError::OneThread { interface: self.row.name })?;
        let dealt = deal(port, store, &self.plan, &faults, thread);
        Ok((dealt, Part { rt, faults, thread }))
    }

    /// Starts the other threads, one for each of `ends`.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn others<'scope, E: ThreadEnd + 'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        ends: Vec<E>,
    ) -> Result<Others<'scope>, RunError> {
        let mut others = Others { places: Vec::new(), threads: Vec::new() };
        for (end, number) in ends.into_iter().zip(1..) {
            let (give, take) = channel();
            let builder = Builder::new().name(format!("device {number}"));
            let thread = builder.spawn_scoped(scope, move || self.serve(end, take));
            let thread =
                thread.map_err(|why| RunError::Thread { thread: "a thread of the device", why })?;
            others.places.push(give);
            others.threads.push(thread);
        }
        Ok(others)
    }

    /// Serves the share of a thread that is not the first, from one start of the device to the next.
    fn serve<E: ThreadEnd>(
        &self,
        mut end: E,
        places: Receiver<DeviceThread>,
    ) -> Result<(), RunError> {
        let mut last = None;
        for thread in places {
            let rt = self.executor();
            let port = end.port(&rt, last.take());
            let (OneThread { serve, stop }, part) = self.start(port.clone(), &thread)?;
            self.attended(&part).beside(&rt, race(serve, E::attend(&port)));
            stop();
            rt.drop_tasks();
            self.account(&part);
            drop(part);
            last = Some(port);
            // The first thread goes on when all of the others have come here.
            drop(thread);
        }
        Ok(())
    }
}

/// A device whose parts run on threads of the caller's.
pub(crate) struct DealtDevice {
    device: ThreadedDevice,
    shared: Shared,
    places: Mutex<Vec<Option<DeviceThread>>>,
    /// Number of host threads that have their queue.
    granted: AtomicUsize,
}

impl DealtDevice {
    /// # Errors
    /// As [`check`] and [`ThreadedDevice::new`].
    pub(crate) fn new(
        plan: &Plan,
        shared: &Shared,
        threads: usize,
        traces: &Traces,
    ) -> Result<DealtDevice, RunError> {
        check(plan, threads as u32)?;
        let device = ThreadedDevice::new(NVME, plan, Some(traces.clone()))?;
        let places = Threads::of(threads).into_iter().map(Some).collect();
        let (places, granted) = (Mutex::new(places), AtomicUsize::new(0));
        Ok(DealtDevice { device, shared: shared.clone(), places, granted })
    }

    /// Waits until it is this host thread's turn, and `grant` for its queue, which its own part serves.
    /// Queues are granted from 1 on, so the first thread, whose part has the registers, is the last one.
    pub(crate) async fn in_turn<T>(
        &self,
        rt: &Rt,
        number: usize,
        grant: impl Future<Output = T>,
    ) -> T {
        let threads = self.places.lock().unwrap_or_else(PoisonError::into_inner).len();
        let is_own = |before| Threads::number_of(QueueId(before as u16 + 1), threads) == number;
        patiently(rt, || is_own(self.granted.load(Ordering::Acquire))).await;
        let granted = grant.await;
        self.granted.fetch_add(1, Ordering::AcqRel);
        granted
    }

    /// Waits until all host threads have their queues. A queue deleted before would leave its identifier
    /// to the next, whose thread is another.
    pub(crate) async fn until_all_have_begun(&self, rt: &Rt) {
        let threads = self.places.lock().unwrap_or_else(PoisonError::into_inner).len();
        patiently(rt, || self.granted.load(Ordering::Acquire) >= threads).await;
    }

    /// Starts the part of host thread `number` on its executor; once for each.
    ///
    /// # Errors
    /// The interface has no queues that can be dealt.
    pub(crate) fn begin(&self, rt: &Rt, number: usize) -> Result<DealtPart, RunError> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places[number].take().expect("a thread begins once");
        let (OneThread { serve, stop }, _) = self.device.start(self.shared.device(rt), &place)?;
        rt.spawn(serve);
        Ok(DealtPart { stop, _place: place })
    }
}

/// Waits until `check` returns true. A timer would keep an idle executor from sleeping.
async fn patiently(rt: &Rt, check: impl Fn() -> bool) {
    poll_fn(|cx| match check() {
        true => Poll::Ready(()),
        false => {
            rt.poll_again(cx, true);
            Poll::Pending
        }
    })
    .await;
}

/// A part that runs. Its place is left when this is dropped.
pub(crate) struct DealtPart {
    pub stop: Stop,
    _place: DeviceThread,
}

/// The first thread's place. Dropped, also by a panic, it ends the part of the others.
struct Ending(DeviceThread);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end_others();
    }
}

/// The threads of a device beside the first one. They end when this is dropped.
pub struct Others<'scope> {
    places: Vec<Sender<DeviceThread>>,
    threads: Vec<ScopedJoinHandle<'scope, Result<(), RunError>>>,
}

impl Others<'_> {
    /// Deals the queues of a device that starts. Returns the place of the first thread.
    fn deal(&self) -> DeviceThread {
        let mut places = Threads::of(1 + self.places.len()).into_iter();
        let first = places.next().expect("the first of one or more");
        for (to, place) in self.places.iter().zip(places) {
            // A thread that has ended has left its place, which is dropped here.
            let _ = to.send(place);
        }
        first
    }

    /// Whether a thread has failed: its queues are served no more.
    pub fn has_failed(&self) -> bool {
        self.threads.iter().any(ScopedJoinHandle::is_finished)
    }

    /// Ends the threads.
    ///
    /// # Errors
    /// That of the first one that failed.
    pub fn end(self) -> Result<(), RunError> {
        drop(self.places);
        let panicked = |_| RunError::Panicked("a thread of the device");
        let ended: Vec<_> = self.threads.into_iter().map(ScopedJoinHandle::join).collect();
        ended.into_iter().try_for_each(|ended| ended.map_err(panicked)?)
    }
}

/// Checks that the queues of a plan's device can be dealt to `threads` threads.
///
/// # Errors
/// The key of the plan that prevents it.
pub fn check(plan: &Plan, threads: u32) -> Result<(), CheckError> {
    let medium = &plan.medium;
    let found = |key: &str, found: &str, why: &str| {
        Err(CheckError::found(
            plan,
            key,
            found,
            format!("none with {threads} device threads: {why}"),
        ))
    };
    if threads == 1 {
        Ok(())
    } else if medium.flash.is_some() {
        found("medium.kind", "flash", "they would share chips and flash software")
    } else if medium.pace == MediumPace::Modelled {
        found("medium.pace", "modelled", "they would share channels and banks")
    } else if medium.contents.backing != Backing::Memory {
        found("medium.file", "contents that are not in memory alone", "one thread has the file")
    } else if plan.device.protection.is_some() {
        found("device.protection", "one", "shared blocks have no metadata")
    } else if !plan.faults.is_empty() {
        found("faults", "some", "a fault is one of all threads")
    } else if plan.power.is_some() {
        found("power", "some", "power states are those of all threads")
    } else if plan.host.pin.is_some() {
        found("host.pin", "one", "the pin is one for all threads")
    } else if plan.array.is_some() {
        found("array", "one", "its members have a thread")
    } else {
        Ok(())
    }
}
