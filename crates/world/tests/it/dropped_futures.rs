//! A future may be dropped at every await: its slot and buffer are returned when the device has finished with
//! them, and the device writes no memory that was given to another caller.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bus::sim::SimHost;
use bus::{Buffer, HostPort};
use host::{BlockDevice, IoError};
use plan::Plan;
use runtime::{Either, Log, Rt, Span};
use testing::{in_sim, plan, queue};
use wire::Lba;
use workload::verify::Stamps;
use world::interfaces::NVME;

type Disk = Rc<host::nvme::Queue<SimHost>>;

/// Bytes of a transfer: long enough for a PRP list, and for two pieces on the device.
const BYTES: usize = 128 << 10;
const BLOCKS: u64 = (BYTES / 512) as u64;
/// More polls than any operation has awaits.
const POLLS_MAX: u32 = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    Trim,
}

/// Polls a future `polls` times, each time it is woken, then drops it. Returns its output if it ended before.
async fn dropped_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let polled = Cell::new(0);
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        if polled.get() == polls {
            return Poll::Ready(None);
        }
        polled.set(polled.get() + 1);
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // Drop at the last allowed poll instead of waiting for another wake-up.
            Poll::Pending if polled.get() == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Condition on which an operation is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Polled(u32),
    After(Span),
}

const NEVER: When = When::Polled(POLLS_MAX);

async fn until<F: Future>(rt: &Rt, when: When, future: F) -> Option<F::Output> {
    match when {
        When::Polled(polls) => dropped_after(polls, future).await,
        When::After(span) => match runtime::race(future, rt.sleep(span)).await {
            Either::First(output) => Some(output),
            Either::Second(()) => None,
        },
    }
}

/// Runs an operation; returns true if it ended before it was dropped.
async fn perform(disk: &Disk, kind: Kind, lba: u64, buffer: Buffer, when: When) -> bool {
    let rt = disk.port().rt();
    let result = match kind {
        Kind::Read => until(rt, when, disk.read(Lba(lba), buffer)).await.map(|(_, result)| result),
        Kind::Write => {
            let write = disk.write(Lba(lba), buffer, false);
            until(rt, when, write).await.map(|(_, result)| result)
        }
        Kind::Flush => until(rt, when, disk.flush()).await,
        Kind::Trim => until(rt, when, disk.deallocate(Lba(lba), BLOCKS as u32)).await,
    };
    result.map(|result: Result<(), IoError>| result.expect("a good command")).is_some()
}

/// Allocates all buffers of [`BYTES`] that the arena has, each filled with `byte`.
fn take_all(disk: &Disk, byte: u8) -> Vec<Buffer> {
    let all: Vec<_> = std::iter::from_fn(|| disk.buffer(BYTES).ok()).collect();
    all.iter().for_each(|buffer| buffer.copy_in(0, &[byte; BYTES]));
    all
}

fn assert_untouched(buffers: &[Buffer], byte: u8, what: &str) {
    let mut found = vec![0; BYTES];
    for buffer in buffers {
        buffer.copy_out(0, &mut found);
        let wrong = found.iter().position(|other| *other != byte);
        assert_eq!(wrong, None, "{what}: {buffer:?} is allocated to another caller");
    }
}

/// Writes blocks, reads them back and compares.
async fn verify(disk: &Disk, lba: u64, version: u32) {
    let stamps = Stamps::new(7);
    let (mut wrote, mut found) = (vec![0; BYTES], vec![0; BYTES]);
    stamps.fill(&mut wrote, lba, 512, version);
    let buffer = disk.buffer(BYTES).expect("host memory");
    buffer.copy_in(0, &wrote);
    let (buffer, result) = disk.write(Lba(lba), buffer, false).await;
    result.expect("a good write");
    buffer.zero();
    let (buffer, result) = disk.read(Lba(lba), buffer).await;
    result.expect("a good read");
    buffer.copy_out(0, &mut found);
    assert!(found == wrote, "LBA {lba} returns the written data");
}

fn small(name: &str) -> Plan {
    plan(name, &[("host.memory", "4 MiB"), ("host.queue_depth", "4")])
}

