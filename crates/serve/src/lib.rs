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
//!
//! One device may be behind several addresses ([`Hosts`]): shared whole by its hosts, or divided among
//! clients ([`Client`]), each of which reaches its own blocks, queues and memory alone.
//!
//! A server outlives its clients, and each has limits. Clients of one process share its mappings, which are
//! divided among its sockets. A thread that cannot be created costs one client. An NBD client is read by a
//! thread of its own, with a limit on its requests in flight, so that it delays no other.
//!
//! ```
//! use serve::disk::{Disk, Operation};
//!
//! let disk = Disk::start("nvme", 16 << 20)?;
//! let (client, done) = disk.client();
//! client.begin(1, 4096, Operation::Write(vec![7; 4096]), true)?;
//! assert!(done.recv()?.result.is_ok());
//! client.begin(2, 4096, Operation::Read(4096), false)?;
//! assert_eq!(done.recv()?.result?, [7; 4096]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod control;
pub mod disk;
mod events;
mod extents;
mod front_end;
pub mod front_ends;
mod in_flight;
mod lifecycle;
mod lives;
mod net;
mod one_device;
mod one_thread;

pub use control::{Control, ControlSocket, Metrics, Page};
pub use events::Events;
pub use extents::{Client, ClientError};
pub use front_end::{Addresses, FrontEnd, Hosts, Job, Limits};
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
    row.require_live()?;
    device::check(row, plan)?;
    plan.for_clients().map_err(RunError::of)
}

/// Creates the medium of a plan, with its journal.
fn medium(plan: &Plan) -> Result<MediumState, RunError> {
    let mut medium = MediumState::new(plan)?;
    medium.keep_journal(plan)?;
    lives::begin(plan)?;
    Ok(medium)
}
