//! What a tag proves, and what the fences of sleep and doorbell prove: every order that the language's
//! memory model allows, by loom.
//!
//! Mirrors, access by access, the driver (`Marks::mark`, `Commands::push`, `Slot::settles`,
//! `Pair::submit`) and the live device (`LiveDevice::{fetch, write, publish}`, `Front::sleep`). Copies
//! are word by word and relaxed, as those of `bus::Memory` are; the last word of an entry, of a packet
//! and of a transfer is stored with release and loaded with acquire. Each variant with a part taken out
//! must fail, or these tests would show nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

const TAG: u32 = 0x7a67;
const DATA: u32 = 5;
const LBA: u32 = 9;

/// The orders of the four accesses that must have one.
#[derive(Clone, Copy)]
struct Orders {
    /// The driver stores an entry's number.
    entry: Ordering,
    fetch: Ordering,
    /// The device stores the last word of a packet.
    data: Ordering,
    /// The driver looks at it.
    look: Ordering,
}

const BUILT: Orders = Orders { entry: Release, fetch: Acquire, data: Release, look: Acquire };

/// Host memory: an entry of two words, a buffer of two packets of two words.
#[derive(Default)]
struct Memory {
    lba: AtomicU32,
    number: AtomicU32,
    buffer: [[AtomicU32; 2]; 2],
}

/// A read into a buffer with so many tags. The device writes its packets forwards or backwards, and with
/// one tag forwards only, with no flag but the last.
fn read(orders: Orders, tags: usize, backwards: bool) {
    loom::model(move || {
        let memory = Arc::new(Memory::default());
        let device = thread::spawn({
            let memory = memory.clone();
            move || {
                if memory.number.load(orders.fetch) != 1 {
                    return;
                }
                assert_eq!(memory.lba.load(Relaxed), LBA, "an entry is there as a whole");
                let order = if backwards { [1, 0] } else { [0, 1] };
                for packet in order {
                    let [first, last] = &memory.buffer[packet];
                    first.store(DATA, Relaxed);
                    let is_flag = tags == 2 || packet == 1;
                    last.store(DATA, if is_flag { orders.data } else { Relaxed });
                }
            }
        });
        // The tags, then the command.
        for packet in 2 - tags..2 {
            memory.buffer[packet][1].store(TAG, Relaxed);
        }
        memory.lba.store(LBA, Relaxed);
        memory.number.store(1, orders.entry);
        let mut vanished = [false; 2];
        for (packet, vanished) in vanished.iter_mut().enumerate().skip(2 - tags) {
            *vanished = memory.buffer[packet][1].load(orders.look) != TAG;
            // One tag speaks for the whole transfer, one of two for its packet.
            let speaks_for = if tags == 1 { 0..2 } else { packet..packet + 1 };
            if *vanished {
                for word in memory.buffer[speaks_for].iter().flatten() {
                    assert_eq!(word.load(Relaxed), DATA, "what a vanished tag speaks for is there");
                }
            }
        }
        device.join().expect("the device's assertions hold");
        // No tag was stored over data.
        let landed = memory.buffer[1][0].load(Relaxed) == DATA;
        for packet in 2 - tags..2 {
            let last = memory.buffer[packet][1].load(Relaxed);
            assert!(!landed || last == DATA, "a tag stands over data");
        }
    });
}

#[test]
fn a_vanished_tag_proves_the_transfer() {
    read(BUILT, 1, false);
}

#[test]
fn each_vanished_tag_proves_its_packet_whatever_the_order() {
    read(BUILT, 2, false);
    read(BUILT, 2, true);
}

#[test]
#[should_panic(expected = "an entry is there as a whole")]
fn an_entry_without_release_proves_nothing() {
    read(Orders { entry: Relaxed, ..BUILT }, 1, false);
}

#[test]
#[should_panic(expected = "an entry is there as a whole")]
fn a_fetch_without_acquire_proves_nothing() {
    read(Orders { fetch: Relaxed, ..BUILT }, 2, false);
}

#[test]
#[should_panic(expected = "what a vanished tag speaks for is there")]
fn data_without_release_prove_nothing() {
    read(Orders { data: Relaxed, ..BUILT }, 1, false);
}

#[test]
#[should_panic(expected = "what a vanished tag speaks for is there")]
fn a_packet_without_release_proves_nothing() {
    read(Orders { data: Relaxed, ..BUILT }, 2, true);
}

#[test]
#[should_panic(expected = "what a vanished tag speaks for is there")]
fn a_look_without_acquire_proves_nothing() {
    read(Orders { look: Relaxed, ..BUILT }, 1, false);
}

/// One tag, where the device's writes may overtake one another.
#[test]
#[should_panic(expected = "what a vanished tag speaks for is there")]
fn one_tag_does_not_speak_for_packets_in_any_order() {
    read(BUILT, 1, true);
}

/// Sleep: the driver stores a command and looks whether the device sleeps; the device says that it does
/// and looks for a command. One of them sees the other.
fn sleep(host_fence: bool, device_fence: bool) {
    loom::model(move || {
        let (number, asleep) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let device = thread::spawn({
            let (number, asleep) = (number.clone(), asleep.clone());
            move || {
                asleep.store(1, Release);
                if device_fence {
                    fence(SeqCst);
                }
                number.load(Acquire) == 1
            }
        });
        number.store(1, Release);
        if host_fence {
            fence(SeqCst);
        }
        let rings = asleep.load(Acquire) == 1;
        let found = device.join().expect("the device ends");
        assert!(rings || found, "a command is lost");
    });
}

#[test]
fn with_both_fences_one_sees_the_other() {
    sleep(true, true);
}

#[test]
#[should_panic(expected = "a command is lost")]
fn without_the_drivers_fence_a_command_is_lost() {
    sleep(false, true);
}

#[test]
#[should_panic(expected = "a command is lost")]
fn without_the_devices_fence_a_command_is_lost() {
    sleep(true, false);
}
