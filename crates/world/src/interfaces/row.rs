//! Type-erased interfaces: a registry row of function pointers, a connected driver, a disk.
//!
//! [`Row::of`] erases an interface's types. The I/O path stays typed: the load generator is compiled for the
//! driver's own disk and started through one box per job clone ([`Connected::run`]).

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use bus::live::{LiveDevice, LiveHost};
use bus::sim::{SimDevice, SimHost, SimSpec};
use bus::vfio_user::{Function, VfioUserDevice};
use bus::{Buffer, DevicePort, HostPort, Masks, OutOfMemory};
use device::faults::Faults;
use device::flash::Chips;
use ftl::Stats;
use host::{BlockDevice, Deallocated, Geometry, InitError, IoError};
use runtime::{Rt, STAGES_MAX};
use wire::Lba;

use super::collections::Collector;
use super::interface::{Driver, Interface};
use super::shared::Shared;
use crate::engine::{self, JobResult, Setup, Source};
use crate::medium::BackingStore;
use plan::Plan;

/// A future in a box.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A registry entry of an interface. [`Interface`] documents each field.
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// The stages of its breakdown.
    pub stages: &'static [&'static str],
    /// Commands of one queue in flight, at most.
    pub depth_max: u32,
    /// Two registers that are one word.
    pub masks: Option<Masks>,
    /// Whether a plan's faults can strike its commands.
    pub faults: bool,
    /// Whether its device has bare flash.
    pub bare: bool,
    /// Whether it has a live world.
    pub live: bool,
    /// Its row for a plan with an array.
    pub array: Option<&'static Row>,
    pub check: fn(&Plan) -> Result<(), String>,
    /// Bytes of its register window.
    pub register_bytes: fn(&Plan) -> u32,
    /// The array that its devices are.
    pub members: fn(&Plan) -> Option<&plan::Array>,
    /// The PCI function that its device is.
    pub function: Option<fn(&Plan) -> Function>,
    /// Queue numbers of its driver's journeys.
    pub trace_queues: fn(u32) -> u32,
    /// Cores that its driver has to itself.
    pub own_cores: fn(&Plan) -> u32,
    /// What the modelled bus is for it alone.
    pub adjust: fn(&Plan, &mut SimSpec),
    /// What several of its devices share.
    pub share: fn(BackingStore, &Plan, u16) -> Option<Shared>,
    simulated: Ends<SimDevice, SimHost>,
    in_memory: Option<Ends<LiveDevice, LiveHost>>,
    over_vfio_user: Option<Front<VfioUserDevice>>,
}

/// Both ends of an interface, at the ports of one bus.
struct Ends<P: DevicePort, H: HostPort> {
    front: Front<P>,
    connect: Connect<H>,
}

type Connect<H> = for<'a> fn(Vec<H>, &'a Plan) -> Boxed<'a, Result<Connected<H>, InitError>>;

/// The device's end, at a port of this kind.
pub struct Front<P: DevicePort> {
    pub start: fn(P, BackingStore, &Plan, &Rc<Faults>),
    pub start_bare: fn(P, Rc<Chips>, &Plan),
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

impl<P: DevicePort> Front<P> {
    const fn of<I: Interface>() -> Front<P> {
        Front { start: I::start::<P>, start_bare: I::start_bare::<P> }
    }
}

impl<P: DevicePort, H: HostPort> Ends<P, H> {
    const fn of<I: Interface>() -> Ends<P, H> {
        Ends { front: Front::of::<I>(), connect: connect::<I, H> }
    }
}

fn connect<I: Interface, H: HostPort>(
    ports: Vec<H>,
    plan: &Plan,
) -> Boxed<'_, Result<Connected<H>, InitError>> {
    Box::pin(async {
        let driver = Box::new(I::connect(ports, plan).await?);
        Ok(Connected { row: I::ROW, driver })
    })
}

impl Row {
    /// The row of an interface. Only the port types that it supports are compiled.
    pub const fn of<I: Interface>() -> Row {
        // An interface with more stages does not compile.
        assert!(I::STAGES.len() <= STAGES_MAX);
        Row {
            name: I::NAME,
            summary: I::SUMMARY,
            stages: I::STAGES,
            depth_max: I::DEPTH_MAX,
            masks: I::MASKS,
            faults: I::FAULTS,
            bare: I::BARE,
            live: I::LIVE,
            array: I::ARRAY,
            check: I::check,
            register_bytes: I::register_bytes,
            members: I::members,
            function: I::FUNCTION,
            trace_queues: I::trace_queues,
            own_cores: I::own_cores,
            adjust: I::adjust,
            share: I::share,
            simulated: Ends::of::<I>(),
            in_memory: if I::LIVE { Some(Ends::of::<I>()) } else { None },
            over_vfio_user: match I::FUNCTION {
                Some(_) if I::LIVE => Some(Front::of::<I>()),
                _ => None,
            },
        }
    }

