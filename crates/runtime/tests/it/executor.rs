//! The executor, its waits and its request traces, through the public API.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use runtime::{
    Either, Entry, Line, Log, Parked, Pool, Processor, Rng, Rt, SPANS_MAX, STD_CLOCK, Signal, Span,
    Time, Traces, Urgency, Waits, race, stage,
};

fn world() -> Rt {
    Rt::simulated(None, Log::Off)
}

fn ns(time: Time) -> u64 {
    time.since(Time::ZERO).as_ns()
}

/// A combinator with wakers of its own, as in other crates: it polls a child only after that child's waker
/// was called.
struct OwnWakers<F> {
    children: Vec<(Pin<Box<F>>, Arc<Flag>)>,
}

struct Flag {
    woken: AtomicBool,
    parent: Mutex<Option<Waker>>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        if let Some(parent) = self.parent.lock().unwrap().take() {
            parent.wake();
        }
    }
}

impl<F: Future<Output = ()>> OwnWakers<F> {
    fn new(children: impl IntoIterator<Item = F>) -> OwnWakers<F> {
        let flag = || Flag { woken: AtomicBool::new(true), parent: Mutex::new(None) };
        let children = children.into_iter().map(|f| (Box::pin(f), Arc::new(flag()))).collect();
        OwnWakers { children }
    }
}

impl<F: Future<Output = ()>> Future for OwnWakers<F> {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.children.retain_mut(|(child, flag)| {
            *flag.parent.lock().unwrap() = Some(cx.waker().clone());
            if !flag.woken.swap(false, Ordering::AcqRel) {
                return true;
            }
            let waker = Waker::from(flag.clone());
            child.as_mut().poll(&mut Context::from_waker(&waker)).is_pending()
        });
        if self.children.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }
}

#[test]
fn foreign_combinator_wakers_are_woken() {
    let rt = world();
    let pool = Pool::new([1]);
    let signal = Signal::default();
    let count = Cell::new(0);
    let child = |n: u64| {
        let (rt, pool, signal, count) = (&rt, &pool, &signal, &count);
        async move {
            rt.sleep(Span::ns(n)).await;
            let item = pool.take(rt).await;
            rt.sleep(Span::ns(10)).await;
            pool.give(rt, item);
            signal.notify(rt);
            count.set(count.get() + 1);
        }
    };
    rt.block_on(OwnWakers::new((1..=5).map(child)));
    assert_eq!(count.get(), 5);
    // The first at 1 ns; then each holds the one item for 10 ns.
    assert_eq!(ns(rt.now()), 51);
}

#[test]
fn timers_fire_in_order_ties_in_arming_order() {
    let rt = world();
    let seen = Rc::new(RefCell::new(Vec::new()));
    for (name, at) in [("c", 30), ("a", 10), ("b1", 20), ("b2", 20)] {
        let (rt2, seen) = (rt.clone(), seen.clone());
        rt.spawn(async move {
            rt2.sleep(Span::ns(at)).await;
            seen.borrow_mut().push((name, ns(rt2.now())));
        });
    }
    rt.block_on(rt.sleep(Span::ns(40)));
    assert_eq!(*seen.borrow(), [("a", 10), ("b1", 20), ("b2", 20), ("c", 30)]);
    assert_eq!(rt.timed_events(), 5);
}

#[test]
fn dropped_sleep_does_not_advance_clock() {
    let rt = world();
    let first = rt.block_on(race(rt.sleep(Span::s(100)), rt.sleep(Span::ns(5))));
    assert_eq!(first, Either::Second(()));
    rt.block_on(rt.sleep(Span::ns(5)));
    assert_eq!((ns(rt.now()), rt.timed_events()), (10, 2));
}

#[test]
#[should_panic(expected = "the world is stuck at 7.000ns")]
fn stuck_virtual_time_panics_with_time() {
    let rt = world();
    rt.block_on(async {
        rt.sleep(Span::ns(7)).await;
        Signal::default().changed(&rt, 0).await;
    });
}

