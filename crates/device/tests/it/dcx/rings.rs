//! Rings: wrap-around, garbage entries, more commands than slots.

use std::collections::BTreeMap;

use runtime::{Rng, Span};
use wire::BusAddr;
use wire::dcx::command::{self, Command, Entry};
use wire::dcx::report::Code;
use zerocopy::FromBytes;

use crate::raw::dcx::pattern;
use crate::raw::dcx::world::{Setup, World};

#[test]
fn command_and_report_rings_wrap() {
    for entries in [2, 4, 64, 256] {
        for fetch_max in [1, 3, 64] {
            let mut setup = Setup::default();
            setup.options.fetch_max = fetch_max;
            setup.run(async |w: World| {
                let mut ring = w.raw.up(0, entries, None).await;
                // Half a ring at a time, so that the end of the ring falls in the middle of a fetch.
                for round in 0..6 {
                    let first = ring.next;
                    let slots = (entries / 2 + round % 2).min(entries) as u16;
                    for slot in 0..slots {
                        w.raw.push(&mut ring, slot, Command::Fence);
                    }
                    for slot in 0..slots {
                        let expected = (first + u32::from(slot), slot, Code::DONE);
                        assert_eq!(w.raw.report(&mut ring).await, expected, "{entries}");
                    }
                }
                assert!(ring.next > 2 * entries);
            });
        }
    }
}

/// Random bytes with a wrong number are ignored; with the right number they are rejected or executed, and the
/// entries behind them are served.
#[test]
fn garbage_in_polled_ring_is_ignored_or_rejected() {
    let mut rng = Rng::for_part(4, "garbage");
    let setup = Setup { contents: pattern(1, 64 << 10), ..Setup::default() };
    setup.run(async |w: World| {
        let mut ring = w.raw.up(0, 16, Some(128)).await;
        let mut codes = BTreeMap::new();
        for round in 0..2000u32 {
            let mut bytes = [0u8; command::BYTES];
            bytes.chunks_exact_mut(8).for_each(|word| {
                word.copy_from_slice(&rng.next_u64().to_le_bytes());
            });
            // Mostly plausible, so that it passes the first check.
            if rng.chance(3, 4) {
                bytes[0] = rng.below(5) as u8;
                bytes[1] = 0;
                bytes[28..60].fill(0);
            }
            if rng.chance(1, 2) {
                bytes[8..16].copy_from_slice(&rng.below(5000).to_le_bytes());
                bytes[24..28].copy_from_slice(&(128 * rng.below(800) as u32).to_le_bytes());
            }
            let wrong = ring.next.wrapping_add(1 + rng.below(u64::from(u32::MAX - 1)) as u32);
            bytes[60..].copy_from_slice(&wrong.to_le_bytes());
            let place = (ring.next - 1) % ring.entries;
            let at = BusAddr(ring.commands.0 + u64::from(place) * 64);
            w.raw.memory.write(at, &bytes).unwrap();
            w.rt.sleep(Span::us(3)).await;
            assert!(w.raw.try_report(&mut ring).is_none(), "round {round}: a wrong number");

            let number = ring.next;
            bytes[60..].copy_from_slice(&number.to_le_bytes());
            let entry = Entry::read_from_bytes(&bytes).unwrap();
            w.raw.store(&mut ring, &entry);
            let fence = w.raw.push(&mut ring, 0xffff, Command::Fence);
            let mut report = w.raw.report(&mut ring).await;
            if report.0 == number {
                *codes.entry(report.2).or_insert(0) += 1;
                report = w.raw.report(&mut ring).await;
            }
            assert_eq!(report, (fence, 0xffff, Code::DONE), "round {round}");
        }
        let refused: u32 = codes.values().sum();
        assert!(refused > 1000 && codes.len() >= 6, "{codes:?}");
    });
}

/// Full rings, of more queues than there are slots to spare.
#[test]
fn more_commands_than_slots_all_complete() {
    for (queues, slots) in [(1, 1), (4, 4), (4, 5), (8, 8), (3, 64)] {
        for shuffle in [None, Some(9)] {
            let mut setup = Setup { shuffle, ..Setup::default() };
            (setup.options.queues, setup.options.slots) = (queues, slots);
            setup.run(async |w: World| {
                let mut rings = Vec::new();
                for number in 0..queues {
                    rings.push(w.raw.up(number, 32, Some(128)).await);
                }
                let mut waiting = Vec::new();
                for turn in 0..32u16 {
                    for (number, ring) in (0..).zip(&mut rings) {
                        let lba = u64::from(turn) + 32 * number % 96;
                        let to = w.raw.marked(ring, 512, 0);
                        w.raw.read(ring, turn, lba, 1, &to);
                        waiting.push((lba, to));
                    }
                }
                for (lba, to) in waiting {
                    assert!(w.raw.arrived(&to).await == w.medium.peek(lba, 512));
                }
                for ring in &mut rings {
                    w.raw.fence(ring).await;
                }
            });
        }
    }
}

/// Reads that hold all slots while they wait to send do not keep the sending read from ending, even if the
/// host rings the queue meanwhile.
#[test]
fn blocked_fetch_does_not_hold_up_data() {
    use bus::HostPort;
    for slots in [1, 2, 3] {
        let mut rng = Rng::for_part(u64::from(slots), "rings at odd moments");
        let mut setup = Setup::default();
        (setup.options.queues, setup.options.slots) = (1, slots);
        setup.run(async |w: World| {
            let mut ring = w.raw.up(0, 64, None).await;
            for round in 0..300u32 {
                let here = w.raw.place(0, 4096);
                let mut waiting = Vec::new();
                for slot in 0..1 + rng.below(4) as u16 {
                    let to = w.raw.marked(&ring, 8192, 0);
                    // Some are rejected, and move no data.
                    let blocks = if rng.chance(1, 4) { 4096 } else { 16 };
                    w.raw.read(&mut ring, slot, 0, blocks, &to);
                    waiting.extend((blocks == 16).then_some(to));
                    w.rt.sleep(Span::ns(rng.below(3000))).await;
                    w.raw.host.write32(ring.group.doorbell, rng.next_u64() as u32);
                }
                for to in waiting {
                    assert!(w.raw.arrived(&to).await == w.medium.peek(0, 8192), "round {round}");
                }
                while w.raw.try_report(&mut ring).is_some() {}
                w.raw.free_from(here);
            }
        });
    }
}
