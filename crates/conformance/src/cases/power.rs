//! Power states: NVMe base 2.0, 8.15, 5.27.1.2 and 5.27.1.9.

use wire::Lba;
use wire::Nsid;
use wire::nvme::admin::{self, Command, Request, Select, SetFeatures};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::features::{ApstTable, AutonomousPower, PowerManagement, fid};
use wire::nvme::identify::PowerState;
use wire::nvme::io;
use wire::nvme::status::Status;
use zerocopy::IntoBytes;

use crate::bench::Bench;
use crate::case::{Section, cases};
use crate::verdict::{Verdict, hold, needs};

pub(super) const SECTIONS: &[Section] = &[Section {
    of: "NVMe base 2.0",
    number: "8.15",
    title: "power management",
    cases: cases! {
        None power_states_fall "state 0 processes commands, and no state takes more than the one before";
        None power_state_is_entered "each state that processes commands can be entered, and is read back";
        None power_state_that_there_is_not "a state above NPSS: Invalid Field";
        None idle_state_is_left_for_commands "a read ends a state in which commands are not processed";
        None transitions_without_apsta "without APSTA the feature is Invalid Field";
        None transitions_read_back "the table of autonomous transitions reads as it was set";
    },
}];

fn states(b: &Bench) -> &[PowerState] {
    &b.id.psd[..usize::from(b.id.npss.min(31)) + 1]
}

/// Maximum power of a state, in units of 0.1 mW.
fn most(state: &PowerState) -> u32 {
    let unit = if state.flags & PowerState::FINE != 0 { 1 } else { 100 };
    u32::from(state.mp.get()) * unit
}

async fn enter(b: &mut Bench, number: usize) -> Verdict {
    let value = PowerManagement::new().with_ps(number as u8).into_bits();
    b.admin_ok(&admin::set_feature(b.cid(), fid::POWER_MANAGEMENT, value)).await.map(drop)
}

async fn entered(b: &mut Bench) -> Verdict<usize> {
    let sqe = admin::get_feature(b.cid(), fid::POWER_MANAGEMENT);
    Ok(PowerManagement::from_bits(b.admin_ok(&sqe).await?).ps().into())
}

async fn power_states_fall(b: &mut Bench) -> Verdict {
    let states = states(b);
    hold!(states[0].is_operational(), "state 0 is one in which commands are not processed");
    // A power of 0 means not reported.
    let said: Vec<u32> = states.iter().map(most).filter(|most| *most > 0).collect();
    hold!(said.is_sorted_by(|a, b| a >= b), "the states take {said:?} units of 0.1 mW");
    Ok(())
}

async fn power_state_is_entered(b: &mut Bench) -> Verdict {
    for number in 0..states(b).len() {
        if states(b)[number].is_operational() {
            enter(b, number).await?;
            let found = entered(b).await?;
            hold!(found == number, "state {found} after asking for {number}");
        }
    }
    enter(b, 0).await
}

async fn power_state_that_there_is_not(b: &mut Bench) -> Verdict {
    needs!(b.id.npss < 31, "it has all 32 power states");
    let value = PowerManagement::new().with_ps(b.id.npss + 1).into_bits();
    let sqe = admin::set_feature(b.cid(), fid::POWER_MANAGEMENT, value);
    b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await
}

async fn idle_state_is_left_for_commands(b: &mut Bench) -> Verdict {
    let idle = states(b).iter().position(|state| !state.is_operational());
    needs!(idle.is_some(), "a state in which commands are not processed");
    let mut pair = b.plain_io().await?;
    enter(b, idle.unwrap_or_default()).await?;
    let at = b.pages(1)?;
    let data = b.data(at, b.block())?;
    b.ok(&mut pair, &io::read(b.cid(), b.nsid, Lba(0), 1, false, data)).await?;
    let found = entered(b).await?;
    // It may have entered an idle state again only with APST, which is not enabled.
    hold!(states(b)[found].is_operational(), "state {found} after a read");
    Ok(())
}

fn set(b: &Bench, data: DataPointer, on: bool) -> Sqe {
    let cdw11 = AutonomousPower::new().with_apste(on).into_bits();
    let set = SetFeatures { fid: fid::AUTONOMOUS_POWER, cdw11, ..SetFeatures::default() };
    Request { cid: b.cid(), nsid: Nsid::NONE, data, command: Command::SetFeatures(set) }.to_sqe()
}

async fn transitions_without_apsta(b: &mut Bench) -> Verdict {
    needs!(b.id.apsta & 1 == 0, "it goes to states by itself (APSTA)");
    let at = b.pages(1)?;
    let sqe = set(b, b.data(at, 256)?, false);
    b.admin_ends(&sqe, &[Status::INVALID_FIELD]).await
}

async fn transitions_read_back(b: &mut Bench) -> Verdict {
    needs!(b.id.apsta & 1 != 0, "it does not go to states by itself (APSTA)");
    let idle = states(b).iter().position(|state| !state.is_operational());
    needs!(idle.is_some(), "a state in which commands are not processed");
    let mut table = ApstTable::stays();
    table.go(0, idle.unwrap_or_default() as u8, 600_000);
    let (from, to) = (b.pages(1)?, b.pages(1)?);
    b.store_bytes(from, table.as_bytes());
    let sqe = set(b, b.data(from, 256)?, true);
    b.admin_ok(&sqe).await?;
    let fid = fid::AUTONOMOUS_POWER;
    let command = Command::GetFeatures { fid, select: Select::Current, cdw11: 0 };
    let data = b.data(to, 256)?;
    let sqe = Request { cid: b.cid(), nsid: Nsid::NONE, data, command }.to_sqe();
    let on = b.admin_ok(&sqe).await?;
    let found = b.bytes(to, 256);
    hold!(on & 1 == 1 && found == table.as_bytes(), "APSTE is {on}, the table {found:02x?}");
    Ok(())
}
