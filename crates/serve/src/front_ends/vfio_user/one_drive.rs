//! One device shared by several processes, each through its own controller: namespaces are shared.
//!
//! All controllers run in one thread. Contents, reservations and the rest of the device's state last as long
//! as the server; contents last longer if they are in a file.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};

use ::device::nvme::CONTROLLERS_MAX;
use bus::vfio_user::{DeviceEnd, Function, Server, Why};
use runtime::{Log, Rt, STD_CLOCK};
use world::device::Device;
use world::interfaces::Shared;
use world::{RunError, until};

use super::{accept, bind, end_of};
use crate::front_end::Job;
use crate::lifecycle::{all_have_ended, one_at_a_time, one_thread_each};
use crate::{Events, medium};

/// Socket number from 1, the session's device end, and a sender that is dropped when the controller has
/// stopped.
type Session = (u16, DeviceEnd, Sender<()>);

pub(super) fn serve(job: &Job<'_>, function: &Function) -> Result<(), RunError> {
    let (found, most) = (job.addresses.len(), usize::from(CONTROLLERS_MAX));
    if found > most {
        return Err(RunError(format!("--shared: found {found} sockets, expected at most {most}")));
    }
    if !job.plan.faults.is_empty() {
        let origin = &job.plan.origin;
        return Err(RunError(format!(
            "{origin}: faults: found some, expected none: what several hosts share has none"
        )));
    }
    let servers = bind(job)?;
    let kept = medium(&job.plan)?;
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let (device, shared) = Device::share(job.row, &rt, kept, &job.plan, found as u16)?;
    let (give, take) = channel();
    std::thread::scope(|scope| {
        for (number, (address, server)) in (1..).zip(job.addresses.iter().zip(&servers)) {
            let give = give.clone();
            one_thread_each(scope, job.events(address), move |events| {
                socket(number, server, function, &give, events)
            });
        }
        drop(give);
        // If this panics, each session finds its device ended.
        run(rt, device, shared, take);
    });
    Err(all_have_ended())
}

/// Serves one socket, in its thread.
fn socket(
    number: u16,
    server: &Server,
    function: &Function,
    give: &Sender<Session>,
    events: &Events<'_>,
) -> RunError {
    one_at_a_time(
        events,
        || accept(server, function),
        |mut session| {
            let (running, stopped) = channel();
            if give.send((number, session.device_end(), running)).is_err() {
                return Err(RunError("the device has ended: no further client is served".into()));
            }
            let end = end_of(session.run(server));
            // The controller must stop before the next client's controller starts.
            let _ = stopped.recv();
            Ok(end)
        },
    )
}

/// Runs the device and all its controllers. Blocks while there is no client.
fn run(rt: Rt, device: Device, shared: Shared, sessions: Receiver<Session>) {
    let (device, shared) = (Rc::new(device), Rc::new(shared));
    let clients = Rc::new(Cell::new(0_u32));
    let serve = |(number, end, running): Session| {
        clients.set(clients.get() + 1);
        let (rt, clients) = (rt.clone(), clients.clone());
        let (device, shared) = (device.clone(), shared.clone());
        rt.clone().spawn(async move {
            client(&rt, number, end, &device, &shared).await;
            clients.set(clients.get() - 1);
            drop(running);
        });
    };
    while let Ok(first) = sessions.recv() {
        serve(first);
        rt.block_on(until(&rt, || {
            sessions.try_iter().for_each(&serve);
            clients.get() == 0
        }));
    }
    rt.drop_tasks();
}

/// Runs the controller of one client, restarting it at each reset, until the client has disconnected. The
/// device continues.
async fn client(rt: &Rt, number: u16, end: DeviceEnd, device: &Device, shared: &Shared) {
    let mut port = end.port(rt);
    loop {
        let controller = shared.start(number, port.clone());
        let why = port.attend().await;
        controller.stop();
        drop(controller);
        device.flush().await;
        match why {
            Why::Left => return,
            Why::Reset => port = port.begin_anew(rt),
        }
    }
}
