//! One device for several clients that share no data: each has a part of the medium, and a controller on a
//! port of its own.
//!
//! A client's command is copied once from the client's own memory, and its blocks are validated against the
//! client's part when it is parsed. There is no number by which it could name another's queue or memory: the
//! registers, rings and addresses that its controller knows are those of the client's port.

use std::rc::Rc;

use ::device::dcx::{Front as DcxFront, Options as DcxOptions, Tagged};
use ::device::faults::Faults;
use ::device::nvme::{Controller, Options as NvmeOptions};
use bus::DevicePort;
use media::{Faulty, Part};

use crate::medium::{Medium, NvmeStore, Reach};

/// Ends all tasks of a client's controllers at once: no further access to its memory.
pub type Stop = Box<dyn FnOnce()>;

/// The device side of an interface for one of several clients. It outlives the client's sessions.
pub trait Divided<P: DevicePort> {
    /// Starts the client's controllers on its port. `faults` counts their commands.
    fn start(&self, port: P, faults: Rc<Faults>) -> Stop;
}

/// The device side for one client, of any interface.
pub type Side<P> = Box<dyn Divided<P>>;

/// A client's blocks, and the device side that reaches them alone.
pub struct Extent<P: DevicePort> {
    /// Its blocks on the medium.
    pub part: Rc<Part<Medium>>,
    pub side: Side<P>,
}

pub(super) struct NvmeSide {
    pub store: Rc<Faulty<Reach>>,
    pub options: NvmeOptions,
}

impl<P: DevicePort> Divided<P> for NvmeSide {
    fn start(&self, port: P, faults: Rc<Faults>) -> Stop {
        let store = Rc::new(NvmeStore::Plain(self.store.clone()));
        let controller = Controller::start_with(port, store, self.options.clone(), faults);
        Box::new(move || controller.stop())
    }
}

/// DC Express and NVMe on a part. The tag is absent from this part alone: what others write neither changes
/// it nor waits for this client's reads.
pub(super) struct DcxSide {
    pub tagged: Rc<Tagged<Faulty<Reach>>>,
    pub nvme: NvmeOptions,
    pub options: DcxOptions,
}

impl<P: DevicePort> Divided<P> for DcxSide {
    fn start(&self, port: P, faults: Rc<Faults>) -> Stop {
        let store = Rc::new(NvmeStore::Tagged(self.tagged.clone()));
        let nvme = self.nvme.clone();
        let nvme = Controller::start_with(port.clone(), store, nvme, faults.clone());
        let front = DcxFront::start_with(port, self.tagged.clone(), self.options.clone(), faults);
        Box::new(move || {
            front.stop();
            nvme.stop();
        })
    }
}
