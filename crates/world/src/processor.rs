//! Processor use of the threads of a live world, read at the beginning and at the end of a run.

use runtime::{STD_CLOCK, Span, WallClock};

/// Thousandths of its time that a thread may wait for a core before a run counts as disturbed.
const WAITED_PER_MILLE: u64 = 20;
/// Shortest mean time between two involuntary switches, for a system that does not report that time.
const BETWEEN_SWITCHES: Span = Span::ms(100);

/// Processor use of a thread over a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadUse {
    /// Wall-clock time from the beginning of the run to its end.
    pub elapsed: Span,
    /// Time on a core; none if the system does not report it.
    pub cpu: Option<Span>,
    /// Time in which the thread was ready and another one had its core; none if not reported.
    pub waited: Option<Span>,
    /// Number of times that the system took the core away; none if not reported.
    pub switches: Option<u64>,
}

impl ThreadUse {
    /// The thread lost its core for a time that matters: 2 % of the run, or, where that time is unknown, once
    /// in 100 ms.
    pub fn is_disturbed(&self) -> bool {
        match (self.waited, self.switches) {
            (Some(waited), _) => {
                u128::from(waited.0) * 1000
                    > u128::from(self.elapsed.0) * u128::from(WAITED_PER_MILLE)
            }
            (None, Some(switches)) => {
                u128::from(switches) * u128::from(BETWEEN_SWITCHES.0) > u128::from(self.elapsed.0)
            }
            (None, None) => false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub cpu: Option<Span>,
    pub waited: Option<Span>,
    pub switches: Option<u64>,
}

impl Counts {
    /// Counts of the calling thread.
    pub fn now() -> Counts {
        let read = |name| std::fs::read_to_string(format!("/proc/thread-self/{name}")).ok();
        let of_files = Counts::of(read("schedstat").as_deref(), read("status").as_deref());
        Counts { cpu: Some(time_of_this_thread()), ..of_files }
    }

    /// Counts in the texts of Linux's `schedstat`, whose first two numbers are times in nanoseconds on a core
    /// and in its run queue, and `status`.
    pub fn of(schedstat: Option<&str>, status: Option<&str>) -> Counts {
        let time = |number| {
            let text = schedstat?.split_whitespace().nth(number)?;
            text.parse().ok().map(Span::ns)
        };
        let mut lines = status.into_iter().flat_map(str::lines);
        let switches = lines.find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
        Counts {
            cpu: time(0),
            waited: time(1),
            switches: switches.and_then(|number| number.trim().parse().ok()),
        }
    }
}

/// Time that the calling thread has spent on a core, by its own clock, which every system has.
pub(super) fn time_of_this_thread() -> Span {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Span::s(time.tv_sec as u64) + Span::ns(time.tv_nsec as u64)
}

/// Calls `run` and returns its result and the processor use of this thread.
pub fn timed<T>(run: impl FnOnce() -> T) -> (T, ThreadUse) {
    let (before, begun) = (Counts::now(), STD_CLOCK.now());
    let done = run();
    let (after, elapsed) = (Counts::now(), STD_CLOCK.now().since(begun));
    let span = |after: Option<Span>, before: Option<Span>| {
        after.zip(before).map(|(after, before)| after.saturating_sub(before))
    };
    let switches = after.switches.zip(before.switches);
    let thread_use = ThreadUse {
        elapsed,
        cpu: span(after.cpu, before.cpu),
        waited: span(after.waited, before.waited),
        switches: switches.map(|(after, before)| after.saturating_sub(before)),
    };
    (done, thread_use)
}
