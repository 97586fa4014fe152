//! Rules for every source file, manifest and page: dependencies against the table of allowed edges, files
//! that may hold `unsafe` or read clocks, lengths, budgets, and files named by pages.
//!
//! Each check is a function of text; `samples` shows it each syntax in Rust that it must find.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rules::root;
use source::{Function, functions, line_of, masked, paths, tests_cut_out, tokens};

mod pages;
mod samples;
mod source;

/// Allowed dependencies between crates. ARCHITECTURE.md draws them.
const MAY_USE: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("runtime", &[]),
    ("bus", &["wire", "runtime"]),
    ("media", &["runtime"]),
    ("ftl", &["wire", "runtime"]),
    ("flash", &["wire", "runtime", "media", "ftl"]),
    ("device", &["wire", "runtime", "bus", "media", "ftl", "flash"]),
    ("host", &["wire", "runtime", "bus", "ftl"]),
    ("array", &["wire", "runtime", "bus", "host"]),
    ("host-flash", &["wire", "runtime", "bus", "ftl", "host"]),
    ("scsi", &["wire", "runtime", "bus", "host"]),
    ("workload", &["runtime"]),
    ("conformance", &["wire", "runtime", "bus"]),
    ("rtl", &["wire", "runtime", "bus", "host"]),
    ("functions", &["host"]),
    (
        "plan",
        &[
            "wire",
            "runtime",
            "bus",
            "media",
            "ftl",
            "flash",
            "device",
            "host",
            "array",
            "functions",
        ],
    ),
    (
        "world",
        &[
            "wire",
            "runtime",
            "bus",
            "media",
            "ftl",
            "flash",
            "device",
            "host",
            "array",
            "host-flash",
            "scsi",
            "workload",
            "functions",
            "plan",
        ],
    ),
    ("serve", &["wire", "runtime", "bus", "media", "device", "host", "plan", "world"]),
    ("qemu", &["wire", "runtime", "bus", "device", "host", "world"]),
    ("microbench", &["wire", "runtime", "bus", "host", "workload", "plan", "world"]),
    (
        "campaign",
        &[
            "wire",
            "runtime",
            "bus",
            "media",
            "device",
            "ftl",
            "host",
            "workload",
            "conformance",
            "plan",
            "world",
            "qemu",
            "microbench",
            "report",
        ],
    ),
    (
        "papers",
        &[
            "wire", "runtime", "bus", "media", "device", "host", "workload", "plan", "world",
            "campaign", "report",
        ],
    ),
    ("report", &["runtime", "media", "ftl", "workload", "plan", "world"]),
    ("fnvme", &["wire", "runtime", "bus", "device", "host", "functions", "plan", "world", "serve"]),
    ("fio-engine", &["serve", "fnvme"]),
    ("python", &["runtime", "workload", "plan", "world", "campaign", "report"]),
    ("rules", &[]),
    (
        "testing",
        &["wire", "runtime", "bus", "media", "device", "host", "workload", "plan", "world"],
    ),
    (
        "doorbell",
        &[
            "runtime",
            "media",
            "device",
            "host",
            "workload",
            "conformance",
            "plan",
            "world",
            "serve",
            "qemu",
            "microbench",
            "campaign",
            "papers",
            "report",
        ],
    ),
    (
        "rtl-command",
        &["runtime", "bus", "media", "device", "host", "rtl", "plan", "world", "doorbell"],
    ),
];

/// Further dependencies of tests: the RTL block is tested against our drive, the drive by the conformance
/// suite.
const TESTS_MAY_USE: &[(&str, &[&str])] = &[
    ("device", &["conformance"]),
    ("rtl", &["media", "ftl", "flash", "device"]),
    ("world", &["testing"]),
    ("serve", &["testing"]),
    ("campaign", &["ftl", "testing"]),
    ("doorbell", &["wire", "bus", "fnvme", "rules", "testing"]),
];

/// The only files that may hold `unsafe`.
const UNSAFE_IN: &[&str] = &[
    "crates/bus/src/shared.rs",
    "crates/bus/src/mapped.rs",
    "crates/bus/src/guard.rs",
    "crates/bus/src/vfio/sys.rs",
    "crates/runtime/src/prefetch.rs",
    "crates/runtime/src/wall.rs",
    "crates/rtl/src/verilated.rs",
    "crates/fnvme/src/c.rs",
    "crates/fnvme/src/c/extensions.rs",
    "crates/fio-engine/src/engine.rs",
    "crates/testing/src/system.rs",
];