#[test]
fn pool_is_fifo_and_skips_dropped_waiters() {
    let rt = world();
    let pool = Rc::new(Pool::new([()]));
    let order = Rc::new(RefCell::new(Vec::new()));
    pool.try_take().unwrap();
    for name in ["first", "second", "third"] {
        let (rt2, pool, order) = (rt.clone(), pool.clone(), order.clone());
        rt.spawn(async move {
            let patience = if name == "second" { Span::ns(5) } else { Span::s(1) };
            if let Either::First(item) = race(pool.take(&rt2), rt2.sleep(patience)).await {
                order.borrow_mut().push(name);
                rt2.sleep(Span::ns(1)).await;
                pool.give(&rt2, item);
            }
        });
    }
    rt.block_on(async {
        rt.sleep(Span::ns(10)).await;
        pool.give(&rt, ());
        assert!(pool.try_take().is_none(), "a newcomer does not overtake");
        rt.sleep(Span::ns(10)).await;
    });
    assert_eq!(*order.borrow(), ["first", "third"]);
    assert_eq!(pool.available(), 1);
}

#[test]
fn signal_change_between_check_and_wait_is_not_missed() {
    let rt = world();
    let signal = Signal::default();
    let seen = signal.version();
    signal.notify(&rt);
    rt.block_on(signal.changed(&rt, seen));
}

const STAGES: &[&str] = &["turn", "service", "other end"];

#[test]
fn request_trace_stages_add_up_to_latency() {
    let rt = Rt::simulated(Some(Traces::new(2, 4, 10, 0, STAGES)), Log::Off);
    let waits = Waits { turn: stage!(rt, STAGES, "turn"), service: stage!(rt, STAGES, "service") };
    let line = Line::default();
    line.reserve(Time::ZERO, Span::ns(30));
    let finished = rt.block_on(async {
        rt.begin_trace(1, 3, rt.now());
        let turn = line.reserve(rt.now(), Span::ns(20));
        rt.sleep_until(turn.end).await;
        rt.record_turn(waits, turn);
        let other = rt.clone();
        rt.spawn(async move {
            other.attach_trace(1, 3);
            other.sleep(Span::ns(7)).await;
            other.record(stage!(other, STAGES, "other end"));
            other.detach_trace();
        });
        rt.sleep(Span::ns(9)).await;
        rt.finish_trace().unwrap()
    });
    assert_eq!(finished.stages[..3], [30_000, 20_000, 7_000]);
    assert_eq!(finished.total, Span::ns(59), "2 ns that nobody named are left over");
}

/// Spans of the current task's trace: stage and end in nanoseconds.
fn spans(rt: &Rt) -> Vec<(Option<usize>, u64)> {
    let mut spans = Vec::new();
    assert!(rt.trace_spans(&mut spans));
    spans.iter().map(|span| (span.stage, ns(span.to))).collect()
}

#[test]
fn request_trace_stores_spans_only_if_asked() {
    let stage = |rt: &Rt| stage!(rt, STAGES, "turn");
    let without = Rt::simulated(Some(Traces::new(1, 4, 10, 0, STAGES)), Log::Off);
    without.begin_trace(0, 1, Time::ZERO);
    without.record_at(stage(&without), Time::ZERO + Span::ns(5));
    assert!(!without.trace_spans(&mut Vec::new()));
    let with = Rt::simulated(Some(Traces::new(1, 4, 10, 0, STAGES).with_spans()), Log::Off);
    for ends in [5, 7] {
        with.begin_trace(0, 1, Time::ZERO);
        with.record_at(stage(&with), Time::ZERO + Span::ns(ends));
        assert_eq!(spans(&with), [(Some(0), ends)], "no span of the use before");
    }
    assert_eq!(with.trace_queue_and_slot(), Some((0, 1)));
}

