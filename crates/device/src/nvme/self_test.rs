//! Device Self-test (NVMe base 2.0, 5.8): reads parts of the namespaces, in parallel with host commands.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use bus::DevicePort;
use media::{Extent, Media};
use runtime::{Either, Signal, Time, race};
use wire::Nsid;
use wire::nvme::admin::SelfTest;
use wire::nvme::log::{SelfTestLog, SelfTestResult};
use wire::nvme::status::Status;
use zerocopy::{FromZeros, IntoBytes};

use super::{Controller, PIECE_BYTES};

/// Pieces read per namespace by a short test; by an extended one (next constant).
const SHORT_PIECES: u64 = 16;
const EXTENDED_PIECES: u64 = 1024;

/// Result of a test (DSTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Well = 0,
    ByCommand = 1,
    ByReset = 2,
    ByRemoval = 3,
    ByFormat = 4,
    Failed = 7,
    BySanitize = 9,
}

/// DSTS of an unused log entry.
const UNUSED: u8 = 0xf;
/// Number of the segment that reads the medium.
const MEDIUM: u8 = 1;
/// Valid bits of a result: namespace, failing LBA, status (next constants).
const NSID_VALID: u8 = 1 << 0;
const LBA_VALID: u8 = 1 << 1;
const STATUS_VALID: u8 = 1 << 2 | 1 << 3;

/// The test in progress, and the results.
#[derive(Default)]
pub(super) struct SelfTests {
    running: Cell<Option<Running>>,
    /// Most recent first. Survives resets, but not the end of the device's process.
    results: RefCell<VecDeque<SelfTestResult>>,
    /// Notified when a test begins, is requested to end, or has ended.
    changed: Signal,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    test: SelfTest,
    /// Namespace to test; `NONE`: the controller only; `BROADCAST`: all.
    nsid: Nsid,
    percent: u8,
    /// Reason to end, if requested.
    stop: Option<Ended>,
}

/// An error found by a test.
struct Fault {
    nsid: Nsid,
    lba: u64,
    status: Status,
}

