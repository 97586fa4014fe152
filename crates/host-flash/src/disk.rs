//! Disk of the driver: each operation runs the FTL on its caller's core.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::{Future, poll_fn};
use core::pin::pin;

use bus::{Buffer, Cost, HostPort, OutOfMemory};
use ftl::{Cache, Error, Ftl, Run};
use runtime::{Either, Pool, Stage, race, stage};
use wire::Lba;

use super::Options;
use super::flash::Remote;
use host::{BlockDevice, Deallocated, Geometry, IoError, Kind};

/// Handle on the disk, for one core. Clones share its state.
pub struct Disk<P: HostPort> {
    shared: Rc<Shared<P>>,
    /// Index in `Remote::ports` of the port that runs its operations: its caller's, or one of the FTL's own.
    number: usize,
    /// Caller's port and cost of handing over, if the FTL has its own.
    caller: Option<(usize, Cost)>,
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
        wait: stage!(rt, crate::STAGES, "operation wait"),
        buffer: stage!(rt, ftl::STAGES, "buffer wait"),
        flush: stage!(rt, ftl::STAGES, "flush"),
    });
    let all = remote.ports.len();
    let own = usize::from(options.own_ports).min(all - 1);
    let callers = all - own;
    let disk = |caller: usize| {
        let number = if own > 0 { callers + caller % own } else { caller };
        Disk {
            shared: shared.clone(),
            number,
            caller: (own > 0).then(|| (caller, remote.ports[caller].cost("hand over"))),
            map: remote.ports[number].cost("map"),
            copy: remote.ports[number].cost("copy"),
        }
    };
    (0..callers).map(disk).collect()
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
    fn units(&self, lba: Lba, bytes: u64) -> u32 {
        let (block, unit) = (u64::from(self.shared.geometry.block_bytes), self.shared.unit_bytes);
        let (begin, unit) = (lba.0 * block, u64::from(unit));
        ((begin + bytes).div_ceil(unit) - begin / unit) as u32
    }

    /// Passes an operation from the caller's core to the FTL's, or its end back.
    async fn hand_over(&self) {
        if let Some((caller, cost)) = self.caller {
            self.shared.remote.ports[caller].spend(cost).await;
        }
    }

    async fn spend(&self, cost: Cost, times: u32) {
        self.shared.remote.ports[self.number].spend_times(cost, times).await;
    }

    /// Reads blocks from `lba` until `into` is full: looks up the map, reads each page into host memory, and
    /// copies the requested bytes. The copy of a page follows its read at once, so that no page is evicted
    /// before it; units that moved during the read are read again in one operation.
    pub async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let blocks = match self.shared.geometry.validate(lba, &into) {
            Ok(blocks) => blocks,
            Err(error) => return (into, Err(error)),
        };
        let _number = self.begin().await;
        self.hand_over().await;
        let units = self.units(lba, into.bytes() as u64);
        self.spend(self.map, units).await;
        let mut put = |at: u32, run: Run<'_>| match run {
            Run::Bytes(bytes) => into.copy_in(at as usize, bytes),
            Run::Zeros(bytes) => into.part(at as usize, bytes as usize).zero(),
        };
        let done = self.ask(self.shared.software.read_to(lba.0, blocks, &mut put)).await;
        self.spend(self.copy, units).await;
        self.hand_over().await;
        (into, done.map_err(|kind| IoError::of(kind, Some(lba))))
    }

    /// Writes all of `from` to the blocks from `lba`: into the write buffer in host memory, and with `fua` to
    /// flash.
    pub async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        if let Err(error) = self.shared.geometry.validate(lba, &from) {
            return (from, Err(error));
        }
        let _number = self.begin().await;
        self.hand_over().await;
        let (shared, software) = (&self.shared, &self.shared.software);
        let units = self.units(lba, from.bytes() as u64);
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
        self.hand_over().await;
        (from, done.map_err(|kind| IoError::of(kind, Some(lba))))
    }

    /// Writes all earlier data to flash.
    pub async fn flush(&self) -> Result<(), IoError> {
        let _number = self.begin().await;
        self.hand_over().await;
        self.spend(self.map, 1).await;
        let done = self.ask(self.shared.software.flush()).await;
        self.shared.remote.rt.record(self.shared.flush);
        self.hand_over().await;
        done.map_err(|kind| IoError::of(kind, None))
    }
}

impl<P: HostPort> Disk<P> {
    /// Deallocates blocks: they read as zeros, and their space is free. Costs one change of the map per
    /// mapping unit.
    pub async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        let geometry = self.shared.geometry;
        geometry.validate_range(lba, blocks.into())?;
        let _number = self.begin().await;
        self.hand_over().await;
        // Each unit is changed in the map, like one that is read or written.
        let bytes = u64::from(blocks) * u64::from(geometry.block_bytes);
        self.spend(self.map, self.units(lba, bytes)).await;
        let done = self.ask(self.shared.software.trim(lba.0, blocks)).await;
        self.shared.remote.rt.record(self.shared.buffer);
        self.hand_over().await;
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
