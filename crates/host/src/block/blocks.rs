//! New Descriptors Block Processor: after a block is returned it announces the next, and wakes the I/O
//! Responses Generator.

use alloc::rc::Rc;

use bus::HostPort;
use runtime::{Either, race};

use super::Completion;
use super::ring::Ring;
use crate::lifecycle::HasLifecycle;

/// Event that woke the processor.
enum Woken {
    /// A descriptor may have been returned.
    News,
    /// The ring has changed its state, or the next block must be decided again.
    Turn,
}

/// Processes returned descriptors and announces blocks, as long as the ring has tasks.
pub(super) async fn process<P: HostPort>(ring: Rc<Ring<P>>) {
    let mut interrupts = 0;
    while !ring.lifecycle.has_ended() {
        let observed = ring.rethink.version();
        if ring.lifecycle.is_open() {
            ring.consider(&ring.port, 0).await;
        }
        match wait(&ring, observed, &mut interrupts).await {
            Woken::Turn => {}
            Woken::News if ring.is_dead() => ring.give_up(),
            Woken::News if ring.lifecycle.is_open() => {
                ring.take_back();
                if ring.flight.get().is_none() {
                    ring.consider(&ring.port, 0).await;
                }
                ring.ended.notify(ring.rt());
            }
            Woken::News => {}
        }
    }
}

async fn wait<P: HostPort>(ring: &Ring<P>, observed: u64, interrupts: &mut u32) -> Woken {
    let rt = ring.rt();
    let turn = async {
        match ring.ask_at.get() {
            None => ring.rethink.changed(rt, observed).await,
            Some(at) => {
                race(ring.rethink.changed(rt, observed), rt.sleep_until(at)).await;
            }
        }
    };
    // During a change of state returned descriptors are not processed; polling them would never end.
    if ring.flight.get().is_none() || !ring.lifecycle.is_open() {
        turn.await;
        return Woken::Turn;
    }
    let news = async {
        match ring.options.completion {
            Completion::Polled | Completion::Hybrid => {
                let (at, bytes) = ring.place();
                let check = || (ring.has_news() || ring.is_dead()).then_some(());
                ring.port.on_memory(at, bytes, check).await;
            }
            Completion::Interrupt { vector } => {
                *interrupts = ring.port.on_interrupt(vector, *interrupts).await;
            }
        }
    };
    match race(turn, news).await {
        Either::First(()) => Woken::Turn,
        Either::Second(()) => Woken::News,
    }
}
