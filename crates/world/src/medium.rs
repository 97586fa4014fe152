//! A medium of any kind, with fault injection.
//!
//! An interface would be compiled for each combination of medium type and bus, which dominates compile time.
//! So all media have one type, and the I/O path pays a few predictable branches for the kind of medium and
//! for faults.

use std::rc::Rc;

use ::device::dcx::Tagged;
use ::flash::bridge::Bridge;
use ::flash::chips::{ChipState, Chips};
use ::flash::drive::Drive;
use ftl::{Options, Processing};
use media::{Blocks, Faulty, Part};
use runtime::Rt;

use crate::error::RunError;
use crate::shared_blocks::SharedMedium;
use plan::{Flash, Plan};

/// The medium of a device.
#[derive(Clone)]
pub enum Medium {
    /// Blocks with their contents: DRAM, PCM or disks.
    Blocks(Blocks),
    Flash {
        drive: Rc<Drive<Chips>>,
        chips: Rc<Chips>,
    },
    /// Several flash controllers behind a bridge.
    Bridged {
        /// The bridge, with the FTL of each controller.
        bridge: Rc<Bridge<Drive<Chips>>>,
        chips: Vec<Rc<Chips>>,
    },
}

/// A medium as one front end reaches it: all of it, or the part of one of several clients.
pub enum Reach {
    Blocks(Blocks),
    Flash(Rc<Drive<Chips>>),
    Bridged(Rc<Bridge<Drive<Chips>>>),
    Part(Rc<Part<Medium>>),
    /// Blocks that other device threads reach too.
    Shared(Rc<SharedMedium>),
}

impl Reach {
    pub fn whole(medium: &Medium) -> Reach {
        match medium {
            Medium::Blocks(blocks) => Reach::Blocks(blocks.clone()),
            Medium::Flash { drive, .. } => Reach::Flash(drive.clone()),
            Medium::Bridged { bridge, .. } => Reach::Bridged(bridge.clone()),
        }
    }
}

/// Backing store of an interface: the medium with the plan's faults.
pub type BackingStore = Rc<Faulty<Reach>>;

/// Backing store of an NVMe controller: the plain store, or the store with DC Express tags.
pub enum NvmeStore {
    Plain(BackingStore),
    /// The device chooses tags on each write.
    Tagged(Rc<Tagged<Faulty<Reach>>>),
}

media::either!(Medium, medium:
    Medium::Blocks(medium),
    Medium::Flash { drive: medium, .. },
    Medium::Bridged { bridge: medium, .. });
media::either!(Reach, medium:
    Reach::Blocks(medium),
    Reach::Flash(medium),
    Reach::Bridged(medium),
    Reach::Part(medium),
    Reach::Shared(medium));
media::either!(NvmeStore, medium: NvmeStore::Plain(medium), NvmeStore::Tagged(medium));

/// Options of the plan's FTL, with the seed of the run. It takes time only if that is modelled.
pub(crate) fn software(plan: &Plan, flash: &Flash, modelled: bool) -> Options {
    let processing = if modelled { flash.software.processing } else { Processing::default() };
    Options { processing, seed: plan.run.seed, ..flash.software.clone() }
}

/// Powers on the chips of a plan.
pub(crate) fn chips(
    rt: &Rt,
    flash: &Flash,
    chip_state: ChipState,
    modelled: bool,
) -> Result<Rc<Chips>, RunError> {
    Ok(Rc::new(Chips::new(rt, chip_state, flash.options(modelled)).map_err(RunError::of)?))
}
