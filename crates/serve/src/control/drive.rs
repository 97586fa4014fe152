//! A drive as its control sees it: settings, requests, and what its device thread has posted.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bus::listen::Stop;
use device::faults::Faults;
use device::life::Life;
use device::nvme::serial_of;
use plan::Plan;
use runtime::{Rt, STD_CLOCK, Span, Time, WallClock};
use world::ChangeError;
use world::device::{Copied, Device, copy_to_file};
use world::interfaces::Row;

use super::posted::{Place, Posted};
use super::{Alarm, Look, looked};
use crate::lives;
use crate::net::socket::Stream;

/// Time limit for the answer of all device threads.
const ANSWER: Span = Span::s(5);
/// Interval of checks, for the answer and of a paused device.
pub(super) const CHECK: Span = Span::ms(1);

pub struct Drive {
    /// The address that it is served at.
    pub(super) name: String,
    pub(super) row: &'static Row,
    /// Its files have this number as their suffix; the first has none.
    pub(super) number: u32,
    /// Name of the client of this address.
    client: String,
    pub(super) shared: bool,
    /// Shared, and this client has an extent of its own.
    pub(super) divided: bool,
    pub(super) watched: bool,
    pub(super) stop: Arc<Stop>,
    alarm: Option<Alarm>,
    pub(super) asked: AtomicU32,
    running: AtomicBool,
    /// [`Settings::cuts`] with which the devices that run began.
    cuts_at_turn: AtomicU32,
    /// A copy is being made.
    copies: AtomicBool,
    /// Of the copy: the longest time that commands waited for it, nanoseconds.
    pause_ns: AtomicU64,
    request: Mutex<()>,
    pub(super) settings: Mutex<Settings>,
    /// One for each device thread.
    places: Box<[Place]>,
    clients: Mutex<Clients>,
}

/// Settings that requests change, for the next look of the device thread.
pub(super) struct Settings {
    /// The plan, with the faults and times that it has now.
    pub(super) plan: Plan,
    /// Keys that were set, of `medium.timing`.
    pub(super) times: BTreeMap<String, String>,
    pub(super) paused: bool,
    pub(super) powered: bool,
    /// Number of power cuts, modulo 2^32.
    cuts: u32,
    save: bool,
    /// Receives the copy that is to begin.
    copy: Option<Sender<Result<Copied, ChangeError>>>,
    /// Program/erase cycles and years that are to be added.
    wear: Option<(u32, u32)>,
}

/// A copy that was written.
pub(super) struct Fork {
    pub(super) bytes: u64,
    /// Serial number of the drive that the copy is.
    pub(super) serial: String,
    /// Longest time that commands waited for it, and the time until it was written.
    pub(super) pause: Span,
    pub(super) took: Span,
}

#[derive(Default)]
struct Clients {
    next: u64,
    connected: BTreeMap<u64, Connected>,
    accepted: u64,
}

struct Connected {
    name: String,
    since: Time,
    stream: Option<Arc<Stream>>,
}

/// A connected client; dropped when it has left.
pub(crate) struct Entered<'a> {
    drive: &'a Drive,
    number: u64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.drive.clients().connected.remove(&self.number);
    }
}

/// A device that runs, as long as this lives.
pub(crate) struct Turn<'a>(&'a Drive);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.running.store(false, Ordering::Release);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drive {
    pub(super) fn new(
        row: &'static Row,
        address: &Path,
        plan: Plan,
        number: u32,
        watched: bool,
        stop: &Arc<Stop>,
    ) -> Drive {
        let times = BTreeMap::new();
        let settings = Settings {
            plan,
            times,
            paused: false,
            powered: true,
            cuts: 0,
            save: false,
            copy: None,
            wear: None,
        };
        Drive {
            name: address.display().to_string(),
            row,
            number,
            client: String::new(),
            shared: false,
            divided: false,
            watched,
            stop: stop.clone(),
            alarm: None,
            asked: AtomicU32::new(0),
            running: AtomicBool::new(false),
            cuts_at_turn: AtomicU32::new(0),
            copies: AtomicBool::new(false),
            pause_ns: AtomicU64::new(0),
            request: Mutex::default(),
            settings: Mutex::new(settings),
            places: Box::new([Place::default()]),
            clients: Mutex::default(),
        }
    }

    /// The drive of several addresses, this one for a client of this name.
    pub(super) fn shared_by(self, client: Option<&str>) -> Drive {
        let divided = client.is_some();
        Drive { shared: true, divided, client: client.unwrap_or_default().to_owned(), ..self }
    }

    /// The drive, with this number of device threads.
    pub(super) fn on_threads(self, threads: usize) -> Drive {
        Drive { places: (0..threads).map(|_| Place::default()).collect(), ..self }
    }

