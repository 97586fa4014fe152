//! The table `[dcx]`: what DC Express needs beside the tables of every machine. A plan may be without
//! it; its machine then has no such interface.

use bus::sim::NamedCost;
use runtime::Span;

use super::fields::{Fields, Source::Welcome};
use super::section::Table;

/// How a machine speaks DC Express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcx {
    pub tags: DcxTags,
    /// The most that the device takes for one read.
    pub max_latency: Span,
    /// Entries that one fetch brings, at most.
    pub fetch_max: u32,
    /// Fetches are timed, so that commands arrive when they can be served.
    pub anticipate: bool,
    /// Fetches in a row that bring nothing after which a queue sleeps; none: never.
    pub sleep_after: Option<u32>,
    /// Writes go through the polled queue too.
    pub writes: bool,
    pub mark: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DcxTags {
    /// The host, at random: so many bits.
    Random(u32),
    /// The device, which promises that no granule of so many bytes ends with its tag.
    Device(u32),
}

impl Table for Dcx {
    const NAME: &'static str = "dcx";
    const EXAMPLE: &'static str = "plans/dc-express.toml";

    fn read(fields: Fields<'_>) -> Option<Dcx> {
        let random = fields.choice("tags", &[("random", true), ("device", false)]);
        let tags = match random {
            Some(true) => {
                fields.number("tag_bits", Welcome, 1..=32).map(|bits| DcxTags::Random(bits as u32))
            }
            Some(false) => {
                let sized = |bytes: u64| bytes.is_power_of_two() && (64..=512).contains(&bytes);
                let expected = "a power of two from \"64 B\" to \"512 B\"";
                fields.size("grain", Welcome, sized, expected).map(|b| DcxTags::Device(b as u32))
            }
            None => None,
        };
        let max_latency = fields.span("max_latency", Welcome, Span::us(1)..=Span::s(1));
        let fetch_max = fields.number("fetch_max", Welcome, 1..=64);
        let anticipate = fields.boolean("anticipate");
        let sleep_after = fields.number("sleep_after", Welcome, 0..=1 << 30);
        let writes = fields.choice("writes", &[("ordinary", false), ("polled", true)]);
        let mark = fields.cost("mark");
        fields.done();
        Some(Dcx {
            tags: tags?,
            max_latency: max_latency?,
            fetch_max: fetch_max? as u32,
            anticipate: anticipate?,
            sleep_after: Some(sleep_after? as u32).filter(|fetches| *fetches > 0),
            writes: writes?,
            mark: mark?,
        })
    }

    fn host_costs(&self) -> Vec<NamedCost> {
        vec![NamedCost { name: "mark", span: self.mark }]
    }
}
