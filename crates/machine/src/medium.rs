//! A medium of any kind.
//!
//! An interface is compiled for each type of medium that it may stand on, for each bus, and that is most of
//! what compiling costs. So there are two types: a plain medium without faults, on which interfaces are
//! measured, and this one, under faults or none, for everything else.

use std::rc::Rc;

use ::device::bridge::Bridge;
use ::device::drive::Drive;
use ::device::flash::Chips;
use media::{Banked, Disks, Extent, Head, Media, MediaError};
use runtime::Time;

/// What a device stands on.
#[derive(Clone)]
pub enum Medium {
    /// DRAM, PCM.
    Banked(Rc<Banked>),
    /// Disks that rotate.
    Disks(Rc<Disks>),
    /// Flash, and its software.
    Flash {
        /// The software.
        drive: Rc<Drive<Chips>>,
        /// What it runs on.
        chips: Rc<Chips>,
    },
    /// Several of these behind a bridge.
    Bridged {
        /// The bridge, with the software of each.
        bridge: Rc<Bridge<Drive<Chips>>>,
        /// What they run on.
        chips: Vec<Rc<Chips>>,
    },
}

/// Asks the one that it is.
macro_rules! ask {
    ($self:ident, $medium:ident => $answer:expr) => {
        match $self {
            Medium::Banked($medium) => $answer,
            Medium::Disks($medium) => $answer,
            Medium::Flash { drive: $medium, .. } => $answer,
            Medium::Bridged { bridge: $medium, .. } => $answer,
        }
    };
}

impl Media for Medium {
    fn blocks(&self) -> u64 {
        ask!(self, medium => medium.blocks())
    }

    fn block_bytes(&self) -> u32 {
        ask!(self, medium => medium.block_bytes())
    }

    fn head(&self) -> Option<Head> {
        ask!(self, medium => medium.head())
    }

    async fn ready(&self) {
        ask!(self, medium => medium.ready().await)
    }

    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        ask!(self, medium => medium.read(at).await)
    }

    async fn read_head(&self, at: Extent, bytes: u32) -> Result<Time, MediaError> {
        ask!(self, medium => medium.read_head(at, bytes).await)
    }

    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
        ask!(self, medium => medium.runs(at, put))
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        ask!(self, medium => medium.write(at, data).await)
    }

    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        ask!(self, medium => medium.deallocate(at).await)
    }

    fn overwrites(&self) -> bool {
        ask!(self, medium => medium.overwrites())
    }

    fn label(&self) -> Option<Vec<u8>> {
        ask!(self, medium => medium.label())
    }

    fn set_label(&self, label: &[u8]) -> Result<(), MediaError> {
        ask!(self, medium => medium.set_label(label))
    }

    async fn flush(&self) -> Result<(), MediaError> {
        ask!(self, medium => medium.flush().await)
    }
}
