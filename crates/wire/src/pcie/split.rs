//! Splitting of a transfer into packets, and their totals.
//!
//! The totals ([`posted_write`], [`read_requests`], [`completions`]) do not walk the packets of whole 4 KiB
//! pages, as all such pages are split alike; [`Pieces`] and [`Completions`] give every packet.
//!
//! Addresses may run past the end of the address space: no end address is computed here.

use super::{COMPLETION_HEADER_BYTES, TlpFormat, memory_header_bytes};

/// Memory requests do not cross multiples of this, bytes (PCIe base 4.0, 2.2.7).
const BOUNDARY_BYTES: u64 = 4096;

/// Totals of some packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets.
    pub tlps: u64,
    /// Bytes of payload, as whole dwords.
    pub payload_bytes: u64,
    /// Bytes on the wire, including payload.
    pub wire_bytes: u64,
}

/// Part of a transfer in one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset from the start of the transfer, bytes.
    pub offset: u64,
    /// Length in bytes; at most 4096.
    pub bytes: u32,
}

impl Piece {
    /// Payload of this piece of a transfer at `addr`, in bytes: whole dwords, in which byte enables select
    /// the bytes (PCIe base 4.0, 2.2.5).
    pub const fn payload_bytes(self, addr: u64) -> u32 {
        dwords_of(addr.wrapping_add(self.offset), self.bytes as u64) as u32
    }
}

/// Bytes of the whole dwords that `bytes` bytes at `addr` touch.
const fn dwords_of(addr: u64, bytes: u64) -> u64 {
    if bytes == 0 { 0 } else { (addr % 4 + bytes).next_multiple_of(4) }
}

/// Requests of a write or a read: none crosses a multiple of 4 KiB, and each is as long as `max_bytes` of
/// whole dwords allow.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    addr: u64,
    left: u64,
    max_bytes: u64,
    offset: u64,
}

impl Pieces {
    /// Splits `bytes` bytes at `addr`; `max_bytes` is the maximum payload size for writes, the maximum read
    /// request size for reads.
    ///
    /// # Panics
    /// If `max_bytes` is not a power of two from 128 to 4096.
    pub const fn new(addr: u64, bytes: u64, max_bytes: u32) -> Pieces {
        assert_max(max_bytes);
        Pieces { addr, left: bytes, max_bytes: max_bytes as u64, offset: 0 }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.left == 0 {
            return None;
        }
        let at = self.addr.wrapping_add(self.offset);
        let to_boundary = BOUNDARY_BYTES - at % BOUNDARY_BYTES;
        let bytes = self.left.min(to_boundary).min(self.max_bytes - at % 4);
        let piece = Piece { offset: self.offset, bytes: bytes as u32 };
        self.offset += bytes;
        self.left -= bytes;
        Some(piece)
    }
}

const fn assert_max(max_bytes: u32) {
    assert!(
        max_bytes.is_power_of_two() && max_bytes >= 128 && max_bytes <= 4096,
        "payload and request sizes are powers of two from 128 to 4096"
    );
}

/// Number of [`Pieces`].
#[inline]
fn count_pieces(addr: u64, bytes: u64, max_bytes: u32) -> u64 {
    assert_max(max_bytes);
    let (max, log2) = (u64::from(max_bytes), max_bytes.trailing_zeros());
    let pieces = |at, part| (dwords_of(at, part) + (max - 1)) >> log2;
    if bytes <= BOUNDARY_BYTES - addr % BOUNDARY_BYTES {
        return pieces(addr, bytes);
    }
    by_page(addr, bytes, BOUNDARY_BYTES >> log2, pieces)
}

/// Sum of `part` over a transfer's pages of 4 KiB; each whole page adds `whole`.
fn by_page(addr: u64, bytes: u64, whole: u64, part: impl Fn(u64, u64) -> u64) -> u64 {
    let first = bytes.min(BOUNDARY_BYTES - addr % BOUNDARY_BYTES);
    let (pages, last) = ((bytes - first) / BOUNDARY_BYTES, (bytes - first) % BOUNDARY_BYTES);
    part(addr, first) + pages * whole + part(0, last)
}

