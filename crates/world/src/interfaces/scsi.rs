//! SCSI over NVMe: callers use a SCSI disk, whose commands go to NVMe queues chosen by a policy.

use std::rc::Rc;

use bus::vfio_user::Function;
use bus::{DevicePort, HostPort};
use device::faults::Faults;
use host::nvme as driver;
use host::nvme::{Policy, SpinOrder, Spread, SpreadOptions};
use host::{BlockDevice, InitError};
use runtime::{Rng, Span};
use scsi::{AttachError, Disk, Target, Unit, of_nvme};
use wire::nvme::status::Status;
use wire::scsi::lun::Lun;

use super::stages::{ABOVE_DRIVER, COMMAND, joined};
use super::{Driver, Interface, Nvme, Row, controller_options, queue_options};
use crate::error::DriverError;
use crate::medium::BackingStore;
use plan::Plan;

/// A SCSI disk whose logical unit is an NVMe namespace.
pub struct Scsi;

type Stack<P> = Rc<Disk<Target<Rc<Spread<P>>>>>;

/// The controller, and one disk per core.
pub struct ScsiDriver<P: HostPort> {
    controller: driver::Controller<P>,
    disks: Vec<Stack<P>>,
    queues: Rc<Spread<P>>,
}

impl<P: HostPort> ScsiDriver<P> {
    /// Number of contended acquisitions of queue locks.
    pub fn lock_waits(&self) -> u64 {
        self.queues.lock_waits()
    }
}

/// Queue policy of a plan; a queue per core by default. The core that takes in the completions of the first
/// shared queue is drawn from the seed, unless the plan names it.
pub fn spread_options(plan: &Plan) -> SpreadOptions {
    let sharing = plan.host.sharing.as_ref();
    let drawn = || Rng::for_part(plan.run.seed, "home core").below(plan.host.cores.into()) as u32;
    let home = sharing.map_or(0, |sharing| sharing.home.unwrap_or_else(drawn));
    SpreadOptions {
        policy: sharing.map_or(Policy::PerCore, |sharing| sharing.policy),
        queues: plan.host.queues as u16,
        each: queue_options(plan, 0),
        order: sharing.map_or(SpinOrder::Unfair, |sharing| sharing.order),
        home: home as u16,
        seed: plan.run.seed,
        transfer: sharing.map_or(Span::ZERO, |sharing| sharing.transfer),
    }
}

static ROW: Row = Row::of::<Scsi>();

impl Interface for Scsi {
    const ROW: &'static Row = &ROW;
    const NAME: &'static str = "scsi";
    const FUNCTION: Option<fn(&Plan) -> Function> = Nvme::FUNCTION;
    const SUMMARY: &'static str = "SCSI over NVM Express";
    const STAGES: &'static [&'static str] =
        joined!(ABOVE_DRIVER, &["lock wait", "lock", "lock transfer"], COMMAND);
    const PARTS: &'static [&'static [&'static str]] = &[driver::SHARE_STAGES];
    const DEPTH_MAX: u32 = Nvme::DEPTH_MAX;
    type Driver<P: HostPort> = ScsiDriver<P>;

    fn register_bytes(plan: &Plan) -> u32 {
        Nvme::register_bytes(plan)
    }

    const FAULTS: bool = true;

    fn start<P: DevicePort>(port: P, store: BackingStore, plan: &Plan, faults: &Rc<Faults>) {
        Nvme::start(port, store, plan, faults);
    }

    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<ScsiDriver<P>, InitError> {
        let spread = spread_options(plan);
        let queues = spread.shape(ports.len() as u16).queues;
        let options = controller_options(plan, queues);
        let controller = driver::Controller::start(ports[0].clone(), options).await?;
        let identity = controller.identity();
        let mut disks = Vec::new();
        let spread = Spread::over(&controller, &ports, &spread).await?;
        for queues in spread.iter().cloned() {
            disks.push(scsi_disk(queues, identity).await?);
        }
        Ok(ScsiDriver { controller, disks, queues: spread[0].clone() })
    }
}

/// A SCSI disk over queues of a namespace.
///
/// # Errors
/// The disk's class driver rejects the unit.
pub async fn scsi_disk<D: BlockDevice>(
    queues: D,
    identity: &driver::Identity,
) -> Result<Rc<Disk<Target<D>>>, InitError> {
    let identity = of_nvme(&identity.controller, &identity.namespace);
    let target = Rc::new(Target::new(vec![Unit::new(queues, identity)]));
    Ok(Rc::new(Disk::attach(target, Lun::of(0)).await.map_err(unattached)?))
}

/// Converts the error of an attach.
fn unattached(error: AttachError) -> InitError {
    match error {
        AttachError::Memory(error) => InitError::Memory(error),
        AttachError::Unsupported { what, found, expected } => {
            InitError::Unsupported { what, found, expected }
        }
        AttachError::Refused { command, .. } => {
            InitError::Refused { step: command, status: Status::INTERNAL_ERROR }
        }
        _ => InitError::Closed,
    }
}

impl<P: HostPort> Driver<P> for ScsiDriver<P> {
    type Disk = Stack<P>;

    fn disk(&self, number: usize) -> Self::Disk {
        self.disks[number % self.disks.len()].clone()
    }

    async fn reset(&self) -> Result<(), DriverError> {
        Ok(self.controller.reset().await?)
    }

    async fn stop(&self) -> Result<(), DriverError> {
        Ok(self.controller.shutdown().await?)
    }
}
