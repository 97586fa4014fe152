//! An SSD with several NVMe controllers, each for a host of its own.

use std::rc::Rc;

use bus::vfio_user::VfioUserDevice;
use device::faults::Faults;
use device::nvme::{Controller, Options, Subsystem};

use super::nvme::options;
use crate::medium::{BackingStore, NvmeStore};
use plan::Plan;

/// What its controllers have in common.
pub struct Shared {
    subsystem: Subsystem<NvmeStore>,
    options: Options,
}

impl Shared {
    /// Of so many controllers at most, none of which is there yet.
    pub(super) fn new(store: BackingStore, plan: &Plan, controllers: u16) -> Shared {
        let options = Options { controllers, ..options(plan) };
        let subsystem = Subsystem::new(Rc::new(NvmeStore::Plain(store)), &options);
        Shared { subsystem, options }
    }

    /// Starts the controller of this number, from 1 on.
    ///
    /// Hosts that share a drive are vfio-user clients. Generic over the port, this would compile the
    /// controller again in each crate that calls it.
    pub fn start(
        &self,
        number: u16,
        port: VfioUserDevice,
    ) -> Rc<Controller<VfioUserDevice, NvmeStore>> {
        self.subsystem.start_controller(number, port, self.options.clone(), Faults::none())
    }
}
