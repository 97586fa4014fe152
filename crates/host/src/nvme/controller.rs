//! Controllers: bring-up, identification, creation of queues.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

use bus::HostPort;
use runtime::Rt;
use wire::nvme::event::AsyncEvent;
use wire::nvme::features::{AsyncEventConfig, VolatileWriteCache, fid};
use wire::nvme::identify::{IdentifyController, IdentifyNamespace, oacs, oncs, sgls, vwc};
use wire::nvme::io::BLOCKS_MAX;
use wire::nvme::pi::Kind as Guard;
use wire::{Nsid, QueueId};

use super::admin::Admin;
use super::commands::Abilities;
use super::events::{self, Events};
use super::health::{Asks, Health, State};
use super::pair::{Pair, PairSpec};
use super::power::transitions;
use super::protect::{Guards, Protect};
use super::queue::{Facts, Queue};
use super::supervisor::supervise;
use super::{DEPTH_MAX, Options, PAGE_BYTES, QueueOptions, Sgl};
use crate::{Deallocated, Geometry, InitError};

/// Validated Identify data.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Identify Controller, as read.
    pub controller: IdentifyController,
    /// Identify Namespace of the namespace in use, as read.
    pub namespace: IdentifyNamespace,
    /// Active namespaces, at most 1024.
    pub namespaces: Vec<Nsid>,
    /// Namespace in use.
    pub nsid: Nsid,
    /// Geometry of the namespace, with the controller's longest transfer.
    pub geometry: Geometry,
    /// Number of I/O queues that the controller grants.
    pub queues: u32,
    /// Type of the namespace's protection information.
    pub protection: Option<Guard>,
}

impl Identity {
    /// Rejects protected namespaces, for users that form commands without protection information.
    pub(crate) fn must_be_plain(&self) -> Result<(), InitError> {
        match self.protection {
            None => Ok(()),
            Some(kind) => Err(InitError::Unsupported {
                what: "DPS",
                found: kind as u64,
                expected: "0: blocks without protection information, of which these commands know nothing",
            }),
        }
    }

    /// Optional commands of the namespace.
    pub(super) fn abilities(&self) -> Abilities {
        Abilities::of(&self.controller, &self.namespace, &self.geometry)
    }

    /// Contents of deallocated blocks (NVM command set 1.0, 4.1.5.1: DLFEAT).
    pub fn deallocated(&self) -> Deallocated {
        deallocated(&self.controller, &self.namespace)
    }
}

fn deallocated(controller: &IdentifyController, namespace: &IdentifyNamespace) -> Deallocated {
    if controller.oncs.get() & oncs::DATASET_MANAGEMENT == 0 {
        return Deallocated::Unsupported;
    }
    match namespace.dlfeat & 7 {
        1 => Deallocated::Zeros,
        _ => Deallocated::Unknown,
    }
}

/// Handle on a started controller. The driver continues when it is dropped, until
/// [`shutdown`](Controller::shutdown).
pub struct Controller<P: HostPort> {
    core: Rc<Core<P>>,
}

/// State shared by the controller's tasks.
pub(super) struct Core<P: HostPort> {
    pub admin: Admin<P>,
    pub options: Options,
    pub health: Rc<Health>,
    pub queues: RefCell<Vec<Rc<Queue<P>>>>,
    pub identity: Identity,
    pub events: Events,
    /// Reason why the controller is gone or could not be shut down.
    pub last_error: Cell<Option<InitError>>,
    /// Number of Abort commands in flight.
    pub aborts: Cell<u32>,
    pub next_queue: Cell<u16>,
    /// Freed queue identifiers below `next_queue`.
    pub free_queues: RefCell<Vec<QueueId>>,
}

/// Guard of a pair that the device may have addresses of. If it is dropped, the pair is quarantined.
struct HalfMade<P: HostPort>(Option<Rc<Pair<P>>>);

impl<P: HostPort> HalfMade<P> {
    fn done(mut self) {
        self.0 = None;
    }
}

