//! Wall time: pass after pass over the tasks that are ready and those that wait for memory.
//!
//! No event wakes a task that waits for memory, so it is polled repeatedly. Its latency is the duration of
//! a pass, so a pass is kept short: the clock is read once in many turns while no timer is near, a task
//! idle for long is polled every 32nd pass, and a task that waits alone checks several times in its turn.
//!
//! After a time without work the thread sleeps in the kernel ([`IdleSleep`]). Timers that fire meanwhile are
//! no work, unless the tasks that they wake make others ready. After a sleep every task has a turn.

use crate::clock::{IdleSleep, LOOKS_UNTIL_IDLE, Progress, WallClock};
use crate::pass::Ended;
use crate::rt::Rt;
use crate::task::{Parked, TaskId};
use crate::time::Span;

/// Checks in the turn of a task that waits alone.
const LOOKS_ALONE: u32 = 16;

/// Typical overrun of a sleep that a timer ends: waking takes time. The executor polls until the timer.
const SLEEP_LATE: Span = Span::us(80);

/// The shortest sleep of an idle executor that nothing wakes.
const SLEEP_MIN: Span = Span::us(20);

/// Waits per pass that may end as soon as they begin: more than occur in any pass that ends by itself.
const LUCK_OF_A_PASS: u32 = 256;

impl Rt {
    /// The next task to poll, in this pass or a later one.
    #[inline]
    pub(crate) fn next_in_pass(&self, clock: &'static dyn WallClock) -> TaskId {
        loop {
            let next = self.0.pass.borrow_mut().next(|| self.next_ready());
            match next {
                Some(id) => return id,
                None => self.next_pass(clock),
            }
        }
    }

    /// Ends a pass: fires due timers, backs off if nothing happened, and begins the next.
    fn next_pass(&self, clock: &'static dyn WallClock) {
        let any_ready = !self.0.ready.borrow().is_empty();
        let progress = self.0.progress.replace(Progress::Nothing);
        let Ended { idle, deaf, reads_clock } = self.0.pass.borrow_mut().end(
            (progress, self.looks()),
            any_ready,
            self.0.next_timer.get(),
        );
        if reads_clock {
            self.read_clock(clock);
        }
        match deaf {
            true if self.0.ready.borrow().is_empty() => clock.sleep_for(self.0.next_timer.get()),
            // A timer that has fired since the pass ended has a task to run. If that also waits for memory,
            // it is in no queue of ready tasks.
            false if idle >= LOOKS_UNTIL_IDLE && self.0.progress.get() == Progress::Nothing => {
                self.idle(clock, idle);
            }
            _ => {}
        }
        let ready = self.0.ready.borrow().len();
        let alone = self.0.pass.borrow_mut().begin(ready);
        self.0.looks.set(if alone { LOOKS_ALONE } else { 1 });
        self.0.luck.set(LUCK_OF_A_PASS);
    }

    /// Spins or yields after `looks` checks without success; sleeps after the set time without work, until
    /// shortly before the next timer.
    #[inline(never)]
    fn idle(&self, clock: &'static dyn WallClock, looks: u32) {
        let (now, idle) = (clock.now(), &self.0.idle);
        if looks < LOOKS_UNTIL_IDLE + LOOKS_ALONE {
            idle.since.set(now);
        }
        let IdleSleep { after, longest, woken } = idle.sleep.get();
        let pause = now.since(idle.since.get());
        let is_due = after.is_some_and(|after| pause >= after);
        let left = self.0.next_timer.get().since(now);
        if !is_due || left <= SLEEP_LATE {
            return clock.idle(looks);
        }
        idle.sleeps.set(idle.sleeps.get() + 1);
        self.0.pass.borrow_mut().sleeps();
        let grown = if woken { longest } else { Span(pause.0 / 512).max(SLEEP_MIN) };
        clock.sleep(longest.min(grown).min(Span(left.0 - SLEEP_LATE.0)));
        self.read_clock(clock);
    }

    fn read_clock(&self, clock: &'static dyn WallClock) {
        let now = clock.now();
        loop {
            let fired = self.0.timers.borrow_mut().fire(now);
            let Some((_, task, foreign)) = fired else { break };
            if self.0.progress.get() == Progress::Nothing {
                self.0.progress.set(Progress::Timers);
            }
            self.fired(Parked::new(task, foreign));
        }
        let next = self.0.timers.borrow().next_at();
        self.0.next_timer.set(next);
        self.0.pass.borrow_mut().clock_was_read(now, next);
    }
}
