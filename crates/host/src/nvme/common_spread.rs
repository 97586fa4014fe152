//! Queues of a policy for executors that share them by real locks. [`Spread`](super::Spread) does the same on
//! one executor, with modelled locks.

use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::future::Future;
use core::sync::atomic::{AtomicU32, Ordering};

use bus::HostPort;

use super::common::{CommonMemory, CommonPair, CommonQueue};
use super::policy::Shape;
use super::spin::SpinOrder;
use super::{Controller, SpreadOptions};
use crate::{BlockDevice, InitError};

/// Queues of a policy, which any core can open.
#[derive(Clone)]
pub struct CommonSpread {
    pairs: Vec<Arc<CommonPair>>,
    /// Turn of the round robin over shared queues, which all cores advance.
    turn: Arc<AtomicU32>,
    cores: u16,
    options: SpreadOptions,
}

/// A core's queues: [`CommonSpread::open`].
pub struct CoreSpread<P> {
    queues: Vec<Rc<CommonQueue<P>>>,
    turn: Turn,
}

enum Turn {
    Own(Cell<u32>),
    Common(Arc<AtomicU32>),
}

impl CommonSpread {
    /// Creates the queues on the controller. Queues that only one core uses have no lock. The memory has to
    /// be kept until they are [deleted](Controller::delete_common).
    ///
    /// # Errors
    /// As [`Controller::common`].
    pub async fn create<P: HostPort>(
        controller: &Controller<P>,
        cores: u16,
        options: &SpreadOptions,
    ) -> Result<(CommonSpread, Vec<CommonMemory>), InitError> {
        let shape = options.shape(cores);
        let each = super::QueueOptions { depth: shape.depth, ..options.each };
        let order = if options.policy.is_shared() { options.order } else { SpinOrder::Unshared };
        let (mut pairs, mut memory) = (Vec::new(), Vec::new());
        for _ in 0..shape.queues {
            let (pair, its_memory) = controller.common(each, order).await?;
            pairs.push(pair);
            memory.push(its_memory);
        }
        let turn = Arc::default();
        Ok((CommonSpread { pairs, turn, cores, options: options.clone() }, memory))
    }

    /// Queues of core number `core`, on the executor of `port`, which takes in the completions of those whose
    /// home it is. Each core has to open them: with fewer queues than cores, a policy without locks is
    /// rejected.
    ///
    /// # Errors
    /// Two cores would use a queue without a lock.
    pub fn open<P: HostPort>(&self, port: &P, core: u16) -> Result<Rc<CoreSpread<P>>, InitError> {
        let (policy, shape) = (self.options.policy, self.shape());
        if !policy.is_shared() && shape.queues < self.cores {
            return Err(InitError::Unsupported {
                what: "the number of queues",
                found: shape.queues.into(),
                expected: "one for each core: cores would share queues without a lock",
            });
        }
        let (first, count) = policy.queues_of(core, self.cores, shape);
        let queue = |number: u16| {
            let queue = CommonQueue::new(&self.pairs[usize::from(number)], port);
            if policy.home(number, self.cores, shape, self.options.home) == core {
                port.rt().spawn(queue.clone().take_completions());
            }
            queue
        };
        let queues = (first..first + count).map(queue).collect();
        let turn = match policy.is_shared() {
            true => Turn::Common(self.turn.clone()),
            false => Turn::Own(Cell::new(0)),
        };
        Ok(Rc::new(CoreSpread { queues, turn }))
    }

    /// Number and depth of the queues.
    pub fn shape(&self) -> Shape {
        self.options.shape(self.cores)
    }

    /// Ends the tasks that take in completions.
    pub fn stop(&self) {
        self.pairs.iter().for_each(|pair| pair.stop());
    }

    /// Number of times that a core found a queue's lock taken.
    pub fn lock_waits(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.lock_waits()).sum()
    }

    /// Number of invalid completions, which were ignored.
    pub fn violations(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.violations()).sum()
    }
}

impl<P: HostPort> CoreSpread<P> {
    fn next(&self) -> &Rc<CommonQueue<P>> {
        let turn = match &self.turn {
            Turn::Own(turn) => turn.replace(turn.get().wrapping_add(1)),
            Turn::Common(turn) => turn.fetch_add(1, Ordering::Relaxed),
        };
        &self.queues[turn as usize % self.queues.len()]
    }
}

impl<P: HostPort> BlockDevice for CoreSpread<P> {
    crate::carried_out!(self => self.queues[0], geometry, buffer, deallocated);
    crate::carried_out!(self => self.next(), read, write, flush, deallocate);
}