impl<P: HostPort> Drop for HalfMade<P> {
    fn drop(&mut self) {
        if let Some(pair) = &self.0 {
            pair.quarantine();
            pair.stop();
        }
    }
}

impl<P: HostPort> Controller<P> {
    /// Brings a controller up: disables it if it is enabled, enables it, identifies it and its namespace,
    /// requests I/O queues and event notifications. Every wait is bounded. Dropping the future may leave the
    /// controller enabled; memory that it may write is quarantined.
    pub async fn start(port: P, options: Options) -> Result<Controller<P>, InitError> {
        let health = Rc::new(Health::new());
        let admin = Admin::new(&port, &options, &health).await?;
        let half_made = HalfMade(Some(admin.pair.clone()));
        let identity = match attach(&admin, &options).await {
            Ok(identity) => identity,
            Err(error) => return Err(admin.give_up(error).await),
        };
        half_made.done();
        let core = Rc::new(Core {
            admin,
            options,
            health,
            queues: RefCell::default(),
            identity,
            events: Events::default(),
            last_error: Cell::new(None),
            aborts: Cell::new(0),
            next_queue: Cell::new(1),
            free_queues: RefCell::default(),
        });
        let rt = port.rt();
        core.health.set(rt, State::Running);
        rt.spawn(supervise(core.clone()));
        rt.spawn(events::listen(core.clone()));
        Ok(Controller { core })
    }

    /// Creates an I/O queue pair. A depth above the controller's limit (CAP.MQES) is reduced to it:
    /// [`Queue::depth`] returns the result.
    pub async fn queue(&self, options: QueueOptions) -> Result<Rc<Queue<P>>, InitError> {
        self.queue_on(self.core.admin.pair.port(), options).await
    }

    /// Creates an I/O queue pair on `port`: the same device, from another core.
    pub async fn queue_on(
        &self,
        port: &P,
        options: QueueOptions,
    ) -> Result<Rc<Queue<P>>, InitError> {
        let core = &self.core;
        core.running().await?;
        let options = core.validate(options)?;
        let spec = PairSpec {
            qid: core.next_queue_id(),
            depth: options.depth,
            completion: options.completion,
            doorbell: options.doorbell,
            transfer_bytes_max: core.identity.geometry.transfer_bytes_max,
            sgl: core.sgl(),
            tags: core.options.protect.is_by_host(),
            stride: core.admin.bar.cap().dstrd(),
            entries_max: core.admin.bar.cap().queue_entries_max(),
        };
        let pair = Pair::start(port, &core.health, &spec)?;
        let half_made = HalfMade(Some(pair.clone()));
        let queue = Queue::new(pair.clone(), options.priority, &core.facts(), &core.health);
        let resets = core.health.resets.get();
        let mut created = core.admin.create(&pair, options.priority).await;
        // The controller's answer may have arrived just before it was disabled.
        if core.health.state() != State::Running || core.health.resets.get() != resets {
            created = created.and(Err(InitError::Reset { step: "Create I/O queues" }));
        }
        if let Err(error) = created {
            return Err(core.not_created(&pair, error));
        }
        pair.open();
        half_made.done();
        let queue = Rc::new(queue);
        core.queues.borrow_mut().push(queue.clone());
        Ok(queue)
    }

    /// Opens another namespace on an existing queue: it shares the queue's command slots, and has its own
    /// geometry as of now. A namespace that is formatted or created again must be opened again.
    pub async fn on_namespace(
        &self,
        queue: &Queue<P>,
        nsid: Nsid,
    ) -> Result<Rc<Queue<P>>, InitError> {
        let core = &self.core;
        core.running().await?;
        let namespace = core.admin.identify_namespace(nsid).await?;
        let controller = &core.identity.controller;
        // The queue's PRP lists are sized for the first namespace's longest transfer.
        let most = core.identity.geometry.transfer_bytes_max;
        let options = Options { transfer_bytes_max: most, ..core.options };
        let geometry = geometry(controller, &namespace, &options)?;
        let guards =
            Guards::of(protection(&namespace, core.options.protect)?, core.options.protect);
        let deallocated = deallocated(controller, &namespace);
        let abilities = Abilities::of(controller, &namespace, &geometry);
        Ok(Rc::new(queue.facing(nsid, geometry, deallocated, guards, abilities)))
    }

