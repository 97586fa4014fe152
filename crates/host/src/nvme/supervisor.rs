//! Supervisor task, one per controller: time-outs, resets, shutdown, surprise removal.
//!
//! All enabling and disabling of a controller happens in this task, one request after the other, even if the
//! caller's future has been dropped. A command's age is a number of checks, not a time: a host that was
//! itself stopped for a minute has checked once in that minute and blames no command.

use alloc::rc::Rc;

use bus::HostPort;
use runtime::{Either, Span, race};
use wire::{CommandId, QueueId};

use super::attach::set_up;
use super::health::State;
use super::pair::Pair;
use super::queue::Queue;
use super::state::Core;
use super::{REGISTER_POLL, TICKS_PER_TIMEOUT};
use crate::InitError;

/// Shortest interval between two checks of the commands in flight.
const TICK_MIN: Span = Span::us(1);

/// Time limit of an orderly shutdown if the controller reports none (RTD3E = 0).
const SHUTDOWN_DEFAULT: Span = Span::s(10);

/// Whether the controller is shut down or gone.
#[derive(PartialEq, Eq)]
enum Ended {
    Yes,
    No,
}

/// Supervises a controller until it is shut down or gone.
pub(super) async fn supervise<P: HostPort>(core: Rc<Core<P>>) {
    let tick = match core.options.timeout {
        Span::ZERO => None,
        timeout => Some((timeout / TICKS_PER_TIMEOUT).max(TICK_MIN)),
    };
    let mut next = tick.map(|tick| core.rt().now() + tick);
    loop {
        // Read the version before the requests: a request made meanwhile is not missed.
        let seen = core.health.asked.version();
        if core.serve_asks().await == Ended::Yes {
            return;
        }
        // One waiter serves all checks until the next request.
        let mut asked = core.health.asked.changed(core.rt(), seen);
        // Requests do not move the time of the next check.
        while let Some((tick, at)) = tick.zip(next) {
            match race(&mut asked, core.rt().sleep_until(at)).await {
                Either::First(()) => break,
                Either::Second(()) => core.look().await,
            }
            next = Some(core.rt().now() + tick);
        }
        asked.await;
    }
}

impl<P: HostPort> Core<P> {
    async fn serve_asks(self: &Rc<Self>) -> Ended {
        let asks = self.health.take_asks();
        if asks.gone {
            self.die(InitError::Gone { register: "CSTS" });
            return Ended::Yes;
        }
        if asks.shutdown {
            self.shut_down().await;
            return Ended::Yes;
        }
        if asks.reset {
            return self.reset().await;
        }
        if asks.aborts {
            self.end_given_up();
        }
        Ended::No
    }

    /// Checks the controller and all commands in flight.
    async fn look(self: &Rc<Self>) {
        match self.admin.bar.status().await {
            Err(_) => return self.health.ask(self.rt(), |asks| asks.gone = true),
            Ok(csts) if csts.cfs() || !csts.rdy() => {
                self.rt().log("host", "controller-failed", u64::from(csts.into_bits()), 0);
                self.health.requested.set(false);
                return self.health.ask(self.rt(), |asks| asks.reset = true);
            }
            Ok(_) => {}
        }
        let mut hopeless = false;
        for queue in self.queues.borrow().iter() {
            let pair = &queue.pair;
            let waiting = pair.slots.tick();
            // The interrupt may have been lost although its completion has arrived.
            if waiting && pair.is_interrupted() && pair.drain() > 0 {
                pair.count(|counters| counters.lost_interrupts += 1);
                self.rt().log("host", "lost-interrupt", u64::from(pair.qid().0), 0);
            }
            pair.slots.ages(|cid, looks| {
                let looks = u64::from(looks);
                hopeless |= looks > 2 * TICKS_PER_TIMEOUT;
                if looks > TICKS_PER_TIMEOUT {
                    self.overdue(pair, cid);
                }
            });
        }
        self.end_given_up();
        if hopeless {
            self.health.requested.set(false);
            self.health.ask(self.rt(), |asks| asks.reset = true);
        }
    }

    /// Aborts commands whose owners have given them up, within the controller's abort limit. The end of an
    /// Abort starts the next ones.
    fn end_given_up(self: &Rc<Self>) {
        for queue in self.queues.borrow().iter() {
            queue.pair.slots.given_up(|cid| self.abort_soon(&queue.pair, cid));
        }
    }

    /// Handles a command that has exceeded its time: counts it, and aborts it if the controller accepts
    /// another Abort now.
    fn overdue(self: &Rc<Self>, pair: &Pair<P>, cid: CommandId) {
        if pair.slots.expire(cid) {
            pair.count(|counters| counters.timeouts += 1);
            self.rt().log("host", "timeout", u64::from(pair.qid().0), u64::from(cid.0));
        }
        self.abort_soon(pair, cid);
    }

    /// Aborts a command, unless an Abort was sent already or the controller's abort limit is reached.
    fn abort_soon(self: &Rc<Self>, pair: &Pair<P>, cid: CommandId) {
        if self.takes_an_abort() && pair.slots.mark_aborted(cid) {
            self.abort(pair.qid(), cid);
        }
    }

    /// Returns true if the controller accepts another Abort now.
    pub fn takes_an_abort(&self) -> bool {
        // ACL is zero-based.
        self.aborts.get() <= u32::from(self.identity.controller.acl)
    }

