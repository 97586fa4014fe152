//! One SSD that several processes drive, each through a controller of its own: hosts that share namespaces.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};

use ::device::nvme::CONTROLLERS_MAX;
use bus::vfio_user::{self, DeviceEnd, Function, VfioUserError, Why};
use runtime::{Log, Rt, STD_CLOCK};

use crate::{next_client, served, tell_end};
use plan::Plan;
use world::device::{Device, Kept};
use world::interfaces::{Row, Shared};
use world::{RunError, until};

/// A client's end, the number of its socket, from 1 on, and what is dropped when its controller has gone.
type Come = (u16, DeviceEnd, Sender<()>);

/// Serves the controllers of one SSD, one behind each socket, to one vfio-user client after another.
/// Contents, reservations and all that is the SSD's live as long as the server, and contents longer in a
/// file.
///
/// # Errors
/// If there is no listening at one of the sockets, or no medium; if there are too many sockets, the interface
/// is not NVMe, or the plan has faults.
pub fn to_all(
    row: &'static Row,
    plan: &Plan,
    sockets: &[PathBuf],
    say: impl Fn(&Path, &str) + Sync,
) -> Result<(), RunError> {
    let plan = &served(row, plan)?;
    let function = row.served_function(plan).map_err(RunError)?;
    let most = usize::from(CONTROLLERS_MAX);
    if sockets.len() > most {
        let found = sockets.len();
        return Err(RunError(format!("--shared: found {found} sockets, expected at most {most}")));
    }
    if !plan.faults.is_empty() {
        let origin = &plan.origin;
        return Err(RunError(format!(
            "{origin}: faults: found some, expected none: what several hosts share has none"
        )));
    }
    let servers =
        sockets.iter().map(|socket| Ok(vfio_user::Server::bind(socket)?.one_of(sockets.len())));
    let servers = servers.collect::<Result<Vec<_>, VfioUserError>>().map_err(RunError::of)?;
    let mut kept = Kept::new(plan)?;
    kept.keep_journal(plan)?;
    let rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let (device, shared) = Device::share(row, &rt, kept, plan, sockets.len() as u16)?;
    let (give, take) = channel();
    std::thread::scope(|scope| {
        for (number, (socket, server)) in (1..).zip(sockets.iter().zip(&servers)) {
            let (function, give, say) = (&function, give.clone(), &say);
            let attending = std::thread::Builder::new().spawn_scoped(scope, move || {
                attend(number, server, function, &give, |what| say(socket, what));
            });
            if let Err(error) = attending {
                say(socket, &format!("no client is served: a thread for it: {error}"));
            }
        }
        drop(give);
        // Should it panic, all of it goes, and each session sees that its device has.
        run(rt, device, shared, take);
    });
    Err(RunError("every socket's thread has ended".into()))
}

/// The life of a socket: one client after another.
fn attend(
    number: u16,
    server: &vfio_user::Server,
    function: &Function,
    give: &Sender<Come>,
    say: impl Fn(&str),
) {
    loop {
        let mut session = next_client(server, function, &say);
        let (stays, left) = channel();
        if give.send((number, session.device_end(), stays)).is_err() {
            return say("the device has ended: no further client is served");
        }
        tell_end(session.run(server), &say);
        // Its controller is to be gone before the next client's takes the place.
        let _ = left.recv();
    }
}

/// The life of the SSD, on this thread. While there is no client, nothing runs.
fn run(rt: Rt, device: Device, shared: Shared, come: Receiver<Come>) {
    let (device, shared) = (Rc::new(device), Rc::new(shared));
    let clients = Rc::new(Cell::new(0_u32));
    let serve = |(number, end, stays): Come| {
        clients.set(clients.get() + 1);
        let (rt, clients) = (rt.clone(), clients.clone());
        let (device, shared) = (device.clone(), shared.clone());
        rt.clone().spawn(async move {
            client(&rt, number, end, &device, &shared).await;
            clients.set(clients.get() - 1);
            drop(stays);
        });
    };
    while let Ok(first) = come.recv() {
        serve(first);
        rt.block_on(until(&rt, || {
            come.try_iter().for_each(&serve);
            clients.get() == 0
        }));
    }
    rt.drop_tasks();
}

/// A client's time: from reset to reset, until it has gone. What is the SSD's goes on.
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
