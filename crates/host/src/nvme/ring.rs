//! The two rings of a queue pair, in host memory (NVMe base 2.0, 3.3.1).

use core::cell::Cell;

use bus::Buffer;
use wire::BusAddr;
use wire::nvme::entry::{Cqe, Sqe};

const SQE_BYTES: usize = size_of::<Sqe>();
const CQE_BYTES: usize = size_of::<Cqe>();

/// Offset of a completion's last dword, whose bit 16 is the phase tag.
const CQE_FLAG_AT: usize = CQE_BYTES - 4;

/// Submission queue: the driver writes, the device reads.
pub(super) struct SubmissionRing {
    memory: Buffer,
    entries: u32,
    tail: Cell<u32>,
}

impl SubmissionRing {
    /// Creates an empty ring in `memory`, whose size must match exactly.
    pub fn new(memory: Buffer, entries: u32) -> SubmissionRing {
        assert!(memory.bytes() == SubmissionRing::bytes(entries) && entries >= 2);
        memory.zero();
        SubmissionRing { memory, entries, tail: Cell::new(0) }
    }

    /// Bytes of a ring of `entries` entries.
    pub const fn bytes(entries: u32) -> usize {
        entries as usize * SQE_BYTES
    }

    /// Empties the ring. The device must not be using it.
    pub fn clear(&self) {
        self.memory.zero();
        self.tail.set(0);
    }

    /// Stores an entry. There is room: a ring has one entry more than the queue has command slots. Also
    /// prefetches the cache line of the next entry, which the device has read: a store that misses would
    /// delay all later stores and the loads that wait for them.
    #[inline(always)]
    pub fn push(&self, sqe: Sqe) {
        let tail = self.tail.get();
        self.memory.write_words(tail as usize * SQE_BYTES, sqe.to_words());
        let next = if tail + 1 == self.entries { 0 } else { tail + 1 };
        self.tail.set(next);
        let at = BusAddr(self.at().0 + u64::from(next) * SQE_BYTES as u64);
        self.memory.memory().prefetch_line(at);
    }

    /// Value of the tail doorbell.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.tail.get()
    }

    #[inline]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    #[inline]
    pub fn at(&self) -> BusAddr {
        self.memory.at()
    }

    /// Memory of the ring, for quarantine.
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }
}

/// Completion queue: the device writes, the driver reads.
pub(super) struct CompletionRing {
    memory: Buffer,
    entries: u32,
    head: Cell<u32>,
    /// Phase tag of new entries in this pass.
    phase: Cell<bool>,
}

impl CompletionRing {
    /// Creates an empty ring in `memory`, whose size must match exactly.
    pub fn new(memory: Buffer, entries: u32) -> CompletionRing {
        assert!(memory.bytes() == CompletionRing::bytes(entries) && entries >= 2);
        memory.zero();
        CompletionRing { memory, entries, head: Cell::new(0), phase: Cell::new(true) }
    }

    /// Bytes of a ring of `entries` entries.
    pub const fn bytes(entries: u32) -> usize {
        entries as usize * CQE_BYTES
    }

    /// Empties the ring. The device must not be using it.
    pub fn clear(&self) {
        self.memory.zero();
        self.head.set(0);
        self.phase.set(true);
    }

    /// Returns true if the next entry has arrived. Acquire: writes of the device before its phase tag,
    /// including the command's data, are visible after this.
    #[inline]
    pub fn has_next(&self) -> bool {
        let flag = self.memory.load_u32(self.head.get() as usize * CQE_BYTES + CQE_FLAG_AT);
        (flag >> 16 & 1 != 0) == self.phase.get()
    }

    /// Copies the next entry out, if it has arrived. It is copied once, so that the validated bytes are the
    /// bytes used.
    #[inline]
    pub fn take(&self) -> Option<Cqe> {
        let (head, phase) = (self.head.get(), self.phase.get());
        // The phase tag is bit 16 of the last dword, in memory byte order.
        let is_new = |last: u64| (u64::from_le(last) >> 48 & 1 != 0) == phase;
        let words = self.memory.read_words_if(head as usize * CQE_BYTES, is_new)?;
        if head + 1 == self.entries {
            self.head.set(0);
            self.phase.set(!phase);
        } else {
            self.head.set(head + 1);
        }
        Some(Cqe::from_words(words))
    }

    /// Value of the head doorbell.
    #[inline]
    pub fn head(&self) -> u32 {
        self.head.get()
    }

    #[inline]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    #[inline]
    pub fn at(&self) -> BusAddr {
        self.memory.at()
    }

    /// Address and length in bytes of the next entry.
    pub fn next_at(&self) -> (BusAddr, u32) {
        let offset = u64::from(self.head.get()) * CQE_BYTES as u64;
        (BusAddr(self.memory.at().0 + offset), CQE_BYTES as u32)
    }

    /// Memory of the ring, for quarantine.
    pub fn memory(&self) -> &Buffer {
        &self.memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bus::{Arena, Memory};
    use wire::CommandId;
    use wire::nvme::status::Status;
    use zerocopy::IntoBytes;

    fn ring(entries: u32) -> CompletionRing {
        let arena = Arena::new(Memory::private(8192, BusAddr(0x10_0000)));
        CompletionRing::new(arena.buffer(CompletionRing::bytes(entries)).unwrap(), entries)
    }

    fn put(ring: &CompletionRing, index: usize, cid: u16, phase: bool) {
        let cqe = Cqe::new(CommandId(cid), Status::SUCCESS).with_phase(phase);
        ring.memory.copy_in(index * CQE_BYTES, cqe.as_bytes());
    }

    #[test]
    fn cq_phase_tag_inverts_each_pass() {
        let ring = ring(3);
        for pass in 0..5_u16 {
            for index in 0..3 {
                assert!(ring.take().is_none(), "pass {pass} entry {index}");
                put(&ring, index, 10 * pass + index as u16, pass % 2 == 0);
                assert_eq!(ring.take().unwrap().id(), CommandId(10 * pass + index as u16));
            }
            assert_eq!(ring.head(), 0);
        }
    }

    #[test]
    fn cleared_cq_restarts_with_phase_one() {
        let ring = ring(2);
        for index in 0..2 {
            put(&ring, index, 1, true);
            ring.take().unwrap();
        }
        put(&ring, 0, 2, false);
        ring.clear();
        assert!(ring.take().is_none(), "an entry from before");
        put(&ring, 0, 3, true);
        assert_eq!(ring.take().unwrap().id(), CommandId(3));
    }

    #[test]
    fn sq_tail_wraps() {
        let arena = Arena::new(Memory::private(8192, BusAddr(0x10_0000)));
        let ring = SubmissionRing::new(arena.buffer(SubmissionRing::bytes(3)).unwrap(), 3);
        let tails: alloc::vec::Vec<u32> = (0..4)
            .map(|_| {
                ring.push(Sqe::default());
                ring.tail()
            })
            .collect();
        assert_eq!(tails, [1, 2, 0, 1]);
    }
}
