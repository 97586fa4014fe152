//! A medium of any kind, with whatever is wrong with it.
//!
//! An interface is compiled for each type of medium that it may stand on, for each bus, and that is most of
//! what compiling costs. So there is one type, and what is asked on the way of a command, which medium it is
//! and whether anything is wrong, are a few branches that always go the same way.

use std::rc::Rc;

use ::device::bridge::Bridge;
use ::device::dcx::Tagged;
use ::device::drive::Drive;
use ::device::flash::Chips;
use media::{Banked, Disks, Erasure, Extent, Faulty, Head, Media, MediaError, Metadata};
use runtime::{Span, Time};

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

/// What an interface is given: the medium, as far as the plan's faults leave it.
pub type Store = Rc<Faulty<Medium>>;

/// What an NVMe controller stands on: the store itself, or the tags of DC Express around it.
pub enum Footing {
    /// The store.
    Plain(Store),
    /// Writes pass the device's choice of tags.
    Tagged(Rc<Tagged<Faulty<Medium>>>),
}

/// A medium that hands everything on to the one that it is.
macro_rules! hand_on {
    ($type:ident, $medium:ident: $($pattern:pat),+) => {
        impl Media for $type {
            fn blocks(&self) -> u64 {
                match self {
                    $($pattern => $medium.blocks(),)+
                }
            }

            fn block_bytes(&self) -> u32 {
                match self {
                    $($pattern => $medium.block_bytes(),)+
                }
            }

            fn head(&self) -> Option<Head> {
                match self {
                    $($pattern => $medium.head(),)+
                }
            }

            async fn ready(&self) {
                match self {
                    $($pattern => $medium.ready().await,)+
                }
            }

            fn ready_within(&self) -> Option<Span> {
                match self {
                    $($pattern => $medium.ready_within(),)+
                }
            }

            #[inline]
            fn is_immediate(&self) -> bool {
                match self {
                    $($pattern => $medium.is_immediate(),)+
                }
            }

            async fn read(&self, at: Extent) -> Result<Time, MediaError> {
                match self {
                    $($pattern => $medium.read(at).await,)+
                }
            }

            async fn read_head(&self, at: Extent, bytes: u32) -> Result<Time, MediaError> {
                match self {
                    $($pattern => $medium.read_head(at, bytes).await,)+
                }
            }

            #[inline]
            fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
                match self {
                    $($pattern => $medium.runs(at, put),)+
                }
            }

            async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
                match self {
                    $($pattern => $medium.write(at, data).await,)+
                }
            }

            async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
                match self {
                    $($pattern => $medium.deallocate(at).await,)+
                }
            }

            fn overwrites(&self) -> bool {
                match self {
                    $($pattern => $medium.overwrites(),)+
                }
            }

            fn erasure(&self) -> Option<Erasure> {
                match self {
                    $($pattern => $medium.erasure(),)+
                }
            }

            async fn erase_all(
                &self,
                progress: &mut dyn FnMut(u32, u32),
            ) -> Result<(), MediaError> {
                match self {
                    $($pattern => $medium.erase_all(progress).await,)+
                }
            }

            fn blank_from(&self, block: u64) -> u64 {
                match self {
                    $($pattern => $medium.blank_from(block),)+
                }
            }

            fn keeps_metadata(&self) -> bool {
                match self {
                    $($pattern => $medium.keeps_metadata(),)+
                }
            }

            fn metadata(&self, block: u64) -> Result<Metadata, MediaError> {
                match self {
                    $($pattern => $medium.metadata(block),)+
                }
            }

            fn set_metadata(&self, block: u64, metadata: Metadata) -> Result<(), MediaError> {
                match self {
                    $($pattern => $medium.set_metadata(block, metadata),)+
                }
            }

            fn label(&self) -> Option<Vec<u8>> {
                match self {
                    $($pattern => $medium.label(),)+
                }
            }

            fn set_label(&self, label: &[u8]) -> Result<(), MediaError> {
                match self {
                    $($pattern => $medium.set_label(label),)+
                }
            }

            async fn flush(&self) -> Result<(), MediaError> {
                match self {
                    $($pattern => $medium.flush().await,)+
                }
            }
        }
    };
}

hand_on!(Medium, medium:
    Medium::Banked(medium),
    Medium::Disks(medium),
    Medium::Flash { drive: medium, .. },
    Medium::Bridged { bridge: medium, .. });
hand_on!(Footing, medium: Footing::Plain(medium), Footing::Tagged(medium));
