//! What flash software has done, in numbers.

/// Units written and blocks worn, since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Units that the host has written, merged ones too.
    pub host_units: u64,
    /// Of those, how many were merged in the write buffer.
    pub merged_units: u64,
    /// Units programmed for the host.
    pub programmed_units: u64,
    /// Units that the collector has copied.
    pub copied_units: u64,
    /// Units of the map and of notes of trims.
    pub meta_units: u64,
    /// Of those, how many are parts of the map.
    pub map_units: u64,
    /// Parts of the map that were read, where it is cached.
    pub map_reads: u64,
    /// Units of rows that had to be written before they were full.
    pub padding_units: u64,
    /// Rows programmed.
    pub rows: u64,
    /// Superblocks collected.
    pub collected: u64,
    /// Of those, how many before their turn: their data were in danger, or wear was to be evened out.
    pub refreshed: u64,
    /// How many were chosen to even out wear.
    pub levelled: u64,
    /// Of those collected, how many somebody outside named.
    pub named: u64,
    /// Superblocks erased.
    pub erased: u64,
    /// Blocks that have failed and are not used any more.
    pub retired: u64,
    /// Units whose data were lost.
    pub lost_units: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// How often the host was made to wait for space.
    pub refusals: u64,
}

/// What flash software has done, and how the flash is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Since the mount.
    pub counters: Counters,
    /// Units that hold something for the host.
    pub mapped_units: u64,
    /// Units of all good blocks.
    pub good_units: u64,
    /// Units that can be written before anything need be collected.
    pub left_units: u64,
    /// Erases of the least worn superblock.
    pub erases_least: u32,
    /// Erases of the most worn superblock.
    pub erases_most: u32,
    /// The sum of all superblocks' erases.
    pub erases: u64,
    /// Bytes that the host sees.
    pub capacity_bytes: u64,
    /// Bytes of memory that the map takes, and what is known of each unit on flash.
    pub memory_bytes: u64,
}

impl Stats {
    /// Of two drives together.
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
        }
    }
}

impl Counters {
    fn and(self, other: Counters) -> Counters {
        Counters {
            host_units: self.host_units + other.host_units,
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
            refusals: self.refusals + other.refusals,
        }
    }

    /// Units programmed for each that the host has written, in thousandths. None: it has written none.
    pub fn write_amplification_per_mille(&self) -> Option<u64> {
        let all = self.programmed_units + self.copied_units + self.meta_units + self.padding_units;
        (all * 1000).checked_div(self.host_units)
    }

    /// As [`write_amplification_per_mille`](Counters::write_amplification_per_mille), of the map alone.
    pub fn map_amplification_per_mille(&self) -> Option<u64> {
        (self.map_units * 1000).checked_div(self.host_units)
    }

    /// What the collector has programmed, in thousandths of all that was programmed.
    pub fn collector_share_per_mille(&self) -> Option<u64> {
        let all = self.programmed_units + self.copied_units + self.meta_units + self.padding_units;
        (self.copied_units * 1000).checked_div(all)
    }
}

/// Superblocks by how many of their units are valid: how many have each share, in tenths rounded down;
/// those that are full stand last.
pub type Histogram = [u32; 11];
