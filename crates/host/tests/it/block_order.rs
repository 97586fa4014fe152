//! Memory ordering of descriptors, checked with loom for every order that the language allows.
//!
//! Mirrors, access by access, the driver (`Ring::{write, announce, is_back, take_back}`) and the live device
//! (`Front::{serve, take, look_ahead, return_group}` over `LiveDevice`). Copies are word by word and relaxed,
//! like those of `bus::Memory`; the last word of a descriptor, the announcing register, and the last word of
//! a return are stored with release and loaded with acquire. Each variant with a part removed must fail, or
//! these tests would prove nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const COMMAND: u32 = 1;
const RESPONSE: u32 = 2;
const OFFSET: u32 = 7;
const DATA: u32 = 9;

/// Orderings of the accesses that need one.
#[derive(Clone, Copy)]
struct Orders {
    /// The driver stores a descriptor's last word.
    owner: Ordering,
    /// The driver announces a block.
    announce: Ordering,
    /// The device loads the announcing register.
    notice: Ordering,
    /// The device looks ahead for a descriptor that it owns.
    ahead: Ordering,
    /// The device stores the last word of a return.
    back: Ordering,
    /// The driver loads that last word.
    look: Ordering,
}

const BUILT: Orders = Orders {
    owner: Release,
    announce: Release,
    notice: Acquire,
    ahead: Acquire,
    back: Release,
    look: Acquire,
};

/// Host memory: two descriptors of two words, a page of one word; and a register.
#[derive(Default)]
struct Memory {
    offset: [AtomicU32; 2],
    control: [AtomicU32; 2],
    page: AtomicU32,
    register: AtomicU32,
}

/// A block of two, announced and returned as a whole: the flag is the very last word.
fn exchange(orders: Orders) {
    loom::model(move || {
        let memory = Arc::new(Memory::default());
        let host = thread::spawn({
            let memory = memory.clone();
            move || {
                for n in 0..2 {
                    memory.offset[n].store(OFFSET, Relaxed);
                    memory.control[n].store(COMMAND, orders.owner);
                }
                memory.register.store(1, orders.announce);
                if memory.control[1].load(orders.look) == RESPONSE {
                    let first = memory.control[0].load(Relaxed);
                    let page = memory.page.load(Relaxed);
                    assert_eq!((first, page), (RESPONSE, DATA), "the block is back as a whole");
                    // Owned by the host again: emptied.
                    memory.control[0].store(0, orders.owner);
                }
            }
        });
        if memory.register.load(orders.notice) == 1 {
            for n in 0..2 {
                // Not the last word: loom would take this load for the one that races with the store below.
                let offset = memory.offset[n].load(Relaxed);
                assert_eq!(offset, OFFSET, "an announced block is there");
            }
            memory.page.store(DATA, Relaxed);
            memory.control[0].store(RESPONSE, Relaxed);
            memory.control[1].store(RESPONSE, orders.back);
        }
        host.join().expect("the host's assertions hold");
    });
}

/// The device takes a descriptor before it is announced.
fn look_ahead(orders: Orders) {
    loom::model(move || {
        let memory = Arc::new(Memory::default());
        let device = thread::spawn({
            let memory = memory.clone();
            move || {
                if memory.control[0].load(orders.ahead) == COMMAND {
                    let offset = memory.offset[0].load(Relaxed);
                    assert_eq!(offset, OFFSET, "a descriptor that is the device's is there");
                }
            }
        });
        memory.offset[0].store(OFFSET, Relaxed);
        memory.control[0].store(COMMAND, orders.owner);
        device.join().expect("the device's assertions hold");
    });
}

#[test]
fn descriptor_last_word_implies_rest_visible() {
    exchange(BUILT);
    look_ahead(BUILT);
}

#[test]
#[should_panic(expected = "an announced block is there")]
fn announce_store_without_release_is_unsound() {
    exchange(Orders { announce: Relaxed, owner: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "an announced block is there")]
fn announce_load_without_acquire_is_unsound() {
    exchange(Orders { notice: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "the block is back as a whole")]
fn return_store_without_release_is_unsound() {
    exchange(Orders { back: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "the block is back as a whole")]
fn return_load_without_acquire_is_unsound() {
    exchange(Orders { look: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a descriptor that is the device's is there")]
fn owner_store_without_release_is_unsound() {
    look_ahead(Orders { owner: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a descriptor that is the device's is there")]
fn lookahead_load_without_acquire_is_unsound() {
    look_ahead(Orders { ahead: Relaxed, ..BUILT });
}
