//! The NVMe driver in live memory for callers that start its parts themselves: checks of foreign devices, and
//! SCSI disks on several threads. No function here is generic or `async`, because those are compiled again
//! in each crate that calls them, with the driver.

use std::rc::Rc;

use bus::live::LiveHost;
use host::InitError;
use host::nvme::{
    CommonMemory, CommonSpread, Controller, Counters, Identity, Options, Queue, QueueOptions, Shape,
};
use plan::Plan;

use super::driver::{Boxed, Disk};
use super::nvme::controller_options;
use super::scsi::{scsi_disk, spread_options};

/// A controller of an NVMe device, foreign ones included.
pub struct LiveController(Controller<LiveHost>);

impl LiveController {
    /// # Errors
    /// As for [`Controller::start`].
    pub fn start(
        port: LiveHost,
        options: Options,
    ) -> Boxed<'static, Result<LiveController, InitError>> {
        Box::pin(async move { Ok(LiveController(Controller::start(port, options).await?)) })
    }

    pub fn identity(&self) -> &Identity {
        self.0.identity()
    }

    /// Whether the device has been removed.
    pub fn is_gone(&self) -> bool {
        self.0.gone().is_some()
    }

    /// # Errors
    /// As for [`Controller::queue`].
    pub fn queue(&self, options: QueueOptions) -> Boxed<'_, Result<LiveQueue, InitError>> {
        Box::pin(async move {
            let queue = self.0.queue(options).await?;
            Ok(LiveQueue { disk: Disk::of(queue.clone()), queue })
        })
    }

    /// # Errors
    /// As for [`Controller::shutdown`].
    pub fn shutdown(&self) -> Boxed<'_, Result<(), InitError>> {
        Box::pin(self.0.shutdown())
    }
}

/// A queue of a controller.
#[derive(Clone)]
pub struct LiveQueue {
    pub disk: Disk,
    queue: Rc<Queue<LiveHost>>,
}

impl LiveQueue {
    pub fn counters(&self) -> Counters {
        self.queue.counters()
    }
}

/// SCSI disks of several threads over queues that they share under locks.
pub struct ScsiThreads {
    controller: Controller<LiveHost>,
    memory: Vec<CommonMemory>,
    disks: ThreadDisks,
}

/// State from which each thread opens its disk.
#[derive(Clone)]
pub struct ThreadDisks {
    spread: CommonSpread,
    identity: Identity,
}

impl ScsiThreads {
    /// Starts the controller, with queues for `cores` threads by the plan's policy.
    ///
    /// # Errors
    /// The driver fails to start.
    pub fn start(
        port: LiveHost,
        plan: &Plan,
        cores: u16,
    ) -> Boxed<'static, Result<ScsiThreads, InitError>> {
        let options = spread_options(plan);
        let wanted = controller_options(plan, options.shape(cores).queues);
        Box::pin(async move {
            let controller = Controller::start(port, wanted).await?;
            let (spread, memory) = CommonSpread::create(&controller, cores, &options).await?;
            let disks = ThreadDisks { spread, identity: controller.identity().clone() };
            Ok(ScsiThreads { controller, memory, disks })
        })
    }

    pub fn disks(&self) -> &ThreadDisks {
        &self.disks
    }

    /// Deletes the queues and shuts the controller down. The threads have ended.
    ///
    /// # Errors
    /// The controller rejects it.
    pub fn stop(self) -> Boxed<'static, Result<(), InitError>> {
        Box::pin(async move {
            for memory in self.memory {
                self.controller.delete_common(memory).await?;
            }
            self.controller.shutdown().await
        })
    }
}

impl ThreadDisks {
    /// The disk of the calling thread, which is `core`, through its own port.
    ///
    /// # Errors
    /// The disk's class driver rejects the unit.
    pub fn disk<'a>(&'a self, port: &'a LiveHost, core: u16) -> Boxed<'a, Result<Disk, InitError>> {
        Box::pin(async move {
            Ok(Disk::of(scsi_disk(self.spread.open(port, core)?, &self.identity).await?))
        })
    }

    /// Ends the service of all threads.
    pub fn stop(&self) {
        self.spread.stop();
    }

    /// Number and size of the queues.
    pub fn shape(&self) -> Shape {
        self.spread.shape()
    }

    /// Number of times that a thread found a queue's lock taken.
    pub fn lock_waits(&self) -> u64 {
        self.spread.lock_waits()
    }

    /// Number of completions that were invalid, and ignored.
    pub fn violations(&self) -> u64 {
        self.spread.violations()
    }
}
