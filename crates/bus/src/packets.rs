//! Packets of a link by kind: counts at the link, so that they cost an addition for each transfer.

use core::cell::Cell;

use wire::pcie::{DLLP_BYTES, Traffic};

/// Kind of a transaction layer packet (TLP).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketKind {
    /// Posted memory write: data, queue entries, doorbells, interrupt messages.
    MemoryWrite,
    /// Request of a memory read.
    ReadRequest,
    /// Completion with data: the answer to a read request.
    Completion,
}

/// Packets that one direction of a link carried. All counts are 0 on a coherent link, which has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    /// Posted memory writes.
    pub memory_writes: Traffic,
    /// Requests of memory reads.
    pub read_requests: Traffic,
    /// Completions with data.
    pub completions: Traffic,
    /// Data link layer packets (DLLPs): acknowledgements and flow control for the other direction.
    pub dllps: u64,
}

impl Packets {
    /// Number of TLPs.
    pub fn tlps(&self) -> u64 {
        self.memory_writes.tlps + self.read_requests.tlps + self.completions.tlps
    }

    /// Each kind with its name: the TLPs, then the DLLPs.
    pub fn kinds(&self) -> [(&'static str, Traffic); 4] {
        let wire_bytes = self.dllps * u64::from(DLLP_BYTES);
        [
            ("memory write", self.memory_writes),
            ("memory read request", self.read_requests),
            ("completion with data", self.completions),
            ("DLLP", Traffic { tlps: self.dllps, payload_bytes: 0, wire_bytes }),
        ]
    }

    /// The sum of both, as of the links of several devices.
    #[must_use]
    pub fn and(&self, other: &Packets) -> Packets {
        self.zip(other, |one, two| one + two)
    }

    /// The packets after `before`, a count of the same link.
    #[must_use]
    pub fn since(&self, before: &Packets) -> Packets {
        self.zip(before, |now, then| now - then)
    }

    fn zip(&self, other: &Packets, of: fn(u64, u64) -> u64) -> Packets {
        Packets {
            memory_writes: each(self.memory_writes, other.memory_writes, of),
            read_requests: each(self.read_requests, other.read_requests, of),
            completions: each(self.completions, other.completions, of),
            dllps: of(self.dllps, other.dllps),
        }
    }
}

fn each(a: Traffic, b: Traffic, of: fn(u64, u64) -> u64) -> Traffic {
    Traffic {
        tlps: of(a.tlps, b.tlps),
        payload_bytes: of(a.payload_bytes, b.payload_bytes),
        wire_bytes: of(a.wire_bytes, b.wire_bytes),
    }
}

/// The counters of one direction.
#[derive(Default)]
pub(crate) struct Counters {
    kinds: [Cell<Traffic>; 3],
    dllps: Cell<u64>,
}

impl Counters {
    #[inline]
    pub fn add(&self, kind: PacketKind, size: Traffic) {
        let count = &self.kinds[kind as usize];
        count.set(each(count.get(), size, |one, two| one + two));
    }

    #[inline]
    pub fn add_dllps(&self, dllps: u64) {
        self.dllps.set(self.dllps.get() + dllps);
    }

    pub fn packets(&self) -> Packets {
        let of = |kind: PacketKind| self.kinds[kind as usize].get();
        Packets {
            memory_writes: of(PacketKind::MemoryWrite),
            read_requests: of(PacketKind::ReadRequest),
            completions: of(PacketKind::Completion),
            dllps: self.dllps.get(),
        }
    }
}
