//! The table `[pages]`: what flash software on the host needs beside the tables of every machine. A plan may
//! be without it; its machine then has no such interface.

use bus::sim::NamedCost;

use super::fields::{Fields, Source::Welcome};
use super::host::costs;
use super::section::Table;

/// What flash software costs on a host core, a unit each: the look into the map and its change, the copy to
/// or from its caller, and what the collector has in hand. A command for pages costs a driver's submit and
/// complete beside that.
const COSTS: &[&str] = &["map", "copy", "collect"];

/// How a machine has its flash software on the host.
#[derive(Clone, Debug)]
pub struct PageAccess {
    /// Endpoints behind the switch, which share the link.
    pub endpoints: u32,
    /// Commands in flight at each.
    pub queue_depth: u32,
    /// Pages of an endpoint's upstream buffer.
    pub upstream_pages: u32,
    /// Rows of its downstream buffer.
    pub downstream_rows: u32,
    /// Host memory for pages that are read, bytes.
    pub read_memory: u64,
    /// What the collector copies goes through host memory, even within an endpoint.
    pub through_host: bool,
    pub costs: Vec<NamedCost>,
}

impl Table for PageAccess {
    const NAME: &'static str = "pages";
    const EXAMPLE: &'static str = "plans/small-flash.toml";

    fn read(fields: Fields<'_>) -> Option<PageAccess> {
        let endpoints =
            fields.number("endpoints", Welcome, 1..=u64::from(wire::pages::ENDPOINTS_MAX));
        let queue_depth = fields.number("queue_depth", Welcome, 2..=1024);
        let upstream = fields.number("upstream_pages", Welcome, 1..=1024);
        let downstream = fields.number("downstream_rows", Welcome, 1..=256);
        let sized = |bytes: u64| (4096..=1 << 34).contains(&bytes);
        let expected = "a size from \"4 KiB\" to \"16 GiB\"";
        let read_memory = fields.size("read_memory", Welcome, sized, expected);
        let through_host = fields.choice("copies", &[("host", true), ("endpoint", false)]);
        let costs = costs(&fields, COSTS);
        fields.done();
        Some(PageAccess {
            endpoints: endpoints? as u32,
            queue_depth: queue_depth? as u32,
            upstream_pages: upstream? as u32,
            downstream_rows: downstream? as u32,
            read_memory: read_memory?,
            through_host: through_host?,
            costs: costs?,
        })
    }

    fn host_costs(&self) -> Vec<NamedCost> {
        self.costs.clone()
    }
}
