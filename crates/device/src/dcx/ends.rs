//! The last eight bytes of each granule, in data that come in runs.

/// Finds the last eight bytes of each granule in the runs of an access.
pub(super) struct Ends {
    grain: u32,
    /// Offset of the next ones.
    next: u32,
    /// Those of them that an earlier run had.
    word: [u8; 8],
}

impl Ends {
    /// Those of granules of `grain` bytes, at least eight.
    pub fn of(grain: u32) -> Ends {
        Ends { grain, next: grain - 8, word: [0; 8] }
    }

    /// Passes those that end in this run, which begins at `offset`. Runs come in order.
    #[inline]
    pub fn run(&mut self, offset: u32, run: &[u8], tell: &mut (impl FnMut(u64) + ?Sized)) {
        let end = offset + run.len() as u32;
        while self.next < end {
            let within = self.next.checked_sub(offset).and_then(|at| run.get(at as usize..));
            if let Some(word) = within.and_then(|bytes| bytes.first_chunk()) {
                tell(u64::from_le_bytes(*word));
            } else {
                for byte in self.next.max(offset)..(self.next + 8).min(end) {
                    self.word[(byte - self.next) as usize] = run[(byte - offset) as usize];
                }
                if end < self.next + 8 {
                    return;
                }
                tell(u64::from_le_bytes(std::mem::take(&mut self.word)));
            }
            self.next += self.grain;
        }
    }

    /// After the last run, of an access of `bytes` bytes: what no run had is zero.
    pub fn rest(&mut self, bytes: u32, tell: &mut (impl FnMut(u64) + ?Sized)) {
        while self.next < bytes {
            tell(u64::from_le_bytes(std::mem::take(&mut self.word)));
            self.next += self.grain;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three runs, cut at all places, with a hole before the last one or without.
    #[test]
    fn ends_of_runs_are_those_of_whole_data() {
        let data: Vec<u8> = (1..=96).collect();
        let end = |granule: &[u8]| u64::from_le_bytes(*granule.last_chunk().expect("eight"));
        for grain in [8, 24, 32, 96] {
            for first in 0..=96 {
                for (second, hole) in (first..=96).flat_map(|second| [(second, 0), (second, 5)]) {
                    let mut whole = data.clone();
                    let last = (second + hole).min(96);
                    whole[second..last].fill(0);
                    let (mut ends, mut told) = (Ends::of(grain), Vec::new());
                    for (from, to) in [(0, first), (first, second), (last, 96)] {
                        ends.run(from as u32, &data[from..to], &mut |end| told.push(end));
                    }
                    ends.rest(96, &mut |end| told.push(end));
                    let granules = whole.chunks(grain as usize);
                    assert_eq!(
                        told,
                        granules.map(end).collect::<Vec<_>>(),
                        "{grain} {first} {last}"
                    );
                }
            }
        }
    }
}
