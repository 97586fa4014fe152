//! The table `[block]`: parameters of the descriptor-block interface. It is optional: without it a machine
//! does not have the interface.

use bus::sim::NamedCost;
use runtime::Span;

use super::fields::{Fields, Source::Optional};
use super::host::costs;
use super::table::Table;

/// Host costs of descriptor blocks, in addition to those of every interface.
const HOST_COSTS: &[&str] = &["announce"];

/// Device costs: those of its processors, and `dma start` of a DMA engine.
const DEVICE_COSTS: &[&str] = &["take block", "return", "dma start"];

/// Parameters of the descriptor-block interface.
#[derive(Clone, Debug)]
pub struct Block {
    /// Descriptors of a ring: a power of two.
    pub ring: u32,
    /// Maximum number of descriptors of a block.
    pub largest: u32,
    /// Descriptors that are returned together: from 1, each by itself, to `largest`, the whole block.
    pub group: u32,
    /// Descriptors have a DMA engine of their own.
    pub second_engine: bool,
    /// Descriptors of the next block that the device prefetches before the announcement.
    pub ahead: u32,
    pub sizing: BlockSizing,
    pub host_costs: Vec<NamedCost>,
    pub device_costs: Vec<NamedCost>,
}

/// Block size policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockSizing {
    /// Full blocks of this size. A partial block is announced after this span.
    Fixed(u32, Span),
    /// All pending requests, up to `largest`.
    Adaptive,
    /// As `Adaptive`, after a wait for completions that are about to arrive.
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
        let ring = fields.number_where("ring", Optional, rings, "a power of two from 2 to 32768");
        let largest = fields.number("largest", Optional, 1..=ring.unwrap_or(255).min(127));
        let words =
            [("whole", Returned::Whole), ("each", Returned::Each), ("subsets", Returned::Subsets)];
        let returned = fields.choice("returned", &words);
        let most = largest.unwrap_or(127);
        let group = match returned {
            Some(Returned::Whole) => largest,
            Some(Returned::Each) => Some(1),
            Some(Returned::Subsets) => fields.number("subset", Optional, 1..=most),
            None => None,
        };
        let engines = fields.number("engines", Optional, 1..=2);
        let ahead = fields.number("ahead", Optional, 0..=most);
        let sizing =
            match fields.choice("sizing", &[("static", 0), ("adaptive", 1), ("gathering", 2)]) {
                Some(0) => {
                    let size = fields.number("static_size", Optional, 1..=most);
                    let linger = fields.span("linger", Optional, Span::ZERO..=Span::s(1));
                    size.zip(linger).map(|(size, linger)| BlockSizing::Fixed(size as u32, linger))
                }
                Some(1) => Some(BlockSizing::Adaptive),
                Some(_) => Some(BlockSizing::Gathering),
                None => None,
            };
        // The table `[block.costs]` holds the costs of both sides.
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
