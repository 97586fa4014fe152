//! What this program costs on this machine: the round trip between two cores, and the driver's own work.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use host::BlockDevice;
use runtime::{Either, Log, Rt, STD_CLOCK, Span, WallClock, race};
use wire::Lba;

use crate::device::{Clock, Device, Kept};
use crate::interfaces::{Driver, Interface};
use crate::plan::Plan;
use crate::world::{self, RunError};

/// Round trips timed together: one alone would be lost in the cost of reading the clock.
pub const ROUND_TRIPS: u64 = 64;

/// Turns of the device's executor in which it does all that 32 commands ask for, and more.
const DEVICE_TURNS: u32 = 256;

#[repr(align(128))]
struct Word(AtomicU64);

/// The median and the 99th percentile of a round trip between two cores, of so many samples: a word that
/// one thread stores and the other waits for, and another word back.
pub fn round_trip(samples: usize) -> (Span, Span) {
    let (there, back) = (Word(AtomicU64::new(0)), Word(AtomicU64::new(0)));
    let last = samples as u64 * ROUND_TRIPS;
    let mut spans: Vec<Span> = std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=last {
                while there.0.load(Ordering::Acquire) != turn {
                    std::hint::spin_loop();
                }
                back.0.store(turn, Ordering::Release);
            }
        });
        let mut turn = 0;
        (0..samples)
            .map(|_| {
                let begun = STD_CLOCK.now();
                for _ in 0..ROUND_TRIPS {
                    turn += 1;
                    there.0.store(turn, Ordering::Release);
                    while back.0.load(Ordering::Acquire) != turn {
                        std::hint::spin_loop();
                    }
                }
                STD_CLOCK.now().since(begun) / ROUND_TRIPS
            })
            .collect()
    });
    spans.sort();
    (spans[samples / 2], spans[samples * 99 / 100])
}

/// What one command costs the thread that gives it, medians over many rounds.
#[derive(Clone, Copy, Debug)]
pub struct DriverCosts {
    /// From the call to the doorbell.
    pub submit: Span,
    /// From looking at the completion queue to the end of the call.
    pub complete: Span,
}

/// Measures what a driver's own code costs: reads of `bytes` bytes, `at_once` in flight. Both ends take
/// turns on this thread, each with an executor of its own, so that no time is spent waiting for the
/// other, nor for its cache lines.
pub fn driver_costs<I: Interface>(
    plan: &Plan,
    bytes: usize,
    at_once: usize,
    rounds: usize,
) -> Result<DriverCosts, RunError> {
    let shared = world::shared::<I>(plan)?;
    let (rt, device) = (live(), live());
    let port = shared.device(&device);
    let _device = Device::start::<I, _>(port, Kept::new(plan)?, Clock::Wall, plan)?;
    let host = shared.host(&rt);
    let costs = rt.block_on(async {
        let driver = beside(&rt, &device, I::connect(vec![host], plan)).await;
        let driver = driver.map_err(RunError::of)?;
        let disk = driver.disk(0);
        let (mut submits, mut completes) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (submit, complete) = round(&rt, &device, &disk, bytes, at_once).await?;
            submits.push(submit);
            completes.push(complete);
        }
        beside(&rt, &device, driver.stop()).await.map_err(RunError)?;
        Ok(DriverCosts { submit: median(submits), complete: median(completes) })
    });
    rt.drop_tasks();
    device.drop_tasks();
    costs
}

fn live() -> Rt {
    Rt::live(&STD_CLOCK, None, Log::Off)
}

fn median(mut spans: Vec<Span>) -> Span {
    spans.sort();
    spans[spans.len() / 2]
}

/// Does this while the device works, turn by turn with the host.
async fn beside<T>(rt: &Rt, device: &Rt, work: impl Future<Output = T>) -> T {
    let device = async {
        loop {
            turns(device, 1);
            rt.yield_now().await;
        }
    };
    match race(work, device).await {
        Either::First(done) => done,
        Either::Second(()) => unreachable!("the device's turns never end"),
    }
}

fn turns(device: &Rt, turns: u32) {
    device.block_on(async {
        for _ in 0..turns {
            device.yield_now().await;
        }
    });
}

/// So many reads at once: what each took the host before and after the device's part.
async fn round<D: BlockDevice>(
    rt: &Rt,
    device: &Rt,
    disk: &D,
    bytes: usize,
    at_once: usize,
) -> Result<(Span, Span), RunError> {
    let block_bytes = disk.geometry().block_bytes as usize;
    let mut reads = Vec::with_capacity(at_once);
    for number in 0..at_once {
        let buffer = disk.buffer(bytes).map_err(RunError::of)?;
        let lba = Lba((number * bytes / block_bytes) as u64);
        reads.push(Some(Box::pin(async move { disk.read(lba, buffer).await.1 })));
    }
    let (mut submit, mut begun) = (None, rt.now());
    poll_fn(|cx| {
        for place in &mut reads {
            let Some(read) = place else { continue };
            if let Poll::Ready(result) = read.as_mut().poll(cx) {
                *place = None;
                result.map_err(RunError::of)?;
            }
        }
        if submit.is_none() {
            submit = Some(rt.now().since(begun) / at_once as u64);
            turns(device, DEVICE_TURNS);
            begun = rt.now();
        }
        // What the completions wake is this task, and so it polls again when they have come.
        if reads.iter().all(Option::is_none) { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await?;
    let submit = submit.expect("polled at least once");
    Ok((submit, rt.now().since(begun) / at_once as u64))
}
