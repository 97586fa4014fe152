//! The measured window of a run: from the end of the jobs' ramps to the end of their last operation. All
//! figures of a result that are not the jobs' own are counted over it, as differences of snapshots.

use std::cell::RefCell;

use ::flash::chips;
use bus::link::Packets;
use ftl::{Counters, Stats};
use runtime::{Either, Rt, Span, race};
use workload::job::Job;

use crate::device::{Device, FlashStats, StateUse};
use crate::members::flash_of;
use crate::series::Sample;
use crate::trend::{Falling, Samples};

/// Counts so far, or the counts of a window.
#[derive(Clone, Default)]
pub struct Snapshot {
    /// Link and cores of a simulated world; `of` is the time so far.
    pub busy: Option<Busy>,
    /// The FTL, on the device or on the host.
    pub software: Option<Counters>,
    pub chips: Option<chips::Counts>,
    /// Use of each power state, and the present one.
    pub power: (Vec<StateUse>, usize),
    /// Live: CPU time of the host's thread.
    pub cpu: Option<Span>,
    /// Of a window: whether the write rate of flash still fell.
    pub falling: Option<Falling>,
}

impl Snapshot {
    pub(crate) fn of_devices(devices: &[Device]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.add_devices(devices);
        snapshot
    }

    /// Adds what these devices have counted.
    pub(crate) fn add_devices(&mut self, devices: &[Device]) {
        let flash = flash_of(devices);
        self.chips = flash.map(|flash| flash.chips);
        self.software = flash.and_then(|flash| flash.software).map(|stats| stats.counters);
        self.power = (devices[0].power_use(), devices[0].power_state());
    }

    /// These statistics of a whole run, with the counts of this window, where there are any.
    pub(crate) fn of_window(&self, run: FlashStats) -> FlashStats {
        let counters = |stats: Stats| self.software.unwrap_or(stats.counters);
        let software = run.software.map(|stats| Stats { counters: counters(stats), ..stats });
        FlashStats { software, chips: self.chips.unwrap_or(run.chips), ..run }
    }

    /// Counts after `before`.
    pub(crate) fn since(&self, before: &Snapshot) -> Snapshot {
        let both = |ours: Option<Span>, theirs: Option<Span>| {
            ours.zip(theirs).map(|(ours, theirs)| ours.saturating_sub(theirs))
        };
        let uses = self.power.0.iter().enumerate().map(|(state, now)| {
            let then = before.power.0.get(state).copied().unwrap_or_default();
            // The state that the window begins in counts as entered.
            let first = u64::from(state == before.power.1);
            StateUse {
                time: now.time.saturating_sub(then.time),
                entries: now.entries.saturating_sub(then.entries) + first,
            }
        });
        Snapshot {
            busy: self.busy.as_ref().zip(before.busy.as_ref()).map(|(now, then)| now.since(then)),
            software: self.software.map(|now| now.since(&before.software.unwrap_or_default())),
            chips: self.chips.map(|now| now.since(&before.chips.unwrap_or_default())),
            power: (uses.collect(), self.power.1),
            cpu: both(self.cpu, before.cpu),
            falling: None,
        }
    }

    /// The counts of two windows.
    fn and(self, next: Snapshot) -> Snapshot {
        let sum = |ours: Option<Span>, theirs: Option<Span>| {
            ours.zip(theirs).map(|(ours, theirs)| ours + theirs).or(ours).or(theirs)
        };
        let power = match self.power.0.len() {
            0 => next.power,
            _ => {
                let pairs = self.power.0.iter().zip(&next.power.0);
                let both = pairs.map(|(one, two)| StateUse {
                    time: one.time + two.time,
                    entries: one.entries + two.entries,
                });
                (both.collect(), next.power.1)
            }
        };
        Snapshot {
            busy: match (self.busy, next.busy) {
                (Some(one), Some(two)) => Some(one.and(&two)),
                (one, two) => one.or(two),
            },
            software: match (self.software, next.software) {
                (Some(one), Some(two)) => Some(one.and(two)),
                (one, two) => one.or(two),
            },
            chips: match (self.chips, next.chips) {
                (Some(one), Some(two)) => Some(one.and(two)),
                (one, two) => one.or(two),
            },
            power,
            cpu: sum(self.cpu, next.cpu),
            falling: self.falling.or(next.falling),
        }
    }
}