    /// Sends an Abort for a command.
    pub fn abort(self: &Rc<Self>, queue: QueueId, cid: CommandId) {
        self.aborts.set(self.aborts.get() + 1);
        self.rt().spawn(abort(self.clone(), queue, cid));
    }

    /// Disables and enables the controller, with the same queues.
    async fn reset(&self) -> Ended {
        self.rt().log("host", "reset", self.health.resets.get(), 0);
        self.health.set(self.rt(), State::Starting);
        if let Err(error) = self.turn_off().await {
            self.die(error);
            return Ended::Yes;
        }
        let queues = self.queues.borrow().clone();
        // Disabled: the device writes nothing more, so slots and buffers may go back and the rings restart.
        queues.iter().for_each(|queue| queue.pair.clear());
        match self.turn_on(&queues).await {
            Ok(()) => {
                self.health.resets.set(self.health.resets.get() + 1);
                self.health.set(self.rt(), State::Running);
                Ended::No
            }
            Err(error) => {
                self.turn_off().await.ok();
                self.die(error);
                Ended::Yes
            }
        }
    }

    /// Disables the controller. If it does not stop it may write at any time: memory that it has addresses of
    /// is quarantined.
    async fn turn_off(&self) -> Result<(), InitError> {
        self.queues.borrow().iter().for_each(|queue| queue.pair.close());
        let off = self.admin.turn_off().await;
        if let Err(InitError::NotReady { .. }) = off {
            self.rt().log("host", "quarantined", 0, 0);
            self.queues.borrow().iter().for_each(|queue| queue.pair.quarantine());
            self.admin.pair.quarantine();
        }
        off
    }

    async fn turn_on(&self, queues: &[Rc<Queue<P>>]) -> Result<(), InitError> {
        self.admin.turn_on().await?;
        let granted = set_up(&self.admin, &self.options, &self.identity.controller).await?;
        let namespace = self.admin.identify_namespace(self.identity.nsid).await?;
        let before = &self.identity.namespace;
        if (namespace.nsze, namespace.format()) != (before.nsze, before.format()) {
            return Err(InitError::Unsupported {
                what: "NSZE after a reset",
                found: namespace.nsze.get(),
                expected: "the namespace that was there before",
            });
        }
        for queue in queues {
            let asked = u32::from(queue.pair.qid().0);
            if asked > granted {
                return Err(InitError::TooFewQueues { asked, granted });
            }
            self.admin.create(&queue.pair, queue.priority).await?;
            queue.pair.open();
        }
        Ok(())
    }

    /// Enters the state Gone and fails all requests.
    fn die(&self, error: InitError) {
        self.rt().log("host", "gone", 0, 0);
        self.last_error.set(Some(error));
        self.health.set(self.rt(), State::Gone);
        self.end();
    }

    /// Ends the tasks and fails their commands.
    fn end(&self) {
        for queue in self.queues.borrow().iter() {
            queue.pair.stop();
            queue.pair.clear();
        }
        self.admin.pair.stop();
        self.admin.pair.clear();
    }

    async fn shut_down(&self) {
        self.rt().log("host", "shutdown", 0, 0);
        self.health.set(self.rt(), State::Closing);
        self.wait_for_commands().await;
        let mut result = self.delete_queues().await;
        if !matches!(result, Err(InitError::Gone { .. })) {
            result = result.and(self.admin.bar.notify_shutdown(self.shutdown_time()).await);
            result = result.and(self.turn_off().await);
        }
        self.last_error.set(result.err());
        match result {
            Err(InitError::Gone { .. }) => self.health.set(self.rt(), State::Gone),
            _ => self.health.set(self.rt(), State::Closed),
        }
        self.end();
    }

    /// Waits for the commands in flight, for at most one time-out.
    async fn wait_for_commands(&self) {
        let patience = match self.options.timeout {
            Span::ZERO => self.options.ready_ceiling,
            timeout => timeout,
        };
        let deadline = self.rt().now() + patience;
        let busy = || self.queues.borrow().iter().any(|queue| queue.pair.slots.in_flight() > 0);
        while busy() && self.rt().now() < deadline && !self.admin.pair.port().is_gone() {
            self.rt().sleep(REGISTER_POLL).await;
        }
    }

    /// Deletes the queues, until the controller does not respond.
    async fn delete_queues(&self) -> Result<(), InitError> {
        let queues = self.queues.borrow().clone();
        let mut result = Ok(());
        for queue in queues {
            let deleted = self.admin.delete(queue.pair.qid()).await;
            result = result.and(deleted);
            if !matches!(deleted, Ok(()) | Err(InitError::Refused { .. })) {
                break;
            }
        }
        result
    }

    /// Shutdown time that the controller reports (RTD3E), at most `ready_ceiling`.
    fn shutdown_time(&self) -> Span {
        match self.identity.controller.rtd3e.get() {
            0 => SHUTDOWN_DEFAULT,
            us => Span::us(u64::from(us)),
        }
        .min(self.options.ready_ceiling)
    }
}

/// Aborts a command. If the Abort fails, the next checks handle the command.
async fn abort<P: HostPort>(core: Rc<Core<P>>, queue: QueueId, cid: CommandId) {
    core.admin.abort(queue, cid).await.ok();
    core.aborts.set(core.aborts.get() - 1);
    core.end_given_up();
}
