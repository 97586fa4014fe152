//! Statistics of flash chips and FTL; use of power states.

pub use ::device::energy::StateUse;
use ::flash::chips::{self, Chips};
use ftl::Stats;
use runtime::Span;

use super::Device;

impl Device {
    /// Use of each power state so far; empty if the plan has none.
    pub fn power_use(&self) -> Vec<StateUse> {
        let used = self.faults.as_ref().map(|faults| faults.meter.power.until(self.rt.now()));
        used.unwrap_or_default()
    }

    pub fn power_state(&self) -> usize {
        self.faults.as_ref().map_or(0, |faults| faults.meter.power.present())
    }
}

/// Statistics of flash chips and FTL.
#[derive(Clone, Copy, Debug)]
pub struct FlashStats {
    /// The FTL, on the device or on the host; none: unknown.
    pub software: Option<Stats>,
    pub chips: chips::Counts,
    /// Memory of the simulated chips, bytes.
    pub memory_bytes: u64,
}

impl FlashStats {
    pub fn and(self, other: FlashStats) -> FlashStats {
        FlashStats {
            software: self.software.zip(other.software).map(|(one, two)| one.and(two)),
            chips: self.chips.and(other.chips),
            memory_bytes: self.memory_bytes + other.memory_bytes,
        }
    }

    pub(super) fn of(chips: &Chips, software: Option<Stats>) -> FlashStats {
        let memory_bytes = chips.with_nand(|nand| nand.allocated_bytes());
        FlashStats { software, chips: chips.counts(), memory_bytes }
    }

    /// The statistics as lines of text.
    pub fn lines(&self, elapsed: Span) -> Vec<String> {
        let chips = &self.chips;
        let mut lines = Vec::new();
        let Some(software) = &self.software else {
            lines.push(format!(
                "flash: pages sensed {} times, {} again; {} programmed, {} failures",
                chips.senses, chips.retries, chips.programs, chips.failures
            ));
            return lines;
        };
        let counters = &software.counters;
        if let Some(amplification) = counters.write_amplification_per_mille() {
            let collector = counters.collector_share_per_mille().unwrap_or(0);
            lines.push(format!(
                "flash: write amplification {}.{:03}: of {} units programmed {}.{} % by the collector",
                amplification / 1000,
                amplification % 1000,
                counters.programmed_units
                    + counters.copied_units
                    + counters.meta_units
                    + counters.padding_units,
                collector / 10,
                collector % 10,
            ));
        }
        if let (true, Some(map)) = (counters.map_reads > 0, counters.map_amplification_per_mille())
        {
            lines.push(format!(
                "flash: map share of it {}.{:03}: {} map segments written, {} read",
                map / 1000,
                map % 1000,
                counters.map_units,
                counters.map_reads,
            ));
        }
        lines.push(format!(
            "flash: {} of {} units hold data, {} can be written before anything is collected",
            software.mapped_units, software.good_units, software.left_units
        ));
        lines.push(format!(
            "flash: superblocks erased {} to {} times, {} erased and {} collected in {elapsed}",
            software.erases_least, software.erases_most, counters.erased, counters.collected
        ));
        lines.push(format!(
            "flash: pages sensed {} times, {} again; {} programmed, {} failures, {} blocks retired",
            chips.senses, chips.retries, chips.programs, chips.failures, counters.retired
        ));
        let bytes = self.memory_bytes + software.memory_bytes;
        let per_tb = u128::from(bytes) * 1_000_000 / u128::from(software.capacity_bytes);
        lines.push(format!("flash: simulated in {bytes} bytes of memory, {per_tb} MB for each TB"));
        lines
    }
}
