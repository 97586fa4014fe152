//! Power states (NVMe base 2.0, 8.15, 5.27.1.2 and 5.27.1.9): current state, transition times, and autonomous
//! transitions when idle.
//!
//! States differ in power and in transition times. All operational states have the same performance, and are
//! reported so; in the others, I/O commands wait until the controller has left them. Admin commands never
//! wait.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bus::DevicePort;
use media::Media;
use runtime::{Either, Signal, Span, Time, race};
use wire::QueueId;
use wire::nvme::admin::Request;
use wire::nvme::features::{ApstTable, AutonomousPower, PowerManagement};
use wire::nvme::identify;
use wire::nvme::status::Status;
use zerocopy::{FromZeros, IntoBytes};

use super::{Controller, slot::Slot};

/// Maximum number of power states (NVMe base 2.0, 5.17.2.1).
pub const POWER_STATES_MAX: usize = 32;

/// A power state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerState {
    /// Maximum power, mW.
    pub milliwatts: u32,
    /// Non-operational: I/O commands wait until the controller has left it.
    pub idle: bool,
    /// Entry latency.
    pub enter: Span,
    /// Exit latency.
    pub leave: Span,
}

/// The power state of a controller without configured states.
pub(super) const ONLY: PowerState =
    PowerState { milliwatts: 25_000, idle: false, enter: Span::ZERO, leave: Span::ZERO };

pub(super) struct Power {
    now: Cell<u8>,
    /// Workload hint: stored without effect.
    hint: Cell<u8>,
    /// Last operational state; the one to wake to.
    working: Cell<u8>,
    /// Time at which the current state was or will be entered.
    settled: Cell<Time>,
    /// True if I/O commands must call `is_held_by_power` before they begin.
    pub gate: Cell<bool>,
    /// Begin of the last I/O command.
    begun: Cell<Time>,
    /// Autonomous transitions, and whether they are enabled (next field).
    table: RefCell<ApstTable>,
    follows: Cell<bool>,
    changed: Signal,
}

impl Default for Power {
    fn default() -> Power {
        Power {
            now: Cell::new(0),
            hint: Cell::new(0),
            working: Cell::new(0),
            settled: Cell::new(Time::ZERO),
            gate: Cell::new(false),
            begun: Cell::new(Time::ZERO),
            table: RefCell::new(ApstTable::stays()),
            follows: Cell::new(false),
            changed: Signal::default(),
        }
    }
}

impl Power {
    /// Value of Power Management for Get Features.
    pub fn feature(&self) -> PowerManagement {
        PowerManagement::new().with_ps(self.now.get()).with_wh(self.hint.get())
    }

    /// Restores the defaults: the controller was reset, and is operational.
    pub fn reset(&self) {
        self.now.set(0);
        self.hint.set(0);
        self.working.set(0);
        self.settled.set(Time::ZERO);
        self.gate.set(false);
        self.table.replace(ApstTable::stays());
        self.follows.set(false);
    }
}

impl<P: DevicePort, M: Media> Controller<P, M> {
    fn power_states(&self) -> &[PowerState] {
        match &self.options.power_states[..] {
            [] => &[ONLY],
            states => states,
        }
    }

    /// Returns true if there is a non-operational state for autonomous transitions.
    pub(super) fn may_idle(&self) -> bool {
        self.power_states().iter().any(|state| state.idle)
    }

    /// Fills the power state descriptors. All operational states have equal performance: ranks of zero.
    pub(super) fn describe_power(&self, c: &mut identify::IdentifyController) {
        let states = self.power_states();
        for (place, state) in c.psd.iter_mut().zip(states) {
            let us = |span: Span| u32::try_from(span.0.div_ceil(Span::us(1).0)).unwrap_or(u32::MAX);
            let mut said = identify::PowerState::new_zeroed();
            said.flags = if state.idle { identify::PowerState::NON_OPERATIONAL } else { 0 };
            (said.enlat, said.exlat) = (us(state.enter).into(), us(state.leave).into());
            *place = said.with_milliwatts(state.milliwatts);
        }
        (c.npss, c.apsta) = (states.len() as u8 - 1, self.may_idle().into());
    }

    fn power_state(&self, number: u8) -> PowerState {
        self.power_states()[usize::from(number)]
    }

    /// Begins the transition to a state.
    fn begin_state(&self, to: u8) {
        let (power, from) = (&self.features.power, self.features.power.now.get());
        let takes = self.power_state(from).leave.0 + self.power_state(to).enter.0;
        let begin = power.settled.get().max(self.rt.now());
        power.settled.set(begin + Span(takes));
        self.faults.meter.power.enter(to.into(), begin, power.settled.get());
        power.now.set(to);
        if !self.power_state(to).idle {
            power.working.set(to);
        }
        power.gate.set(true);
        self.rt.log("device", "power state", to.into(), takes);
        power.changed.notify(&self.rt);
    }

