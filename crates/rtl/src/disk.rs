//! A whole drive as a block device, accessed through the FastPath block.

use alloc::rc::Rc;

use bus::{Buffer, HostPort, OutOfMemory};
use host::{BlockDevice, Geometry, IoError, Kind};
use wire::fastpath::registers::Handle;
use wire::fastpath::{Direction, Refusal, Request, Response, SIZE_MAX, Status, Transfer};
use wire::{BusAddr, Lba};

use crate::engine::{BusError, Caller, Engine};

/// Handle of the whole drive and of all host memory.
const FP_ID: u16 = 0;

/// Minimum block size of a request, bytes.
const BLOCK_MIN: u64 = 512;

/// A drive used by one FastPath block only, for one caller on its own core.
pub struct Disk<P: HostPort>(Rc<Whole<P>>);

impl<P: HostPort> Clone for Disk<P> {
    fn clone(&self) -> Disk<P> {
        Disk(self.0.clone())
    }
}

struct Whole<P: HostPort> {
    engine: Engine<P>,
    caller: Caller<P>,
    geometry: Geometry,
    base: BusAddr,
    block_size: u32,
}

impl<P: HostPort> Disk<P> {
    /// Creates a device for a caller on this port, for a drive of the given geometry. Requests are cut into
    /// commands of `block_size` bytes, or fewer if their alignment requires it. `traces` is the queue
    /// number of their request traces.
    ///
    /// # Errors
    /// The block rejected the handle.
    pub async fn new(
        engine: &Engine<P>,
        port: &P,
        geometry: Geometry,
        block_size: u32,
        traces: u16,
    ) -> Result<Disk<P>, BusError> {
        let memory = port.arena().memory();
        let (base, bytes) = (memory.base(), memory.bytes() as u64);
        let handle = Handle {
            live: true,
            generation: 0,
            area_lba: 0,
            area_lbas: geometry.blocks,
            buffer: base.0,
            buffer_bytes: bytes,
        };
        engine.set_handle(FP_ID, &handle).await?;
        Ok(Disk(Rc::new(Whole {
            engine: engine.clone(),
            caller: Caller {
                port: port.clone(),
                traces,
                request: port.cost("request"),
                take_response: port.cost("take response"),
            },
            geometry: Geometry { transfer_bytes_max: SIZE_MAX, ..geometry },
            base,
            block_size,
        })))
    }

    async fn transfer(
        &self,
        direction: Direction,
        lba: Lba,
        buffer: Buffer,
    ) -> (Buffer, Result<(), IoError>) {
        let whole = &*self.0;
        if let Err(error) = whole.geometry.validate(lba, &buffer) {
            return (buffer, Err(error));
        }
        let (at, bytes) = (buffer.at().0 - whole.base.0, buffer.bytes() as u64);
        let block_size = (1 << (at | bytes).trailing_zeros()).min(u64::from(whole.block_size));
        let block_bytes = u64::from(whole.geometry.block_bytes);
        if block_size < BLOCK_MIN.max(block_bytes) {
            let why = "a buffer that begins at a multiple of its blocks, at least of 512 bytes";
            return (buffer, Err(IoError::refused(Kind::Refused, lba, why)));
        }
        let transfer = Transfer {
            direction,
            offset: lba.0 * block_bytes,
            size: bytes as u32,
            block_size: block_size as u32,
            buffer_offset: at,
        };
        let request = Request::transfer(0, FP_ID, 0, &transfer);
        let (buffer, result) = self.ask(&request, Some(lba), Some(buffer)).await;
        (buffer.expect("it was given"), result)
    }

    async fn ask(
        &self,
        request: &Request,
        lba: Option<Lba>,
        buffer: Option<Buffer>,
    ) -> (Option<Buffer>, Result<(), IoError>) {
        let whole = &*self.0;
        let (response, buffer) =
            whole.engine.perform_for(Some(&whole.caller), request, buffer).await;
        (buffer, result_of(response, lba))
    }
}

/// Converts a response to the result of the block device.
fn result_of(response: Result<Response, BusError>, lba: Option<Lba>) -> Result<(), IoError> {
    let kind = match response.map(|response| response.status()) {
        Ok(Status::Good) => return Ok(()),
        Ok(Status::Nvme(status)) => return Err(IoError::answered(status, lba)),
        Ok(Status::Engine(Refusal::TimeOut)) => Kind::TimedOut,
        Ok(Status::Engine(Refusal::Area)) => Kind::OutOfRange,
        Ok(Status::Engine(Refusal::Controller | Refusal::Bus) | Status::Unknown(_)) | Err(_) => {
            Kind::DeviceFailed
        }
        Ok(Status::Engine(_)) => Kind::Refused,
    };
    Err(IoError::of(kind, lba))
}

impl<P: HostPort> BlockDevice for Disk<P> {
    fn geometry(&self) -> Geometry {
        self.0.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.0.caller.port.arena().buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        self.transfer(Direction::Read, lba, into).await
    }

    /// A FastPath request has no FUA bit: with a volatile cache, a flush follows.
    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        let (buffer, mut result) = self.transfer(Direction::Write, lba, from).await;
        if fua && result.is_ok() && self.0.geometry.volatile_cache {
            result = self.flush().await;
        }
        (buffer, result)
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.ask(&Request::flush(0, FP_ID, 0), None, None).await.1
    }
}