/// Busy times of the parts of a simulated world.
#[derive(Clone)]
pub struct Busy {
    pub of: Span,
    /// The link towards the host.
    pub up: Span,
    /// The link towards the device.
    pub down: Span,
    /// Packets towards the host and towards the device; of an array, on the links of all members.
    pub packets: (Packets, Packets),
    /// Work time of each host core.
    pub cores: Vec<Span>,
    /// Time of each host core in polls that found no completion.
    pub polling: Vec<Span>,
}

impl Busy {
    fn zip(&self, other: &Busy, with: impl Fn(Span, Span) -> Span, packets: Packed) -> Busy {
        let each = |ours: &[Span], theirs: &[Span]| {
            ours.iter().zip(theirs).map(|(ours, theirs)| with(*ours, *theirs)).collect()
        };
        Busy {
            of: with(self.of, other.of),
            up: with(self.up, other.up),
            down: with(self.down, other.down),
            packets: (
                packets(&self.packets.0, &other.packets.0),
                packets(&self.packets.1, &other.packets.1),
            ),
            cores: each(&self.cores, &other.cores),
            polling: each(&self.polling, &other.polling),
        }
    }

    fn since(&self, before: &Busy) -> Busy {
        self.zip(before, Span::saturating_sub, Packets::since)
    }

    fn and(&self, next: &Busy) -> Busy {
        self.zip(next, |one, two| one + two, Packets::and)
    }
}

type Packed = fn(&Packets, &Packets) -> Packets;

/// Additions of a world to the samples of a time series, and to snapshots.
#[derive(Clone, Copy)]
pub struct Instruments<'a> {
    pub sample: &'a dyn Fn(&mut Sample),
    pub snapshot: &'a dyn Fn(&mut Snapshot),
}

impl Instruments<'_> {
    /// Of a world that sees nothing of the device.
    pub const NONE: Instruments<'static> = Instruments { sample: &|_| (), snapshot: &|_| () };
}

/// Sums the counts of the windows of all groups of a run.
pub(crate) struct Window<'a> {
    snapshot: &'a dyn Fn() -> Snapshot,
    sum: RefCell<Option<Snapshot>>,
}

impl<'a> Window<'a> {
    pub fn new(snapshot: &'a dyn Fn() -> Snapshot) -> Window<'a> {
        Window { snapshot, sum: RefCell::default() }
    }

    /// Runs a group of jobs, and counts from `lead` after its begin to its end.
    pub async fn over<T>(&self, rt: &Rt, lead: Span, group: impl Future<Output = T>) -> T {
        let begin = |counted: &mut Option<_>| {
            let before = (self.snapshot)();
            let samples = before.software.map(Samples::new);
            *counted = Some((before, samples));
        };
        let mut counted = None;
        if lead == Span::ZERO {
            begin(&mut counted);
        }
        let watch = async {
            if counted.is_none() {
                rt.sleep(lead).await;
                begin(&mut counted);
            }
            let samples = counted.as_mut().and_then(|(_, samples)| samples.as_mut());
            let Some(samples) = samples else { return core::future::pending::<()>().await };
            loop {
                rt.sleep(samples.interval()).await;
                samples.push((self.snapshot)().software.unwrap_or_default());
            }
        };
        let done = match race(group, watch).await {
            Either::First(done) => done,
            Either::Second(()) => unreachable!("it never ends"),
        };
        if let Some((before, samples)) = counted {
            let mut counted = (self.snapshot)().since(&before);
            counted.falling = samples.and_then(|samples| samples.falling());
            let sum = self.sum.take();
            self.sum.replace(Some(match sum {
                Some(sum) => sum.and(counted),
                None => counted,
            }));
        }
        done
    }

    /// The counts of all windows; of a run that ended within its ramp, none.
    pub fn counted(&self) -> Snapshot {
        self.sum.take().unwrap_or_else(|| {
            let now = (self.snapshot)();
            now.since(&now)
        })
    }
}

/// Time from the begin of a group to that of its window: until the first of its jobs measures. A random
/// start delay counts by its least.
pub(crate) fn lead(group: &[Job]) -> Span {
    let leads = group.iter().map(|job| job.start_delay.0 + job.ramp_time);
    leads.min().unwrap_or(Span::ZERO)
}
