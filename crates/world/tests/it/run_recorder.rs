//! A recording: its entries, and those counted as lost.

use runtime::{Entry, Span, Time};
use workload::pattern::{Durability, Op, OpKind};
use world::RunResult;
use world::run_recorder::RunRecorder;

#[test]
fn entries_beyond_capacity_are_counted_as_lost() {
    let run_recorder = RunRecorder::new(2);
    let durability = Durability::NONE;
    let op =
        Op { kind: OpKind::Read, offset_bytes: 4096, bytes: 512, durability, not_before: None };
    let log = run_recorder.log();
    for at in 0..5 {
        run_recorder.note(&op, Time(10 - at), Span(at));
        let entry = Entry { at: Time(4), component: "bus", what: "register", a: 0x1000, b: at };
        log.put(&entry);
        log.put(&Entry { what: "memory", ..entry });
    }
    let recording = run_recorder.finish("x".into(), 1, &RunResult::of(Default::default()));
    assert_eq!(recording.lost, 6);
    let at: Vec<_> = recording.arrivals.iter().map(|io| io.at).collect();
    assert_eq!(at, [Span(5), Span(6)], "sorted by arrival, relative to the first entry");
    assert_eq!(recording.register_writes[1].value, 1);
}
