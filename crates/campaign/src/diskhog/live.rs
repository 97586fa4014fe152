//! diskhog on threads of the operating system: one for each core, with an executor, memory and SCSI disk of
//! its own, over queues that the policy shares under real locks. The device has another thread.
//!
//! Every thread first writes its region, so that every byte read has a known value. Threads begin together;
//! after the time they read back their regions. A writer waits for its data, also where the
//! plan's kernel writes behind: what is compared must have landed.

use std::fs;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};

use bus::HostPort;
use bus::live::{LiveHost, Shared};
use plan::Plan;
use runtime::{Either, Log, Rt, STD_CLOCK, race};
use world::device::{Clock, Device, MediumState};
use world::interfaces::{Disk, SCSI, ScsiThreads, ThreadDisks, spread_options};
use world::{self, RunError, ThreadUse, Warning, timed};

use super::data::Data;
use super::{Board, CoreStats, Hog, HogError, HogStats, HogThread, Thread, check};

/// Pause of the calling thread between two looks at the others.
const LOOK: std::time::Duration = std::time::Duration::from_millis(1);

/// Runs diskhog live, on `hog.threads` threads and one for the device.
///
/// # Errors
/// The machine cannot be built, an operation failed, or data read is not the data written.
pub fn live(plan: &Plan, hog: &Hog) -> Result<HogStats, HogError> {
    check(plan, hog)?;
    let mut plan = plan.for_clients()?;
    plan.host.cores = hog.threads;
    if let Some(sharing) = &mut plan.host.sharing {
        sharing.home = sharing.home.map(|home| home % hog.threads);
    }
    if let Some(kernel) = &mut plan.host.kernel {
        kernel.write_behind = false;
    }
    let machine = Machine {
        shared: world::shared(SCSI, &plan)?,
        plan: &plan,
        hog,
        places: places(&plan, hog)?,
        crowded: thread::available_parallelism().map_or(1, usize::from) <= hog.threads as usize,
        gates: Default::default(),
        failed: AtomicBool::new(false),
        ready: AtomicBool::new(false),
        dead: AtomicBool::new(false),
        over: AtomicBool::new(false),
    };
    thread::scope(|scope| machine.run(scope))
}

/// Requests in a thread's region.
fn places(plan: &Plan, hog: &Hog) -> Result<u64, HogError> {
    let range = plan.medium.contents.capacity_bytes / u64::from(hog.threads);
    let batch = if hog.write { u64::from(hog.batch) } else { 1 };
    let places = (hog.region_bytes.min(range) / hog.bytes).max(batch);
    if places * hog.bytes > range {
        let found = (places * hog.bytes).to_string();
        let expected = format!("at most {range}, a thread's part of the disk");
        return Err(HogError::Setting { what: "the length of a batch", found, expected });
    }
    Ok(places)
}

/// Warnings about the device's thread, and about that of the cores which waited longest for its processor.
fn warnings(device: ThreadUse, cores: &[HogThread]) -> Vec<Warning> {
    let used = cores.iter().filter_map(|thread| thread.used);
    let worst = used.max_by_key(|used| (used.waited, used.switches));
    let found = [("device", Some(device)), ("host", worst)];
    let warning = |(thread, used): (_, Option<_>)| Warning::of_thread(thread, used?);
    found.into_iter().filter_map(warning).collect()
}

/// Points that all threads pass together: their data are there, the time is over, the data were compared.
#[derive(Clone, Copy)]
enum Gate {
    Filled,
    Worked,
    Compared,
}

struct Machine<'a> {
    shared: Shared,
    plan: &'a Plan,
    hog: &'a Hog,
    places: u64,
    /// There are more threads than processors: each lets another run after every pass.
    crowded: bool,
    /// Threads that have arrived at each gate.
    gates: [AtomicU32; 3],
    failed: AtomicBool,
    /// The device serves its registers.
    ready: AtomicBool,
    /// The device's thread has ended.
    dead: AtomicBool,
    /// The device's thread is to end.
    over: AtomicBool,
}

/// Sets a flag when dropped.
struct Setting<'a>(&'a AtomicBool);