/// The same outside the workspace: programs without an operating system.
const UNSAFE_OUTSIDE: &[&str] = &[
    "examples/bare/src/main.rs",
    "examples/boot/src/cores.rs",
    "examples/boot/src/cpu.rs",
    "examples/boot/src/heap.rs",
    "examples/boot/src/interrupts.rs",
    "examples/boot/src/loader.rs",
    "examples/boot/src/lock.rs",
    "examples/boot/src/main.rs",
    "examples/boot/src/mem.rs",
];

/// Paths restricted to one file, under any name that `use` may give them.
const ONLY_IN: &[(&str, &str)] = &[
    ("Instant", "crates/runtime/src/wall.rs"),
    ("SystemTime", "crates/campaign/src/document.rs"),
    ("thread::sleep", "crates/runtime/src/wall.rs"),
];

/// Files with futures that pass their own context to a child, or make one: nothing is polled after the
/// child. All others poll with `beside_others`, or time would advance in virtual worlds before every
/// future has been polled.
const OWN_CONTEXT: &[&str] = &[
    "crates/bus/src/sim/device.rs",
    "crates/bus/src/sim/host.rs",
    "crates/device/src/worker.rs",
    "crates/host-flash/src/disk.rs",
    "crates/microbench/src/lib.rs",
    "crates/runtime/src/pauses.rs",
    "crates/runtime/src/rt.rs",
    "crates/runtime/src/sleep.rs",
    "crates/world/src/interfaces/places.rs",
];

/// Arguments of functions named `poll` that take no context.
const NO_CONTEXT: &[&str] = &["number", "ticket"];

/// Crates whose decisions must not depend on hash order, and which do not print.
const LIBRARIES: &[&str] = &[
    "wire",
    "runtime",
    "bus",
    "media",
    "ftl",
    "flash",
    "device",
    "host",
    "array",
    "host-flash",
    "scsi",
    "workload",
    "rtl",
    "conformance",
    "functions",
    "plan",
];

const COLUMNS_MAX: usize = 110;
const LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

fn files_under(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files_under(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Every source file of the crates and of programs outside the workspace, by its path from the root: its
/// `src` and its build script.
fn sources() -> BTreeMap<String, String> {
    let (root, mut paths) = (root(), Vec::new());
    for (krate, _) in MAY_USE {
        let krate = root.join("crates").join(krate);
        files_under(&krate.join("src"), &mut paths);
        paths.extend(Some(krate.join("build.rs")).filter(|script| script.exists()));
    }
    for example in ["bare", "boot"] {
        files_under(&root.join("examples").join(example).join("src"), &mut paths);
    }
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "rs"));
    assert!(paths.len() > 50, "only {} source files found", paths.len());
    let name =
        |path: &Path| path.strip_prefix(&root).expect("under the root").display().to_string();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).expect("text"))).collect()
}

