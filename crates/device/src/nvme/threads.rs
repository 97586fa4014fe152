//! A controller on several device threads: its I/O queues are dealt to them.
//!
//! ```text
//!   first thread    registers, admin queue, and its share of the I/O queues
//!      │ orders: queues created and deleted, reset, abort, features     ▲ results; rarely, a report
//!      ▼                                                             │
//!   other threads   their share: doorbells, slots, completions
//! ```
//!
//! A completion queue is served by thread (identifier mod threads), and its submission queues with it.
//! Each thread has a [`Controller`] with queues, slots, port, medium and executor of its own.
//! That of the first thread is the one that the host sees; it alone reads CC and serves the admin queue.
//!
//! A thread polls its [`Inbox`], which is written for an order only. On the path of a command no thread
//! writes what another one reads, except for host memory and the blocks themselves. The error log is shared:
//! a command that fails takes its lock.
//!
//! Not offered, because they would need all threads at once: fused commands, reservations, Format NVM,
//! sanitize, namespace management, uncorrectable blocks, doorbell buffers, weighted arbitration.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bus::DevicePort;
use media::Media;
use wire::nvme::admin::{CreateCq, CreateSq, Priority};
use wire::nvme::event::AsyncEvent;
use wire::nvme::features::Feature;
use wire::nvme::registers::Cc;
use wire::nvme::status::Status;
use wire::{BusAddr, CommandId, QueueId};

use super::Controller;
use super::errors::ErrorLog;
use super::queue::{Cq, Sq};
use crate::counters::Counters;

/// State that the threads of one controller share.
pub struct Threads {
    inboxes: Box<[Inbox]>,
    errors: Mutex<ErrorLog>,
    /// Bits of [`Report`], for the first thread.
    reports: AtomicU32,
}

/// Orders of the first thread for another one.
#[repr(align(128))]
struct Inbox {
    /// Number of orders so far, modulo 2^32.
    posted: AtomicU32,
    orders: Mutex<VecDeque<Arc<Order>>>,
    has_ended: AtomicBool,
    counters: Arc<Counters>,
}

/// An order, and its result: 0 while there is none, else one more than it.
struct Order {
    what: What,
    result: AtomicU32,
}

/// An action that another thread takes.
pub(super) enum What {
    /// The controller was enabled with these settings.
    Enable(Cc),
    /// The controller is being disabled: ends all commands, and forgets all queues.
    Disable,
    /// The controller is being shut down: ends all commands, and fetches no further ones.
    ShutDown,
    /// The controller has failed: no further commands.
    Halt,
    CreateCq {
        create: CreateCq,
        base: BusAddr,
    },
    CreateSq {
        create: CreateSq,
        base: BusAddr,
    },
    DeleteCq(QueueId),
    DeleteSq(QueueId),
    Abort(QueueId, CommandId),
    Set(Feature),
    /// The thread is to leave the controller.
    End,
}

/// A report to the first thread.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Report {
    /// A doorbell has an invalid value.
    BadDoorbell = 1,
    /// An error that no completion can report.
    Failed = 2,
}

/// The place of one thread among those of a controller. When it is dropped the thread has left.
pub struct DeviceThread {
    threads: Arc<Threads>,
    number: usize,
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.threads.inboxes[self.number].has_ended.store(true, Ordering::Release);
    }
}

