//! DC Express commands: effects, completion and rejection.

use media::MediaError;
use runtime::Span;
use wire::dcx::command::{Access, Command, Entry, Request};
use wire::dcx::report::Code;
use wire::{BusAddr, Lba};
use zerocopy::{FromBytes, IntoBytes};

use crate::raw::dcx::world::{Setup, World, on_a_bench};
use crate::raw::dcx::{Ring, pattern};

/// Buffer offsets within a page: every word of the first and the last packet, and some between.
fn offsets() -> impl Iterator<Item = u64> {
    (0..=256).step_by(4).chain((3840..4096).step_by(4)).chain([1020, 2048, 2052])
}

#[test]
fn read_fills_buffer_at_any_page_offset() {
    for packet_bytes in [None, Some(128)] {
        on_a_bench(async |w: World| {
            let mut ring = w.raw.up(0, 64, packet_bytes).await;
            let here = w.raw.place(0, 4096);
            for (number, off) in offsets().enumerate() {
                let (lba, blocks) = (number as u64 % 100, 1 + number as u32 % 16);
                let bytes = 512 * blocks;
                let to = w.raw.marked(&ring, bytes + 64, off);
                let canary = BusAddr(to.at.0 + u64::from(bytes));
                w.raw.memory.write(canary, &[0xee; 64]).unwrap();
                let to = w.raw.mark(&ring, to.at, bytes);
                w.raw.read(&mut ring, 3, lba, blocks, &to);
                let data = w.raw.arrived(&to).await;
                assert!(data == w.medium.peek(lba, bytes as usize), "{off} past a page");
                assert_eq!(w.raw.bytes(canary, 64), [0xee; 64], "{off}: behind the buffer");
                w.raw.free_from(here);
            }
            w.raw.assert_silence(&mut ring).await;
        });
    }
}

/// Packets land in any order: the data of a packet are complete when its tag has been overwritten.
#[test]
fn packet_data_complete_when_tag_overwritten() {
    for mps in [128, 256] {
        let mut setup = Setup::disordered();
        setup.mps = mps;
        setup.run(async |w: World| {
            let mut ring = w.raw.up(0, 64, Some(mps)).await;
            let mut overtaken = 0;
            for off in [0, 4, 100, 4000] {
                let to = w.raw.marked(&ring, 8192, off);
                w.raw.read(&mut ring, 0, 0, 16, &to);
                let whole = w.medium.peek(0, 8192);
                for _ in 0..10_000 {
                    let mut first_left = None;
                    for (piece, place) in pieces(to.at, 8192, mps) {
                        let landed = w.raw.memory.load_u32(place).unwrap() != crate::raw::dcx::TAG;
                        if landed {
                            let at = BusAddr(to.at.0 + piece.start as u64);
                            let here = w.raw.bytes(at, piece.len());
                            assert!(here == whole[piece.clone()], "{piece:?} of {off}");
                            overtaken += usize::from(first_left.is_some());
                        } else {
                            first_left = Some(piece.start);
                        }
                    }
                    if w.raw.tags_left(&to) == 0 {
                        break;
                    }
                    w.rt.sleep(Span::ns(50)).await;
                }
                assert!(w.raw.arrived(&to).await == whole);
            }
            assert!(overtaken > 0, "no packet was overtaken: the test shows nothing");
        });
    }
}

/// The packets of a buffer: byte range and address of the tag.
fn pieces(at: BusAddr, bytes: u32, mps: u32) -> Vec<(std::ops::Range<usize>, BusAddr)> {
    let pieces = wire::pcie::Pieces::new(at.0, bytes.into(), mps);
    let of = |piece: wire::pcie::Piece| {
        let range = piece.offset as usize..piece.offset as usize + piece.bytes as usize;
        let place = BusAddr(at.0 + range.end as u64 - 4);
        (range, place)
    };
    pieces.map(of).collect()
}

