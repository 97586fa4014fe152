//! Queue pairs for threads: one thread owns the controller, each of the others a queue pair.
//!
//! ```text
//!   the controller's thread                              any other
//!   Granter::serve ◄── create, abort, delete ───────── Queues::queue ──► ThreadQueue ──► Queue
//!        └─────────── results; controller state ─────────────►│
//! ```
//!
//! Messages are sent when a queue is created, when it is given back, and on errors. A command needs none: its
//! ring, slots, buffer and doorbells belong to its thread, so its path has no lock, no message, and no word
//! that two host threads write. Each thread brings its own executor and memory.
//!
//! If the controller has no queue left, the thread gets an error with the number of queues. Queues are never
//! shared implicitly, because that would put a lock on the path of every command. The program can use fewer
//! threads, or move the work to another thread.
//!
//! After a reset of the controller the queues are created again in the same memory. Commands in flight are
//! submitted again or fail, as on the controller's own queues. A command that takes too long is aborted, then
//! the controller is reset. When the controller is gone, every thread is notified within milliseconds.
//!
//! The state of the controller is one word, by which each thread learns of a reset: it empties its rings and
//! creates them again under the same number. A queue number is reused only when the controller has deleted
//! the queue, no Abort is in flight, and the former owner no longer writes its doorbells. In a live run
//! (`world::threads`) each thread has load generators and results of its own, merged at the end; only the
//! verification ledger is behind a lock.
//!
//! The controller's thread:
//!
//! ```no_run
//! use bus::HostPort;
//! use host::nvme::threads::Granter;
//! use host::nvme::{Controller, Options};
//! use host::InitError;
//!
//! async fn has_the_controller(
//!     port: impl HostPort,
//!     granter: Granter,
//!     threads: u16,
//! ) -> Result<(), InitError> {
//!     let options = Options { queues: threads, ..Options::default() };
//!     let controller = Controller::start(port, options).await?;
//!     granter.serve(&controller).await; // until the last thread has given its queue back
//!     controller.shutdown().await
//! }
//! ```
//!
//! Every other thread:
//!
//! ```no_run
//! use bus::HostPort;
//! use host::nvme::QueueOptions;
//! use host::nvme::threads::Queues;
//! use host::{BlockDevice, IoError};
//! use wire::Lba;
//!
//! async fn reads(port: impl HostPort, queues: Queues) -> Result<(), Box<dyn std::error::Error>> {
//!     let mine = queues.queue(&port, QueueOptions::default()).await?;
//!     let buffer = mine.queue().buffer(4096)?;
//!     let (_buffer, read) = mine.queue().read(Lba(0), buffer).await;
//!     read?;
//!     Ok(mine.give_back().await?)
//! }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::{Rc, Weak};
use core::cell::Cell;

use bus::HostPort;
use runtime::{Rt, Span};
use wire::{CommandId, QueueId};

use super::controller::Controller;
use super::granted::{Grant, Granted, Hears, Mine, OwnerRequest, Rings};
use super::health::State;
use super::queue::Queue;
use super::{QueueOptions, REGISTER_POLL};
use crate::InitError;

/// Poll interval for messages on both sides; they are not on the path of a command.
const LOOK: Span = Span::us(200);

type Answer<T> = Sender<Result<T, InitError>>;

/// Request of a thread to the controller's thread, with a channel for the answer.
enum Ask {
    Grant(QueueOptions, Sender<Ask>, Answer<(Grant, Link)>),
    /// The answer is the number of resets before the queue was created.
    Create(Rings, Answer<u64>),
    /// The queue is unused; the sender may wait until the controller has deleted it.
    Delete(QueueId, Option<Answer<()>>),
    Abort(QueueId, CommandId),
    /// Reset, unless the number of resets exceeds this already.
    Reset(u64),
}

/// Controller state, published by its thread to all others.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Standing {
    resets: u64,
    /// True if the last reset was requested by the caller.
    requested: bool,
    /// Final state, Closed or Gone, if reached.
    over: Option<State>,
}

