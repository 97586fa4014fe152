//! One device per socket, each with its own contents.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use bus::vfio_user::{DeviceEnd, Function, Server, Session, Why};
use plan::Plan;
use runtime::{Either, race};
use world::RunError;
use world::device::{Clock, Device, MediumState};
use world::interfaces::Row;

use super::{accept, bind, end_of, no_thread};
use crate::control::{Drive, executor};
use crate::events::End;
use crate::front_end::Job;
use crate::lifecycle::{all_have_ended, one_at_a_time, one_thread_each};
use crate::{Events, medium};

pub(super) fn serve(job: &Job<'_>) -> Result<(), RunError> {
    let (servers, mut sockets) = (bind(job)?, Vec::new());
    let drives = add_each(job);
    for ((server, drive), number) in servers.into_iter().zip(drives).zip(0..) {
        let plan = plan_of(job, number);
        sockets.push(Socket {
            row: job.row,
            function: job.row.require_function(&plan)?,
            drive,
            kept: Mutex::new(Some(medium(&plan)?)),
            plan,
            server,
            is_saved: AtomicBool::new(false),
        });
    }
    std::thread::scope(|scope| {
        for (address, socket) in job.addresses.iter().zip(&sockets) {
            one_thread_each(scope, job.events(address), move |events| {
                let next = || accept(&socket.server, &socket.function);
                let session = |session| socket.session(events, session);
                one_at_a_time(events, job.control, &socket.drive, next, session)?;
                socket
                    .kept()
                    .take()
                    .expect("the last session has returned it")
                    .save(&socket.plan)?;
                socket.is_saved.store(true, Ordering::Relaxed);
                events.stopped();
                Ok(())
            });
        }
    });
    all_have_ended(job.control)?;
    match sockets.iter().all(|socket| socket.is_saved.load(Ordering::Relaxed)) {
        true => Ok(()),
        false => Err(RunError::Other("the state of an address could not be saved".into())),
    }
}

/// Adds the drive of each socket to the control.
pub(super) fn add_each(job: &Job<'_>) -> Vec<Arc<Drive>> {
    let plan = |number| plan_of(job, number);
    job.control.add_each(job.row, job.addresses, job.device_threads, plan)
}

/// Plan of the device behind socket `number`, from 0. A file has one owner: from the second socket on, the
/// file name gets a number as its suffix. The drive has the life that is kept beside its file.
pub(super) fn plan_of(job: &Job<'_>, number: u32) -> Plan {
    let mut plan = job.plan.numbered(number.into());
    plan.medium.number_files(number);
    if !job.numbered {
        plan.device.number = None;
    }
    plan.device.lives(job.lives[number as usize].clone());
    plan
}

struct Socket {
    row: &'static Row,
    function: Function,
    drive: Arc<Drive>,
    plan: Plan,
    server: Server,
    /// The medium between two sessions. A session takes it in its thread, so it is still here if that thread
    /// does not start.
    kept: Mutex<Option<MediumState>>,
    /// The server was stopped, and the medium is saved.
    is_saved: AtomicBool,
}

impl Socket {
    fn kept(&self) -> MutexGuard<'_, Option<MediumState>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn session(&self, events: &Events<'_>, mut session: Session) -> Result<End, RunError> {
        let end = session.device_end();
        let (thread, ended) = std::thread::scope(|scope| {
            let thread = Builder::new().name("device".into());
            match thread.spawn_scoped(scope, || self.device(events, end)) {
                Ok(thread) => {
                    let ended = end_of(session.run(&self.server));
                    (Some(thread.join()), ended)
                }
                Err(error) => (None, no_thread(error)),
            }
        });
        match thread {
            None | Some(Ok(Ok(()))) => Ok(ended),
            failed => {
                events.ended(&ended);
                // The medium's state is lost with the thread that has panicked.
                let panicked = "the device's thread has panicked: no further client is served";
                Err(failed
                    .and_then(Result::ok)
                    .and_then(Result::err)
                    .unwrap_or(RunError::Other(panicked.into())))
            }
        }
    }

    /// Runs the device for one client, restarting it at each reset, until the client has disconnected.
    fn device(&self, events: &Events<'_>, end: DeviceEnd) -> Result<(), RunError> {
        let mut kept = self.kept().take().expect("the last session has returned it");
        let mut rt = executor(self.row, &self.plan, self.drive.is_watched());
        let mut port = end.port(&rt);
        let _turn = self.drive.turn();
        loop {
            let ((plan, seen), watched) = (self.drive.plan(), self.drive.is_watched());
            let at = port.clone();
            let device = Device::start_with(self.row, at, kept, Clock::Wall, &plan, watched)?;
            self.drive.watch_flushes(&device);
            let attended = self.drive.attend(&rt, &device, seen);
            let ends = race(device.link_down(&rt), attended);
            let why = rt.block_on(race(port.attend(), ends));
            self.drive.account(&rt, &device);
            let is_cut = !self.drive.is_powered();
            kept = if is_cut { device.cut() } else { device.switch_off() };
            match why {
                Either::First(Why::Left) | Either::Second(_) => break,
                Either::First(Why::Reset) => {
                    rt = executor(self.row, &self.plan, self.drive.is_watched());
                    port = port.restart(&rt);
                }
            }
        }
        // State that could not be written stays in memory and is written at the next success.
        if let Err(error) = kept.keep_journal(&self.plan) {
            events.note(error);
        }
        self.kept().replace(kept);
        Ok(())
    }
}
