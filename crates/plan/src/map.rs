//! The table `[map]`: parameters of a map of flash on the host. It is optional: without it a machine does not
//! have the interface.

use bus::sim::NamedCost;

use super::fields::{Fields, Source::Optional};
use super::host::costs;
use super::table::Table;

/// Cost on a host core, in addition to its commands: looking up the place of a mapping unit.
const COSTS: &[&str] = host::nvme::MAP_COSTS;

/// Parameters of a map on the host.
#[derive(Clone, Debug)]
pub struct MapOnHost {
    /// Moves of mapping units that the device keeps until the host reads them, 8 bytes each.
    pub moves: u32,
    pub costs: Vec<NamedCost>,
}

impl Table for MapOnHost {
    const NAME: &'static str = "map";
    const EXAMPLE: &'static str = "plans/small-flash.toml";

    fn read(fields: Fields<'_>) -> Option<MapOnHost> {
        let moves =
            fields.number("moves", Optional, 2..=wire::nvme::host_map::HostMap::MOVES_MAX.into());
        let costs = costs(&fields, COSTS);
        fields.done();
        Some(MapOnHost { moves: moves? as u32, costs: costs? })
    }

    fn host_costs(&self) -> Vec<NamedCost> {
        self.costs.clone()
    }
}