/// Memory writes of `bytes` bytes to `addr`, with payloads of at most `mps` bytes.
///
/// # Panics
/// If `mps` is not a power of two from 128 to 4096.
#[inline]
pub fn posted_write(format: TlpFormat, addr: u64, bytes: u64, mps: u32) -> Traffic {
    let mut traffic = requests(format, addr, bytes, mps);
    traffic.payload_bytes = dwords_of(addr, bytes);
    traffic.wire_bytes += traffic.payload_bytes;
    traffic
}

/// Requests to read `bytes` bytes at `addr`, each for at most `mrrs` bytes.
///
/// # Panics
/// If `mrrs` is not a power of two from 128 to 4096.
pub fn read_requests(format: TlpFormat, addr: u64, bytes: u64, mrrs: u32) -> Traffic {
    requests(format, addr, bytes, mrrs)
}

/// Totals of [`Pieces`], without payload.
#[inline]
fn requests(format: TlpFormat, addr: u64, bytes: u64, max_bytes: u32) -> Traffic {
    // Above 4 GiB the header is longer; 4 GiB is a multiple of 4 KiB, so no packet crosses it.
    let below = bytes.min((1u64 << 32).saturating_sub(addr));
    if below == 0 || below == bytes {
        let tlps = count_pieces(addr, bytes, max_bytes);
        let header = u64::from(format.overhead_bytes(memory_header_bytes(addr)));
        return Traffic { tlps, payload_bytes: 0, wire_bytes: tlps * header };
    }
    let mut traffic = Traffic::default();
    for (at, part) in [(addr, below), (addr.wrapping_add(below), bytes - below)] {
        let tlps = count_pieces(at, part, max_bytes);
        traffic.tlps += tlps;
        traffic.wire_bytes += tlps * u64::from(format.overhead_bytes(memory_header_bytes(at)));
    }
    traffic
}

/// Rules that determine the completions of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRules {
    /// Maximum read request size: a power of two from 128 to 4096.
    pub mrrs: u32,
    /// Read completion boundary: 64 or 128. Data are split only at its multiples.
    pub rcb: u32,
    /// Maximum payload of a completion: a multiple of `rcb` of at most 4096 bytes. The maximum payload size
    /// is the upper limit; many root complexes send less.
    pub payload_max: u32,
}

impl ReadRules {
    const fn check(&self) {
        assert_max(self.mrrs);
        assert!(self.rcb == 64 || self.rcb == 128, "the read completion boundary is 64 or 128");
        assert!(
            self.payload_max > 0
                && self.payload_max <= 4096
                && self.payload_max.is_multiple_of(self.rcb),
            "a completion's payload is a multiple of the read completion boundary, at most 4096"
        );
    }
}

/// Completions of one request (PCIe base 4.0, 2.3.1.1): the first ends at a multiple of the boundary, so
/// that all others except the last begin and end at one.
#[derive(Clone, Copy, Debug)]
pub struct Completions {
    addr: u64,
    left: u64,
    rules: ReadRules,
    offset: u64,
}

impl Completions {
    /// Splits the completion data of the request for `bytes` bytes at `addr`.
    ///
    /// # Panics
    /// If the rules violate their limits.
    pub const fn new(addr: u64, bytes: u32, rules: ReadRules) -> Completions {
        rules.check();
        Completions { addr, left: bytes as u64, rules, offset: 0 }
    }
}

impl Iterator for Completions {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.left == 0 {
            return None;
        }
        let at = self.addr.wrapping_add(self.offset);
        let max = u64::from(self.rules.payload_max);
        let bytes = if dwords_of(at, self.left) <= max {
            self.left
        } else {
            max - at % u64::from(self.rules.rcb)
        };
        let piece = Piece { offset: self.offset, bytes: bytes as u32 };
        self.offset += bytes;
        self.left -= bytes;
        Some(piece)
    }
}

