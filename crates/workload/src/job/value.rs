//! The values of a job file: numbers with units, times, percentages, flags.
//!
//! Units are those of fio's manual, "Parameter types": with `kb_base=1024`, which is the default,
//! `4k` and `4kb` are 4096 and `4kib` is 4000; with `kb_base=1000` it is the other way round. A
//! bare `ki` is rejected, because fio's manual and fio's parser interpret it differently.

use std::fmt;
use std::str::FromStr;

use runtime::Span;

use super::{Amount, PerDirection, ValueError};

/// A number from 0, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decimal(u64);

impl Decimal {
    pub const ONE: Decimal = Decimal(1_000_000);

    pub fn to_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl FromStr for Decimal {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Decimal, ValueError> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let is_number = !(whole.is_empty() && part.is_empty()) && digits(whole) && digits(part);
        if !is_number || whole.len() > 9 || part.len() > 6 {
            return Err(ValueError::Decimal { text: text.to_owned() });
        }
        let millionths = format!("0{whole}{part:0<6}").parse().expect("at most 16 digits");
        Ok(Decimal(millionths))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_f64().fmt(f)
    }
}

/// The value of a setting, after the `=`.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    /// The text, or `None` for a bare `key`.
    pub text: Option<&'a str>,
    /// Factor of `k`: 1024 or 1000.
    pub kb_base: u64,
}

impl<'a> Value<'a> {
    /// The text, which must not be empty.
    pub fn required(self) -> Result<&'a str, ValueError> {
        match self.text {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(ValueError::Missing),
        }
    }

    /// A flag: `key`, `key=1` or `key=0`.
    pub fn flag(self) -> Result<bool, ValueError> {
        match self.text {
            None | Some("1" | "true") => Ok(true),
            Some("0" | "false") => Ok(false),
            Some(other) => Err(ValueError::Flag { text: other.to_owned() }),
        }
    }

    /// A whole number from `low` to `high`, both included.
    pub fn whole(self, low: u64, high: u64) -> Result<u64, ValueError> {
        self.whole_of(self.required()?, low, high)
    }

    /// As [`Value::whole`], for a part of the text.
    pub fn whole_of(self, text: &str, low: u64, high: u64) -> Result<u64, ValueError> {
        let found = bytes(text, self.kb_base)?;
        if found < low {
            return Err(ValueError::TooSmall { found, least: low });
        }
        if found > high {
            return Err(ValueError::TooLarge { found, most: high });
        }
        Ok(found)
    }

    /// A number of bytes or a percentage from 1 to 100.
    pub fn amount(self) -> Result<Amount, ValueError> {
        let text = self.required()?;
        if let Some(number) = text.strip_suffix('%') {
            let percent = Value { text: Some(number.trim()), kb_base: 1024 }.whole(1, 100)?;
            return Ok(Amount::Percent(percent as u8));
        }
        Ok(Amount::Bytes(bytes(text, self.kb_base)?))
    }

    /// As [`Value::amount`]; `None` for 0 or 0%, with which fio's keys have no effect.
    pub fn amount_or_zero(self) -> Result<Option<Amount>, ValueError> {
        match self.required()? {
            "0%" => Ok(None),
            _ => Ok(Some(self.amount()?).filter(|amount| *amount != Amount::Bytes(0))),
        }
    }

    /// A span of time, in units of `default` if it names none.
    pub fn time(self, default: Span) -> Result<Span, ValueError> {
        time(self.required()?, default)
    }

    /// `read`, `read,write` or `read,write,trim`. An empty part keeps the value in `old`; a single
    /// part applies to every direction; without a third part, trims use the part for writes.
    pub fn per_direction<T: Clone>(
        self,
        old: &PerDirection<T>,
        separators: &[char],
        mut parse: impl FnMut(&str) -> Result<T, ValueError>,
    ) -> Result<PerDirection<T>, ValueError> {
        let text = self.required()?;
        let parts: Vec<&str> = text.split(separators).map(str::trim).collect();
        if parts.len() > 3 {
            return Err(ValueError::Parts { found: parts.len() });
        }
        let mut part = |at: usize, old: &T| match parts[at] {
            "" => Ok(old.clone()),
            text => parse(text),
        };
        let read = part(0, &old.read)?;
        let write = if parts.len() == 1 { read.clone() } else { part(1, &old.write)? };
        let trim = if parts.len() == 3 { part(2, &old.trim)? } else { write.clone() };
        Ok(PerDirection { read, write, trim })
    }
}

/// A number of bytes with fio's units.
pub fn bytes(text: &str, kb_base: u64) -> Result<u64, ValueError> {
    let lower = text.trim().to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix("0x") {
        Some(hex) => (hex, 16),
        None => (lower.as_str(), 10),
    };
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let (number, unit) = digits.split_at(end);
    if number.is_empty() {
        return Err(ValueError::NoNumber { text: text.to_owned() });
    }
    let overflow = || ValueError::Overflow { text: text.to_owned() };
    let number = u64::from_str_radix(number, radix).map_err(|_| overflow())?;
    let other_base = if kb_base == 1000 { 1024 } else { 1000 };
    let mut rest = unit.trim().chars();
    let first = rest.next();
    let power = first.and_then(|letter| "kmgtp".find(letter)).map(|at| at as u32 + 1);
    let (power, base) = match (first, power, rest.as_str()) {
        (None, ..) | (Some('b'), None, "") => (0, kb_base),
        (_, Some(power), "" | "b") => (power, kb_base),
        (_, Some(power), "ib") => (power, other_base),
        (Some(letter), Some(_), "i") => {
            return Err(ValueError::AmbiguousUnit { letter, kb_base, other_base });
        }
        _ => {
            let text = unit.trim().to_owned();
            return Err(ValueError::Unknown { text, kind: "unit of size" });
        }
    };
    base.checked_pow(power)
        .and_then(|multiplier| number.checked_mul(multiplier))
        .ok_or_else(overflow)
}

