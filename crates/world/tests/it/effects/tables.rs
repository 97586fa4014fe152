//! Every key of a table that one interface or one medium alone reads has an effect: those of DC Express,
//! descriptor blocks, FastPath, flash software and its map and collector on the host, flash, its bridge, and
//! disks. Each is tried in small runs of an interface that reads it, in one of which it must show.

use std::path::Path;

use world::interfaces::named;

use super::{Context, Found, MIXED, answer, of, open, settings, work};

/// Reads and writes of several queues of a small part of a drive.
const CLONES: &str = "[a]\nrw=randrw\nsize=1m\nnumber_ios=24\niodepth=8\nnumjobs=2\n";
/// Enough writes for the collector of a small drive that has been filled.
const OVERWRITES: &str = "[a]\nrw=randrw\nrwmixread=20\nsize=4m\nnumber_ios=400\niodepth=16\n";
/// More writes at a time than a drive can program.
const BURST: &str = "[a]\nrw=write\nbs=256k\nsize=5m\nnumber_ios=24\niodepth=16\n";
/// Reads of data whose last bits differ.
const READ_BACK: &str = "[a]\nrw=randwrite\nsize=256k\niodepth=8\nverify=crc32c\n";
/// Reads of several mapping units.
const SEVERAL: &str = "[a]\nrw=randread\nbs=16k\nsize=4m\nnumber_ios=20\n";
const DEEP: &str = "[a]\nrw=randrw\nsize=1m\nnumber_ios=100\niodepth=32\n";
const SPREAD: &str = "[a]\nrw=randrw\nbs=64k\nsize=120g\nnumber_ios=60\niodepth=4\n";
const STREAMS: &str = "[a]\nrw=read\nbs=64k\nsize=8m\nnumjobs=4\noffset_increment=1g\n";

type Sets = &'static [(&'static str, &'static str)];
/// Plan, settings and job of a run.
type Run = (&'static str, Sets, &'static str);

/// A table with the runs of an interface that reads it.
struct Table {
    keys: &'static str,
    interface: &'static str,
    runs: &'static [Run],
    /// The source that reads it, in the crate `plan`.
    source: &'static str,
}

const BY_DEVICE: Sets = &[("dcx.tags", "device"), ("dcx.grain", "512 B")];
const COMPARED: Sets = &[("dcx.tags", "compared"), ("dcx.grain", "512 B"), ("dcx.candidates", "4")];
const STATIC: Sets =
    &[("block.sizing", "static"), ("block.static_size", "3"), ("block.linger", "1 us")];
const SHORT_RING: Sets =
    &[("block.ring", "16"), ("block.largest", "2"), ("host.queue_depth", "32")];
const STEADY: Sets = &[("medium.flash.start", "steady")];
const CACHED: Sets = &[("medium.flash.map_cache", "8 KiB"), ("medium.flash.blocks", "64")];
const PROTECTED: Sets = &[("medium.flash.cache", "protected"), ("medium.flash.nv_sram", "16 KiB")];
/// Some of them are bad when the drive is new.
const MANY_BLOCKS: Sets =
    &[("medium.flash.blocks", "400"), ("medium.flash.spare_per_mille", "400")];
/// MLC, whose word lines take two programs, with a buffer that flushes empty.
const WORD_LINES: Sets = &[
    ("medium.flash.cache", "volatile"),
    ("medium.flash.blocks", "64"),
    ("medium.flash.spare_per_mille", "800"),
];
const APART: Sets = &[("host.cores", "4"), ("pages.cores", "1"), ("pages.costs.hand over", "1 us")];

const OF_INTERFACES: &[Table] = &[
    Table {
        keys: "dcx.",
        interface: "dcx",
        runs: &[
            ("dc-express", &[], MIXED),
            ("dc-express", &[("host.queue_depth", "2")], READ_BACK),
            ("dc-express", COMPARED, MIXED),
        ],
        source: "dcx.rs",
    },
    Table {
        keys: "block.",
        interface: "block",
        runs: &[
            ("descriptor-blocks", &[], MIXED),
            ("descriptor-blocks", &[("block.returned", "subsets"), ("block.subset", "4")], MIXED),
            ("descriptor-blocks", STATIC, MIXED),
            ("descriptor-blocks", SHORT_RING, DEEP),
        ],
        source: "block.rs",
    },
    Table {
        keys: "fastpath.",
        interface: "fastpath",
        runs: &[("fastpath", &[], MIXED), ("fastpath", &[("fastpath.function", "crc32c")], CLONES)],
        source: "fastpath.rs",
    },
    Table {
        keys: "pages.",
        interface: "host-flash",
        runs: &[
            ("small-flash", &[], MIXED),
            ("small-flash", STEADY, OVERWRITES),
            ("small-flash", APART, OVERWRITES),
            ("small-flash", &[("medium.flash.packages", "2")], BURST),
        ],
        source: "pages.rs",
    },
    Table {
        keys: "collector.",
        interface: "host-gc",
        runs: &[("small-flash", STEADY, OVERWRITES)],
        source: "collector.rs",
    },
    Table {
        keys: "map.",
        interface: "host-map",
        runs: &[("small-flash", CACHED, MIXED)],
        source: "map.rs",
    },
];