    /// The drive, which reports flushes that fail.
    pub(super) fn alarming(self, alarm: &Alarm) -> Drive {
        Drive { alarm: Some(alarm.clone()), ..self }
    }

    /// Reports the first flush of a device that fails.
    pub(crate) fn watch_flushes(&self, device: &Device) {
        if let Some(alarm) = &self.alarm {
            super::watch_flushes(alarm, &self.name, device);
        }
    }

    /// Number of threads that its queues are dealt to.
    pub(super) fn device_threads(&self) -> usize {
        self.places.len()
    }

    /// The place of a device thread, from 0.
    pub(super) fn place(&self, number: usize) -> &Place {
        &self.places[number]
    }

    /// The right to change settings and ask: one request at a time, so that what is applied, and what fails,
    /// is that request's. It has it for [`ANSWER`] at most.
    pub(super) fn request(&self) -> MutexGuard<'_, ()> {
        locked(&self.request)
    }

    pub(super) fn settings(&self) -> MutexGuard<'_, Settings> {
        locked(&self.settings)
    }

    pub(super) fn posted(&self) -> Posted {
        Place::sum(&self.places)
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        locked(&self.clients)
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Name and time of connection of each client.
    pub(super) fn connected(&self) -> Vec<(String, Time)> {
        let clients = self.clients();
        clients.connected.values().map(|client| (client.name.clone(), client.since)).collect()
    }

    /// Number of clients since the start.
    pub(super) fn accepted(&self) -> u64 {
        self.clients().accepted
    }

    /// Asks all device threads to apply the settings and post their counts, and waits until they have.
    ///
    /// # Errors
    /// One does not answer, or cannot apply them.
    pub(super) fn ask(&self) -> Result<(), String> {
        // Release: the thread that sees the count sees the settings.
        let asked = self.asked.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        self.wake();
        let since = STD_CLOCK.now();
        while self.is_running() && !self.places.iter().all(|place| place.has_done(asked)) {
            if STD_CLOCK.now().since(since) > ANSWER {
                return Err(format!("{}: no answer of the drive within {ANSWER}", self.name));
            }
            self.stop.sleep(CHECK);
            if self.stop.is_requested() {
                return Err(format!("{}: the server stops", self.name));
            }
        }
        let failed = self.place(0).posted().failed.take();
        match failed {
            Some(why) => Err(format!("{}: {why}", self.name)),
            None => Ok(()),
        }
    }

    /// Makes all that was written durable.
    pub(crate) fn save(&self) -> Result<(), String> {
        self.must_run()?;
        self.settings().save = true;
        self.ask()
    }

    /// Wears flash by program/erase cycles and years.
    pub(super) fn wear(&self, cycles: u32, years: u32) -> Result<(), String> {
        self.must_run()?;
        self.settings().wear = Some((cycles, years));
        self.ask()
    }

    fn must_run(&self) -> Result<(), String> {
        match self.is_running() {
            true => Ok(()),
            false => Err(format!("{}: the drive is off, expected a client or power", self.name)),
        }
    }

    /// Copies the state to a new file while the drive goes on, and waits until that is written.
    pub(super) fn fork(&self, path: &Path) -> Result<Fork, String> {
        self.must_run()?;
        if self.copies.swap(true, Ordering::AcqRel) {
            return Err(format!("{}: another fork is being written, expected its end", self.name));
        }
        let forked = self.copy_to(path);
        self.copies.store(false, Ordering::Release);
        forked
    }

    fn copy_to(&self, path: &Path) -> Result<Fork, String> {
        let (since, (to, begun)) = (STD_CLOCK.now(), channel());
        self.pause_ns.store(0, Ordering::Relaxed);
        {
            let _request = self.request();
            self.settings().copy = Some(to);
            let asked = self.ask();
            self.settings().copy = None;
            asked?;
        }
        let ended = || format!("{}: the drive has ended before its copy", self.name);
        let copied = begun.try_recv().map_err(|_| ended())?;
        let copied = copied.map_err(|error| error.to_string())?;
        let bytes = copy_to_file(copied, path).map_err(|error| error.to_string())?;
        let number = lives::drawn().map_err(|error| error.to_string())?;
        Life::found(path, number).map_err(|error| error.to_string())?;
        let serial = serial_of(number);
        let pause = Span::ns(self.pause_ns.load(Ordering::Relaxed));
        Ok(Fork { bytes, serial, pause, took: STD_CLOCK.now().since(since) })
    }

    /// Cuts the power, and waits until the device has ended.
    pub(super) fn cut_power(&self) -> Result<(), String> {
        self.switch_off();
        let since = STD_CLOCK.now();
        while self.is_running() {
            if STD_CLOCK.now().since(since) > ANSWER {
                return Err(format!("{}: no end of the drive within {ANSWER}", self.name));
            }
            self.stop.sleep(CHECK);
        }
        for client in self.clients().connected.values() {
            client.stream.iter().for_each(|stream| stream.end());
        }
        let life = self.settings().plan.device.life.clone();
        let saved = life.map_or(Ok(()), |life| life.power_off(STD_CLOCK.now(), false));
        saved.map_err(|error| format!("{}: the power is off, {error}", self.name))
    }

    /// Turns the power on. Returns true if it was.
    pub(super) fn restore_power(&self) -> Result<bool, String> {
        let mut settings = self.settings();
        let on = |life: &Arc<Life>| life.power_on(STD_CLOCK.now());
        settings.plan.device.life.as_ref().map_or(Ok(()), on).map_err(|error| error.to_string())?;
        Ok(std::mem::replace(&mut settings.powered, true))
    }

    pub(super) fn switch_off(&self) {
        let mut settings = self.settings();
        settings.powered = false;
        settings.cuts = settings.cuts.wrapping_add(1);
        drop(settings);
        self.asked.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    /// Wakes device threads that sleep, to look for what was asked before.
    fn wake(&self) {
        self.places.iter().for_each(Place::wake);
    }

    /// Whether the power was cut since the devices that run began, or before: the same for all their threads,
    /// also if it was restored before some of them looked.
    pub(super) fn is_cut(&self) -> bool {
        self.settings().cuts != self.cuts_at_turn.load(Ordering::Acquire)
    }

    pub(crate) fn enter(&self, stream: Option<&Arc<Stream>>) -> Entered<'_> {
        let network = stream.and_then(|stream| stream.network());
        let name = network.map_or_else(|| self.client.clone(), |network| network.to_string());
        let mut clients = self.clients();
        let number = clients.next;
        (clients.next, clients.accepted) = (number + 1, clients.accepted + 1);
        let (since, stream) = (STD_CLOCK.now(), stream.cloned());
        clients.connected.insert(number, Connected { name, since, stream });
        Entered { drive: self, number }
    }

    pub(crate) fn is_powered(&self) -> bool {
        self.settings().powered
    }

    pub(super) fn is_paused(&self) -> bool {
        self.settings().paused
    }

    /// Waits until the drive has power. Returns false if the stop was requested first.
    pub(crate) fn wait_for_power(&self) -> bool {
        while !self.is_powered() {
            if !self.stop.sleep(Span::ms(10)) {
                return false;
            }
        }
        !self.stop.is_requested()
    }

    /// Devices run from now until the turn is dropped.
    pub(crate) fn turn(&self) -> Turn<'_> {
        let settings = self.settings();
        let cuts = settings.cuts.wrapping_sub(u32::from(!settings.powered));
        self.cuts_at_turn.store(cuts, Ordering::Release);
        self.running.store(true, Ordering::Release);
        drop(settings);
        Turn(self)
    }

    /// The plan for the next device, and the number of requests that it includes. One that the device itself
    /// has to apply, because none ran when it came, is none of them.
    pub(crate) fn plan(&self) -> (Plan, u32) {
        let seen = self.asked();
        let settings = self.settings();
        let has_work = settings.save || settings.copy.is_some() || settings.wear.is_some();
        let runs = settings.powered && !settings.paused && !has_work;
        (settings.plan.clone(), if runs { seen } else { seen.wrapping_sub(1) })
    }

    /// Number of requests so far, modulo 2^32. Acquire: the thread that sees one sees its settings.
    pub(super) fn asked(&self) -> u32 {
        self.asked.load(Ordering::Acquire)
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Applies requests until the stop is requested or the power is cut. `seen` is of [`plan`](Drive::plan).
    pub(crate) async fn attend(&self, rt: &Rt, device: &Device, mut seen: u32) {
        self.place(0).wakes_this_thread();
        self.post(rt, device);
        // A request that came while the device was started is waited for.
        self.place(0).set_done(seen);
        loop {
            looked(rt, || self.look(device, seen)).await;
            if self.stop.is_requested() {
                return;
            }
            seen = self.asked();
            let mut next = self.apply(rt, device);
            if !next.powered {
                return;
            }
            if next.save {
                let failed = device.save().await.err();
                let mut posted = self.place(0).posted();
                posted.failed = posted.failed.take().or(failed);
            } else if next.copy.is_some() {
                device.flush().await;
            }
            if let Some(to) = next.copy.take() {
                let copied = self.timed(|| device.copy());
                // Without a receiver the request has been given up.
                let _ = to.send(copied);
            }
            self.post(rt, device);
            self.place(0).set_done(seen);
            // The thread sleeps here: no task of the device goes on.
            while next.paused && !self.stop.is_requested() {
                if !self.continue_copy(device) {
                    self.stop.sleep(CHECK);
                }
                let asked = self.asked();
                if asked != seen {
                    next = self.apply(rt, device);
                    if !next.powered {
                        return;
                    }
                    self.post(rt, device);
                    seen = asked;
                    self.place(0).set_done(seen);
                }
            }
        }
    }

    /// As [`attend`](Drive::attend), for the controller of one of the clients that share a device.
    pub(crate) async fn attend_one(&self, rt: &Rt, faults: &Rc<Faults>, mut seen: u32) {
        self.place(0).wakes_this_thread();
        loop {
            self.place(0).post(rt, faults);
            self.place(0).set_done(seen);
            super::polled(rt, || self.asked.load(Ordering::Relaxed) != seen).await;
            seen = self.asked();
            faults.set(rt, &self.settings().plan.faults);
        }
    }

    fn look(&self, device: &Device, seen: u32) -> Look {
        if self.asked.load(Ordering::Relaxed) != seen || self.stop.is_requested() {
            Look::Ready
        } else if self.continue_copy(device) {
            Look::Busy
        } else {
            Look::Idle
        }
    }

    fn continue_copy(&self, device: &Device) -> bool {
        self.copies.load(Ordering::Relaxed) && self.timed(|| device.copy_some())
    }

    /// Runs a part of a copy, and notes the longest.
    fn timed<T>(&self, part: impl FnOnce() -> T) -> T {
        let since = STD_CLOCK.now();
        let result = part();
        let ns = STD_CLOCK.now().since(since).as_ns();
        self.pause_ns.fetch_max(ns, Ordering::Relaxed);
        result
    }

    fn apply(&self, rt: &Rt, device: &Device) -> Next {
        let mut settings = self.settings();
        if let Some(faults) = device.faults() {
            faults.set(rt, &settings.plan.faults);
        }
        let mut failed = None;
        if !settings.times.is_empty() {
            failed = device.retime(&settings.plan).err().map(|error| error.to_string());
        }
        if let Some((cycles, years)) = settings.wear.take() {
            let worn = device.wear_out(cycles, years).map_err(|error| error.to_string());
            failed = failed.or(worn.err());
        }
        self.place(0).posted().failed = failed;
        let Settings { paused, powered, .. } = *settings;
        let (save, copy) = (std::mem::take(&mut settings.save), settings.copy.take());
        Next { paused, powered, save, copy }
    }

    fn post(&self, rt: &Rt, device: &Device) {
        if let Some(faults) = device.faults() {
            self.place(0).post(rt, faults);
        }
        let mut posted = self.place(0).posted();
        posted.dies = device.dies();
        posted.flash = device
            .flash_stats()
            .map_or_else(Vec::new, |stats| stats.lines(rt.now().since(Time::ZERO)));
    }

    /// Takes the counts of a controller that ends.
    pub(crate) fn account_one(&self, rt: &Rt, faults: &Faults) {
        self.place(0).post(rt, faults);
        self.place(0).add_to_before();
    }

    /// Takes the counts of a device that ends.
    pub(crate) fn account(&self, rt: &Rt, device: &Device) {
        self.post(rt, device);
        self.place(0).add_to_before();
    }
}

