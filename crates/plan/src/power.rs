//! The table `[power]`: the controller's power states, and whether the driver lets it go to them by itself.
//! Without it there is one state, in which the controller works.

use device::nvme::{POWER_STATES_MAX, PowerState};
use runtime::Span;

use super::fields::{Fields, Source};

/// The most that a state may take: what Identify can say (NVMe base 2.0, 5.17.2.1).
const MILLIWATTS_MAX: u64 = 655_350;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Power {
    /// By falling power, the first of them one in which commands are processed.
    pub states: Vec<PowerState>,
    /// The driver lets the controller go by itself to states that are left and entered within this; none: it
    /// stays where it is.
    pub saving: Option<Span>,
}

pub(super) fn read(fields: Fields<'_>) -> Option<Power> {
    let tables = fields.tables("states");
    let some = (1..=POWER_STATES_MAX).contains(&tables.len());
    if !some {
        let found = format!("{} states", tables.len());
        fields.error("states", found, format!("1 to {POWER_STATES_MAX} tables [[power.states]]"));
    }
    let states: Vec<Option<PowerState>> = tables.into_iter().map(state).collect();
    let saves = fields.has("saving");
    let most = Span::s(10);
    let saving = if saves {
        fields.span("saving", Source::Welcome, Span::us(1)..=most)
    } else {
        Some(Span::ZERO)
    };
    let states: Option<Vec<PowerState>> = states.into_iter().collect();
    if let Some(states) = &states
        && some
    {
        if states[0].idle {
            let expected = "false: the controller begins in it, and has to work";
            fields.error("states.0.idle", "true", expected);
        }
        if states.windows(2).any(|two| two[0].milliwatts < two[1].milliwatts) {
            let expected = "states by falling power (NVMe base 2.0, 8.15)";
            fields.error("states", "one that takes more than the one before it", expected);
        }
    }
    fields.done();
    let saving = Some(saving?).filter(|saving| *saving > Span::ZERO);
    Some(Power { states: states?, saving })
}

fn state(fields: Fields<'_>) -> Option<PowerState> {
    let milliwatts = fields.number("milliwatts", Source::Due, 0..=MILLIWATTS_MAX);
    let idle = fields.boolean("idle");
    let (enter, leave) = (fields.cost("enter"), fields.cost("leave"));
    fields.done();
    Some(PowerState { milliwatts: milliwatts? as u32, idle: idle?, enter: enter?, leave: leave? })
}
