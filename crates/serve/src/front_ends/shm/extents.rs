//! One device for several clients, each with its own socket, memory, registers and blocks. The clients are
//! dealt to device threads, each with an executor of its own.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use bus::listen::Stop;
use bus::live::{Client, LiveDevice, Server, Shared};
use media::Refused;
use runtime::{Log, Rt, STD_CLOCK, race};
use world::device::Device;
use world::interfaces::Extent;
use world::{RunError, until};

use crate::Events;
use crate::control::Drive;
use crate::events::End;
use crate::front_end::Job;
use crate::lifecycle::{all_have_ended, one_at_a_time, one_thread_each};
use crate::medium;
use crate::one_device::{self, Refusals};

/// A client's connection, on its way to the device's thread.
struct Session {
    /// Place of the client among those of its device thread, from 0.
    place: usize,
    shared: Shared,
    client: Client,
    refused: Sender<Refused>,
    end: Sender<End>,
    drive: Arc<Drive>,
}

pub(super) fn serve(job: &Job<'_>) -> Result<(), RunError> {
    let stop = job.control.stop();
    let bind = |path| Ok(Server::bind(path).map_err(RunError::of)?.until(stop.clone()));
    let servers =
        job.addresses.iter().map(|path| bind(path)).collect::<Result<Vec<_>, RunError>>()?;
    std::thread::scope(|scope| {
        let threads = one_device::threads(scope, job, |thread, take, started| {
            let rt = Rt::live(&STD_CLOCK, None, Log::Off);
            rt.sleep_when_idle(job.plan.device.idle);
            let ranges = one_device::ranges(job, thread);
            let divided = medium(&job.plan).and_then(|kept| {
                Device::divide::<LiveDevice>(job.row, &rt, kept, &job.plan, &ranges)
            });
            let Some((device, extents)) = started.with(divided) else { return Ok(()) };
            job.control.watch_flushes(&job.addresses[0], &device);
            let (device, extents) = (Rc::new(device), Rc::new(extents));
            // If this panics, each session finds its device ended.
            one_device::run(&rt, take, |next| {
                let stop = job.control.stop().clone();
                session(rt.clone(), device.clone(), extents.clone(), stop, next)
            });
            drop(extents);
            one_device::save(job, thread, &rt, device)
        })?;
        for (number, (server, drive)) in servers.iter().zip(job.add_shared()).enumerate() {
            let (give, place) = threads.of(number);
            one_thread_each(scope, job.events(&job.addresses[number]), move |events| {
                socket(job, (number, place), server, &drive, &give, events)
            });
        }
        threads.ended()
    })?;
    all_have_ended(job.control)
}

/// Serves one socket, in its thread.
fn socket(
    job: &Job<'_>,
    (number, place): (usize, usize),
    server: &Server,
    drive: &Arc<Drive>,
    give: &Sender<Session>,
    events: &Events<'_>,
) -> Result<(), RunError> {
    let register_bytes = (job.row.register_bytes)(&job.plan);
    one_at_a_time(
        events,
        job.control,
        drive,
        || server.accept(register_bytes).map_err(|error| error.kind),
        |(shared, client)| {
            let ((refused, refusals), (end, ended)) = (channel(), channel());
            let gone =
                || RunError::Other("the device has ended: no further client is served".into());
            let drive = drive.clone();
            give.send(Session { place, shared, client, refused, end, drive })
                .map_err(|_| gone())?;
            one_device::report(events, job.clients.get(number), &refusals);
            ended.recv().map_err(|_| gone())
        },
    )
}

/// Runs a client's controllers until it has gone. Those of other clients continue.
async fn session(
    rt: Rt,
    device: Rc<Device>,
    extents: Rc<Vec<Extent<LiveDevice>>>,
    stop_all: Arc<Stop>,
    Session { place, shared, mut client, refused, end, drive }: Session,
) {
    let extent = &extents[place];
    let mut refusals = Refusals::new(extent, refused);
    let (_turn, (plan, seen)) = (drive.turn(), drive.plan());
    let faults = device.faults_of_one(&plan, drive.is_watched());
    let stop = (extent.side)(shared.device(&rt), faults.clone());
    let how = match client.welcome() {
        Ok(()) => {
            let is_over = until(&rt, || {
                refusals.send_first(extent);
                client.is_gone() || stop_all.is_requested()
            });
            race(is_over, drive.attend_one(&rt, &faults, seen)).await;
            End::Disconnected
        }
        Err(error) => End::Dropped(error.kind.to_string()),
    };
    stop();
    drive.account_one(&rt, &faults);
    device.flush().await;
    refusals.send_rest(extent);
    let how = match client.has_lost_memory() {
        true => End::Dropped("its memory has no more pages".into()),
        false => how,
    };
    // Fails only if the thread of the socket has ended.
    let _ = end.send(how);
}
