//! Lent queue pairs: external hardware submits the commands and processes the completions.

use alloc::rc::Rc;

use bus::{Buffer, HostPort};
use wire::QueueId;
use wire::nvme::admin::{CreateCq, CreateSq, Priority};
use wire::nvme::registers;

use super::controller::Controller;
use super::health::State;
use super::state::Core;
use crate::{InitError, quarantine};

/// A polled queue pair in its own memory. The driver has created it and does not use it: its commands are not
/// supervised, and a reset of the controller ends it.
pub struct ExternalPair<P: HostPort> {
    core: Rc<Core<P>>,
    qid: QueueId,
    entries: u32,
    submission: Buffer,
    completion: Buffer,
    doorbells: (u32, u32),
}

impl<P: HostPort> Controller<P> {
    /// Creates a queue pair of `entries` entries per queue for external hardware.
    ///
    /// # Errors
    /// The controller has no queues of this length, or none left.
    pub async fn lend(&self, entries: u32) -> Result<ExternalPair<P>, InitError> {
        let core = self.core();
        core.running().await?;
        core.identity.must_be_plain()?;
        let (port, cap) = (core.admin.pair.port(), core.admin.bar.cap());
        if entries < 2 || entries > cap.queue_entries_max() {
            return Err(InitError::Unsupported {
                what: "CAP.MQES",
                found: u64::from(cap.queue_entries_max()),
                expected: "at least the entries of the queue pair that is lent",
            });
        }
        let asked = u32::from(core.next_queue.get());
        let granted = core.identity.queues;
        if asked > granted {
            return Err(InitError::TooFewQueues { asked, granted });
        }
        let qid = core.next_queue_id();
        let submission = port.arena().buffer(entries as usize * 64)?;
        let completion = port.arena().buffer(entries as usize * 16)?;
        let memory = completion.memory();
        memory.zero(completion.at(), completion.bytes()).expect("a buffer of this memory");
        let cq = CreateCq { qid, size: entries, vector: 0, irq_enabled: false, contiguous: true };
        let priority = Priority::Medium;
        let sq = CreateSq { qid, size: entries, cqid: qid, priority, contiguous: true };
        let doorbells = (
            registers::sq_tail_doorbell(qid, cap.dstrd()),
            registers::cq_head_doorbell(qid, cap.dstrd()),
        );
        let (cq_at, sq_at) = (completion.at(), submission.at());
        // From here on the controller may hold the addresses, whatever the result.
        let external_pair =
            ExternalPair { core: core.clone(), qid, entries, submission, completion, doorbells };
        core.admin.create_at(cq, cq_at, sq, sq_at).await?;
        Ok(external_pair)
    }
}

impl<P: HostPort> ExternalPair<P> {
    /// Queue identifier.
    pub fn qid(&self) -> QueueId {
        self.qid
    }

    /// Entries of each queue.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Memory of the submission queue.
    pub fn submission(&self) -> &Buffer {
        &self.submission
    }

    /// Memory of the completion queue.
    pub fn completion(&self) -> &Buffer {
        &self.completion
    }

    /// Register offset of the tail doorbell.
    pub fn tail_doorbell(&self) -> u32 {
        self.doorbells.0
    }

    /// Register offset of the head doorbell.
    pub fn head_doorbell(&self) -> u32 {
        self.doorbells.1
    }
}

impl<P: HostPort> Drop for ExternalPair<P> {
    /// Quarantines the memory unless the controller is disabled: it may still write there.
    fn drop(&mut self) {
        if self.core.health.state() != State::Closed {
            quarantine(&self.submission);
            quarantine(&self.completion);
        }
    }
}
