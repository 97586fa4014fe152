//! Latency counters of a client: a histogram of fixed size for each kind of request.

use hdrhistogram::Histogram;
use wire::fastpath::{Direction, Response};
use wire::nvme::opcode::io;

use super::Request;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Reads.
    Read = 0,
    /// Writes.
    Write = 1,
    /// Flushes, and requests that the engine rejects for their opcode.
    Flush = 2,
}

impl From<Direction> for RequestKind {
    fn from(direction: Direction) -> RequestKind {
        match direction {
            Direction::Read => RequestKind::Read,
            Direction::Write => RequestKind::Write,
        }
    }
}

impl RequestKind {
    pub(super) fn of(request: &Request) -> RequestKind {
        match request.opcode {
            io::READ => RequestKind::Read,
            io::WRITE => RequestKind::Write,
            _ => RequestKind::Flush,
        }
    }
}

/// Counters of one kind of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests carried out, failed ones among them.
    pub requests: u64,
    /// Failed and rejected requests.
    pub failed: u64,
    /// Minimum in ns; zero if there was no request.
    pub least_ns: u64,
    /// Maximum in ns.
    pub most_ns: u64,
    /// Sum in ns.
    pub sum_ns: u64,
}

/// Maximum latency with an own bucket: longer ones count there.
const NS_MAX: u64 = 60_000_000_000;
/// Decimal digits of a latency that a bucket keeps.
const DIGITS: u8 = 2;

struct Kind {
    counters: Counters,
    histogram: Histogram<u64>,
}

/// Counters of all kinds. Recording allocates nothing.
pub(super) struct Latencies([Kind; 3]);

impl Latencies {
    pub fn new() -> Latencies {
        let histogram =
            || Histogram::new_with_bounds(1, NS_MAX, DIGITS).expect("bounds and digits are valid");
        Latencies([(); 3].map(|()| Kind { counters: Counters::default(), histogram: histogram() }))
    }

    /// Records a response: the time from the engine's taking of the request to the end of its last command.
    pub fn record(&mut self, kind: RequestKind, response: &Response) {
        let Kind { counters, histogram } = &mut self.0[kind as usize];
        let (ns, status) = (response.took.get(), response.status());
        counters.failed += u64::from(!status.is_good());
        // A rejected request took no time.
        if matches!(status, super::Status::Engine(_)) && ns == 0 {
            return;
        }
        counters.least_ns = if counters.requests == 0 { ns } else { counters.least_ns.min(ns) };
        counters.most_ns = counters.most_ns.max(ns);
        counters.sum_ns = counters.sum_ns.saturating_add(ns);
        counters.requests += 1;
        histogram.saturating_record(ns);
    }

    pub fn counters(&self, kind: RequestKind) -> Counters {
        self.0[kind as usize].counters
    }

    pub fn percentile_ns(&self, kind: RequestKind, percent: f64) -> u64 {
        self.0[kind as usize].histogram.value_at_percentile(percent)
    }

    pub fn reset(&mut self) {
        for kind in &mut self.0 {
            kind.counters = Counters::default();
            kind.histogram.reset();
        }
    }
}
