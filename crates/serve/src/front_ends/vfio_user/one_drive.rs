//! One device shared by several processes, each through its own controller: namespaces are shared, or each
//! client has an extent of its own.
//!
//! All controllers run in one thread. Contents, reservations and the rest of the device's state last as long
//! as the server; contents last longer if they are in a file.
//!
//! The devices of all sessions are controllers of one `device::nvme::Subsystem`, or each is of a subsystem on
//! its client's part of the medium, in the tasks of one executor.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use ::device::nvme::CONTROLLERS_MAX;
use bus::listen;
use bus::vfio_user::{DeviceEnd, Function, Server, VfioUserDevice, Why};
use media::Refused;
use runtime::{Either, Log, Rt, STD_CLOCK, race};
use world::RunError;
use world::device::Device;
use world::interfaces::{Extent, Shared, Stop};

use super::{accept, bind, end_of};
use crate::control::polled;
use crate::front_end::Job;
use crate::lifecycle::{all_have_ended, one_at_a_time, one_thread_each};
use crate::one_device::{self, Refusals};
use crate::{Events, medium};

/// Socket number from 1, the session's device end, and a sender of refused commands that is dropped when the
/// controller has stopped.
type Session = (u16, DeviceEnd, Sender<Refused>);

enum Controllers {
    Sharing(Shared),
    Divided(Vec<Extent<VfioUserDevice>>),
}

impl Controllers {
    /// Starts the controller of socket `number`, from 1.
    fn start(&self, number: u16, port: VfioUserDevice) -> Stop {
        match self {
            Controllers::Sharing(shared) => {
                let controller = shared.start(number, port);
                Box::new(move || controller.stop())
            }
            Controllers::Divided(_) => {
                self.extent(number).expect("one for each socket").side.start(port)
            }
        }
    }

    fn extent(&self, number: u16) -> Option<&Extent<VfioUserDevice>> {
        match self {
            Controllers::Sharing(_) => None,
            Controllers::Divided(extents) => extents.get(usize::from(number) - 1),
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
    if !job.plan.faults.is_empty() {
        let origin = &job.plan.origin;
        return Err(RunError::Other(format!(
            "{origin}: faults: found some, expected none: what several hosts share has none"
        )));
    }
    let servers = bind(job)?;
    let kept = medium(&job.plan)?;
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let (device, controllers) = match job.shared {
        true => {
            let (device, shared) = Device::share(job.row, &rt, kept, &job.plan, found as u16)?;
            (device, Controllers::Sharing(shared))
        }
        false => {
            let ranges = one_device::ranges(job);
            let (device, extents) = Device::divide(job.row, &rt, kept, &job.plan, &ranges)?;
            (device, Controllers::Divided(extents))
        }
    };
    let (give, take) = channel();
    std::thread::scope(|scope| {
        for (number, (address, server)) in (1..).zip(job.addresses.iter().zip(&servers)) {
            let give = give.clone();
            one_thread_each(scope, job.events(address), move |events| {
                socket(job, number, server, function, &give, events)
            });
        }
        drop(give);
        let (device, controllers) = (Rc::new(device), Rc::new(controllers));
        // If this panics, each session finds its device ended.
        one_device::run(&rt, take, |session| {
            let stop = job.control.stop().clone();
            client(rt.clone(), session, device.clone(), controllers.clone(), stop)
        });
        drop(controllers);
        one_device::save(job, &rt, device)
    })?;
    all_have_ended(job.control)
}

/// Serves one socket, in its thread.
fn socket(
    job: &Job<'_>,
    number: u16,
    server: &Server,
    function: &Function,
    give: &Sender<Session>,
    events: &Events<'_>,
) -> Result<(), RunError> {
    let place = usize::from(number) - 1;
    let (address, client) = (&job.addresses[place], job.clients.get(place));
    let drive = job.control.add_shared(job.row, address, &job.plan, client);
    one_at_a_time(
        events,
        job.control,
        &drive,
        || accept(server, function),
        |mut session| {
            let (refused, refusals) = channel();
            if give.send((number, session.device_end(), refused)).is_err() {
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
    (number, end, refused): Session,
    device: Rc<Device>,
    controllers: Rc<Controllers>,
    stop_all: Arc<listen::Stop>,
) {
    let refusals = controllers.extent(number).map(|extent| Refusals::new(extent, refused.clone()));
    let mut port = end.port(&rt);
    loop {
        let stop = controllers.start(number, port.clone());
        let why = race(port.attend(), polled(&rt, || stop_all.is_requested())).await;
        stop();
        device.flush().await;
        match why {
            Either::First(Why::Left) | Either::Second(()) => break,
            Either::First(Why::Reset) => port = port.restart(&rt),
        }
    }
    if let (Some(refusals), Some(extent)) = (refusals, controllers.extent(number)) {
        refusals.send_rest(extent);
    }
    drop(refused);
}
