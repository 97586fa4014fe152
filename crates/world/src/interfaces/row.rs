//! Type-erased interfaces: a registry row of function pointers, a connected driver, a disk.
//!
//! [`Row::of`] erases an interface's types (`erase.rs`). The I/O path stays typed: the load generator is
//! compiled for the driver's own disk and started through one box per job clone ([`Connected::run`]).

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bus::live::{LiveDevice, LiveHost};
use bus::sim::{SimDevice, SimHost, SimSpec};
use bus::vfio_user::{Function, VfioUserDevice};
use bus::{Buffer, DevicePort, HostPort, Masks, OutOfMemory};
use device::faults::Faults;
use device::nvme::DeviceThread;
use flash::chips::Chips;
use ftl::Stats;
use host::{BlockDevice, Deallocated, Geometry, InitError, IoError};
use runtime::Rt;
use wire::Lba;
use wire::nvme::dsm::Context;
use wire::pci::FunctionKind;

use super::collections::Collector;
use super::dealt::Dealt;
use super::divided::Side;
use super::lanes::{Lanes, StageLane, lane_of};
use super::shared::Shared;
use crate::engine::{JobResult, Setup, Source};
use crate::error::{CheckError, DriverError};
use crate::medium::BackingStore;
use plan::Plan;

/// A future in a box.
pub(super) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A registry entry of an interface. [`Interface`](super::Interface) documents each field.
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    pub summary: &'static str,
    /// The stages of its breakdown.
    pub stages: &'static [&'static str],
    pub lanes: Lanes,
    /// Maximum number of commands in flight per queue.
    pub depth_max: u32,
    /// Pair of registers that set and clear bits of one word.
    pub masks: Option<Masks>,
    /// Whether faults can be injected into its commands.
    pub faults: bool,
    /// The device has raw flash.
    pub bare: bool,
    /// The interface supports live worlds.
    pub live: bool,
    /// Row for a plan with an array.
    pub array: Option<&'static Row>,
    pub check: fn(&Plan) -> Result<(), CheckError>,
    /// Size of the register window, bytes.
    pub register_bytes: fn(&Plan) -> u32,
    /// Array of several devices; none: one device.
    pub members: fn(&Plan) -> Option<&plan::Array>,
    /// PCI function of the device; none: not a PCI function.
    pub function: Option<fn(&Plan) -> Function>,
    /// Number of interrupt vectors of its driver.
    pub vectors: fn(u32) -> u32,
    /// Number of trace queues of its driver.
    pub trace_queues: fn(u32) -> u32,
    /// Additional cores for the driver alone.
    pub own_cores: fn(&Plan) -> u32,
    /// Of the host's cores, the last ones, which run the driver alone.
    pub reserved_cores: fn(&Plan) -> u32,
    /// Adjusts the configuration of the simulated bus.
    pub adjust: fn(&Plan, &mut SimSpec),
    /// The plan without costs that no call by this interface has.
    pub passed: for<'a> fn(&'a Plan) -> Cow<'a, Plan>,
    /// Shared state of several devices on one medium.
    pub share: fn(BackingStore, &Plan, u16) -> Option<Shared>,
    pub(super) simulated: Ends<SimDevice, SimHost>,
    pub(super) in_memory: Option<Ends<LiveDevice, LiveHost>>,
    pub(super) over_vfio_user: Option<Front<VfioUserDevice>>,
}

/// Both sides of an interface on one bus.
pub(super) struct Ends<P: DevicePort, H: HostPort> {
    pub front: Front<P>,
    pub connect: Connect<H>,
}

type Connect<H> = for<'a> fn(Vec<H>, &'a Plan) -> Boxed<'a, Result<Connected<H>, InitError>>;

/// The device side on this port type.
pub struct Front<P: DevicePort> {
    pub start: fn(P, BackingStore, &Plan, &Rc<Faults>),
    pub start_bare: fn(P, Rc<Chips>, &Plan),
    pub divide: fn(BackingStore, &Rt, &Plan) -> Option<Side<P>>,
    pub deal: fn(P, BackingStore, &Plan, &Rc<Faults>, &DeviceThread) -> Option<Dealt>,
}

