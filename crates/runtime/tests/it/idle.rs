//! An executor without work sleeps, on a clock that passes only when it is used.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use runtime::{Either, IdleSleep, Log, Rt, Span, Time, WallClock, race};

/// Each reading and each idle check takes some time; a sleep takes its span.
#[derive(Default)]
struct Slow {
    now: Cell<u64>,
    checks: Cell<u64>,
    sleeps: RefCell<Vec<Span>>,
    /// Called at the end of a sleep.
    change: RefCell<Option<Box<dyn Fn()>>>,
}

impl WallClock for Slow {
    fn now(&self) -> Time {
        self.now.set(self.now.get() + Span::ns(10).0);
        Time(self.now.get())
    }

    fn idle(&self, _: u32) {
        self.checks.set(self.checks.get() + 1);
        self.now.set(self.now.get() + Span::us(1).0);
    }

    fn sleep(&self, span: Span) {
        self.sleeps.borrow_mut().push(span);
        self.now.set(self.now.get() + span.0);
        if let Some(change) = &*self.change.borrow() {
            change();
        }
    }
}

fn executor(after: Option<Span>, longest: Span) -> (Rt, &'static Slow) {
    let clock: &'static Slow = Box::leak(Box::default());
    let rt = Rt::live(clock, None, Log::Off);
    rt.sleep_when_idle(IdleSleep { after, longest, woken: true });
    (rt, clock)
}

/// Polls in every pass until the check is true; patient after `passes` passes.
async fn polled(rt: &Rt, passes: u32, check: impl Fn() -> bool) {
    let mut seen = 0;
    std::future::poll_fn(|cx| {
        if check() {
            return std::task::Poll::Ready(());
        }
        seen += 1;
        rt.poll_again(cx, seen > passes);
        std::task::Poll::Pending
    })
    .await;
}

#[test]
fn executor_sleeps_after_the_set_time_without_work_and_never_without_one() {
    let end = Time::ZERO + Span::ms(50);
    let (rt, clock) = executor(Some(Span::ms(10)), Span::us(20));
    rt.block_on(polled(&rt, 100, || Time(clock.now.get()) >= end));
    // Nearly all of the 10 ms are checks of 1 us, nearly all of the rest sleeps of 20 us.
    assert!((9_000..=10_000).contains(&clock.checks.get()), "{} checks", clock.checks.get());
    let sleeps = clock.sleeps.borrow();
    assert!((1_900..=2_000).contains(&sleeps.len()), "{} sleeps", sleeps.len());
    assert!(sleeps.iter().all(|span| *span == Span::us(20)));
    assert_eq!(rt.idle_sleeps(), sleeps.len() as u64);

    let (rt, clock) = executor(None, Span::us(20));
    rt.block_on(polled(&rt, 100, || Time(clock.now.get()) >= end));
    assert_eq!((rt.idle_sleeps(), clock.sleeps.borrow().len()), (0, 0));
}

/// Supervisors look at the time again and again: that is no work. They are in time all the same.
#[test]
fn timers_do_not_end_the_sleep_of_an_idle_executor_and_are_in_time() {
    const TIMERS: u64 = 100;
    let (rt, clock) = executor(Some(Span::ms(10)), Span::s(1));
    let late = Rc::new(Cell::new(Span::ZERO));
    let (own, latest, fired) = (rt.clone(), late.clone(), Rc::new(Cell::new(0)));
    let count = fired.clone();
    rt.spawn(async move {
        for number in 1..=TIMERS {
            let at = Time::ZERO + Span::ms(20) * number;
            own.sleep_until(at).await;
            latest.set(latest.get().max(own.now().since(at)));
            count.set(number);
        }
    });
    rt.block_on(polled(&rt, 100, || fired.get() == TIMERS));
    // Before the first sleep it checks for 10 ms, and before each timer for as long as a sleep may be late.
    let checks = clock.checks.get();
    assert!(checks < 10_000 + TIMERS * 200, "{checks} checks: timers count as work");
    assert!(late.get() < Span::us(10), "a timer is late by {}", late.get());
    assert!(rt.idle_sleeps() >= TIMERS, "it sleeps before each timer");
    rt.drop_tasks();
}

