//! What the last word of a descriptor proves, in every order that the language's memory model allows, by
//! loom.
//!
//! Mirrors, access by access, the driver (`Ring::{write, announce, is_back, take_back}`) and the live device
//! (`Front::{serve, take, look_ahead, return_group}` over `LiveDevice`). Copies are word by word and relaxed,
//! as those of `bus::Memory` are; the last word of a descriptor, the announcing register, and the last word
//! of a return are stored with release and loaded with acquire. Each variant with a part taken out must
//! fail, or these tests would show nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

const COMMAND: u32 = 1;
const RESPONSE: u32 = 2;
const OFFSET: u32 = 7;
const DATA: u32 = 9;

/// The orders of the accesses that must have one.
#[derive(Clone, Copy)]
struct Orders {
    /// The driver stores a descriptor's last word.
    owner: Ordering,
    /// The driver announces a block.
    announce: Ordering,
    /// The device looks whether one was announced.
    notice: Ordering,
    /// The device looks ahead for a descriptor that is its own.
    ahead: Ordering,
    /// The device stores the last word of what it returns.
    back: Ordering,
    /// The driver looks at it.
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

/// Host memory: two descriptors of two words, a page of one; and a register.
#[derive(Default)]
struct Memory {
    offset: [AtomicU32; 2],
    control: [AtomicU32; 2],
    page: AtomicU32,
    register: AtomicU32,
}

/// A block of two, announced and returned as a whole: the flag is the last word of all.
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
                    // The host's again: emptied.
                    memory.control[0].store(0, orders.owner);
                }
            }
        });
        if memory.register.load(orders.notice) == 1 {
            for n in 0..2 {
                // Not the last word: loom would take this look for the one that the store below races with.
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

/// A descriptor that the device takes before it is announced.
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
fn the_last_words_prove_the_rest() {
    exchange(BUILT);
    look_ahead(BUILT);
}

#[test]
#[should_panic(expected = "an announced block is there")]
fn an_announcement_without_release_proves_nothing() {
    exchange(Orders { announce: Relaxed, owner: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "an announced block is there")]
fn noticing_without_acquire_proves_nothing() {
    exchange(Orders { notice: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "the block is back as a whole")]
fn a_return_without_release_proves_nothing() {
    exchange(Orders { back: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "the block is back as a whole")]
fn a_look_without_acquire_proves_nothing() {
    exchange(Orders { look: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a descriptor that is the device's is there")]
fn ownership_without_release_proves_nothing() {
    look_ahead(Orders { owner: Relaxed, ..BUILT });
}

#[test]
#[should_panic(expected = "a descriptor that is the device's is there")]
fn looking_ahead_without_acquire_proves_nothing() {
    look_ahead(Orders { ahead: Relaxed, ..BUILT });
}
