//! Versions that a read may return: with writes in flight, after flushes and after a power cut. The device
//! of the property test is a block that applies its writes at random times.

use proptest::prelude::*;
use workload::verify::{FlushTicket, Ledger, Mismatch, Stamps, WriteTicket};

const BLOCK: u32 = 512;
/// Versions that are multiples of this are deallocations.
const TRIM: u32 = 16;

struct World {
    stamps: Stamps,
    ledger: Ledger,
}

fn world() -> World {
    World { stamps: Stamps::new(3), ledger: Ledger::new(10_000) }
}

impl World {
    fn contents(&self, lba: u64, version: u32) -> Vec<u8> {
        let mut block = vec![0; BLOCK as usize];
        if !version.is_multiple_of(TRIM) {
            self.stamps.fill(&mut block, lba, BLOCK, version);
        }
        block
    }

    fn read(&self, lba: u64, version: u32) -> Result<(), Mismatch> {
        let block = self.contents(lba, version);
        let read = self.ledger.start_read(lba, 1);
        self.ledger.check_read(&read, &self.stamps, &block, BLOCK, false)
    }

    /// The versions up to 9 that a read may return.
    fn allowed(&self, lba: u64) -> Vec<u32> {
        (0..10).filter(|&version| self.read(lba, version).is_ok()).collect()
    }

    fn write(&mut self, lba: u64) -> u32 {
        let write = self.ledger.start_write(lba, 1);
        let version = write.version;
        self.ledger.finish_write(write, false);
        version
    }

    fn trim(&mut self, lba: u64) {
        let trim = self.ledger.start_trim(lba, 1);
        self.ledger.finish_write(trim, false);
    }

    fn flush(&mut self) {
        let flush = self.ledger.start_flush();
        self.ledger.finish_flush(flush);
    }
}

#[test]
fn read_allows_zeroes_then_last_acknowledged_write() {
    let mut world = world();
    assert_eq!(world.allowed(5), [0]);
    world.write(5);
    world.write(5);
    assert_eq!(world.allowed(5), [2]);
    assert_eq!(world.allowed(6), [0]);
    assert_eq!(world.ledger.uncertain(), 0);
    let said = world.read(5, 1).unwrap_err().to_string();
    assert_eq!(said, "LBA 5: stale or early: holds version 1: expected version 2");
}

#[test]
fn read_allows_write_in_flight_or_previous() {
    let mut world = world();
    world.write(5);
    let write = world.ledger.start_write(5, 1);
    assert_eq!(world.allowed(5), [1, 2]);
    world.ledger.finish_write(write, false);
    assert_eq!(world.allowed(5), [2]);
}

#[test]
fn read_allows_writes_submitted_before_its_completion() {
    let mut world = world();
    world.write(5);
    let read = world.ledger.start_read(5, 1);
    world.write(5);
    let late = world.ledger.start_write(5, 1);
    let allowed: Vec<u32> = (0..6)
        .filter(|&version| {
            let block = world.contents(5, version);
            world.ledger.check_read(&read, &world.stamps, &block, BLOCK, false).is_ok()
        })
        .collect();
    assert_eq!(allowed, [1, 2, 3]);
    world.ledger.finish_write(late, false);
}

#[test]
fn overlapping_writes_allow_either_until_later_write() {
    let mut world = world();
    let one = world.ledger.start_write(5, 1);
    let two = world.ledger.start_write(5, 1);
    world.ledger.finish_write(two, false);
    assert_eq!(world.allowed(5), [1, 2]);
    world.ledger.finish_write(one, false);
    assert_eq!(world.allowed(5), [1, 2], "their order is the device's affair");
    // The third begins after the first two have ended, so it rules them out.
    assert_eq!(world.write(5), 3);
    assert_eq!(world.allowed(5), [3]);
    assert_eq!(world.ledger.uncertain(), 0);
}

#[test]
fn failed_write_may_have_taken_effect() {
    let mut world = world();
    world.write(5);
    let write = world.ledger.start_write(5, 1);
    world.ledger.fail_write(write);
    assert_eq!(world.allowed(5), [1, 2]);
    world.write(5);
    assert_eq!(world.allowed(5), [3]);
}

