//! Devices that other processes drive: over shared memory, as a PCI function, as a drive of NBD.

pub mod disk;
pub mod nbd;
pub mod shared;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bus::live;
use bus::vfio_user::{self, DeviceEnd, Ended, Function, Session, Sharing, Why};
use media::contents::Backing;
use runtime::{Either, Log, Rt, STD_CLOCK, race};

use plan::Plan;
use world::device::{self, Clock, Device, Kept};
use world::interfaces::Row;
use world::work::Work;
use world::{Options, Outcome, RunError, drive, journeys, until};

/// The plan as its drive is served, once it is known to fit this interface: every front end asks here before
/// it makes a medium.
///
/// # Errors
/// The plan lacks what the interface needs, or its medium keeps only stamps of what clients write.
pub fn served(row: &'static Row, plan: &Plan) -> Result<Plan, RunError> {
    row.check_live().map_err(RunError)?;
    device::check(row, plan)?;
    plan.for_clients().map_err(RunError::of)
}

/// Serves a device to one host process after another over shared memory, until `stop` says so.
/// Contents live as long as the server, and longer in a file.
///
/// # Errors
/// If there is no listening at this socket, or no medium, or the medium keeps only stamps.
pub fn over_shared_memory(
    row: &'static Row,
    plan: &Plan,
    socket: &Path,
    mut connected: impl FnMut(&str),
) -> Result<(), RunError> {
    let plan = &served(row, plan)?;
    let server = live::Server::bind(socket).map_err(RunError::of)?;
    let mut kept = Kept::new(plan)?;
    kept.keep_journal(plan)?;
    let mut kept = Some(kept);
    loop {
        connected("waiting for a host");
        let (shared, mut client) = match server.accept((row.register_bytes)(plan)) {
            Ok(accepted) => accepted,
            Err(error) => {
                // A bad client is its own fault; the next may be better.
                connected(&error.to_string());
                continue;
            }
        };
        connected("a host has connected");
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let held = kept.take().expect("given back by the last host's device");
        let device = Device::start(row, shared.device(&rt), held, Clock::Wall, plan)?;
        match client.welcome() {
            Ok(()) => rt.block_on(until(&rt, || client.is_gone() || device.is_down())),
            Err(error) => connected(&error.to_string()),
        }
        for (name, struck) in device.fault_counts() {
            connected(&format!("fault {name}: struck {struck} times"));
        }
        let mut left = device.switch_off();
        // What was not flushed may be lost, should the process end now; the next host is told of its writes.
        let noted = left.keep_journal(plan);
        kept = Some(left);
        match client.has_lost_memory() {
            true => connected("the host was let go: its memory has no more pages"),
            false => connected("the host has gone"),
        }
        if let Err(error) = noted {
            connected(&error.to_string());
        }
    }
}

/// The plan for the SSD behind the socket of this number, counted from zero: a file has one owner,
/// so that from the second on a number is added to its name.
fn plan_of(plan: &Plan, number: usize) -> Plan {
    let mut plan = plan.clone();
    if let Backing::File(path) = &mut plan.medium.contents.backing
        && number > 0
    {
        *path = numbered(path, number);
    }
    if let Some(path) = plan.medium.flash.as_mut().and_then(|flash| flash.state.as_mut())
        && number > 0
    {
        *path = numbered(path, number);
    }
    plan
}

fn numbered(path: &Path, number: usize) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", number + 1));
    PathBuf::from(name)
}

/// Serves an SSD behind each socket to one vfio-user client after another. Each has contents of its own,
/// which live as long as the server, and longer in a file.
///
/// # Errors
/// If there is no listening at one of the sockets, or no medium, or the interface is no PCI function.
pub fn over_vfio_user(
    row: &'static Row,
    plan: &Plan,
    sockets: &[PathBuf],
    say: impl Fn(&Path, &str) + Sync,
) -> Result<(), RunError> {
    let plan = &served(row, plan)?;
    let function = row.served_function(plan).map_err(RunError)?;
    let mut doors = Vec::new();
    for (number, socket) in sockets.iter().enumerate() {
        let plan = plan_of(plan, number);
        let server = vfio_user::Server::bind(socket).map_err(RunError::of)?;
        let server = server.one_of(sockets.len());
        let mut kept = Kept::new(&plan)?;
        kept.keep_journal(&plan)?;
        doors.push((socket, server, kept, plan));
    }
    std::thread::scope(|scope| {
        for (socket, server, kept, plan) in doors {
            let (function, say) = (&function, &say);
            let serving = std::thread::Builder::new().spawn_scoped(scope, move || {
                serve_socket(row, &plan, &server, function, kept, |what| say(socket, what));
            });
            if let Err(error) = serving {
                say(socket, &format!("no client is served: a thread for it: {error}"));
            }
        }
    });
    Err(RunError("every socket's thread has ended".into()))
}

/// The next client that can be spoken with.
pub(crate) fn next_client(
    server: &vfio_user::Server,
    function: &Function,
    say: &impl Fn(&str),
) -> Session {
    loop {
        say("waiting for a client");
        match server.accept(function) {
            Ok(session) => {
                say("a client has connected");
                return session;
            }
            // A bad client is its own fault; the next may be better.
            Err(error) => say(&error.to_string()),
        }
    }
}