/// A controller's knowledge of its thread.
pub(super) struct ThreadPlace {
    threads: Arc<Threads>,
    number: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Threads {
    /// State of a controller on `count` threads, and the place of each, the first one first.
    ///
    /// # Panics
    /// If `count` is zero.
    pub fn of(count: usize) -> Vec<DeviceThread> {
        assert!(count > 0, "at least one thread");
        let inbox = |_| Inbox {
            posted: AtomicU32::new(0),
            orders: Mutex::default(),
            has_ended: AtomicBool::new(false),
            counters: Arc::default(),
        };
        let inboxes = (0..count).map(inbox).collect();
        let (errors, reports) = (Mutex::default(), AtomicU32::new(0));
        let threads = Arc::new(Threads { inboxes, errors, reports });
        (0..count).map(|number| DeviceThread { threads: threads.clone(), number }).collect()
    }

    /// Number of the thread, of `threads`, that serves a completion queue and its submission queues. The
    /// admin queue is the first thread's.
    pub fn number_of(cqid: QueueId, threads: usize) -> usize {
        usize::from(cqid.0) % threads
    }

    fn post(&self, to: usize, what: What) -> Arc<Order> {
        let order = Arc::new(Order { what, result: AtomicU32::new(0) });
        locked(&self.inboxes[to].orders).push_back(order.clone());
        self.inboxes[to].posted.fetch_add(1, Ordering::Release);
        order
    }

    fn others(&self) -> std::ops::Range<usize> {
        1..self.inboxes.len()
    }
}

impl DeviceThread {
    /// Number of the thread, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether the first thread waits for this one to leave the controller.
    pub fn is_to_end(&self) -> bool {
        let orders = locked(&self.threads.inboxes[self.number].orders);
        orders.iter().any(|order| matches!(order.what, What::End))
    }

    pub(super) fn place(&self) -> ThreadPlace {
        ThreadPlace { threads: self.threads.clone(), number: self.number }
    }

    /// Ends the other threads' part in the controller, and waits until none accesses host memory any more.
    /// The first thread calls it when its own controller has stopped.
    ///
    /// # Panics
    /// If this is not the first thread.
    pub fn end_others(&self) {
        assert!(self.number == 0, "the first thread ends the others");
        for other in self.threads.others() {
            self.threads.post(other, What::End);
        }
        for other in self.threads.others() {
            // It leaves within a pass of its executor; one that has panicked has left.
            while !self.threads.inboxes[other].has_ended.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
        }
    }
}

impl ThreadPlace {
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    pub fn counters(&self) -> &Arc<Counters> {
        &self.threads.inboxes[self.number].counters
    }

    pub fn each_counters(&self) -> impl Iterator<Item = &Arc<Counters>> {
        self.threads.inboxes.iter().map(|inbox| &inbox.counters)
    }

    pub fn errors(&self) -> MutexGuard<'_, ErrorLog> {
        locked(&self.threads.errors)
    }

    /// Number of orders for this thread so far.
    #[inline]
    pub fn posted(&self) -> u32 {
        self.threads.inboxes[self.number].posted.load(Ordering::Acquire)
    }

    fn next_order(&self) -> Option<Arc<Order>> {
        locked(&self.threads.inboxes[self.number].orders).pop_front()
    }

    fn report(&self, report: Report) {
        self.threads.reports.fetch_or(report as u32, Ordering::AcqRel);
    }

    /// The thread of a completion queue; `None`: this one.
    fn elsewhere(&self, cqid: QueueId) -> Option<usize> {
        let thread = Threads::number_of(cqid, self.threads.inboxes.len());
        (thread != self.number).then_some(thread)
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// The thread that is to serve this completion queue and its submission queues; `None`: this one.
    pub(super) fn thread_of(&self, cqid: QueueId) -> Option<usize> {
        self.shared.place.as_ref()?.elsewhere(cqid)
    }

    /// True for a controller that is not the one of the first thread.
    #[inline]
    pub(super) fn is_other(&self) -> bool {
        self.shared.place.as_ref().is_some_and(|place| !place.is_first())
    }

    /// Orders something of another thread, and waits for the result.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) async fn order(&self, to: usize, what: What) -> Result<u32, Status> {
        let threads = &self.shared.place.as_ref().expect("there are others").threads;
        let order = threads.post(to, what);
        self.port.check_again();
        let result = || match order.result.load(Ordering::Acquire) {
            0 if threads.inboxes[to].has_ended.load(Ordering::Acquire) => {
                Some(Err(Status::INTERNAL_ERROR))
            }
            0 => None,
            result => Some(Ok(result - 1)),
        };
        self.port.on_registers(result).await
    }

