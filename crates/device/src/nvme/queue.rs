//! State of submission and completion queues. Pure: no bus, no time.

use std::cell::{Cell, RefCell};

use wire::nvme::admin::Priority;
use wire::nvme::entry::Sqe;
use wire::nvme::registers::{cq_head_doorbell, sq_tail_doorbell};
use wire::{BusAddr, QueueId};

use super::shadow::{Shadow, Shadows};

/// Bytes of a submission queue entry.
pub(super) const ENTRY: usize = size_of::<Sqe>();

/// The queues of a controller, by identifier.
pub(super) struct Queues {
    pub sqs: RefCell<Vec<Option<Sq>>>,
    pub cqs: RefCell<Vec<Option<Cq>>>,
    /// All submission queue identifiers are smaller.
    pub sqs_end: Cell<u16>,
    /// Number of queues that hold the first command of a fused pair whose second is not yet fetched.
    pub firsts: Cell<u32>,
    pub shadows: Shadows,
    pub given: RefCell<Given>,
}

impl Queues {
    /// Room for the admin queues and for this many pairs of I/O queues.
    pub fn new(io_queues: u16) -> Queues {
        let all = usize::from(io_queues) + 1;
        Queues {
            sqs: RefCell::new((0..all).map(|_| None).collect()),
            cqs: RefCell::new((0..all).map(|_| None).collect()),
            sqs_end: Cell::new(1),
            firsts: Cell::new(0),
            shadows: Shadows::default(),
            given: RefCell::default(),
        }
    }
}

/// Queues that the first thread has given to others.
#[derive(Default)]
pub(super) struct Given {
    pub cqs: Vec<QueueId>,
    /// Submission queues, each with its completion queue.
    pub sqs: Vec<(QueueId, QueueId)>,
}

impl Given {
    pub fn has_cq(&self, qid: QueueId) -> bool {
        self.cqs.contains(&qid)
    }

    /// The completion queue of a submission queue.
    pub fn cq_of(&self, qid: QueueId) -> Option<QueueId> {
        self.sqs.iter().find(|(sq, _)| *sq == qid).map(|(_, cq)| *cq)
    }
}

/// Returns true if `bytes` bytes from `at` on do not exceed the address space.
pub(super) fn ends_in_address_space(at: BusAddr, bytes: u32) -> bool {
    at.offset(u64::from(bytes) - 1).is_some()
}

/// Advances a ring index by `entries`, at most one lap. Avoids a division, which takes as long as all other
/// work on the result.
#[inline]
pub(super) fn onward(from: u32, entries: u32, size: u32) -> u32 {
    let to = from + entries;
    if to >= size { to - size } else { to }
}

/// Number of entries from one ring index to another.
#[inline]
fn steps(from: u32, to: u32, size: u32) -> u32 {
    if to >= from { to - from } else { to + size - from }
}

#[derive(Debug)]
pub(super) struct Sq {
    pub base: BusAddr,
    pub size: u32,
    pub cqid: QueueId,
    /// Arbitration class.
    pub priority: Priority,
    /// Register offset of the tail doorbell.
    pub tail_doorbell: u32,
    /// Index of the next entry to fetch.
    pub head: u32,
    /// Entries before this index have been fetched; reported to the host as SQ Head Pointer.
    pub fetched: u32,
    /// A fetch is in flight. One at a time, so that commands begin in order.
    pub fetching: bool,
    /// Being deleted: no further fetches.
    pub deleting: bool,
    /// Position in its class's round robin, in entries.
    pub turn: u64,
    /// Last invalid doorbell value, so that it is reported only once.
    pub bad_tail: Option<u32>,
    /// First command of a fused pair whose second comes with the next burst.
    pub first: Option<Box<Sqe>>,
    /// Shadow tail doorbell in host memory.
    pub shadow: Shadow,
}

#[derive(Debug)]
pub(super) struct Cq {
    pub base: BusAddr,
    pub size: u32,
    /// Interrupt vector. `None`: no interrupts.
    pub vector: Option<u16>,
    tail: u32,
    phase: bool,
    /// Register offset of the head doorbell.
    pub head_doorbell: u32,
    /// Last valid head written by the host.
    head: u32,
    pub bad_head: Option<u32>,
    /// Posted entries that the host has not consumed, up to `read_to`: of a device with an interrupt pin.
    unread: u32,
    read_to: u32,
    /// A completion waits for space.
    pub is_waited_for: bool,
    /// Shadow head doorbell in host memory.
    pub shadow: Shadow,
}

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

    /// Number of waiting entries, given a valid tail.
    pub fn waiting(&self, tail: u32) -> u32 {
        steps(self.head, tail, self.size)
    }

    /// Address of the next entry to fetch.
    #[inline]
    pub fn next_at(&self) -> BusAddr {
        BusAddr(self.base.0 + u64::from(self.head) * 64)
    }

    /// Takes the next entries to fetch: at most `most`, without wrapping.
    pub fn take(&mut self, qid: QueueId, tail: u32, most: u32) -> Burst {
        let entries = self.waiting(tail).min(most).min(self.size - self.head);
        let at = self.next_at();
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
            unread: 0,
            read_to: 0,
            is_waited_for: false,
            shadow: Shadow::default(),
        }
    }

    /// Last valid head written by the host.
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Sets the head. Returns false if it is invalid.
    pub fn consumed(&mut self, head: u32) -> bool {
        let sense = head < self.size
            && steps(self.head, head, self.size) <= steps(self.head, self.tail, self.size);
        if sense {
            self.head = head;
        }
        sense
    }

    /// Counts an entry that was posted.
    pub fn posted(&mut self) {
        self.unread += 1;
    }

    /// Number of entries that are unread with this value in the head doorbell. An invalid value reads none.
    pub fn unread(&mut self, head: u32) -> u32 {
        let read = steps(self.read_to, head, self.size);
        if head < self.size && read <= self.unread {
            (self.read_to, self.unread) = (head, self.unread - read);
        }
        self.unread
    }

    /// Reserves the next entry: address and phase tag. `None` if the queue is full.
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
    fn cq_full_until_head_advances() {
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
    fn cq_rejects_head_past_tail_or_size() {
        let mut cq = Cq::new(QueueId(1), BusAddr(0), 4, None);
        cq.reserve();
        assert!(!cq.consumed(2));
        assert!(!cq.consumed(4));
        assert!(!cq.consumed(u32::MAX));
        assert!(cq.consumed(1));
    }

    #[test]
    fn cq_counts_unread_entries_over_wrap_and_ignores_invalid_heads() {
        let mut cq = Cq::new(QueueId(1), BusAddr(0), 3, None);
        let unread: Vec<_> = [0, 1, 2, 1, 0, 3]
            .iter()
            .map(|head| {
                cq.posted();
                let before = cq.unread(cq.read_to);
                (before, cq.unread(*head))
            })
            .collect();
        let expected = [(1, 1), (2, 1), (2, 1), (2, 0), (1, 1), (2, 2)];
        assert_eq!(unread, expected);
    }

    proptest! {
        /// Compares with counters that never wrap.
        #[test]
        fn sq_wrap_matches_unbounded_counters(
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
        fn cq_never_overwrites_unconsumed_entries(
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