/// Number of [`Completions`] of the requests for `bytes` bytes at `addr` within one page.
fn count_completions(addr: u64, bytes: u64, rules: ReadRules) -> u64 {
    let (max, rcb) = (u64::from(rules.payload_max), u64::from(rules.rcb));
    Pieces::new(addr, bytes, rules.mrrs)
        .map(|request| {
            let at = addr.wrapping_add(request.offset);
            let request_bytes = u64::from(request.bytes);
            if dwords_of(at, request_bytes) <= max {
                return 1;
            }
            // The first completion is shorter by the offset of the request from a boundary.
            (at % rcb + request_bytes).div_ceil(max)
        })
        .sum()
}

/// Totals of the completions of [`read_requests`] for `bytes` bytes at `addr`.
///
/// # Panics
/// If the rules violate their limits.
pub fn completions(format: TlpFormat, addr: u64, bytes: u64, rules: ReadRules) -> Traffic {
    rules.check();
    let whole = count_completions(0, BOUNDARY_BYTES, rules);
    let tlps = by_page(addr, bytes, whole, |at, part| count_completions(at, part, rules));
    let payload_bytes = dwords_of(addr, bytes);
    let overhead = u64::from(format.overhead_bytes(COMPLETION_HEADER_BYTES));
    Traffic { tlps, payload_bytes, wire_bytes: payload_bytes + tlps * overhead }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::pcie::{Generation, byte_time};
    use std::vec::Vec;

    const GEN2: TlpFormat = TlpFormat { generation: Generation::Gen2, ecrc: false };
    const HIGH: u64 = 1 << 32;

    /// Vučinić et al., "DC Express: Shortest Latency Protocol for Reading Phase Change Memory over
    /// PCI Express" (FAST 2014): 4 KiB in payloads of 128 B with 24 B of overhead each.
    #[test]
    fn write_4k_traffic_matches_dc_express_paper() {
        let traffic = posted_write(GEN2, HIGH, 4096, 128);
        assert_eq!(GEN2.overhead_bytes(memory_header_bytes(HIGH)), 24);
        assert_eq!((traffic.tlps, traffic.wire_bytes), (32, 32 * 152));
        assert_eq!(traffic.wire_bytes, 4864);
        let (num, den) = byte_time(Generation::Gen2, 4);
        assert_eq!(traffic.wire_bytes * num / den, 2_432_000, "2.432 us");
    }

    #[test]
    fn writes_split_at_4k_and_mps() {
        let cut = |addr, bytes, mps| {
            Pieces::new(addr, bytes, mps).map(|p| (p.offset, p.bytes)).collect::<Vec<_>>()
        };
        assert_eq!(cut(0x1f80, 256, 256), [(0, 128), (128, 128)]);
        assert_eq!(cut(0x1000, 300, 128), [(0, 128), (128, 128), (256, 44)]);
        assert_eq!(cut(0x1040, 256, 128), [(0, 128), (128, 128)], "from addr on, not aligned");
        assert_eq!(cut(0x1001, 128, 128), [(0, 127), (127, 1)], "whole dwords fill a payload");
        assert_eq!(cut(0x1001, 0, 128), []);
        assert_eq!(posted_write(GEN2, 0x1003, 2, 128).payload_bytes, 8);
    }

    #[test]
    fn tlp_header_grows_at_4_gib() {
        let traffic = posted_write(GEN2, HIGH - 4096, 8192, 256);
        assert_eq!(
            traffic,
            Traffic { tlps: 32, payload_bytes: 8192, wire_bytes: 8192 + 16 * 20 + 16 * 24 }
        );
    }

    #[test]
    fn completions_split_at_rcb() {
        let cut = |addr, bytes, rcb, payload_max| {
            Completions::new(addr, bytes, ReadRules { mrrs: 512, rcb, payload_max })
                .map(|p| p.bytes)
                .collect::<Vec<_>>()
        };
        assert_eq!(cut(0x1000, 512, 64, 128), [128, 128, 128, 128]);
        assert_eq!(cut(0x1004, 256, 64, 128), [124, 128, 4]);
        assert_eq!(cut(0x1044, 256, 64, 128), [124, 128, 4]);
        assert_eq!(cut(0x1044, 256, 128, 128), [60, 128, 68]);
        assert_eq!(cut(0x1030, 128, 64, 128), [128], "what one payload carries isn't cut");
        assert_eq!(cut(0x1030, 64, 64, 64), [64]);
        assert_eq!(cut(0x1031, 64, 64, 64), [15, 49]);
    }

    #[test]
    fn read_4k_is_8_requests_16_completions() {
        let rules = ReadRules { mrrs: 512, rcb: 64, payload_max: 256 };
        let requests = read_requests(GEN2, HIGH, 4096, rules.mrrs);
        assert_eq!(requests, Traffic { tlps: 8, payload_bytes: 0, wire_bytes: 8 * 24 });
        let answers = completions(GEN2, HIGH, 4096, rules);
        assert_eq!((answers.tlps, answers.wire_bytes), (16, 4096 + 16 * 20));
    }

    /// Totals computed packet by packet.
    fn walked(addr: u64, bytes: u64, mps: u32, rules: ReadRules) -> [Traffic; 3] {
        let [mut writes, mut requests, mut answers] = [Traffic::default(); 3];
        let add = |traffic: &mut Traffic, header: u32, payload: u32| {
            traffic.tlps += 1;
            traffic.payload_bytes += u64::from(payload);
            traffic.wire_bytes += u64::from(payload + GEN2.overhead_bytes(header));
        };
        for piece in Pieces::new(addr, bytes, mps) {
            let header = memory_header_bytes(addr + piece.offset);
            let payload = piece.payload_bytes(addr);
            assert!(payload <= mps, "{piece:?}");
            add(&mut writes, header, payload);
        }
        for request in Pieces::new(addr, bytes, rules.mrrs) {
            let at = addr + request.offset;
            assert_eq!(at / 4096, (at + u64::from(request.bytes) - 1) / 4096, "{request:?}");
            add(&mut requests, memory_header_bytes(at), 0);
            for piece in Completions::new(at, request.bytes, rules) {
                let payload = piece.payload_bytes(at);
                assert!(payload <= rules.payload_max, "{piece:?}");
                add(&mut answers, COMPLETION_HEADER_BYTES, payload);
            }
        }
        [writes, requests, answers]
    }

    #[test]
    fn traffic_totals_match_packet_walk() {
        for start in [0x1_0000, HIGH - 8192] {
            for offset in [0, 1, 3, 4, 60, 63, 64, 100, 127, 128, 2048, 4000, 4092, 4095] {
                for bytes in [0, 1, 4, 63, 64, 65, 128, 129, 512, 4095, 4096, 4097, 8192, 20_000] {
                    for (size, rcb, payload_max) in
                        [(128, 64, 64), (256, 64, 192), (512, 128, 256), (4096, 128, 4096)]
                    {
                        let addr = start + offset;
                        let rules = ReadRules { mrrs: size, rcb, payload_max };
                        let totals = [
                            posted_write(GEN2, addr, bytes, size),
                            read_requests(GEN2, addr, bytes, size),
                            completions(GEN2, addr, bytes, rules),
                        ];
                        assert_eq!(
                            totals,
                            walked(addr, bytes, size, rules),
                            "{bytes} at {addr:#x}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn traffic_at_end_of_address_space() {
        let rules = ReadRules { mrrs: 512, rcb: 64, payload_max: 256 };
        let addr = 0u64.wrapping_sub(4096);
        for bytes in [4096, 8192] {
            assert_eq!(posted_write(GEN2, addr, bytes, 128).tlps, bytes / 128);
            assert_eq!(completions(GEN2, addr, bytes, rules).tlps, bytes / 256);
            assert_eq!(Pieces::new(addr, bytes, 128).count() as u64, bytes / 128);
        }
    }
}