/// Controller state in one word, which the controller's thread writes when it changes. Release and acquire:
/// the device's writes before it was disabled have landed when another thread sees the reset and clears its
/// rings.
#[derive(Default)]
struct News(AtomicU64);

impl News {
    const REQUESTED: u64 = 1 << 0;
    const CLOSED: u64 = 1 << 1;
    const GONE: u64 = 1 << 2;
    const RESETS: u32 = 3;

    /// Only the controller's thread calls this.
    fn tell(&self, now: Standing) {
        let over = match now.over {
            None => 0,
            Some(State::Closed) => News::CLOSED,
            Some(_) => News::GONE,
        };
        let requested = if now.requested { News::REQUESTED } else { 0 };
        let word = now.resets << News::RESETS | over | requested;
        // The shared cache line is written only on a change.
        if self.0.load(Ordering::Relaxed) != word {
            self.0.store(word, Ordering::Release);
        }
    }

    fn now(&self) -> Standing {
        let word = self.0.load(Ordering::Acquire);
        let over = match word {
            word if word & News::GONE != 0 => Some(State::Gone),
            word if word & News::CLOSED != 0 => Some(State::Closed),
            _ => None,
        };
        Standing { resets: word >> News::RESETS, requested: word & News::REQUESTED != 0, over }
    }
}

/// Controller side. Dropping it ends the queues of all threads.
pub struct Granter {
    asks: Receiver<Ask>,
    news: Arc<News>,
}

/// Source of queues for other threads; each has a clone.
#[derive(Clone)]
pub struct Queues {
    asks: Sender<Ask>,
    news: Arc<News>,
}

/// Creates both sides, before or after the controller is started.
pub fn granter() -> (Granter, Queues) {
    let (asks, asked) = channel();
    let news = Arc::new(News::default());
    (Granter { asks: asked, news: news.clone() }, Queues { asks, news })
}

