//! Control of a running server: its orderly stop, and what can change while its drives run.
//!
//! ```text
//!   ctl, scrapers ─► control thread ─► settings of a drive, and a count of requests
//!                                            ▲ one load in a pass of the idle executor
//!                                      device thread: applies them, and posts its counts
//! ```
//!
//! A device thread takes a lock only after a request, never for a command. Of several each counts its own
//! commands; the sum is made for an answer.

mod answer;
mod changes;
mod clients;
mod drive;
mod http;
mod metrics;
mod page;
mod parameters;
mod posted;
mod socket;
mod threads;
mod verbs;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bus::listen::Stop;
use plan::Plan;
use runtime::{Log, Rt, STD_CLOCK};
use world::device::Device;
use world::interfaces::Row;

use crate::Client;

pub use drive::Drive;
pub use http::HttpError;
pub use metrics::Metrics;
pub use page::Page;
pub use parameters::{Kind, Parameter, VERBS, Verb};
pub use socket::{ControlSocket, LINE_BYTES_MAX};

/// Receives the address of a drive, and what its owner must know at once.
type Alarm = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Control of the drives of one server.
pub struct Control {
    stop: Arc<Stop>,
    alarm: Alarm,
    /// As it was opened: settings at run time are applied to this.
    opened: Option<Plan>,
    drives: Mutex<Vec<Arc<Drive>>>,
}

impl Control {
    /// Drives can be stopped, and nothing else.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn new() -> io::Result<Control> {
        let (stop, alarm): (_, Alarm) = (Arc::new(Stop::new()?), Arc::new(|_, _| ()));
        Ok(Control { stop, alarm, opened: None, drives: Mutex::default() })
    }

    /// Drives count their commands, and can change. `plan` is that of the server.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn watching(plan: Plan) -> io::Result<Control> {
        Ok(Control { opened: Some(plan), ..Control::new()? })
    }

    /// Calls `alarm` with the address of a drive and the reason when its flushes begin to fail.
    #[must_use]
    pub fn with_alarm(self, alarm: impl Fn(&str, &str) + Send + Sync + 'static) -> Control {
        Control { alarm: Arc::new(alarm), ..self }
    }

    /// The stop of this server. After its request, drives flush and save what they hold, and
    /// [`serve`](crate::FrontEnd::serve) returns.
    pub fn stop(&self) -> &Arc<Stop> {
        &self.stop
    }

    /// Adds the only drive of the server, with this number of device threads.
    pub(crate) fn add(
        &self,
        row: &'static Row,
        address: &Path,
        plan: &Plan,
        device_threads: usize,
    ) -> Arc<Drive> {
        let address = [address.to_owned()];
        let mut added = self.add_each(row, &address, device_threads, |_| plan.clone());
        added.pop().expect("one address")
    }

    /// Adds the drive behind each address; `plan` is called with the number of the drive's files.
    pub(crate) fn add_each(
        &self,
        row: &'static Row,
        addresses: &[PathBuf],
        device_threads: usize,
        plan: impl Fn(u32) -> Plan,
    ) -> Vec<Arc<Drive>> {
        let watched = self.opened.is_some();
        self.with(addresses.iter().zip(0..).map(|(address, number)| {
            let drive = Drive::new(row, address, plan(number), number, watched, &self.stop);
            drive.on_threads(device_threads).alarming(&self.alarm)
        }))
    }

    /// Adds the addresses that share a drive: the connections and commands of each and, unless clients have
    /// extents of their own, its faults.
    pub(crate) fn add_shared(
        &self,
        row: &'static Row,
        plan: &Plan,
        addresses: &[PathBuf],
        clients: &[Client],
    ) -> Vec<Arc<Drive>> {
        let watched = self.opened.is_some();
        self.with(addresses.iter().enumerate().map(|(number, address)| {
            let drive = Drive::new(row, address, plan.clone(), 0, watched, &self.stop);
            let client = clients.get(number).map(|client| client.name.as_str());
            drive.shared_by(client).alarming(&self.alarm)
        }))
    }

    /// Adds drives in this order, all at once: a request that names none must not find a part of them.
    fn with(&self, drives: impl Iterator<Item = Drive>) -> Vec<Arc<Drive>> {
        let added: Vec<_> = drives.map(Arc::new).collect();
        self.drives().extend_from_slice(&added);
        added
    }

    /// Reports the first flush that fails of a device behind several addresses, of which this is the first.
    pub(crate) fn watch_flushes(&self, address: &Path, device: &Device) {
        watch_flushes(&self.alarm, &address.display().to_string(), device);
    }

    fn drives(&self) -> MutexGuard<'_, Vec<Arc<Drive>>> {
        self.drives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn watch_flushes(alarm: &Alarm, name: &str, device: &Device) {
    let (alarm, name) = (alarm.clone(), name.to_owned());
    device.on_failed_flush(move |why| {
        alarm(&name, &format!("flushes fail, and nothing written since is durable: {why}"));
    });
}

