//! Sleep: a queue with MAY_SLEEP stops polling, sets ASLEEP, and misses no command.

use bus::HostPort;
use runtime::Span;
use wire::dcx::notice;
use wire::dcx::registers::Control;

use crate::raw::dcx::Ring;
use crate::raw::dcx::world::{Setup, World, on_a_bench};

const MAY_SLEEP: Control = Control::new().with_may_sleep(true);

fn asleep(w: &World, ring: &Ring) -> bool {
    let at = wire::BusAddr(ring.notice.0 + notice::ASLEEP as u64);
    w.raw.memory.load_u32(at).expect("the notice lies in host memory") != 0
}

async fn until_asleep(w: &World, ring: &Ring) {
    let begin = w.rt.now();
    while !asleep(w, ring) {
        assert!(w.rt.now().since(begin) < Span::ms(1), "it does not fall asleep");
        w.rt.sleep(Span::ns(100)).await;
    }
}

/// As a driver does: store the command, then ring if the device sleeps.
fn ring_if_asleep(w: &World, ring: &Ring, number: u32) -> bool {
    let asleep = asleep(w, ring);
    if asleep {
        w.raw.host.write32(ring.group.doorbell, number);
    }
    asleep
}

#[test]
fn idle_queue_with_may_sleep_stops_fetching() {
    on_a_bench(async |w: World| {
        let mut ring = w.raw.ring(0, 16, None);
        w.raw.enable(&mut ring, MAY_SLEEP).await;
        let awake = w.raw.up(1, 16, None).await;
        until_asleep(&w, &ring).await;
        w.raw.disable(&awake).await;
        let fetches = w.witness.fetches.get();
        w.rt.sleep(Span::ms(5)).await;
        assert_eq!(w.witness.fetches.get(), fetches, "a queue that sleeps polls");
        assert_eq!(w.front.counts().sleeps, 1);
        // A queue without MAY_SLEEP keeps polling.
        let awake = w.raw.up(1, 16, None).await;
        w.rt.sleep(Span::ms(1)).await;
        assert!(!asleep(&w, &awake) && w.witness.fetches.get() > fetches + 500);
    });
}

/// Below the load of the threshold the queue sleeps after each command and is rung; above it polls, and
/// sleeps again when commands stop coming.
#[test]
fn queue_is_rung_at_low_load_and_polled_at_high_load() {
    let mut setup = Setup::default();
    setup.options.sleep_after = u32::MAX;
    setup.options.poll_gap_max = Some(Span::us(20));
    setup.run(async |w: World| {
        let mut ring = w.raw.ring(0, 64, None);
        w.raw.enable(&mut ring, MAY_SLEEP).await;
        let mut at_gap = async |gap: Span, times: u32| {
            let mut rung = 0;
            for _ in 0..times {
                w.rt.sleep(gap).await;
                let number = w.raw.push(&mut ring, 1, wire::dcx::command::Command::Fence);
                rung += u32::from(ring_if_asleep(&w, &ring, number));
                w.raw.report(&mut ring).await;
            }
            rung
        };
        assert_eq!(at_gap(Span::us(60), 20).await, 20, "each finds it asleep");
        at_gap(Span::us(5), 20).await;
        assert_eq!(at_gap(Span::us(5), 50).await, 0, "it polls");
        assert_eq!(at_gap(Span::us(100), 1).await, 1, "silence");
    });
}

/// A command is stored at every moment around the start of sleep, in steps of 2 ns: the device finds it, or
/// the host sees that it must ring.
#[test]
fn no_command_lost_when_queue_falls_asleep() {
    for host_read in [Span::ZERO, Span::ns(250)] {
        let setup = Setup { host_read, ..Setup::default() };
        setup.run(async |w: World| {
            let mut ring = w.raw.ring(0, 64, None);
            let (mut last_tail, mut found) = (0, 0);
            for step in 0..2500u64 {
                w.raw.enable(&mut ring, MAY_SLEEP).await;
                // The same phase each time: relative to the arrival of a first command.
                w.raw.fence(&mut ring).await;
                w.rt.sleep(Span::us(1) + Span::ns(2 * step)).await;
                let here = w.raw.place(0, 4096);
                let to = w.raw.marked(&ring, 512, 0);
                let number = w.raw.read(&mut ring, 0, 0, 1, &to);
                match ring_if_asleep(&w, &ring, number) {
                    true => last_tail += 1,
                    false => found += 1,
                }
                assert!(w.raw.arrived(&to).await == w.medium.peek(0, 512), "step {step}");
                w.raw.free_from(here);
                w.raw.disable(&ring).await;
            }
            assert!(
                last_tail > 100 && found > 100,
                "{last_tail} rung, {found} found: the sweep misses it"
            );
        });
    }
}

/// Command numbers restart after a disable, so the doorbell value that wakes the queue may equal the last one
/// before.
#[test]
fn first_doorbell_after_reset_wakes_queue() {
    on_a_bench(async |w: World| {
        let mut ring = w.raw.ring(0, 16, None);
        for _ in 0..3 {
            w.raw.enable(&mut ring, MAY_SLEEP).await;
            until_asleep(&w, &ring).await;
            // The last check before sleep is over.
            w.rt.sleep(Span::us(10)).await;
            let to = w.raw.marked(&ring, 512, 0);
            let number = w.raw.read(&mut ring, 0, 0, 1, &to);
            assert_eq!(number, 1);
            assert!(ring_if_asleep(&w, &ring, number));
            w.raw.arrived(&to).await;
            w.raw.disable(&ring).await;
        }
    });
}

/// A sleeping queue gives its slots to other queues, and gets some when it wakes.
#[test]
fn sleeping_queue_holds_no_slots() {
    let mut setup = Setup::default();
    (setup.options.queues, setup.options.slots) = (2, 2);
    setup.run(async |w: World| {
        let (mut one, mut two) = (w.raw.ring(0, 16, None), w.raw.ring(1, 16, None));
        w.raw.enable(&mut one, MAY_SLEEP).await;
        until_asleep(&w, &one).await;
        w.raw.enable(&mut two, Control::new()).await;
        w.medium.close();
        let to = [(); 2].map(|()| {
            let to = w.raw.marked(&two, 512, 0);
            w.raw.read(&mut two, 0, 0, 1, &to);
            to
        });
        w.rt.sleep(Span::us(50)).await;
        assert_eq!(w.medium.waiting.get(), 2, "both slots are the busy queue's");
        w.medium.open();
        for to in &to {
            w.raw.arrived(to).await;
        }
        let to = w.raw.marked(&one, 512, 0);
        let number = w.raw.read(&mut one, 0, 0, 1, &to);
        assert!(ring_if_asleep(&w, &one, number));
        w.raw.arrived(&to).await;
    });
}

#[test]
fn disable_of_sleeping_queue_stops_dma_writes() {
    on_a_bench(async |w: World| {
        let mut ring = w.raw.ring(0, 16, None);
        for _ in 0..5 {
            w.raw.enable(&mut ring, MAY_SLEEP).await;
            until_asleep(&w, &ring).await;
            w.raw.disable(&ring).await;
            let seen = w.raw.everything();
            w.rt.sleep(Span::us(100)).await;
            assert!(seen == w.raw.everything(), "something landed after STATUS was 0");
        }
    });
}