#[test]
fn request_trace_spans_follow_records_moves_and_parts() {
    let rt = Rt::simulated(Some(Traces::new(2, 4, 10, 0, STAGES).with_spans()), Log::Off);
    let [turn, service] = [stage!(rt, STAGES, "turn"), stage!(rt, STAGES, "service")];
    let at = |ns| Time::ZERO + Span::ns(ns);
    rt.block_on(async {
        rt.begin_trace(0, 0, at(0));
        rt.record_at(turn, at(3));
        rt.record_at(turn, at(4));
        rt.record_at(service, at(2));
        rt.record_split(turn, (service, Span::ns(2)), at(9));
        let expected = [(Some(0), 4), (Some(1), 6), (Some(0), 9)];
        assert_eq!(
            spans(&rt),
            expected,
            "a stage again extends its span; an earlier time adds none"
        );
        assert!(rt.move_trace_to(1, 2));
        assert_eq!(spans(&rt), expected);
        let whole = rt.trace();

        // A part from 9 to 15 ns, which ends unnamed at 16.
        rt.begin_trace(0, 1, at(9));
        rt.record_at(service, at(15));
        let (part, mut sums) = (rt.trace(), runtime::StageSums::new());
        assert!(rt.add_trace_to(&mut sums));
        rt.sleep_until(at(16)).await;
        rt.attach_trace_number(whole);
        rt.record_parts(&sums, part);
        assert_eq!(spans(&rt)[3..], [(Some(1), 15), (None, 16)]);
        assert_eq!(rt.finish_trace().unwrap().stages[..2], [7_000, 8_000]);
    });
}

#[test]
fn request_trace_with_too_many_spans_has_none() {
    let rt = Rt::simulated(Some(Traces::new(1, 4, 10, 0, STAGES).with_spans()), Log::Off);
    let stages = [stage!(rt, STAGES, "turn"), stage!(rt, STAGES, "service")];
    rt.begin_trace(0, 0, Time::ZERO);
    for number in 0..SPANS_MAX as u64 {
        assert!(rt.trace_spans(&mut Vec::new()), "{number} spans");
        rt.record_at(stages[number as usize % 2], Time::ZERO + Span::ns(number + 1));
    }
    assert_eq!(spans(&rt).len(), SPANS_MAX);
    for number in SPANS_MAX as u64..SPANS_MAX as u64 + 3 {
        rt.record_at(stages[number as usize % 2], Time::ZERO + Span::ns(number + 1));
        assert!(!rt.trace_spans(&mut Vec::new()));
    }
    rt.begin_trace(0, 1, Time::ZERO);
    rt.record_at(stages[0], Time::ZERO + Span::ns(1));
    assert_eq!(spans(&rt), [(Some(0), 1)], "the next row is untouched");
}

#[test]
fn request_trace_sampling_by_slot_and_use() {
    let rt = Rt::simulated(Some(Traces::new(1, 8, 10, 2, STAGES)), Log::Off);
    let followed: Vec<u16> = (0..8)
        .filter(|command| {
            rt.begin_trace(0, *command, rt.now());
            rt.is_traced()
        })
        .collect();
    assert_eq!(followed, [0, 4]);
    // A slot that is reused is not traced at every use.
    let uses = (0..8).map(|use_of_it| use_of_it << 10 | 3);
    let followed: Vec<u16> = uses.filter(|command| rt.follows(0, *command)).collect();
    assert_eq!(followed, [1, 5].map(|use_of_it| use_of_it << 10 | 3));
}

#[test]
fn log_entry_has_time_component_event_arguments() {
    let log = Log::kept();
    let rt = Rt::simulated(None, log.clone());
    rt.block_on(async {
        rt.sleep(Span::ns(3)).await;
        rt.log("here", "this", 1, 255);
    });
    let entry = Entry { at: Time(3_000), component: "here", what: "this", a: 1, b: 255 };
    assert_eq!(log.entries(), [entry]);
    assert_eq!(entry.to_string(), "3000 here this 1 ff");
}

#[test]
fn ready_tasks_shuffle_is_seeded() {
    let order = |seed| {
        let rt = world();
        rt.shuffle_ready_tasks(Rng::new(seed));
        let seen = Rc::new(RefCell::new(Vec::new()));
        for n in 0..8 {
            let seen = seen.clone();
            rt.spawn(async move { seen.borrow_mut().push(n) });
        }
        rt.block_on(rt.sleep(Span::ns(1)));
        seen.take()
    };
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
}

#[test]
fn drop_tasks_drops_their_values() {
    let rt = world();
    let held = Rc::new(());
    let inner = held.clone();
    rt.spawn(async move {
        let _held = inner;
        core::future::pending::<()>().await;
    });
    rt.block_on(rt.sleep(Span::ns(1)));
    assert_eq!(Rc::strong_count(&held), 2);
    rt.drop_tasks();
    assert_eq!(Rc::strong_count(&held), 1);
}

