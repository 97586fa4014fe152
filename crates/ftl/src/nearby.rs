//! Changes to a table that no CPU cache holds, gathered by place: one by one they would be spread over it.

use alloc::vec::Vec;

/// Gathers items into runs of nearby places.
pub(crate) struct Nearby<T> {
    shift: u32,
    runs: Vec<Vec<T>>,
}

/// Number of runs, and of items gathered in each.
const RUNS: u64 = 256;
const RUN: usize = 2048;

impl<T> Nearby<T> {
    /// For places below `places`.
    pub fn new(places: u64) -> Nearby<T> {
        let shift = (u64::BITS - places.leading_zeros()).saturating_sub(RUNS.ilog2());
        // Empty: a small drive, mounted after every power cut of a test, needs hardly any of them.
        Nearby { shift, runs: (0..=(places >> shift)).map(|_| Vec::new()).collect() }
    }

    /// Adds an item of a place. When there are enough nearby, `each` gets them, in the order of arrival.
    ///
    /// # Panics
    /// If the place is out of range.
    #[inline]
    pub fn put(&mut self, place: u32, item: T, each: impl FnMut(T)) {
        let run = &mut self.runs[(place >> self.shift) as usize];
        run.push(item);
        if run.len() == RUN {
            run.drain(..).for_each(each);
        }
    }

    /// Gives `each` the rest.
    pub fn finish(self, each: impl FnMut(T)) {
        self.runs.into_iter().flatten().for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_item_arrives_once() {
        for places in [1, 255, 256, 257, 100_000] {
            let (mut nearby, mut seen) = (Nearby::new(places), BTreeSet::new());
            let step = (places as u32 / 2) | 1;
            let mut place = 0;
            let mut each = |item: u32| assert!(seen.insert(item), "{item} twice");
            for item in 0..places as u32 {
                nearby.put(place, item, &mut each);
                place = ((u64::from(place) + u64::from(step)) % places) as u32;
            }
            nearby.finish(each);
            assert_eq!(seen.len() as u64, places);
        }
    }
}
