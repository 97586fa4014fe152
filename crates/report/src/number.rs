//! Numbers and lines of the text views.

/// Width of every text view, in columns.
pub const COLUMNS: usize = 80;

const MIB: f64 = 1_048_576.0;

/// Nanoseconds as microseconds: three decimals, fewer from 100,000 us on.
pub fn us(ns: f64) -> String {
    let us = ns / 1e3;
    let decimals = match us.abs() {
        wide if wide >= 10_000_000.0 => 0,
        wide if wide >= 100_000.0 => 1,
        _ => 3,
    };
    format!("{us:.decimals$}")
}

/// Nanoseconds as microseconds in at most eight columns, below 100 s.
pub fn short_us(ns: f64) -> String {
    let us = ns / 1e3;
    let decimals = match us.abs() {
        wide if wide >= 100_000.0 => 0,
        wide if wide >= 1_000.0 => 1,
        _ => 3,
    };
    format!("{us:.decimals$}")
}

/// Operations per second.
pub fn rate(per_second: f64) -> String {
    let decimals = if per_second < 1000.0 { 1 } else { 0 };
    format!("{per_second:.decimals$}")
}

/// Bytes as MiB.
pub fn mib(bytes: f64) -> String {
    let mib = bytes / MIB;
    let decimals = match mib {
        much if much >= 10_000.0 => 0,
        little if little < 100.0 => 3,
        _ => 1,
    };
    format!("{mib:.decimals$}")
}

/// The text in lines of at most [`COLUMNS`], broken at blanks; those after the first begin with `indent`.
/// Blanks at the beginning of the text are kept.
pub fn wrapped(text: &str, indent: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let content = text.trim_start();
    let mut line = text[..text.len() - content.len()].to_owned();
    for word in content.split(' ') {
        let fits = line.chars().count() + 1 + word.chars().count() <= COLUMNS;
        let is_new = line.trim().is_empty();
        if !fits && !is_new {
            lines.push(std::mem::replace(&mut line, indent.to_owned()));
        }
        if !line.is_empty() && !line.ends_with(' ') {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// A heading of at most [`COLUMNS`]: of a longer path the end is shown.
pub fn heading(file: &str, rest: &str) -> String {
    const BEGIN: &str = "== ";
    let room = COLUMNS.saturating_sub(BEGIN.len() + rest.chars().count()).max(8);
    let length = file.chars().count();
    let file = match length <= room {
        true => file.to_owned(),
        false => ['~'].into_iter().chain(file.chars().skip(length - room + 1)).collect(),
    };
    cut(&format!("{BEGIN}{file}{rest}"), COLUMNS)
}

/// The text, cut to this number of characters.
pub fn cut(text: &str, most: usize) -> String {
    match text.chars().count() <= most {
        true => text.to_owned(),
        false => text.chars().take(most.saturating_sub(1)).chain(['~']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_nine_columns() {
        for ns in [0.0, 1.0, 999_999.0, 99_999_999.0, 100_000_000.0, 1.0e12, 9.9e13] {
            assert!(us(ns).len() <= 11, "{}", us(ns));
        }
        assert_eq!([short_us(12_066_815.0), short_us(99_999_000_000.0)], ["12066.8", "99999000"]);
        assert_eq!([us(1_420.4), us(123_456_789.0)], ["1.420", "123456.8"]);
        assert_eq!([rate(999.94), rate(3_100_000.4)], ["999.9", "3100000"]);
        assert_eq!([mib(1_048_576.0), mib(2e8), mib(2e10)], ["1.000", "190.7", "19073"]);
    }

    #[test]
    fn long_text_is_wrapped_at_blanks() {
        let text = "a waits, ".repeat(20);
        let lines = wrapped(text.trim_end(), "  ");
        assert!(lines.len() == 3 && lines.iter().all(|line| line.chars().count() <= COLUMNS));
        assert!(lines[1].starts_with("  a waits"), "{lines:?}");
        assert_eq!(wrapped("    a  b", "  "), ["    a b"]);
        assert_eq!(wrapped(&"x".repeat(90), "  ").len(), 1, "a word is not broken");
        let of = |file: &str| heading(file, ", simulated, plan gen4, nvme");
        assert_eq!(of("a.fio"), "== a.fio, simulated, plan gen4, nvme");
        let long = of(&format!("{}/last.fio", "folder/".repeat(20)));
        assert!(
            long.starts_with("== ~") && long.ends_with("/last.fio, simulated, plan gen4, nvme")
        );
        assert_eq!(long.chars().count(), COLUMNS);
        assert_eq!([cut("abcdef", 4), cut("abcd", 4)], ["abc~", "abcd"]);
    }
}
