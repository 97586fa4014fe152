//! The pages against the tree: files named by them exist, their code blocks are closed, and
//! docs/testing.md and README.md give the budgets of `tools/test`.

use super::*;

/// Output of builds and downloads, and files that are not part of the project.
const NOT_OURS: &[&str] = &["target", ".git", "corpus", "artifacts", "__pycache__", "node_modules"];

/// Suffixes by which a word in code is a file name.
const ENDINGS: &[&str] =
    &["rs", "md", "toml", "fio", "py", "sv", "sby", "iolog", "trace", "golden", "cu", "cc"];

/// Files named by pages that are not in the tree: a user's, a system's, or output of a run.
const ELSEWHERE: &[&str] = &["my.toml", "this-machine.toml"];

/// The paths of all files and folders, from the root.
fn tree() -> BTreeSet<String> {
    fn walk(folder: &Path, root: &Path, found: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            if NOT_OURS.contains(&name.as_str()) {
                continue;
            }
            found.insert(path.strip_prefix(root).expect("under it").display().to_string());
            if path.is_dir() && !path.is_symlink() {
                walk(&path, root, found);
            }
        }
    }
    let mut found = BTreeSet::new();
    walk(&root(), &root(), &mut found);
    assert!(found.len() > 300, "only {} files", found.len());
    found
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// `a{b,c}d` as `abd` and `acd`.
fn braces_written_out(word: &str) -> Vec<String> {
    let Some((before, rest)) = word.split_once('{') else { return vec![word.to_owned()] };
    let Some((inside, behind)) = rest.split_once('}') else { return vec![word.to_owned()] };
    let each = inside.split(',').map(|one| format!("{before}{one}{behind}"));
    each.flat_map(|word| braces_written_out(&word)).collect()
}

/// The words of code in a line: those in backticks, or the whole line inside a code block.
fn code_words(line: &str, in_block: bool) -> Vec<&str> {
    let code: Vec<&str> = match in_block {
        true => vec![line],
        false => line.split('`').skip(1).step_by(2).collect(),
    };
    let apart = |sign: char| sign.is_whitespace() || "()[]<>=|;\"'`".contains(sign);
    code.into_iter().flat_map(|code| code.split(apart)).filter(|word| !word.is_empty()).collect()
}

/// Targets of the links of a line, without their `#` fragments.
fn links(line: &str) -> Vec<&str> {
    let ends = line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next());
    ends.map(|link| link.split('#').next().unwrap_or(link))
        .filter(|link| !link.is_empty() && !link.contains("://") && !link.starts_with("mailto:"))
        .collect()
}

/// Whether the file exists; `None` if the word names no file of this project.
fn is_there(word: &str, tree: &BTreeSet<String>) -> Option<bool> {
    let word = word.trim_end_matches([',', '.', ':']).trim_end_matches('/');
    let word = word.strip_prefix("./").unwrap_or(word);
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "._-/*".contains(sign);
    if !word.chars().all(plain) || word.starts_with(['/', '.', '-']) && !word.starts_with(".ci/") {
        return None;
    }
    let (first, behind) = word.split_once('/').unwrap_or((word, ""));
    if NOT_OURS.contains(&first) {
        return None;
    }
    let ends = word.rsplit_once('.').is_some_and(|(stem, ending)| {
        !stem.is_empty() && ENDINGS.contains(&ending) && !word.contains('*')
    });
    let rooted = !behind.is_empty() && tree.contains(first);
    let of_a_crate = MAY_USE.iter().any(|(krate, _)| *krate == first)
        && ["src", "tests", "benches"].contains(&behind.split('/').next().unwrap_or(""));
    if !(rooted || of_a_crate || ends) {
        return None;
    }
    if let Some((before, after)) = word.split_once('*') {
        return Some(tree.iter().any(|path| {
            let at = path.find(before).map(|at| at + before.len());
            at.is_some_and(|at| path[at..].ends_with(after.rsplit('*').next().unwrap_or(after)))
        }));
    }
    let last = format!("/{word}");
    Some(tree.contains(word) || tree.iter().any(|path| path.ends_with(&last)))
}

/// Missing files named by a page, and code blocks that do not end.
fn page_complaints(name: &str, text: &str, tree: &BTreeSet<String>) -> Vec<String> {
    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    let (mut found, mut open) = (Vec::new(), None);
    for (number, line) in text.lines().enumerate() {
        let at = format!("{name}:{}", number + 1);
        if let Some(info) = line.trim_start().strip_prefix("```") {
            open = match (open, info.trim().is_empty()) {
                (None, _) => Some(number + 1),
                (Some(_), true) => None,
                (Some(begin), false) => {
                    found.push(format!("{at}: a block begins in that of line {begin}"));
                    Some(number + 1)
                }
            };
            continue;
        }
        let words = code_words(line, open.is_some()).into_iter().flat_map(braces_written_out);
        for word in words.filter(|word| !ELSEWHERE.contains(&word.as_str())) {
            if is_there(&word, tree) == Some(false) {
                found.push(format!("{at}: {word} is not there"));
            }
        }
        for link in links(line).into_iter().filter(|_| open.is_none()) {
            if !root().join(folder).join(link).exists() {
                found.push(format!("{at}: the link to {link} leads nowhere"));
            }
        }
    }
    found.extend(open.map(|begin| format!("{name}:{begin}: a block without an end")));
    found
}