/// A port type on which device front ends are started.
pub trait DeviceSide: DevicePort + Sized {
    /// Starts an interface's front end on this port type; none: not supported.
    fn front(row: &'static Row) -> Option<&'static Front<Self>>;
}

/// A port type through which drivers are connected.
pub trait HostSide: HostPort {
    /// Connects an interface's driver through this port type; none: not supported.
    fn connect_by(row: &'static Row) -> Option<Connect<Self>>;
}

impl DeviceSide for SimDevice {
    fn front(row: &'static Row) -> Option<&'static Front<SimDevice>> {
        Some(&row.simulated.front)
    }
}

impl DeviceSide for LiveDevice {
    fn front(row: &'static Row) -> Option<&'static Front<LiveDevice>> {
        row.in_memory.as_ref().map(|ends| &ends.front)
    }
}

impl DeviceSide for VfioUserDevice {
    fn front(row: &'static Row) -> Option<&'static Front<VfioUserDevice>> {
        row.over_vfio_user.as_ref()
    }
}

impl HostSide for SimHost {
    fn connect_by(row: &'static Row) -> Option<Connect<SimHost>> {
        Some(row.simulated.connect)
    }
}

impl HostSide for LiveHost {
    fn connect_by(row: &'static Row) -> Option<Connect<LiveHost>> {
        row.in_memory.as_ref().map(|ends| ends.connect)
    }
}

impl Row {
    /// The row for this plan: the array's if the plan has an `[array]` and the interface supports it.
    pub fn of_plan(&'static self, plan: &Plan) -> &'static Row {
        self.array.filter(|_| plan.array.is_some()).unwrap_or(self)
    }

    /// Index of a stage in the breakdown.
    pub fn stage(&self, name: &str) -> Option<usize> {
        self.stages.iter().position(|stage| *stage == name)
    }

    /// The lane of a stage in a timeline.
    ///
    /// # Panics
    /// If the interface has no such stage.
    pub fn lane(&self, stage: usize) -> StageLane {
        lane_of(self.lanes, self.stages[stage]).expect("checked when the row was compiled")
    }

    /// The PCI function that a front end serves.
    ///
    /// # Errors
    /// The device is not a PCI function, or the interface has no live world.
    pub fn require_function(&self, plan: &Plan) -> Result<Function, CheckError> {
        self.require_live()?;
        let function = self.function.ok_or(CheckError::NoFunction { interface: self.name })?;
        Ok(function(plan))
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
        match self.live {
            true => Ok(()),
            false => Err(CheckError::NotLive { interface: self.name }),
        }
    }

    /// Starts the driver, as [`Interface::connect`](super::Interface::connect) does.
    ///
    /// # Errors
    /// The driver fails to start.
    ///
    /// # Panics
    /// If the port type is not supported: callers check [`require_live`](Row::require_live) first.
    pub async fn connect<P: HostSide>(
        &'static self,
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<Connected<P>, InitError> {
        P::connect_by(self).expect("the caller has checked require_live")(ports, plan).await
    }
}

/// A connected driver of any interface. See [`Driver`](super::Driver).
pub struct Connected<P: HostPort> {
    pub row: &'static Row,
    pub(super) driver: Box<dyn Erased<P>>,
}

impl<P: HostPort> Connected<P> {
    /// Runs one clone of a job on the driver's disk on this queue.
    pub fn run(
        &self,
        number: usize,
        rt: &Rt,
        source: Source,
        setup: Setup<P>,
    ) -> Boxed<'static, JobResult> {
        self.driver.run(number, rt.clone(), source, setup)
    }

    /// The disk; each operation on it allocates.
    pub fn disk(&self, number: usize) -> Disk {
        self.driver.disk(number)
    }

    /// See [`Driver::disk_without`](super::Driver::disk_without).
    pub fn disk_without(&self, lost: u64) -> Disk {
        self.driver.disk_without(lost)
    }

    /// See [`Driver::reset`](super::Driver::reset).
    pub async fn reset(&self) -> Result<(), DriverError> {
        self.driver.reset().await
    }

    /// See [`Driver::stop`](super::Driver::stop).
    pub async fn stop(&self) -> Result<(), DriverError> {
        self.driver.stop().await
    }

    /// See [`Driver::recover`](super::Driver::recover).
    pub async fn recover(&self) -> Result<u64, DriverError> {
        self.driver.recover().await
    }

    /// See [`Driver::collector`](super::Driver::collector).
    pub fn collector(&self) -> Option<Collector> {
        self.driver.collector()
    }

    /// See [`Driver::notes`](super::Driver::notes).
    pub fn notes(&self) -> Vec<String> {
        self.driver.notes()
    }

    /// See [`Driver::software`](super::Driver::software).
    pub fn software(&self) -> Option<Stats> {
        self.driver.software()
    }

    /// See [`Driver::memory_bytes`](super::Driver::memory_bytes).
    pub fn memory_bytes(&self) -> u64 {
        self.driver.memory_bytes()
    }

    /// See [`Driver::memory`](super::Driver::memory).
    pub fn memory(&self) -> Option<host_flash::Memory> {
        self.driver.memory()
    }
}

pub(super) trait Erased<P: HostPort> {
    fn run(
        &self,
        number: usize,
        rt: Rt,
        source: Source,
        setup: Setup<P>,
    ) -> Boxed<'static, JobResult>;
    fn disk(&self, number: usize) -> Disk;
    fn disk_without(&self, lost: u64) -> Disk;
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>>;
    fn stop(&self) -> Boxed<'_, Result<(), DriverError>>;
    fn recover(&self) -> Boxed<'_, Result<u64, DriverError>>;
    fn collector(&self) -> Option<Collector>;
    fn notes(&self) -> Vec<String>;
    fn software(&self) -> Option<Stats>;
    fn memory_bytes(&self) -> u64;
    fn memory(&self) -> Option<host_flash::Memory>;
}

/// A disk of any interface. Each operation allocates a box, so it is not for the load generator.
#[derive(Clone)]
pub struct Disk(pub(super) Rc<dyn ErasedDisk>);

type Moved = (Buffer, Result<(), IoError>);

pub(super) trait ErasedDisk {
    fn geometry(&self) -> Geometry;
    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory>;
    fn read(&self, lba: Lba, into: Buffer) -> Boxed<'_, Moved>;
    fn write(&self, lba: Lba, from: Buffer, fua: bool) -> Boxed<'_, Moved>;
    fn flush(&self) -> Boxed<'_, Result<(), IoError>>;
    fn deallocated(&self) -> Deallocated;
    fn deallocate(&self, lba: Lba, blocks: u32) -> Boxed<'_, Result<(), IoError>>;
    fn hint(&self, lba: Lba, blocks: u32, context: Context) -> Boxed<'_, Result<(), IoError>>;
}

impl<D: BlockDevice> ErasedDisk for D {
    fn geometry(&self) -> Geometry {
        BlockDevice::geometry(self)
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        BlockDevice::buffer(self, bytes)
    }

