//! Idle polling time of a core.

use core::cell::Cell;

use runtime::{Processor, Span, Time};

/// Accumulates the time in which a task on this core waits for memory and none works. It is updated at the
/// begin and end of waits and costs no event: iterations of a polling loop are not simulated.
#[derive(Default)]
pub(super) struct PollAccounting {
    /// Number of tasks that wait for memory on this core.
    waits: Cell<u32>,
    /// Begin of the first wait, and the core's busy time at that moment.
    since: Cell<(Time, Span)>,
    idle_polling: Cell<Span>,
}

impl PollAccounting {
    /// A task begins to wait.
    pub fn begin(&self, now: Time, core: &Processor) {
        if self.waits.replace(self.waits.get() + 1) == 0 {
            self.since.set((now, core.spent(now)));
        }
    }

    /// A task ends its wait.
    pub fn end(&self, now: Time, core: &Processor) {
        if self.waits.get() == 1 {
            self.idle_polling.set(self.idle_polling(now, core));
        }
        self.waits.set(self.waits.get() - 1);
    }

    /// Idle polling time until `now`.
    pub fn idle_polling(&self, now: Time, core: &Processor) -> Span {
        if self.waits.get() == 0 {
            return self.idle_polling.get();
        }
        let (since, spent) = self.since.get();
        let working = Span(core.spent(now).0 - spent.0);
        Span(self.idle_polling.get().0 + now.since(since).0.saturating_sub(working.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::{Log, Rt, Urgency};

    #[test]
    fn poll_time_counts_concurrent_waits_once_without_work() {
        let rt = Rt::simulated(None, Log::Off);
        let (poll_accounting, core) = (PollAccounting::default(), Processor::default());
        rt.block_on(async {
            poll_accounting.begin(rt.now(), &core);
            rt.sleep(Span::us(10)).await;
            poll_accounting.begin(rt.now(), &core);
            core.spend(&rt, Span::us(4), Urgency::Task).await;
            poll_accounting.end(rt.now(), &core);
            rt.sleep(Span::us(5)).await;
            assert_eq!(poll_accounting.idle_polling(rt.now(), &core), Span::us(15));
            poll_accounting.end(rt.now(), &core);
            rt.sleep(Span::us(7)).await;
        });
        assert_eq!(poll_accounting.idle_polling(rt.now(), &core), Span::us(15));
    }

    #[test]
    fn poll_time_excludes_elapsed_part_of_current_work() {
        let rt = Rt::simulated(None, Log::Off);
        let (poll_accounting, core) =
            (PollAccounting::default(), std::rc::Rc::new(Processor::default()));
        let (there, world) = (core.clone(), rt.clone());
        rt.spawn(async move {
            there.spend(&world, Span::us(10), Urgency::Task).await;
        });
        rt.block_on(async {
            rt.sleep(Span::us(3)).await;
            poll_accounting.begin(rt.now(), &core);
            rt.sleep(Span::us(9)).await;
            poll_accounting.end(rt.now(), &core);
        });
        assert_eq!(poll_accounting.idle_polling(rt.now(), &core), Span::us(2));
    }
}