#[test]
fn files_named_by_pages_exist_and_code_blocks_close() {
    let tree = tree();
    let pages = tree.iter().filter(|path| path.ends_with(".md"));
    let complaints: Vec<String> =
        pages.flat_map(|page| page_complaints(page, &read(page), &tree)).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn missing_files_in_pages_are_found() {
    let tree = BTreeSet::from(
        ["crates", "crates/a/src/papers/mod.rs", "tools", "tools/test", "tools/one.golden", "docs"]
            .map(str::to_owned),
    );
    let complaints = |text: &str| page_complaints("docs/a.md", text, &tree).len();
    for text in [
        "`crates/a/src/papers.rs`",
        "`papers.rs`",
        "`tools/tests`",
        "a row in `tools/test` and `tools/tost`.",
        "`crates/a/src/papers/{mod,none}.rs`",
        "```sh\ntools/tost papers\n```",
        "`wire/tests/none.rs`",
        "[a page](none.md#there)",
        "```sh\na\n```\n```text\nb\nWords.\n```sh\nc\n```",
        "```sh\na\n",
        "`tools/*.silver`",
    ] {
        assert_eq!(complaints(text), 1, "{text}");
    }
    for text in [
        "`crates/a/src/papers/mod.rs`, `papers/mod.rs`, `mod.rs`, `tools/`, `tools/*.golden`",
        "`target/a.json`: `a / b`, `/dev/nvme0`, `Instant::now`, `4.5`",
        "[a page](https://example.org/a.md) [here](#there)",
        "```sh\ntools/test papers\n```\n```console\n$ a\n```",
    ] {
        assert_eq!(complaints(text), 0, "{text}");
    }
}

/// Minutes with at most two decimals, in hundredths.
fn hundredths(minutes: &str) -> u32 {
    let minutes: f64 = minutes.parse().unwrap_or_else(|_| panic!("{minutes}: not minutes"));
    (minutes * 100.0).round() as u32
}

/// The output of `tools/test --list`: names, budgets, and when each part runs.
fn budgets_of_script() -> BTreeMap<String, (u32, String)> {
    let script = root().join("tools/test");
    let output = std::process::Command::new(script).arg("--list").output().expect("Python 3.11");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let rows = text.lines().map(|row| {
        let (name, budget) = row.split_once(' ').expect("a name and a budget");
        let (budget, column) = budget.split_once(' ').expect("a budget and a column");
        (name.to_owned(), (hundredths(budget), column.to_owned()))
    });
    rows.collect()
}

/// The budget of each part in docs/testing.md: `**name** (0.5 min)`.
fn budgets_of_page(text: &str) -> BTreeMap<String, u32> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("**")?.split_once("** ("));
    let budget = |(name, rest): (&str, &str)| {
        Some((name.to_owned(), hundredths(rest.split_once(" min)")?.0)))
    };
    lines.filter_map(budget).collect()
}

/// The number before a word that occurs once.
fn number_before(name: &str, text: &str, word: &str) -> u32 {
    let [before, _] = text.split(word).collect::<Vec<_>>()[..] else {
        panic!("{name}: found{word} not exactly once")
    };
    let number = before.rsplit(|sign: char| !sign.is_ascii_digit()).next().expect("a last part");
    number.parse().unwrap_or_else(|_| panic!("{name}: {number:?} before{word}"))
}

#[test]
fn test_budgets_match_in_script_and_pages() {
    let (page, readme) = (read("docs/testing.md"), read("README.md"));
    let parts = budgets_of_script();
    let all = parts.iter().map(|(name, (budget, _))| (name.clone(), *budget)).collect();
    assert_eq!(budgets_of_page(&page), all, "docs/testing.md and tools/test");
    let sum = |wanted: &str| -> u32 {
        parts.values().filter(|(_, column)| column == wanted).map(|(budget, _)| budget).sum()
    };
    let short = sum("short");
    let (foreground, background) = (short + sum("foreground"), sum("background"));
    let limit = number_before("docs/testing.md", &page, " minutes in\nall");
    assert!(short > 0 && background > 0 && sum("named") > 0, "{parts:?}");
    assert!(short <= 100 * limit, "{short} hundredths are more than {limit} minutes");
    assert_eq!(number_before("README.md", &readme, " minutes or less"), limit);
    let limit = number_before("docs/testing.md", &page, ". A fixed loop");
    assert!(foreground <= 100 * limit, "{foreground} hundredths are more than {limit} minutes");
    assert!(background <= foreground, "the background ends with the foreground");
}
