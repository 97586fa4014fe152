//! A connected driver of any interface, and its disks.
//!
//! The I/O path stays typed: the load generator is compiled for the driver's own disk and started through one
//! box per job clone ([`Connected::run`]).

use std::any::Any;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;

use bus::{Buffer, HostPort, OutOfMemory};
use ftl::Stats;
use host::{BlockDevice, Deallocated, Geometry, IoError};
use runtime::Rt;
use wire::Lba;
use wire::nvme::dsm::Context;

use super::array_gc::Collector;
use super::places::{Operation, Places};
use crate::engine::{self, JobResult, Setup};
use crate::error::DriverError;
use crate::work::Source;

/// A future in a box.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

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
    /// Each as itself, and as a disk of any interface.
    disks: Vec<(Rc<dyn Loaded<P>>, Disk)>,
}

impl<P: HostPort> Connected<P> {
    /// A driver, with a disk for each of its callers' queues: one at least.
    pub fn new<D: BlockDevice + Clone + 'static>(
        driver: impl Driver,
        disks: impl IntoIterator<Item = D>,
    ) -> Connected<P> {
        let disks = disks.into_iter().map(|disk| {
            let erased = Disk::of(disk.clone());
            (Rc::new(disk) as Rc<dyn Loaded<P>>, erased)
        });
        Connected { driver: Box::new(driver), disks: disks.collect() }
    }

    fn of_queue(&self, number: usize) -> &(Rc<dyn Loaded<P>>, Disk) {
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
        self.of_queue(number).0.run(rt.clone(), source, setup)
    }

    /// The disk on queue `number` modulo the number of queues.
    pub fn disk(&self, number: usize) -> Disk {
        self.of_queue(number).1.clone()
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
        let disk: &dyn Any = &*self.of_queue(number).0;
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
trait Loaded<P: HostPort>: Any {
    fn run(&self, rt: Rt, source: Source, setup: Setup<P>) -> Boxed<'static, JobResult>;
}

impl<P: HostPort, D: BlockDevice + Clone + 'static> Loaded<P> for D {
    fn run(&self, rt: Rt, source: Source, setup: Setup<P>) -> Boxed<'static, JobResult> {
        let disk = self.clone();
        Box::pin(async move { engine::run(&rt, source, disk, setup).await })
    }
}

/// A disk of any interface. In steady state its reads and writes allocate nothing.
#[derive(Clone)]
pub struct Disk(Rc<dyn ErasedDisk>);

type Moved = (Buffer, Result<(), IoError>);

trait ErasedDisk {
    fn geometry(&self) -> Geometry;
    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory>;
    fn read(&self, lba: Lba, into: Buffer) -> Operation;
    fn boxed_read(&self, lba: Lba, into: Buffer) -> Boxed<'_, Moved>;
    fn write(&self, lba: Lba, from: Buffer, fua: bool) -> Operation;
    fn flush(&self) -> Boxed<'_, Result<(), IoError>>;
    fn deallocated(&self) -> Deallocated;
    fn deallocate(&self, lba: Lba, blocks: u32) -> Boxed<'_, Result<(), IoError>>;
    fn hint(&self, lba: Lba, blocks: u32, context: Context) -> Boxed<'_, Result<(), IoError>>;
}

/// A disk, and functions that make the futures of its reads and writes, whose types have no names.
struct Typed<D, R, F, W, G> {
    disk: D,
    read: R,
    reads: Places<F>,
    write: W,
    writes: Places<G>,
}

impl<D, R, F, W, G> ErasedDisk for Typed<D, R, F, W, G>
where
    D: BlockDevice + Clone + 'static,
    R: Fn(D, Lba, Buffer) -> F,
    F: Future<Output = Moved> + 'static,
    W: Fn(D, Lba, Buffer, bool) -> G,
    G: Future<Output = Moved> + 'static,
{
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.disk.buffer(bytes)
    }

    fn read(&self, lba: Lba, into: Buffer) -> Operation {
        self.reads.begin((self.read)(self.disk.clone(), lba, into))
    }

    fn boxed_read(&self, lba: Lba, into: Buffer) -> Boxed<'_, Moved> {
        Box::pin(self.disk.read(lba, into))
    }

    fn write(&self, lba: Lba, from: Buffer, fua: bool) -> Operation {
        self.writes.begin((self.write)(self.disk.clone(), lba, from, fua))
    }

    fn flush(&self) -> Boxed<'_, Result<(), IoError>> {
        Box::pin(self.disk.flush())
    }

    fn deallocated(&self) -> Deallocated {
        self.disk.deallocated()
    }

    fn deallocate(&self, lba: Lba, blocks: u32) -> Boxed<'_, Result<(), IoError>> {
        Box::pin(self.disk.deallocate(lba, blocks))
    }

    fn hint(&self, lba: Lba, blocks: u32, context: Context) -> Boxed<'_, Result<(), IoError>> {
        Box::pin(self.disk.hint(lba, blocks, context))
    }
}

impl Disk {
    pub(super) fn of(disk: impl BlockDevice + Clone + 'static) -> Disk {
        Disk::made_of(
            disk,
            |disk, lba, into| async move { disk.read(lba, into).await },
            |disk, lba, from, fua| async move { disk.write(lba, from, fua).await },
        )
    }

    fn made_of<D, F, G>(
        disk: D,
        read: impl Fn(D, Lba, Buffer) -> F + 'static,
        write: impl Fn(D, Lba, Buffer, bool) -> G + 'static,
    ) -> Disk
    where
        D: BlockDevice + Clone + 'static,
        F: Future<Output = Moved> + 'static,
        G: Future<Output = Moved> + 'static,
    {
        let (reads, writes) = (Places::default(), Places::default());
        Disk(Rc::new(Typed { disk, read, reads, write, writes }))
    }

    /// A read as the driver's own future, in a box: for measurements of the driver alone.
    pub fn boxed_read(&self, lba: Lba, into: Buffer) -> Boxed<'_, Moved> {
        self.0.boxed_read(lba, into)
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
