//! Devices of their own for each socket, whose queues are dealt to several threads.

use std::thread::Builder;

use bus::vfio_user::{DeviceEnd, Server, Session, VfioUserDevice, Why};
use runtime::{Either, Rt, race};
use world::RunError;
use world::device_threads::{Attended, ThreadEnd, ThreadedDevice};

use super::own_drive::{add_each, plan_of};
use super::{bind, end_of, no_thread};
use crate::Events;
use crate::control::{Drive, polled};
use crate::events::End;
use crate::front_end::Job;
use crate::lifecycle::{all_have_ended, one_at_a_time, one_thread_each};

pub(super) fn serve(job: &Job<'_>) -> Result<(), RunError> {
    let servers = bind(job)?;
    let drives = add_each(job);
    let mut devices = Vec::new();
    for (number, drive) in (0..).zip(&drives) {
        let device = ThreadedDevice::new(job.row, &plan_of(job, number), None)?;
        devices.push(drive.watch(device));
    }
    let function = &job.row.require_function(&job.plan)?;
    std::thread::scope(|scope| {
        let sockets = job.addresses.iter().zip(&servers).zip(drives.iter().zip(&devices));
        for ((address, server), (drive, device)) in sockets {
            one_thread_each(scope, job.events(address), move |events| {
                let next = || {
                    let accepted = server.accept_for(function, job.device_threads);
                    accepted.map_err(|error| error.kind)
                };
                let serve = |client| session(job, events, server, (drive, device), client);
                one_at_a_time(events, job.control, drive, next, serve)?;
                events.stopped();
                Ok(())
            });
        }
    });
    all_have_ended(job.control)
}

/// Serves one client: its device in threads, the protocol in this one.
fn session(
    job: &Job<'_>,
    events: &Events<'_>,
    server: &Server,
    (drive, device): (&Drive, &ThreadedDevice),
    mut client: Session,
) -> Result<End, RunError> {
    let ends = client.device_ends();
    let (thread, ended) = std::thread::scope(|scope| {
        let thread = Builder::new().name("device 0".into());
        match thread.spawn_scoped(scope, || run(job, drive, device, ends)) {
            Ok(thread) => {
                let ended = end_of(client.run(server));
                (thread.join(), ended)
            }
            Err(error) => (Ok(Ok(())), no_thread(error)),
        }
    });
    let failed = thread.unwrap_or(Err(RunError::Panicked("a thread of the device")));
    if failed.is_err() {
        events.ended(&ended);
    }
    failed.map(|()| ended)
}

/// Runs the device for one client, restarting it at each reset, until the client has disconnected.
fn run(
    job: &Job<'_>,
    drive: &Drive,
    device: &ThreadedDevice,
    ends: Vec<DeviceEnd>,
) -> Result<(), RunError> {
    // Until all threads have ended.
    let _turn = drive.turn();
    let mut ends = ends.into_iter().map(Some);
    let mut first = ends.next().expect("the end of the first thread");
    std::thread::scope(|scope| {
        let others = device.others(scope, ends.collect())?;
        let is_over = || job.control.stop().is_requested() || others.has_failed();
        let attend = |rt: &Rt, port: &VfioUserDevice, attended: Attended<'_>| {
            attended.beside(rt, race(port.attend(), polled(rt, is_over)))
        };
        let mut last = None;
        loop {
            let (why, port) = device.run(&others, |rt| first.port(rt, last.take()), attend)?;
            match why {
                Some(Either::First(Why::Reset)) => last = Some(port),
                // It has left, the server stops, or the power was cut.
                Some(_) | None => break,
            }
        }
        others.end()
    })
}
