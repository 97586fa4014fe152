//! Use of one disk by all cores: each has its own queue pair, granted by the first core's controller, with
//! its own interrupt, and shares nothing on the command path.

use alloc::boxed::Box;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use bus::{Arena, Memory};
use host::nvme::{Completion, Counters, Grant, Queue, QueueOptions, Rings};
use runtime::{Log, Rt, Span, Time};
use scsi::of_nvme;
use wire::scsi::inquiry::Identity;

use crate::clock::CLOCK;
use crate::console::{say, verdict};
use crate::cores::{self, CORES_MAX};
use crate::cpu::Registers;
use crate::diskhog::{self, DEPTH, Progress, Share};
use crate::lock::Lock;
use crate::nvme::Device;
use crate::port::Port;

/// Timeout for a message of another core.
const ANSWER: Span = Span::s(30);
const SAMPLE: Span = Span::s(1);

static PROGRESS: [Progress; CORES_MAX] = [const { Progress::new() }; CORES_MAX];

/// Messages between the first core and another. Each is sent at most once.
#[derive(Default)]
struct Mailbox(Lock<State>);

#[derive(Default)]
struct State {
    /// Rings of the other core's queue, which is not open yet.
    rings: Option<Rings>,
    created: Option<()>,
    /// Whether the other core is ready, or its error.
    ready: Option<Result<(), String>>,
    /// Start signal: end time of the other core's work.
    until: Option<Time>,
    result: Option<Result<Counters, String>>,
    /// The controller has deleted the queue.
    deleted: Option<()>,
}

impl Mailbox {
    fn tell(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock());
    }

    /// Waits for a message that `take` selects. Error at `by`.
    async fn wait_for<T>(
        &self,
        rt: &Rt,
        by: Time,
        what: &str,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, String> {
        let waited = bus::until(rt, || match take(&mut self.0.lock()) {
            Some(found) => Some(Ok(found)),
            None if rt.now() >= by => Some(Err(format!("{what} did not come"))),
            None => None,
        });
        waited.await
    }
}

/// Arguments of another core's job.
struct Place {
    core: usize,
    cores: usize,
    grant: Grant,
    registers: Registers,
    first_message: usize,
    memory: Memory,
    identity: Identity,
    mailbox: Arc<Mailbox>,
}

/// Another core, seen from the first.
struct Other {
    core: usize,
    mailbox: Arc<Mailbox>,
    rings: Rings,
}

/// Runs diskhog on a device's disk from these cores for `span`, with a part of `parts` for each other core.
/// Returns true on success: the parts are free again.
pub async fn run(rt: &Rt, device: &Device, cores: &[u8], parts: &[Memory], span: Span) -> bool {
    let name = &device.name;
    let others = match gather(rt, device, cores.len(), parts).await {
        Ok(others) => others,
        Err(why) => {
            verdict(format_args!("{name} serves all cores"), Err::<&str, _>(why));
            return false;
        }
    };
    let cores = others.len() + 1;
    let queues = format!("{cores} queues of {DEPTH} commands, each core's own");
    verdict(format_args!("{name} serves {cores} cores as a SCSI disk"), Ok::<_, &str>(queues));
    let mut good = true;
    if let Err(why) = work(rt, device, &others, span).await {
        verdict(format_args!("{name} is worked on"), Err::<&str, _>(why));
        good = false;
    }
    for other in &others {
        let deleted = device.controller.delete_granted(&other.rings).await;
        other.mailbox.tell(|state| state.deleted = Some(()));
        if let Err(why) = deleted {
            verdict(
                format_args!("{name} core {}'s queue is deleted", other.core),
                Err::<&str, _>(why),
            );
            good = false;
        }
    }
    good
}

/// Makes each core create its queue, and waits until all are ready.
async fn gather(
    rt: &Rt,
    device: &Device,
    cores: usize,
    parts: &[Memory],
) -> Result<Vec<Other>, String> {
    let identity = device.controller.identity();
    let (scsi, granted) = (of_nvme(&identity.controller, &identity.namespace), identity.queues);
    let cores = cores.min(parts.len() + 1).min(granted as usize);
    let (mut others, by) = (Vec::new(), rt.now() + ANSWER);
    for core in 1..cores {
        let grant = device.controller.grant(options(device, core)).await;
        let mailbox = Arc::new(Mailbox::default());
        let place = Place {
            core,
            cores,
            grant: grant.map_err(|error| error.to_string())?,
            registers: device.registers,
            first_message: device.first_message,
            memory: parts[core - 1].clone(),
            identity: scsi,
            mailbox: mailbox.clone(),
        };
        cores::give(core, Box::new(move || away(place)));
        let what = format!("core {core}'s queue");
        let rings = mailbox.wait_for(rt, by, &what, |state| state.rings.take()).await?;
        let created = device.controller.create_granted(&rings).await;
        created.map_err(|error| format!("{what}: {error}"))?;
        mailbox.tell(|state| state.created = Some(()));
        mailbox.wait_for(rt, by, &format!("core {core}"), |state| state.ready.take()).await??;
        others.push(Other { core, mailbox, rings });
    }
    Ok(others)
}

