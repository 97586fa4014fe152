//! `doorbell tenants`: a reader beside neighbours, by what protects it; shares by class and number of queues.

use campaign::tenants::{self, Load, Tenants, Way};
use clap::Args;
use plan::Plan;
use plan::units::parse_span;
use report::model::paper::Table;

use super::Sets;
use super::output::Page;
use super::run::World;

#[derive(Args)]
pub(super) struct TenantsOf {
    /// Plan: built-in name or TOML file
    #[arg(long, default_value = "vortex")]
    plan: String,
    /// World to run in
    #[arg(long, value_enum, default_value_t = World::Sim)]
    world: World,
    /// Duration of each run
    #[arg(long, default_value = "200 ms")]
    time: String,
    /// Requests in flight of each of the neighbour's three queues
    #[arg(long, default_value_t = 32)]
    depth: u32,
    /// Requests a second of each of the neighbour's queues, where it has a rate
    #[arg(long, default_value_t = 1000)]
    rate: u32,
    #[command(flatten)]
    sets: Sets,
}

/// Tenants with saturating loads: what gives them their shares, its settings, clones and weights.
struct Shared {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
    clones: &'static [u32],
    weights: &'static [f64],
}

const SHARED: [Shared; 2] = [
    Shared {
        name: "classes of weight 4, 2 and 1",
        settings: tenants::BY_WEIGHT,
        clones: &[1, 1, 1],
        weights: &[4.0, 2.0, 1.0],
    },
    Shared {
        name: "three queues and one",
        settings: tenants::BY_QUEUES,
        clones: &[3, 1],
        weights: &[3.0, 1.0],
    },
];

pub(super) fn tenants(typed: &TenantsOf) -> Result<bool, String> {
    let time = parse_span(&typed.time);
    let time = time.map_err(|error| format!("--time: {:?} {error}", typed.time))?;
    let load = Load { neighbour_depth: typed.depth, rate: typed.rate, time };
    let page = Page::beside(&[])?;
    for simulated in typed.world.simulated() {
        let (is_live, world) = (!simulated, if simulated { "simulated" } else { "live" });
        let mut lines = Vec::new();
        for way in Way::ALL {
            let plan = typed.open(way.settings())?;
            let seen = tenants::measure(&plan, way, load, is_live);
            lines.push(line(way, &seen.map_err(|error| error.to_string())?));
        }
        page.line(Table {
            caption: format!(
                "tenants, {world}: a victim's reads of 4 KiB beside reads of 32 KiB, plan {}",
                typed.plan
            ),
            columns: ["the victim is", "p50 us", "p99 us", "reads", "neighbour MB/s"]
                .map(String::from)
                .into(),
            lines,
            notes: vec!["the neighbour: three clones; the drive: eight command slots".into()],
        });
        let mut lines = Vec::new();
        for shared in &SHARED {
            let plan = typed.open(shared.settings)?;
            let shares = tenants::shares(&plan, shared.clones, time, is_live);
            let shares = shares.map_err(|error| error.to_string())?;
            let words: Vec<_> = shares.iter().map(|share| format!("{share:.3}")).collect();
            let off = 100.0 * tenants::deviation(&shares, shared.weights);
            lines.push(vec![shared.name.into(), words.join(" "), format!("{off:.1} %")]);
        }
        page.line(Table {
            caption: format!("tenants, {world}: shares of reads of 4 KiB"),
            columns: ["by", "shares", "most off"].map(String::from).into(),
            lines,
            notes: Vec::new(),
        });
    }
    Ok(true)
}

fn line(way: Way, seen: &Tenants) -> Vec<String> {
    vec![
        way.name().into(),
        format!("{:.0}", seen.p50_us),
        format!("{:.0}", seen.p99_us),
        seen.victim_reads.to_string(),
        format!("{:.1}", seen.neighbour_mb_s),
    ]
}

impl TenantsOf {
    /// The plan with these settings beneath those of the command line.
    fn open(&self, settings: &[(&str, &str)]) -> Result<Plan, String> {
        self.sets.over(settings).open(&self.plan)
    }
}