const OF_FLASH: &[Table] = &[
    Table {
        keys: "medium.flash.",
        interface: "nvme",
        runs: &[
            ("small-flash", &[], MIXED),
            ("small-flash", STEADY, OVERWRITES),
            ("small-flash", PROTECTED, OVERWRITES),
            ("small-flash", STEADY, SEVERAL),
            ("small-flash", MANY_BLOCKS, MIXED),
            ("flash-bridge", WORD_LINES, MIXED),
        ],
        source: "medium/flash.rs",
    },
    Table {
        keys: "medium.bridge.",
        interface: "nvme",
        runs: &[("flash-bridge", &[], MIXED)],
        source: "medium/bridge.rs",
    },
];

const OF_DISKS: &[Table] = &[Table {
    keys: "medium.disks.",
    interface: "nvme",
    runs: &[("vortex-disks", &[], SPREAD), ("vortex-disks", &[], STREAMS)],
    source: "medium/disks.rs",
}];

/// Keys that show no effect in any run, and why.
const BY_DESIGN: &[(&str, &str)] = &[
    ("medium.flash.state", "is a path: states are tested in media"),
    ("dcx.tags", "each value needs its own keys: random_and_device_tags_of_dcx_differ"),
    (
        "dcx.grain",
        "is the alignment at which data end with no tag: device_tag_used_only_for_aligned_buffers in host",
    ),
    (
        "dcx.candidates",
        "shows if data end with a value of 32 bits or more: compared_values_end_no_granule in device",
    ),
];

/// The names of keys in calls of a parser: `fields.number("ring", ...)`.
fn names_in(source: &str) -> Vec<&str> {
    let calls = source.split("fields.").skip(1);
    let names = calls.filter_map(|call| {
        let (method, rest) = call.split_once('(')?;
        let is_read = !["error", "path", "table", "table_if"].contains(&method)
            && method.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        let name = rest.trim_start().strip_prefix('"')?.split('"').next()?;
        is_read.then_some(name)
    });
    names.collect()
}

/// Keys of these tables without an effect, and keys that their sources read but that were not tried.
fn missing(tables: &'static [Table]) -> Vec<String> {
    let of_table = |table: &'static Table| {
        let row = named(table.interface).expect("an interface");
        let is_tried = |key: &str| !BY_DESIGN.iter().any(|(known, _)| *known == key);
        let mut found = Found::default();
        for (plan, sets, job) in table.runs {
            let context: Context = of(table.keys, plan, sets, job);
            let tried = found.try_keys(row, &context, is_tried);
            tried.unwrap_or_else(|error| panic!("{plan} {sets:?}: {error}"));
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plan/src").join(table.source);
        let source = std::fs::read_to_string(path).expect("a source");
        let names = names_in(&source).into_iter().map(|name| format!("{}{name}", table.keys));
        let is_untried = |key: &String| {
            let is_table = found.with.iter().any(|with| with.starts_with(&format!("{key}.")));
            is_tried(key) && !found.with.contains(key) && !is_table
        };
        let untried = names.filter(is_untried);
        let mut missing: Vec<_> = untried.chain(found.without.iter().cloned()).collect();
        missing.sort();
        missing.dedup();
        missing
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = tables.iter().map(|one| scope.spawn(move || of_table(one))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a table")).collect()
    })
}

#[test]
fn every_key_of_the_table_of_an_interface_has_an_effect() {
    assert_eq!(missing(OF_INTERFACES), [""; 0], "keys without effect");
}

#[test]
fn every_key_of_flash_and_its_bridge_has_an_effect() {
    assert_eq!(missing(OF_FLASH), [""; 0], "keys without effect");
}

#[test]
fn every_key_of_disks_has_an_effect() {
    assert_eq!(missing(OF_DISKS), [""; 0], "keys without effect");
}

/// With tags of intervals a write reads the ends that it replaces.
#[test]
fn random_and_device_tags_of_dcx_differ() {
    let row = named("dcx").expect("an interface");
    let [random, device] = [&[], BY_DEVICE].map(|sets: Sets| {
        let plan = open("dc-express", &settings(sets, "run.seed", "1")).expect("a plan");
        answer(row, &plan, &work(MIXED)).expect("a run")
    });
    assert_ne!(random, device);
}
