//! The table `[power]`: the controller's power states, and autonomous transitions between them. Without it
//! there is one operational state.

use device::nvme::{POWER_STATES_MAX, PowerState};
use runtime::Span;

use super::fields::{Fields, Source};

/// Maximum power of a state in the Identify data (NVMe base 2.0, 5.17.2.1).
const MILLIWATTS_MAX: u64 = 655_350;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Power {
    /// States in order of decreasing power. The first one is operational.
    pub states: Vec<PowerState>,
    /// The driver enables autonomous transitions to states whose entry and exit latencies sum to at most
    /// this; none: off.
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
    let saving =
        fields.given("saving", |key| fields.span(key, Source::Optional, Span::us(1)..=Span::s(10)));
    let states: Option<Vec<PowerState>> = states.into_iter().collect();
    if let Some(states) = &states
        && some
    {
        if states[0].idle {
            let expected = "false: the initial state must be operational";
            fields.error("states.0.idle", "true", expected);
        }
        if states.windows(2).any(|two| two[0].milliwatts < two[1].milliwatts) {
            let expected = "states in order of decreasing power (NVMe base 2.0, 8.15)";
            fields.error("states", "a state with more power than the previous one", expected);
        }
    }
    fields.done();
    Some(Power { saving: saving?, states: states? })
}

fn state(fields: Fields<'_>) -> Option<PowerState> {
    let milliwatts = fields.number("milliwatts", Source::Required, 0..=MILLIWATTS_MAX);
    let idle = fields.boolean("idle");
    let (enter, leave) = (fields.cost("enter"), fields.cost("leave"));
    fields.done();
    Some(PowerState { milliwatts: milliwatts? as u32, idle: idle?, enter: enter?, leave: leave? })
}