#[test]
fn power_cut_allows_last_flushed_version_or_later() {
    let mut world = world();
    world.write(5);
    world.write(5);
    world.flush();
    world.write(5);
    let in_flight = world.ledger.start_write(5, 1);
    world.write(6);
    world.write(7);
    world.flush();
    world.ledger.power_cut();
    drop(in_flight);
    // Version 3 was acknowledged before the second flush.
    assert_eq!(world.allowed(5), [3, 4]);
    assert_eq!(world.allowed(6), [1]);
    world.write(6);
    world.ledger.power_cut();
    assert_eq!(world.allowed(6), [1, 2]);
    assert_eq!(world.allowed(7), [1], "what is durable stays");
    assert_eq!(world.allowed(8), [0]);
}

#[test]
fn flush_covers_writes_acknowledged_before_submission() {
    let mut world = world();
    world.write(5);
    let flush = world.ledger.start_flush();
    world.write(5);
    world.ledger.finish_flush(flush);
    world.ledger.power_cut();
    assert_eq!(world.allowed(5), [1, 2]);
}

#[test]
fn later_flush_covers_earlier_failed_flush_covers_nothing() {
    let mut one = world();
    one.write(5);
    let _earlier: FlushTicket = one.ledger.start_flush();
    one.flush();
    one.ledger.power_cut();
    assert_eq!(one.allowed(5), [1]);

    let mut other = world();
    other.write(5);
    let flush = other.ledger.start_flush();
    other.ledger.fail_flush(flush);
    other.ledger.power_cut();
    assert_eq!(other.allowed(5), [0, 1]);

    let mut third = world();
    third.write(5);
    let failing = third.ledger.start_flush();
    let good = third.ledger.start_flush();
    third.ledger.fail_flush(failing);
    third.ledger.finish_flush(good);
    third.ledger.power_cut();
    assert_eq!(third.allowed(5), [1]);
}

/// The first write is submitted first and applied last, over the durable one; a later acknowledged write
/// rules it out, and is lost at the power cut.
#[test]
fn durable_write_leaves_later_writes_volatile() {
    let mut world = world();
    let first = world.ledger.start_write(5, 1);
    let durable = world.ledger.start_write(5, 1);
    world.ledger.finish_write(first, false);
    assert_eq!(world.write(5), 3);
    world.ledger.finish_write(durable, true);
    assert_eq!(world.allowed(5), [2, 3]);
    world.ledger.power_cut();
    assert_eq!(world.allowed(5), [1, 2, 3]);
}

#[test]
fn fua_write_survives_power_cut_without_flush() {
    let mut world = world();
    let write = world.ledger.start_write(5, 1);
    world.ledger.finish_write(write, true);
    world.ledger.power_cut();
    assert_eq!(world.allowed(5), [1]);
}

#[test]
fn version_settled_after_power_cut_is_kept() {
    let mut world = world();
    for _ in 0..3 {
        world.write(5);
    }
    world.ledger.power_cut();
    assert_eq!(world.allowed(5), [0, 1, 2, 3]);
    let found = world.contents(5, 2);
    world.ledger.settle(5, &world.stamps, &found, false);
    assert_eq!(world.allowed(5), [2]);
    world.ledger.power_cut();
    assert_eq!(world.allowed(5), [2], "what was seen once, and nothing written since");
    assert_eq!(world.write(5), 4);
    assert_eq!(world.allowed(5), [4]);
}

#[test]
fn trim_reads_zeroes_or_old_data_after_power_cut() {
    let mut world = world();
    world.write(5);
    world.write(5);
    world.flush();
    world.trim(5);
    assert_eq!(world.allowed(5), [0], "zeroes, at once");
    world.ledger.power_cut();
    // Versions in between were never issued to a write.
    assert_eq!(world.allowed(5)[..2], [0, 2], "what it held, and nothing older");
    let zeroes = world.contents(5, 0);
    world.ledger.settle(5, &world.stamps, &zeroes, false);
    assert_eq!(world.allowed(5), [0]);
    world.ledger.power_cut();
    assert_eq!(world.allowed(5), [0]);
}

#[test]
fn flushed_trim_survives_power_cut() {
    let mut world = world();
    world.write(5);
    world.trim(5);
    world.flush();
    world.ledger.power_cut();
    assert_eq!(world.allowed(5), [0]);
    let said = world.read(5, 1).unwrap_err().to_string();
    assert_eq!(said, "LBA 5: stale or early: holds version 1: expected zeroes (deallocated)");
    assert_eq!(world.write(5), TRIM + 1);
    assert!(world.read(5, TRIM + 1).is_ok() && world.read(5, 0).is_err());
}

/// It is not treated as a block with arbitrary contents because this run has not written it.
#[test]
fn trimmed_block_of_unknown_device_reads_zeroes() {
    let mut world = World { ledger: Ledger::over_unknown(10), ..world() };
    assert!(world.read(5, 3).is_ok());
    world.trim(5);
    assert!(world.read(5, 3).is_err() && world.read(5, 0).is_ok());
}

