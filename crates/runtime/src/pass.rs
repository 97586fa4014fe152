//! A pass over the tasks that are ready and those that wait for memory: its state, and its rules.

use alloc::vec::Vec;

use crate::clock::{LOOKS_UNTIL_IDLE, Progress};
use crate::task::TaskId;
use crate::time::{Span, Time};

/// If the next timer is further off, the clock is read once in `TURNS_BETWEEN_CLOCK_READS` turns, which
/// take less time than this. Turns, not passes: a pass full of work may be long.
const FAR: Span = Span::us(200);
const TURNS_BETWEEN_CLOCK_READS: u32 = 128;

/// Patient tasks are polled once in this number of passes, unless all tasks are patient.
const PATIENT_EVERY: u32 = 32;

/// Value of [`Pass::idle`] from the first sleep on, until there is work.
const ASLEEP: u32 = 1 << 31;

/// State of the current pass.
pub(crate) struct Pass {
    /// Ready tasks still to run in this pass.
    ready: usize,
    /// Tasks that wait for memory and have a turn in this pass; `next` is the index of the next.
    asked: Vec<TaskId>,
    next: usize,
    /// Tasks that have a turn in the next pass.
    again: Vec<TaskId>,
    /// Tasks polled every `PATIENT_EVERY` passes.
    patient: Vec<TaskId>,
    until_patient: u32,
    /// Turns until the clock is read.
    until_clock_read: u32,
    /// Time of the next timer when the clock was last read.
    next_timer: Time,
    /// Consecutive checks without success, compared with `LOOKS_UNTIL_IDLE`.
    idle: u32,
}

/// A pass that has ended.
pub(crate) struct Ended {
    /// Consecutive checks without success.
    pub idle: u32,
    /// True if there is no task to poll: only a timer can change anything.
    pub deaf: bool,
    pub reads_clock: bool,
}

impl Pass {
    pub(crate) fn new() -> Pass {
        let room = || Vec::with_capacity(64);
        Pass {
            ready: 0,
            asked: room(),
            next: 0,
            again: room(),
            patient: room(),
            until_patient: PATIENT_EVERY,
            until_clock_read: 1,
            next_timer: Time::NEVER,
            idle: 0,
        }
    }

    /// Schedules the task for the next pass, or, if `patient`, for one in `PATIENT_EVERY`.
    #[inline]
    pub(crate) fn again(&mut self, id: TaskId, patient: bool) {
        if patient { self.patient.push(id) } else { self.again.push(id) }
    }

    /// Collects the tasks to poll in the pass that begins.
    #[inline]
    fn gather(&mut self) {
        self.asked.clear();
        core::mem::swap(&mut self.asked, &mut self.again);
        self.next = 0;
        self.until_patient -= 1;
        if self.until_patient == 0 || self.asked.is_empty() {
            self.until_patient = PATIENT_EVERY;
            self.asked.append(&mut self.patient);
        }
    }

    /// The next task to poll in this pass; `next_ready` is the next one that is ready.
    #[inline]
    pub(crate) fn next(&mut self, next_ready: impl FnOnce() -> Option<TaskId>) -> Option<TaskId> {
        if self.ready > 0 {
            self.ready -= 1;
            if let Some(id) = next_ready() {
                self.until_clock_read = self.until_clock_read.saturating_sub(1);
                return Some(id);
            }
            self.ready = 0;
        }
        self.until_clock_read = self.until_clock_read.saturating_sub(1);
        let id = self.asked.get(self.next).copied();
        self.next += usize::from(id.is_some());
        id
    }
    /// Ends a pass that made `progress` or checked without success, `looks` times for each task.
    pub(crate) fn end(
        &mut self,
        (progress, looks): (Progress, u32),
        any_ready: bool,
        next_timer: Time,
    ) -> Ended {
        let fired = progress == Progress::Timers;
        let progress = match progress {
            Progress::Nothing => any_ready,
            Progress::Timers => any_ready || self.idle < ASLEEP,
            Progress::Work => true,
        };
        self.idle = if progress { 0 } else { self.idle.saturating_add(looks) };
        // Any task may wait for what the task of a timer did in this pass: each has a turn before a sleep.
        let fired_asleep = fired && self.idle >= ASLEEP;
        if fired_asleep {
            self.until_patient = 1;
        }
        let deaf = self.again.is_empty() && self.patient.is_empty() && !any_ready;
        // A timer armed since the clock was last read may be near.
        let reads_clock = deaf || self.until_clock_read == 0 || next_timer < self.next_timer;
        Ended { idle: if fired_asleep { 0 } else { self.idle }, deaf, reads_clock }
    }

    /// The executor sleeps: in the next pass every task has a turn, because any of them may wait for what has
    /// happened meanwhile.
    pub(crate) fn sleeps(&mut self) {
        self.idle = self.idle.max(ASLEEP);
        self.until_patient = 1;
    }

    /// Decides when to read the clock again.
    pub(crate) fn clock_was_read(&mut self, now: Time, next_timer: Time) {
        self.next_timer = next_timer;
        let far = next_timer.since(now) > FAR;
        self.until_clock_read = if far { TURNS_BETWEEN_CLOCK_READS } else { 1 };
    }

    /// Begins a pass with this number of ready tasks. Returns true if one task waits alone, and may check
    /// several times in its turn.
    pub(crate) fn begin(&mut self, ready: usize) -> bool {
        self.gather();
        self.ready = ready;
        let alone = ready == 0 && self.asked.len() == 1 && self.until_clock_read > 1;
        alone && self.idle < LOOKS_UNTIL_IDLE
    }
}
