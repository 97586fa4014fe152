//! All cores on one disk: each has a queue pair of its own that the first core's controller has granted it,
//! with interrupts to itself, and nothing that it shares on the way of a command.

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

/// A core that has not answered by then does not.
const ANSWER: Span = Span::s(30);
/// The monitor looks so often.
const SAMPLE: Span = Span::s(1);

static PROGRESS: [Progress; CORES_MAX] = [const { Progress::new() }; CORES_MAX];

/// What two cores tell each other.
#[derive(Default)]
struct Mailbox(Lock<Told>);

#[derive(Default)]
struct Told {
    /// The other core's queue is there, closed.
    rings: Option<Rings>,
    created: Option<()>,
    /// The other core can begin, or why not.
    ready: Option<Result<(), String>>,
    /// It does, until this moment.
    until: Option<Time>,
    result: Option<Result<Counters, String>>,
    /// The controller has deleted the queue.
    deleted: Option<()>,
}

impl Mailbox {
    fn tell(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.0.lock());
    }

    /// Waits for what the other is to tell.
    async fn told<T>(
        &self,
        rt: &Rt,
        by: Time,
        what: &str,
        mut take: impl FnMut(&mut Told) -> Option<T>,
    ) -> Result<T, String> {
        let waited = bus::until(rt, || match take(&mut self.0.lock()) {
            Some(found) => Some(Ok(found)),
            None if rt.now() >= by => Some(Err(format!("{what} did not come"))),
            None => None,
        });
        waited.await
    }
}

/// What another core is given.
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

/// A core beside the first, as the first knows it.
struct Other {
    core: usize,
    mailbox: Arc<Mailbox>,
    rings: Rings,
}

/// Runs diskhog on a device's disk from these cores for so long; the parts of memory are the other cores'.
/// Says whether all went well, so that the parts are free again.
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
        other.mailbox.tell(|told| told.deleted = Some(()));
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

/// Has every core make its queue, and waits until all can begin.
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
        let rings = mailbox.told(rt, by, &what, |told| told.rings.take()).await?;
        let created = device.controller.create_granted(&rings).await;
        created.map_err(|error| format!("{what}: {error}"))?;
        mailbox.tell(|told| told.created = Some(()));
        mailbox.told(rt, by, &format!("core {core}"), |told| told.ready.take()).await??;
        others.push(Other { core, mailbox, rings });
    }
    Ok(others)
}

/// A core's queue: its vector is the one behind the admin queue's and those of the cores before it, if
/// there are so many.
fn options(device: &Device, core: usize) -> QueueOptions {
    let vector = core as u16 + 1;
    let completion = match vector < device.vectors {
        true => Completion::Interrupt { vector },
        false => Completion::Polled,
    };
    QueueOptions { depth: DEPTH, completion, ..QueueOptions::default() }
}

/// All cores at once, the first one among them, which looks what the others have got.
async fn work(rt: &Rt, device: &Device, others: &[Other], span: Span) -> Result<(), String> {
    let identity = device.controller.identity();
    let scsi = of_nvme(&identity.controller, &identity.namespace);
    let queue = device.controller.queue(options(device, 0)).await;
    let queue = queue.map_err(|error| error.to_string())?;
    let disk = diskhog::attach(queue.clone(), scsi).await?;
    let cores = others.len() + 1;
    PROGRESS.iter().for_each(Progress::clear);
    let until = rt.now() + span;
    others.iter().for_each(|other| other.mailbox.tell(|told| told.until = Some(until)));
    rt.spawn(monitor(rt.clone(), cores, until));
    let begun = rt.now();
    let share = Share { core: 0, cores, until };
    let own = diskhog::hog(rt, &disk, share, &PROGRESS[0]).await.map(|()| queue.counters());
    let mut failed = !tell(device, 0, begun, own);
    for Other { core, mailbox, .. } in others {
        let by = rt.now() + ANSWER;
        let who = format!("core {core}");
        let told = mailbox.told(rt, by, &who, |told| told.result.take()).await;
        failed |= !tell(device, *core, begun, told.and_then(|result| result));
    }
    if failed { Err("a core has failed".to_string()) } else { Ok(()) }
}

/// What a core has got.
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

/// Says each second what each core has moved in it.
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

/// What another core does: everything is its own, but for the controller.
fn away(place: Place) {
    let rt = Rt::live(&CLOCK, None, Log::Off);
    let mailbox = place.mailbox.clone();
    if let Err(why) = rt.block_on(at_place(&rt, place)) {
        mailbox.tell(|told| {
            told.ready = Some(Err(why.clone()));
            told.result = Some(Err(why));
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
    mailbox.tell(|told| told.rings = Some(rings));
    mailbox.told(rt, rt.now() + ANSWER, "its queue", |told| told.created.take()).await?;
    let queue: Rc<Queue<Port>> = granted.open();
    let disk = diskhog::attach(queue.clone(), identity).await?;
    mailbox.tell(|told| told.ready = Some(Ok(())));
    let until = mailbox.told(rt, rt.now() + ANSWER, "the beginning", |told| told.until).await?;
    let share = Share { core, cores, until };
    let result = diskhog::hog(rt, &disk, share, &PROGRESS[core]).await;
    mailbox.tell(|told| told.result = Some(result.map(|()| queue.counters())));
    mailbox.told(rt, rt.now() + ANSWER, "the queue's end", |told| told.deleted.take()).await?;
    granted.give_back();
    Ok(())
}
