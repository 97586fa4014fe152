//! Spans, sizes and rates in plans: a decimal number and a unit, parsed without rounding.
//!
//! `"36.857 ns"` is exactly 36857 ps. `"36.8571 ns"` is finer than a picosecond and rejected.

use std::fmt;

use runtime::Span;

/// Maximum number of decimals without trailing zeros. No unit needs more: a picosecond is the twelfth decimal
/// of a second.
const DECIMALS_MAX: usize = 18;

/// Units of one kind of quantity.
struct Scale {
    /// Units by name, in multiples of `atom`, in ascending order.
    units: &'static [(&'static str, u64)],
    atom: &'static str,
}

const SPAN: Scale = Scale {
    units: &[
        ("ps", 1),
        ("ns", 1_000),
        ("us", 1_000_000),
        ("ms", 1_000_000_000),
        ("s", 1_000_000_000_000),
    ],
    atom: "1 ps",
};

const SIZE: Scale = Scale {
    units: &[
        ("B", 1),
        ("kB", 1_000),
        ("KiB", 1 << 10),
        ("MB", 1_000_000),
        ("MiB", 1 << 20),
        ("GB", 1_000_000_000),
        ("GiB", 1 << 30),
        ("TB", 1_000_000_000_000),
        ("TiB", 1 << 40),
        ("PB", 1_000_000_000_000_000),
        ("PiB", 1 << 50),
    ],
    atom: "1 B",
};

const RATE: Scale = Scale {
    units: &[
        ("B/s", 1),
        ("kB/s", 1_000),
        ("KiB/s", 1 << 10),
        ("MB/s", 1_000_000),
        ("MiB/s", 1 << 20),
        ("GB/s", 1_000_000_000),
        ("GiB/s", 1 << 30),
        ("TB/s", 1_000_000_000_000),
        ("TiB/s", 1 << 40),
    ],
    atom: "1 B/s",
};

/// Parse error of a quantity. Its text continues the quoted input, as in `"5 kg" has the unknown unit "kg"`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnitError {
    /// The text does not begin with a plain decimal number.
    NotANumber,
    /// The number is not followed by a unit.
    NoUnit,
    /// The unit is not one of this kind of quantity.
    UnknownUnit(String),
    /// The quantity is not a whole number of picoseconds, bytes or bytes per second.
    TooFine {
        /// The resolution: `1 ps`, `1 B` or `1 B/s`.
        atom: &'static str,
    },
    /// The number has more decimals than any unit needs.
    TooManyDecimals,
    /// The quantity does not fit into 64 bits.
    TooLarge,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnitError::NotANumber => f.write_str("does not begin with a decimal number"),
            UnitError::NoUnit => f.write_str("has no unit"),
            UnitError::UnknownUnit(unit) => write!(f, "has the unknown unit {unit:?}"),
            UnitError::TooFine { atom } => write!(f, "is no whole multiple of {atom}"),
            UnitError::TooManyDecimals => write!(f, "has more than {DECIMALS_MAX} decimals"),
            UnitError::TooLarge => f.write_str("is too large"),
        }
    }
}

impl std::error::Error for UnitError {}

/// A span of time: `ps`, `ns`, `us`, `ms` or `s`.
///
/// # Errors
/// [`UnitError`], for anything but a whole number of picoseconds below 2^64.
pub fn parse_span(text: &str) -> Result<Span, UnitError> {
    SPAN.parse(text).map(Span::ps)
}

/// A size in bytes: `B`, `KiB` to `PiB` in powers of 1024, `kB` to `PB` in powers of 1000.
///
/// # Errors
/// [`UnitError`], for anything but a whole number of bytes below 2^64.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    SIZE.parse(text)
}

/// A rate in bytes a second: a size unit up to `TB` or `TiB`, then `/s`.
///
/// # Errors
/// [`UnitError`], for anything but a whole number of bytes a second below 2^64.
pub fn parse_rate(text: &str) -> Result<u64, UnitError> {
    RATE.parse(text)
}

