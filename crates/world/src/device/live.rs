//! Changes and copies of a device while it runs.

use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};

use ::device::faults::Faults;
use ::flash::chips::Chips;
pub use ::flash::chips::DieView;
use media::contents::{self, Chunk};
use media::nand::Nand;
use plan::Plan;
use runtime::Rt;

use super::{Device, DeviceBacking, Medium};
use crate::error::{ChangeError, MediumError, RunError};

/// A copy of a device that has begun, with the state of that moment.
pub enum Copied {
    /// Chips, and the label. The copy is complete.
    Flash(Box<Nand>, Vec<u8>),
    /// Blocks, which follow.
    Blocks(contents::Copied, Receiver<Chunk>),
}

impl Device {
    /// Begins a copy of the medium as it is now: for flash, what a power cut would leave.
    ///
    /// # Errors
    /// There is no file that could hold a copy.
    pub fn copy(&self) -> Result<Copied, ChangeError> {
        match &self.backing {
            DeviceBacking::Medium(Medium::Blocks(blocks)) => {
                let (to, chunks): (Sender<Chunk>, _) = channel();
                let copied = blocks.with_contents(|contents| contents.begin_copy(to));
                Ok(Copied::Blocks(copied?, chunks))
            }
            DeviceBacking::Medium(Medium::Flash { drive, chips }) => {
                let nand = chips.fork()?;
                Ok(Copied::Flash(Box::new(nand), media::Labels::label(&**drive)))
            }
            DeviceBacking::Medium(Medium::Bridged { .. }) => Err(ChangeError::Bridge),
            DeviceBacking::Bare(_) => Err(ChangeError::HostSoftware),
        }
    }

    /// Continues a copy. Returns false when there is none in progress.
    pub fn copy_some(&self) -> bool {
        match &self.backing {
            DeviceBacking::Medium(Medium::Blocks(blocks)) => {
                blocks.with_contents(media::Contents::copy_some)
            }
            _ => false,
        }
    }

    /// Wears flash by this number of program/erase cycles and years.
    ///
    /// # Errors
    /// The medium is not flash.
    pub fn wear_out(&self, cycles: u32, years: u32) -> Result<(), ChangeError> {
        let chips = self.chips();
        if chips.is_empty() {
            return Err(ChangeError::NoFlash);
        }
        chips.iter().for_each(|chips| chips.wear_out(cycles, years));
        Ok(())
    }

    /// Calls `report` with the reason of the first flush that fails.
    pub fn on_failed_flush(&self, report: impl Fn(&str) + 'static) {
        let report = Rc::new(report);
        for harm in &self.harms {
            let chips: Vec<_> = self.chips().iter().map(Rc::downgrade).collect();
            let report = report.clone();
            harm.on_failed_flush(move || {
                let trouble = chips.iter().find_map(|chips| chips.upgrade()?.trouble());
                report(&trouble.unwrap_or_else(|| "the file of its contents".into()));
            });
        }
    }

    /// The dies of flash, across its controllers in order.
    pub fn dies(&self) -> Vec<DieView> {
        self.chips().iter().flat_map(|chips| chips.dies()).collect()
    }

    fn chips(&self) -> &[Rc<Chips>] {
        match &self.backing {
            DeviceBacking::Medium(Medium::Blocks(_)) => &[],
            DeviceBacking::Medium(Medium::Flash { chips, .. }) | DeviceBacking::Bare(chips) => {
                std::slice::from_ref(chips)
            }
            DeviceBacking::Medium(Medium::Bridged { chips, .. }) => chips,
        }
    }

    /// Whether a fault has taken the link down.
    pub fn is_down(&self) -> bool {
        self.faults.as_ref().is_some_and(|faults| faults.is_down())
    }

    /// Waits until a fault takes the link down. Never returns without such a fault.
    pub async fn link_down(&self, rt: &Rt) {
        match &self.faults {
            Some(faults) => faults.link_down(rt).await,
            None => core::future::pending().await,
        }
    }

    /// Faults for one of several controllers of this device, with counts if `watched`.
    pub fn faults_of_one(&self, plan: &Plan, watched: bool) -> Rc<Faults> {
        let (rt, seed) = (&self.rt, plan.run.seed);
        let faults = match &self.faults {
            Some(shared) => Faults::start_on(rt, &plan.faults, seed, shared.harm.clone()),
            None => Faults::start(rt, &[], seed),
        };
        if watched {
            faults.meter.watch(rt);
        }
        faults
    }
}

/// Writes a copy to a file that does not exist: an image, or a state of flash. Returns the bytes written.
///
/// # Errors
/// The file exists or cannot be written; the device has ended before its copy.
pub fn copy_to_file(copied: Copied, path: &Path) -> Result<u64, RunError> {
    match copied {
        Copied::Blocks(copied, chunks) => {
            let written = contents::write_image(path, &copied, &chunks);
            Ok(written.map_err(MediumError::from)?)
        }
        Copied::Flash(mut nand, label) => {
            if path.symlink_metadata().is_ok() {
                let path = path.to_owned();
                return Err(MediumError::from(contents::Error::Exists { path }).into());
            }
            nand.save(path, &label).map_err(MediumError::from)?;
            Ok(path.metadata().map_err(RunError::of)?.len())
        }
    }
}
