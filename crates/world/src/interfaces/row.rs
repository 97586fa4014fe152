//! The row of an interface: what the registry knows of it, and its two ends on each bus.

use std::borrow::Cow;
use std::future::Future;
use std::rc::Rc;

use bus::live::{LiveDevice, LiveHost};
use bus::sim::{SimDevice, SimHost, SimSpec};
use bus::vfio_user::{Function, VfioUserDevice};
use bus::{DevicePort, HostPort, Masks};
use device::faults::Faults;
use device::nvme::DeviceThread;
use flash::chips::Chips;
use host::InitError;
use runtime::{Rt, STAGES_MAX};
use wire::pci::FunctionKind;

use super::clients::{OneThread, Shared, Side};
use super::driver::{Boxed, Connected};
use super::stages;
use crate::error::CheckError;
use crate::lanes::{self, Lanes, StageLane, lane_of};
use crate::medium::BackingStore;
use plan::Plan;

/// The two ends of an interface, generic over the bus ports. `world` alone names the types behind them, and
/// compiles each once for each kind of port: [`Ends`] has the instances.
pub trait Interface: 'static {
    /// Functions that start the device.
    fn front<P: DevicePort>() -> Front<P>;

    /// Starts the driver with one queue for each of `ports`, each on its own core. The last ones are on the
    /// driver's [own cores](Cores::own) and the [reserved](Cores::reserved) ones. For an array the ports are
    /// ordered by member, with the same number for each.
    ///
    /// # Errors
    /// The driver fails to start.
    fn connect<P: HostPort>(
        ports: Vec<P>,
        plan: &Plan,
    ) -> impl Future<Output = Result<Connected<P>, InitError>>;
}

/// Entry of an interface in the registry. Fields that an interface leaves out are as in [`Row::new`].
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// One-line description for the command's help.
    pub summary: &'static str,
    /// The stages of the latency breakdown in request order.
    pub stages: &'static [&'static str],
    /// Lanes, in a timeline, of stages that no interface of this crate has.
    pub lanes: Lanes,
    /// Maximum number of commands in flight per queue.
    pub depth_max: u32,
    /// A pair of device registers that set and clear bits of one word, as NVMe's INTMS and INTMC.
    pub masks: Option<Masks>,
    /// Whether faults can be injected into its commands. If not, plans with faults are rejected.
    pub faults: bool,
    pub devices: Devices,
    /// Checks that the interface supports the plan; the error is the first requirement that is not met.
    pub check: fn(&Plan) -> Result<(), CheckError>,
    /// Size of the device's register window, bytes.
    pub register_bytes: fn(&Plan) -> u32,
    /// Vectors and traces of the driver, for a host with this number of queues.
    pub queues: fn(u32) -> Queues,
    pub cores: fn(&Plan) -> Cores,
    /// Adjusts the configuration of the simulated bus for this interface.
    pub adjust: fn(&Plan, &mut SimSpec),
    /// The plan without costs that no call by this interface has: a kernel that it does not pass.
    pub passed: for<'a> fn(&'a Plan) -> Cow<'a, Plan>,
    /// Shared state of several devices on one medium; none: one device per medium.
    pub share: Option<fn(BackingStore, &Plan, u16) -> Shared>,
    pub ends: Ends,
}

/// Number of devices below one driver.
#[derive(Clone, Copy)]
pub enum Devices {
    One,
    /// One, or with a plan that has an `[array]`, those of this row.
    OneOr(&'static Row),
    /// Those of the plan's array, below a switch.
    OfArray,
}

/// Resources of a driver for a number of queues of the host.
#[derive(Clone, Copy)]
pub struct Queues {
    /// Interrupt vectors. Vector 0 is the admin queue's.
    pub vectors: u32,
    /// Queues of request traces, that of the admin queue included.
    pub traces: u32,
}

/// Cores that run the driver alone.
#[derive(Clone, Copy, Default)]
pub struct Cores {
    /// Additional ones, which stand for hardware engines.
    pub own: u32,
    /// The last ones of the host's.
    pub reserved: u32,
}

/// The device's end on this port type.
pub struct Front<P: DevicePort> {
    pub start: StartDevice<P>,
    /// The device side for one of several clients, each of which reaches its own store alone; none: one
    /// client per device.
    pub divide: Option<Divide<P>>,
    /// The device side on one of several threads that share the controller's queues, each with a port and a
    /// store of its own; none: one thread serves all queues.
    pub deal: Option<Deal<P>>,
}

type Divide<P> = fn(BackingStore, &Rt, &Plan) -> Side<P>;

type Deal<P> = fn(P, BackingStore, &Plan, &Rc<Faults>, &DeviceThread) -> OneThread;

/// Function that starts a device, by what it is made of.
pub enum StartDevice<P: DevicePort> {
    /// Over a medium, with the plan's faults.
    Medium(fn(P, BackingStore, &Plan, &Rc<Faults>)),
    /// Over raw flash; the FTL is in the driver.
    Chips(fn(P, Rc<Chips>, &Plan)),
}

impl<P: DevicePort> Front<P> {
    /// A device for one client, on one thread.
    pub fn of(start: fn(P, BackingStore, &Plan, &Rc<Faults>)) -> Front<P> {
        Front { start: StartDevice::Medium(start), divide: None, deal: None }
    }

