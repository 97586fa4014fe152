//! A queue pair whose commands somebody else forms, and whose completions somebody else takes:
//! hardware beside the driver.

use alloc::rc::Rc;

use bus::{Buffer, HostPort};
use wire::QueueId;
use wire::nvme::admin::{CreateCq, CreateSq, Priority};
use wire::nvme::registers;

use super::controller::{Controller, Core};
use super::health::State;
use crate::{InitError, quarantine};

/// A polled queue pair in memory of its own. The driver has created it and touches it no more: it
/// watches over none of its commands, and a reset of the controller ends it.
pub struct ExternalPair<P: HostPort> {
    core: Rc<Core<P>>,
    qid: QueueId,
    entries: u32,
    submission: Buffer,
    completion: Buffer,
    doorbells: (u32, u32),
}

impl<P: HostPort> Controller<P> {
    /// Creates a queue pair for somebody else, of so many entries each.
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
        // From here on the controller may know of the memory, whatever comes of this.
        let external_pair =
            ExternalPair { core: core.clone(), qid, entries, submission, completion, doorbells };
        core.admin.create_at(cq, cq_at, sq, sq_at).await?;
        Ok(external_pair)
    }
}

impl<P: HostPort> ExternalPair<P> {
    /// Its number.
    pub fn qid(&self) -> QueueId {
        self.qid
    }

    /// The entries of each queue.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The memory of the submission queue.
    pub fn submission(&self) -> &Buffer {
        &self.submission
    }

    /// The memory of the completion queue.
    pub fn completion(&self) -> &Buffer {
        &self.completion
    }

    /// The register of the tail.
    pub fn tail_doorbell(&self) -> u32 {
        self.doorbells.0
    }

    /// The register of the head.
    pub fn head_doorbell(&self) -> u32 {
        self.doorbells.1
    }
}

impl<P: HostPort> Drop for ExternalPair<P> {
    /// A controller that is not off may still write there: then nobody else ever gets the memory.
    fn drop(&mut self) {
        if self.core.health.state() != State::Closed {
            quarantine(&self.submission);
            quarantine(&self.completion);
        }
    }
}
