//! Controllers: start, creation of queues, reset, shutdown.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::HostPort;
use wire::Nsid;
use wire::nvme::event::AsyncEvent;

use super::abilities::Abilities;
use super::admin::Admin;
use super::attach::{Identity, attach, deallocated, geometry, protection};
use super::events::listen;
use super::health::{Asks, Health, State};
use super::pair::{Pair, PairSpec};
use super::protect::Guards;
use super::queue::Queue;
use super::state::{Core, Events};
use super::supervisor::supervise;
use super::{Options, QueueOptions};
use crate::InitError;

/// Handle on a started controller. The driver continues when it is dropped, until
/// [`shutdown`](Controller::shutdown).
pub struct Controller<P: HostPort> {
    core: Rc<Core<P>>,
}

/// Guard of a pair that the device may have addresses of. If it is dropped, the pair is quarantined.
struct HalfMade<P: HostPort>(Option<Rc<Pair<P>>>);

impl<P: HostPort> HalfMade<P> {
    fn done(mut self) {
        self.0 = None;
    }
}

impl<P: HostPort> Drop for HalfMade<P> {
    fn drop(&mut self) {
        if let Some(pair) = &self.0 {
            pair.quarantine();
            pair.stop();
        }
    }
}

impl<P: HostPort> Controller<P> {
    /// Brings a controller up: disables it if it is enabled, enables it, identifies it and its namespace,
    /// requests I/O queues and event notifications. Every wait is bounded. Dropping the future may leave the
    /// controller enabled; memory that it may write is quarantined.
    pub async fn start(port: P, options: Options) -> Result<Controller<P>, InitError> {
        let health = Rc::new(Health::new());
        let admin = Admin::new(&port, &options, &health).await?;
        let half_made = HalfMade(Some(admin.pair.clone()));
        let identity = match attach(&admin, &options).await {
            Ok(identity) => identity,
            Err(error) => return Err(admin.give_up(error).await),
        };
        half_made.done();
        let core = Rc::new(Core {
            admin,
            options,
            health,
            queues: RefCell::default(),
            identity,
            events: Events::default(),
            last_error: Cell::new(None),
            aborts: Cell::new(0),
            next_queue: Cell::new(1),
            free_queues: RefCell::default(),
        });
        let rt = port.rt();
        core.health.set(rt, State::Running);
        rt.spawn(supervise(core.clone()));
        rt.spawn(listen(core.clone()));
        Ok(Controller { core })
    }

    /// Creates an I/O queue pair. A depth above the controller's limit (CAP.MQES) is reduced to it:
    /// [`Queue::depth`] returns the result.
    pub async fn queue(&self, options: QueueOptions) -> Result<Rc<Queue<P>>, InitError> {
        self.queue_on(self.core.admin.pair.port(), options).await
    }

    /// Creates an I/O queue pair on `port`: the same device, from another core.
    pub async fn queue_on(
        &self,
        port: &P,
        options: QueueOptions,
    ) -> Result<Rc<Queue<P>>, InitError> {
        let core = &self.core;
        core.running().await?;
        let options = core.validate(options)?;
        let spec = PairSpec {
            qid: core.next_queue_id(),
            depth: options.depth,
            completion: options.completion,
            doorbell: options.doorbell,
            transfer_bytes_max: core.identity.geometry.transfer_bytes_max,
            sgl: core.sgl(),
            tags: core.options.protect.is_by_host(),
            stride: core.admin.bar.cap().dstrd(),
            entries_max: core.admin.bar.cap().queue_entries_max(),
        };
        let pair = Pair::start(port, &core.health, &spec)?;
        let half_made = HalfMade(Some(pair.clone()));
        let queue = Queue::new(pair.clone(), options.priority, &core.facts(), &core.health);
        let resets = core.health.resets.get();
        let mut created = core.admin.create(&pair, options.priority).await;
        // The controller's answer may have arrived just before it was disabled.
        if core.health.state() != State::Running || core.health.resets.get() != resets {
            created = created.and(Err(InitError::Reset { step: "Create I/O queues" }));
        }
        if let Err(error) = created {
            return Err(core.not_created(&pair, error));
        }
        pair.open();
        half_made.done();
        let queue = Rc::new(queue);
        core.queues.borrow_mut().push(queue.clone());
        Ok(queue)
    }

    /// Opens another namespace on an existing queue: it shares the queue's command slots, and has its own
    /// geometry as of now. A namespace that is formatted or created again must be opened again.
    pub async fn on_namespace(
        &self,
        queue: &Queue<P>,
        nsid: Nsid,
    ) -> Result<Rc<Queue<P>>, InitError> {
        let core = &self.core;
        core.running().await?;
        let namespace = core.admin.identify_namespace(nsid).await?;
        let controller = &core.identity.controller;
        // The queue's PRP lists are sized for the first namespace's longest transfer.
        let most = core.identity.geometry.transfer_bytes_max;
        let options = Options { transfer_bytes_max: most, ..core.options };
        let geometry = geometry(controller, &namespace, &options)?;
        let guards =
            Guards::of(protection(&namespace, core.options.protect)?, core.options.protect);
        let deallocated = deallocated(controller, &namespace);
        let abilities = Abilities::of(controller, &namespace, &geometry);
        Ok(Rc::new(queue.facing(nsid, geometry, deallocated, guards, abilities)))
    }

    /// Active namespaces now, at most 1024.
    pub async fn active_namespaces(&self) -> Result<Vec<Nsid>, InitError> {
        self.core.running().await?;
        self.core.admin.active_namespaces().await
    }

    pub(super) fn core(&self) -> &Rc<Core<P>> {
        &self.core
    }

    /// Identify data, read at start.
    pub fn identity(&self) -> &Identity {
        &self.core.identity
    }

    /// Most recent events of the controller, oldest first, and the total number of events.
    pub fn events(&self) -> (Vec<AsyncEvent>, u64) {
        self.core.events.seen()
    }

    /// Resets the controller. Commands in flight are submitted again without counting a
    /// [retry](Options::retries).
    pub async fn reset(&self) -> Result<(), InitError> {
        let core = &self.core;
        let before = core.health.resets.get();
        core.health.requested.set(true);
        core.health.ask(core.rt(), |asks| asks.reset = true);
        loop {
            match core.health.state() {
                State::Running if core.health.resets.get() != before => return Ok(()),
                State::Gone | State::Closed | State::Closing => return Err(core.why()),
                State::Running | State::Starting => core.health.next(core.rt()).await,
            }
        }
    }

    /// Shuts down: rejects new commands, waits for those in flight, deletes the queues, notifies the
    /// controller of the power-off, and disables it. Every wait is bounded. Dropping the future does not
    /// cancel the shutdown.
    pub async fn shutdown(&self) -> Result<(), InitError> {
        let core = &self.core;
        if core.health.state() == State::Closed {
            return Ok(());
        }
        core.health.ask(core.rt(), |asks: &mut Asks| asks.shutdown = true);
        loop {
            match core.health.state() {
                State::Closed => return core.last_error.get().map_or(Ok(()), Err),
                State::Gone => return Err(core.why()),
                _ => core.health.next(core.rt()).await,
            }
        }
    }

    /// Reason why the controller is gone; `None` if it is not.
    pub fn gone(&self) -> Option<InitError> {
        (self.core.health.state() == State::Gone).then(|| self.core.why())
    }

    /// Number of resets since the controller was started.
    pub fn resets(&self) -> u64 {
        self.core.health.resets.get()
    }
}
