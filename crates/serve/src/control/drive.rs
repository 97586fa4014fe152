//! A drive as its control sees it: settings, requests, and what its device thread has posted.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bus::listen::Stop;
use device::meter::{Snapshot, Totals};
use plan::Plan;
use runtime::{Rt, STD_CLOCK, Span, Time, WallClock};
use world::device::Device;
use world::interfaces::Row;

use super::polled;
use crate::net::socket::Stream;

/// Time limit for the answer of a device thread.
const ANSWER: Span = Span::s(5);
/// Interval of checks, for the answer and of a paused device.
const CHECK: Span = Span::ms(1);

pub struct Drive {
    /// The address that it is served at.
    pub(super) name: String,
    pub(super) row: &'static Row,
    /// Its files have this number as their suffix; the first has none.
    pub(super) number: u32,
    /// Name of the client of this address.
    client: String,
    pub(super) shared: bool,
    pub(super) watched: bool,
    stop: Arc<Stop>,
    asked: AtomicU32,
    done: AtomicU32,
    running: AtomicBool,
    pub(super) settings: Mutex<Settings>,
    posted: Mutex<Posted>,
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
    save: bool,
}

/// The latest counts and results of the device thread.
#[derive(Clone, Default)]
pub(super) struct Posted {
    /// Of the device that runs, or ran last.
    pub(super) now: Snapshot,
    /// Of the devices before it: there is one for each session and reset.
    pub(super) before: [Totals; 4],
    faults_now: BTreeMap<String, u64>,
    faults_before: BTreeMap<String, u64>,
    flushes_ignored: u64,
    flushes_ignored_before: u64,
    /// Statistics of flash, as lines of text.
    pub(super) flash: Vec<String>,
    /// Why the last request could not be applied.
    pub(super) failed: Option<String>,
}

impl Posted {
    pub(super) fn injected(&self, fault: &str) -> u64 {
        let of = |counts: &BTreeMap<String, u64>| counts.get(fault).copied().unwrap_or(0);
        of(&self.faults_now) + of(&self.faults_before)
    }

    pub(super) fn flushes_ignored(&self) -> u64 {
        self.flushes_ignored + self.flushes_ignored_before
    }
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
        let settings = Settings { plan, times, paused: false, powered: true, save: false };
        Drive {
            name: address.display().to_string(),
            row,
            number,
            client: String::new(),
            shared: false,
            watched,
            stop: stop.clone(),
            asked: AtomicU32::new(0),
            done: AtomicU32::new(0),
            running: AtomicBool::new(false),
            settings: Mutex::new(settings),
            posted: Mutex::default(),
            clients: Mutex::default(),
        }
    }

    /// The drive of several addresses, this one for a client of this name.
    pub(super) fn shared_by(self, client: Option<&str>) -> Drive {
        Drive { shared: true, client: client.unwrap_or_default().to_owned(), ..self }
    }

    pub(super) fn settings(&self) -> MutexGuard<'_, Settings> {
        locked(&self.settings)
    }

    pub(super) fn posted(&self) -> Posted {
        locked(&self.posted).clone()
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

    /// Asks the device thread to apply the settings and post its counts, and waits until it has.
    ///
    /// # Errors
    /// It does not answer, or cannot apply them.
    pub(super) fn ask(&self) -> Result<(), String> {
        // Release: the thread that sees the count sees the settings.
        let asked = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let since = STD_CLOCK.now();
        while self.is_running() && self.done.load(Ordering::Acquire) < asked {
            if STD_CLOCK.now().since(since) > ANSWER {
                return Err(format!("{}: no answer of the drive within {ANSWER}", self.name));
            }
            self.stop.sleep(CHECK);
            if self.stop.is_requested() {
                return Err(format!("{}: the server stops", self.name));
            }
        }
        match locked(&self.posted).failed.take() {
            Some(why) => Err(format!("{}: {why}", self.name)),
            None => Ok(()),
        }
    }

    /// Makes all that was written durable.
    pub(super) fn save(&self) -> Result<(), String> {
        self.settings().save = true;
        self.ask()
    }

    /// Cuts the power, and waits until the device has ended.
    pub(super) fn cut_power(&self) -> Result<(), String> {
        self.settings().powered = false;
        self.asked.fetch_add(1, Ordering::AcqRel);
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
        Ok(())
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
        self.running.store(true, Ordering::Release);
        Turn(self)
    }

    /// The plan for the next device, and the number of requests that it includes.
    pub(crate) fn plan(&self) -> (Plan, u32) {
        let seen = self.asked.load(Ordering::Acquire);
        (self.settings().plan.clone(), seen)
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Applies requests until the stop is requested or the power is cut. `seen` is of [`plan`](Drive::plan).
    pub(crate) async fn attend(&self, rt: &Rt, device: &Device, mut seen: u32) {
        self.post(rt, device);
        loop {
            let news = || self.asked.load(Ordering::Relaxed) != seen || self.stop.is_requested();
            polled(rt, news).await;
            if self.stop.is_requested() {
                return;
            }
            seen = self.asked.load(Ordering::Acquire);
            let (mut paused, powered, save) = self.apply(rt, device);
            if !powered {
                return;
            }
            if save {
                device.flush().await;
            }
            self.post(rt, device);
            self.done.store(seen, Ordering::Release);
            // The thread sleeps here: no task of the device goes on.
            while paused && !self.stop.is_requested() {
                self.stop.sleep(CHECK);
                let asked = self.asked.load(Ordering::Acquire);
                if asked != seen {
                    let powered;
                    (paused, powered, _) = self.apply(rt, device);
                    if !powered {
                        return;
                    }
                    self.post(rt, device);
                    seen = asked;
                    self.done.store(seen, Ordering::Release);
                }
            }
        }
    }

    /// Returns whether the drive is paused, has power, and is to save.
    fn apply(&self, rt: &Rt, device: &Device) -> (bool, bool, bool) {
        let mut settings = self.settings();
        if let Some(faults) = device.faults() {
            faults.set(rt, &settings.plan.faults);
        }
        if !settings.times.is_empty() {
            locked(&self.posted).failed = device.retime(&settings.plan).err();
        }
        (settings.paused, settings.powered, std::mem::take(&mut settings.save))
    }

    fn post(&self, rt: &Rt, device: &Device) {
        let mut posted = locked(&self.posted);
        if let Some(faults) = device.faults() {
            posted.now = faults.meter.snapshot(rt.now());
            posted.flushes_ignored = faults.harm.flushes_ignored();
            posted.faults_now = faults.counts().into_iter().collect();
        }
        posted.flash = device
            .flash_stats()
            .map_or_else(Vec::new, |stats| stats.lines(rt.now().since(Time::ZERO)));
    }

    /// Takes the counts of a device that ends.
    pub(crate) fn account(&self, rt: &Rt, device: &Device) {
        self.post(rt, device);
        let mut posted = locked(&self.posted);
        let Posted { now, before, .. } = &mut *posted;
        for (before, now) in before.iter_mut().zip(&mut now.kinds) {
            *before = before.and(std::mem::take(&mut now.totals));
        }
        for (name, count) in std::mem::take(&mut posted.faults_now) {
            *posted.faults_before.entry(name).or_default() += count;
        }
        posted.flushes_ignored_before += std::mem::take(&mut posted.flushes_ignored);
    }
}
