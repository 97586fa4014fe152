//! Shared-memory front end: `doorbell run --socket`, and programs with `bus::live::connect`.
//!
//! The device runs in this thread, on the client's memory. Contents last as long as the server, or longer if
//! they are in a file. With `--client`, several clients share it (`extents`);
//! with `--device-threads`, several threads serve its queues (`threads`).

mod extents;
mod threads;

use bus::listen;
use bus::live::{Client, Server, Shared};
use runtime::race;
use world::device::{Clock, Device, MediumState};
use world::device_threads::ThreadedDevice;
use world::{RunError, until};

use crate::control::{Drive, executor};
use crate::events::End;
use crate::front_end::{Addresses, FrontEnd, Job, Limits};
use crate::lifecycle::one_at_a_time;
use crate::{Events, medium};

/// The row of this front end.
pub static ROW: FrontEnd = FrontEnd {
    name: "shm",
    value_name: "SOCKET",
    help: "To `doorbell run --socket`, over shared memory: the path of a Unix socket; one for each --client",
    addresses: Addresses::Clients,
    limits: Limits {
        clients: 1,
        clients_of_network: None,
        handshake: listen::GREETING,
        in_flight: None,
    },
    serve,
};

fn serve(job: &Job<'_>) -> Result<(), RunError> {
    if !job.clients.is_empty() {
        return extents::serve(job);
    }
    let (socket, events) = job.first();
    let server = Server::bind(socket).map_err(RunError::of)?.until(job.control.stop().clone());
    let (threaded, mut kept) = match job.device_threads {
        1 => (None, Some(medium(&job.plan)?)),
        _ => (Some(ThreadedDevice::new(job.row, &job.plan, None)?), None),
    };
    let drive = job.control.add(job.row, socket, &job.plan, job.device_threads);
    let threaded = threaded.map(|device| drive.watch(device));
    let register_bytes = (job.row.register_bytes)(&job.plan);
    one_at_a_time(
        &events,
        job.control,
        &drive,
        || server.accept(register_bytes).map_err(|error| error.kind),
        |(shared, client)| {
            if let Some(device) = &threaded {
                return threads::session(job, device, &drive, &shared, client);
            }
            let before = kept.take().expect("the last session has returned it");
            let (end, after) = session(job, &events, &drive, &shared, client, before)?;
            kept = Some(after);
            Ok(end)
        },
    )?;
    if let Some(mut kept) = kept {
        kept.save(&job.plan)?;
    }
    events.stopped();
    Ok(())
}

fn session(
    job: &Job<'_>,
    events: &Events<'_>,
    drive: &Drive,
    shared: &Shared,
    mut client: Client,
    kept: MediumState,
) -> Result<(End, MediumState), RunError> {
    let (_turn, (plan, seen)) = (drive.turn(), drive.plan());
    let watched = drive.is_watched();
    let rt = executor(job.row, &plan, watched);
    let port = shared.device(&rt);
    let device = Device::start_with(job.row, port, kept, Clock::Wall, &plan, watched)?;
    drive.watch_flushes(&device);
    let end = match client.welcome() {
        Ok(()) => {
            let is_over = until(&rt, || client.is_gone() || device.is_down());
            rt.block_on(race(is_over, drive.attend(&rt, &device, seen)));
            End::Disconnected
        }
        Err(error) => End::Dropped(error.kind.to_string()),
    };
    for (name, injected) in device.fault_counts() {
        events.note(format_args!("fault {name}: injected {injected} times"));
    }
    drive.account(&rt, &device);
    let is_cut = !drive.is_powered();
    let mut kept = if is_cut { device.cut() } else { device.switch_off() };
    // Unflushed data is lost if the process ends now; otherwise the next client reads it.
    if let Err(error) = kept.keep_journal(&job.plan) {
        events.note(error);
    }
    let end = match (client.has_lost_memory(), is_cut) {
        (true, _) => End::Dropped("its memory has no more pages".into()),
        (_, true) => End::Dropped("the power was cut".into()),
        (false, false) => end,
    };
    Ok((end, kept))
}