impl Drop for Setting<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Machine<'_> {
    fn run<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> Result<HogStats, HogError> {
        // Dropped before the scope waits for the device's thread.
        let over = Setting(&self.over);
        let device = spawn(scope, "device".into(), || self.device())?;
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let port = self.port(&rt, 0);
        let watch = async {
            world::until(&rt, || device.is_finished()).await;
            port.mark_gone();
            std::future::pending::<()>().await;
        };
        let stats = rt.block_on(async {
            match race(self.host(scope, &port, &device), watch).await {
                Either::First(stats) => stats,
                Either::Second(()) => unreachable!("the watch never ends"),
            }
        });
        rt.drop_tasks();
        drop(over);
        let used = joined(device)?;
        let mut stats = stats?;
        stats.warnings = warnings(used, &stats.threads);
        Ok(stats)
    }

    fn device(&self) -> Result<ThreadUse, HogError> {
        let (served, used) = timed(|| self.serve());
        served.map(|()| used)
    }

    fn serve(&self) -> Result<(), HogError> {
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let state = MediumState::to_read(self.plan)?;
        let device = Device::start(SCSI, self.shared.device(&rt), state, Clock::Wall, self.plan)?;
        self.ready.store(true, Ordering::Release);
        let is_over = || self.over.load(Ordering::Acquire) || device.is_down();
        rt.block_on(world::until(&rt, is_over));
        drop(device.switch_off());
        Ok(())
    }

    /// Port of the calling thread, number 0, or of core `part - 1`.
    fn port(&self, rt: &Rt, part: usize) -> LiveHost {
        self.shared.host_of(rt, part, self.hog.threads as usize + 1)
    }

    /// Starts the controller and the threads, and waits for them.
    async fn host<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        port: &LiveHost,
        device: &ScopedJoinHandle<'scope, Result<ThreadUse, HogError>>,
    ) -> Result<HogStats, HogError> {
        // If the device does not start, its thread returns the error.
        let is_ready = || self.ready.load(Ordering::Acquire) || device.is_finished();
        world::until(port.rt(), is_ready).await;
        let cores = self.hog.threads as u16;
        let started = ScsiThreads::start(port.clone(), self.plan, cores).await;
        let started = started.map_err(RunError::from)?;
        let disks = started.disks().clone();
        let threads = (0..self.hog.threads).map(|core| {
            let disks = disks.clone();
            spawn(scope, format!("core {core}"), move || {
                let (ended, used) = timed(|| self.core(core, &disks));
                ended.map(|(stats, thread)| (stats, HogThread { used: Some(used), ..thread }))
            })
        });
        let threads = threads.collect::<Result<Vec<_>, _>>();
        if threads.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        let threads = threads?;
        while !threads.iter().all(ScopedJoinHandle::is_finished) {
            self.dead.fetch_or(device.is_finished(), Ordering::Release);
            thread::park_timeout(LOOK);
        }
        let (mut cores, mut found) = (Vec::new(), Vec::new());
        for ended in threads.into_iter().map(joined).collect::<Vec<_>>() {
            let (stats, thread) = ended?;
            cores.push(stats);
            found.push(thread);
        }
        if disks.violations() > 0 {
            let why = format!("{} invalid completions, expected none", disks.violations());
            return Err(HogError::Thread(why));
        }
        started.stop().await.map_err(RunError::from)?;
        Ok(HogStats {
            policy: spread_options(self.plan).policy,
            shape: disks.shape(),
            measured: self.hog.time,
            cores,
            lock_waits: disks.lock_waits(),
            threads: found,
            warnings: Vec::new(),
        })
    }

    fn core(&self, core: u32, disks: &ThreadDisks) -> Result<(CoreStats, HogThread), HogError> {
        let failing = Setting(&self.failed);
        let rt = Rt::live(&STD_CLOCK, None, Log::Off);
        let port = self.port(&rt, core as usize + 1);
        let watch = async {
            while !self.failed.load(Ordering::Acquire) {
                if self.dead.load(Ordering::Acquire) {
                    port.mark_gone();
                }
                if self.crowded {
                    thread::yield_now();
                }
                rt.yield_now().await;
            }
        };
        let stats = rt.block_on(async {
            match race(self.work(&rt, &port, core, disks), watch).await {
                Either::First(stats) => stats,
                // The thread that failed returns the error.
                Either::Second(()) => Ok(Default::default()),
            }
        });
        rt.drop_tasks();
        if stats.is_ok() {
            std::mem::forget(failing);
        }
        stats
    }

    async fn work(
        &self,
        rt: &Rt,
        port: &LiveHost,
        core: u32,
        disks: &ThreadDisks,
    ) -> Result<(CoreStats, HogThread), HogError> {
        let disk = disks.disk(port, core as u16).await.map_err(RunError::from)?;
        let block_bytes = u64::from(self.plan.medium.contents.block_bytes);
        let data = Rc::new(Data::new(core, self.places, self.hog.bytes, block_bytes));
        self.pass_over(rt, port, core, &disk, &data, true).await?;
        self.pass(rt, Gate::Filled).await;
        let board = Board::new(self.hog, rt.now(), 1, vec![None; self.hog.threads as usize]);
        let (port_of, data_of) = (port.clone(), Some(data.clone()));
        let thread = Thread::new(rt, self.plan, self.hog, core, (&disk, port_of), &board, data_of);
        rt.spawn(thread.work());
        board.all_ended(rt).await?;
        self.pass(rt, Gate::Worked).await;
        self.pass_over(rt, port, core, &disk, &data, false).await?;
        // Until then other threads need this one, if it is the home of their queues.
        self.pass(rt, Gate::Compared).await;
        disks.stop();
        let stats = board.stats().swap_remove(core as usize);
        let verified_bytes = data.verified_bytes();
        Ok((stats, HogThread { id: thread_id(), verified_bytes, used: None }))
    }

    /// Writes the whole region, or reads and compares it.
    async fn pass_over(
        &self,
        rt: &Rt,
        port: &LiveHost,
        core: u32,
        disk: &Disk,
        data: &Rc<Data>,
        write: bool,
    ) -> Result<(), HogError> {
        let hog = Hog { write, ..self.hog.clone() };
        let board = Board::new(&hog, rt.now(), 1, vec![None; hog.threads as usize]);
        let (port, data_of) = (port.clone(), Some(data.clone()));
        let thread = Thread::new(rt, self.plan, &hog, core, (disk, port), &board, data_of);
        for place in 0..self.places {
            let place = if write { data.begin_write(place) } else { place };
            thread.request(place).await;
            thread.all_pieces_ended().await;
        }
        board.failed.take().map_or(Ok(()), Err)
    }

    /// Waits until all threads have arrived. They keep taking in completions for each other.
    async fn pass(&self, rt: &Rt, gate: Gate) {
        let arrived = &self.gates[gate as usize];
        arrived.fetch_add(1, Ordering::AcqRel);
        let have_all = || arrived.load(Ordering::Acquire) == self.hog.threads;
        world::until(rt, have_all).await;
    }
}

