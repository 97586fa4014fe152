//! A whole drive as a block device, through an engine.

use alloc::rc::Rc;
use core::cell::Cell;

use bus::{Buffer, Cost, HostPort, OutOfMemory};
use wire::fastpath::{Direction, Refusal, Request, SIZE_MAX, Status, Transfer};
use wire::{BusAddr, Lba};

use super::engine::Engine;
use super::function::Shared;
use super::table::{Area, Handle, OpenError};
use crate::{BlockDevice, Geometry, IoError, Kind};

/// Smallest block of a request in bytes.
const BLOCK_MIN: u64 = 512;

/// A drive with an engine of its own, for one caller on its own core: one handle covers the whole drive and
/// all host memory.
pub struct Disk<P: HostPort>(Rc<Whole<P>>);

impl<P: HostPort> Clone for Disk<P> {
    fn clone(&self) -> Disk<P> {
        Disk(self.0.clone())
    }
}

struct Whole<P: HostPort> {
    engine: Engine<P>,
    port: P,
    handle: Handle,
    /// Base address of the handle's memory.
    base: BusAddr,
    block_size: u32,
    tag: Cell<u16>,
    request: Cost,
    take_response: Cost,
}

impl<P: HostPort> Disk<P> {
    /// Creates the disk of a caller on `port`. Requests are split into commands of `block_size` bytes, or
    /// smaller if their length is no multiple of it.
    ///
    /// # Errors
    /// No handle left.
    pub fn new(engine: &Engine<P>, port: &P, block_size: u32) -> Result<Disk<P>, OpenError> {
        let memory = port.arena().memory();
        let (base, bytes) = (memory.base(), memory.bytes() as u64);
        let area = Area { first: Lba(0), blocks: engine.geometry().blocks, at: base, bytes };
        Ok(Disk(Rc::new(Whole {
            handle: engine.open_over(area)?,
            engine: engine.clone(),
            base,
            block_size,
            tag: Cell::new(0),
            request: port.cost("request"),
            take_response: port.cost("take response"),
            port: port.clone(),
        })))
    }

    /// Passes its blocks through `function` from now on.
    ///
    /// # Errors
    /// Requests are in flight, or there is no memory for staging.
    pub fn pass_through(&self, function: Shared) -> Result<(), OpenError> {
        self.0.engine.pass_through(self.0.handle, function)
    }

    async fn transfer(
        &self,
        direction: Direction,
        lba: Lba,
        buffer: Buffer,
    ) -> (Buffer, Result<(), IoError>) {
        let whole = &*self.0;
        if let Err(error) = self.geometry().validate(lba, &buffer) {
            return (buffer, Err(error));
        }
        let (at, bytes) = (buffer.at().0 - whole.base.0, buffer.bytes() as u64);
        let block_size = (1 << (at | bytes).trailing_zeros()).min(u64::from(whole.block_size));
        if block_size < BLOCK_MIN.max(u64::from(self.geometry().block_bytes)) {
            let why = "a buffer that begins at a multiple of its blocks, at least of 512 bytes";
            return (buffer, Err(IoError::refused(Kind::Refused, lba, why)));
        }
        let transfer = Transfer {
            direction,
            offset: lba.0 * u64::from(self.geometry().block_bytes),
            size: bytes as u32,
            block_size: block_size as u32,
            buffer_offset: at,
        };
        let Handle { fp_id, generation } = whole.handle;
        let request = Request::transfer(self.tag(), fp_id, generation, &transfer);
        let (buffer, result) = self.ask(&request, Some(lba), Some(buffer)).await;
        (buffer.expect("it was given"), result)
    }

    fn tag(&self) -> u16 {
        let tag = self.0.tag.get().wrapping_add(1);
        self.0.tag.set(tag);
        tag
    }

    /// Runs one request; pays the caller's part on the caller's core.
    async fn ask(
        &self,
        request: &Request,
        lba: Option<Lba>,
        buffer: Option<Buffer>,
    ) -> (Option<Buffer>, Result<(), IoError>) {
        let whole = &*self.0;
        let (status, buffer) = whole
            .engine
            .perform_from(&whole.port, request, buffer, whole.request, whole.take_response)
            .await;
        (buffer, result_of(status, lba, whole.port.is_gone()))
    }
}

fn result_of(status: Status, lba: Option<Lba>, gone: bool) -> Result<(), IoError> {
    let kind = match status {
        Status::Good => return Ok(()),
        Status::Nvme(status) => return Err(IoError::answered(status, lba)),
        Status::Engine(Refusal::TimeOut) => Kind::TimedOut,
        Status::Engine(Refusal::Area) => Kind::OutOfRange,
        Status::Engine(Refusal::Function) => Kind::MediaFailed,
        Status::Engine(Refusal::Controller | Refusal::Bus) if gone => Kind::Gone,
        Status::Engine(Refusal::Controller | Refusal::Bus) | Status::Unknown(_) => {
            Kind::DeviceFailed
        }
        Status::Engine(_) => Kind::Refused,
    };
    Err(IoError::of(kind, lba))
}

impl<P: HostPort> BlockDevice for Disk<P> {
    fn geometry(&self) -> Geometry {
        Geometry { transfer_bytes_max: SIZE_MAX, ..self.0.engine.geometry() }
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.0.port.arena().buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        self.transfer(Direction::Read, lba, into).await
    }

    /// A request has no FUA bit: with a volatile cache a flush follows.
    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        let (buffer, mut result) = self.transfer(Direction::Write, lba, from).await;
        if fua && result.is_ok() && self.geometry().volatile_cache {
            result = self.flush().await;
        }
        (buffer, result)
    }

    async fn flush(&self) -> Result<(), IoError> {
        let Handle { fp_id, generation } = self.0.handle;
        self.ask(&Request::flush(self.tag(), fp_id, generation), None, None).await.1
    }
}