    /// Active namespaces now, at most 1024.
    pub async fn active_namespaces(&self) -> Result<Vec<Nsid>, InitError> {
        self.core.running().await?;
        self.core.admin.active_namespaces().await
    }

    pub(super) fn core(&self) -> &Rc<Core<P>> {
        &self.core
    }

    /// Identify data, read at start.
    pub fn identity(&self) -> &Identity {
        &self.core.identity
    }

    /// Most recent events of the controller, oldest first, and the total number of events.
    pub fn events(&self) -> (Vec<AsyncEvent>, u64) {
        self.core.events.seen()
    }

    /// Resets the controller. Commands in flight are submitted again without counting a
    /// [retry](Options::retries).
    pub async fn reset(&self) -> Result<(), InitError> {
        let core = &self.core;
        let before = core.health.resets.get();
        core.health.requested.set(true);
        core.health.ask(core.rt(), |asks| asks.reset = true);
        loop {
            match core.health.state() {
                State::Running if core.health.resets.get() != before => return Ok(()),
                State::Gone | State::Closed | State::Closing => return Err(core.why()),
                State::Running | State::Starting => core.health.next(core.rt()).await,
            }
        }
    }

    /// Shuts down: rejects new commands, waits for those in flight, deletes the queues, notifies the
    /// controller of the power-off, and disables it. Every wait is bounded. Dropping the future does not
    /// cancel the shutdown.
    pub async fn shutdown(&self) -> Result<(), InitError> {
        let core = &self.core;
        if core.health.state() == State::Closed {
            return Ok(());
        }
        core.health.ask(core.rt(), |asks: &mut Asks| asks.shutdown = true);
        loop {
            match core.health.state() {
                State::Closed => return core.last_error.get().map_or(Ok(()), Err),
                State::Gone => return Err(core.why()),
                _ => core.health.next(core.rt()).await,
            }
        }
    }

    /// Reason why the controller is gone; `None` if it is not.
    pub fn gone(&self) -> Option<InitError> {
        (self.core.health.state() == State::Gone).then(|| self.core.why())
    }

    /// Number of resets since the controller was started.
    pub fn resets(&self) -> u64 {
        self.core.health.resets.get()
    }
}

impl<P: HostPort> Core<P> {
    pub fn rt(&self) -> &Rt {
        self.admin.rt()
    }

    /// Properties of the controller that a queue needs.
    pub fn facts(&self) -> Facts {
        Facts {
            nsid: self.identity.nsid,
            geometry: self.identity.geometry,
            deallocated: self.identity.deallocated(),
            retries: self.options.retries,
            sgl: self.sgl(),
            kind: self.identity.protection,
            protect: self.options.protect,
            abilities: self.identity.abilities(),
        }
    }

    /// Buffers that scatter gather lists describe.
    fn sgl(&self) -> Sgl {
        match self.identity.controller.sgls.get() & sgls::SUPPORTED {
            0 => Sgl::Never,
            _ => self.options.sgl,
        }
    }

    /// Allocates a queue identifier at once: two queues may be created at the same time.
    pub fn next_queue_id(&self) -> QueueId {
        if let Some(free) = self.free_queues.borrow_mut().pop() {
            return free;
        }
        let number = self.next_queue.get();
        self.next_queue.set(number + 1);
        QueueId(number)
    }

    /// Frees a queue identifier that the controller does not know.
    pub fn take_back(&self, qid: QueueId) {
        if self.next_queue.get() == qid.0 + 1 {
            self.next_queue.set(qid.0);
        } else {
            self.free_queues.borrow_mut().push(qid);
        }
    }

    fn why(&self) -> InitError {
        match self.health.state() {
            State::Gone => self.last_error.get().unwrap_or(InitError::Gone { register: "CSTS" }),
            _ => InitError::Closed,
        }
    }

