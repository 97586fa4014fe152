//! Power states: setting one, and autonomous transitions (NVMe base 2.0, 8.15).

use bus::HostPort;
use runtime::Span;
use wire::nvme::admin::{Command, Request, SetFeatures};
use wire::nvme::entry::DataPointer;
use wire::nvme::features::{ApstTable, AutonomousPower, PowerManagement, fid};
use wire::nvme::identify::IdentifyController;
use wire::{BusAddr, Nsid};
use zerocopy::IntoBytes;

use super::Controller;
use super::admin::Admin;
use crate::InitError;

/// Idle time before a transition, in multiples of the state's entry and exit latencies. Linux's default.
const PAYS_AFTER: u64 = 50;

/// Table of autonomous transitions: from each state to the next non-operational state below it whose entry
/// and exit latencies are at most `most` together. `None` if there is no such state.
pub(super) fn transitions(controller: &IdentifyController, most: Span) -> Option<ApstTable> {
    let (mut table, mut below) = (ApstTable::stays(), None);
    for (number, state) in (0..=controller.npss.min(31)).zip(&controller.psd).rev() {
        if let Some((to, ms)) = below {
            table.go(number, to, ms);
        }
        let us = u64::from(state.enlat.get()) + u64::from(state.exlat.get());
        if !state.is_operational() && Span::us(us) <= most {
            let ms = (us * PAYS_AFTER).div_ceil(1000).clamp(1, ApstTable::MS_MAX.into());
            below = Some((number, ms as u32));
        }
    }
    below.map(|_| table)
}

impl<P: HostPort> Admin<P> {
    /// Enables autonomous transitions.
    pub async fn let_it_save(&self, table: &ApstTable) -> Result<(), InitError> {
        let step = "Set Features: Autonomous Power State Transition";
        let buffer = self.pair.port().arena().buffer(size_of::<ApstTable>())?;
        buffer.copy_in(0, table.as_bytes());
        let prp1 = buffer.at();
        let build = |cid| {
            let cdw11 = AutonomousPower::new().with_apste(true).into_bits();
            let set = SetFeatures { fid: fid::AUTONOMOUS_POWER, cdw11, ..SetFeatures::default() };
            let data = DataPointer::Prp { prp1, prp2: BusAddr(0) };
            Request { cid, nsid: Nsid::NONE, data, command: Command::SetFeatures(set) }.to_sqe()
        };
        self.execute(step, Some(buffer), build).await.map(drop)
    }
}

impl<P: HostPort> Controller<P> {
    /// Sets the controller's power state; returns when it has been entered. It holds until an autonomous
    /// transition or a reset.
    ///
    /// # Errors
    /// As for any admin command; [`InitError::Refused`] if the controller has no such state.
    pub async fn set_power_state(&self, state: u8) -> Result<(), InitError> {
        self.core().running().await?;
        let value = PowerManagement::new().with_ps(state & 0x1f).into_bits();
        let step = "Set Features: Power Management";
        self.core().admin.set_feature(step, fid::POWER_MANAGEMENT, value).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::nvme::identify::PowerState;

    fn state(enter: u32, leave: u32, idle: bool) -> PowerState {
        let flags = if idle { PowerState::NON_OPERATIONAL } else { 0 };
        PowerState { enlat: enter.into(), exlat: leave.into(), flags, ..PowerState::default() }
    }

    #[test]
    fn apst_uses_only_lower_states_within_latency() {
        let mut controller = IdentifyController { npss: 4, ..IdentifyController::default() };
        let idle = [state(200, 800, true), state(2_000, 8_000, true)];
        controller.psd[..5].copy_from_slice(&[
            state(0, 0, false),
            state(0, 0, false),
            state(0, 0, false),
            idle[0],
            idle[1],
        ]);
        let table = transitions(&controller, Span::ms(25)).expect("two states");
        let from = |number| table.from(number);
        assert_eq!((from(0), from(2), from(3)), (Some((3, 50)), Some((3, 50)), Some((4, 500))));
        assert_eq!((from(4), from(5)), (None, None));
        let table = transitions(&controller, Span::ms(5)).expect("one state");
        assert_eq!((table.from(0), table.from(3)), (Some((3, 50)), None));
        assert_eq!(transitions(&controller, Span::us(999)), None);
    }
}
