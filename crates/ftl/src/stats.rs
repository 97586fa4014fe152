//! Statistics of the flash translation layer.

/// Counts since the mount, in mapping units unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Units written by the host, including merged ones.
    pub host_units: u64,
    /// Of them, units placed by a hint.
    pub hinted_units: u64,
    /// Host writes merged in the write buffer.
    pub merged_units: u64,
    /// Units programmed for the host.
    pub programmed_units: u64,
    /// Units copied by the collector.
    pub copied_units: u64,
    /// Units of the map and of trim records.
    pub meta_units: u64,
    /// Units of map parts; included in `meta_units`.
    pub map_units: u64,
    /// Map parts read, if the map is cached.
    pub map_reads: u64,
    /// Padding units in superpages that had to be written before they were full.
    pub padding_units: u64,
    /// Superpages programmed.
    pub rows: u64,
    /// Superblocks collected.
    pub collected: u64,
    /// Superblocks collected early, because their data were in danger or for wear levelling; included in
    /// `collected`.
    pub refreshed: u64,
    /// Superblocks collected for wear levelling.
    pub levelled: u64,
    /// Superblocks collected by host-directed GC; included in `collected`.
    pub named: u64,
    /// Superblocks erased.
    pub erased: u64,
    /// Blocks that failed and were retired.
    pub retired: u64,
    /// Units whose data were lost.
    pub lost_units: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Units that the host read; one that moved meanwhile counts again.
    pub read_units: u64,
    /// Of them, units that were never written, or are trimmed: they take no time of flash.
    pub blank_units: u64,
    /// Number of times that the host had to wait for space.
    pub refusals: u64,
}

/// Statistics, and the state of the flash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Counts since the mount.
    pub counters: Counters,
    /// Mapped units.
    pub mapped_units: u64,
    /// Units of all good blocks.
    pub good_units: u64,
    /// Units that can be written before any collection is needed.
    pub left_units: u64,
    /// Erase count of the least worn superblock.
    pub erases_least: u32,
    /// Erase count of the most worn superblock.
    pub erases_most: u32,
    /// Sum of the erase counts of all superblocks.
    pub erases: u64,
    /// Capacity for the host, in bytes.
    pub capacity_bytes: u64,
    /// Memory of the map and of the per-unit state, in bytes.
    pub memory_bytes: u64,
    /// Of it, memory of the map.
    pub map_bytes: u64,
    /// Memory of the write buffer's tables, in bytes, which is not in `memory_bytes`; its contents are where
    /// the pages are.
    pub buffer_bytes: u64,
}

impl Stats {
    /// Combines the statistics of two drives.
    pub fn and(self, other: Stats) -> Stats {
        Stats {
            counters: self.counters.and(other.counters),
            mapped_units: self.mapped_units + other.mapped_units,
            good_units: self.good_units + other.good_units,
            left_units: self.left_units + other.left_units,
            erases_least: self.erases_least.min(other.erases_least),
            erases_most: self.erases_most.max(other.erases_most),
            erases: self.erases + other.erases,
            capacity_bytes: self.capacity_bytes + other.capacity_bytes,
            memory_bytes: self.memory_bytes + other.memory_bytes,
            map_bytes: self.map_bytes + other.map_bytes,
            buffer_bytes: self.buffer_bytes + other.buffer_bytes,
        }
    }
}

impl Counters {
    /// The sum of both, as of several drives.
    #[must_use]
    pub fn and(self, other: Counters) -> Counters {
        self.zip(&other, |one, two| one + two)
    }

    /// Counts after `before`. A mount between the two, as after a power cut, begins at zero.
    #[must_use]
    pub fn since(&self, before: &Counters) -> Counters {
        self.zip(before, u64::saturating_sub)
    }

    fn zip(&self, other: &Counters, of: fn(u64, u64) -> u64) -> Counters {
        Counters {
            host_units: of(self.host_units, other.host_units),
            hinted_units: of(self.hinted_units, other.hinted_units),
            merged_units: of(self.merged_units, other.merged_units),
            programmed_units: of(self.programmed_units, other.programmed_units),
            copied_units: of(self.copied_units, other.copied_units),
            meta_units: of(self.meta_units, other.meta_units),
            map_units: of(self.map_units, other.map_units),
            map_reads: of(self.map_reads, other.map_reads),
            padding_units: of(self.padding_units, other.padding_units),
            rows: of(self.rows, other.rows),
            collected: of(self.collected, other.collected),
            refreshed: of(self.refreshed, other.refreshed),
            levelled: of(self.levelled, other.levelled),
            named: of(self.named, other.named),
            erased: of(self.erased, other.erased),
            retired: of(self.retired, other.retired),
            lost_units: of(self.lost_units, other.lost_units),
            checkpoints: of(self.checkpoints, other.checkpoints),
            read_units: of(self.read_units, other.read_units),
            blank_units: of(self.blank_units, other.blank_units),
            refusals: of(self.refusals, other.refusals),
        }
    }

    /// Units programmed, for whatever reason.
    pub fn all_programmed_units(&self) -> u64 {
        self.programmed_units + self.copied_units + self.meta_units + self.padding_units
    }

    /// Units of the host that have left the write buffer: programmed, or overwritten there.
    fn units_done(&self) -> u64 {
        self.programmed_units + self.merged_units
    }

    /// Write amplification: units programmed per unit written by the host, in thousandths. Units that were
    /// still in the write buffer at the end count on neither side, nor do those that were there at the
    /// begin, whatever the window of the counts. `None` if the host has written nothing that left it.
    pub fn write_amplification_per_mille(&self) -> Option<u64> {
        (self.all_programmed_units() * 1000).checked_div(self.units_done())
    }

    /// Share of the map in [`write_amplification_per_mille`](Counters::write_amplification_per_mille).
    pub fn map_amplification_per_mille(&self) -> Option<u64> {
        (self.map_units * 1000).checked_div(self.units_done())
    }

    /// The collector's share of all units programmed, in thousandths.
    pub fn collector_share_per_mille(&self) -> Option<u64> {
        (self.copied_units * 1000).checked_div(self.all_programmed_units())
    }
}

/// Number of superblocks by share of valid units, in tenths rounded down; the last entry counts full ones.
pub type Histogram = [u32; 11];
