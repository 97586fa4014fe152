//! A vfio-user run with host and device on one thread.

use bus::vfio_user::{self, Sharing};
use plan::Plan;
use runtime::{Either, Log, Rt, STD_CLOCK, race};
use wire::pci::FunctionKind;
use world::device::{Clock, Device, MediumState};
use world::interfaces::Row;
use world::work::Work;
use world::{Instruments, Options, RunError, RunResult, drive, traces, until};

/// Runs work live over vfio-user with host and device on this thread, to count instructions. Only the socket
/// protocol has threads of its own.
///
/// # Errors
/// Those of any run, and if the socket cannot be created.
pub fn in_one_thread(
    row: &'static Row,
    plan: &Plan,
    work: &Work,
    options: Options,
) -> Result<RunResult, RunError> {
    let function = row.require_function(plan)?;
    let kind = FunctionKind::of(&function.identity);
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
        let connect = || vfio_user::connect(&socket, kind, bytes, base, Sharing::Mapped);
        let connecting = scope.spawn(connect);
        let Ok(end) = take.recv() else {
            return Err(RunError::Other(
                "the client and its server do not understand each other".into(),
            ));
        };
        let traces = traces(row, plan, plan.run.breakdown_sample.ilog2());
        let executor = || Rt::live(&STD_CLOCK, Some(traces.clone()), Log::Off);
        // A client resets the device before use; each reset starts a new executor.
        let (mut rt, mut kept) = (executor(), MediumState::to_read(plan)?);
        let mut port = end.port(&rt);
        loop {
            let device = Device::start(row, port.clone(), kept, Clock::Wall, plan)?;
            let connected = until(&rt, || connecting.is_finished());
            if let Either::Second(()) = rt.block_on(race(port.attend(), connected)) {
                break;
            }
            kept = device.switch_off();
            rt = executor();
            port = port.restart(&rt);
        }
        let connection = connecting.join().expect("connecting does not panic");
        let host = connection.map_err(RunError::of)?.host(&rt);
        let ports = |_, _| host.clone();
        let work = drive(row, &rt, plan, work, &options, &ports, Instruments::NONE);
        let job_result = match rt.block_on(race(work, port.attend())) {
            Either::First(result) => result,
            Either::Second(_) => Err(RunError::Other("the device was told to stop".into())),
        };
        rt.drop_tasks();
        // The socket's threads end when both ends are dropped.
        drop((host, port));
        job_result.map(RunResult::of)
    })
}
