//! Front ends: live devices for clients in other processes.
//!
//! ```text
//!   doorbell run --socket ──── shm ─────────┐
//!   QEMU, SPDK, any VFIO user ─ vfio-user ──┼── a device of any interface, live, with its medium
//!   Linux, qemu, fio, libnbd ── nbd ────────┘
//! ```
//!
//! [`all`] lists the front ends. Each is a module with a row, a [`FrontEnd`]: the name of its flag, the form
//! of its addresses, its [`Limits`], and [`serve`](FrontEnd::serve). They share the life cycle
//! (`lifecycle`), the event reports ([`Events`]), and the listening sockets (`net`).
//!
//! Not here: wire protocols (`wire`), the shared-memory and vfio-user transports (`bus`), and devices
//! (`world`).

pub mod disk;
mod events;
mod front_end;
pub mod front_ends;
mod in_flight;
mod lifecycle;
mod net;
mod one_thread;

pub use events::Events;
pub use front_end::{Addresses, FrontEnd, Job, Limits};
pub use front_ends::all;
pub use one_thread::in_one_thread;

use plan::Plan;
use world::RunError;
use world::device::{self, MediumState};
use world::interfaces::Row;

/// Returns the plan for a served device, validated against this interface. Every front end calls this before
/// it creates a medium.
///
/// # Errors
/// The plan lacks settings that the interface needs, or its medium keeps only stamps instead of client data.
pub fn plan_for_clients(row: &'static Row, plan: &Plan) -> Result<Plan, RunError> {
    row.check_live().map_err(RunError)?;
    device::check(row, plan)?;
    plan.for_clients().map_err(RunError::of)
}

/// Creates the medium of a plan, with its journal.
fn medium(plan: &Plan) -> Result<MediumState, RunError> {
    let mut medium = MediumState::new(plan)?;
    medium.keep_journal(plan)?;
    Ok(medium)
}
