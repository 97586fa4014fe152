//! Sessions with a device whose queues are dealt to several threads.

use bus::live::{Client, Shared};
use runtime::Rt;
use world::device_threads::{Attended, ThreadedDevice};
use world::{RunError, until};

use crate::control::Drive;
use crate::events::End;
use crate::front_end::Job;

pub(super) fn session(
    job: &Job<'_>,
    device: &ThreadedDevice,
    drive: &Drive,
    shared: &Shared,
    mut client: Client,
) -> Result<End, RunError> {
    // Until all threads have ended.
    let _turn = drive.turn();
    std::thread::scope(|scope| {
        let ends = (1..job.device_threads).map(|_| shared.clone()).collect();
        let others = device.others(scope, ends)?;
        let run = |rt: &Rt, _: &_, attended: Attended<'_>| match client.welcome() {
            Ok(()) => {
                let stop = job.control.stop();
                let is_over = || client.is_gone() || stop.is_requested() || others.has_failed();
                match attended.beside(rt, until(rt, is_over)) {
                    Some(()) => End::Disconnected,
                    None => End::Dropped("the power was cut".into()),
                }
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