impl Granter {
    /// Serves other threads, as long as one has a [`Queues`] or a [`ThreadQueue`]. Other tasks of the
    /// executor run concurrently.
    ///
    /// The queues of all threads end when the controller is shut down or gone, or when this future ends.
    pub async fn serve<P: HostPort>(self, controller: &Controller<P>) {
        let core = controller.core();
        // Commands that wait until the controller accepts another Abort.
        let mut aborts = VecDeque::new();
        loop {
            self.news.tell(standing(controller));
            while core.takes_an_abort()
                && let Some((queue, cid)) = aborts.pop_front()
            {
                core.abort(queue, cid);
            }
            match self.asks.try_recv() {
                Ok(ask) => serve(controller, &self.news, ask, &mut aborts).await,
                Err(TryRecvError::Empty) => core.rt().sleep(LOOK).await,
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }
}

impl Drop for Granter {
    fn drop(&mut self) {
        // No state is published from here on.
        self.news.tell(Standing { over: Some(State::Gone), ..self.news.now() });
    }
}

fn is_running<P: HostPort>(controller: &Controller<P>) -> bool {
    controller.core().health.state() == State::Running
}

fn standing<P: HostPort>(controller: &Controller<P>) -> Standing {
    let health = &controller.core().health;
    let over = Some(health.state()).filter(|now| matches!(now, State::Closed | State::Gone));
    Standing { resets: controller.resets(), requested: health.requested.get(), over }
}

/// Handles a request. The requester may be gone: then the answer is discarded.
async fn serve<P: HostPort>(
    controller: &Controller<P>,
    news: &News,
    ask: Ask,
    aborts: &mut VecDeque<(QueueId, CommandId)>,
) {
    let core = controller.core();
    match ask {
        Ask::Grant(options, asks, to) => {
            let granted = controller.grant(options).await;
            let link = |qid| Link { qid, asks, has_ended: Cell::new(false) };
            // If the message is not received, dropping the link deletes the queue.
            let _ = to.send(granted.map(|grant| (grant, link(grant.qid()))));
        }
        Ask::Create(rings, to) => {
            let created = create(controller, &rings).await;
            // Told before the answer: a thread whose queue is of a reset that the news lack would take the
            // news for another reset, and create its queue twice.
            news.tell(standing(controller));
            let _ = to.send(created);
        }
        Ask::Delete(queue, to) => {
            aborts.retain(|(of, _)| *of != queue);
            let deleted = delete(controller, queue).await;
            if let Some(to) = to {
                let _ = to.send(deleted);
            }
        }
        Ask::Abort(queue, cid) => aborts.push_back((queue, cid)),
        Ask::Reset(resets) if resets == controller.resets() && is_running(controller) => {
            core.health.requested.set(false);
            core.health.ask(core.rt(), |asks| asks.reset = true);
        }
        // A reset is in progress or done.
        Ask::Reset(_) => {}
    }
}

/// Creates a queue, repeating after a reset. Returns the number of resets before.
async fn create<P: HostPort>(controller: &Controller<P>, rings: &Rings) -> Result<u64, InitError> {
    let core = controller.core();
    loop {
        core.running().await?;
        let before = controller.resets();
        let created = controller.create_granted(rings).await;
        if is_running(controller) && controller.resets() == before {
            return created.map(|()| before);
        }
        // Disabled, it has lost the queue, unless the queue was created while it was starting again.
        controller.delete_granted(rings).await.ok();
    }
}

/// Deletes a queue and frees its identifier.
async fn delete<P: HostPort>(controller: &Controller<P>, queue: QueueId) -> Result<(), InitError> {
    let core = controller.core();
    core.running().await?;
    // A later Abort would hit another queue's command. Each Abort ends within the admin time-out.
    while core.aborts.get() > 0 {
        core.rt().sleep(LOOK).await;
    }
    match core.admin.delete(queue).await {
        // The controller has no such queue, or was disabled meanwhile, which deletes it.
        Ok(()) | Err(InitError::Refused { .. } | InitError::Reset { .. }) => {
            core.take_back(queue);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Queue identifier, with the channel to the controller's thread. Dropping it deletes the queue.
struct Link {
    qid: QueueId,
    asks: Sender<Ask>,
    /// True if the deletion was requested.
    has_ended: Cell<bool>,
}

impl Link {
    /// Sends a request. If the receiver is gone, waiting for the answer fails.
    fn ask(&self, ask: Ask) {
        let _ = self.asks.send(ask);
    }

    fn end(&self, to: Option<Answer<()>>) {
        if !self.has_ended.replace(true) {
            self.ask(Ask::Delete(self.qid, to));
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.end(None);
    }
}

/// Waits for an answer without blocking the executor.
async fn answer<T>(rt: &Rt, from: Receiver<Result<T, InitError>>) -> Result<T, InitError> {
    loop {
        match from.try_recv() {
            Ok(answered) => return answered,
            Err(TryRecvError::Empty) => rt.sleep(LOOK).await,
            Err(TryRecvError::Disconnected) => return Err(InitError::Closed),
        }
    }
}

impl Queues {
    /// Creates a queue pair for this thread, in memory of `port`. If the future is dropped, the identifier is
    /// freed, and memory that the controller may have addresses of is quarantined.
    ///
    /// # Errors
    /// [`InitError::TooFewQueues`]: all queues are taken; holds their number. [`InitError::Closed`]: the
    /// [`Granter`] was dropped. Otherwise as [`Controller::queue`].
    pub async fn queue<P: HostPort>(
        &self,
        port: &P,
        options: QueueOptions,
    ) -> Result<ThreadQueue<P>, InitError> {
        let rt = port.rt();
        let (to, granted) = channel();
        // If the receiver is gone, waiting for the answer fails.
        let _ = self.asks.send(Ask::Grant(options, self.asks.clone(), to));
        let (grant, link) = answer(rt, granted).await?;
        let link = Rc::new(link);
        let granted = grant.accept(port)?;
        let rings = granted.rings();
        let (to, created) = channel();
        link.ask(Ask::Create(rings, to));
        let resets = match answer(rt, created).await {
            Ok(resets) => {
                debug_assert!(self.news.now().resets >= resets, "told before the answer");
                Rc::new(Cell::new(resets))
            }
            Err(error) => {
                if matches!(error, InitError::Refused { .. }) {
                    granted.give_back();
                }
                return Err(error);
            }
        };
        let (mine, weak) = (granted.mine.clone(), Rc::downgrade(&link));
        mine.owner_request.replace(Some(to_controller(weak.clone(), resets.clone())));
        let queue = granted.open();
        rt.spawn(Follower { mine, link: weak, news: self.news.clone(), rings, resets }.follow());
        Ok(ThreadQueue { queue, granted, link })
    }
}

/// Sends the requests of a queue's watchdog to the controller's thread.
fn to_controller(link: Weak<Link>, resets: Rc<Cell<u64>>) -> Hears {
    Box::new(move |owner_request| {
        let Some(link) = link.upgrade() else { return };
        link.ask(match owner_request {
            OwnerRequest::Abort(cid) => Ask::Abort(link.qid, cid),
            OwnerRequest::Reset => Ask::Reset(resets.get()),
        });
    })
}

/// Queue pair of the thread that created it. If it is dropped before it is [given back](Self::give_back), its
/// identifier is freed, but its memory is quarantined.
pub struct ThreadQueue<P: HostPort> {
    queue: Rc<Queue<P>>,
    // Dropped in this order: no doorbell is written after the controller's thread gets the deletion.
    granted: Granted<P>,
    link: Rc<Link>,
}

impl<P: HostPort> ThreadQueue<P> {
    /// The queue, a block device like any other.
    pub fn queue(&self) -> &Rc<Queue<P>> {
        &self.queue
    }

    /// Rejects new commands, fails those in flight with [`Kind::Closed`](crate::Kind::Closed), and waits
    /// until the controller has deleted the queue. Then its memory is free, and another thread can have the
    /// queue.
    ///
    /// # Errors
    /// The controller does not respond: it may still write to the queue's memory, which is quarantined.
    pub async fn give_back(self) -> Result<(), InitError> {
        let Mine { pair, health, .. } = &*self.granted.mine;
        let rt = pair.rt();
        if health.state() != State::Gone {
            health.set(rt, State::Closing);
        }
        // The doorbells may soon belong to another thread.
        pair.close();
        let (to, deleted) = channel();
        self.link.end(Some(to));
        answer(rt, deleted).await?;
        self.granted.give_back();
        Ok(())
    }
}

/// Follows the controller's state while the queue is in use.
struct Follower<P: HostPort> {
    mine: Rc<Mine<P>>,
    /// Weak: it must not keep the queue alive.
    link: Weak<Link>,
    news: Arc<News>,
    rings: Rings,
    /// Number of resets before the queue was last created.
    resets: Rc<Cell<u64>>,
}

impl<P: HostPort> Follower<P> {
    async fn follow(self) {
        while self.is_wanted() {
            let now = self.news.now();
            if let Some(over) = now.over {
                return self.mine.give_up(over);
            }
            if now.resets != self.resets.get()
                && let Err(_gone) = self.make_anew(now.requested).await
            {
                return self.mine.give_up(State::Gone);
            }
            self.mine.pair.rt().sleep(REGISTER_POLL).await;
        }
    }

    fn is_wanted(&self) -> bool {
        self.mine.is_known() && self.mine.health.state() != State::Closing
    }

    /// Creates the queue again after a reset: the disabled controller has lost it, and writes nothing there.
    async fn make_anew(&self, requested: bool) -> Result<(), InitError> {
        let Mine { pair, health, .. } = &*self.mine;
        health.requested.set(requested);
        health.set(pair.rt(), State::Starting);
        pair.close();
        pair.clear();
        pair.expose();
        let (to, created) = channel();
        if let Some(link) = self.link.upgrade() {
            link.ask(Ask::Create(self.rings, to));
        }
        self.resets.set(answer(pair.rt(), created).await?);
        debug_assert!(self.news.now().resets >= self.resets.get(), "told before the answer");
        // It may have been given up or given back meanwhile.
        if self.is_wanted() {
            pair.open();
            health.set(pair.rt(), State::Running);
        }
        Ok(())
    }
}
