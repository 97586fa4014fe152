//! Numbers as text, with their unit, for people.

/// Unit of a number, which gives its prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Nanoseconds,
    /// Operations per second.
    PerSecond,
    BytesPerSecond,
    Bytes,
    /// From 0 to 1, shown in percent.
    Share,
    /// An integer, shown with all of its digits.
    Count,
    /// Without a unit.
    Plain,
}

const TIMES: &[(f64, &str)] = &[(1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")];
const RATES: &[(f64, &str)] = &[(1.0, "/s"), (1e3, "k/s"), (1e6, "M/s")];
const BYTE_RATES: &[(f64, &str)] = &[(1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")];
const BYTES: &[(f64, &str)] =
    &[(1.0, "B"), (1024.0, "KiB"), (1_048_576.0, "MiB"), (1_073_741_824.0, "GiB")];

impl Unit {
    const fn prefixes(self) -> &'static [(f64, &'static str)] {
        match self {
            Unit::Nanoseconds => TIMES,
            Unit::PerSecond => RATES,
            Unit::BytesPerSecond => BYTE_RATES,
            Unit::Bytes => BYTES,
            Unit::Share => &[(0.01, "%")],
            Unit::Count => &[(1.0, ""), (1e3, "thousands"), (1e6, "millions")],
            Unit::Plain => &[(1.0, "")],
        }
    }

    /// The largest unit in which a value is at least 1, and its size; the smallest if there is none.
    pub fn scaled(self, value: f64) -> (f64, &'static str) {
        let prefixes = self.prefixes();
        let found = prefixes.iter().rev().find(|(size, _)| value.abs() >= *size);
        *found.unwrap_or(&prefixes[0])
    }

    /// The value with its unit: three digits or more.
    pub fn text(self, value: f64) -> String {
        if self == Unit::Count {
            return grouped(value);
        }
        let (mut size, mut name) = self.scaled(value);
        // 999.7 ns is 1.00 us.
        if let Some(next) = self.prefixes().iter().find(|(next, _)| *next > size)
            && (value / size).abs() >= 999.5
            && next.0 / size <= 1000.0
        {
            (size, name) = *next;
        }
        let digits = digits(value / size);
        match name {
            "" => digits,
            _ => format!("{digits} {name}"),
        }
    }
}

/// Three significant digits, and all of those before the point.
pub(super) fn digits(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        _ if size == 0.0 => 0,
        _ if size >= 99.95 => 0,
        _ if size >= 9.995 => 1,
        _ if size >= 0.9995 => 2,
        _ if size >= 0.001 => 3,
        _ => return format!("{value:.1e}"),
    };
    if decimals == 0 { grouped(value) } else { format!("{value:.decimals$}") }
}

/// An integer with a comma between thousands.
fn grouped(value: f64) -> String {
    let plain = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in plain.chars().enumerate() {
        if place > 0 && (plain.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 && plain != "0" { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_their_unit() {
        let cases = [
            (Unit::Nanoseconds, 4120.0, "4.12 us"),
            (Unit::Nanoseconds, 999.7, "1.00 us"),
            (Unit::Nanoseconds, 0.0, "0 ns"),
            (Unit::Nanoseconds, -50.0, "-50.0 ns"),
            (Unit::Nanoseconds, 12.5e9, "12.5 s"),
            (Unit::PerSecond, 273_400.0, "273 k/s"),
            (Unit::PerSecond, 3_120_000.0, "3.12 M/s"),
            (Unit::BytesPerSecond, 1.26e9, "1.26 GB/s"),
            (Unit::Bytes, 4096.0, "4.00 KiB"),
            (Unit::Share, 0.5935, "59.4 %"),
            (Unit::Share, 1.0, "100 %"),
            (Unit::Count, 1_234_567.0, "1,234,567"),
            (Unit::Count, 0.0, "0"),
            (Unit::Plain, 0.368, "0.368"),
            (Unit::Plain, 0.000_02, "2.0e-5"),
            (Unit::Plain, -1_500.0, "-1,500"),
        ];
        for (unit, value, text) in cases {
            assert_eq!(unit.text(value), text, "{unit:?} {value}");
        }
    }
}