/// Scales a span or a rate of a plan by `num / den` and returns it in quotes. None for zero and for other
/// values.
pub fn scaled(text: &str, num: u64, den: u64) -> Option<String> {
    let times = |value: u64| Some(value).filter(|v| *v > 0).map(|v| v.saturating_mul(num) / den);
    if let Ok(span) = parse_span(text) {
        return times(span.0).map(|ps| format!("\"{ps} ps\""));
    }
    let rate = parse_rate(text).ok()?;
    times(rate).map(|rate| format!("\"{rate} B/s\""))
}

/// The span in the largest unit that is not larger than it, with all decimals.
pub fn span_text(span: Span) -> String {
    decimal(span.0, SPAN.units)
}

/// The size in the largest power of 1024 that divides it.
pub fn size_text(bytes: u64) -> String {
    let binary = SIZE.units.iter().filter(|(_, scale)| scale.is_power_of_two());
    let (unit, scale) = binary
        .rev()
        .find(|(_, scale)| bytes >= *scale && bytes.is_multiple_of(*scale))
        .unwrap_or(&SIZE.units[0]);
    format!("{} {unit}", bytes / scale)
}

/// The rate in the largest power of 1000 that is not larger than it, with all decimals.
pub fn rate_text(bytes_per_s: u64) -> String {
    const DECIMAL: [(&str, u64); 5] = [
        ("B/s", 1),
        ("kB/s", 1_000),
        ("MB/s", 1_000_000),
        ("GB/s", 1_000_000_000),
        ("TB/s", 1_000_000_000_000),
    ];
    decimal(bytes_per_s, &DECIMAL)
}

/// `atoms` in the largest unit that is not larger. The units are powers of ten.
fn decimal(atoms: u64, units: &[(&str, u64)]) -> String {
    let (unit, scale) = units.iter().rev().find(|(_, s)| atoms >= *s).unwrap_or(&units[0]);
    let (whole, rest) = (atoms / scale, atoms % scale);
    if rest == 0 {
        return format!("{whole} {unit}");
    }
    let digits = scale.ilog10() as usize;
    let decimals = format!("{rest:0digits$}");
    format!("{whole}.{} {unit}", decimals.trim_end_matches('0'))
}

