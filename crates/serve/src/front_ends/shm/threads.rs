//! One device whose queues are dealt to several threads.

use bus::live::{Client, Server, Shared};
use runtime::Rt;
use world::device_threads::ThreadedDevice;
use world::{RunError, until};

use crate::events::End;
use crate::front_end::Job;
use crate::lifecycle::one_at_a_time;

pub(super) fn serve(job: &Job<'_>) -> Result<(), RunError> {
    let (socket, events) = job.first();
    let server = Server::bind(socket).map_err(RunError::of)?.until(job.control.stop().clone());
    let device = ThreadedDevice::new(job.row, &job.plan, None)?;
    let drive = job.control.add(job.row, socket, &job.plan);
    let register_bytes = (job.row.register_bytes)(&job.plan);
    one_at_a_time(
        &events,
        job.control,
        &drive,
        || server.accept(register_bytes).map_err(|error| error.kind),
        |(shared, client)| session(job, &device, &shared, client),
    )?;
    events.stopped();
    Ok(())
}

fn session(
    job: &Job<'_>,
    device: &ThreadedDevice,
    shared: &Shared,
    mut client: Client,
) -> Result<End, RunError> {
    std::thread::scope(|scope| {
        let ends = (1..job.device_threads).map(|_| shared.clone()).collect();
        let others = device.others(scope, ends)?;
        let run = |rt: &Rt, _: &_| match client.welcome() {
            Ok(()) => {
                let stop = job.control.stop();
                let is_over = || client.is_gone() || stop.is_requested() || others.has_failed();
                rt.block_on(until(rt, is_over));
                End::Disconnected
            }
            Err(error) => End::Dropped(error.kind.to_string()),
        };
        let result = device.run(&others, |rt| shared.device(rt), run);
        others.end()?;
        Ok(match client.has_lost_memory() {
            true => End::Dropped("its memory has no more pages".into()),
            false => result?.0,
        })
    })
}
