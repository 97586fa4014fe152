//! One core's view of a controller's queues: a policy chooses the queue of each command.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::future::Future;

use bus::HostPort;
use runtime::{LockPolicy, Rng, Span};

use super::policy::{Chooser, Policy, Shape};
use super::share::{Issuer, Shared};
use super::spin::SpinOrder;
use super::{Completion, Controller, Queue, QueueOptions};
use crate::{BlockDevice, InitError};

/// Queues of one core, under a policy.
pub struct Spread<P: HostPort> {
    queues: Vec<Rc<Queue<P>>>,
    chooser: Chooser,
    /// Locks of shared queues, which all cores have.
    locks: Vec<Rc<Shared>>,
}

/// Distribution of queues over cores.
#[derive(Clone, Debug)]
pub struct SpreadOptions {
    /// Policy.
    pub policy: Policy,
    /// Most queues to create.
    pub queues: u16,
    /// Options of each queue. The policy may reduce the depth; each queue has its own vector.
    pub each: QueueOptions,
    /// Order in which waiting cores get a queue's lock.
    pub order: SpinOrder,
    /// Core that takes in the completions of the first shared queue.
    pub home: u16,
    /// Seed for the order in which cores see a free lock.
    pub seed: u64,
    /// Transfer time of a cache line between two cores' caches.
    pub transfer: Span,
}

impl SpreadOptions {
    /// Number and depth of the queues for `cores` cores.
    pub fn shape(&self, cores: u16) -> Shape {
        self.policy.shape(cores, self.queues, self.each.depth)
    }
}

impl<P: HostPort> Spread<P> {
    /// Creates the queues, and a handle for each of `ports`, one per core. Completions of shared queues are
    /// distributed round robin over the cores, from [`SpreadOptions::home`] on.
    pub async fn over(
        controller: &Controller<P>,
        ports: &[P],
        options: &SpreadOptions,
    ) -> Result<Vec<Rc<Spread<P>>>, InitError> {
        let cores = ports.len() as u16;
        let shape = options.shape(cores);
        let home = |queue: u16| options.policy.home(queue, cores, shape, options.home);
        let mut queues = Vec::new();
        for number in 0..shape.queues {
            let completion = match options.each.completion {
                kind @ (Completion::Polled | Completion::Hybrid) => kind,
                Completion::Interrupt { vector } => {
                    Completion::Interrupt { vector: vector + number }
                }
            };
            let each = QueueOptions { depth: shape.depth, completion, ..options.each };
            let port = &ports[usize::from(home(number))];
            queues.push(controller.queue_on(port, each).await?);
        }
        let choosers = Chooser::for_cores(options.policy, cores, shape);
        if !options.policy.is_shared() {
            let spread =
                |chooser| Rc::new(Spread { queues: queues.clone(), chooser, locks: Vec::new() });
            return Ok(choosers.map(spread).collect());
        }
        let lock = |queue: u16| {
            let rng = Rng::for_part(options.seed, &alloc::format!("lock of queue {queue}"));
            let policy = match options.order {
                SpinOrder::Fair => LockPolicy::Fair,
                SpinOrder::Unfair | SpinOrder::Unshared => LockPolicy::Unfair(rng),
            };
            Shared::new(policy, options.transfer)
        };
        let locks: Vec<_> = (0..shape.queues).map(lock).collect();
        let spread = |(core, chooser): (u16, Chooser)| {
            let (port, issuer) = (&ports[usize::from(core)], Issuer::new(core));
            let shared = (0..).zip(&queues).zip(&locks);
            let queues = shared
                .map(|((number, queue), lock)| {
                    queue.shared_by(port, lock, &issuer, home(number) == core)
                })
                .collect();
            Rc::new(Spread { queues, chooser, locks: locks.clone() })
        };
        Ok((0..cores).zip(choosers).map(spread).collect())
    }

    /// Number of times that a core found a queue's lock taken, over all cores.
    pub fn lock_waits(&self) -> u64 {
        self.locks.iter().map(|lock| lock.waits()).sum()
    }

    fn next(&self) -> &Queue<P> {
        &self.queues[usize::from(self.chooser.choose())]
    }
}

impl<P: HostPort> BlockDevice for Spread<P> {
    crate::carried_out!(self => self.queues[0], geometry, buffer, deallocated);
    crate::carried_out!(self => self.next(), read, write, flush, deallocate, hint);
}