#[test]
fn multi_block_write_has_one_version_above_all() {
    let mut world = world();
    world.write(6);
    world.write(6);
    let write = world.ledger.start_write(4, 4);
    assert_eq!(write.version, 3);
    world.ledger.finish_write(write, false);
    assert_eq!((world.allowed(4), world.allowed(6)), (vec![3], vec![3]));
}

#[test]
fn next_uncertain_walks_blocks_after_power_cut() {
    let mut world = world();
    for lba in 3..9 {
        world.write(lba);
    }
    world.flush();
    for lba in [4, 5, 7] {
        world.write(lba);
    }
    assert_eq!(world.ledger.next_uncertain(0, 8), None, "all is known while the power is on");
    world.ledger.power_cut();
    assert_eq!(world.ledger.next_uncertain(0, 8), Some((4, 2)));
    assert_eq!(world.ledger.next_uncertain(0, 1), Some((4, 1)));
    assert_eq!(world.ledger.next_uncertain(6, 8), Some((7, 1)));
    assert_eq!(world.ledger.next_uncertain(8, 8), None);
}

#[test]
fn next_written_walks_written_blocks() {
    let mut world = world();
    for lba in [3, 4, 5, 4096, 9_999] {
        world.write(lba);
    }
    let mut runs = Vec::new();
    let mut from = 0;
    while let Some((lba, blocks)) = world.ledger.next_written(from, 2) {
        runs.push((lba, blocks));
        from = lba + u64::from(blocks);
    }
    assert_eq!(runs, [(3, 2), (5, 1), (4096, 1), (9_999, 1)]);
}

#[test]
#[should_panic(expected = "lost in a power cut")]
fn ticket_from_before_power_cut_panics() {
    let mut world = world();
    let write = world.ledger.start_write(5, 1);
    world.ledger.power_cut();
    world.ledger.finish_write(write, false);
}

/// A device with one block and a volatile cache that applies writes late.
#[derive(Default)]
struct Device {
    /// Versions submitted and not yet applied, and whether each goes through the cache.
    pending: Vec<(u32, bool)>,
    cache: u32,
    media: u32,
}

impl Device {
    fn apply(&mut self, at: usize) {
        let (version, durable) = self.pending.remove(at);
        self.cache = version;
        if durable {
            self.media = version;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// No behaviour of a correct device is reported as an error; and if the ledger is certain, only the
    /// version that the device holds is allowed.
    #[test]
    fn ledger_accepts_any_correct_device(
        steps in prop::collection::vec((0_u8..8, any::<u16>()), 1..60),
    ) {
        let mut world = world();
        let mut device = Device::default();
        let mut in_flight: Vec<(WriteTicket, bool)> = Vec::new();
        for (step, pick) in steps {
            let pick = usize::from(pick);
            match step {
                0 | 1 => {
                    let write = match pick % 5 {
                        0 => world.ledger.start_trim(5, 1),
                        _ => world.ledger.start_write(5, 1),
                    };
                    device.pending.push((write.version, pick % 2 == 0));
                    in_flight.push((write, pick % 2 == 0));
                }
                2 if !device.pending.is_empty() => {
                    device.apply(pick % device.pending.len());
                }
                3 | 4 if !in_flight.is_empty() => {
                    let (write, durable) = in_flight.remove(pick % in_flight.len());
                    // It must be applied before it is acknowledged.
                    let waits = |(version, _): &(u32, bool)| *version == write.version;
                    if let Some(at) = device.pending.iter().position(waits) {
                        device.apply(at);
                    }
                    world.ledger.finish_write(write, durable);
                }
                5 => device.media = device.cache,
                6 => {
                    device.media = device.cache;
                    world.flush();
                }
                7 if pick % 4 == 0 => {
                    world.ledger.power_cut();
                    in_flight.clear();
                    device.pending.clear();
                    device.cache = device.media;
                }
                _ => {}
            }
            prop_assert_eq!(world.read(5, device.cache), Ok(()));
            if world.ledger.uncertain() == 0 && device.cache > 0 {
                prop_assert!(world.read(5, device.cache - 1).is_err());
                prop_assert!(world.read(5, device.cache + 1).is_err());
            }
            if step == 7 && pick % 8 == 0 {
                let found = world.contents(5, device.cache);
                world.ledger.settle(5, &world.stamps, &found, false);
            }
        }
    }
}
