//! Command identifiers: the low bits name a slot, the bits above count the uses of the slot.

/// Bits of a command identifier that name its slot, at least. Protocols without a count of uses have zeros
/// above.
pub const SLOT_BITS: u32 = 10;

/// Bits of a command identifier that name its slot, in a queue of `depth` commands: [`SLOT_BITS`], or more if
/// `depth` needs more.
pub const fn slot_bits(depth: u32) -> u32 {
    let needed = depth.saturating_sub(1).checked_ilog2();
    match needed {
        Some(highest) if highest + 1 > SLOT_BITS => highest + 1,
        _ => SLOT_BITS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_bits_grow_with_queues_deeper_than_1024() {
        for (depth, bits) in [(0, 10), (1, 10), (1024, 10), (1025, 11), (2048, 11), (4096, 12)] {
            assert_eq!(slot_bits(depth), bits, "{depth}");
        }
    }
}
