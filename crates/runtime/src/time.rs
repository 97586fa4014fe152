//! Points in time and durations, in whole picoseconds.
//!
//! A Gen5 x4 link moves a byte in about 63 ps, so nanoseconds would round away what is modelled. A `u64` of
//! picoseconds lasts 213 days.

use core::fmt;
use core::ops::{Add, AddAssign, Div, Mul, Sub};

/// A point in time, in picoseconds since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

/// A duration in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Time {
    /// Start of the run.
    pub const ZERO: Time = Time(0);
    /// A time that is never reached.
    pub const NEVER: Time = Time(u64::MAX);

    /// The span from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Span {
    /// Zero picoseconds.
    pub const ZERO: Span = Span(0);

    /// A span of `n` picoseconds.
    pub const fn ps(n: u64) -> Span {
        Span(n)
    }

    /// A span of `n` nanoseconds.
    pub const fn ns(n: u64) -> Span {
        Span(n * 1_000)
    }

    /// A span of `n` microseconds.
    pub const fn us(n: u64) -> Span {
        Span(n * 1_000_000)
    }

    /// A span of `n` milliseconds.
    pub const fn ms(n: u64) -> Span {
        Span(n * 1_000_000_000)
    }

    /// A span of `n` seconds.
    pub const fn s(n: u64) -> Span {
        Span(n * 1_000_000_000_000)
    }

    /// Whole nanoseconds, rounded down.
    pub const fn as_ns(self) -> u64 {
        self.0 / 1_000
    }

    /// Microseconds, for printing only, never for a decision.
    pub fn as_us_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Seconds, for printing only, never for a decision.
    pub fn as_s_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// The difference, or zero if `other` is longer.
    pub const fn saturating_sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, span: Span) -> Time {
        Time(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Span> for Time {
    fn add_assign(&mut self, span: Span) {
        *self = *self + span;
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Span {
    fn add_assign(&mut self, other: Span) {
        *self = *self + other;
    }
}

impl Sub for Span {
    type Output = Span;
    /// # Panics
    /// If `other` is longer: a negative span is a bug in the caller.
    fn sub(self, other: Span) -> Span {
        Span(self.0.checked_sub(other.0).expect("a span is never negative"))
    }
}

impl Mul<u64> for Span {
    type Output = Span;
    fn mul(self, times: u64) -> Span {
        Span(self.0.saturating_mul(times))
    }
}

impl Div<u64> for Span {
    type Output = Span;
    fn div(self, parts: u64) -> Span {
        Span(self.0 / parts)
    }
}

/// Prints with the largest unit that keeps at least one whole digit, as in `2.432us`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            0..1_000 => return write!(f, "{}ps", self.0),
            1_000..1_000_000 => (1_000, "ns"),
            1_000_000..1_000_000_000 => (1_000_000, "us"),
            1_000_000_000..1_000_000_000_000 => (1_000_000_000, "ms"),
            _ => (1_000_000_000_000, "s"),
        };
        write!(f, "{}.{:03}{name}", self.0 / unit, self.0 % unit * 1_000 / unit)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Span(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::format;

    #[test]
    fn span_display_selects_unit() {
        assert_eq!(format!("{}", Span(999)), "999ps");
        assert_eq!(format!("{}", Span(2_432_000)), "2.432us");
        assert_eq!(format!("{}", Span::s(3)), "3.000s");
    }

    #[test]
    fn time_never_saturates_on_add() {
        assert_eq!(Time::NEVER + Span::s(1), Time::NEVER);
    }
}
