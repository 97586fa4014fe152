//! Queue pairs for threads: one thread has the controller, and each of the others a queue pair of its own.
//!
//! ```text
//!   the controller's thread                              any other
//!   Granter::serve ◄── a queue? an abort? an end? ──── Queues::queue ──► ThreadQueue ──► Queue
//!        └─────────── answers; how the controller stands ────►│
//! ```
//!
//! Messages go across when a queue is made, when it is given back, and when something is wrong. A command
//! needs none: its ring, its slots, its buffer and its doorbells are its thread's, so its way has neither
//! lock nor message, nor a word that two threads of the host write. Each thread brings an executor and memory
//! of its own.
//!
//! Where the controller has no queue left the thread is told, with how many there are. Nothing is shared
//! behind its back: that would be a lock in the way of every command. It can do with fewer threads, or give
//! another thread its work to do.
//!
//! After a reset of the controller the queues are made anew in the same memory, and what was in flight is
//! submitted again, or ends, as with the controller's own queues. A thread whose command takes too long asks
//! for its abort, and then for a reset. When the controller is gone every thread is told within milliseconds.
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
//! and each of the others:
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

/// How often either side looks for messages: they are not on the way of a command.
const LOOK: Span = Span::us(200);

type Answer<T> = Sender<Result<T, InitError>>;

/// What a thread asks of the controller's, with the way back for the answer.
enum Ask {
    Grant(QueueOptions, Sender<Ask>, Answer<(Grant, Link)>),
    /// The answer is the number of resets after which the queue was made.
    Create(Rings, Answer<u64>),
    /// The queue is not used any more; somebody may wait until the controller knows it no more.
    Delete(QueueId, Option<Answer<()>>),
    Abort(QueueId, CommandId),
    /// Unless the controller was reset since, as often as this says.
    Reset(u64),
}

/// How the controller stands, told by its thread to all others.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Standing {
    resets: u64,
    /// The last reset was the caller's own wish.
    requested: bool,
    /// Nothing will succeed any more: Closed or Gone.
    over: Option<State>,
}

/// A standing as one word, which the controller's thread writes when it changes. Release and acquire: what
/// the device wrote before it was off has landed when another thread reads of the reset, and empties its
/// rings.
#[derive(Default)]
struct News(AtomicU64);

impl News {
    const REQUESTED: u64 = 1 << 0;
    const CLOSED: u64 = 1 << 1;
    const GONE: u64 = 1 << 2;
    const RESETS: u32 = 3;