/// Identifier of the calling thread in the operating system.
fn thread_id() -> u64 {
    let link = fs::read_link("/proc/thread-self").ok();
    let name = link.and_then(|link| link.file_name()?.to_str()?.parse().ok());
    name.unwrap_or(0)
}

fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: String,
    run: impl FnOnce() -> Result<T, HogError> + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, Result<T, HogError>>, HogError> {
    let spawned = Builder::new().name(name.clone()).spawn_scoped(scope, run);
    spawned.map_err(|why| HogError::Thread(format!("thread {name:?} does not start: {why}")))
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T, HogError>>) -> Result<T, HogError> {
    let name = thread.thread().name().unwrap_or_default().to_owned();
    thread.join().unwrap_or_else(|_| Err(HogError::Thread(format!("thread {name:?} panicked"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Span;

    #[test]
    fn threads_that_lost_their_cores_are_warned_about() {
        let waited = |span| ThreadUse {
            elapsed: Span::s(1),
            cpu: None,
            waited: Some(span),
            switches: Some(0),
        };
        let core = |span| HogThread { used: Some(waited(span)), ..HogThread::default() };
        let quiet = [core(Span::ms(1)), core(Span::ms(2))];
        assert_eq!(warnings(waited(Span::ZERO), &quiet).len(), 0);
        let busy = [core(Span::ms(1)), core(Span::ms(500)), core(Span::ms(30))];
        let texts: Vec<_> =
            warnings(waited(Span::ms(40)), &busy).iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert!(texts[0].starts_with("the device thread lost its core for 4.0 %"), "{texts:?}");
        assert!(texts[1].starts_with("the host thread lost its core for 50.0 %"), "{texts:?}");
    }
}
