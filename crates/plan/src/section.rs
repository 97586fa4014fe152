//! Optional tables of a plan: what one interface needs beside the tables that every plan has.
//!
//! A [`Table`] is a type that parses itself; a [`Section`] is its registry entry. A plan stores the parsed
//! tables and knows only their names and costs. [`add_sections`] registers tables of external interfaces.

use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

use bus::sim::NamedCost;

use super::Plan;
use super::fields::Fields;
use super::{block, collector, dcx, fastpath, pages};

/// A table of a plan.
pub trait Table: Any + Debug + Send + Sync {
    /// Its name: `dcx` for `[dcx]`.
    const NAME: &'static str;
    /// A plan that has it, for the error message where it is missing.
    const EXAMPLE: &'static str;

    /// Parses all keys, so that one pass reports all errors; none if any is invalid.
    fn read(fields: Fields<'_>) -> Option<Self>
    where
        Self: Sized;

    /// What the host spends, by stage.
    fn host_costs(&self) -> Vec<NamedCost> {
        Vec::new()
    }

    /// What the device spends, by stage.
    fn device_costs(&self) -> Vec<NamedCost> {
        Vec::new()
    }
}

/// The row of a table: its name, and how it is read.
#[derive(Clone, Copy)]
pub struct Section {
    name: &'static str,
    read: fn(Fields<'_>) -> Option<Held>,
}

/// A table that was read.
#[derive(Clone, Debug)]
pub(super) struct Held {
    table: Arc<dyn Any + Send + Sync>,
    pub(super) host_costs: Vec<NamedCost>,
    pub(super) device_costs: Vec<NamedCost>,
}

impl Section {
    /// The row of this table.
    pub const fn of<T: Table>() -> Section {
        Section { name: T::NAME, read: held::<T> }
    }
}

fn held<T: Table>(fields: Fields<'_>) -> Option<Held> {
    let table = T::read(fields)?;
    let (host_costs, device_costs) = (table.host_costs(), table.device_costs());
    Some(Held { table: Arc::new(table), host_costs, device_costs })
}

const OWN: [Section; 5] = [
    Section::of::<dcx::Dcx>(),
    Section::of::<block::Block>(),
    Section::of::<fastpath::Fastpath>(),
    Section::of::<pages::PageAccess>(),
    Section::of::<collector::HostDirectedGc>(),
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

/// Reads those that are there.
pub(super) fn read(root: &Fields<'_>) -> Option<Vec<Held>> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner).clone();
    // All are read, whatever is wrong with one of them.
    let there: Vec<_> = OWN.iter().chain(&added).filter(|section| root.has(section.name)).collect();
    let read = there.iter().map(|section| root.table(section.name).and_then(section.read));
    read.collect::<Vec<_>>().into_iter().collect()
}

impl Plan {
    /// A table of this plan, if it has it.
    pub fn section<T: Table>(&self) -> Option<&T> {
        let held = self.sections.iter().find(|held| (*held.table).type_id() == TypeId::of::<T>());
        held.and_then(|held| held.table.downcast_ref())
    }

    /// The table that an interface requires.
    ///
    /// # Errors
    /// There is none.
    pub fn need<T: Table>(&self, interface: &str) -> Result<&T, String> {
        self.section().ok_or_else(|| {
            let (origin, name, example) = (&self.origin, T::NAME, T::EXAMPLE);
            format!(
                "{origin}: interface {interface}: found no table [{name}], expected one: {example} has it"
            )
        })
    }

    /// The table of an interface that has [asked for it](Plan::need).
    ///
    /// # Panics
    /// If there is none.
    pub fn checked<T: Table>(&self) -> &T {
        self.section().expect("checked before the world is built")
    }
}