/// Asserts that a check has no complaint about any file.
fn assert_no_complaints(check: impl Fn(&str, &str) -> Vec<String>) {
    let complaints: Vec<String> =
        sources().iter().flat_map(|(path, text)| check(path, text)).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// The crates of this workspace that a manifest depends on: under any key, for any target.
fn edges(manifest: &str, sections: &[&str]) -> BTreeSet<String> {
    let manifest: toml::Table = manifest.parse().expect("TOML");
    let targets = manifest.get("target").and_then(|targets| targets.as_table());
    let tables = targets.into_iter().flatten().filter_map(|(_, target)| target.as_table());
    let mut found = BTreeSet::new();
    for table in tables.chain([&manifest]) {
        for section in sections {
            let used = table.get(*section).and_then(|used| used.as_table());
            for (key, value) in used.into_iter().flatten() {
                let package = value.get("package").and_then(|name| name.as_str()).unwrap_or(key);
                found.insert(match package.strip_prefix("doorbell") {
                    Some("") => "doorbell".to_owned(),
                    Some(krate) => krate.trim_start_matches('-').to_owned(),
                    None => package.replace('_', "-"),
                });
            }
        }
    }
    found.retain(|name| MAY_USE.iter().any(|(krate, _)| krate == name));
    found
}

#[test]
fn crates_depend_only_on_allowed_crates() {
    for (krate, allowed) in MAY_USE {
        let path = root().join("crates").join(krate).join("Cargo.toml");
        let manifest = fs::read_to_string(&path).expect("a manifest");
        let allowed: BTreeSet<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        let used = edges(&manifest, &["dependencies", "build-dependencies"]);
        assert_eq!(used, allowed, "{}", path.display());
        let tests_use = edges(&manifest, &["dev-dependencies"]);
        let more = TESTS_MAY_USE.iter().filter(|(of, _)| of == krate).flat_map(|(_, more)| *more);
        let allowed = allowed.into_iter().chain(more.map(|name| (*name).to_owned())).collect();
        assert!(tests_use.is_subset(&allowed), "{}: tests use {tests_use:?}", path.display());
    }
    let mut folders: Vec<String> = fs::read_dir(root().join("crates"))
        .expect("crates")
        .map(|entry| entry.expect("a crate").file_name().into_string().expect("a name"))
        .collect();
    let mut crates: Vec<&str> = MAY_USE.iter().map(|(krate, _)| *krate).collect();
    folders.sort();
    crates.sort_unstable();
    assert_eq!(folders, crates, "every crate is in MAY_USE");
}

/// Lines that hold unsafe code, or allow it.
fn unsafe_lines(text: &str) -> Vec<usize> {
    let masked = masked(text);
    let tokens = tokens(&masked);
    let token = |number: usize| tokens.get(number).map_or("", |(_, token)| *token);
    let mut lines = Vec::new();
    for (number, (at, word)) in tokens.iter().enumerate() {
        let found = match *word {
            "unsafe" => {
                // A function pointer type `unsafe fn` is not unsafe code.
                let behind = number + 1 + usize::from(token(number + 1) == "extern");
                (token(behind), token(behind + 1)) != ("fn", "(")
            }
            "unsafe_code" => !["forbid", "deny"].contains(&token(number.saturating_sub(2))),
            _ => false,
        };
        if found {
            lines.push(line_of(&masked, *at));
        }
    }
    lines
}

#[test]
fn unsafe_only_in_listed_files() {
    let named: Vec<&str> = UNSAFE_IN.iter().chain(UNSAFE_OUTSIDE).copied().collect();
    assert_no_complaints(|path, text| {
        let lines = unsafe_lines(text);
        match (lines.is_empty(), named.contains(&path)) {
            (false, false) => vec![format!("{path}: unsafe code in lines {lines:?}")],
            (true, true) => vec![format!("{path} is named and holds no unsafe code")],
            _ => Vec::new(),
        }
    });
    for place in named {
        assert!(root().join(place).exists(), "{place} is named and not there");
    }
}

/// Uses of restricted paths outside their file.
fn misplaced_uses(path: &str, text: &str) -> Vec<String> {
    let masked = tests_cut_out(&masked(text));
    let mut found = Vec::new();
    for (at, used) in paths(&masked) {
        for (what, home) in ONLY_IN {
            let (folder, name): (&str, &str) = what.rsplit_once("::").unwrap_or(("time", what));
            let plain = used.split(" as ").next().unwrap_or(&used);
            let whole = format!("::{plain}");
            let held = whole.split("::").any(|part| part == name && !what.contains("::"))
                || whole.contains(&format!("::{what}"))
                || whole.ends_with(&format!("::{folder}::*"))
                || used.contains(&format!("::{folder} as "));
            if held && path != *home {
                let line = line_of(&masked, at);
                found.push(format!("{path}:{line}: {used}: {what} has its home in {home}"));
            }
        }
    }
    found
}

#[test]
fn restricted_calls_stay_in_their_file() {
    assert_no_complaints(misplaced_uses);
}

/// Lines that poll with a context that only the last poll of a future may use.
fn polls_with_own_context(text: &str) -> Vec<usize> {
    let masked = tests_cut_out(&masked(text));
    let mut lines = Vec::new();
    for call in [".poll(", "::poll(", "poll_unpin(", ".try_poll("] {
        for (at, _) in masked.match_indices(call) {
            let inside = &masked[at + call.len()..];
            let mut depth = 1;
            let end = inside.find(|sign| {
                depth += i32::from(sign == '(') - i32::from(sign == ')');
                depth == 0
            });
            let inside = inside[..end.unwrap_or(inside.len())].trim();
            // The poll of a future takes a context, and the future too if called by its path.
            let another = inside.matches(", ").count() > 1;
            let plain = inside.is_empty() || NO_CONTEXT.contains(&inside) || another;
            // The system call `poll`.
            let system = masked[..at].ends_with("rustix::event");
            if !plain && !system && !inside.contains("beside_others(") {
                lines.push(line_of(&masked, at));
            }
        }
    }
    lines.sort_unstable();
    lines
}

#[test]
fn only_last_polls_reuse_their_context() {
    assert_no_complaints(|path, text| {
        let lines = polls_with_own_context(text);
        match lines.is_empty() == OWN_CONTEXT.contains(&path) {
            true => vec![format!("{path}: lines {lines:?} against {OWN_CONTEXT:?}")],
            false => Vec::new(),
        }
    });
}

/// Macros that print, and collections with an order of their own in each process.
const NOT_IN_LIBRARIES: &[&str] = &[
    "HashMap",
    "HashSet",
    "RandomState",
    "print!",
    "println!",
    "eprint!",
    "eprintln!",
    "dbg!",
    "stdout",
    "stderr",
];

/// Uses of what `NOT_IN_LIBRARIES` lists, in a library crate.
fn library_complaints(path: &str, text: &str) -> Vec<String> {
    let krate = path.split('/').nth(1).expect("crates/<name>/...");
    // A build script prints for cargo.
    if !LIBRARIES.contains(&krate) || path.ends_with("/build.rs") {
        return Vec::new();
    }
    let masked = tests_cut_out(&masked(text));
    let tokens = tokens(&masked);
    let mut found = Vec::new();
    for (number, (at, word)) in tokens.iter().enumerate() {
        let called = tokens.get(number + 1).is_some_and(|(_, sign)| *sign == "!");
        let word = if called { format!("{word}!") } else { (*word).to_owned() };
        if NOT_IN_LIBRARIES.contains(&word.as_str()) {
            found.push(format!("{path}:{} uses {word}", line_of(&masked, *at)));
        }
    }
    found
}

#[test]
fn libraries_use_no_hash_order_and_do_not_print() {
    assert_no_complaints(library_complaints);
}

/// Markers of unfinished work, in comments and code.
/// A library without a test program has no unit tests, which would never run.
#[test]
fn unit_tests_have_a_test_program() {
    let sources = sources();
    for (krate, _) in MAY_USE {
        let manifest = root().join("crates").join(krate).join("Cargo.toml");
        let manifest: toml::Table =
            fs::read_to_string(manifest).expect("a manifest").parse().expect("TOML");
        let runs = manifest.get("lib").and_then(|lib| lib.get("test")?.as_bool()) != Some(false);
        let inside = format!("crates/{krate}/src/");
        let tested = |(path, text): &(&String, &String)| {
            path.starts_with(&inside) && text.lines().any(|line| line.trim() == "#[test]")
        };
        assert_eq!(sources.iter().find(tested).filter(|_| !runs), None, "{krate}: test = false");
    }
}

fn todo_markers(path: &str, text: &str) -> Vec<String> {
    let marks = ["TO\u{44}O", "FIX\u{4d}E", "XX\u{58}", "unimple\u{6d}ented", "tod\u{6f}"];
    let words = tokens(text).into_iter();
    let held = words.filter(|(_, word)| marks.contains(word));
    held.map(|(at, word)| format!("{path}:{} holds {word}", line_of(text, at))).collect()
}

#[test]
fn no_todo_markers() {
    assert_no_complaints(todo_markers);
}

fn too_long(path: &str, text: &str) -> Vec<String> {
    let (count, mut found) = (text.lines().count(), Vec::new());
    if count > LINES_MAX {
        found.push(format!("{path} has {count} lines, at most {LINES_MAX}"));
    }
    for (number, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            found.push(format!("{path}:{} has {columns} columns", number + 1));
        }
    }
    found
}

#[test]
fn file_and_line_length_limits() {
    assert_no_complaints(too_long);
}

fn long_functions(path: &str, text: &str) -> Vec<String> {
    let masked = masked(text);
    let long = functions(&masked).into_iter().filter(|one| one.lines > FUNCTION_LINES_MAX);
    long.map(|Function { name, line, lines }| format!("{path}:{line}: {name} has {lines} lines"))
        .collect()
}

#[test]
fn function_length_limit() {
    assert_no_complaints(long_functions);
    // Every function is measured: as many as there are `fn NAME` with a body.
    let seen: usize = sources().values().map(|text| functions(&masked(text)).len()).sum();
    assert!(seen > 4000, "only {seen} functions seen");
}