    fn read(&self, lba: Lba, into: Buffer) -> Boxed<'_, Moved> {
        Box::pin(BlockDevice::read(self, lba, into))
    }

    fn write(&self, lba: Lba, from: Buffer, fua: bool) -> Boxed<'_, Moved> {
        Box::pin(BlockDevice::write(self, lba, from, fua))
    }

    fn flush(&self) -> Boxed<'_, Result<(), IoError>> {
        Box::pin(BlockDevice::flush(self))
    }

    fn deallocated(&self) -> Deallocated {
        BlockDevice::deallocated(self)
    }

    fn deallocate(&self, lba: Lba, blocks: u32) -> Boxed<'_, Result<(), IoError>> {
        Box::pin(BlockDevice::deallocate(self, lba, blocks))
    }

    fn hint(&self, lba: Lba, blocks: u32, context: Context) -> Boxed<'_, Result<(), IoError>> {
        Box::pin(BlockDevice::hint(self, lba, blocks, context))
    }
}

impl BlockDevice for Disk {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.0.buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> Moved {
        self.0.read(lba, into).await
    }

    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> Moved {
        self.0.write(lba, from, fua).await
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.0.flush().await
    }

    fn deallocated(&self) -> Deallocated {
        self.0.deallocated()
    }

    async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        self.0.deallocate(lba, blocks).await
    }

    async fn hint(&self, lba: Lba, blocks: u32, context: Context) -> Result<(), IoError> {
        self.0.hint(lba, blocks, context).await
    }
}
