//! The table `[collector]`: parameters of host-directed garbage collection. It is optional: without it a
//! machine does not have the interface.

use bus::sim::NamedCost;

use super::fields::{Fields, Source::Optional};
use super::host::costs;
use super::table::Table;

/// Cost on a host core, in addition to its commands: evaluation of one superblock.
const COSTS: &[&str] = host::nvme::COLLECTOR_COSTS;

/// Parameters of host-directed garbage collection.
#[derive(Clone, Debug)]
pub struct HostDirectedGc {
    /// Free space in superblocks by which the host starts earlier than the device would.
    pub early: u32,
    pub costs: Vec<NamedCost>,
}

impl Table for HostDirectedGc {
    const NAME: &'static str = "collector";
    const EXAMPLE: &'static str = "plans/small-flash.toml";

    fn read(fields: Fields<'_>) -> Option<HostDirectedGc> {
        let early = fields.number("early", Optional, 0..=64);
        let costs = costs(&fields, COSTS);
        fields.done();
        Some(HostDirectedGc { early: early? as u32, costs: costs? })
    }

    fn host_costs(&self) -> Vec<NamedCost> {
        self.costs.clone()
    }
}
