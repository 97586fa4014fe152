//! Traces through the public API: two passes, one device; and a real trace if available.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::PathBuf;

use proptest::prelude::*;
use runtime::Span;
use workload::job::TraceSource;
use workload::trace::{Extents, Map, Mapping, Reader, Replay, TraceKind};
use workload::{Op, OpKind, Target};

const TRACE: &str = "1000 7 100 8 1\n3000 2 0 8 0\n2000 7 2148 8 1\n5000 7 100 8 0\n";

fn play(mapping: Mapping, no_stall: bool, time_scale_percent: u32) -> Vec<Op> {
    let target = Target { capacity_bytes: 3 << 20, block_bytes: 512 };
    let reader = || Reader::new("t", TRACE.as_bytes()).unwrap();
    let extents = Extents::scan(&mut reader(), target).unwrap();
    let map = Map::new(&extents, mapping, target).unwrap();
    let source = TraceSource { paths: Vec::new(), no_stall, time_scale_percent };
    Replay::new("t", reader(), map, &source).collect::<Result<_, _>>().unwrap()
}

#[test]
fn replay_time_scale_and_no_stall_set_due_times() {
    let due = |ops: Vec<Op>| ops.iter().map(|op| op.not_before).collect::<Vec<_>>();
    let at = |times: [u64; 4]| times.map(|ns| Some(Span::ns(ns)));
    assert_eq!(due(play(Mapping::Concatenate, false, 100)), at([0, 2000, 2000, 4000]));
    assert_eq!(due(play(Mapping::Concatenate, false, 200)), at([0, 1000, 1000, 2000]));
    assert_eq!(due(play(Mapping::Concatenate, false, 50)), at([0, 4000, 4000, 8000]));
    assert_eq!(due(play(Mapping::Concatenate, true, 100)), [None; 4]);
}

#[test]
fn replay_concatenates_devices() {
    let ops = play(Mapping::Concatenate, true, 100);
    let places: Vec<_> = ops.iter().map(|op| (op.kind, op.offset_bytes)).collect();
    assert_eq!(
        places,
        [
            (OpKind::Read, 100 * 512),
            (OpKind::Write, 2 << 20),
            (OpKind::Read, 2148 * 512),
            (OpKind::Write, 100 * 512),
        ]
    );
}

/// MQSim's TPC-C excerpt, if it is in `$DOORBELL_SHARED/traces` or in `shared/traces` next to the
/// workspace.
fn tpcc() -> Option<(PathBuf, BufReader<File>)> {
    let beside = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    let shared = std::env::var_os("DOORBELL_SHARED").map_or(beside, PathBuf::from);
    let path = shared.join("traces/tpcc-small.trace");
    match File::open(&path) {
        Ok(file) => Some((path, BufReader::new(file))),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("skipped: no trace at {}: set DOORBELL_SHARED to test it", path.display());
            None
        }
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

#[test]
fn tpcc_trace_matches_its_readme() {
    let Some((path, input)) = tpcc() else { return };
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let mut reader = Reader::new(&name, input).unwrap();
    let target = Target { capacity_bytes: 64 << 30, block_bytes: 4096 };
    let extents = Extents::scan(&mut reader, target).unwrap();
    assert_eq!(extents.count(TraceKind::Read) + extents.count(TraceKind::Write), 6_999);
    assert_eq!(extents.count(TraceKind::Write), 2_618);
    assert_eq!(extents.devices.len(), 16);
    assert_eq!(extents.span.as_ns() / 1_000_000, 136);
    assert!(Map::new(&extents, Mapping::Concatenate, target).is_err());
    let map = Map::new(&extents, Mapping::Modulo, target).unwrap();
    eprintln!("{}", map.summary(&name, reader.format(), reader.backwards(), &extents));
    let source = TraceSource { paths: Vec::new(), no_stall: false, time_scale_percent: 100 };
    let (_, input) = tpcc().unwrap();
    let replay = Replay::new(&name, Reader::new(&name, input).unwrap(), map, &source);
    let ops: Vec<Op> = replay.collect::<Result<_, _>>().unwrap();
    assert_eq!(ops.len(), 6_999);
    assert!(ops.windows(2).all(|pair| pair[0].not_before <= pair[1].not_before));
}

proptest! {
    #[test]
    fn arbitrary_trace_bytes_do_not_panic(
        header in prop::sample::select(vec!["", "fio version 2 iolog\n", "fio version 3 iolog\n"]),
        lines in "([0-9]{0,3}( /a)?( (add|read|wait|sync))?( [0-9]{1,20}){0,3}\n){0,8}",
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let text = [header.as_bytes(), lines.as_bytes(), &bytes].concat();
        if let Ok(mut reader) = Reader::new("t", &text[..]) {
            let target = Target { capacity_bytes: 1 << 30, block_bytes: 4096 };
            let _ = Extents::scan(&mut reader, target);
        }
    }
}
