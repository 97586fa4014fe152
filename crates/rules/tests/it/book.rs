//! The book in `docs`: `SUMMARY.md` lists every page, links and their anchors resolve, its length is bounded.

use std::collections::BTreeMap;
use std::fs;

use rules::{listed, pages, read, root};

/// Maximum length of the README.
const README_LINES_MAX: usize = 150;

/// Most words of the pages that people write: tokens with a letter or a digit.
const WORDS_MAX: usize = 27_000;

/// Lines outside of code blocks.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut code = false;
    page.lines().enumerate().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Anchors of a page's headings, as mdbook makes them.
fn anchors(page: &str) -> Vec<String> {
    let mut made: Vec<String> = Vec::new();
    for (_, line) in prose(page) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let plain = title.trim().replace(" - ", " ");
        let kept = plain.chars().filter(|c| c.is_alphanumeric() || "_- ".contains(*c));
        let anchor: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let same = made.iter().filter(|other| **other == anchor).count();
        made.push(if same == 0 { anchor } else { format!("{anchor}-{same}") });
    }
    made
}

/// Links of a page that lead nowhere in the book. `files` are pages with their text, and other files.
fn dead_links(name: &str, files: &BTreeMap<String, String>) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in prose(&files[name]) {
        // A link's text may be code; a link in code is none.
        let bare: String = line.split('`').step_by(2).collect();
        let targets = bare.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { name } else { file };
            let resolves = files
                .get(file)
                .is_some_and(|text| anchor.is_empty() || anchors(text).iter().any(|a| a == anchor));
            if !resolves {
                found.push(format!(
                    "docs/{name}:{}: {target:?} leads nowhere in the book",
                    number + 1
                ));
            }
        }
    }
    found
}

/// Files of `docs`, by their path there: text of pages, empty for others.
fn files() -> BTreeMap<String, String> {
    let folder = root().join("docs");
    let mut files = BTreeMap::new();
    for (prefix, folder) in [("", folder.clone()), ("pictures/", folder.join("pictures"))] {
        for entry in fs::read_dir(folder).expect("a folder") {
            let name = format!("{prefix}{}", entry.expect("an entry").file_name().display());
            let text = if name.ends_with(".md") { read(&name) } else { String::new() };
            files.insert(name, text);
        }
    }
    files
}

#[test]
fn summary_lists_every_page() {
    let mut listed: Vec<_> = pages().into_iter().map(|(page, _)| page).collect();
    listed.sort_unstable();
    let is_page = |name: &String| name.ends_with(".md") && name != "SUMMARY.md";
    let there: Vec<_> = files().into_keys().filter(is_page).collect();
    assert_eq!(listed, there, "docs/SUMMARY.md and the pages of docs");
}

#[test]
fn links_and_anchors_of_the_book_resolve() {
    let files = files();
    let dead: Vec<_> = pages().iter().flat_map(|(page, _)| dead_links(page, &files)).collect();
    assert!(dead.is_empty(), "\n{}", dead.join("\n"));
    let pictures = files.keys().filter(|name| name.starts_with("pictures/"));
    let mut texts = files.values().cloned().collect::<Vec<_>>();
    texts.push(fs::read_to_string(root().join("README.md")).expect("README.md"));
    for picture in pictures {
        assert!(
            texts.iter().any(|text| text.contains(picture.as_str())),
            "docs/{picture} is on no page"
        );
    }
}

#[test]
fn dead_links_are_found() {
    let page = "# A\n\n## It's `here`, now\n\n## Twice\n\n## Twice\n\n";
    let dead = |line: &str| {
        let other = ("b.md".to_owned(), "# B\n".to_owned());
        let picture = ("pictures/c.svg".to_owned(), String::new());
        let files = [("a.md".to_owned(), format!("{page}{line}\n")), other, picture];
        dead_links("a.md", &files.into_iter().collect()).len()
    };
    for line in
        ["[x](c.md)", "[x](#there)", "[x](b.md#twice)", "![x](c.svg)", "[x](../ARCHITECTURE.md)"]
    {
        assert_eq!(dead(line), 1, "{line}");
    }
    for line in [
        "[x](b.md), [`y`](b.md#b), [z](#its-here-now), [2](#twice-1)",
        "![x](pictures/c.svg) [x](https://example.org/none.md)",
        "`[x](none.md)`",
        "```text\n[x](none.md)\n```",
    ] {
        assert_eq!(dead(line), 0, "{line}");
    }
}

#[test]
fn book_has_at_most_27000_words() {
    // Tables that tests write are generated, as pages of reference are.
    let by_hand = |text: &str| -> String {
        let mut parts = text.split("<!-- end of ").peekable();
        let mut kept = String::new();
        while let Some(part) = parts.next() {
            let table = parts.peek().and_then(|_| part.rfind("<!-- "));
            kept.push_str(&part[..table.unwrap_or(part.len())]);
        }
        kept
    };
    let marked = "a\n<!-- figure -->\nb\n<!-- verbs -->\n| c |\n<!-- end of verbs -->\nd";
    assert_eq!(by_hand(marked), "a\n<!-- figure -->\nb\nverbs -->\nd");
    let words = |page: &str| {
        let text = by_hand(&read(page));
        text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
    };
    let written = pages().into_iter().filter(|(_, generated)| !generated);
    let each: Vec<_> = written.map(|(page, _)| (words(&page), page)).collect();
    let all: usize = each.iter().map(|(words, _)| words).sum();
    println!("{all} words");
    assert!(each.len() > 20 && all > 10_000, "{each:?}");
    assert!(all <= WORDS_MAX, "{all} words, at most {WORDS_MAX}: {each:?}");
    let summary = "[a](a.md)\n\n# Reference\n\n- [b](b.md)\n\n# More\n\n- [c](c.md)\n";
    let flags: Vec<_> = listed(summary).into_iter().map(|(_, generated)| generated).collect();
    assert_eq!(flags, [false, true, false]);
}

#[test]
fn readme_is_short_and_links_resolve() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let lines = readme.lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines, at most {README_LINES_MAX}");
    for name in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        let path = root().join(name);
        let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://")) {
            let file = target.split('#').next().unwrap_or_default();
            let there = file.is_empty() || path.with_file_name("").join(file).exists();
            assert!(there, "{name}: the link to {target:?} leads nowhere");
        }
    }
}