    /// Orders the same of all other threads, and waits until all have done it or ended.
    pub(super) async fn order_all(&self, what: impl Fn() -> What) {
        let Some(place) = self.shared.place.as_ref().filter(|place| place.is_first()) else {
            return;
        };
        for to in place.threads.others() {
            let _ = self.order(to, what()).await;
        }
    }

    /// An error that no completion can report: the first thread tells the others, another one the first.
    pub(super) fn fail_all(&self) {
        let Some(place) = &self.shared.place else { return };
        match place.is_first() {
            true => place.threads.others().for_each(|to| {
                place.threads.post(to, What::Halt);
            }),
            false => place.report(Report::Failed),
        }
        self.port.check_again();
    }

    /// A doorbell has an invalid value.
    pub(super) fn tell_bad_doorbell(&self) {
        match &self.shared.place {
            Some(place) if !place.is_first() => {
                place.report(Report::BadDoorbell);
                self.port.check_again();
            }
            _ => self.health.events.borrow_mut().note(AsyncEvent::INVALID_DOORBELL_VALUE),
        }
    }

    /// Drops reports of the time before a reset, of which the host must hear nothing.
    pub(super) fn drop_reports(&self) {
        if let Some(place) = &self.shared.place {
            place.threads.reports.store(0, Ordering::Release);
        }
    }

    /// Takes the reports of other threads.
    #[inline]
    pub(super) fn take_reports(&self) {
        if let Some(place) = &self.shared.place
            && place.threads.reports.load(Ordering::Relaxed) != 0
        {
            self.act_on(place.threads.reports.swap(0, Ordering::AcqRel));
        }
    }

    #[cold]
    fn act_on(&self, reports: u32) {
        if reports & Report::BadDoorbell as u32 != 0 {
            self.tell_bad_doorbell();
        }
        if reports & Report::Failed as u32 != 0 && self.registers.ready.get() {
            self.fail("on another thread", 0);
        }
    }

    /// Serves the queues of a thread that is not the first, until the first thread ends its part. Then its
    /// owner stops the controller, drops its tasks, and drops its [`DeviceThread`].
    pub async fn serve_queues(self: &Rc<Self>) {
        let place = self.shared.place.as_ref().expect("a controller of one of several threads");
        loop {
            let version = self.registers.control_written.version();
            while let Some(order) = place.next_order() {
                if matches!(order.what, What::End) {
                    return;
                }
                let controller = self.clone();
                self.rt.spawn(async move {
                    let result = controller.perform(&order.what).await;
                    order.result.store(result + 1, Ordering::Release);
                    controller.port.check_again();
                });
            }
            self.registers.control_written.changed(&self.rt, version).await;
        }
    }

    async fn perform(&self, what: &What) -> u32 {
        match what {
            What::Enable(cc) => {
                self.registers.settings.set(*cc);
                self.registers.ready.set(true);
            }
            What::Disable => self.forget_queues().await,
            What::ShutDown => self.stop_commands().await,
            What::Halt => self.registers.ready.set(false),
            What::CreateCq { create, base } => self.create_cq_here(create, *base),
            What::CreateSq { create, base } => self.create_sq_here(create, *base, Priority::Medium),
            What::DeleteCq(qid) => self.queues.cqs.borrow_mut()[usize::from(qid.0)] = None,
            What::DeleteSq(qid) => return u32::from(self.end_sq(*qid).await.is_err()),
            What::Abort(sqid, cid) => return self.abort_here(*sqid, *cid).await,
            What::Set(feature) => {
                let set = self.features.values.borrow_mut().set(*feature);
                debug_assert!(set.is_ok(), "the first thread has checked it");
                self.coalesce(*feature);
            }
            What::End => unreachable!("ends the loop that calls this"),
        }
        0
    }

    fn create_cq_here(&self, create: &CreateCq, base: BusAddr) {
        let vector = create.irq_enabled.then_some(create.vector);
        self.install_cq(create.qid, Cq::new(create.qid, base, create.size, vector));
    }

    pub(super) fn create_sq_here(&self, create: &CreateSq, base: BusAddr, priority: Priority) {
        let sq = Sq::new(create.qid, base, create.size, create.cqid, priority);
        self.install_sq(create.qid, sq);
    }
}
