//! Dataset Management (NVM command set 1.0, 3.2.3): command dword 11, and the context attributes of a range.

use bitfield_struct::bitfield;

/// Parameters of Dataset Management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Number of ranges: 1 to 256.
    pub ranges: u16,
    /// Of all ranges.
    pub attributes: Attributes,
}

/// Command dword 11 of Dataset Management.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Attributes {
    /// IDR: the ranges are read as one unit.
    pub read_as_unit: bool,
    /// IDW: the ranges are written as one unit.
    pub written_as_unit: bool,
    /// AD: deallocates the ranges.
    pub deallocate: bool,
    #[bits(29)]
    __: u32,
}

impl Attributes {
    /// The ranges' context attributes are hints, and nothing else happens.
    pub const HINTS: Attributes = Attributes::new();
    /// The ranges are deallocated.
    pub const DEALLOCATE: Attributes = Attributes::new().with_deallocate(true);
}

/// Context attributes of a range.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Context {
    /// AF: a [`Frequency`].
    #[bits(4)]
    pub frequency: Frequency,
    /// AL: a [`Latency`].
    #[bits(2)]
    pub latency: Latency,
    #[bits(2)]
    __: u8,
    /// SR: reads are sequential.
    pub sequential_reads: bool,
    /// SW: writes are sequential.
    pub sequential_writes: bool,
    /// WP: the range will be written soon.
    pub write_soon: bool,
    #[bits(13)]
    __: u16,
    /// Blocks in each command to the range; 0: not given.
    pub command_blocks: u8,
}

/// Expected frequency of accesses to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// Not given. Reserved values are read as this.
    Unspecified,
    /// Typical for the device.
    Typical,
    /// Infrequent writes and reads.
    Rare,
    /// Infrequent writes, frequent reads.
    Reads,
    /// Frequent writes, infrequent reads.
    Writes,
    /// Frequent writes and reads.
    Both,
    /// One read, as of a backup.
    OneRead,
    /// Reads that may turn out unneeded.
    SpeculativeReads,
    /// Overwritten in the near future.
    OverwrittenSoon,
}

impl Frequency {
    const ALL: [Frequency; 9] = [
        Frequency::Unspecified,
        Frequency::Typical,
        Frequency::Rare,
        Frequency::Reads,
        Frequency::Writes,
        Frequency::Both,
        Frequency::OneRead,
        Frequency::SpeculativeReads,
        Frequency::OverwrittenSoon,
    ];

    const fn from_bits(value: u8) -> Frequency {
        match value {
            0..9 => Frequency::ALL[value as usize],
            _ => Frequency::Unspecified,
        }
    }

    const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// Latency that accesses to a range need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Latency {
    /// Not given.
    Unspecified,
    /// A longer one is acceptable.
    Idle,
    /// Typical.
    Normal,
    /// As low as possible.
    Low,
}

impl Latency {
    const fn from_bits(value: u8) -> Latency {
        match value & 3 {
            0 => Latency::Unspecified,
            1 => Latency::Idle,
            2 => Latency::Normal,
            _ => Latency::Low,
        }
    }

    const fn into_bits(self) -> u8 {
        self as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions of the fields, by the figures of 3.2.3.
    #[test]
    fn context_and_dword_11_field_layout() {
        let context = Context::new()
            .with_frequency(Frequency::Both)
            .with_latency(Latency::Low)
            .with_sequential_reads(true)
            .with_write_soon(true)
            .with_command_blocks(0x21);
        assert_eq!(context.into_bits(), 0x2100_0535);
        assert_eq!(Context::new().with_sequential_writes(true).into_bits(), 0x200);
        assert_eq!(Attributes::DEALLOCATE.into_bits(), 4);
        let both = Attributes::new().with_read_as_unit(true).with_written_as_unit(true);
        assert_eq!(both.into_bits(), 3);
    }

    /// Every value is read, and the reserved ones say nothing.
    #[test]
    fn reserved_context_bits_are_ignored() {
        for value in 0..16 {
            let frequency = Context::from_bits(0x00ff_f8c0 | value).frequency();
            let known = Frequency::ALL.get(value as usize).copied();
            assert_eq!(frequency, known.unwrap_or(Frequency::Unspecified), "AF {value}");
        }
        let all = Context::from_bits(u32::MAX);
        assert_eq!((all.frequency(), all.latency()), (Frequency::Unspecified, Latency::Low));
    }
}