    /// As this front end, for one client and on one thread.
    pub fn of_one(of: Front<P>) -> Front<P> {
        Front { divide: None, deal: None, ..of }
    }

    /// A device of raw flash, whose FTL is in the driver.
    pub fn of_chips(start: fn(P, Rc<Chips>, &Plan)) -> Front<P> {
        Front { start: StartDevice::Chips(start), divide: None, deal: None }
    }
}

/// The ends of an interface on every bus that it supports.
#[derive(Clone, Copy)]
pub struct Ends {
    simulated: Both<SimDevice, SimHost>,
    /// None: only in virtual time.
    live: Option<Both<LiveDevice, LiveHost>>,
    over_vfio_user: Option<OverVfioUser>,
}

/// Both ends on one bus.
struct Both<D: DevicePort, H: HostPort> {
    front: fn() -> Front<D>,
    connect: Connect<H>,
}

pub(super) type Connect<H> =
    for<'a> fn(Vec<H>, &'a Plan) -> Boxed<'a, Result<Connected<H>, InitError>>;

#[derive(Clone, Copy)]
struct OverVfioUser {
    front: fn() -> Front<VfioUserDevice>,
    function: fn(&Plan) -> Function,
}

impl<D: DevicePort, H: HostPort> Clone for Both<D, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: DevicePort, H: HostPort> Copy for Both<D, H> {}

impl<D: DevicePort, H: HostPort> Both<D, H> {
    const fn of<I: Interface>() -> Both<D, H> {
        Both { front: I::front, connect: boxed::<I, H> }
    }
}

/// Starts the driver of an interface.
pub(super) fn boxed<I: Interface, H: HostPort>(
    ports: Vec<H>,
    plan: &Plan,
) -> Boxed<'_, Result<Connected<H>, InitError>> {
    Box::pin(I::connect(ports, plan))
}

impl Ends {
    /// Of a device that is a PCI function, which vfio-user requires.
    pub const fn of<I: Interface>(function: fn(&Plan) -> Function) -> Ends {
        let over_vfio_user = OverVfioUser { front: I::front, function };
        Ends { over_vfio_user: Some(over_vfio_user), ..Ends::not_a_function::<I>() }
    }

    /// Of a device that is not a PCI function.
    pub const fn not_a_function<I: Interface>() -> Ends {
        Ends { live: Some(Both::of::<I>()), ..Ends::simulated::<I>() }
    }

    /// Of a device in virtual time only.
    pub const fn simulated<I: Interface>() -> Ends {
        Ends { simulated: Both::of::<I>(), live: None, over_vfio_user: None }
    }
}

/// A port type on which device front ends are started.
pub trait DeviceSide: DevicePort + Sized {
    /// An interface's front end on this port type; none: not supported.
    fn front(row: &Row) -> Option<Front<Self>>;
}

/// A port type through which drivers are connected.
pub trait HostSide: HostPort {
    /// Connects an interface's driver through this port type; none: not supported.
    #[doc(hidden)]
    fn connect_by(row: &Row) -> Option<Connect<Self>>;
}

impl DeviceSide for SimDevice {
    fn front(row: &Row) -> Option<Front<SimDevice>> {
        Some((row.ends.simulated.front)())
    }
}

impl DeviceSide for LiveDevice {
    fn front(row: &Row) -> Option<Front<LiveDevice>> {
        row.ends.live.map(|ends| (ends.front)())
    }
}

impl DeviceSide for VfioUserDevice {
    fn front(row: &Row) -> Option<Front<VfioUserDevice>> {
        row.ends.over_vfio_user.map(|end| (end.front)())
    }
}

impl HostSide for SimHost {
    fn connect_by(row: &Row) -> Option<Connect<SimHost>> {
        Some(row.ends.simulated.connect)
    }
}

impl HostSide for LiveHost {
    fn connect_by(row: &Row) -> Option<Connect<LiveHost>> {
        row.ends.live.map(|ends| ends.connect)
    }
}