/// Work of a device thread after a request.
struct Next {
    paused: bool,
    powered: bool,
    save: bool,
    copy: Option<Sender<Result<Copied, ChangeError>>>,
}

#[cfg(test)]
mod tests {
    use bus::live::Shared;
    use runtime::{Log, race};
    use wire::BusAddr;
    use world::device::Clock;
    use world::interfaces::NVME;

    use super::*;

    /// A request may come during a reset of the function, between two devices.
    #[test]
    fn request_is_answered_by_a_device_that_starts_after_it() {
        let plan = Plan::open("live", &[("medium.capacity", "1 MiB")]).expect("a plan");
        let stop = Arc::new(Stop::new().expect("two descriptors"));
        for saves in [false, true] {
            let drive = Drive::new(NVME, Path::new("drive"), plan.clone(), 0, true, &stop);
            let _turn = drive.turn();
            std::thread::scope(|scope| {
                let asked = scope.spawn(|| if saves { drive.save() } else { drive.ask() });
                while drive.asked() == 0 {
                    std::thread::yield_now();
                }
                let rt = Rt::live(&STD_CLOCK, None, Log::Off);
                let (_, seen) = drive.plan();
                let bytes = (NVME.register_bytes)(&plan);
                let shared = Shared::between_threads(4096, BusAddr(1 << 32), bytes);
                let port = shared.expect("memory").device(&rt);
                let kept = crate::medium(&plan).expect("a medium");
                let device = Device::start_with(NVME, port, kept, Clock::Wall, &plan, true);
                let device = device.expect("a device");
                let answered = world::until(&rt, || asked.is_finished());
                rt.block_on(race(answered, drive.attend(&rt, &device, seen)));
                assert_eq!(asked.join().expect("no panic"), Ok(()), "saves: {saves}");
            });
            assert!(!drive.settings().save, "it was saved");
        }
    }
}
