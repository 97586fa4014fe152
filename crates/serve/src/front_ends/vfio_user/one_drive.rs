//! One device shared by several processes, each through its own controller: namespaces are shared, or each
//! client has an extent of its own.
//!
//! All controllers run in one thread, or clients are dealt to several. Contents, reservations and the rest of
//! the device's state last as long as the server; contents last longer if they are in a file.
//!
//! The devices of all sessions are controllers of one `device::nvme::Subsystem`, or each is of a subsystem on
//! its client's part of the medium, in the tasks of one executor.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use ::device::faults::Faults;
use ::device::nvme::CONTROLLERS_MAX;
use bus::listen;
use bus::vfio_user::{DeviceEnd, Function, Server, VfioUserDevice, Why};
use media::Refused;
use runtime::{Either, Log, Rt, STD_CLOCK, race};
use world::RunError;
use world::device::Device;
use world::interfaces::{Extent, Shared, Stop};

use super::{accept, bind, end_of};
use crate::control::{Drive, polled};
use crate::front_end::Job;
use crate::lifecycle::{all_have_ended, one_at_a_time, one_thread_each};
use crate::one_device::{self, Refusals};
use crate::{Events, medium};

/// A client's connection, on its way to the device's thread.
struct Session {
    /// Place of the socket among those of its device thread, from 0.
    place: usize,
    end: DeviceEnd,
    /// Refused commands. It is dropped when the controller has stopped.
    refused: Sender<Refused>,
    drive: Arc<Drive>,
}

enum Controllers {
    Sharing(Shared),
    Divided(Vec<Extent<VfioUserDevice>>),
}

impl Controllers {
    /// Starts the controller of the socket in this place, from 0.
    fn start(&self, place: usize, port: VfioUserDevice, faults: Rc<Faults>) -> Stop {
        match self {
            Controllers::Sharing(shared) => shared.start(place as u16 + 1, port, faults),
            Controllers::Divided(extents) => (extents[place].side)(port, faults),
        }
    }

    fn extent(&self, place: usize) -> Option<&Extent<VfioUserDevice>> {
        match self {
            Controllers::Sharing(_) => None,
            Controllers::Divided(extents) => extents.get(place),
        }
    }
}

pub(super) fn serve(job: &Job<'_>, function: &Function) -> Result<(), RunError> {
    let (found, most) = (job.addresses.len(), usize::from(CONTROLLERS_MAX));
    if job.shared && found > most {
        return Err(RunError::Other(format!(
            "--shared: found {found} sockets, expected at most {most}"
        )));
    }
    let servers = bind(job)?;
    std::thread::scope(|scope| {
        let threads = one_device::threads(scope, job, |thread, take, started| {
            let rt = Rt::live(&STD_CLOCK, None, Log::Off);
            rt.sleep_when_idle(job.plan.device.idle);
            let Some((device, controllers)) = started.with(device(job, &rt, thread)) else {
                return Ok(());
            };
            let (device, controllers) = (Rc::new(device), Rc::new(controllers));
            // If this panics, each session finds its device ended.
            one_device::run(&rt, take, |session| {
                let stop = job.control.stop().clone();
                client(rt.clone(), session, device.clone(), controllers.clone(), stop)
            });
            drop(controllers);
            one_device::save(job, thread, &rt, device)
        })?;
        let sockets = job.addresses.iter().zip(&servers).zip(job.add_shared());
        for (number, ((address, server), drive)) in sockets.enumerate() {
            let (give, place) = threads.of(number);
            one_thread_each(scope, job.events(address), move |events| {
                socket(job, (number, place), server, &drive, function, &give, events)
            });
        }
        threads.ended()
    })?;
    all_have_ended(job.control)
}

/// The device of a thread: shared by all hosts, or with the extents of its clients.
fn device(job: &Job<'_>, rt: &Rt, thread: usize) -> Result<(Device, Controllers), RunError> {
    let kept = medium(&job.plan)?;
    if job.shared {
        let hosts = job.addresses.len() as u16;
        let (device, shared) = Device::share(job.row, rt, kept, &job.plan, hosts)?;
        job.control.watch_flushes(&job.addresses[0], &device);
        return Ok((device, Controllers::Sharing(shared)));
    }
    let ranges = one_device::ranges(job, thread);
    let (device, extents) = Device::divide(job.row, rt, kept, &job.plan, &ranges)?;
    job.control.watch_flushes(&job.addresses[0], &device);
    Ok((device, Controllers::Divided(extents)))
}

/// Serves one socket, in its thread.
fn socket(
    job: &Job<'_>,
    (number, place): (usize, usize),
    server: &Server,
    drive: &Arc<Drive>,
    function: &Function,
    give: &Sender<Session>,
    events: &Events<'_>,
) -> Result<(), RunError> {
    let client = job.clients.get(number);
    one_at_a_time(
        events,
        job.control,
        drive,
        || accept(server, function),
        |mut session| {
            let (refused, refusals) = channel();
            let (end, drive) = (session.device_end(), drive.clone());
            if give.send(Session { place, end, refused, drive }).is_err() {
                return Err(RunError::Other(
                    "the device has ended: no further client is served".into(),
                ));
            }
            let end = end_of(session.run(server));
            // The controller must stop before the next client's controller starts.
            one_device::report(events, client, &refusals);
            Ok(end)
        },
    )
}

/// Runs the controller of one client, restarting it at each reset, until the client has disconnected. The
/// device continues.
async fn client(
    rt: Rt,
    Session { place, end, refused, drive }: Session,
    device: Rc<Device>,
    controllers: Rc<Controllers>,
    stop_all: Arc<listen::Stop>,
) {
    let refusals = controllers.extent(place).map(|extent| Refusals::new(extent, refused.clone()));
    let mut port = end.port(&rt);
    let _turn = drive.turn();
    loop {
        let (plan, seen) = drive.plan();
        let faults = device.faults_of_one(&plan, drive.is_watched());
        let stop = controllers.start(place, port.clone(), faults.clone());
        let attended = race(faults.link_down(&rt), drive.attend_one(&rt, &faults, seen));
        let ends = race(polled(&rt, || stop_all.is_requested()), attended);
        let why = race(port.attend(), ends).await;
        stop();
        drive.account_one(&rt, &faults);
        device.flush().await;
        match why {
            Either::First(Why::Left) | Either::Second(_) => break,
            Either::First(Why::Reset) => port = port.restart(&rt),
        }
    }
    if let (Some(refusals), Some(extent)) = (refusals, controllers.extent(place)) {
        refusals.send_rest(extent);
    }
    drop(refused);
}