/// A span of time with fio's units, of which the microsecond is the finest.
pub fn time(text: &str, default: Span) -> Result<Span, ValueError> {
    let lower = text.trim().to_ascii_lowercase();
    let end = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let (number, unit) = lower.split_at(end);
    if number.is_empty() {
        return Err(ValueError::NoNumber { text: text.to_owned() });
    }
    let unit = match unit.trim() {
        "" => default,
        "us" | "usec" => Span::us(1),
        "ms" | "msec" => Span::ms(1),
        "s" | "sec" => Span::s(1),
        "m" => Span::s(60),
        "h" => Span::s(3_600),
        "d" => Span::s(86_400),
        other => {
            return Err(ValueError::Unknown { text: other.to_owned(), kind: "unit of time" });
        }
    };
    let too_long = || ValueError::TooLong { text: text.to_owned() };
    let number: u64 = number.parse().map_err(|_| too_long())?;
    number.checked_mul(unit.0).map(Span).ok_or_else(too_long)
}

/// A range `low-high` or `low:high`; the ends are swapped if reversed, as in fio.
pub fn range(text: &str, kb_base: u64) -> Result<(u64, u64), ValueError> {
    let Some((low, high)) = text.split_once(['-', ':']) else {
        return Err(ValueError::NoRange { text: text.to_owned() });
    };
    let (low, high) = (bytes(low, kb_base)?, bytes(high, kb_base)?);
    Ok((low.min(high), low.max(high)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn size_units_match_fio_manual() {
        for (text, base, want) in [
            ("4096", 1024, 4096),
            ("4k", 1024, 4096),
            ("4KB", 1024, 4096),
            ("4kib", 1024, 4000),
            ("4kib", 1000, 4096),
            ("4k", 1000, 4000),
            ("0x1000", 1024, 4096),
            ("0x10k", 1024, 16 * 1024),
            ("1m", 1024, 1 << 20),
            ("2g", 1024, 2 << 30),
            ("1t", 1024, 1 << 40),
            ("1p", 1024, 1 << 50),
            ("12b", 1024, 12),
            ("1 MiB", 1000, 1 << 20),
        ] {
            assert_eq!(bytes(text, base), Ok(want), "{text} base {base}");
        }
    }

    #[test]
    fn malformed_size_error_names_reason() {
        for (text, why) in [
            ("", "does not begin with a number"),
            ("k", "does not begin with a number"),
            ("-1", "does not begin with a number"),
            ("4x", "\"x\" is not a unit of size"),
            ("4kk", "\"kk\" is not a unit of size"),
            ("4é", "is not a unit of size"),
            ("4ki", "write k (times 1024) or kib (times 1000)"),
            ("99999999999999999999", "64 bits"),
            ("17179869184g", "64 bits"),
        ] {
            let said = bytes(text, 1024).unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
    }

    #[test]
    fn time_units_match_fio_manual() {
        for (text, want) in [
            ("10", Span::s(10)),
            ("10s", Span::s(10)),
            ("3sec", Span::s(3)),
            ("2m", Span::s(120)),
            ("1h", Span::s(3600)),
            ("1D", Span::s(86_400)),
            ("5ms", Span::ms(5)),
            ("5msec", Span::ms(5)),
            ("7us", Span::us(7)),
            ("7usec", Span::us(7)),
        ] {
            assert_eq!(time(text, Span::s(1)), Ok(want), "{text}");
        }
        let error = time("10y", Span::s(1)).unwrap_err();
        assert_eq!(error.to_string(), "\"y\" is not a unit of time");
        assert_eq!(time("300d", Span::s(1)), Err(ValueError::TooLong { text: "300d".into() }));
        assert_eq!(time("10", Span::us(1)), Ok(Span::us(10)));
    }

    #[test]
    fn decimal_parses_to_millionths_and_prints_back() {
        for (text, want) in
            [("1.2", 1.2), ("0", 0.0), (".25", 0.25), ("100", 100.0), ("0.000001", 1e-6)]
        {
            let number: Decimal = text.parse().unwrap();
            assert_eq!(number.to_f64(), want, "{text}");
            assert_eq!(number.to_string().parse(), Ok(number));
        }
        for text in ["", ".", "-1", "1e3", "1.2.3", "0.0000001", "1000000000", " 1", "1,5"] {
            assert!(text.parse::<Decimal>().is_err(), "{text}");
        }
    }

    #[test]
    fn reversed_range_is_swapped() {
        assert_eq!(range("4k-1k", 1024), Ok((1024, 4096)));
        assert_eq!(range("1k:4k", 1024), Ok((1024, 4096)));
        assert!(range("4k", 1024).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_value_text_does_not_panic(text in ".{0,24}") {
            let _ = bytes(&text, 1024);
            let _ = time(&text, Span::s(1));
            let _ = range(&text, 1024);
            let _ = text.parse::<Decimal>();
            let _ = Value { text: Some(&text), kb_base: 1024 }.amount();
        }
    }
}