/// Live: one task waits for a word that another thread writes, and sleeps end.
#[test]
fn live_executor_polls_memory_and_timers() {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let flag = Arc::new(AtomicBool::new(false));
    let writer = flag.clone();
    let begun = rt.now();
    let thread = std::thread::spawn(move || writer.store(true, Ordering::Release));
    rt.block_on(async {
        core::future::poll_fn(|cx| {
            if flag.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            rt.poll_again(cx, false);
            Poll::Pending
        })
        .await;
        rt.sleep(Span::ms(2)).await;
    });
    assert!(rt.now().since(begun) >= Span::ms(2));
    thread.join().unwrap();
}

/// A task that waits to be woken, and records when it was.
fn receiver(rt: &Rt, parked: &Rc<RefCell<Option<Parked>>>, said: &Rc<RefCell<Vec<&'static str>>>) {
    let (rt2, parked, said) = (rt.clone(), parked.clone(), said.clone());
    rt.spawn(async move {
        for _ in 0..2 {
            let mut asked = false;
            core::future::poll_fn(|cx| {
                if std::mem::replace(&mut asked, true) {
                    return Poll::Ready(());
                }
                *parked.borrow_mut() = Some(rt2.park(cx));
                Poll::Pending
            })
            .await;
            said.borrow_mut().push("received");
        }
    });
}

/// The order of events of a waking and a woken task, with one turn of all others in between.
fn handed_over(rt: &Rt) -> Vec<&'static str> {
    let (parked, said) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(Vec::new())));
    receiver(rt, &parked, &said);
    rt.block_on(async {
        rt.yield_now().await;
        let whom = parked.take().expect("it waits");
        rt.hand_over(whom);
        said.borrow_mut().push("handed over");
        rt.yield_now().await;
    });
    said.take()
}

#[test]
fn handed_over_task_runs_inline_live_queued_in_virtual_time() {
    assert_eq!(handed_over(&world()), ["handed over", "received"]);
    assert_eq!(handed_over(&Rt::live(&STD_CLOCK, None, Log::Off)), ["received", "handed over"]);
}

/// Each task of a chain runs the next inline. A task that runs inside another wakes by the queue, so that a
/// chain of any length needs the stack of two.
#[test]
fn inline_run_is_one_level_deep() {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    const LINKS: usize = 100_000;
    let (depth, deepest) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let ended = Rc::new(Cell::new(0));
    let waiting: Rc<RefCell<Vec<Option<Parked>>>> = Rc::default();
    for link in 0..LINKS {
        let (rt2, waiting) = (rt.clone(), waiting.clone());
        let (depth, deepest, ended) = (depth.clone(), deepest.clone(), ended.clone());
        rt.spawn(async move {
            let mut asked = false;
            core::future::poll_fn(|cx| {
                if std::mem::replace(&mut asked, true) {
                    return Poll::Ready(());
                }
                waiting.borrow_mut().push(Some(rt2.park(cx)));
                Poll::Pending
            })
            .await;
            depth.set(depth.get() + 1);
            deepest.set(depth.get().max(deepest.get()));
            let next = waiting.borrow_mut().get_mut(link + 1).and_then(Option::take);
            if let Some(next) = next {
                rt2.hand_over(next);
            }
            depth.set(depth.get() - 1);
            ended.set(ended.get() + 1);
        });
    }
    rt.block_on(async {
        rt.yield_now().await;
        let first = waiting.borrow_mut()[0].take().expect("it waits");
        rt.hand_over(first);
        while ended.get() < LINKS {
            rt.yield_now().await;
        }
    });
    assert_eq!(deepest.get(), 2);
}

/// Live: of two tasks that wait for memory, one is patient. Both see their change; with only patient tasks,
/// checks are as frequent as without.
#[test]
fn patient_task_is_polled_in_some_passes() {
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let (asked, found) = (Rc::new(Cell::new([0_u32; 2])), Rc::new(Cell::new(0)));
    for (number, patient) in [(0, false), (1, true)] {
        let (rt2, asked, found) = (rt.clone(), asked.clone(), found.clone());
        rt.spawn(async move {
            core::future::poll_fn(|cx| {
                let mut counts = asked.get();
                counts[number] += 1;
                asked.set(counts);
                if counts[0] == 1_000 && number == 0 || counts[1] == 100 {
                    return Poll::Ready(());
                }
                rt2.poll_again(cx, patient);
                Poll::Pending
            })
            .await;
            found.set(found.get() + 1);
        });
    }
    rt.block_on(async {
        while found.get() == 0 {
            rt.yield_now().await;
        }
        let [hot, patient] = asked.get();
        assert_eq!(hot, 1_000, "the other can't have been first");
        assert!((1..hot / 16).contains(&patient), "{patient} of {hot}");
        while found.get() < 2 {
            rt.yield_now().await;
        }
    });
}

