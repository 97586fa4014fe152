//! Published figures, and their comparison with this model.
//!
//! ```text
//!    paper ─► items ─┬─ checks: a number, a criterion, the mechanism, and the changes that must make it fail
//!                    ├─ quotations: numbers of the paper that nothing here could contradict
//!                    └─ figures, tables: without a verdict
//! ```
//!
//! A check holds, or it departs from the paper: then its cause is stated, and single changes of the model
//! show it. The verdict on record is part of the check, so that another verdict is a regression.
//! [`mutations`] runs every check with every change that must reverse it. Assumed costs are varied by half,
//! up and down; the remainder is printed as unexplained.
//!
//! It is not a source of costs: every number of the model is in a plan, and no exhibit has parameters of
//! its own to fit a paper. Exhibits are data of a result ([`report::model::paper`]), of which the views are
//! in `report`.
//!
//! ```console
//! $ doorbell papers dc-express
//! ```

mod adaptive;
mod adaptive_figures;
mod adaptive_laws;
mod blocks;
mod changes;
mod check;
mod dc_express;
mod dcx_kernel;
mod dcx_link;
mod dcx_tables;
mod dcx_tags;
mod dcx_ways;
mod error;
mod fastpath;
mod fastpath_ways;
mod flash_arrays;
mod flash_cliff;
mod flash_figures;
mod flash_pairs;
mod flash_ssds;
mod flash_tables;
mod flash_windows;
mod flash_workers;
mod items;
mod measure;
mod run;
mod setup;
mod sweep;
mod threads;
mod vortex;
mod vortex_hints;
mod vortex_tables;
mod vortex_tenants;
mod vortex_ways;

pub use changes::Change;
pub use check::{Item, Mutation, Spec, Subject};
pub use error::ExhibitError;
pub use run::{Compared, Mutated, Options, compare, mutations, run};
pub use setup::Setup;

/// A paper and its exhibits.
pub struct Paper {
    /// Name on the command line.
    pub name: &'static str,
    pub title: &'static str,
    pub authors: &'static str,
    pub items: &'static [Item],
    /// Additional exhibits, which take minutes.
    pub long: &'static [Item],
}

impl Paper {
    /// Checks of this paper, the long ones included.
    pub fn checks(&self) -> impl Iterator<Item = &'static Spec> {
        self.items.iter().chain(self.long).filter_map(|item| match item {
            Item::Check(spec) => Some(spec),
            Item::Shown(_) => None,
        })
    }
}

pub fn all() -> &'static [Paper] {
    &[
        Paper {
            name: "adaptive",
            title: "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device Driver \
                for PCIe-based SSDs (RSP 2014)",
            authors: "Bougioukou, Ntalla, Palli, Varsamou, Antonakopoulos",
            items: items::ADAPTIVE,
            long: &[],
        },
        Paper {
            name: "dc-express",
            title: "DC Express: Shortest Latency Protocol for Reading Phase Change Memory over PCI \
                Express (FAST 2014)",
            authors: "Vucinic, Wang, Guyot, Mateescu, Blagojevic, Franca-Neto, Le Moal, Bunker, Xu, \
                  Swanson, Bandic",
            items: items::DC_EXPRESS,
            long: items::DC_EXPRESS_LONG,
        },
        Paper {
            name: "fastpath",
            title: "FastPath: Towards Wire-speed NVMe SSDs (preprint, 2018)",
            authors: "Stratikopoulos, Kotselidis, Goodacre, Lujan",
            items: items::FASTPATH,
            long: &[],
        },
        Paper {
            name: "flash-closer",
            title: "Challenges in Getting Flash Drives Closer to CPU (HotStorage 2013)",
            authors: "Jung, Kandemir",
            items: items::FLASH,
            long: items::FLASH_LONG,
        },
        Paper {
            name: "vortex",
            title: "Improving Disk Performance in Vortex With NVMe (master's thesis, 2015)",
            authors: "Elsebø",
            items: items::VORTEX,
            long: &[],
        },
    ]
}
