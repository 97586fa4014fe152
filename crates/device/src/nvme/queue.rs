//! Submission and completion queues, as the controller keeps them. Pure: no bus, no time.

use wire::nvme::admin::Priority;
use wire::nvme::entry::Sqe;
use wire::nvme::registers::{cq_head_doorbell, sq_tail_doorbell};
use wire::{BusAddr, QueueId};

use super::shadow::Shadow;

/// Whether so many bytes from here on have addresses at all.
pub(super) fn ends_in_address_space(at: BusAddr, bytes: u32) -> bool {
    at.offset(u64::from(bytes) - 1).is_some()
}

/// So many entries further on in a ring, at most once round. Without a division, as each takes as long as all
/// that is done with what it gives.
#[inline]
pub(super) fn onward(from: u32, entries: u32, size: u32) -> u32 {
    let to = from + entries;
    if to >= size { to - size } else { to }
}

/// How many entries lie between two places of a ring.
#[inline]
fn steps(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to - from } else { to + size - from }
}

#[derive(Debug)]
pub(super) struct Sq {
    pub base: BusAddr,
    pub size: u32,
    pub cqid: QueueId,
    /// Its class.
    pub priority: Priority,
    /// The register that tells its tail.
    pub tail_doorbell: u32,
    /// The next entry to fetch.
    pub head: u32,
    /// Entries before this one have been fetched: what the host is told.
    pub fetched: u32,
    /// A fetch is under way. One at a time, so that commands begin in order.
    pub fetching: bool,
    /// It is being deleted: nothing of it is fetched any more.
    pub deleting: bool,
    /// When its turn comes, in entries: it has taken part in its class's round robin up to here.
    pub turn: u64,
    /// A doorbell value of no sense, remembered so that it is reported once.
    pub bad_tail: Option<u32>,
    /// The first of a pair of fused commands, whose second comes with the next burst.
    pub first: Option<Box<Sqe>>,
    /// What the host says of the tail in its own memory.
    pub shadow: Shadow,
}

#[derive(Debug)]
pub(super) struct Cq {
    pub base: BusAddr,
    pub size: u32,
    /// The vector to signal, if it is to be signalled.
    pub vector: Option<u16>,
    tail: u32,
    phase: bool,
    /// The register that tells its head.
    pub head_doorbell: u32,
    /// What the host last said, as far as it made sense.
    head: u32,
    pub bad_head: Option<u32>,
    /// A completion waits for a place in it.
    pub is_waited_for: bool,
    /// What the host says of the head in its own memory.
    pub shadow: Shadow,
}

/// What a fetcher is to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Burst {
    pub qid: QueueId,
    pub at: BusAddr,
    pub entries: u32,
}

impl Sq {
    pub fn new(qid: QueueId, base: BusAddr, size: u32, cqid: QueueId, priority: Priority) -> Sq {
        Sq {
            base,
            size,
            cqid,
            priority,
            tail_doorbell: sq_tail_doorbell(qid, 0),
            head: 0,
            fetched: 0,
            fetching: false,
            deleting: false,
            turn: 0,
            bad_tail: None,
            first: None,
            shadow: Shadow::default(),
        }
    }

    /// Entries that wait, for a tail that lies inside the queue.
    pub fn waiting(&self, tail: u32) -> u32 {
        steps(self.head, tail, self.size)
    }

    /// Takes the next entries to fetch: at most `most`, and not past the queue's end.
    pub fn take(&mut self, qid: QueueId, tail: u32, most: u32) -> Burst {
        let entries = self.waiting(tail).min(most).min(self.size - self.head);
        let at = BusAddr(self.base.0 + u64::from(self.head) * 64);
        self.head = onward(self.head, entries, self.size);
        self.fetching = true;
        Burst { qid, at, entries }
    }
}