#[test]
fn write_is_reported_and_read_back() {
    on_a_bench(async |w: World| {
        let mut ring = w.raw.up(0, 64, None).await;
        for (slot, blocks) in [1u32, 3, 16, 128].into_iter().enumerate() {
            let (bytes, slot) = (512 * blocks as usize, slot as u16);
            let from = w.raw.place(bytes as u64 + 4, 4096);
            let from = BusAddr(from.0 + 4);
            let data = pattern(slot.into(), bytes);
            w.raw.memory.write(from, &data).unwrap();
            let access = Access { lba: Lba(500), bytes: 512 * blocks, at: from };
            let fua = blocks == 3;
            let before = w.medium.flushes.get();
            let number = w.raw.push(&mut ring, slot, Command::Write { access, fua });
            assert_eq!(w.raw.report(&mut ring).await, (number, slot, Code::DONE));
            assert_eq!(w.medium.flushes.get() - before, u32::from(fua));
            assert!(w.medium.peek(500, bytes) == data);
            let back = w.raw.read_now(&mut ring, 500, blocks, bytes as u32).await;
            assert!(back == data);
        }
    });
}

/// A fence is reported after every earlier read has landed, in any packet order, and no data land after the
/// report.
#[test]
fn fence_report_follows_all_earlier_read_data() {
    for shuffle in [None, Some(1), Some(2), Some(3)] {
        let setup = Setup { shuffle, ..Setup::disordered() };
        setup.run(async |w: World| {
            let mut ring = w.raw.up(0, 64, Some(128)).await;
            for round in 0..40u64 {
                let here = w.raw.place(0, 4096);
                let buffers: Vec<_> = (0..12)
                    .map(|slot| {
                        let to = w.raw.marked(&ring, 2048, 4 * (round + u64::from(slot)));
                        w.raw.read(&mut ring, slot, round + u64::from(slot), 4, &to);
                        to
                    })
                    .collect();
                w.raw.fence(&mut ring).await;
                let seen = w.raw.everything();
                for (slot, to) in (0..).zip(&buffers) {
                    assert_eq!(w.raw.tags_left(to), 0, "slot {slot} is still on its way");
                    let data = w.raw.bytes(to.at, 2048);
                    assert!(data == w.medium.peek(round + slot, 2048), "slot {slot}");
                }
                w.rt.sleep(Span::us(100)).await;
                assert!(seen == w.raw.everything(), "something landed behind the fence");
                w.raw.free_from(here);
            }
        });
    }
}

/// A read that the closed medium holds up delays its own queue's fence, and no other queue's.
#[test]
fn fence_waits_for_own_queue_only() {
    on_a_bench(async |w: World| {
        let (mut one, mut two) = (w.raw.up(0, 64, None).await, w.raw.up(1, 64, None).await);
        w.medium.close();
        let to = w.raw.marked(&one, 512, 0);
        w.raw.read(&mut one, 0, 0, 1, &to);
        let fences = [1, 2].map(|slot| (w.raw.push(&mut one, slot, Command::Fence), slot));
        w.raw.fence(&mut two).await;
        w.raw.assert_silence(&mut one).await;
        w.medium.open();
        for (number, slot) in fences {
            assert_eq!(w.raw.report(&mut one).await, (number, slot, Code::DONE));
        }
        assert_eq!(w.raw.tags_left(&to), 0);
    });
}

fn read(number: u32, lba: u64, blocks: u32, at: u64) -> Entry {
    let access = Access { lba: Lba(lba), bytes: 512 * blocks, at: BusAddr(at) };
    Entry::new(&Request {
        number,
        slot: 9,
        command: Command::Read { access, tag_version: 0, wide: false },
    })
}

fn with_byte(entry: Entry, at: usize, value: u8) -> Entry {
    let mut bytes = [0; 64];
    bytes.copy_from_slice(entry.as_bytes());
    bytes[at] = value;
    Entry::read_from_bytes(&bytes).unwrap()
}

