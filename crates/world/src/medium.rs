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
use media::{Blocks, Faulty};

/// What a device stands on.
#[derive(Clone)]
pub enum Medium {
    /// Blocks that are kept as contents.
    Blocks(Blocks),
    Flash {
        drive: Rc<Drive<Chips>>,
        chips: Rc<Chips>,
    },
    /// Several of these behind a bridge.
    Bridged {
        /// The bridge, with the software of each.
        bridge: Rc<Bridge<Drive<Chips>>>,
        chips: Vec<Rc<Chips>>,
    },
}

/// What an interface is given: the medium, as far as the plan's faults leave it.
pub type BackingStore = Rc<Faulty<Medium>>;

/// What an NVMe controller stands on: the store itself, or the tags of DC Express around it.
pub enum NvmeStore {
    Plain(BackingStore),
    /// Writes pass the device's choice of tags.
    Tagged(Rc<Tagged<Faulty<Medium>>>),
}

media::either!(Medium, medium:
    Medium::Blocks(medium),
    Medium::Flash { drive: medium, .. },
    Medium::Bridged { bridge: medium, .. });
media::either!(NvmeStore, medium: NvmeStore::Plain(medium), NvmeStore::Tagged(medium));
