//! Optional tables of a plan: the parameters of one interface.
//!
//! A [`Table`] is a type that parses itself; a [`Section`] is its registry entry. A plan stores the parsed
//! tables and knows only their names and costs.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use bus::sim::NamedCost;

use super::fields::Fields;

/// A table of a plan.
pub trait Table: Any + Debug + Send + Sync {
    /// Its name: `dcx` for `[dcx]`.
    const NAME: &'static str;
    /// A plan with the table, for the error message if it is missing.
    const EXAMPLE: &'static str;

    /// Parses all keys, so that one pass reports all errors; none if any is invalid.
    fn read(fields: Fields<'_>) -> Option<Self>
    where
        Self: Sized;

    fn host_costs(&self) -> Vec<NamedCost> {
        Vec::new()
    }

    fn device_costs(&self) -> Vec<NamedCost> {
        Vec::new()
    }
}

/// Registry entry of a table: its name and its parser.
#[derive(Clone, Copy)]
pub struct Section {
    pub(super) name: &'static str,
    pub(super) read: fn(Fields<'_>) -> Option<Parsed>,
}

#[derive(Clone, Debug)]
pub(super) struct Parsed {
    pub(super) table: Arc<dyn Any + Send + Sync>,
    pub(super) host_costs: Vec<NamedCost>,
    pub(super) device_costs: Vec<NamedCost>,
}

impl Section {
    /// The registry entry of this table.
    pub const fn of<T: Table>() -> Section {
        Section { name: T::NAME, read: parsed::<T> }
    }
}

fn parsed<T: Table>(fields: Fields<'_>) -> Option<Parsed> {
    let table = T::read(fields)?;
    let (host_costs, device_costs) = (table.host_costs(), table.device_costs());
    Some(Parsed { table: Arc::new(table), host_costs, device_costs })
}
