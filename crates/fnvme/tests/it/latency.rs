//! Latency counters of a client against those of the engine.

use fnvme::RequestKind::{Flush, Read, Write};
use fnvme::{Counters, Direction};

use crate::{Folder, start};

#[test]
fn counters_of_all_kinds_add_up_to_the_engines() {
    let folder = Folder::new("counters");
    let service = start(&folder.drive(), &[]).expect("it starts");
    let client = service.open(1 << 20).expect("an area");
    assert_eq!(client.latency(Read), Counters::default());
    assert_eq!(client.latency_percentile_ns(Read, 99.0), 0);
    for _ in 0..10 {
        client.transfer(Direction::Write, 0, 1 << 20, 4096).expect("a write");
    }
    for n in 0..200 {
        client.begin(Direction::Read, n * 4096, 4096, 4096).expect("a read");
    }
    client.settle().expect("they end");
    client.flush().expect("a flush");
    // Outside the area: the engine rejects it.
    assert!(client.transfer(Direction::Read, 1 << 20, 4096, 4096).is_err());
    let [reads, writes, flushes] = [Read, Write, Flush].map(|kind| client.latency(kind));
    let counts = [reads, writes, flushes].map(|c| (c.requests, c.failed));
    assert_eq!(counts, [(200, 1), (10, 0), (1, 0)]);
    let engine = service.latency().expect("it runs");
    let sum = |of: fn(&Counters) -> u64| [reads, writes, flushes].iter().map(of).sum::<u64>();
    assert_eq!((engine.requests, engine.sum_ns), (sum(|c| c.requests), sum(|c| c.sum_ns)));
    assert_eq!(engine.least_ns, reads.least_ns.min(writes.least_ns).min(flushes.least_ns));
    assert_eq!(engine.most_ns, reads.most_ns.max(writes.most_ns).max(flushes.most_ns));
    for (kind, counters) in [(Read, reads), (Write, writes)] {
        let at = |percent| client.latency_percentile_ns(kind, percent);
        let near = |found: u64, value: u64| found.abs_diff(value) <= value / 100;
        assert!(near(at(100.0), counters.most_ns), "{} of {counters:?}", at(100.0));
        assert!(near(at(0.0), counters.least_ns), "{} of {counters:?}", at(0.0));
        assert!(at(0.0) <= at(50.0) && at(50.0) <= at(99.0) && at(99.0) <= at(100.0));
    }
    client.reset_latency();
    assert_eq!(client.latency(Write), Counters::default());
    assert_eq!(client.latency_percentile_ns(Write, 50.0), 0);
    assert_eq!(service.latency().expect("it runs").requests, 211);
}