/// Says how a client's time ended.
pub(crate) fn tell_end(ended: Ended, say: &impl Fn(&str)) {
    match ended {
        Ended::Gone => say("the client has gone"),
        Ended::LetGo(why) => say(&format!("the client was let go: {why}")),
        Ended::Device => say("the device has ended"),
    }
}

/// One client after another. While there is none, nothing runs.
fn serve_socket(
    row: &'static Row,
    plan: &Plan,
    server: &vfio_user::Server,
    function: &Function,
    mut kept: Kept,
    say: impl Fn(&str),
) {
    // Where the device's thread finds it, so that it is still there if there is no such thread.
    let place = Mutex::new(None);
    loop {
        let mut session = next_client(server, function, &say);
        let end = session.device_end();
        place.lock().unwrap_or_else(PoisonError::into_inner).replace(kept);
        let taken = || place.lock().unwrap_or_else(PoisonError::into_inner).take();
        let served = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("device".into());
            let thread = thread.spawn_scoped(scope, || {
                device(row, plan, end, taken().expect("it was put there for this thread"))
            })?;
            let ended = session.run(server);
            Ok::<_, io::Error>((thread.join(), ended))
        });
        let (left, ended) = match served {
            Ok(served) => served,
            // The system's limit, for now: the next client may have one.
            Err(error) => {
                say(&format!("the client was let go: a thread for its device: {error}"));
                kept = taken().expect("no thread has taken it");
                continue;
            }
        };
        tell_end(ended, &say);
        match left {
            Ok(Ok((left, noted))) => {
                kept = left;
                if let Err(error) = noted {
                    say(&error.to_string());
                }
            }
            Ok(Err(error)) => return say(&error.to_string()),
            // What it knew of its contents died with it.
            Err(_) => {
                return say("the device's thread has panicked: no further client is served");
            }
        }
    }
}

/// The life of a device for one client: from reset to reset, until the client has gone. What it leaves, and
/// whether all of that is in the file; if not it is still noted, and goes there when that can be written.
fn device(
    row: &'static Row,
    plan: &Plan,
    end: DeviceEnd,
    mut kept: Kept,
) -> Result<(Kept, Result<(), RunError>), RunError> {
    let mut rt = Rt::live(&STD_CLOCK, None, Log::Off);
    let mut port = end.port(&rt);
    loop {
        let device = Device::start(row, port.clone(), kept, Clock::Wall, plan)?;
        let why = rt.block_on(race(port.attend(), device.link_down(&rt)));
        kept = device.switch_off();
        match why {
            Either::First(Why::Left) | Either::Second(()) => {
                let noted = kept.keep_journal(plan);
                return Ok((kept, noted));
            }
            Either::First(Why::Reset) => {
                rt = Rt::live(&STD_CLOCK, None, Log::Off);
                port = port.begin_anew(&rt);
            }
        }
    }
}

/// Runs work live over vfio-user with both ends on this thread, for counting instructions: only what is
/// said over the socket has threads of its own.
///
/// # Errors
/// As for any run, and if there is no socket to be had.
pub fn in_one_thread(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<Outcome, RunError> {
    let function = row.served_function(plan).map_err(RunError)?;
    let socket = std::env::temp_dir().join(format!("doorbell-one-{}", std::process::id()));
    let server = vfio_user::Server::bind(&socket).map_err(RunError::of)?;
    let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
    std::thread::scope(|scope| {
        let (give, take) = std::sync::mpsc::channel();
        scope.spawn(|| {
            let accepted = server.accept(&function).map(|mut session| {
                let _ = give.send(session.device_end());
                session
            });
            drop(give);
            accepted.map(|session| session.run(&server))
        });
        let connecting = scope.spawn(|| vfio_user::connect(&socket, bytes, base, Sharing::Mapped));
        let Ok(end) = take.recv() else {
            return Err(RunError("the client and its server do not understand each other".into()));
        };
        let journeys = journeys(row, plan, plan.run.breakdown_sample.ilog2());
        let executor = || Rt::live(&STD_CLOCK, Some(journeys.clone()), Log::Off);
        // A client resets the device before it uses it: the executor is then another.
        let (mut rt, mut kept) = (executor(), Kept::to_read(plan)?);
        let mut port = end.port(&rt);
        loop {
            let device = Device::start(row, port.clone(), kept, Clock::Wall, plan)?;
            let connected = until(&rt, || connecting.is_finished());
            if let Either::Second(()) = rt.block_on(race(port.attend(), connected)) {
                break;
            }
            kept = device.switch_off();
            rt = executor();
            port = port.begin_anew(&rt);
        }
        let connection = connecting.join().expect("connecting does not panic");
        let host = connection.map_err(RunError::of)?.host(&rt);
        let ports = |_, _| host.clone();
        let work = drive(row, &rt, plan, work, &options, &ports, &|_| ());
        let ran = match rt.block_on(race(work, port.attend())) {
            Either::First(told) => told,
            Either::Second(_) => Err(RunError("the device was told to stop".into())),
        };
        rt.drop_tasks();
        // The socket's threads end when nobody holds either end.
        drop((host, port));
        ran.map(Outcome::of)
    })
}
