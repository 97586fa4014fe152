//! The program prints what the pages show.
//!
//! A fence ```` ```console ```` holds commands after `$ `, each followed by its output. Every command is
//! run here, from the root, with the binary of this build; `cargo run --release --` stands for it too. A
//! line `...` stands for any number of lines; all others are compared one by one. Of live runs and
//! `bench`, whose results are measured, the words are compared and the numbers are not.
//!
//! `DOORBELL_BLESS=1` puts the simulated numbers of this build into the pages, `DOORBELL_BLESS=live` those
//! of the live runs too.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use crate::pictures;

/// Pages whose commands are run: those at the root, and all of the book. `DOORBELL_PAGE=docs/flash.md` runs
/// those of one page.
fn pages() -> Vec<String> {
    let book = rules::pages().into_iter().map(|(page, _)| format!("docs/{page}"));
    let all = ["README.md", "ARCHITECTURE.md"].map(str::to_owned).into_iter().chain(book);
    let one = std::env::var("DOORBELL_PAGE").ok();
    all.filter(|page| one.as_ref().is_none_or(|one| one == page)).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// One command of a page, and the lines that follow it.
struct Example {
    /// Line of its `$ `, counted from zero.
    line: usize,
    command: String,
    /// Lines of the page that show its output.
    shown: std::ops::Range<usize>,
}

/// The examples of a page by fence: a server started by one of them lives until the end of its fence.
fn fences(page: &str) -> Vec<Vec<Example>> {
    let lines: Vec<&str> = page.lines().collect();
    let (mut fences, mut open): (Vec<Vec<Example>>, bool) = (Vec::new(), false);
    for (number, line) in lines.iter().enumerate() {
        match (*line, open) {
            ("```console", false) => {
                fences.push(Vec::new());
                open = true;
            }
            ("```", true) => open = false,
            (_, true) => {
                let fence = fences.last_mut().expect("a fence is open");
                if let Some(example) = fence.last_mut().filter(|e| e.command.ends_with('\\')) {
                    example.command.pop();
                    example.command.push_str(line.trim_start());
                    example.shown = number + 1..number + 1;
                } else if let Some(command) = line.strip_prefix("$ ") {
                    let shown = number + 1..number + 1;
                    fence.push(Example { line: number, command: command.to_owned(), shown });
                } else {
                    let example = fence.last_mut();
                    let example = example.unwrap_or_else(|| panic!("{line:?} follows no command"));
                    example.shown.end = number + 1;
                }
            }
            _ => {}
        }
    }
    assert!(!open, "a console fence is not closed");
    fences
}

/// A shell for the command, in which `doorbell` is the binary of this build.
fn shell(command: &str) -> Command {
    let typed = match command.strip_prefix("cargo run --release -- ") {
        Some(arguments) => format!("doorbell {arguments}"),
        None => command.to_owned(),
    };
    assert!(typed.starts_with("doorbell "), "{command:?}: a console fence runs doorbell");
    let binary = Path::new(env!("CARGO_BIN_EXE_doorbell"));
    let folder = binary.parent().expect("a folder").display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec {typed}")).current_dir(root()).env("PATH", path);
    shell.stdin(Stdio::null()).stdout(Stdio::piped());
    shell
}

/// A server that ends with the fence.
struct Server(Child);

impl Server {
    /// Starts it, and waits for its first line of output: then it listens.
    fn start(command: &str) -> Server {
        let mut child = shell(command).spawn().expect("a shell");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        let mut output = BufReader::new(output);
        output.read_line(&mut line).expect("text");
        assert!(!line.is_empty(), "{command:?} ended without a word");
        // The rest is read too, or the server would fail with a broken pipe.
        std::thread::spawn(move || std::io::copy(&mut output, &mut std::io::sink()));
        Server(child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().expect("our own child");
        self.0.wait().expect("our own child");
    }
}

/// The words of a line, without numbers.
fn words(line: &str) -> String {
    let word = |token: &&str| !token.contains(|c: char| c.is_ascii_digit());
    line.split_whitespace().filter(word).collect::<Vec<_>>().join(" ")
}

/// Changed lines of a page, by line number.
type Changes = Vec<(usize, String)>;

/// Compares the output shown by a page with the actual output.
fn compare(page: &str, example: &Example, printed: &str, bless_live: bool, changes: &mut Changes) {
    let (shown, printed): (Vec<&str>, Vec<&str>) =
        (page.lines().collect(), printed.lines().collect());
    let command = &example.command;
    let mut live =
        [" bench", " calibrate", "--world live"].iter().any(|mark| command.contains(mark));
    let (mut at, mut skipping) = (0, false);
    for number in example.shown.clone() {
        let line = shown[number];
        if line.trim() == "..." {
            skipping = true;
            continue;
        }
        let found = match skipping {
            true => printed[at..].iter().position(|p| words(p) == words(line)).map(|n| at + n),
            false => printed.get(at).filter(|p| words(p) == words(line)).map(|_| at),
        };
        let Some(found) = found else {
            let next = printed.get(at).copied().unwrap_or("nothing more");
            panic!("line {}: {command:?} prints no line like\n{line}\nbut\n{next}", number + 1);
        };
        if line.starts_with("== ") {
            live = line.contains(", live, ");
        }
        // A summary of both worlds marks the rows of the live one.
        let of_live = live || line.split_whitespace().any(|word| word == "live");
        if printed[found] != line && (!of_live || bless_live) {
            changes.push((number, printed[found].to_owned()));
        }
        (at, skipping) = (found + 1, false);
    }
    assert!(
        example.shown.is_empty() || skipping || at == printed.len(),
        "line {}: {command:?} goes on with\n{}",
        example.line + 1,
        printed[at.min(printed.len() - 1)]
    );
}

/// Runs the examples of a fence, one after the other.
fn run_fence(name: &str, page: &str, fence: Vec<Example>, bless_live: bool) -> Changes {
    let (mut servers, mut changes) = (Vec::new(), Changes::new());
    for example in fence {
        if let Some(command) = example.command.strip_suffix(" &") {
            servers.push(Server::start(command));
            continue;
        }
        let done = shell(&example.command).output().expect("a shell");
        let at = format!("{name}:{}: {}", example.line + 1, example.command);
        assert!(done.status.success(), "{at}: {:?}", done.status);
        println!("{at}: runs");
        let printed = String::from_utf8(done.stdout).expect("text");
        compare(page, &example, &printed, bless_live, &mut changes);
    }
    changes
}

/// Checks that no two servers of the pages, which may run at the same time, listen at the same socket.
fn servers_have_addresses_of_their_own(examples: impl Iterator<Item = Example>) {
    let mut seen = std::collections::BTreeSet::new();
    for example in examples.filter(|example| example.command.ends_with(" &")) {
        for socket in example.command.split_whitespace().filter(|word| word.ends_with(".sock")) {
            assert!(
                seen.insert(socket.to_owned()),
                "{}: another page has {socket}",
                example.command
            );
        }
    }
}

#[test]
fn doc_examples_print_their_shown_output() {
    let bless = std::env::var("DOORBELL_BLESS").unwrap_or_default();
    // Folder for the output files of the examples.
    fs::create_dir_all(root().join("target")).expect("a folder");
    let text = |name: &str| {
        fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let pages: Vec<_> = pages().into_iter().map(|name| (text(&name), name)).collect();
    let pages: Vec<_> = pages.iter().map(|(text, name)| (name.as_str(), text)).collect();
    let of_page = |at: usize| fences(pages[at].1).into_iter().map(move |fence| (at, fence));
    servers_have_addresses_of_their_own((0..pages.len()).flat_map(of_page).flat_map(|(_, f)| f));
    // Fences are independent: each core takes the next one.
    let next = Mutex::new((0..pages.len()).flat_map(of_page).collect::<Vec<_>>().into_iter());
    let changes = Mutex::new(vec![Changes::new(); pages.len()]);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some((at, fence)) = next.lock().expect("no panic").next() else { return };
                    let (name, page) = &pages[at];
                    let found = run_fence(name, page, fence, bless == "live");
                    changes.lock().expect("no panic")[at].extend(found);
                }
            });
        }
    });
    for ((name, page), changes) in pages.iter().zip(changes.into_inner().expect("no panic")) {
        if bless.is_empty() {
            let told: Vec<_> =
                changes.iter().map(|(line, now)| format!("{name}:{}: {now}", line + 1)).collect();
            let told = told.join("\n");
            assert!(
                changes.is_empty(),
                "output differs; DOORBELL_BLESS=1 updates the page:\n{told}"
            );
        } else {
            let mut lines: Vec<String> = page.lines().map(str::to_owned).collect();
            changes.into_iter().for_each(|(line, now)| lines[line] = now);
            fs::write(root().join(name), lines.join("\n") + "\n").expect("a writable page");
        }
    }
    if pages.iter().any(|(name, _)| *name == pictures::PAGE) {
        pictures::check();
    }
}

#[test]
fn doc_example_line_comparison() {
    let page = "```console\n$ doorbell x --world sim\na 1\n...\nc 3\n```\n";
    let fence = fences(page).remove(0);
    let mut changes = Changes::new();
    compare(page, &fence[0], "a 1\nb 2\nc 4\n", false, &mut changes);
    assert_eq!(changes, [(4, "c 4".to_owned())]);
    let missing = std::panic::catch_unwind(|| {
        compare(page, &fences(page)[0][0], "a 1\nb 2\n", false, &mut Changes::new());
    });
    assert!(missing.is_err(), "a line that is not printed");
    let longer = std::panic::catch_unwind(|| {
        compare(page, &fences(page)[0][0], "a 1\nc 3\nd 4\n", false, &mut Changes::new());
    });
    assert!(longer.is_err(), "lines that are not shown");
}
