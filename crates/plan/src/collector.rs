//! The table `[collector]`: what a host needs that leads its device's collector, beside the tables of every
//! machine. A plan may be without it; its machine then has no such interface.

use bus::sim::NamedCost;

use super::fields::{Fields, Source::Welcome};
use super::host::costs;
use super::section::Table;

/// What leading costs on a host core, beside its commands: a superblock that is looked at.
const COSTS: &[&str] = host::nvme::COLLECTOR_COSTS;

/// How a host leads its device's collector.
#[derive(Clone, Debug)]
pub struct HostDirectedGc {
    /// Superblocks' worth of space by which it begins sooner than the device would.
    pub early: u32,
    pub costs: Vec<NamedCost>,
}

impl Table for HostDirectedGc {
    const NAME: &'static str = "collector";
    const EXAMPLE: &'static str = "plans/small-flash.toml";

    fn read(fields: Fields<'_>) -> Option<HostDirectedGc> {
        let early = fields.number("early", Welcome, 0..=64);
        let costs = costs(&fields, COSTS);
        fields.done();
        Some(HostDirectedGc { early: early? as u32, costs: costs? })
    }

    fn host_costs(&self) -> Vec<NamedCost> {
        self.costs.clone()
    }
}