/// An executor for a device: with a table of request traces, if it is watched.
pub(crate) fn executor(row: &Row, plan: &Plan, watched: bool) -> Rt {
    let traces = watched.then(|| device::meter::traces(row.stages));
    let rt = device::meter::beside_traces(&Rt::live(&STD_CLOCK, traces, Log::Off));
    rt.sleep_when_idle(plan.device.idle);
    rt
}

/// Result of a check in a pass of the executor.
pub(crate) enum Look {
    Ready,
    /// Something was done: the next pass checks again.
    Busy,
    Idle,
}

/// Waits until `check` returns true.
pub(crate) async fn polled(rt: &Rt, mut check: impl FnMut() -> bool) {
    looked(rt, || if check() { Look::Ready } else { Look::Idle }).await;
}

/// Waits until `check` is ready. It is called in passes of the executor, not by a timer, which would keep an
/// idle executor from sleeping.
pub(crate) async fn looked(rt: &Rt, mut check: impl FnMut() -> Look) {
    /// Passes after which the task is polled less often, some tens of microseconds.
    const PASSES_UNTIL_PATIENT: u32 = 4_096;
    let mut passes = 0_u32;
    std::future::poll_fn(|cx| {
        match check() {
            Look::Ready => {
                rt.progress();
                return Poll::Ready(());
            }
            Look::Busy => {
                rt.progress();
                passes = 0;
            }
            Look::Idle => passes = passes.saturating_add(1),
        }
        rt.poll_again(cx, passes > PASSES_UNTIL_PATIENT);
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use testing::Folder;

    use super::*;
    use crate::Hosts;

    #[test]
    fn address_is_served_after_all_are_listed() {
        let folder = Folder::new("listed");
        let plan = Plan::open("live", &[("medium.capacity", "16 MiB")]).expect("a plan");
        let row = world::interfaces::named("nvme").expect("an interface");
        let clients: Vec<Client> =
            (0..6).map(|n| format!("c{n}={}+8", 8 * n).parse().expect("a client")).collect();
        let divided = Hosts::Clients { clients: &clients, device_threads: 2 };
        for (name, hosts) in [
            ("vfio-user", Hosts::Apart { device_threads: 1 }),
            ("vfio-user", Hosts::Sharing),
            ("vfio-user", divided),
            ("shm", divided),
        ] {
            let addresses: Vec<_> = (0..6).map(|n| folder.path(&format!("socket{n}"))).collect();
            let control = Control::watching(plan.clone()).expect("two descriptors");
            let seen = Mutex::new(Vec::new());
            let count = || seen.lock().unwrap_or_else(PoisonError::into_inner).len();
            let report = |_: &Path, what: &str| {
                if what == "waiting for a client" {
                    let listed: Vec<_> =
                        control.drives().iter().map(|drive| PathBuf::from(&drive.name)).collect();
                    seen.lock().unwrap_or_else(PoisonError::into_inner).push(listed);
                }
            };
            let front_end = crate::all().find(|row| row.name == name).expect("a front end");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while count() < addresses.len() {
                        control.stop().sleep(runtime::Span::ms(1));
                    }
                    control.stop().request();
                });
                let served = front_end.serve(row, &plan, &addresses, hosts, &control, &report);
                served.expect("it serves");
            });
            for listed in seen.into_inner().expect("no thread has panicked") {
                assert_eq!(listed, addresses, "{name}, {hosts:?}");
            }
        }
    }
}