impl Scale {
    fn parse(&self, text: &str) -> Result<u64, UnitError> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
            return Err(UnitError::NotANumber);
        }
        let unit = unit.trim_start();
        if unit.is_empty() {
            return Err(UnitError::NoUnit);
        }
        let Some((_, scale)) = self.units.iter().find(|(name, _)| *name == unit) else {
            return Err(UnitError::UnknownUnit(unit.to_owned()));
        };
        self.atoms(whole, fraction.trim_end_matches('0'), u128::from(*scale))
    }

    fn atoms(&self, whole: &str, fraction: &str, scale: u128) -> Result<u64, UnitError> {
        if fraction.len() > DECIMALS_MAX {
            return Err(UnitError::TooManyDecimals);
        }
        // Only digits are left, so a parse error means overflow.
        let whole: u64 = whole.parse().map_err(|_| UnitError::TooLarge)?;
        let decimals: u64 = if fraction.is_empty() {
            0
        } else {
            fraction.parse().map_err(|_| UnitError::TooManyDecimals)?
        };
        // Below 10^18 * 2^50 < 2^110.
        let (parts, ten) = (u128::from(decimals) * scale, 10_u128.pow(fraction.len() as u32));
        if !parts.is_multiple_of(ten) {
            return Err(UnitError::TooFine { atom: self.atom });
        }
        let atoms = u128::from(whole) * scale + parts / ten;
        u64::try_from(atoms).map_err(|_| UnitError::TooLarge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spans_parse_without_rounding() {
        assert_eq!(parse_span("36.857 ns"), Ok(Span::ps(36_857)));
        assert_eq!(parse_span("110ns"), Ok(Span::ns(110)));
        assert_eq!(parse_span("0.368 us"), Ok(Span::ns(368)));
        assert_eq!(parse_span("1.500000000000000000000000 ms"), Ok(Span::us(1_500)));
        assert_eq!(parse_span("0 ps"), Ok(Span::ZERO));
        assert_eq!(parse_span("18446744073709551615 ps"), Ok(Span(u64::MAX)));
    }

    #[test]
    fn sizes_and_rates_have_units_of_1000_and_1024() {
        assert_eq!(parse_size("4 KiB"), Ok(4096));
        assert_eq!(parse_size("4 kB"), Ok(4000));
        assert_eq!(parse_size("0.5 KiB"), Ok(512));
        assert_eq!(parse_size("4 TiB"), Ok(1 << 42));
        assert_eq!(parse_size("1 PiB"), Ok(1 << 50));
        assert_eq!(parse_size("1 PB"), Ok(1_000_000_000_000_000));
        assert_eq!(size_text(1 << 50), "1 PiB");
        assert_eq!(parse_rate("1 TiB/s"), Ok(1 << 40));
        assert_eq!(parse_rate("2 GB/s"), Ok(2_000_000_000));
        assert_eq!(parse_rate("25.6 GB/s"), Ok(25_600_000_000));
    }

    #[test]
    fn unit_errors_name_the_cause() {
        let error = |text| parse_span(text).unwrap_err().to_string();
        for text in ["", "ns", "-1 ns", ".5 ns", "5. ns", "1.2.3 ns", "one ns", " 1 ns", "+1 ns"] {
            assert_eq!(error(text), "does not begin with a decimal number", "{text:?}");
        }
        assert_eq!(error("110"), "has no unit");
        assert_eq!(error("110 "), "has no unit");
        assert_eq!(error("1 kg"), "has the unknown unit \"kg\"");
        assert_eq!(error("1 ns "), "has the unknown unit \"ns \"");
        assert_eq!(error("1e3 ns"), "has the unknown unit \"e3 ns\"");
        assert_eq!(error("0.0001 ns"), "is no whole multiple of 1 ps");
        assert_eq!(error("0.0000000000000000001 s"), "has more than 18 decimals");
        assert_eq!(error("18446744073709551616 ps"), "is too large");
        assert_eq!(error("99999999999999999999999999999999999999999 s"), "is too large");
        assert_eq!(error("18446745 s"), "is too large");
        assert_eq!(parse_size("1 KB").unwrap_err().to_string(), "has the unknown unit \"KB\"");
        assert_eq!(parse_size("0.3 B").unwrap_err().to_string(), "is no whole multiple of 1 B");
        assert_eq!(parse_rate("1 GB").unwrap_err().to_string(), "has the unknown unit \"GB\"");
    }

    proptest! {
        #[test]
        fn formatted_quantities_parse_to_the_same_value(bits in 0..64_u32, low: u64) {
            let n = low >> bits;
            prop_assert_eq!(parse_span(&span_text(Span(n))), Ok(Span(n)));
            prop_assert_eq!(parse_size(&size_text(n)), Ok(n));
            prop_assert_eq!(parse_rate(&rate_text(n)), Ok(n));
        }

        /// Compares with the definition: a decimal is a whole number over a power of ten.
        #[test]
        fn decimals_match_their_definition(
            whole in 0..100_000_u64, decimals in "[0-9]{1,14}", unit in 0..5_usize,
        ) {
            let (name, scale) = SPAN.units[unit];
            let text = format!("{whole}.{decimals} {name}");
            let digits: u128 = format!("{whole}{decimals}").parse().unwrap();
            let (atoms, ten) = (digits * u128::from(scale), 10_u128.pow(decimals.len() as u32));
            match parse_span(&text) {
                Ok(span) => prop_assert_eq!(u128::from(span.0) * ten, atoms),
                Err(error) => {
                    prop_assert_eq!(error, UnitError::TooFine { atom: "1 ps" });
                    prop_assert!(atoms % ten != 0, "{} is whole", text);
                }
            }
        }

        #[test]
        fn any_text_parses_or_is_rejected(text in "\\PC*") {
            let _ = (parse_span(&text), parse_size(&text), parse_rate(&text));
        }
    }
}
