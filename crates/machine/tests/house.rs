//! The house inspects itself: the dependency picture of ARCHITECTURE.md against the manifests, and
//! what every source file promises.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Which room may use which. An edge that is not drawn here is a mistake, here or there.
const MAY_USE: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("runtime", &[]),
    ("bus", &["wire", "runtime"]),
    ("media", &["runtime"]),
    ("ftl", &["runtime"]),
    ("device", &["wire", "runtime", "bus", "ftl", "media"]),
    ("host", &["wire", "runtime", "bus", "ftl"]),
    ("workload", &["runtime"]),
    ("conformance", &["wire", "runtime", "bus"]),
    ("rtl", &["wire", "runtime", "bus", "host"]),
    (
        "machine",
        &[
            "wire",
            "runtime",
            "bus",
            "media",
            "ftl",
            "device",
            "host",
            "workload",
            "rtl",
            "conformance",
        ],
    ),
    ("fnvme", &["machine"]),
    ("fio-engine", &["fnvme", "machine"]),
];

/// The only files that may hold `unsafe`.
const UNSAFE_IN: &[&str] = &[
    "crates/bus/src/shared.rs",
    "crates/bus/src/fd.rs",
    "crates/bus/src/guard.rs",
    "crates/bus/src/vfio/sys.rs",
    "crates/runtime/src/wall.rs",
    "crates/rtl/src/verilated.rs",
    "crates/fnvme/src/c.rs",
    "crates/fio-engine/src/engine.rs",
];

/// The same of what is not of the workspace: programs that have no operating system.
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

/// Calls that have one home, and that home.
const ONLY_IN: &[(&str, &str)] = &[
    ("Instant::now", "crates/runtime/src/wall.rs"),
    ("SystemTime::now", "crates/machine/src/cli/run.rs"),
    ("thread::sleep", "crates/runtime/src/wall.rs"),
];

/// Where a future hands its child its own context: it asks nobody after the child. Others ask with
/// `beside_others`, or time would pass in virtual worlds before all have been asked.
const ASKED_LAST: &[&str] = &[
    "crates/bus/src/sim/device.rs",
    "crates/bus/src/sim/host.rs",
    "crates/device/src/block/slot.rs",
    "crates/device/src/dcx/slot.rs",
    "crates/device/src/nvme/slot.rs",
    "crates/host/src/pages/disk.rs",
    "crates/machine/src/measure.rs",
    "crates/runtime/src/sleep.rs",
];

/// Rooms whose decisions must not depend on hash order, and which do not print.
const QUIET_ROOMS: &[&str] =
    &["wire", "runtime", "bus", "media", "ftl", "device", "host", "workload", "rtl", "conformance"];

const COLUMNS_MAX: usize = 110;
const LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn sources_under(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources_under(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Every source file of the rooms and of programs outside the workspace, by its path from the root.
fn sources() -> BTreeMap<String, String> {
    let (root, mut paths) = (root(), Vec::new());
    for (room, _) in MAY_USE {
        sources_under(&root.join("crates").join(room).join("src"), &mut paths);
    }
    for example in ["bare", "boot"] {
        sources_under(&root.join("examples").join(example).join("src"), &mut paths);
    }
    assert!(paths.len() > 50, "only {} source files found", paths.len());
    let name =
        |path: &Path| path.strip_prefix(&root).expect("under the root").display().to_string();
    paths.iter().map(|path| (name(path), fs::read_to_string(path).expect("text"))).collect()
}

fn tests_cut_off(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

#[test]
fn rooms_use_only_the_rooms_they_are_drawn_to_use() {
    for (room, allowed) in MAY_USE {
        let path = root().join("crates").join(room).join("Cargo.toml");
        let manifest: toml::Table =
            fs::read_to_string(&path).expect("a manifest").parse().expect("TOML");
        let used = manifest.get("dependencies").and_then(|d| d.as_table()).expect("dependencies");
        for (other, _) in MAY_USE {
            let edge = used.contains_key(*other);
            assert_eq!(edge, allowed.contains(other), "{room} -> {other} in {}", path.display());
        }
    }
}

#[test]
fn unsafe_lives_in_named_places() {
    for (path, text) in sources() {
        let has =
            text.contains("unsafe {") || text.contains("unsafe fn") || text.contains("unsafe impl");
        let places = UNSAFE_IN.iter().chain(UNSAFE_OUTSIDE);
        let named = places.into_iter().any(|place| *place == path);
        assert!(!has || named, "{path} holds unsafe code");
    }
}

#[test]
fn calls_that_have_one_home_stay_there() {
    for (path, text) in sources() {
        for (call, home) in ONLY_IN {
            let held = tests_cut_off(&text).contains(call);
            assert!(!held || path == *home, "{path} calls {call}, which has its home in {home}");
        }
    }
}

#[test]
fn who_polls_several_futures_lets_no_time_pass_between() {
    for (path, text) in sources() {
        let hands_on = tests_cut_off(&text).contains(".poll(cx)");
        assert_eq!(hands_on, ASKED_LAST.contains(&path.as_str()), "{path}: {ASKED_LAST:?}");
    }
}

#[test]
fn decisions_do_not_depend_on_hash_order_and_libraries_do_not_print() {
    for (path, text) in sources() {
        let room = path.split('/').nth(1).expect("crates/<room>/...");
        if !QUIET_ROOMS.contains(&room) {
            continue;
        }
        for banned in ["HashMap", "HashSet", "println!(", "dbg!("] {
            let line = tests_cut_off(&text)
                .lines()
                .position(|line| line.contains(banned) && !line.trim_start().starts_with("//"));
            assert_eq!(line.map(|n| n + 1), None, "{path} uses {banned}");
        }
    }
}

#[test]
fn nothing_is_left_for_later() {
    for (path, text) in sources() {
        for mark in ["TO\u{44}O", "FIX\u{4d}E", "unimple\u{6d}ented!", "tod\u{6f}!("] {
            assert!(!text.contains(mark), "{path} holds {mark}");
        }
    }
}

#[test]
fn files_and_lines_have_a_length_that_a_reader_can_take_in() {
    for (path, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= LINES_MAX, "{path} has {lines} lines, at most {LINES_MAX}");
        for (number, line) in text.lines().enumerate() {
            let columns = line.chars().count();
            assert!(columns <= COLUMNS_MAX, "{path}:{} has {columns} columns", number + 1);
        }
    }
}

#[test]
fn functions_fit_a_screen() {
    for (path, text) in sources() {
        let mut open: Option<(usize, usize, String)> = None;
        for (number, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let begins = line.trim_start().split('(').next().is_some_and(|head| {
                head.split_whitespace().any(|word| word == "fn") && !head.starts_with("//")
            });
            match &open {
                None if begins && !line.trim_end().ends_with([';', '}']) => {
                    open = Some((number, indent, line.trim().to_owned()));
                }
                Some((from, at, name)) if indent == *at && line.trim() == "}" => {
                    let length = number - from + 1;
                    assert!(
                        length <= FUNCTION_LINES_MAX,
                        "{path}:{}: {length} lines: {name}",
                        from + 1
                    );
                    open = None;
                }
                _ => {}
            }
        }
    }
}