    /// Only the controller's thread does so.
    fn tell(&self, now: Standing) {
        let over = match now.over {
            None => 0,
            Some(State::Closed) => News::CLOSED,
            Some(_) => News::GONE,
        };
        let requested = if now.requested { News::REQUESTED } else { 0 };
        let word = now.resets << News::RESETS | over | requested;
        // A word that others look at is not written for nothing.
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

/// The controller's thread's end. When it is dropped, queues that others still have are gone.
pub struct Granter {
    asks: Receiver<Ask>,
    news: Arc<News>,
}

/// Where other threads take queues. Each has a clone.
#[derive(Clone)]
pub struct Queues {
    asks: Sender<Ask>,
    news: Arc<News>,
}

/// Both ends, for a controller that is still to be started or has been.
pub fn granter() -> (Granter, Queues) {
    let (asks, asked) = channel();
    let news = Arc::new(News::default());
    (Granter { asks: asked, news: news.clone() }, Queues { asks, news })
}

impl Granter {
    /// Serves other threads, as long as one has a [`Queues`] or a [`ThreadQueue`]. Where the same executor
    /// has other work to do, that runs beside this.
    ///
    /// A controller that is shut down, or gone, ends the queues of all threads; so does the end of this.
    pub async fn serve<P: HostPort>(self, controller: &Controller<P>) {
        let core = controller.core();
        // Those that wait until the controller takes another Abort.
        let mut aborts = VecDeque::new();
        loop {
            self.news.tell(standing(controller));
            while core.takes_an_abort()
                && let Some((queue, cid)) = aborts.pop_front()
            {
                core.abort(queue, cid);
            }
            match self.asks.try_recv() {
                Ok(ask) => serve(controller, ask, &mut aborts).await,
                Err(TryRecvError::Empty) => core.rt().sleep(LOOK).await,
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }
}

impl Drop for Granter {
    fn drop(&mut self) {
        // Nobody follows the controller from here on.
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

/// Whoever has asked may be gone: nobody then takes the answer.
async fn serve<P: HostPort>(
    controller: &Controller<P>,
    ask: Ask,
    aborts: &mut VecDeque<(QueueId, CommandId)>,
) {
    let core = controller.core();
    match ask {
        Ask::Grant(options, asks, to) => {
            let granted = controller.grant(options).await;
            let link = |qid| Link { qid, asks, has_ended: Cell::new(false) };
            // Unread, the link asks for its end.
            let _ = to.send(granted.map(|grant| (grant, link(grant.qid()))));
        }
        Ask::Create(rings, to) => {
            let _ = to.send(create(controller, &rings).await);
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
        // It is being reset, or has been.
        Ask::Reset(_) => {}
    }
}

/// Makes a queue known, however many resets come in between. Gives how many there have been.
async fn create<P: HostPort>(controller: &Controller<P>, rings: &Rings) -> Result<u64, InitError> {
    let core = controller.core();
    loop {
        core.running().await?;
        let before = controller.resets();
        let created = controller.create_granted(rings).await;
        if is_running(controller) && controller.resets() == before {
            return created.map(|()| before);
        }
        // Turned off, it has forgotten the queue; unless that was made while it was being started again.
        controller.delete_granted(rings).await.ok();
    }
}

/// Has a queue forgotten. Its number is then anybody's.
async fn delete<P: HostPort>(controller: &Controller<P>, queue: QueueId) -> Result<(), InitError> {
    let core = controller.core();
    core.running().await?;
    // An Abort that comes later would mean another's command. Each ends within the admin time-out.
    while core.aborts.get() > 0 {
        core.rt().sleep(LOOK).await;
    }
    match core.admin.delete(queue).await {
        // It knows none such, or was turned off meanwhile, and has forgotten it.
        Ok(()) | Err(InitError::Refused { .. } | InitError::Reset { .. }) => {
            core.take_back(queue);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// A queue's number, and the way to the controller's thread. Dropped, it asks for the queue's end.
struct Link {
    qid: QueueId,
    asks: Sender<Ask>,
    /// The end has been asked for.
    has_ended: Cell<bool>,
}

impl Link {
    /// If nobody hears it, the answer says so.
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

/// Waits for an answer, while this executor's world goes on.
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
    /// A queue pair for the thread of this port, in memory of the port's. If the future is dropped, the
    /// number comes back, and memory that the controller may know of is not used again.
    ///
    /// # Errors
    /// [`InitError::TooFewQueues`]: all are taken, and it says how many there are. [`InitError::Closed`]: the
    /// [`Granter`] has been dropped. Else as [`Controller::queue`].
    pub async fn queue<P: HostPort>(
        &self,
        port: &P,
        options: QueueOptions,
    ) -> Result<ThreadQueue<P>, InitError> {
        let rt = port.rt();
        let (to, granted) = channel();
        // If nobody hears it, the answer says so.
        let _ = self.asks.send(Ask::Grant(options, self.asks.clone(), to));
        let (grant, link) = answer(rt, granted).await?;
        let link = Rc::new(link);
        let granted = grant.accept(port)?;
        let rings = granted.rings();
        let (to, created) = channel();
        link.ask(Ask::Create(rings, to));
        let resets = match answer(rt, created).await {
            Ok(resets) => Rc::new(Cell::new(resets)),
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

/// Takes the wishes of a queue's watch to the controller's thread.
fn to_controller(link: Weak<Link>, resets: Rc<Cell<u64>>) -> Hears {
    Box::new(move |owner_request| {
        let Some(link) = link.upgrade() else { return };
        link.ask(match owner_request {
            OwnerRequest::Abort(cid) => Ask::Abort(link.qid, cid),
            OwnerRequest::Reset => Ask::Reset(resets.get()),
        });
    })
}

/// A queue pair of the thread that has taken it. Dropped before it is [given back](Self::give_back), its
/// number comes back all the same, but its memory is never used again.
pub struct ThreadQueue<P: HostPort> {
    queue: Rc<Queue<P>>,
    // Dropped in this order: nobody rings any more when the controller's thread hears of the end.
    granted: Granted<P>,
    link: Rc<Link>,
}

impl<P: HostPort> ThreadQueue<P> {
    /// The queue: a block device like any other.
    pub fn queue(&self) -> &Rc<Queue<P>> {
        &self.queue
    }

    /// Takes no more commands, and waits until the controller knows the queue no more. Then its memory is
    /// free, and another thread can have it. What was in flight ends as
    /// [`Kind::Closed`](crate::Kind::Closed).
    ///
    /// # Errors
    /// The controller does not answer: it may write to the queue's memory for ever, which is not used again.
    pub async fn give_back(self) -> Result<(), InitError> {
        let Mine { pair, health, .. } = &*self.granted.mine;
        let rt = pair.rt();
        if health.state() != State::Gone {
            health.set(rt, State::Closing);
        }
        // Nobody touches the rings and the doorbells, which may soon be another's.
        pair.close();
        let (to, deleted) = channel();
        self.link.end(Some(to));
        answer(rt, deleted).await?;
        self.granted.give_back();
        Ok(())
    }
}

/// Follows what becomes of the controller, as long as the queue is in use.
struct Follower<P: HostPort> {
    mine: Rc<Mine<P>>,
    /// It keeps nobody from being done.
    link: Weak<Link>,
    news: Arc<News>,
    rings: Rings,
    /// Resets after which the queue was last made.
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

    /// The controller was off since: it has forgotten the queue, and writes nothing there.
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
        // It may have been given up or back meanwhile.
        if self.is_wanted() {
            pair.open();
            health.set(pair.rt(), State::Running);
        }
        Ok(())
    }
}