    /// Handles a failure to create a queue.
    fn not_created(&self, pair: &Pair<P>, error: InitError) -> InitError {
        if matches!(error, InitError::TimedOut { .. }) {
            return error;
        }
        // The controller did not create it: its memory and its identifier are free.
        pair.clear();
        self.take_back(pair.qid());
        if self.health.state() == State::Gone { self.why() } else { error }
    }

    pub async fn running(&self) -> Result<(), InitError> {
        self.health.running(self.rt()).await.map_err(|_| self.why())
    }

    /// Validates queue options and limits the depth to the controller's, which is one less than its entries.
    pub fn validate(&self, options: QueueOptions) -> Result<QueueOptions, InitError> {
        let asked = u32::from(self.next_queue.get());
        let granted = self.identity.queues;
        if asked > granted && self.free_queues.borrow().is_empty() {
            return Err(InitError::TooFewQueues { asked, granted });
        }
        if options.depth == 0 || options.depth > DEPTH_MAX {
            return Err(InitError::Unsupported {
                what: "the depth of a queue",
                found: u64::from(options.depth),
                expected: "1 to 1024 commands",
            });
        }
        let most = self.admin.bar.cap().queue_entries_max() - 1;
        // Controllers with queues of fewer than two entries were rejected before.
        let depth = u32::from(options.depth).min(most) as u16;
        Ok(QueueOptions { depth, ..options })
    }
}

/// Brings a controller in any state to one that is enabled and identified.
async fn attach<P: HostPort>(admin: &Admin<P>, options: &Options) -> Result<Identity, InitError> {
    admin.turn_off_unknown().await?;
    admin.turn_on().await?;
    let controller = admin.identify_controller().await?;
    let namespaces = admin.active_namespaces().await?;
    let nsid = match (options.nsid, namespaces.first()) {
        (Some(nsid), _) if namespaces.contains(&nsid) => nsid,
        (None, Some(first)) => *first,
        (wanted, _) => {
            return Err(InitError::Unsupported {
                what: "the namespace asked for (0: the first)",
                found: u64::from(wanted.map_or(0, |nsid| nsid.0)),
                expected: "an active namespace",
            });
        }
    };
    let namespace = admin.identify_namespace(nsid).await?;
    let geometry = geometry(&controller, &namespace, options)?;
    let queues = set_up(admin, options, &controller).await?;
    let protection = protection(&namespace, options.protect)?;
    options.protect.validate(protection)?;
    Ok(Identity { controller, namespace, namespaces, nsid, geometry, queues, protection })
}

/// Sets up what a reset clears. Returns the number of I/O queues that the controller grants.
pub(super) async fn set_up<P: HostPort>(
    admin: &Admin<P>,
    options: &Options,
    controller: &IdentifyController,
) -> Result<u32, InitError> {
    let offered = controller.oacs.get() & oacs::DOORBELL_BUFFER != 0;
    if options.shadow_doorbells && !offered {
        return Err(InitError::Unsupported {
            what: "OACS",
            found: u64::from(controller.oacs.get()),
            expected: "Doorbell Buffer Config (bit 8), which was asked for",
        });
    }
    admin.set_up_shadows().await?;
    let queues = admin.number_of_queues(options.queues).await?;
    if let Some(on) = options.volatile_cache
        && controller.vwc & vwc::PRESENT != 0
    {
        let value = VolatileWriteCache::new().with_wce(on).into_bits();
        admin
            .set_feature("Set Features: Volatile Write Cache", fid::VOLATILE_WRITE_CACHE, value)
            .await?;
    }
    if let Some(arbitration) = options.arbitration {
        let value = arbitration.into_bits();
        admin.set_feature("Set Features: Arbitration", fid::ARBITRATION, value).await?;
    }
    if let Some(coalescing) = options.coalescing {
        let value = coalescing.into_bits();
        let step = "Set Features: Interrupt Coalescing";
        admin.set_feature(step, fid::INTERRUPT_COALESCING, value).await?;
    }
    let saving = options.power_saving.filter(|_| controller.apsta & 1 != 0);
    if let Some(table) = saving.and_then(|most| transitions(controller, most)) {
        admin.let_it_save(&table).await?;
    }
    let value = AsyncEventConfig::new()
        .with_smart(SMART_WARNINGS)
        .with_namespace_attribute(controller.oaes.get() & OAES_NAMESPACE != 0)
        .into_bits();
    let step = "Set Features: Asynchronous Event Configuration";
    admin.try_feature(step, fid::ASYNC_EVENT_CONFIG, value).await?;
    Ok(queues)
}

