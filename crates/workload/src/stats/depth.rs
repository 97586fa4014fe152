//! How many operations were in flight, and how many were handed over at once, in fio's levels.

/// fio's levels of depth: from this number to below the next.
pub const DEPTH_LEVELS: [&str; 7] = ["1", "2", "4", "8", "16", "32", ">=64"];
/// fio's levels of batches: above the number before, up to and including this one. The last holds
/// what is above 64; fio writes it so.
pub const BATCH_LEVELS: [&str; 7] = ["0", "4", "8", "16", "32", "64", ">=64"];

/// Counts by level of depth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    counts: [u64; DEPTH_LEVELS.len()],
}

impl Depths {
    /// An operation was submitted with so many in flight, itself among them.
    pub fn note(&mut self, depth: u32) {
        let level = depth.max(1).ilog2() as usize;
        self.counts[level.min(DEPTH_LEVELS.len() - 1)] += 1;
    }

    /// Takes in what another has counted.
    pub fn merge(&mut self, other: &Depths) {
        add(&mut self.counts, &other.counts);
    }

    /// Each level with its share in percent, for printing.
    pub fn percent(&self) -> impl Iterator<Item = (&'static str, f64)> {
        percent(DEPTH_LEVELS, self.counts)
    }
}

/// Counts of submissions or completions by how many operations each brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batches {
    counts: [u64; BATCH_LEVELS.len()],
}

impl Batches {
    /// So many were handed over, or taken, at once.
    pub fn note(&mut self, operations: u32) {
        let level = match operations {
            0 => 0,
            1..=4 => 1,
            more => (more - 1).ilog2() as usize,
        };
        self.counts[level.min(BATCH_LEVELS.len() - 1)] += 1;
    }

    /// Takes in what another has counted.
    pub fn merge(&mut self, other: &Batches) {
        add(&mut self.counts, &other.counts);
    }

    /// Each level with its share in percent, for printing.
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
    fn a_depth_belongs_to_the_level_at_or_below_it() {
        let mut depths = Depths::default();
        for depth in [1, 2, 3, 4, 31, 63, 64, 70_000] {
            depths.note(depth);
        }
        let shares: Vec<f64> = depths.percent().map(|(_, share)| share).collect();
        assert_eq!(shares, [12.5, 25.0, 12.5, 0.0, 12.5, 12.5, 25.0]);
    }

    #[test]
    fn a_batch_belongs_to_the_level_at_or_above_it() {
        let mut batches = Batches::default();
        for operations in [0, 1, 4, 5, 8, 9, 64, 65] {
            batches.note(operations);
        }
        let shares: Vec<f64> = batches.percent().map(|(_, share)| share).collect();
        assert_eq!(shares, [12.5, 25.0, 25.0, 12.5, 0.0, 12.5, 12.5]);
    }
}
