//! Histograms of queue depth and of batch sizes, with fio's levels.

/// fio's levels of depth: from this number to below the next.
pub const DEPTH_LEVELS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
/// fio's levels of batches: above the preceding number, up to and including this one. The last is
/// for batches above 64, in spite of its label, which is fio's.
pub const BATCH_LEVELS: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

/// Counts by level of depth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    counts: [u64; DEPTH_LEVELS.len()],
}

impl Depths {
    /// Counts the submission of an operation with `depth` operations in flight, including itself.
    pub fn note(&mut self, depth: u32) {
        let level = depth.max(1).ilog2() as usize;
        self.counts[level.min(DEPTH_LEVELS.len() - 1)] += 1;
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Depths) {
        add(&mut self.counts, &other.counts);
    }

    /// Share of each level in percent, for printing.
    pub fn percent(&self) -> impl Iterator<Item = (&'static str, f64)> {
        percent(DEPTH_LEVELS, self.counts)
    }
}

/// Counts of submissions or completions by the number of operations in each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batches {
    counts: [u64; BATCH_LEVELS.len()],
}

impl Batches {
    /// Counts a batch of `operations` submitted or completed together.
    pub fn note(&mut self, operations: u32) {
        let level = match operations {
            0 => 0,
            1..=4 => 1,
            more => (more - 1).ilog2() as usize,
        };
        self.counts[level.min(BATCH_LEVELS.len() - 1)] += 1;
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Batches) {
        add(&mut self.counts, &other.counts);
    }

    /// Share of each level in percent, for printing.
    pub fn percent(&self) -> impl Iterator<Item = (&'static str, f64)> {
        percent(BATCH_LEVELS, self.counts)
    }
}

fn add(mine: &mut [u64; 7], theirs: &[u64; 7]) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine += theirs;
    }
}

fn percent(
    levels: [&'static str; 7],
    counts: [u64; 7],
) -> impl Iterator<Item = (&'static str, f64)> {
    let all = counts.iter().sum::<u64>().max(1) as f64;
    levels.into_iter().zip(counts).map(move |(level, n)| (level, n as f64 * 100.0 / all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_level_is_at_or_below_depth() {
        let mut depths = Depths::default();
        for depth in [1, 2, 3, 4, 31, 63, 64, 70_000] {
            depths.note(depth);
        }
        let shares: Vec<f64> = depths.percent().map(|(_, share)| share).collect();
        assert_eq!(shares, [12.5, 25.0, 12.5, 0.0, 12.5, 12.5, 25.0]);
    }

    #[test]
    fn batch_level_is_at_or_above_batch_size() {
        let mut batches = Batches::default();
        for operations in [0, 1, 4, 5, 8, 9, 64, 65] {
            batches.note(operations);
        }
        let shares: Vec<f64> = batches.percent().map(|(_, share)| share).collect();
        assert_eq!(shares, [12.5, 25.0, 25.0, 12.5, 0.0, 12.5, 12.5]);
    }
}
