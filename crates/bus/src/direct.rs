//! Abilities that the device side has on some buses only.

use core::convert::Infallible;

use crate::{DmaError, Payload, Posting, Segment};

/// Access to host memory without a wait.
pub trait Direct {
    /// Returns true if [`copy`](Direct::copy) can read these bytes: if they are mapped.
    ///
    /// # Errors
    /// As [`read`](crate::DevicePort::read).
    fn copies(&self, from: &[Segment]) -> Result<bool, DmaError>;

    /// Reads host memory: `to.len()` bytes, of which the first is `offset` bytes into the segments.
    ///
    /// # Errors
    /// As [`read`](crate::DevicePort::read); none if these segments [can be copied](Direct::copies).
    fn copy(&self, from: &[Segment], offset: u32, to: &mut [u8]) -> Result<(), DmaError>;

    /// As [`write`](crate::DevicePort::write), of a source that is ready. Returns false, with nothing
    /// written, if it takes a wait.
    ///
    /// # Errors
    /// As [`write`](crate::DevicePort::write).
    fn write_at_once<P: Payload + ?Sized>(
        &self,
        to: &[Segment],
        what: &P,
        how: Posting,
    ) -> Result<bool, DmaError>;

    /// Hint: these bytes will be read or written soon.
    fn prefetch(&self, to: Segment);

    /// Hint: the host will write these bytes soon, and then they will be read.
    fn watch(&self, from: Segment);
}

/// Of a bus on which every access takes a wait.
impl Direct for Infallible {
    fn copies(&self, _: &[Segment]) -> Result<bool, DmaError> {
        match *self {}
    }

    fn copy(&self, _: &[Segment], _: u32, _: &mut [u8]) -> Result<(), DmaError> {
        match *self {}
    }

    fn write_at_once<P: Payload + ?Sized>(
        &self,
        _: &[Segment],
        _: &P,
        _: Posting,
    ) -> Result<bool, DmaError> {
        match *self {}
    }

    fn prefetch(&self, _: Segment) {
        match *self {}
    }

    fn watch(&self, _: Segment) {
        match *self {}
    }
}

/// The interrupt pin of a device.
pub trait InterruptPin {
    /// Drives its level: asserted while completions are unread. The bus applies the mask.
    fn drive(&self, level: bool);
}
