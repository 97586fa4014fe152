//! The table `[block]`: what descriptor blocks need beside the tables of every machine. A plan may be
//! without it; its machine then has no such interface.

use bus::sim::NamedCost;
use runtime::Span;

use super::fields::{Fields, Source::Welcome};
use super::host::costs;
use super::section::Table;

/// What descriptor blocks cost the host beside what every interface costs it.
const HOST_COSTS: &[&str] = &["announce"];

/// And the device: its processor, and the last a DMA engine.
const DEVICE_COSTS: &[&str] = &["take block", "return", "dma start"];

/// How a machine speaks descriptor blocks.
#[derive(Clone, Debug)]
pub struct Block {
    /// The most descriptors of a ring: a power of two.
    pub ring: u32,
    /// The most descriptors of a block.
    pub largest: u32,
    /// Descriptors that are returned together: 1, each by itself; `largest`, the whole block.
    pub group: u32,
    /// Descriptors go over a DMA engine of their own.
    pub second_engine: bool,
    /// Descriptors of the next block that the device takes before it is announced.
    pub ahead: u32,
    /// How large blocks are.
    pub sizing: BlockSizing,
    pub host_costs: Vec<NamedCost>,
    pub device_costs: Vec<NamedCost>,
}

/// How large blocks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSizing {
    /// Full blocks of this size; what is not full waits so long.
    Fixed(u32, Span),
    /// All that is pending, or the largest.
    Adaptive,
    /// The same, after a wait for what is about to come back.
    Gathering,
}

#[derive(Clone, Copy)]
enum Returned {
    Whole,
    Each,
    Subsets,
}

impl Table for Block {
    const NAME: &'static str = "block";
    const EXAMPLE: &'static str = "plans/descriptor-blocks.toml";

    fn read(fields: Fields<'_>) -> Option<Block> {
        let rings = |n: u64| n.is_power_of_two() && (2..=1 << 15).contains(&n);
        let ring = fields.number_where("ring", Welcome, rings, "a power of two from 2 to 32768");
        let largest = fields.number("largest", Welcome, 1..=ring.unwrap_or(255).min(127));
        let words =
            [("whole", Returned::Whole), ("each", Returned::Each), ("subsets", Returned::Subsets)];
        let returned = fields.choice("returned", &words);
        let most = largest.unwrap_or(127);
        let group = match returned {
            Some(Returned::Whole) => largest,
            Some(Returned::Each) => Some(1),
            Some(Returned::Subsets) => fields.number("subset", Welcome, 1..=most),
            None => None,
        };
        let engines = fields.number("engines", Welcome, 1..=2);
        let ahead = fields.number("ahead", Welcome, 0..=most);
        let sizing =
            match fields.choice("sizing", &[("static", 0), ("adaptive", 1), ("gathering", 2)]) {
                Some(0) => {
                    let size = fields.number("static_size", Welcome, 1..=most);
                    let linger = fields.span("linger", Welcome, Span::ZERO..=Span::s(1));
                    size.zip(linger).map(|(size, linger)| BlockSizing::Fixed(size as u32, linger))
                }
                Some(1) => Some(BlockSizing::Adaptive),
                Some(_) => Some(BlockSizing::Gathering),
                None => None,
            };
        // Of one table, each list takes its own.
        let all = costs(&fields, &["announce", "take block", "return", "dma start"]);
        fields.done();
        let of = |names: &[&str], all: &[NamedCost]| -> Vec<NamedCost> {
            all.iter().filter(|cost| names.contains(&cost.name)).cloned().collect()
        };
        let all = all?;
        Some(Block {
            ring: ring? as u32,
            largest: largest? as u32,
            group: group? as u32,
            second_engine: engines? == 2,
            ahead: ahead? as u32,
            sizing: sizing?,
            host_costs: of(HOST_COSTS, &all),
            device_costs: of(DEVICE_COSTS, &all),
        })
    }

    fn host_costs(&self) -> Vec<NamedCost> {
        self.host_costs.clone()
    }

    fn device_costs(&self) -> Vec<NamedCost> {
        self.device_costs.clone()
    }
}