/// Options of a core's queue. Its vector follows those of the admin queue and of the cores before it; polled
/// if the device has too few vectors.
fn options(device: &Device, core: usize) -> QueueOptions {
    let vector = core as u16 + 1;
    let completion = match vector < device.vectors {
        true => Completion::Interrupt { vector },
        false => Completion::Polled,
    };
    QueueOptions { depth: DEPTH, completion, ..QueueOptions::default() }
}

/// Runs diskhog on all cores at once, including the first, which collects the results.
async fn work(rt: &Rt, device: &Device, others: &[Other], span: Span) -> Result<(), String> {
    let identity = device.controller.identity();
    let scsi = of_nvme(&identity.controller, &identity.namespace);
    let queue = device.controller.queue(options(device, 0)).await;
    let queue = queue.map_err(|error| error.to_string())?;
    let disk = diskhog::attach(queue.clone(), scsi).await?;
    let cores = others.len() + 1;
    PROGRESS.iter().for_each(Progress::clear);
    let until = rt.now() + span;
    others.iter().for_each(|other| other.mailbox.tell(|state| state.until = Some(until)));
    rt.spawn(monitor(rt.clone(), cores, until));
    let begun = rt.now();
    let share = Share { core: 0, cores, until };
    let own = diskhog::hog(rt, &disk, share, &PROGRESS[0]).await.map(|()| queue.counters());
    let mut failed = !tell(device, 0, begun, own);
    for Other { core, mailbox, .. } in others {
        let by = rt.now() + ANSWER;
        let label = format!("core {core}");
        let result = mailbox.wait_for(rt, by, &label, |state| state.result.take()).await;
        failed |= !tell(device, *core, begun, result.and_then(|result| result));
    }
    if failed { Err("a core has failed".to_string()) } else { Ok(()) }
}

/// Prints the verdict on a core; returns true if it succeeded.
fn tell(device: &Device, core: usize, begun: Time, result: Result<Counters, String>) -> bool {
    let Progress { written, verified, .. } = &PROGRESS[core];
    let (written, verified) = (written.load(Ordering::Relaxed), verified.load(Ordering::Relaxed));
    let ended = Time(PROGRESS[core].ended.load(Ordering::Acquire));
    let ms = (ended.since(begun).as_ns() / 1_000_000).max(1);
    let result = result.and_then(|seen| {
        let wrong = seen.timeouts + seen.protocol_errors;
        match wrong {
            0 => Ok(format!(
                "{} KiB written, {} KiB read and verified, {} KiB/s, {} commands, the watchdog was first \
                 {} times",
                written >> 10,
                verified >> 10,
                (written + verified) * 1000 / 1024 / ms,
                seen.completions,
                seen.lost_interrupts
            )),
            _ => Err(format!("{wrong} commands were late, or answered without sense")),
        }
    });
    let good = result.is_ok();
    verdict(format_args!("{} diskhog on core {core}", device.name), result);
    good
}

/// Prints each second the bytes that each core has moved in it.
async fn monitor(rt: Rt, cores: usize, until: Time) {
    let mut before = [0; CORES_MAX];
    let mut second = 0;
    while rt.now() + SAMPLE <= until {
        rt.sleep(SAMPLE).await;
        second += 1;
        let mut line = format!("# diskhog, second {second}:");
        for (core, before) in before.iter_mut().enumerate().take(cores) {
            let moved = PROGRESS[core].moved();
            line += &format!(" core {core} {} KiB", (moved - *before) >> 10);
            *before = moved;
        }
        say(format_args!("{line}"));
    }
}

/// Job of another core, which shares only the controller.
fn away(place: Place) {
    let rt = Rt::live(&CLOCK, None, Log::Off);
    let mailbox = place.mailbox.clone();
    if let Err(why) = rt.block_on(at_place(&rt, place)) {
        mailbox.tell(|state| {
            state.ready = Some(Err(why.clone()));
            state.result = Some(Err(why));
        });
    }
    rt.drop_tasks();
}

async fn at_place(rt: &Rt, place: Place) -> Result<(), String> {
    let Place { core, cores, grant, registers, first_message, memory, identity, mailbox } = place;
    let arena = Arena::new(memory);
    let port = Port::new(rt, &arena, registers, first_message);
    let granted = grant.accept(&port).map_err(|error| error.to_string())?;
    let rings = granted.rings();
    mailbox.tell(|state| state.rings = Some(rings));
    mailbox.wait_for(rt, rt.now() + ANSWER, "its queue", |state| state.created.take()).await?;
    let queue: Rc<Queue<Port>> = granted.open();
    let disk = diskhog::attach(queue.clone(), identity).await?;
    mailbox.tell(|state| state.ready = Some(Ok(())));
    let until =
        mailbox.wait_for(rt, rt.now() + ANSWER, "the beginning", |state| state.until).await?;
    let share = Share { core, cores, until };
    let result = diskhog::hog(rt, &disk, share, &PROGRESS[core]).await;
    mailbox.tell(|state| state.result = Some(result.map(|()| queue.counters())));
    mailbox
        .wait_for(rt, rt.now() + ANSWER, "the queue's end", |state| state.deleted.take())
        .await?;
    granted.give_back();
    Ok(())
}
