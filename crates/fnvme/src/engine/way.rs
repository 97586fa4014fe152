//! Way from the engine's thread to its drive.

use bus::live::{self, Shared};
use bus::vfio::{self, Function};
use bus::vfio_user::{self, Connection, Sharing};
use bus::{Memory, live::LiveHost};
use runtime::Rt;

use super::Drive;
use plan::{Completion, Plan};
use serve::plan_for_clients;
use world::interfaces::FASTPATH;
use world::{self, RunError, until};

/// Interrupt vectors in use: the admin queue's, and one for all I/O queues.
const VECTORS: u16 = 2;

/// A drive that the engine can be connected to.
pub(super) enum Way {
    /// By memory shared with a thread of this process: the engine's own, if `with_drive`.
    Here { shared: Shared, with_drive: bool },
    /// By memory shared with another process.
    Served(Shared, live::Client),
    /// A function of another process.
    VfioUser(Connection),
    /// A function of this machine. The engine's thread opens it, as its port belongs to that thread.
    Vfio { address: String, wanted: vfio::Wanted },
}

impl Way {
    /// Connects to the drive, as far as any thread can, and returns the plan to drive it by.
    pub fn to(drive: &Drive, plan: &Plan) -> Result<(Way, Plan), RunError> {
        let (bytes, base) = (plan.host.memory_bytes as usize, plan.host.memory_base);
        if let Drive::Here { own_thread } = drive {
            let plan = plan_for_clients(FASTPATH, plan)?;
            let shared = world::shared(FASTPATH, &plan)?;
            return Ok((Way::Here { shared, with_drive: !own_thread }, plan));
        }
        (FASTPATH.check)(plan)?;
        let way = match drive {
            Drive::Here { .. } => unreachable!("returned above"),
            Drive::Served(path) => {
                let (shared, far) = live::connect(path, bytes, base)?;
                Way::Served(shared, far)
            }
            Drive::VfioUser(path) => {
                let kind = FASTPATH.require_kind(plan)?;
                Way::VfioUser(vfio_user::connect(path, kind, bytes, base, Sharing::Mapped)?)
            }
            Drive::Vfio(address) => {
                let kind = FASTPATH.require_kind(plan)?;
                let vectors = match plan.host.completion {
                    Completion::Polled | Completion::Hybrid => 0,
                    Completion::Interrupt => VECTORS,
                };
                let wanted = vfio::Wanted { kind, memory_bytes: bytes, memory_base: base, vectors };
                Way::Vfio { address: address.clone(), wanted }
            }
        };
        Ok((way, plan.clone()))
    }

    /// Memory and registers shared with a drive of this process.
    pub fn shared(&self) -> Option<&Shared> {
        match self {
            Way::Here { shared, .. } => Some(shared),
            _ => None,
        }
    }

    /// True if the drive runs on the engine's thread.
    pub fn with_drive(&self) -> bool {
        matches!(self, Way::Here { with_drive: true, .. })
    }

    /// Host port for the engine's thread.
    pub fn host(self, rt: &Rt) -> Result<LiveHost, RunError> {
        match self {
            Way::Here { shared, .. } => Ok(shared.host(rt)),
            Way::Served(shared, mut far) => {
                let host = shared.host(rt);
                let (rt, watched) = (rt.clone(), host.clone());
                rt.clone().spawn(async move {
                    until(&rt, || far.is_gone()).await;
                    watched.mark_gone();
                });
                Ok(host)
            }
            Way::VfioUser(connection) => Ok(connection.host(rt)),
            Way::Vfio { address, wanted } => Ok(Function::open(&address, &wanted)?.host(rt)),
        }
    }
}

/// Report of the engine's thread when it has started: block size, and the memory that the drive reaches.
pub(super) struct Ready {
    pub block_bytes: u32,
    pub memory: Memory,
}