/// Drops one operation and asserts that slots, buffers and contents are restored. Returns true if the
/// operation had ended before.
async fn drop_one(rt: &Rt, disk: &Disk, kind: Kind, when: When, version: u32) -> bool {
    let what = format!("{kind:?} dropped, {when:?}");
    // Write stamps first, so that data of the read differ from the fill bytes of the buffers.
    verify(disk, 0, version).await;
    let whole = take_all(disk, 0).len();
    let buffer = disk.buffer(BYTES).expect("host memory");
    let ended = perform(disk, kind, 0, buffer, when).await;
    // The device must not write to buffers allocated after the drop.
    let others = take_all(disk, 0xee);
    assert!(
        !ended || others.len() == whole,
        "{what}: the operation has ended, so its buffer is free"
    );
    rt.sleep(Span::ms(1)).await;
    assert_untouched(&others, 0xee, &what);
    drop(others);
    assert_eq!(disk.slots_free(), 4, "{what}: every slot is returned");
    assert_eq!(take_all(disk, 0).len(), whole, "{what}: every buffer is returned");
    verify(disk, BLOCKS, version).await;
    ended
}

#[test]
fn operation_dropped_at_any_await_leaks_nothing() {
    for name in ["dc-express", "dc-express-linux"] {
        for kind in [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim] {
            let awaits = in_sim(NVME, &small(name), Log::Off, async |rt, driver, _| {
                let disk = queue(&driver);
                let mut polls = 0;
                while !drop_one(&rt, &disk, kind, When::Polled(polls), polls + 1).await {
                    polls += 1;
                    assert!(polls < POLLS_MAX, "{kind:?} does not end");
                }
                polls
            });
            // Costs before and after, the completion, and with interrupts the context switch.
            assert_eq!(awaits, if name == "dc-express" { 4 } else { 5 }, "{name}, {kind:?}");
        }
    }
}

/// In any state of the device: before the fetch, during the data transfer, after the completion.
#[test]
fn operation_dropped_at_any_time_leaks_nothing() {
    for kind in [Kind::Read, Kind::Write, Kind::Trim] {
        in_sim(NVME, &small("dc-express"), Log::Off, async |rt, driver, _| {
            let (disk, mut moment, mut version) = (queue(&driver), Span::ZERO, 0);
            loop {
                version += 1;
                if drop_one(&rt, &disk, kind, When::After(moment), version).await {
                    break;
                }
                // A trim transfers only 16 bytes, so it needs smaller steps.
                moment += Span::ns(if kind == Kind::Trim { 70 } else { 3_300 });
                assert!(moment < Span::ms(1), "{kind:?} does not end");
            }
            assert!(version > 20, "{kind:?}: only {version} moments");
        });
    }
}

/// More operations than slots, so that some are dropped while they wait for a slot.
#[test]
fn operation_dropped_in_slot_wait_leaks_nothing() {
    in_sim(NVME, &small("dc-express"), Log::Off, async |rt, driver, _| {
        let disk = queue(&driver);
        let whole = take_all(&disk, 0).len();
        for polls in 0..12 {
            let ended = Rc::new(Cell::new(0));
            for task in 0..10_u64 {
                let (disk, ended) = (disk.clone(), ended.clone());
                rt.spawn(async move {
                    let kind = if task % 3 == 0 { Kind::Write } else { Kind::Read };
                    let buffer = disk.buffer(BYTES).expect("host memory");
                    // Every other operation runs to its end.
                    let when = if task % 2 == 0 { When::Polled(polls) } else { NEVER };
                    let done = perform(&disk, kind, task * BLOCKS, buffer, when).await;
                    ended.set(ended.get() + u32::from(done));
                });
            }
            rt.sleep(Span::ms(20)).await;
            assert!(ended.get() >= 5, "{} of those left to their end", ended.get());
            assert_eq!(disk.slots_free(), 4, "after {polls} polls");
            assert_eq!(take_all(&disk, 0).len(), whole, "after {polls} polls");
        }
        verify(&disk, 0, 99).await;
    });
}

/// An operation is dropped, and a reset follows at once.
#[test]
fn reset_returns_resources_of_dropped_operations() {
    in_sim(NVME, &small("dc-express"), Log::Off, async |rt, driver, _| {
        let disk = queue(&driver);
        let whole = take_all(&disk, 0).len();
        for polls in 0..8 {
            for kind in [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim] {
                let buffer = disk.buffer(BYTES).expect("host memory");
                perform(&disk, kind, 0, buffer, When::Polled(polls)).await;
                driver.reset().await.expect("a good reset");
                let others = take_all(&disk, 0xee);
                assert_eq!((others.len(), disk.slots_free()), (whole, 4), "{kind:?}, {polls}");
                rt.sleep(Span::ms(1)).await;
                assert_untouched(&others, 0xee, "after a reset");
                drop(others);
                verify(&disk, BLOCKS, polls + 1).await;
            }
        }
    });
}
