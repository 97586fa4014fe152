//! Registry of the optional tables of a plan, and access to those that a plan has.
//!
//! [`add_sections`] registers tables of external interfaces.

use std::any::TypeId;
use std::sync::{PoisonError, RwLock};

use super::fields::Fields;
use super::table::{Parsed, Section, Table};
use super::{Plan, Unsupported};
use super::{block, collector, dcx, fastpath, map, pages};

const OWN: [Section; 6] = [
    Section::of::<dcx::Dcx>(),
    Section::of::<block::Block>(),
    Section::of::<fastpath::Fastpath>(),
    Section::of::<pages::PageAccess>(),
    Section::of::<collector::HostDirectedGc>(),
    Section::of::<map::MapOnHost>(),
];

static ADDED: RwLock<Vec<Section>> = RwLock::new(Vec::new());

/// Registers tables of external interfaces for plans that are parsed from now on. A name that is already
/// registered keeps its first table.
pub fn add_sections(sections: &[Section]) {
    let mut added = ADDED.write().unwrap_or_else(PoisonError::into_inner);
    for section in sections {
        if !OWN.iter().chain(added.iter()).any(|known| known.name == section.name) {
            added.push(*section);
        }
    }
}

/// Parses the optional tables that are present.
pub(super) fn read(root: &Fields<'_>) -> Option<Vec<Parsed>> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner).clone();
    // All tables are parsed even after an error in one, so that all errors are reported.
    let present: Vec<_> =
        OWN.iter().chain(&added).filter(|section| root.has(section.name)).collect();
    let read = present.iter().map(|section| root.table(section.name).and_then(section.read));
    read.collect::<Vec<_>>().into_iter().collect()
}

impl Plan {
    /// A table of this plan, if it has it.
    pub fn section<T: Table>(&self) -> Option<&T> {
        let parsed =
            self.sections.iter().find(|parsed| (*parsed.table).type_id() == TypeId::of::<T>());
        parsed.and_then(|parsed| parsed.table.downcast_ref())
    }

    /// The table that an interface requires.
    ///
    /// # Errors
    /// The plan does not have the table.
    pub fn require_section<T: Table>(&self, interface: &str) -> Result<&T, Unsupported> {
        self.section().ok_or_else(|| Unsupported::NoTable {
            origin: self.origin.clone(),
            interface: interface.to_owned(),
            table: T::NAME,
            example: T::EXAMPLE,
        })
    }

    /// The table of an interface, after [`Plan::require_section`] has succeeded.
    ///
    /// # Panics
    /// If the plan does not have the table.
    pub fn required_section<T: Table>(&self) -> &T {
        self.section().expect("require_section was called before the world is built")
    }
}
