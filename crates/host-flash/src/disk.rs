//! Disk of the driver: each operation runs the FTL on its caller's core.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::pin;

use bus::{Buffer, Cost, HostPort, OutOfMemory};
use ftl::{Cache, Error, Ftl};
use runtime::{Either, Pool, Stage, race};
use wire::Lba;

use super::Options;
use super::flash::Remote;
use host::{BlockDevice, Deallocated, Geometry, IoError, Kind};

/// Handle on the disk, for one core. Clones share its state.
pub struct Disk<P: HostPort> {
    shared: Rc<Shared<P>>,
    /// Index of its port in `Remote::ports`.
    number: usize,
    map: Cost,
    copy: Cost,
}

impl<P: HostPort> Clone for Disk<P> {
    fn clone(&self) -> Disk<P> {
        Disk { shared: self.shared.clone(), ..*self }
    }
}

struct Shared<P: HostPort> {
    remote: Rc<Remote<P>>,
    software: Ftl<Remote<P>>,
    geometry: Geometry,
    unit_bytes: u32,
    /// Pool of identifiers for operations in progress.
    free: Pool<u16>,
    /// Scratch buffers for writes, reused between operations.
    rooms: RefCell<Vec<Vec<u8>>>,
    wait: Stage,
    buffer: Stage,
    flush: Stage,
}

pub(super) fn disks<P: HostPort>(
    remote: &Rc<Remote<P>>,
    software: &Ftl<Remote<P>>,
    options: &Options,
) -> Vec<Disk<P>> {
    let rt = &remote.rt;
    let shared = Rc::new(Shared {
        remote: remote.clone(),
        software: software.clone(),
        geometry: Geometry {
            blocks: software.blocks(),
            block_bytes: software.block_bytes(),
            transfer_bytes_max: options.transfer_bytes_max,
            buffer_align: 4,
            volatile_cache: options.software.cache == Cache::Volatile,
        },
        unit_bytes: remote.shape.unit_bytes,
        free: Pool::new((0..options.operations).rev()),
        rooms: RefCell::default(),
        wait: rt.stage("operation wait"),
        buffer: rt.stage("buffer wait"),
        flush: rt.stage("flush"),
    });
    let disk = |number: usize| Disk {
        shared: shared.clone(),
        number,
        map: remote.ports[number].cost("map"),
        copy: remote.ports[number].cost("copy"),
    };
    (0..remote.ports.len()).map(disk).collect()
}

/// Runs `work` until it ends, or an endpoint is gone.
pub(super) async fn or_gone<P: HostPort, T>(
    remote: &Remote<P>,
    work: impl Future<Output = T>,
) -> Option<T> {
    match race(work, remote.gone.changed(&remote.rt, 0)).await {
        Either::First(done) => Some(done),
        Either::Second(()) => None,
    }
}

/// Identifier of an operation in progress.
struct Number<'a, P: HostPort> {
    shared: &'a Shared<P>,
    number: u16,
}

impl<P: HostPort> Drop for Number<'_, P> {
    fn drop(&mut self) {
        self.shared.free.give(&self.shared.remote.rt, self.number);
    }
}