#[test]
fn run_can_stop_between_any_two_timed_events() {
    for events in 0..=6 {
        let (rt, turns) = (world(), Rc::new(Cell::new(0)));
        for task in 0..2 {
            let (rt, turns) = (rt.clone(), turns.clone());
            rt.clone().spawn(async move {
                for step in 1..=3 {
                    // The second task's timers fire at the same times as the first's, after them.
                    rt.sleep_until(Time::ZERO + Span::ns(10 * step)).await;
                    turns.set(turns.get() + 1 + 100 * task);
                }
            });
        }
        rt.block_on(rt.after_events(events));
        let (first, second) = (events.div_ceil(2), events / 2);
        assert_eq!(turns.get(), first + 101 * second, "after {events}");
        assert_eq!((rt.timed_events(), ns(rt.now())), (events, 10 * first));
    }
}

/// If a wait would be the next event, time passes in place. Tasks that cannot do so, each polled with
/// another future, give the same times, order and number of events.
#[test]
fn in_place_time_matches_timers() {
    let run = |seed: u64, beside_another: bool| {
        let log = Log::kept();
        let rt = Rt::simulated(None, log.clone());
        let (core, all) = (Rc::new(Processor::default()), Rc::new(Signal::default()));
        let left = Rc::new(Cell::new(12_u64));
        for number in 0..left.get() {
            let (own, core, all, left) = (rt.clone(), core.clone(), all.clone(), left.clone());
            let mut rng = Rng::new(seed * 100 + number);
            let body = async move {
                for step in 0..200 {
                    // Few distinct times, so that several events often share one.
                    match rng.below(4) {
                        0 => {
                            core.spend(&own, Span(rng.below(9)), Urgency::Task).await;
                        }
                        1 => own.yield_now().await,
                        _ => own.sleep(Span(rng.below(60))).await,
                    }
                    own.log("task", "step", number, step);
                }
                left.set(left.get() - 1);
                all.notify(&own);
            };
            match beside_another {
                false => rt.spawn(body),
                true => rt.spawn(async {
                    race(body, std::future::pending::<()>()).await;
                }),
            };
        }
        rt.block_on(async {
            while left.get() > 0 {
                all.changed(&rt, all.version()).await;
            }
        });
        let entries: Vec<_> = log.entries().iter().map(ToString::to_string).collect();
        (entries, rt.timed_events(), rt.now())
    };
    for seed in 0..20 {
        assert_eq!(run(seed, false), run(seed, true), "seed {seed}");
    }
}

/// Runs 1,000 turns of 10 ns with pauses of this seed; returns the time that they took.
fn took(seed: Option<u64>) -> Time {
    let rt = Rt::simulated(None, Log::Off);
    if let Some(seed) = seed {
        rt.pause_tasks(Rng::for_part(seed, "pauses"));
    }
    let left = Rc::new(Cell::new(1000));
    rt.spawn({
        let (rt, left) = (rt.clone(), left.clone());
        async move {
            while left.get() > 0 {
                rt.sleep(Span::ns(10)).await;
                left.set(left.get() - 1);
            }
        }
    });
    rt.block_on(async {
        while left.get() > 0 {
            rt.sleep(Span::ns(10)).await;
        }
    });
    let now = rt.now();
    rt.drop_tasks();
    now
}

#[test]
fn paused_tasks_end_later_and_repeat_with_their_seed() {
    assert_eq!(took(None), Time(10_000_000));
    assert!(took(Some(1)) > Time(100_000_000), "{}", took(Some(1)));
    assert_eq!(took(Some(1)), took(Some(1)));
    assert_ne!(took(Some(1)), took(Some(2)));
}
