//! The table `[pages]`: parameters of a flash translation layer on the host. It is optional: without it a
//! machine does not have the interface.

use bus::sim::NamedCost;

use super::fields::{Fields, Source::Optional};
use super::host::costs;
use super::link::LANES;
use super::table::Table;

/// Costs of the host FTL on a host core, per mapping unit: lookup and update of the map, the copy from or to
/// the caller, and the collector's work. A page command also has the driver's submit and complete costs.
const COSTS: &[&str] = &["map", "copy", "collect"];

/// As [`COSTS`], where the FTL has cores of its own: of the caller's core, for an operation that is handed to
/// another one, and again for its end.
const COSTS_APART: &[&str] = &["map", "copy", "collect", "hand over"];

/// Parameters of a flash translation layer on the host.
#[derive(Clone, Debug)]
pub struct PageAccess {
    /// Endpoints, which share the link.
    pub endpoints: u32,
    /// Lanes of the link of each endpoint's port below the switch. Its generation is that of the plan's link,
    /// which is above. `None`: the endpoints share that link without a switch. Simulated runs only.
    pub port_lanes: Option<u8>,
    /// Commands in flight at each endpoint.
    pub queue_depth: u32,
    /// Commands outstanding at each die at most; `None`: no limit.
    pub die_commands: Option<u32>,
    /// Pages of an endpoint's upstream buffer.
    pub upstream_pages: u32,
    /// Superpages of an endpoint's downstream buffer.
    pub downstream_rows: u32,
    /// Host memory for read pages, bytes.
    pub read_memory: u64,
    /// The collector copies through host memory, even within an endpoint.
    pub through_host: bool,
    /// Of the host's cores, the last ones: they run the FTL and nothing else. 0: each operation's part of it
    /// runs on its caller's core.
    pub cores: u32,
    pub costs: Vec<NamedCost>,
}

impl Table for PageAccess {
    const NAME: &'static str = "pages";
    const EXAMPLE: &'static str = "plans/small-flash.toml";

    fn read(fields: Fields<'_>) -> Option<PageAccess> {
        let endpoints =
            fields.number("endpoints", Optional, 1..=u64::from(wire::pages::ENDPOINTS_MAX));
        let known = |lanes| LANES.contains(&lanes);
        let port_lanes = fields.given("port_lanes", |key| {
            fields.number_where(key, Optional, known, "1, 2, 4, 8, 16 or 32 lanes")
        });
        let queue_depth = fields.number("queue_depth", Optional, 2..=1024);
        let die_commands =
            fields.given("die_commands", |key| fields.number(key, Optional, 1..=1024));
        let upstream = fields.number("upstream_pages", Optional, 1..=1024);
        let downstream = fields.number("downstream_rows", Optional, 1..=256);
        let sized = |bytes: u64| (4096..=1 << 34).contains(&bytes);
        let expected = "a size from \"4 KiB\" to \"16 GiB\"";
        let read_memory = fields.size("read_memory", Optional, sized, expected);
        let through_host = fields.choice("copies", &[("host", true), ("endpoint", false)]);
        let cores = fields.number_or("cores", 0, 0..=63);
        let apart = cores.is_some_and(|cores| cores > 0);
        let costs = costs(&fields, if apart { COSTS_APART } else { COSTS });
        fields.done();
        Some(PageAccess {
            endpoints: endpoints? as u32,
            port_lanes: port_lanes?.map(|lanes| lanes as u8),
            queue_depth: queue_depth? as u32,
            die_commands: die_commands?.map(|most| most as u32),
            upstream_pages: upstream? as u32,
            downstream_rows: downstream? as u32,
            read_memory: read_memory?,
            through_host: through_host?,
            cores: cores? as u32,
            costs: costs?,
        })
    }

    fn host_costs(&self) -> Vec<NamedCost> {
        self.costs.clone()
    }
}
