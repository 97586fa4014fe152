//! Memory ordering of DC Express tags, of the hand-over of a buffer after a time-out, and of the sleep and
//! doorbell fences, checked with loom for every order that the language allows.
//!
//! Mirrors, access by access, the driver (`Marks::mark`, `Commands::push`, `Slot::settles`, `Pair::submit`,
//! `Reports::take`) and the live device (`LiveDevice::{fetch, write, publish}`, `Front::sleep`). Copies are
//! word by word and relaxed, like those of `bus::Memory`; the last word of an entry, of a packet and of a
//! transfer is stored with release and loaded with acquire. Each variant with a part removed must fail, or
//! these tests would prove nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

const TAG: u32 = 0x7a67;
const DATA: u32 = 5;
const LBA: u32 = 9;

/// Orderings of the four accesses that need one.
#[derive(Clone, Copy)]
struct Orders {
    /// The driver stores an entry's number.
    entry: Ordering,
    /// The device loads the entry's number.
    fetch: Ordering,
    /// The device stores the last word of a packet.
    data: Ordering,
    /// The driver loads that last word.
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

/// A read into a buffer with `tags` tags. The device writes its packets forwards or backwards; with one tag
/// forwards only, with a flag only at the end.
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
        // First the tags, then the command.
        for packet in 2 - tags..2 {
            memory.buffer[packet][1].store(TAG, Relaxed);
        }
        memory.lba.store(LBA, Relaxed);
        memory.number.store(1, orders.entry);
        let mut vanished = [false; 2];
        for (packet, vanished) in vanished.iter_mut().enumerate().skip(2 - tags) {
            *vanished = memory.buffer[packet][1].load(orders.look) != TAG;
            // One tag covers the whole transfer, one of two covers its packet.
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
fn vanished_tag_implies_data_visible() {
    read(BUILT, 1, false);
}

#[test]
fn vanished_packet_tag_implies_packet_visible() {
    read(BUILT, 2, false);
    read(BUILT, 2, true);
}

#[test]
#[should_panic(expected = "an entry is there as a whole")]
fn entry_store_without_release_is_unsound() {
    read(Orders { entry: Relaxed, ..BUILT }, 1, false);
}

#[test]
#[should_panic(expected = "an entry is there as a whole")]
fn entry_load_without_acquire_is_unsound() {
    read(Orders { fetch: Relaxed, ..BUILT }, 2, false);
}

#[test]
#[should_panic(expected = "what a vanished tag speaks for is there")]
fn data_store_without_release_is_unsound() {
    read(Orders { data: Relaxed, ..BUILT }, 1, false);
}

#[test]
#[should_panic(expected = "what a vanished tag speaks for is there")]
fn packet_store_without_release_is_unsound() {
    read(Orders { data: Relaxed, ..BUILT }, 2, true);
}

#[test]
#[should_panic(expected = "what a vanished tag speaks for is there")]
fn tag_load_without_acquire_is_unsound() {
    read(Orders { look: Relaxed, ..BUILT }, 1, false);
}

/// One tag, with device writes in any order.
#[test]
#[should_panic(expected = "what a vanished tag speaks for is there")]
fn one_tag_is_unsound_for_reordered_packets() {
    read(BUILT, 1, true);
}

/// A wide tag in a packet of data, low half and high half. Its high half is that of the tag, so that the
/// low half decides. Built as one doubleword, which the device stores with release and the driver loads
/// with acquire; or as two words, of which the last has these orderings.
fn wide(at_once: bool) {
    const LOW: u64 = 5;
    const HIGH: u64 = 0x7a67 << 32;
    const WIDE_TAG: u64 = HIGH | 0x11;
    loom::model(move || {
        let memory = Arc::new((AtomicU32::new(0), AtomicU64::new(WIDE_TAG), AtomicU32::new(0x11)));
        let device = thread::spawn({
            let memory = memory.clone();
            move || {
                let (data, end, low) = &*memory;
                data.store(DATA, Relaxed);
                low.store(LOW as u32, Relaxed);
                end.store(HIGH | LOW, Release);
            }
        });
        let (data, end, low) = &*memory;
        let vanished = match at_once {
            true => end.load(Acquire) != WIDE_TAG,
            // The high half is the same in both, so only the low one tells.
            false => low.load(Acquire) != 0x11,
        };
        if vanished {
            assert_eq!(data.load(Relaxed), DATA, "what a vanished tag speaks for is there");
        }
        device.join().expect("the device ends");
    });
}

#[test]
fn vanished_wide_tag_implies_packet_visible() {
    wide(true);
}

#[test]
#[should_panic(expected = "what a vanished tag speaks for is there")]
fn wide_tag_as_two_words_is_unsound() {
    wide(false);
}

/// Sleep: the driver stores a command and loads the sleep flag; the device stores the flag and loads the
/// command number. One of them sees the other's store.
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
fn sleep_fences_lose_no_command() {
    sleep(true, true);
}

#[test]
#[should_panic(expected = "a command is lost")]
fn missing_driver_fence_loses_command() {
    sleep(false, true);
}

#[test]
#[should_panic(expected = "a command is lost")]
fn missing_device_fence_loses_command() {
    sleep(true, false);
}

/// When the driver takes a late read's buffer back.
#[derive(Clone, Copy, PartialEq)]
enum Back {
    /// When its tag has vanished, or a fence behind it was reported.
    Ended,
    /// At the time-out, whether it has ended or not.
    TimedOut,
    /// When a fence was reported that was sent before it.
    FencedBefore,
}

/// Tag of the second read.
const OTHER: u32 = 0x7a68;

/// A ring of three entries (LBA, zero for a fence; number), a buffer, and the number of the fence reported.
#[derive(Default)]
struct Shared {
    ring: [(AtomicU32, AtomicU32); 3],
    buffer: [AtomicU32; 2],
    report: AtomicU32,
}

impl Shared {
    fn push(&self, number: usize, lba: u32) {
        let (at, flag) = &self.ring[number - 1];
        at.store(lba, Relaxed);
        flag.store(number as u32, Release);
    }

    /// The device: commands in order of the ring, as far as it finds them in `looks` more checks.
    fn serve(&self, mut looks: u32) {
        let mut number = 1;
        while looks > 0 && number <= self.ring.len() {
            let (at, flag) = &self.ring[number - 1];
            if flag.load(Acquire) != number as u32 {
                (looks, _) = (looks - 1, thread::yield_now());
                continue;
            }
            match at.load(Relaxed) {
                0 => self.report.store(number as u32, Release),
                lba => {
                    self.buffer[0].store(lba, Relaxed);
                    self.buffer[1].store(lba, Release);
                }
            }
            number += 1;
        }
    }

    /// The words of the buffer, once its tag has vanished.
    fn data(&self, tag: u32) -> Option<[u32; 2]> {
        let last = self.buffer[1].load(Acquire);
        (last != tag).then(|| [self.buffer[0].load(Relaxed), last])
    }
}

/// A read whose time-out comes at once, and a read of another block into the same buffer as soon as the
/// driver takes it back. Each ends with its own data.
fn late_read(back: Back) {
    loom::model(move || {
        let shared = Arc::new(Shared::default());
        let device = thread::spawn({
            let shared = shared.clone();
            move || shared.serve(2)
        });
        shared.buffer[1].store(TAG, Relaxed);
        let (read, fence) = if back == Back::FencedBefore { (2, 1) } else { (1, 2) };
        if fence < read {
            shared.push(fence, 0);
        }
        shared.push(read, LBA);
        if fence > read {
            shared.push(fence, 0);
        }
        let reported = back == Back::TimedOut || shared.report.load(Acquire) == fence as u32;
        // The report comes after all that the device wrote before: a tag that still stands will stand.
        let vanished = shared.data(TAG);
        if let Some(data) = vanished {
            assert_eq!(data, [LBA; 2], "the first read's own data");
        }
        if vanished.is_some() || reported {
            shared.buffer[1].store(OTHER, Relaxed);
            shared.push(3, DATA);
            if let Some(data) = shared.data(OTHER) {
                assert_eq!(data, [DATA; 2], "the second read's own data");
            }
        }
        device.join().expect("the device ends");
    });
}

#[test]
fn late_read_keeps_its_buffer_until_its_end_or_a_fence() {
    late_read(Back::Ended);
}

#[test]
#[should_panic(expected = "the second read's own data")]
fn buffer_taken_back_at_the_timeout_gets_other_data() {
    late_read(Back::TimedOut);
}

#[test]
#[should_panic(expected = "the second read's own data")]
fn buffer_taken_back_after_an_earlier_fence_gets_other_data() {
    late_read(Back::FencedBefore);
}
