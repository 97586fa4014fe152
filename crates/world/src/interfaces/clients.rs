//! The device side for other than one client on one thread: several hosts of one drive, several clients that
//! share no data, or several threads that share the controller's queues.
//!
//! A client's command is copied once from the client's own memory, and its blocks are validated against the
//! client's part when it is parsed. There is no number by which it could name another's queue or memory: the
//! registers, rings and addresses that its controller knows are those of the client's port.

use std::rc::Rc;

use bus::DevicePort;
use bus::vfio_user::VfioUserDevice;
use device::faults::Faults;
use device::nvme::{Options, Subsystem};
use media::Part;

use super::driver::Boxed;
use crate::medium::{BackingStore, Medium, NvmeStore};

/// Ends all tasks of a client's controllers at once: no further access to its memory.
pub type Stop = Box<dyn FnOnce()>;

/// The device side for one client, which outlives the client's sessions: starts its controllers on its port,
/// with faults that count their commands.
pub type Side<P> = Box<dyn Fn(P, Rc<Faults>) -> Stop>;

/// A client's blocks, and the device side that reaches them alone.
pub struct Extent<P: DevicePort> {
    /// Its blocks on the medium.
    pub part: Rc<Part<Medium>>,
    pub side: Side<P>,
}

/// The device side on one of several threads.
pub struct OneThread {
    /// Serves the queues of a thread that is not the first, until the first one ends its part. That of the
    /// first thread never ends: its controller's tasks serve its queues.
    pub serve: Boxed<'static, ()>,
    /// Ends the controller's tasks at once: no further access to the memory of the host.
    pub stop: Stop,
}

/// State that the NVMe controllers of several hosts share.
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

    /// Starts the controller of this number, with faults of its own; controllers count from 1. Hosts that
    /// share a drive are vfio-user clients.
    pub fn start(&self, number: u16, port: VfioUserDevice, faults: Rc<Faults>) -> Stop {
        let controller =
            self.subsystem.start_controller(number, port, self.options.clone(), faults);
        Box::new(move || controller.stop())
    }
}