impl SelfTests {
    /// The Device Self-test log page.
    pub fn page(&self) -> SelfTestLog {
        let mut page = SelfTestLog::new_zeroed();
        if let Some(running) = self.running.get() {
            (page.now, page.percent) = (running.test as u8, running.percent);
        }
        page.results.iter_mut().for_each(|place| place.status = UNUSED);
        let results = self.results.borrow();
        page.results.iter_mut().zip(results.iter()).for_each(|(place, result)| *place = *result);
        page
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    /// Starts a test, or aborts the one in progress.
    pub(super) async fn self_test(&self, nsid: Nsid, test: SelfTest) -> Result<u32, Status> {
        if test == SelfTest::Abort {
            self.end_self_test(Ended::ByCommand, |_| true);
            self.until_no_self_test().await;
            return Ok(0);
        }
        if ![Nsid::NONE, Nsid::BROADCAST].contains(&nsid) {
            self.active_at(nsid)?;
        }
        if self.health.self_tests.running.get().is_some() {
            return Err(Status::SELF_TEST_IN_PROGRESS);
        }
        self.health.self_tests.running.set(Some(Running { test, nsid, percent: 0, stop: None }));
        self.health.self_tests.changed.notify(&self.rt);
        Ok(0)
    }

    /// Requests the end of a test of a matching namespace.
    pub(super) fn end_self_test(&self, why: Ended, of: impl Fn(Nsid) -> bool) {
        let running = self.health.self_tests.running.get();
        if let Some(running) = running.filter(|running| of(running.nsid)) {
            let stop = running.stop.or(Some(why));
            self.health.self_tests.running.set(Some(Running { stop, ..running }));
            self.health.self_tests.changed.notify(&self.rt);
        }
    }

    /// A controller-level reset ends short tests; extended ones continue (5.8.1, 5.8.2).
    pub(super) fn reset_ends_self_test(&self) {
        let short = |running: &Running| running.test == SelfTest::Short;
        if self.health.self_tests.running.get().as_ref().is_some_and(short) {
            self.end_self_test(Ended::ByReset, |_| true);
        }
    }

    async fn until_no_self_test(&self) {
        loop {
            let version = self.health.self_tests.changed.version();
            if self.health.self_tests.running.get().is_none() {
                return;
            }
            self.health.self_tests.changed.changed(&self.rt, version).await;
        }
    }

    pub(super) async fn run_self_tests(self: Rc<Self>) {
        loop {
            let version = self.health.self_tests.changed.version();
            let Some(running) = self.health.self_tests.running.get() else {
                self.health.self_tests.changed.changed(&self.rt, version).await;
                continue;
            };
            let done = match race(self.examine(running), self.stopped()).await {
                Either::First(done) => done,
                Either::Second(why) => (why, None),
            };
            self.note_self_test(running, done);
            self.health.self_tests.running.set(None);
            self.health.self_tests.changed.notify(&self.rt);
        }
    }

    /// Waits until the end of the test is requested.
    async fn stopped(&self) -> Ended {
        loop {
            let version = self.health.self_tests.changed.version();
            if let Some(why) = self.health.self_tests.running.get().and_then(|running| running.stop)
            {
                return why;
            }
            self.health.self_tests.changed.changed(&self.rt, version).await;
        }
    }

    /// Reads evenly distributed pieces of each namespace.
    async fn examine(&self, running: Running) -> (Ended, Option<Fault>) {
        let namespaces: Vec<Nsid> = match running.nsid {
            Nsid::NONE => Vec::new(),
            Nsid::BROADCAST => self.active().collect(),
            one => vec![one],
        };
        let pieces = if running.test == SelfTest::Short { SHORT_PIECES } else { EXTENDED_PIECES };
        let all = (pieces * namespaces.len() as u64).max(1);
        for (number, nsid) in (0..).zip(namespaces) {
            for piece in 0..pieces {
                let Ok((_, ns)) = self.active_at(nsid) else { break };
                let blocks = u64::from(PIECE_BYTES / self.block_bytes).min(ns.blocks);
                let first = (ns.blocks - blocks) / pieces.max(2).saturating_sub(1) * piece;
                let at = Extent { block: ns.start + first, blocks: blocks as u32 };
                if let Err(status) = self.examine_piece(at).await {
                    let fault = Fault { nsid, lba: first >> ns.shift, status };
                    return (Ended::Failed, Some(fault));
                }
                let done = 100 * (number * pieces + piece + 1) / all;
                if let Some(now) = self.health.self_tests.running.get() {
                    let percent = done.min(99) as u8;
                    self.health.self_tests.running.set(Some(Running { percent, ..now }));
                }
                self.rt.yield_now().await;
            }
        }
        (Ended::Well, None)
    }

    async fn examine_piece(&self, at: Extent) -> Result<(), Status> {
        let ready = self.media.read(at).await.map_err(|error| self.failed(error))?;
        if ready > Time::ZERO {
            self.rt.sleep_until(ready).await;
        }
        self.media.runs(at, &mut |_, _| {}).map_err(|error| self.failed(error))
    }

    fn note_self_test(&self, running: Running, (ended, fault): (Ended, Option<Fault>)) {
        let mut result = SelfTestResult::new_zeroed();
        result.status = (running.test as u8) << 4 | ended as u8;
        result.power_on_hours = self.power_on_hours().into();
        if let Some(Fault { nsid, lba, status }) = fault {
            result.segment = MEDIUM;
            result.valid = NSID_VALID | LBA_VALID | STATUS_VALID;
            (result.nsid, result.failing_lba) = (nsid.0.into(), lba.into());
            (result.code_type, result.code) = ((status.bits() >> 8 & 7) as u8, status.code());
        }
        let mut results = self.health.self_tests.results.borrow_mut();
        results.truncate(SelfTestLog::RESULTS - 1);
        results.push_front(result);
    }

    pub(super) fn self_test_page(&self) -> Vec<u8> {
        self.health.self_tests.page().as_bytes().to_vec()
    }
}
