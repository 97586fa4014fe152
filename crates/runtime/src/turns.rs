//! Wall time: pass after pass over the tasks that are ready and those that wait for memory.
//!
//! No event wakes a task that waits for memory, so it is polled repeatedly. Its latency is the duration of
//! a pass, so a pass is kept short: the clock is read once in many turns while no timer is near, a task
//! idle for long is polled every 32nd pass, and a task that waits alone checks several times in its turn.

use crate::clock::{LOOKS_UNTIL_IDLE, WallClock};
use crate::pass::Ended;
use crate::rt::Rt;
use crate::task::{Parked, TaskId};

/// Checks in the turn of a task that waits alone.
const LOOKS_ALONE: u32 = 16;

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
        let progress = self.0.progress.replace(false) || any_ready;
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
            false if idle >= LOOKS_UNTIL_IDLE => clock.idle(idle, self.0.next_timer.get()),
            _ => {}
        }
        let ready = self.0.ready.borrow().len();
        let alone = self.0.pass.borrow_mut().begin(ready);
        self.0.looks.set(if alone { LOOKS_ALONE } else { 1 });
        self.0.luck.set(LUCK_OF_A_PASS);
    }

    fn read_clock(&self, clock: &'static dyn WallClock) {
        let now = clock.now();
        loop {
            let fired = self.0.timers.borrow_mut().fire(now);
            let Some((_, task, foreign)) = fired else { break };
            self.progress();
            self.fired(Parked::new(task, foreign));
        }
        let next = self.0.timers.borrow().next_at();
        self.0.next_timer.set(next);
        self.0.pass.borrow_mut().clock_was_read(now, next);
    }
}