    /// The row for this plan: the array's if the plan has an `[array]` and the interface supports it.
    pub fn of_plan(&'static self, plan: &Plan) -> &'static Row {
        self.array.filter(|_| plan.array.is_some()).unwrap_or(self)
    }

    /// The place of a stage in its breakdown.
    pub fn stage(&self, name: &str) -> Option<usize> {
        self.stages.iter().position(|stage| *stage == name)
    }

    /// The PCI function that a front end serves.
    ///
    /// # Errors
    /// Its device is none.
    pub fn served_function(&self, plan: &Plan) -> Result<Function, String> {
        self.check_live()?;
        let function =
            self.function.ok_or_else(|| format!("{} is not a PCI function", self.name))?;
        Ok(function(plan))
    }

    /// It has a live world.
    ///
    /// # Errors
    /// It has none.
    pub fn check_live(&self) -> Result<(), String> {
        match self.live {
            true => Ok(()),
            false => Err(format!(
                "interface {}: found a live world, expected doorbell run --world sim",
                self.name
            )),
        }
    }

    /// Starts the driver, as [`Interface::connect`] does.
    ///
    /// # Errors
    /// The device does not come up.
    ///
    /// # Panics
    /// If it has no such world: what builds one asks [`check_live`](Row::check_live) first.
    pub async fn connect<P: HostSide>(
        &'static self,
        ports: Vec<P>,
        plan: &Plan,
    ) -> Result<Connected<P>, InitError> {
        P::connect_by(self).expect("asked before")(ports, plan).await
    }
}

/// A connected driver of any interface. See [`Driver`].
pub struct Connected<P: HostPort> {
    pub row: &'static Row,
    driver: Box<dyn Erased<P>>,
}

impl<P: HostPort> Connected<P> {
    /// Runs one clone of a job on the driver's own disk, by its queue of this number.
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

    /// See [`Driver::disk_without`].
    pub fn disk_without(&self, lost: u64) -> Disk {
        self.driver.disk_without(lost)
    }

    /// See [`Driver::reset`].
    pub async fn reset(&self) -> Result<(), String> {
        self.driver.reset().await
    }

    /// See [`Driver::stop`].
    pub async fn stop(&self) -> Result<(), String> {
        self.driver.stop().await
    }

    /// See [`Driver::recover`].
    pub async fn recover(&self) -> Result<u64, String> {
        self.driver.recover().await
    }

    /// See [`Driver::collector`].
    pub fn collector(&self) -> Option<Collector> {
        self.driver.collector()
    }

    /// See [`Driver::notes`].
    pub fn notes(&self) -> Vec<String> {
        self.driver.notes()
    }

    /// See [`Driver::software`].
    pub fn software(&self) -> Option<Stats> {
        self.driver.software()
    }

    /// See [`Driver::memory_bytes`].
    pub fn memory_bytes(&self) -> u64 {
        self.driver.memory_bytes()
    }
}

trait Erased<P: HostPort> {
    fn run(
        &self,
        number: usize,
        rt: Rt,
        source: Source,
        setup: Setup<P>,
    ) -> Boxed<'static, JobResult>;
    fn disk(&self, number: usize) -> Disk;
    fn disk_without(&self, lost: u64) -> Disk;
    fn reset(&self) -> Boxed<'_, Result<(), String>>;
    fn stop(&self) -> Boxed<'_, Result<(), String>>;
    fn recover(&self) -> Boxed<'_, Result<u64, String>>;
    fn collector(&self) -> Option<Collector>;
    fn notes(&self) -> Vec<String>;
    fn software(&self) -> Option<Stats>;
    fn memory_bytes(&self) -> u64;
}

impl<P: HostPort, D: Driver<P>> Erased<P> for D {
    fn run(
        &self,
        number: usize,
        rt: Rt,
        source: Source,
        setup: Setup<P>,
    ) -> Boxed<'static, JobResult> {
        let disk = Driver::disk(self, number);
        Box::pin(async move { engine::run(&rt, source, disk, setup).await })
    }

    fn disk(&self, number: usize) -> Disk {
        Disk(Rc::new(Driver::disk(self, number)))
    }

    fn disk_without(&self, lost: u64) -> Disk {
        Disk(Rc::new(Driver::disk_without(self, lost)))
    }

    fn reset(&self) -> Boxed<'_, Result<(), String>> {
        Box::pin(Driver::reset(self))
    }

    fn stop(&self) -> Boxed<'_, Result<(), String>> {
        Box::pin(Driver::stop(self))
    }

    fn recover(&self) -> Boxed<'_, Result<u64, String>> {
        Box::pin(Driver::recover(self))
    }

    fn collector(&self) -> Option<Collector> {
        Driver::collector(self)
    }

    fn notes(&self) -> Vec<String> {
        Driver::notes(self)
    }

    fn software(&self) -> Option<Stats> {
        Driver::software(self)
    }

    fn memory_bytes(&self) -> u64 {
        Driver::memory_bytes(self)
    }
}

/// A disk of any interface. Each operation allocates a box, so it is not for the load generator.
#[derive(Clone)]
pub struct Disk(Rc<dyn ErasedDisk>);

type Moved = (Buffer, Result<(), IoError>);

trait ErasedDisk {
    fn geometry(&self) -> Geometry;
    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory>;
    fn read(&self, lba: Lba, into: Buffer) -> Boxed<'_, Moved>;
    fn write(&self, lba: Lba, from: Buffer, fua: bool) -> Boxed<'_, Moved>;
    fn flush(&self) -> Boxed<'_, Result<(), IoError>>;
    fn deallocated(&self) -> Deallocated;
    fn deallocate(&self, lba: Lba, blocks: u32) -> Boxed<'_, Result<(), IoError>>;
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
}
