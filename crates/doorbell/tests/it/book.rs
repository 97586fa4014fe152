//! The book in `docs`: `SUMMARY.md` lists every page, links and their anchors resolve, its length is bounded,
//! and mdbook builds it where it is installed. No network.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use testing::root;

/// Most words of the pages that people write: tokens with a letter or a digit.
const WORDS_MAX: usize = 26_500;

/// Heading of `SUMMARY.md` over the pages that are generated.
const GENERATED: &str = "# Reference";

/// The pages by file name in `docs`, in the order of `SUMMARY.md`; whether each is generated.
pub fn pages() -> Vec<(String, bool)> {
    listed(&read("SUMMARY.md"))
}

fn listed(summary: &str) -> Vec<(String, bool)> {
    let mut generated = false;
    let mut pages = Vec::new();
    for line in summary.lines() {
        generated = if line.starts_with("# ") { line == GENERATED } else { generated };
        let target = line.split_once("](").and_then(|(_, rest)| rest.split_once(')'));
        pages.extend(target.map(|(target, _)| (target.to_owned(), generated)));
    }
    pages
}

fn read(page: &str) -> String {
    let path = root().join("docs").join(page);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

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
fn book_has_at_most_26500_words() {
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

/// With mdbook installed (`cargo install mdbook`), it builds the book and warns of nothing.
#[test]
fn mdbook_builds_without_warnings() {
    let mdbook = std::env::var_os("MDBOOK").unwrap_or("mdbook".into());
    let folder = root().join("target/book-checked");
    let mut command = Command::new(mdbook);
    command.arg("build").arg("--dest-dir").arg(&folder).arg(root());
    let Ok(output) = command.output() else {
        println!("left out: mdbook is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("WARN") && !text.contains("ERROR"), "{text}");
    assert!(folder.join("first-hour.html").exists(), "{text}");
}

/// Every command, with the words that lead to it.
fn commands() -> Vec<String> {
    fn walk(command: &clap::Command, name: &str, found: &mut Vec<String>) {
        found.push(name.to_owned());
        for sub in command.get_subcommands() {
            walk(sub, &format!("{name}-{}", sub.get_name()), found);
        }
    }
    let mut found = Vec::new();
    walk(&doorbell::command_line(), "doorbell", &mut found);
    found
}

fn output_of(arguments: &[&str]) -> String {
    let done = Command::new(env!("CARGO_BIN_EXE_doorbell")).args(arguments).output();
    let done = done.expect("the program");
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn every_command_has_a_man_page_and_help() {
    let folder = root().join("target/man-checked");
    let _ = fs::remove_dir_all(&folder);
    assert_eq!(output_of(&["man", &folder.display().to_string()]), "");
    let mut written: Vec<_> = fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().display().to_string())
        .collect();
    written.sort_unstable();
    let mut expected: Vec<_> = commands().iter().map(|name| format!("{name}.1")).collect();
    expected.sort_unstable();
    assert!(expected.len() > 20, "{expected:?}");
    assert_eq!(written, expected);
    for name in written {
        let page = fs::read_to_string(folder.join(&name)).expect("a page");
        for section in [".TH ", ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
            assert!(page.contains(section), "{name}: no {section}");
        }
    }
}

/// Each script names every command; shells that are installed parse their own.
#[test]
fn completion_scripts_parse_and_name_every_command() {
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        let script = output_of(&["completions", shell]);
        let path = root().join("target").join(format!("completions.{shell}"));
        fs::write(&path, &script).expect("a script");
        for name in commands() {
            let word = name.rsplit_once("doorbell-").map_or("doorbell", |(_, last)| last);
            let last = word.rsplit('-').next().expect("a word");
            assert!(script.contains(last), "{shell}: no {word}");
        }
        match Command::new(shell).arg(check).arg(&path).output() {
            Ok(done) => {
                let text = String::from_utf8_lossy(&done.stderr);
                assert!(done.status.success() && text.is_empty(), "{shell}: {text}");
            }
            Err(_) => println!("left out: {shell} is not installed"),
        }
    }
}