/// The five critical warnings of the SMART log (NVMe base 2.0, 5.16.1.3).
const SMART_WARNINGS: u8 = 0x1f;

/// Bit of OAES: Namespace Attribute Notices (NVMe base 2.0, 5.17.2.1).
const OAES_NAMESPACE: u32 = 1 << 8;

/// Type of the namespace's protection information: eight bytes per block, from the controller or the host. If
/// the metadata follows each block's data, only the controller can generate it, because a Read with PRACT
/// does not transfer it.
fn protection(namespace: &IdentifyNamespace, protect: Protect) -> Result<Option<Guard>, InitError> {
    let unsupported = |what, found, expected| Err(InitError::Unsupported { what, found, expected });
    let bytes = namespace.format().map_or(0, |format| u64::from(format.ms.get()));
    match (Guard::of(namespace.dps & 7), bytes) {
        (Ok(None), 0) => Ok(None),
        (Ok(None), _) => unsupported("MS", bytes, "0, or 8 bytes of protection information"),
        (Ok(_), 8) if protect.is_by_host() && namespace.metadata_is_inline() => {
            let expected = "bit 4 clear: tags that the host makes have a buffer of their own";
            unsupported("FLBAS", u64::from(namespace.flbas), expected)
        }
        (Ok(kind), 8) => Ok(kind),
        (Ok(_), _) => unsupported("MS", bytes, "8: protection information and nothing else"),
        (Err(_), _) => unsupported("DPS", u64::from(namespace.dps), "a type from 0 to 3"),
    }
}

/// Geometry of the namespace, if this driver supports it.
fn geometry(
    controller: &IdentifyController,
    namespace: &IdentifyNamespace,
    options: &Options,
) -> Result<Geometry, InitError> {
    let unsupported = |what, found, expected| Err(InitError::Unsupported { what, found, expected });
    let blocks = namespace.nsze.get();
    if blocks == 0 {
        return unsupported("NSZE", 0, "a namespace of at least one block");
    }
    let Some(format) = namespace.format() else {
        return unsupported("FLBAS", u64::from(namespace.flbas), "one of the formats there are");
    };
    let block_bytes = match format.block_bytes() {
        Some(bytes @ 512..=4096) => bytes as u32,
        _ => return unsupported("LBADS", u64::from(format.ds), "9 to 12: 512 to 4096 bytes"),
    };
    protection(namespace, options.protect)?;
    // MDTS is a power of two of the smallest pages; 0 means no limit.
    let most = match controller.mdts {
        0 => u64::MAX,
        mdts => PAGE_BYTES.checked_shl(u32::from(mdts)).filter(|b| *b != 0).unwrap_or(u64::MAX),
    };
    let most = most
        .min(u64::from(options.transfer_bytes_max))
        .min(u64::from(BLOCKS_MAX) * u64::from(block_bytes));
    let most = most - most % u64::from(block_bytes);
    if most == 0 {
        let found = u64::from(options.transfer_bytes_max);
        return unsupported("the longest transfer", found, "at least one block");
    }
    let volatile_cache =
        controller.vwc & vwc::PRESENT != 0 && options.volatile_cache != Some(false);
    // PRPs are dword aligned; SGLs may need that too.
    let any_byte = controller.sgls.get() & sgls::SUPPORTED == sgls::ANY_BYTE;
    let buffer_align = if any_byte && options.sgl != Sgl::Never { 1 } else { 4 };
    let transfer_bytes_max = most as u32;
    Ok(Geometry { blocks, block_bytes, transfer_bytes_max, buffer_align, volatile_cache })
}