/// A task that is polled in one pass of 32 may wait for what has happened during the sleep.
#[test]
fn every_task_looks_after_a_sleep() {
    let (rt, clock) = executor(Some(Span::ms(1)), Span::us(20));
    let (changed, looks) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0_u32)));
    let (set, seen) = (changed.clone(), looks.clone());
    *clock.change.borrow_mut() = Some(Box::new(move || {
        set.set(true);
        seen.set(seen.get() + 1);
    }));
    // Another task has a turn in every pass.
    let own = rt.clone();
    rt.spawn(async move { polled(&own, u32::MAX, || false).await });
    rt.block_on(polled(&rt, 10, || changed.get()));
    assert_eq!(looks.get(), 1, "the change of the first sleep is seen before the second");
    rt.drop_tasks();
}

/// A task that is polled in one pass of 32 may wait for what a timer's task does after the sleep, when passes
/// without work have begun again.
#[test]
fn every_task_looks_after_a_timer_of_an_idle_executor() {
    for delay_us in 0..80 {
        let (rt, clock) = executor(Some(Span::ms(1)), Span::s(3600));
        let changed = Rc::new(Cell::new(false));
        let (own, set) = (rt.clone(), changed.clone());
        rt.spawn(async move {
            own.sleep_until(Time::ZERO + Span::ms(20) + Span::us(delay_us)).await;
            set.set(true);
        });
        // Another task has a turn in every pass.
        let own = rt.clone();
        rt.spawn(async move { polled(&own, u32::MAX, || false).await });
        rt.block_on(polled(&rt, 10, || changed.get()));
        let seen = Span(clock.now.get());
        assert!(seen < Span::ms(21), "delay {delay_us} us: seen after {seen}");
        rt.drop_tasks();
    }
}

/// The task of a timer may also wait for memory: it is then polled in every pass, or in one of 32, and the
/// timer makes no further task ready.
#[test]
fn timer_of_a_task_that_also_waits_for_memory_is_seen_before_a_sleep() {
    for (delay_us, passes) in (0..80).flat_map(|delay| [(delay, 10), (delay, u32::MAX)]) {
        let (rt, clock) = executor(Some(Span::ms(1)), Span::s(3600));
        // Before the executor has slept, and after.
        for at in [Span::us(1_050), Span::ms(20)] {
            let own = rt.clone();
            rt.spawn(async move { polled(&own, u32::MAX, || false).await });
            let until = Time::ZERO + at + Span::us(delay_us);
            let ended = rt.block_on(race(polled(&rt, passes, || false), rt.sleep_until(until)));
            assert_eq!(ended, Either::Second(()));
            let late = Time(clock.now.get()).since(until);
            assert!(late < Span::us(100), "timer at {until}, {passes} passes: late by {late}");
        }
        rt.drop_tasks();
    }
}

/// Sleeps that nothing ends are short after a short pause.
#[test]
fn sleep_without_wake_is_at_most_a_512th_of_the_pause() {
    let (rt, clock) = executor(Some(Span::ms(10)), Span::ms(1));
    let sleep = IdleSleep { after: Some(Span::ms(10)), longest: Span::ms(1), woken: false };
    rt.sleep_when_idle(sleep);
    rt.block_on(polled(&rt, 100, || Time(clock.now.get()) >= Time::ZERO + Span::s(2)));
    let (mut pause, sleeps) = (Span::ZERO, clock.sleeps.borrow());
    for span in sleeps.iter() {
        let most = Span::us(20).max(Span((Span::ms(11).0 + pause.0) / 500));
        assert!(*span <= most.min(Span::ms(1)), "{span} after {pause} of sleep");
        pause = Span(pause.0 + span.0);
    }
    assert_eq!(sleeps.last(), Some(&Span::ms(1)), "it grows to the longest");
    assert!(sleeps.len() < 5_000, "{} sleeps in 2 s", sleeps.len());
}
