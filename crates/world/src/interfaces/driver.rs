//! A connected driver of any interface, and its disks.
//!
//! The I/O path stays typed: the load generator is compiled for the driver's own disk and started through one
//! box per job clone ([`Connected::run`]).

use std::any::Any;
use std::ops::Deref;
use std::rc::Rc;

use bus::{Buffer, HostPort, OutOfMemory};
use ftl::Stats;
use host::{BlockDevice, Deallocated, Geometry, IoError};
use runtime::Rt;
use wire::Lba;
use wire::nvme::dsm::Context;

use super::array_gc::Collector;
use super::row::Boxed;
use crate::engine::{self, JobResult, Setup, Source};
use crate::error::DriverError;

/// Control of a connected driver by a world, beside the I/O of its disks.
pub trait Driver: Any {
    /// Resets the device; commands may be in flight.
    fn reset(&self) -> Boxed<'_, Result<(), DriverError>>;

    fn stop(&self) -> Boxed<'_, Result<(), DriverError>>;

    /// Repairs the host's state after a power cut of the device. Returns the number of repairs.
    fn recover(&self) -> Boxed<'_, Result<u64, DriverError>> {
        Box::pin(core::future::ready(Ok(0)))
    }

    /// The disk in a degraded state selected by `lost`: an array with parity without one member. Only for
    /// reads; none: it has no such state.
    fn disk_without(&self, _lost: u64) -> Option<Disk> {
        None
    }

    /// External control of the garbage collector, if the FTL is in the driver.
    fn collector(&self) -> Option<Collector> {
        None
    }

    /// Driver statistics of a run as lines of text.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Statistics of the FTL, if it is in the driver.
    fn software(&self) -> Option<Stats> {
        None
    }

    /// Host memory of the driver that the device cannot access, bytes.
    fn memory_bytes(&self) -> u64 {
        self.software().map_or(0, |software| software.memory_bytes)
    }

    /// Host memory of an FTL in the driver, by what it grows with; otherwise none.
    fn memory(&self) -> Option<host_flash::Memory> {
        None
    }
}

/// A connected driver of any interface.
pub struct Connected<P: HostPort> {
    driver: Box<dyn Driver>,
    disks: Vec<Rc<dyn Loaded<P>>>,
}

impl<P: HostPort> Connected<P> {
    /// A driver, with a disk for each of its callers' queues: one at least.
    pub fn new<D: BlockDevice + Clone + 'static>(
        driver: impl Driver,
        disks: impl IntoIterator<Item = D>,
    ) -> Connected<P> {
        let disks = disks.into_iter().map(|disk| Rc::new(disk) as Rc<dyn Loaded<P>>);
        Connected { driver: Box::new(driver), disks: disks.collect() }
    }

    fn loaded(&self, number: usize) -> &Rc<dyn Loaded<P>> {
        &self.disks[number % self.disks.len()]
    }

    /// Runs one clone of a job on the disk on queue `number` modulo the number of queues.
    pub fn run(
        &self,
        number: usize,
        rt: &Rt,
        source: Source,
        setup: Setup<P>,
    ) -> Boxed<'static, JobResult> {
        self.loaded(number).run(rt.clone(), source, setup)
    }

    /// The disk on queue `number` modulo the number of queues; each operation on it allocates.
    pub fn disk(&self, number: usize) -> Disk {
        Disk(self.loaded(number).clone())
    }

    /// The disk on queue 0 in a degraded state, if the driver has [one](Driver::disk_without).
    pub fn disk_without(&self, lost: u64) -> Disk {
        self.driver.disk_without(lost).unwrap_or_else(|| self.disk(0))
    }

    /// The driver's disk itself.
    ///
    /// # Panics
    /// If it is of another type.
    pub fn typed_disk<D: Clone + 'static>(&self, number: usize) -> D {
        let disk: &dyn Any = &**self.loaded(number);
        disk.downcast_ref::<D>().expect("the disk of the row's driver").clone()
    }

    /// The driver itself.
    ///
    /// # Panics
    /// If it is of another type.
    pub fn typed<D: Driver>(&self) -> &D {
        let driver: &dyn Any = &*self.driver;
        driver.downcast_ref().expect("the row's driver")
    }
}

impl<P: HostPort> Deref for Connected<P> {
    type Target = dyn Driver;

    fn deref(&self) -> &dyn Driver {
        &*self.driver
    }
}

/// A disk on which the load generator runs.
trait Loaded<P: HostPort>: ErasedDisk {
    fn run(&self, rt: Rt, source: Source, setup: Setup<P>) -> Boxed<'static, JobResult>;
}

impl<P: HostPort, D: BlockDevice + Clone + 'static> Loaded<P> for D {
    fn run(&self, rt: Rt, source: Source, setup: Setup<P>) -> Boxed<'static, JobResult> {
        let disk = self.clone();
        Box::pin(async move { engine::run(&rt, source, disk, setup).await })
    }
}

/// A disk of any interface. Each operation allocates a box, so it is not for the load generator.
#[derive(Clone)]
pub struct Disk(Rc<dyn ErasedDisk>);

type Moved = (Buffer, Result<(), IoError>);

trait ErasedDisk: Any {
    fn geometry(&self) -> Geometry;
    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory>;
    fn read(&self, lba: Lba, into: Buffer) -> Boxed<'_, Moved>;
    fn write(&self, lba: Lba, from: Buffer, fua: bool) -> Boxed<'_, Moved>;
    fn flush(&self) -> Boxed<'_, Result<(), IoError>>;
    fn deallocated(&self) -> Deallocated;
    fn deallocate(&self, lba: Lba, blocks: u32) -> Boxed<'_, Result<(), IoError>>;
    fn hint(&self, lba: Lba, blocks: u32, context: Context) -> Boxed<'_, Result<(), IoError>>;
}

impl<D: BlockDevice + 'static> ErasedDisk for D {
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

impl Disk {
    pub(super) fn of(disk: impl BlockDevice + 'static) -> Disk {
        Disk(Rc::new(disk))
    }

    /// A read in the one box that each operation allocates.
    pub fn boxed_read(&self, lba: Lba, into: Buffer) -> Boxed<'_, Moved> {
        self.0.read(lba, into)
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
