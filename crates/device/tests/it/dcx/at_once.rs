//! Reads that a live front end serves in its poller: the same data, tags and reports as through slots.

use std::cell::Cell;
use std::rc::Rc;

use bus::HostPort;
use bus::live::{LiveHost, Shared};
use device::dcx::{Front, Tagged};
use media::contents::{Backing, Contents, Keep, Spec};
use media::{Banked, Extent, Media, Pace, Part, Range};
use runtime::{Either, Log, Rt, STD_CLOCK, race};
use wire::dcx::command::{Access, Command};
use wire::dcx::registers::Control;
use wire::dcx::report::Code;
use wire::{BusAddr, Lba};

use crate::raw::dcx::world::{DCX_FROM, Setup};
use crate::raw::dcx::{LIVE_PATIENCE, Raw, SILENCE, pattern};

const BLOCKS: u64 = 256;

/// A front end and a host of it in one thread.
struct Live {
    raw: Raw<LiveHost>,
    medium: Rc<Part<Banked>>,
    front: Rc<Front<bus::live::LiveDevice, Part<Banked>>>,
    data: Vec<u8>,
    fetch_max: u32,
}

/// Runs a test with written blocks.
fn with_front(test: impl AsyncFnOnce(&Live)) {
    let (rt, setup) = (Rt::live(&STD_CLOCK, None, Log::Off), Setup::default());
    let spec = setup.spec();
    let shared = Shared::between_threads(setup.memory_bytes, spec.memory_base, spec.register_bytes)
        .expect("memory");
    let (capacity_bytes, block_bytes) = (2 * BLOCKS * 512, 512);
    let contents =
        Spec { capacity_bytes, block_bytes, keep: Keep::Everything, backing: Backing::Memory };
    let contents = Contents::new(contents).expect("contents");
    let medium = Rc::new(Banked::new(&rt, contents, Pace::Immediate));
    let medium = Part::new(medium, Range { from: 0, blocks: BLOCKS }).expect("it is inside");
    let medium = Rc::new(medium);
    let data = pattern(1, BLOCKS as usize * 512);
    rt.block_on(async {
        let all = Extent { block: 0, blocks: BLOCKS as u32 };
        medium.write(all, &data).await.expect("it is written");
        let tagged = Rc::new(Tagged::without_tags(&rt, medium.clone()));
        let front = Front::start(shared.device(&rt), tagged, setup.options.clone());
        let mut raw = Raw::new(shared.host(&rt), setup.options.block, DCX_FROM);
        raw.patience = LIVE_PATIENCE;
        let fetch_max = setup.options.fetch_max;
        test(&Live { raw, medium, front, data, fetch_max }).await;
    });
    rt.drop_tasks();
}

#[test]
fn reads_at_once_fill_their_buffers_and_overwrite_each_tag() {
    with_front(async |w: &Live| {
        let mut served = 0;
        for (number, packet_bytes) in [None, Some(128), Some(256)].into_iter().enumerate() {
            let mut ring = w.raw.up(number as u16, 64, packet_bytes).await;
            let here = w.raw.place(0, 4096);
            for off in [0, 4, 60, 4032] {
                for bytes in [8, 100, 512, 1024, 4096] {
                    let to = w.raw.marked(&ring, bytes, off);
                    let canary = w.raw.place(64, 4);
                    w.raw.memory.write(canary, &[0xee; 64]).expect("inside");
                    let access = Access { lba: Lba(5), bytes, at: to.at };
                    let command = Command::Read { access, tag_version: 0, wide: false };
                    w.raw.push(&mut ring, 3, command);
                    let found = w.raw.arrived(&to).await;
                    assert!(found == w.data[5 * 512..][..bytes as usize], "{bytes} at {off}");
                    assert_eq!(w.raw.bytes(canary, 64), [0xee; 64], "{bytes} at {off}");
                    served += 1;
                    w.raw.free_from(here);
                }
            }
            // Nothing was reported, and nothing is in flight.
            w.raw.assert_silence(&mut ring).await;
            w.raw.fence(&mut ring).await;
            let counts = w.front.counts();
            assert_eq!((counts.at_once, counts.commands), (served, served + 1 + number as u64));
        }
    });
}

