//! Reports: errors, repeated stale tags, invalid reports.

use host::dcx::{QueueOptions, Tags};
use host::{BlockDevice, Kind};
use runtime::Span;
use wire::Lba;
use wire::dcx::report::{Code, Report};

use super::fake::{Answer, Traits};
use super::world::{BOUND, COMPLETIONS, World, options};

#[test]
fn report_code_maps_to_read_error() {
    let cases = [
        (Code::OUT_OF_RANGE, Kind::OutOfRange),
        (Code::UNREADABLE, Kind::MediaFailed),
        (Code::BAD_ADDRESS, Kind::Refused),
        (Code::FULL, Kind::Full),
    ];
    for completion in COMPLETIONS {
        for (code, kind) in cases {
            let io = move |number, _: &_| match number % 2 {
                0 => Answer::Reports(Span::us(2), code),
                _ => Answer::After(Span::us(2)),
            };
            let world = World::new(Some(128), Traits { io: Box::new(io), ..Traits::default() });
            world.rt.block_on(async {
                let (_driver, queue) = world.queue(QueueOptions { completion, ..options(2) }).await;
                for _ in 0..5 {
                    let buffer = queue.buffer(512).unwrap();
                    let place = buffer.at();
                    let (buffer, result) = world.within(BOUND, queue.read(Lba(1), buffer)).await;
                    let error = result.expect_err("as the device says");
                    assert_eq!((error.kind, error.report), (kind, Some(code)));
                    assert_eq!((buffer.at(), buffer.bytes()), (place, 512));
                    drop(world.read(&queue, 1, 512).await);
                }
                assert_eq!(queue.counters().protocol_errors, 0);
            });
        }
    }
}

/// The device replaces its tag at every try: the read soon uses the other driver.
#[test]
fn repeated_stale_tags_fall_back_to_other_driver() {
    let io = |_, _: &_| Answer::Reports(Span::us(1), Code::STALE_TAG);
    let traits = Traits { grain: 128, tag: Some((0x10, 7)), io: Box::new(io), ..Traits::default() };
    let world = World::new(Some(128), traits);
    world.rt.block_on(async {
        let device = QueueOptions { tags: Tags::Device { seed: 1 }, ..options(2) };
        let (_driver, queue) = world.queue(device).await;
        world.rt.sleep(Span::us(10)).await;
        let begin = world.rt.now();
        drop(world.read(&queue, 1, 512).await);
        assert!(world.rt.now().since(begin) < Span::us(100));
        let counters = queue.counters();
        assert_eq!((counters.gave_up, counters.timeouts, world.beneath.reads.get()), (1, 0, 1));
        assert!(world.fake.reads.borrow().iter().all(|(_, version)| *version == 7));
    });
}

/// The device's tag is used where its guarantee covers every packet, otherwise a random one.
#[test]
fn device_tag_used_only_for_aligned_buffers() {
    for packet_bytes in [None, Some(128), Some(256)] {
        let traits = Traits { grain: 128, tag: Some((0x10, 7)), ..Traits::default() };
        let world = World::new(packet_bytes, traits);
        world.rt.block_on(async {
            let device = QueueOptions { tags: Tags::Device { seed: 1 }, ..options(2) };
            let (_driver, queue) = world.queue(device).await;
            world.rt.sleep(Span::us(10)).await;
            let whole = queue.buffer(3 * 4096).unwrap();
            for (off, versioned) in
                [(0, true), (128, true), (4096 - 256, true), (4096 - 260, packet_bytes.is_none())]
            {
                drop(world.read_into(&queue, 1, whole.part(off, 512)).await);
                let (_, version) = *world.fake.reads.borrow().last().unwrap();
                assert_eq!(version, if versioned { 7 } else { 0 }, "{packet_bytes:?}, {off}");
            }
            // A new tag is used as soon as it is published.
            world.fake.tell_tag(0x20, 8);
            world.rt.sleep(Span::us(10)).await;
            drop(world.read_into(&queue, 1, whole.part(0, 512)).await);
            assert_eq!(world.fake.reads.borrow().last().unwrap().1, 8);
        });
    }
}

/// Reports with another slot, another command or no slot, and reports of completed reads are counted and
/// ignored.
#[test]
fn invalid_reports_counted_and_ignored() {
    let forged = vec![
        Report::new(0, 1, 77, Code::DONE),
        Report::new(0, 9999, 0, Code::UNREADABLE),
        Report::new(0, 0, u16::MAX, Code::DONE),
        Report::new(0, 0, u16::MAX, Code::UNREADABLE),
    ];
    for completion in COMPLETIONS {
        let forged = forged.clone();
        let io = move |_, request: &wire::dcx::command::Request| {
            let mut reports = forged.clone();
            // Right slot and number, but only tags can signal the end of a read.
            reports.push(Report::new(0, request.number, request.slot, Code::DONE));
            Answer::Among(reports)
        };
        let world = World::new(Some(128), Traits { io: Box::new(io), ..Traits::default() });
        world.rt.block_on(async {
            // The ring has space for the forged reports.
            let (_driver, queue) = world.queue(QueueOptions { completion, ..options(8) }).await;
            for lba in 0..10 {
                drop(world.read(&queue, lba, 4096).await);
            }
            let counters = queue.counters();
            assert_eq!((counters.protocol_errors, counters.timeouts), (50, 0), "{counters:?}");
            assert_eq!(counters.resets, 0);
            // After 64 of them the queue is reset; the reads still return correct data.
            for lba in 0..20 {
                drop(world.read(&queue, lba, 4096).await);
            }
            world.rt.sleep(Span::ms(1)).await;
            assert!(queue.counters().resets > 0);
        });
    }
}

#[test]
fn unsolicited_reports_cause_no_reset_loop() {
    let world = World::new(None, Traits::default());
    world.rt.block_on(async {
        let (_driver, queue) = world.queue(options(2)).await;
        for _ in 0..1000 {
            world.fake.publish(&Report::new(0, 3, 1, Code::DONE));
            world.rt.sleep(Span::us(3)).await;
        }
        drop(world.read(&queue, 3, 512).await);
        let counters = queue.counters();
        assert!(counters.protocol_errors > 100 && counters.resets > 1, "{counters:?}");
    });
}
