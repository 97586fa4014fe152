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
    fn and(self, other: Counters) -> Counters {
        Counters {
            host_units: self.host_units + other.host_units,
            hinted_units: self.hinted_units + other.hinted_units,
            merged_units: self.merged_units + other.merged_units,
            programmed_units: self.programmed_units + other.programmed_units,
            copied_units: self.copied_units + other.copied_units,
            meta_units: self.meta_units + other.meta_units,
            map_units: self.map_units + other.map_units,
            map_reads: self.map_reads + other.map_reads,
            padding_units: self.padding_units + other.padding_units,
            rows: self.rows + other.rows,
            collected: self.collected + other.collected,
            refreshed: self.refreshed + other.refreshed,
            levelled: self.levelled + other.levelled,
            named: self.named + other.named,
            erased: self.erased + other.erased,
            retired: self.retired + other.retired,
            lost_units: self.lost_units + other.lost_units,
            checkpoints: self.checkpoints + other.checkpoints,
            read_units: self.read_units + other.read_units,
            blank_units: self.blank_units + other.blank_units,
            refusals: self.refusals + other.refusals,
        }
    }

    /// Write amplification: units programmed per unit written by the host, in thousandths. `None` if the host
    /// has written nothing.
    pub fn write_amplification_per_mille(&self) -> Option<u64> {
        let all = self.programmed_units + self.copied_units + self.meta_units + self.padding_units;
        (all * 1000).checked_div(self.host_units)
    }

    /// Share of the map in [`write_amplification_per_mille`](Counters::write_amplification_per_mille).
    pub fn map_amplification_per_mille(&self) -> Option<u64> {
        (self.map_units * 1000).checked_div(self.host_units)
    }

    /// The collector's share of all units programmed, in thousandths.
    pub fn collector_share_per_mille(&self) -> Option<u64> {
        let all = self.programmed_units + self.copied_units + self.meta_units + self.padding_units;
        (self.copied_units * 1000).checked_div(all)
    }
}

/// Number of superblocks by share of valid units, in tenths rounded down; the last entry counts full ones.
pub type Histogram = [u32; 11];
