//! Devices of their own for each socket, whose queues are dealt to several threads.

use std::thread::Builder;

use bus::vfio_user::{DeviceEnd, Server, Session, VfioUserDevice, Why};
use runtime::{Either, Rt, race};
use world::RunError;
use world::device_threads::{ThreadEnd, ThreadedDevice};

use super::own_drive::plan_of;
use super::{bind, end_of, no_thread};
use crate::Events;
use crate::control::polled;
use crate::events::End;
use crate::front_end::Job;
use crate::lifecycle::{all_have_ended, one_at_a_time, one_thread_each};

pub(super) fn serve(job: &Job<'_>) -> Result<(), RunError> {
    let servers = bind(job)?;
    let drives = job.control.add_each(job.row, job.addresses, |number| plan_of(&job.plan, number));
    let mut devices = Vec::new();
    for number in 0..job.addresses.len() as u32 {
        devices.push(ThreadedDevice::new(job.row, &plan_of(&job.plan, number), None)?);
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
                let serve = |client| session(job, events, server, device, client);
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
    device: &ThreadedDevice,
    mut client: Session,
) -> Result<End, RunError> {
    let ends = client.device_ends();
    let (thread, ended) = std::thread::scope(|scope| {
        let thread = Builder::new().name("device 0".into());
        match thread.spawn_scoped(scope, || run(job, device, ends)) {
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
fn run(job: &Job<'_>, device: &ThreadedDevice, ends: Vec<DeviceEnd>) -> Result<(), RunError> {
    let mut ends = ends.into_iter().map(Some);
    let mut first = ends.next().expect("the end of the first thread");
    std::thread::scope(|scope| {
        let others = device.others(scope, ends.collect())?;
        let is_over = || job.control.stop().is_requested() || others.has_failed();
        let attend =
            |rt: &Rt, port: &VfioUserDevice| rt.block_on(race(port.attend(), polled(rt, is_over)));
        let mut last = None;
        loop {
            let (why, port) = device.run(&others, |rt| first.port(rt, last.take()), attend)?;
            match why {
                Either::First(Why::Reset) => last = Some(port),
                Either::First(Why::Left) | Either::Second(()) => break,
            }
        }
        others.end()
    })
}
