//! Keys of a configuration, declared beside the code that they take effect in.
//!
//! A model has its numbers in a struct, and a [`Key`] for each of them. The reader of a configuration, its
//! report and the tests of ranges iterate over the keys: a new number is a field, a key and its effect, in
//! one file.
//!
//! ```
//! use runtime::{Key, Span};
//!
//! #[derive(Default)]
//! struct Timing {
//!     banks: u32,
//!     rest: Span,
//! }
//!
//! const KEYS: &[Key<Timing>] = &[
//!     Key::number("banks", 1..=1024, |t| t.banks.into(), |t, n| t.banks = n as u32),
//!     Key::or(0, Key::span("rest", Span::us(1), |t| t.rest.0, |t, n| t.rest = Span(n))),
//! ];
//!
//! let mut timing = Timing::default();
//! KEYS[0].set(&mut timing, 16);
//! assert_eq!((KEYS[0].get(&timing), KEYS[1].default), (16, Some(0)));
//! assert!(!KEYS[0].takes(0));
//! ```

use core::ops::RangeInclusive;

use crate::Span;

/// A key over the struct that holds its value.
pub struct Key<T> {
    /// Its name in a configuration.
    pub name: &'static str,
    /// Unit of its value.
    pub unit: Unit,
    /// Valid values.
    pub range: RangeInclusive<u64>,
    /// Value if the configuration has none. `None` if the key is required.
    pub default: Option<u64>,
    /// True if a value must name its source.
    pub sourced: bool,
    get: fn(&T) -> u64,
    set: fn(&mut T, u64),
}

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A whole number.
    Number,
    /// 1 for true, 0 for false.
    Flag,
    /// Picoseconds.
    Span,
    /// Bytes, a power of two.
    PowerOfTwo,
    /// Bytes, a multiple of these.
    Multiple(u64),
    /// Bytes per second.
    Rate,
}

/// The fastest rate, bytes per second.
pub const RATE_MAX: u64 = 10_000_000_000_000;

impl<T> Key<T> {
    const fn of(
        name: &'static str,
        unit: Unit,
        range: RangeInclusive<u64>,
        get: fn(&T) -> u64,
        set: fn(&mut T, u64),
    ) -> Key<T> {
        Key { name, unit, range, default: None, sourced: true, get, set }
    }

    /// A whole number.
    pub const fn number(
        name: &'static str,
        range: RangeInclusive<u64>,
        get: fn(&T) -> u64,
        set: fn(&mut T, u64),
    ) -> Key<T> {
        Key::of(name, Unit::Number, range, get, set)
    }

    /// True or false, [plain](Key::plain).
    pub const fn flag(name: &'static str, get: fn(&T) -> u64, set: fn(&mut T, u64)) -> Key<T> {
        Key::plain(Key::of(name, Unit::Flag, 0..=1, get, set))
    }

    /// A span of at most `most`, in picoseconds.
    pub const fn span(
        name: &'static str,
        most: Span,
        get: fn(&T) -> u64,
        set: fn(&mut T, u64),
    ) -> Key<T> {
        Key::of(name, Unit::Span, 0..=most.0, get, set)
    }

    /// A power of two, in bytes.
    pub const fn power_of_two(
        name: &'static str,
        range: RangeInclusive<u64>,
        get: fn(&T) -> u64,
        set: fn(&mut T, u64),
    ) -> Key<T> {
        Key::of(name, Unit::PowerOfTwo, range, get, set)
    }

    /// A size in bytes, a multiple of `unit`.
    pub const fn multiple(
        name: &'static str,
        unit: u64,
        range: RangeInclusive<u64>,
        get: fn(&T) -> u64,
        set: fn(&mut T, u64),
    ) -> Key<T> {
        Key::of(name, Unit::Multiple(unit), range, get, set)
    }

    /// A rate, in bytes per second.
    pub const fn rate(name: &'static str, get: fn(&T) -> u64, set: fn(&mut T, u64)) -> Key<T> {
        Key::of(name, Unit::Rate, 1..=RATE_MAX, get, set)
    }

    /// A key without a source: a configuration, not a cost.
    pub const fn plain(mut key: Key<T>) -> Key<T> {
        key.sourced = false;
        key
    }

    /// An optional key with this default.
    pub const fn or(default: u64, mut key: Key<T>) -> Key<T> {
        key.default = Some(default);
        key
    }

    /// Returns true if the value is valid.
    pub fn takes(&self, value: u64) -> bool {
        let whole = match self.unit {
            Unit::Number | Unit::Flag | Unit::Span | Unit::Rate => true,
            Unit::PowerOfTwo => value.is_power_of_two(),
            Unit::Multiple(of) => value.is_multiple_of(of),
        };
        whole && self.range.contains(&value)
    }

    /// Value in `of`.
    pub fn get(&self, of: &T) -> u64 {
        (self.get)(of)
    }

    /// Sets the value in `of`.
    ///
    /// # Panics
    /// If it does not [take](Key::takes) the value.
    pub fn set(&self, of: &mut T, value: u64) {
        assert!(self.takes(value), "{}: {value}", self.name);
        (self.set)(of, value);
    }
}