impl<P: HostPort> Disk<P> {
    /// Waits for an identifier and begins the operation's request trace.
    async fn begin(&self) -> Number<'_, P> {
        let (shared, rt) = (&*self.shared, &self.shared.remote.rt);
        let since = (shared.free.available() == 0).then(|| rt.now());
        let number = match shared.free.try_take() {
            Some(number) => number,
            None => shared.free.take(rt).await,
        };
        rt.begin_trace(0, number, since.unwrap_or_else(|| rt.now()));
        rt.record(shared.wait);
        Number { shared, number }
    }

    /// Runs FTL work with its costs on this disk's core.
    async fn ask<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Kind> {
        let (remote, mut work) = (&self.shared.remote, pin!(work));
        let here = poll_fn(|cx| {
            let before = remote.current.replace(self.number);
            let polled = work.as_mut().poll(cx);
            remote.current.set(before);
            polled
        });
        match or_gone(remote, here).await {
            Some(done) => done.map_err(|error| match error {
                Error::Range => Kind::OutOfRange,
                _ => Kind::MediaFailed,
            }),
            None => Err(Kind::Gone),
        }
    }

    /// Number of mapping units that these bytes touch.
    fn units(&self, lba: Lba, bytes: usize) -> u32 {
        let (block, unit) = (u64::from(self.shared.geometry.block_bytes), self.shared.unit_bytes);
        let (begin, unit) = (lba.0 * block, u64::from(unit));
        ((begin + bytes as u64).div_ceil(unit) - begin / unit) as u32
    }

    async fn spend(&self, cost: Cost, times: u32) {
        self.shared.remote.ports[self.number].spend_times(cost, times).await;
    }

    /// Reads blocks from `lba` until `into` is full: looks up the map, reads each page into host memory, and
    /// copies the requested bytes.
    pub async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let blocks = match self.shared.geometry.validate(lba, &into) {
            Ok(blocks) => blocks,
            Err(error) => return (into, Err(error)),
        };
        let _number = self.begin().await;
        let units = self.units(lba, into.bytes());
        self.spend(self.map, units).await;
        let mut done = self.fetch(lba, blocks, &into).await;
        if done == Ok(false) {
            // Pages were evicted before the last one arrived. A single unit cannot be evicted.
            done = self.fetch_by_units(lba, blocks, &into).await;
        }
        self.spend(self.copy, units).await;
        (into, done.map(|_| ()).map_err(|kind| IoError::of(kind, Some(lba))))
    }

    /// Reads blocks and copies them; returns false if a page was evicted before the end.
    async fn fetch(&self, lba: Lba, blocks: u32, into: &Buffer) -> Result<bool, Kind> {
        let (software, remote) = (&self.shared.software, &self.shared.remote);
        self.ask(software.read(lba.0, blocks)).await?;
        remote.missed.set(false);
        let mut seen = 0;
        let zeros = |from: usize, to: usize| {
            if from < to {
                into.part(from, to - from).zero();
            }
        };
        let lent = software.lend(lba.0, blocks, &mut |at, run| {
            zeros(seen, at as usize);
            into.copy_in(at as usize, run);
            seen = at as usize + run.len();
        });
        match lent {
            Ok(()) => {
                zeros(seen, into.bytes());
                Ok(true)
            }
            Err(_) if remote.missed.get() => Ok(false),
            Err(_) => Err(Kind::MediaFailed),
        }
    }

    async fn fetch_by_units(&self, lba: Lba, blocks: u32, into: &Buffer) -> Result<bool, Kind> {
        let block_bytes = self.shared.geometry.block_bytes;
        let per_unit = u64::from(self.shared.unit_bytes / block_bytes);
        let (mut at, end) = (lba.0, lba.0 + u64::from(blocks));
        while at < end {
            let next = ((at / per_unit + 1) * per_unit).min(end);
            let offset = (at - lba.0) as usize * block_bytes as usize;
            let bytes = (next - at) as usize * block_bytes as usize;
            let part = into.part(offset, bytes);
            if !self.fetch(Lba(at), (next - at) as u32, &part).await? {
                return Err(Kind::MediaFailed);
            }
            at = next;
        }
        Ok(true)
    }

    /// Writes all of `from` to the blocks from `lba`: into the write buffer in host memory, and with `fua` to
    /// flash.
    pub async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        if let Err(error) = self.shared.geometry.validate(lba, &from) {
            return (from, Err(error));
        }
        let _number = self.begin().await;
        let (shared, software) = (&self.shared, &self.shared.software);
        let units = self.units(lba, from.bytes());
        self.spend(self.map, units).await;
        self.spend(self.copy, units).await;
        let mut room = shared.rooms.borrow_mut().pop().unwrap_or_default();
        room.resize(from.bytes(), 0);
        from.copy_out(0, &mut room);
        let mut done = self.ask(software.write(lba.0, &room)).await;
        shared.rooms.borrow_mut().push(room);
        shared.remote.rt.record(shared.buffer);
        if fua && done.is_ok() {
            done = self.ask(software.flush()).await;
            shared.remote.rt.record(shared.flush);
        }
        (from, done.map_err(|kind| IoError::of(kind, Some(lba))))
    }

    /// Writes all earlier data to flash.
    pub async fn flush(&self) -> Result<(), IoError> {
        let _number = self.begin().await;
        self.spend(self.map, 1).await;
        let done = self.ask(self.shared.software.flush()).await;
        self.shared.remote.rt.record(self.shared.flush);
        done.map_err(|kind| IoError::of(kind, None))
    }
}

impl<P: HostPort> Disk<P> {
    /// Deallocates blocks: they read as zeros, and their space is free.
    pub async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        let _number = self.begin().await;
        self.spend(self.map, self.units(lba, 1)).await;
        let done = self.ask(self.shared.software.trim(lba.0, blocks)).await;
        self.shared.remote.rt.record(self.shared.buffer);
        done.map_err(|kind| IoError::of(kind, Some(lba)))
    }
}

impl<P: HostPort> BlockDevice for Disk<P> {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.shared.remote.ports[self.number].arena().buffer(bytes)
    }

    fn deallocated(&self) -> Deallocated {
        Deallocated::Zeros
    }

    host::carried_out!(self => self, read, write, flush, deallocate);
}
