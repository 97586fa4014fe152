//! Overhead of a packet: header, digest and framing.

use super::Generation;

/// A data link layer packet (an acknowledgement, a credit update) with its framing: two bytes and
/// six from Gen3 on (SDP token), one, six and one before (SDP, END). PCIe base 4.0, 3.5 and 4.2.
pub const DLLP_BYTES: u32 = 8;

/// Header of a completion: always three dwords (PCIe base 4.0, 2.2.9).
pub const COMPLETION_HEADER_BYTES: u32 = 12;

/// Header of a memory request: three dwords below 4 GiB, else four (PCIe base 4.0, 2.2.4.1).
pub const fn memory_header_bytes(addr: u64) -> u32 {
    if addr >> 32 == 0 { 12 } else { 16 }
}

/// Format of transaction layer packets on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlpFormat {
    /// Link generation, which determines the framing.
    pub generation: Generation,
    /// Packets carry an end-to-end CRC of four bytes.
    pub ecrc: bool,
}

impl TlpFormat {
    /// Bytes on the wire in addition to the payload, for a packet with a header of `header_bytes`.
    pub const fn overhead_bytes(self, header_bytes: u32) -> u32 {
        let framing = match self.generation {
            // STP 1, sequence number 2; LCRC 4, END 1 (PCIe base 4.0, 3.6 and 4.2.1.2).
            Generation::Gen1 | Generation::Gen2 => 1 + 2 + 4 + 1,
            // STP token with the sequence number in it 4; LCRC 4 (PCIe base 4.0, 4.2.2.3).
            Generation::Gen3 | Generation::Gen4 | Generation::Gen5 => 4 + 4,
        };
        let ecrc = if self.ecrc { 4 } else { 0 };
        framing + header_bytes + ecrc
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tlp_overhead_by_generation() {
        let format = |generation, ecrc| TlpFormat { generation, ecrc };
        let (low, high) = (memory_header_bytes(0xffff_ffff), memory_header_bytes(1 << 32));
        assert_eq!((low, high), (12, 16));
        assert_eq!(format(Generation::Gen2, false).overhead_bytes(low), 20);
        assert_eq!(format(Generation::Gen2, false).overhead_bytes(high), 24);
        assert_eq!(format(Generation::Gen2, true).overhead_bytes(low), 24);
        assert_eq!(format(Generation::Gen5, true).overhead_bytes(high), 28);
        assert_eq!(format(Generation::Gen4, false).overhead_bytes(COMPLETION_HEADER_BYTES), 20);
    }
}