/// Each rejected command follows enough single reads that the device anticipates the next fetch, and the next
/// read is served.
#[test]
fn invalid_commands_are_reported_and_queue_continues() {
    on_a_bench(async |w: World| {
        let mut ring = w.raw.up(0, 64, Some(128)).await;
        let (base, end) = (w.raw.memory.base().0, w.raw.memory.bytes() as u64);
        let good = w.raw.place(1 << 16, 4096).0;
        type Bad = fn(u32, u64) -> Entry;
        let by_field: [(Bad, Code); 9] = [
            (|n, at| with_byte(read(n, 0, 1, at), 0, 0), Code::INVALID_OPCODE),
            (|n, at| with_byte(read(n, 0, 1, at), 0, 0xff), Code::INVALID_OPCODE),
            (|n, at| with_byte(read(n, 0, 1, at), 1, 1), Code::INVALID_FIELD),
            (|n, at| with_byte(read(n, 0, 1, at), 40, 1), Code::INVALID_FIELD),
            (|n, at| read(n, 0, 0, at), Code::INVALID_FIELD),
            (|n, at| read(n, 0, 1, at + 2), Code::INVALID_FIELD),
            (|n, at| read(n, 4095, 2, at), Code::OUT_OF_RANGE),
            (|n, at| read(n, u64::MAX, 1, at), Code::OUT_OF_RANGE),
            (|n, at| read(n, 0, 129, at), Code::TOO_LONG),
        ];
        let places = [0, base - 4, base - 512, base + end - 508, base + end, u64::MAX - 3, !0 << 9];
        for _ in 0..2 {
            for (bad, code) in by_field {
                anticipated(&w, &mut ring).await;
                let entry = bad(ring.next, good);
                w.raw.refused(&mut ring, &entry, code).await;
            }
            for at in places {
                for blocks in [1, 16] {
                    anticipated(&w, &mut ring).await;
                    let entry = read(ring.next, 0, blocks, at);
                    w.raw.refused(&mut ring, &entry, Code::BAD_ADDRESS).await;
                }
            }
        }
        anticipated(&w, &mut ring).await;
    });
}

/// Reads one at a time, until the device times its fetches by them.
async fn anticipated(w: &World, ring: &mut Ring) {
    for lba in 0..12 {
        let data = w.raw.read_now(ring, lba, 8, 4096).await;
        assert!(data == w.medium.peek(lba, 4096), "block {lba}");
    }
}

/// A command that moves no data does not keep the device waiting for data.
#[test]
fn write_or_fence_among_anticipated_reads_completes() {
    on_a_bench(async |w: World| {
        let mut ring = w.raw.up(0, 64, None).await;
        let from = w.raw.place(512, 64);
        for _ in 0..3 {
            anticipated(&w, &mut ring).await;
            let access = Access { lba: Lba(1000), bytes: 512, at: from };
            let number = w.raw.push(&mut ring, 5, Command::Write { access, fua: false });
            assert_eq!(w.raw.report(&mut ring).await, (number, 5, Code::DONE));
            anticipated(&w, &mut ring).await;
            w.raw.fence(&mut ring).await;
        }
    });
}

#[test]
fn medium_errors_are_reported_by_code() {
    on_a_bench(async |w: World| {
        let mut ring = w.raw.up(0, 64, None).await;
        let at = w.raw.place(512, 64);
        let access = Access { lba: Lba(0), bytes: 512, at };
        let cases = [
            (
                Command::Read { access, tag_version: 0, wide: false },
                MediaError::Unreadable,
                Code::UNREADABLE,
            ),
            (
                Command::Read { access, tag_version: 0, wide: false },
                MediaError::Range,
                Code::OUT_OF_RANGE,
            ),
            (Command::Write { access, fua: false }, MediaError::Full, Code::FULL),
            (Command::Write { access, fua: true }, MediaError::WriteFault, Code::WRITE_FAULT),
        ];
        for (command, error, code) in cases {
            w.medium.fails.set(Some(error));
            let number = w.raw.push(&mut ring, 1, command);
            assert_eq!(w.raw.report(&mut ring).await, (number, 1, code));
        }
        assert!(w.raw.read_now(&mut ring, 0, 1, 512).await == w.medium.peek(0, 512));
    });
}

/// A version that was never the newest counts as a replaced tag.
#[test]
fn read_with_old_tag_version_is_stale() {
    for grain in [None, Some(128)] {
        let setup = Setup { grain, ..Setup::default() };
        setup.run(async |w: World| {
            let mut ring = w.raw.up(0, 64, Some(128)).await;
            let access = Access { lba: Lba(0), bytes: 512, at: w.raw.place(512, 64) };
            for tag_version in [2, u32::MAX] {
                let number =
                    w.raw.push(&mut ring, 1, Command::Read { access, tag_version, wide: false });
                assert_eq!(w.raw.report(&mut ring).await, (number, 1, Code::STALE_TAG));
            }
            assert!(w.medium.read.borrow().is_empty(), "nothing was read");
        });
    }
}
