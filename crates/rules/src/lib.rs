//! Rules of the project's sources and pages, as tests that build nothing else: `cargo test -p doorbell-rules`
//! takes seconds. Here is what tests of other crates read of the pages, too.

use std::fs;
use std::path::{Path, PathBuf};

/// Heading of `SUMMARY.md` over the pages that are generated.
const GENERATED: &str = "# Reference";

/// The pages by file name in `docs`, in the order of `SUMMARY.md`; whether each is generated.
pub fn pages() -> Vec<(String, bool)> {
    listed(&read("SUMMARY.md"))
}

/// The same, of the text of `SUMMARY.md`.
pub fn listed(summary: &str) -> Vec<(String, bool)> {
    let mut generated = false;
    let mut pages = Vec::new();
    for line in summary.lines() {
        generated = if line.starts_with("# ") { line == GENERATED } else { generated };
        let target = line.split_once("](").and_then(|(_, rest)| rest.split_once(')'));
        pages.extend(target.map(|(target, _)| (target.to_owned(), generated)));
    }
    pages
}

/// The text of a page.
///
/// # Panics
/// There is none of this name.
pub fn read(page: &str) -> String {
    let path = root().join("docs").join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folder of the workspace.
///
/// # Panics
/// It is not where it was when this was compiled.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}
