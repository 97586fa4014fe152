//! An SSD with several NVMe controllers, one per host.

use std::rc::Rc;

use bus::vfio_user::VfioUserDevice;
use device::faults::Faults;
use device::nvme::{Controller, Options, Subsystem};

use crate::medium::{BackingStore, NvmeStore};

/// State that the controllers share.
pub struct Shared {
    subsystem: Subsystem<NvmeStore>,
    options: Options,
}

impl Shared {
    /// State for at most `controllers` controllers. None is started.
    pub(super) fn new(store: BackingStore, options: Options, controllers: u16) -> Shared {
        let options = Options { controllers, ..options };
        let subsystem = Subsystem::new(Rc::new(NvmeStore::Plain(store)), &options);
        Shared { subsystem, options }
    }

    /// Starts the controller of this number, with faults of its own; controllers count from 1.
    ///
    /// Hosts that share a drive are vfio-user clients. Generic over the port, this would compile the
    /// controller again in each crate that calls it.
    pub fn start(
        &self,
        number: u16,
        port: VfioUserDevice,
        faults: Rc<Faults>,
    ) -> Rc<Controller<VfioUserDevice, NvmeStore>> {
        self.subsystem.start_controller(number, port, self.options.clone(), faults)
    }
}
