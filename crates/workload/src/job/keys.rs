//! The single table of job keys: the parser and the help text use it. A test checks that every
//! supported key changes the job.

mod engines;
mod table;

use super::{Job, Value, ValueError};

pub use table::KEYS;

/// Remark that the setter of a key may return; printed as a note.
pub type Remark = Option<&'static str>;

#[derive(Clone, Copy)]
pub enum Kind {
    /// Has the same effect as in fio.
    Supported {
        /// Form of its value, for errors and help.
        expects: &'static str,
        /// A value that changes the default job, for the help and the test.
        example: &'static str,
        /// Sets the value in the job.
        set: fn(&mut Job, Value<'_>) -> Result<Remark, ValueError>,
    },
    /// Accepted without effect; the reason is printed.
    Ignored(&'static str),
    /// Rejected; the reason and the alternative are printed.
    Rejected(&'static str),
}

/// A key of a job file.
#[derive(Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    pub kind: Kind,
}

/// Returns the key with this name or alias.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name || key.aliases.contains(&name))
}

/// Why an ignored key cannot have this value.
pub fn refused(name: &str, value: &str) -> Option<&'static str> {
    // An engine's file may follow its name.
    let word = value.split(':').next().unwrap_or(value);
    let all = engines::REFUSED.iter();
    all.filter(|(key, ..)| *key == name)
        .find(|(_, values, _)| values.contains(&word))
        .map(|(.., why)| *why)
}

/// The whole table as text, for `--help`: supported keys with the form of their values, then ignored and
/// rejected keys with the reason.
pub fn help() -> String {
    let mut text = String::new();
    let mut section = |title: &str, row: &dyn Fn(&Kind) -> Option<String>| {
        text += title;
        text.push('\n');
        for key in KEYS {
            let Some(rest) = row(&key.kind) else { continue };
            let names: Vec<&str> =
                std::iter::once(key.name).chain(key.aliases.iter().copied()).collect();
            text += &format!("  {:<28} {}: {rest}\n", names.join(", "), key.about);
        }
    };
    section("Supported:", &|kind| match kind {
        Kind::Supported { expects, .. } => Some((*expects).to_owned()),
        _ => None,
    });
    section("Ignored:", &|kind| match kind {
        Kind::Ignored(why) => Some((*why).to_owned()),
        _ => None,
    });
    section("Rejected:", &|kind| match kind {
        Kind::Rejected(why) => Some((*why).to_owned()),
        _ => None,
    });
    text
}

/// The known name nearest to `name`, within an edit distance of a third of its length.
pub fn closest(name: &str) -> Option<&'static str> {
    let longest = name.chars().count().clamp(1, 64);
    KEYS.iter()
        .flat_map(|key| std::iter::once(key.name).chain(key.aliases.iter().copied()))
        .map(|known| (distance(name, known), known))
        .filter(|&(changes, _)| changes <= longest.div_ceil(3))
        .min_by_key(|&(changes, _)| changes)
        .map(|(_, known)| known)
}

/// Edit distance: insertions, deletions, replacements and swaps of neighbours (optimal string
/// alignment). `usize::MAX` if the lengths differ by more than 16.
fn distance(one: &str, other: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if a.len().abs_diff(b.len()) > 16 {
        return usize::MAX;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before[j - 2] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_supported_key_changes_the_job() {
        let as_it_was = Job::default();
        for key in KEYS {
            let Kind::Supported { example, set, expects } = key.kind else { continue };
            let mut job = as_it_was.clone();
            let value = Value { text: Some(example), kb_base: 1024 };
            set(&mut job, value).unwrap_or_else(|why| panic!("{}={example}: {why}", key.name));
            // kb_base is read before the others; it affects the values, not the job.
            if key.name == "kb_base" {
                let file = super::super::parse("f", "[j]\nkb_base=1000\nbs=1k\n").unwrap();
                assert_eq!(file.jobs[0].block_size.read.min(), 1000);
            } else {
                assert_ne!(job, as_it_was, "{}={example} changes nothing", key.name);
            }
            assert!(!expects.is_empty());
        }
    }

    #[test]
    fn key_names_unique_and_rows_have_reasons() {
        let mut seen = BTreeSet::new();
        for key in KEYS {
            for name in std::iter::once(&key.name).chain(key.aliases) {
                assert!(seen.insert(*name), "{name}: twice in the table");
            }
            assert!(!key.about.is_empty(), "{} has no description", key.name);
            if let Kind::Ignored(why) | Kind::Rejected(why) = key.kind {
                assert!(!why.is_empty(), "{} gives no reason", key.name);
            }
        }
    }

    #[test]
    fn help_has_a_line_for_every_key() {
        let help = help();
        assert_eq!(help.lines().count(), KEYS.len() + 3);
        assert!(help.contains("\n  rw, readwrite                direction and order of the"));
    }

    #[test]
    fn misspelt_key_suggests_nearest_known_key() {
        assert_eq!(closest("iodpeth"), Some("iodepth"));
        assert_eq!(closest("run_time"), Some("runtime"));
        assert_eq!(closest("blocksise"), Some("blocksize"));
        assert_eq!(closest("frobnicate"), None);
        assert_eq!(closest(""), None);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
