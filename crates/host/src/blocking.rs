//! Synchronous wrapper of a block device: plain slices, one command at a time.

use core::cell::Cell;

use bus::Buffer;
use runtime::Rt;
use wire::Lba;

use crate::{BlockDevice, Geometry, IoError, Kind, OutOfMemory};

/// A block device with blocking operations. It runs the executor while an operation is in flight, so it must
/// not be used inside one of the executor's tasks.
pub struct Blocking<D: BlockDevice> {
    rt: Rt,
    device: D,
    /// Bounce buffer of all transfers; `None` while an operation uses it.
    buffer: Cell<Option<Buffer>>,
}

impl<D: BlockDevice> Blocking<D> {
    /// Wraps a device of this executor and allocates a bounce buffer for its longest transfer.
    pub fn new(rt: &Rt, device: D) -> Result<Blocking<D>, OutOfMemory> {
        let buffer = device.buffer(device.geometry().transfer_bytes_max as usize)?;
        Ok(Blocking { rt: rt.clone(), device, buffer: Cell::new(Some(buffer)) })
    }

    /// Geometry of the device.
    pub fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    /// Reads blocks from `lba` until `to` is full. After an error `to` holds what was read before it.
    pub fn read(&self, lba: Lba, to: &mut [u8]) -> Result<(), IoError> {
        let buffer = self.take_buffer(lba, to.len())?;
        let (mut at, most) = (lba, buffer.bytes());
        let mut result = Ok(());
        for piece in to.chunks_mut(most) {
            let part = buffer.part(0, piece.len());
            let (part, done) = self.rt.block_on(self.device.read(at, part));
            if done.is_err() {
                result = done;
                break;
            }
            part.copy_out(0, piece);
            at = self.after(at, piece.len());
        }
        self.buffer.set(Some(buffer));
        result
    }

    /// Writes all of `from` to the blocks from `lba`. An error leaves the pieces before it written.
    pub fn write(&self, lba: Lba, from: &[u8]) -> Result<(), IoError> {
        let buffer = self.take_buffer(lba, from.len())?;
        let (mut at, most) = (lba, buffer.bytes());
        let mut result = Ok(());
        for piece in from.chunks(most) {
            let part = buffer.part(0, piece.len());
            part.copy_in(0, piece);
            let (_, done) = self.rt.block_on(self.device.write(at, part, false));
            if done.is_err() {
                result = done;
                break;
            }
            at = self.after(at, piece.len());
        }
        self.buffer.set(Some(buffer));
        result
    }

    /// Makes all earlier writes durable.
    pub fn flush(&self) -> Result<(), IoError> {
        self.rt.block_on(self.device.flush())
    }

    /// Wrapped device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Takes the bounce buffer after validating the whole operation, whose pieces alone could each be valid.
    fn take_buffer(&self, lba: Lba, bytes: usize) -> Result<Buffer, IoError> {
        let geometry = self.geometry();
        let (bytes, block) = (bytes as u64, u64::from(geometry.block_bytes));
        if !bytes.is_multiple_of(block) {
            return Err(IoError::refused(Kind::Refused, lba, "whole blocks"));
        }
        geometry.validate_range(lba, bytes / block)?;
        match self.buffer.take() {
            Some(buffer) => Ok(buffer),
            None => self
                .device
                .buffer(geometry.transfer_bytes_max as usize)
                .map_err(|_| IoError::of(Kind::OutOfMemory, Some(lba))),
        }
    }

    fn after(&self, lba: Lba, bytes: usize) -> Lba {
        Lba(lba.0 + bytes as u64 / u64::from(self.geometry().block_bytes))
    }
}
