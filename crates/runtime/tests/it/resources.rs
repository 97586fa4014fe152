//! FIFO servers, processors and locks against schedules worked out by hand.

use std::cell::RefCell;
use std::rc::Rc;

use runtime::{
    Line, Lock, LockPolicy as Policy, Log, Processor, Rng, Rt, Span, Time, Urgency, race,
};

fn world() -> Rt {
    Rt::simulated(None, Log::Off)
}

fn ns(time: Time) -> u64 {
    time.since(Time::ZERO).as_ns()
}

#[test]
fn fifo_server_serves_in_order() {
    let line = Line::default();
    let first = line.reserve(Time(100), Span(50));
    let second = line.reserve(Time(120), Span(10));
    let after_a_gap = line.reserve(Time(1000), Span(1));
    assert_eq!((first.begin, first.end), (Time(100), Time(150)));
    assert_eq!((second.begin, second.end), (Time(150), Time(160)));
    assert_eq!(after_a_gap.begin, Time(1000));
    assert_eq!(line.busy(), Span(61));
}

#[test]
fn processor_serves_interrupts_before_tasks() {
    let rt = world();
    let core = Rc::new(Processor::default());
    let ends = Rc::new(RefCell::new(Vec::new()));
    let spend = |name, at, span, urgency| {
        let (rt2, core, ends) = (rt.clone(), core.clone(), ends.clone());
        rt.spawn(async move {
            rt2.sleep(Span::ns(at)).await;
            core.spend(&rt2, Span::ns(span), urgency).await;
            ends.borrow_mut().push((name, ns(rt2.now())));
        });
    };
    spend("running", 0, 100, Urgency::Task);
    spend("waiting", 10, 100, Urgency::Task);
    spend("interrupt", 20, 30, Urgency::Interrupt);
    rt.block_on(rt.sleep(Span::us(1)));
    assert_eq!(*ends.borrow(), [("running", 100), ("interrupt", 130), ("waiting", 230)]);
    assert_eq!(core.busy(), Span::ns(230));
}

#[test]
fn dropped_spend_frees_processor() {
    let rt = world();
    let core = Processor::default();
    rt.block_on(async {
        let _ = race(core.spend(&rt, Span::us(1), Urgency::Task), rt.sleep(Span::ns(5))).await;
        assert!(!core.is_busy());
        core.spend(&rt, Span::ns(10), Urgency::Task).await;
    });
    assert_eq!(ns(rt.now()), 15);
}

/// Each of `cores` takes the lock, holds it for 10 ns and returns at once, for 20 us. Returns the number of
/// turns of each.
fn turns(policy: Policy, cores: usize) -> Vec<u32> {
    let rt = world();
    let lock = Rc::new(Lock::new(policy, Span::ns(40)));
    let turns = Rc::new(RefCell::new(vec![0; cores]));
    for core in 0..cores {
        let (rt2, lock, turns) = (rt.clone(), lock.clone(), turns.clone());
        rt.spawn(async move {
            loop {
                lock.acquire(&rt2).await;
                turns.borrow_mut()[core] += 1;
                rt2.sleep(Span::ns(10)).await;
                lock.release(&rt2);
            }
        });
    }
    rt.block_on(rt.sleep(Span::us(20)));
    turns.take()
}

#[test]
fn fair_lock_shares_evenly_unfair_favours_cache_holder() {
    let fair = turns(Policy::Fair, 4);
    // 20 us at 10 ns held and 40 ns of transfer.
    assert!(fair.iter().all(|&n| (99..=101).contains(&n)), "{fair:?}");
    let unfair = turns(Policy::Unfair(Rng::new(1)), 4);
    let (most, least) = (*unfair.iter().max().unwrap(), *unfair.iter().min().unwrap());
    assert!(most > 10 * least.max(1), "{unfair:?}");
}

#[test]
fn unfair_lock_survives_dropped_next_holder() {
    let rt = world();
    let lock = Lock::new(Policy::Unfair(Rng::new(1)), Span::ns(40));
    rt.block_on(async {
        lock.acquire(&rt).await;
        let release = async {
            rt.sleep(Span::ns(10)).await;
            lock.release(&rt);
            rt.sleep(Span::ns(20)).await;
        };
        // It is notified, and dropped before it checks.
        let _ = race(release, lock.acquire(&rt)).await;
        lock.acquire(&rt).await;
        lock.release(&rt);
    });
}

/// A notified waiter is not notified again before it has checked, or it would miss both.
#[test]
fn unfair_lock_starves_no_waiter() {
    let rt = world();
    let lock = Rc::new(Lock::new(Policy::Unfair(Rng::new(3)), Span::ns(40)));
    let ended = Rc::new(RefCell::new(0));
    for core in 0..4 {
        let (rt2, lock, ended) = (rt.clone(), lock.clone(), ended.clone());
        rt.spawn(async move {
            for _ in 0..200 {
                lock.acquire(&rt2).await;
                rt2.sleep(Span::ns(3)).await;
                lock.release(&rt2);
                rt2.sleep(Span::ns(5 + 7 * core)).await;
            }
            *ended.borrow_mut() += 1;
        });
    }
    rt.block_on(rt.sleep(Span::us(100)));
    assert_eq!(*ended.borrow(), 4);
}