impl Row {
    /// A row without requirements: one device, an admin queue beside each of the host's, no own cores. A row
    /// with more stages than a trace can hold does not compile.
    pub const fn new(
        name: &'static str,
        summary: &'static str,
        stages: &'static [&'static str],
        register_bytes: fn(&Plan) -> u32,
        ends: Ends,
    ) -> Row {
        assert!(stages.len() <= STAGES_MAX);
        Row {
            name,
            summary,
            stages,
            lanes: &[],
            depth_max: 1024,
            masks: None,
            faults: false,
            devices: Devices::One,
            check: |_| Ok(()),
            register_bytes,
            queues: |queues| Queues { vectors: queues + 1, traces: queues + 1 },
            cores: |_| Cores { own: 0, reserved: 0 },
            adjust: |_, _| (),
            passed: |plan| Cow::Borrowed(plan),
            share: None,
            ends,
        }
    }

    /// The row, if its stages have every stage and cost of `parts`: the lists of its driver, its controller
    /// and the media that it accepts. In a constant, a row that lacks one or a lane of it does not compile.
    #[must_use]
    pub const fn with_parts(self, parts: &[&[&str]]) -> Row {
        assert!(stages::covers(self.stages, stages::EVERYWHERE));
        assert!(stages::covers(self.stages, parts));
        lanes::check(self.lanes, self.stages);
        self
    }

    /// The row for this plan: the array's if the plan has an `[array]` and the interface supports it.
    pub fn of_plan(&'static self, plan: &Plan) -> &'static Row {
        self.array().filter(|_| plan.array.is_some()).unwrap_or(self)
    }

    /// The row of an array of such devices; none: not supported.
    pub fn array(&self) -> Option<&'static Row> {
        match self.devices {
            Devices::OneOr(row) => Some(row),
            Devices::One | Devices::OfArray => None,
        }
    }

    /// The array of a plan, if this row is of arrays; none: one device.
    pub fn members<'a>(&self, plan: &'a Plan) -> Option<&'a plan::Array> {
        plan.array.as_ref().filter(|_| matches!(self.devices, Devices::OfArray))
    }

    /// Whether the device has raw flash, and the FTL is in the driver.
    pub fn is_bare(&self) -> bool {
        matches!((self.ends.simulated.front)().start, StartDevice::Chips(_))
    }

    /// Whether the interface supports live worlds; otherwise only simulated ones.
    pub const fn is_live(&self) -> bool {
        self.ends.live.is_some()
    }

    /// PCI function of the device; none: not a PCI function.
    pub fn function(&self, plan: &Plan) -> Option<Function> {
        self.ends.over_vfio_user.map(|end| (end.function)(plan))
    }

    /// Index of a stage in the breakdown.
    pub fn stage(&self, name: &str) -> Option<usize> {
        self.stages.iter().position(|stage| *stage == name)
    }

    /// The stages in request order, each with its lane in a timeline.
    pub fn stages_in_lanes(&self) -> Vec<(&'static str, StageLane)> {
        let lane = |stage| lane_of(self.lanes, stage).expect("checked when the row was compiled");
        self.stages.iter().map(|stage| (*stage, lane(stage))).collect()
    }

    /// The PCI function that a front end serves.
    ///
    /// # Errors
    /// The device is not a PCI function, or the interface has no live world.
    pub fn require_function(&self, plan: &Plan) -> Result<Function, CheckError> {
        self.require_live()?;
        self.function(plan).ok_or(CheckError::NoFunction { interface: self.name })
    }

    /// The PCI functions that its driver can drive.
    ///
    /// # Errors
    /// As [`require_function`](Row::require_function).
    pub fn require_kind(&self, plan: &Plan) -> Result<FunctionKind, CheckError> {
        Ok(FunctionKind::of(&self.require_function(plan)?.identity))
    }

    /// Checks that the interface supports live worlds.
    ///
    /// # Errors
    /// [`CheckError::NotLive`].
    pub fn require_live(&self) -> Result<(), CheckError> {
        match self.is_live() {
            true => Ok(()),
            false => Err(CheckError::NotLive { interface: self.name }),
        }
    }

    /// Starts the driver, as [`Interface::connect`] does.
    ///
    /// # Errors
    /// The driver fails to start.
    ///
    /// # Panics
    /// If the port type is not supported: callers check [`require_live`](Row::require_live) first.
    pub async fn connect<P: HostSide>(
        &self,
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<Connected<P>, InitError> {
        P::connect_by(self).expect("the caller has checked require_live")(ports, plan).await
    }
}