#[test]
fn more_reads_than_slots_in_one_fetch_are_each_served_once() {
    with_front(async |w: &Live| {
        let mut ring = w.raw.up(0, 64, None).await;
        let buffers: Vec<_> = (0..60).map(|_| w.raw.marked(&ring, 512, 0)).collect();
        for (lba, to) in buffers.iter().enumerate() {
            w.raw.read(&mut ring, lba as u16, lba as u64, 1, to);
        }
        for (lba, to) in buffers.iter().enumerate() {
            assert!(w.raw.arrived(to).await == w.data[lba * 512..][..512], "{lba}");
        }
        assert_eq!(w.front.counts().at_once, 60);
    });
}

#[test]
fn host_that_keeps_its_ring_filled_leaves_turns_to_other_tasks() {
    with_front(async |w: &Live| {
        let mut ring = w.raw.up(0, 256, None).await;
        let turns = Rc::new(Cell::new(0_u64));
        let (rt, counted) = (w.raw.rt.clone(), turns.clone());
        w.raw.rt.spawn(async move {
            loop {
                counted.set(counted.get() + 1);
                rt.yield_now().await;
            }
        });
        let to = w.raw.marked(&ring, 512, 0);
        // All at once, as a host on another core could at any time.
        for _ in 0..200 {
            w.raw.read(&mut ring, 3, 5, 1, &to);
        }
        let before = turns.get();
        while w.front.counts().at_once < 200 {
            w.raw.rt.yield_now().await;
        }
        let fetches = 200 / u64::from(w.fetch_max);
        let turns = turns.get() - before;
        assert!(turns >= fetches, "{turns} turns during 200 reads in {fetches} fetches");
    });
}

#[test]
fn read_at_once_interrupts_if_queue_signals() {
    for signals in [false, true] {
        with_front(async |w: &Live| {
            let mut ring = w.raw.ring(0, 64, None);
            w.raw.enable(&mut ring, Control::new().with_signals(signals)).await;
            let to = w.raw.marked(&ring, 512, 0);
            w.raw.read(&mut ring, 3, 5, 1, &to);
            assert!(w.raw.arrived(&to).await == w.data[5 * 512..][..512]);
            assert_eq!(w.front.counts().at_once, 1);
            let interrupt = w.raw.host.on_interrupt(ring.vector, 0);
            let silence = w.raw.rt.sleep(SILENCE);
            let came = matches!(race(interrupt, silence).await, Either::First(1));
            assert_eq!(came, signals);
        });
    }
}

#[test]
fn refused_reads_are_reported_once_and_write_nothing() {
    with_front(async |w: &Live| {
        let mut ring = w.raw.up(0, 64, None).await;
        let to = w.raw.marked(&ring, 4096, 0);
        let before = w.raw.bytes(to.at, 4096);
        let outside = BusAddr(0x1000);
        let read = |lba, bytes, at, tag_version| Command::Read {
            access: Access { lba: Lba(lba), bytes, at },
            tag_version,
            wide: false,
        };
        for (command, code) in [
            (read(BLOCKS - 1, 1024, to.at, 0), Code::OUT_OF_RANGE),
            (read(0, 512, outside, 0), Code::BAD_ADDRESS),
            (read(0, 700, to.at, 0), Code::INVALID_FIELD),
            (read(0, 512, to.at, 7), Code::STALE_TAG),
        ] {
            let number = w.raw.push(&mut ring, 9, command);
            assert_eq!(w.raw.report(&mut ring).await, (number, 9, code));
        }
        w.raw.assert_silence(&mut ring).await;
        assert!(w.raw.bytes(to.at, 4096) == before);
        let refused = w.medium.refused();
        assert_eq!((refused.commands, refused.latest), (1, (BLOCKS - 1, 2)));
    });
}