impl Cq {
    pub fn new(qid: QueueId, base: BusAddr, size: u32, vector: Option<u16>) -> Cq {
        let head_doorbell = cq_head_doorbell(qid, 0);
        Cq {
            base,
            size,
            vector,
            tail: 0,
            phase: true,
            head_doorbell,
            head: 0,
            bad_head: None,
            is_waited_for: false,
            shadow: Shadow::default(),
        }
    }

    /// What the host last said that made sense.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// The host says that it has consumed up to here. False if that makes no sense.
    pub fn consumed(&mut self, head: u32) -> bool {
        let sense = head < self.size
            && steps(self.head, head, self.size) <= steps(self.head, self.tail, self.size);
        if sense {
            self.head = head;
        }
        sense
    }

    /// The place and the phase of the next entry, unless the queue is full.
    pub fn reserve(&mut self) -> Option<(BusAddr, bool)> {
        let next = onward(self.tail, 1, self.size);
        if next == self.head {
            return None;
        }
        let place = (BusAddr(self.base.0 + u64::from(self.tail) * 16), self.phase);
        self.tail = next;
        if next == 0 {
            self.phase = !self.phase;
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_full_queue_gives_no_place_until_the_host_has_consumed() {
        let mut cq = Cq::new(QueueId(1), BusAddr(0x1000), 3, None);
        assert_eq!(cq.reserve(), Some((BusAddr(0x1000), true)));
        assert_eq!(cq.reserve(), Some((BusAddr(0x1010), true)));
        assert_eq!(cq.reserve(), None);
        assert!(cq.consumed(1));
        assert_eq!(cq.reserve(), Some((BusAddr(0x1020), true)));
        assert!(cq.consumed(2));
        assert_eq!(cq.reserve(), Some((BusAddr(0x1000), false)), "the phase turns with the lap");
    }

    #[test]
    fn a_head_past_the_tail_or_the_queue_makes_no_sense() {
        let mut cq = Cq::new(QueueId(1), BusAddr(0), 4, None);
        cq.reserve();
        assert!(!cq.consumed(2));
        assert!(!cq.consumed(4));
        assert!(!cq.consumed(u32::MAX));
        assert!(cq.consumed(1));
    }

    proptest! {
        /// Against a counter that never wraps.
        #[test]
        fn queues_wrap_as_counters_do(
            size in 2_u32..40,
            steps in prop::collection::vec((0_u32..40, 1_u32..8), 1..60),
        ) {
            let mut sq = Sq::new(QueueId(1), BusAddr(0), size, QueueId(1), Priority::Medium);
            let (mut submitted, mut taken) = (0_u64, 0_u64);
            for (more, most) in steps {
                let room = u64::from(size) - 1 - (submitted - taken);
                submitted += u64::from(more).min(room);
                let tail = (submitted % u64::from(size)) as u32;
                prop_assert_eq!(u64::from(sq.waiting(tail)), submitted - taken);
                let burst = sq.take(QueueId(1), tail, most);
                prop_assert_eq!(burst.at.0, taken % u64::from(size) * 64);
                prop_assert!(burst.entries <= most);
                taken += u64::from(burst.entries);
                prop_assert!(taken <= submitted);
            }
        }

        #[test]
        fn a_completion_queue_never_overwrites_what_was_not_consumed(
            size in 2_u32..20,
            steps in prop::collection::vec((0_u32..20, 0_u32..20), 1..60),
        ) {
            let mut cq = Cq::new(QueueId(1), BusAddr(0), size, None);
            let (mut posted, mut consumed) = (0_u64, 0_u64);
            for (post, consume) in steps {
                for _ in 0..post {
                    let place = cq.reserve();
                    prop_assert_eq!(place.is_some(), posted - consumed < u64::from(size) - 1);
                    if let Some((at, phase)) = place {
                        prop_assert_eq!(at.0, posted % u64::from(size) * 16);
                        prop_assert_eq!(phase, posted / u64::from(size) % 2 == 0);
                        posted += 1;
                    }
                }
                consumed += u64::from(consume).min(posted - consumed);
                prop_assert!(cq.consumed((consumed % u64::from(size)) as u32));
            }
        }
    }
}
