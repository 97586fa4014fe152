//! SCSI over NVMe: callers use a SCSI disk, whose commands go to NVMe queues chosen by a policy.

use std::rc::Rc;

use bus::{DevicePort, HostPort};
use host::nvme as driver;
use host::nvme::{Policy, SpinOrder, Spread, SpreadOptions};
use host::{BlockDevice, InitError};
use runtime::{Rng, Span};
use scsi::{AttachError, Disk, Target, Unit, of_nvme};
use wire::nvme::status::Status;
use wire::scsi::lun::Lun;

use super::driver::{Boxed, Connected, Driver};
use super::nvme::{self, Nvme, controller_options, queue_options, served_function};
use super::row::{Ends, Front, Interface, Row};
use super::stages::{ABOVE_DRIVER, COMMAND, joined};
use crate::error::DriverError;
use plan::Plan;

/// A SCSI disk whose logical unit is an NVMe namespace.
pub struct Scsi;

/// The controller, and the queues of the first core.
pub struct ScsiDriver<P: HostPort> {
    controller: driver::Controller<P>,
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

pub(super) static ROW: Row = Row {
    name: "scsi",
    summary: "SCSI over NVM Express",
    stages: joined!(ABOVE_DRIVER, &["lock wait", "lock", "lock transfer"], COMMAND),
    masks: None,
    ends: Ends::of::<Scsi>(served_function),
    ..nvme::ALONE
}
.with_parts(&[driver::SHARE_STAGES]);

impl Interface for Scsi {
    fn front<P: DevicePort>() -> Front<P> {
        Front::of_one(Nvme::front())
    }

    /// The disks are one for each core.
    async fn connect<P: HostPort>(ports: Vec<P>, plan: &Plan) -> Result<Connected<P>, InitError> {
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
        Ok(Connected::new(ScsiDriver { controller, queues: spread[0].clone() }, disks))
    }
}

/// A SCSI disk over queues of a namespace.
///
/// # Errors
/// The disk's class driver rejects the unit.
pub(super) async fn scsi_disk<D: BlockDevice>(
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

impl<P: HostPort> Driver for ScsiDriver<P> {
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(self.controller.reset().await?) })
    }

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>> {
        Box::pin(async { Ok(self.controller.shutdown().await?) })
    }
}
