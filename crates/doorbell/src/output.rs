//! Files and standard output.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use report::Style;

/// Creates a file that is written beside the report, and the folders that it is in. `-` is refused.
pub(super) fn create(path: &PathBuf) -> Result<File, String> {
    if path.as_os_str() == "-" {
        return Err(
            "-: expected the path of a file: standard output has the report (./- is a file)".into(),
        );
    }
    let fails = |error| format!("{}: cannot be written: {error}", path.display());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(fails)?;
    }
    File::create(path).map_err(fails)
}

/// Writes a file that [`create`] has made.
pub(super) fn put(file: &mut File, path: &Path, text: &str) -> Result<(), String> {
    file.write_all(text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
}

/// A progress bar on standard error, hidden if that is no terminal. Length 0: set later.
pub(super) fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(length),
        false => ProgressBar::hidden(),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("a template of ours"))
}

/// Width of a screen.
const COLUMNS: usize = 80;
/// A last column that begins further right than this is not continued below itself.
const LAST: usize = 50;

/// A text whose lines are of columns, two spaces apart: a longer line continues below its last column.
pub(super) fn in_columns(text: &str) -> String {
    text.lines().flat_map(continued).map(|line| line + "\n").collect()
}

fn continued(line: &str) -> Vec<String> {
    let letters: Vec<char> = line.chars().collect();
    if letters.len() <= COLUMNS {
        return vec![line.to_owned()];
    }
    let begins = |at: &usize| letters[*at] != ' ' && letters[at - 2..*at] == [' ', ' '];
    let begin = (2..LAST).rev().find(begins).unwrap_or(0);
    let indent = if begin == 0 { 2 } else { begin };
    let mut lines = Vec::new();
    let mut now: String = letters[..begin].iter().collect();
    let rest: String = letters[begin..].iter().collect();
    let mut is_new = true;
    for word in rest.split(' ').filter(|word| !word.is_empty()) {
        if !is_new && now.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(std::mem::replace(&mut now, " ".repeat(indent)));
            is_new = true;
        }
        if !is_new {
            now.push(' ');
        }
        now.push_str(word);
        is_new = false;
    }
    lines.push(now);
    lines
}

/// Destination of data: a file, or standard output, given as `-`.
pub(super) struct Sink {
    path: PathBuf,
    /// None: standard output.
    file: Option<File>,
}

impl Sink {
    /// Made before the first run: a long one must not end in a report that cannot be written.
    pub(super) fn open(path: &PathBuf) -> Result<Sink, String> {
        let is_file = path.as_os_str() != "-";
        let file = is_file.then(|| create(path)).transpose()?;
        Ok(Sink { path: path.clone(), file })
    }

    pub(super) fn is_standard_output(&self) -> bool {
        self.file.is_none()
    }

    pub(super) fn put(&mut self, text: &str) -> Result<(), String> {
        match &mut self.file {
            Some(file) => put(file, &self.path, text),
            None => {
                print!("{text}");
                Ok(())
            }
        }
    }
}

/// The report on standard output, unless data go there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    silent: bool,
    pub(super) style: Style,
}

impl Page {
    /// A page beside these sinks, of which one at most may be standard output.
    pub(super) fn beside(sinks: &[&Option<Sink>]) -> Result<Page, String> {
        let to_output = |sink: &&&Option<Sink>| sink.as_ref().is_some_and(Sink::is_standard_output);
        let silent = match sinks.iter().filter(to_output).count() {
            0 => false,
            1 => true,
            _ => return Err("-: found more than once, expected one output".to_owned()),
        };
        Ok(Page { silent, style: style() })
    }

    /// Prints a line.
    pub(super) fn line(self, text: impl std::fmt::Display) {
        if !self.silent {
            println!("{text}");
        }
    }

    /// Prints text with its line breaks.
    pub(super) fn text(self, text: &str) {
        if !self.silent {
            print!("{text}");
        }
    }
}

/// Colour on a terminal, unless NO_COLOR is set and not empty.
fn style() -> Style {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match !plain && std::io::stdout().is_terminal() {
        true => Style::COLOUR,
        false => Style::PLAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_continue_below_their_last_column() {
        let words = "words of a column ".repeat(6);
        let text = in_columns(&format!("short\n  link.latency       145 ns  {words}\n"));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.iter().all(|line| line.len() <= COLUMNS), "{text}");
        assert_eq!((lines[0], lines.len()), ("short", 4));
        assert!(lines[1].starts_with("  link.latency       145 ns  words of"), "{text}");
        let indent = " ".repeat(29);
        assert!(lines[2].starts_with(&indent) && !lines[2][29..].starts_with(' '), "{text}");
    }
}