    /// An I/O command begins: returns true if it must wait.
    #[cold]
    pub(super) fn is_held_by_power(&self) -> bool {
        let power = &self.features.power;
        power.begun.set(self.rt.now());
        let held = self.power_state(power.now.get()).idle || self.rt.now() < power.settled.get();
        power.gate.set(held || power.follows.get());
        held
    }

    /// Returns when the controller is in an operational state.
    pub(super) async fn awake(&self) {
        loop {
            let power = &self.features.power;
            if self.power_state(power.now.get()).idle {
                self.begin_state(power.working.get());
            }
            let settled = power.settled.get();
            if self.rt.now() >= settled {
                break;
            }
            self.rt.sleep_until(settled).await;
        }
        if let Some(stage) = self.stages.power {
            self.rt.record(stage);
        }
    }

    /// Set Features: changes the state. Returns when it has been entered.
    pub(super) async fn set_power(&self, wanted: PowerManagement) -> Result<u32, Status> {
        if usize::from(wanted.ps()) >= self.power_states().len() {
            return Err(Status::INVALID_FIELD);
        }
        self.features.power.hint.set(wanted.wh());
        if wanted.ps() != self.features.power.now.get() {
            self.begin_state(wanted.ps());
        }
        let settled = self.features.power.settled.get();
        if self.rt.now() < settled {
            self.rt.sleep_until(settled).await;
        }
        Ok(0)
    }

    /// Set Features: autonomous transitions.
    pub(super) async fn set_transitions(
        &self,
        number: u16,
        request: &Request,
        cdw11: u32,
    ) -> Result<u32, Status> {
        if !self.may_idle() {
            return Err(Status::INVALID_FIELD);
        }
        let mut table = ApstTable::stays();
        self.receive(number, &request.data, table.as_mut_bytes()).await?;
        let states = self.power_states();
        let there = |to: u8| states.get(usize::from(to)).is_some_and(|state| state.idle);
        let sense = |from| table.from(from).is_none_or(|(to, _)| there(to));
        if !(0..states.len() as u8).all(sense) {
            return Err(Status::INVALID_FIELD);
        }
        let follows = AutonomousPower::from_bits(cdw11).apste();
        self.features.power.table.replace(table);
        self.features.power.follows.set(follows);
        self.features.power.gate.set(true);
        self.features.power.changed.notify(&self.rt);
        Ok(0)
    }

    /// Get Features: autonomous transitions, as they are or by default.
    pub(super) async fn get_transitions(
        &self,
        number: u16,
        request: &Request,
        current: bool,
    ) -> Result<u32, Status> {
        let power = &self.features.power;
        let (table, follows) = match current {
            true => (*power.table.borrow(), power.follows.get()),
            false => (ApstTable::stays(), false),
        };
        self.answer(number, request.data, table.as_bytes()).await?;
        Ok(AutonomousPower::new().with_apste(follows).into_bits())
    }

    /// Task of autonomous transitions, after the configured idle time without I/O commands.
    pub(super) async fn follow_transitions(self: Rc<Self>) {
        let (power, works) = (&self.features.power, |slot: &Slot| {
            slot.busy.get().is_some_and(|(qid, _)| qid != QueueId::ADMIN)
        });
        let (mut since, mut begun) = (self.rt.now(), power.begun.get());
        loop {
            let (quiet, changed) = (self.slots.quiet.version(), power.changed.version());
            let next = power.table.borrow().from(power.now.get()).filter(|_| power.follows.get());
            let Some((to, ms)) = next else {
                power.changed.changed(&self.rt, changed).await;
                since = self.rt.now();
                continue;
            };
            if self.slots.iter().any(works) || power.begun.get() != begun {
                // A command is or was in execution: restart the idle time.
                (since, begun) = (self.rt.now(), power.begun.get());
                if self.slots.iter().any(works) {
                    self.slots.quiet.changed(&self.rt, quiet).await;
                    continue;
                }
            }
            let due = since.max(power.settled.get()) + Span::ms(ms.into());
            if self.rt.now() >= due {
                self.begin_state(to);
                continue;
            }
            let news = race(
                self.slots.quiet.changed(&self.rt, quiet),
                power.changed.changed(&self.rt, changed),
            );
            match race(self.rt.sleep_until(due), news).await {
                Either::First(()) | Either::Second(_) => {}
            }
        }
    }
}
