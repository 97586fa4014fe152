//! Time series of operations, bytes and latencies: windows of half a second, fio's default averaging window,
//! or of any other length.

use runtime::Span;

use crate::limits::WINDOWS_MAX;

/// Default length of a window.
const WIDTH: Span = Span::ms(500);

/// Counts by window, from the measurement's beginning.
#[derive(Clone, Debug)]
pub struct Windows {
    width: Span,
    counts: Vec<Counts>,
    /// Cached index and beginning of the latest window: most operations fall in the same one, and the
    /// division would be the most expensive step.
    last: (usize, Span),
}

/// Operations that ended in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub ops: u64,
    /// Bytes transferred.
    pub bytes: u64,
    pub took: Span,
    pub longest: Span,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.took += other.took;
        self.longest = self.longest.max(other.longest);
    }
}

impl Default for Windows {
    fn default() -> Windows {
        Windows::of(WIDTH)
    }
}

/// Summary of a series of windows; rates are per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Series {
    pub samples: u64,
    pub min: u64,
    pub max: u64,
    pub mean: f64,
    /// The standard deviation of the sample.
    pub stddev: f64,
}

impl Windows {
    /// Windows of this length.
    ///
    /// # Panics
    /// If `width` is zero.
    pub fn of(width: Span) -> Windows {
        assert!(width > Span::ZERO, "a window has a length");
        Windows { width, counts: Vec::new(), last: (0, Span::ZERO) }
    }

    /// Counts an operation that took `took` and completed `at` after the beginning.
    #[inline]
    pub fn count(&mut self, at: Span, bytes: u32, took: Span) {
        let window = self.window_at(at);
        if window >= WINDOWS_MAX {
            return;
        }
        if window >= self.counts.len() {
            self.counts.resize(window + 1, Counts::default());
        }
        self.counts[window].add(&Counts { ops: 1, bytes: bytes.into(), took, longest: took });
    }

    #[inline]
    fn window_at(&mut self, at: Span) -> usize {
        let (window, from) = self.last;
        if at.0.wrapping_sub(from.0) < self.width.0 {
            return window;
        }
        let window = at.0 / self.width.0;
        self.last = (window as usize, Span(window * self.width.0));
        window as usize
    }

    pub fn width(&self) -> Span {
        self.width
    }

    /// All windows up to the last with a completion.
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// Adds the counts of `other`, taken over the same time.
    pub fn merge(&mut self, other: &Windows) {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), Counts::default());
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            mine.add(theirs);
        }
    }

    /// Operations per second, over the complete windows within `over`.
    pub fn iops(&self, over: Span) -> Series {
        self.series(over, |counts| counts.ops)
    }

    /// Bytes per second, over the complete windows within `over`.
    pub fn bandwidth(&self, over: Span) -> Series {
        self.series(over, |counts| counts.bytes)
    }

    fn series(&self, over: Span, of: impl Fn(&Counts) -> u64) -> Series {
        // Windows after the last operation were idle, and idle windows count.
        let whole = ((over.0 / self.width.0) as usize).min(WINDOWS_MAX);
        if whole == 0 {
            return Series::default();
        }
        let stats = self.counts.iter().take(whole).map(&of);
        let rate =
            |n: u64| (u128::from(n) * u128::from(Span::s(1).0) / u128::from(self.width.0)) as u64;
        let rates = || stats.clone().chain(std::iter::repeat(0)).take(whole).map(rate);
        let samples = whole as u64;
        let mean = rates().map(u128::from).sum::<u128>() as f64 / whole as f64;
        let spread: f64 = rates().map(|rate| (rate as f64 - mean).powi(2)).sum();
        Series {
            samples,
            min: rates().min().unwrap_or(0),
            max: rates().max().unwrap_or(0),
            mean,
            stddev: if whole < 2 { 0.0 } else { (spread / (whole - 1) as f64).sqrt() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_counts_idle_windows_and_skips_partial_last() {
        let mut windows = Windows::default();
        for at in [0, 10, 499, 500, 1_600] {
            windows.count(Span::ms(at), 4096, Span::us(1));
        }
        let iops = windows.iops(Span::ms(1_700));
        assert_eq!((iops.samples, iops.min, iops.max), (3, 0, 6));
        assert!((iops.mean - 8.0 / 3.0).abs() < 1e-12);
        assert_eq!(windows.bandwidth(Span::ms(600)).max, 3 * 2 * 4096);
        assert_eq!(windows.iops(Span::ms(499)), Series::default());
        assert_eq!(windows.iops(Span::s(3)).samples, 6);
    }

    #[test]
    fn series_rates_are_per_second_for_any_window_width() {
        let mut windows = Windows::of(Span::ms(10));
        for at in [0, 1, 2, 13] {
            windows.count(Span::ms(at), 512, Span::us(1));
        }
        let iops = windows.iops(Span::ms(20));
        assert_eq!((iops.samples, iops.min, iops.max), (2, 100, 300));
    }

    #[test]
    fn merged_windows_add_counts() {
        let (mut one, mut other) = (Windows::default(), Windows::default());
        one.count(Span::ms(1), 512, Span::us(1));
        other.count(Span::ms(2), 512, Span::us(3));
        other.count(Span::ms(501), 512, Span::us(2));
        one.merge(&other);
        assert_eq!((one.iops(Span::s(1)).max, one.iops(Span::s(1)).min), (4, 2));
        let first = Counts { ops: 2, bytes: 1024, took: Span::us(4), longest: Span::us(3) };
        assert_eq!(one.counts()[0], first);
    }
}
