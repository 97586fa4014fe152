//! The table `[dcx]`: parameters of the DC Express interface. It is optional: without it a machine does not
//! have the interface.

use bus::sim::NamedCost;
use runtime::Span;

use super::fields::{Fields, Source::Optional};
use super::table::Table;

/// Parameters of the DC Express interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcx {
    pub tags: DcxTags,
    /// Upper bound of the device's time for one read.
    pub max_latency: Span,
    /// Maximum number of queue entries per fetch.
    pub fetch_max: u32,
    /// Fetches are scheduled so that commands arrive when the device can serve them.
    pub anticipate: bool,
    /// A queue sleeps after this number of consecutive empty fetches; none: never.
    pub sleep_after: Option<u32>,
    /// A queue is rung by its doorbell, not polled, while fewer commands a second than this come; none:
    /// it is polled at any load.
    pub poll_above: Option<u32>,
    /// Writes use the polled queue as well.
    pub writes: bool,
    pub mark: Span,
    /// The host marks only the last packet's part of a buffer. For experiments: where packets overtake one
    /// another, reads end before their data have arrived.
    pub marks_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DcxTags {
    /// The host chooses random tags of this number of bits.
    Random(u32),
    /// The device chooses tags, and guarantees that no granule of its medium ends with its tag.
    Device {
        /// Bytes of a granule.
        grain: u32,
        /// Bits of a tag.
        bits: u32,
        /// Values that it has picked at random and compared with its contents; none: it counts ends in
        /// intervals of values.
        compared: Option<u32>,
    },
}

#[derive(Clone, Copy)]
enum Source {
    Random,
    Intervals,
    Compared,
}

fn device_tags(fields: &Fields<'_>, source: Source) -> Option<DcxTags> {
    let sized = |bytes: u64| bytes.is_power_of_two() && (64..=512).contains(&bytes);
    let grain = fields.size("grain", Optional, sized, "a power of two from \"64 B\" to \"512 B\"");
    let bits = fields.number_or("tag_bits", 32, 32..=64);
    let compared = match source {
        Source::Compared => Some(fields.number("candidates", Optional, 1..=1 << 16)?),
        Source::Random | Source::Intervals => None,
    };
    Some(DcxTags::Device {
        grain: grain? as u32,
        bits: bits? as u32,
        compared: compared.map(|values| values as u32),
    })
}

impl Table for Dcx {
    const NAME: &'static str = "dcx";
    const EXAMPLE: &'static str = "plans/dc-express.toml";

    fn read(fields: Fields<'_>) -> Option<Dcx> {
        let sources = [
            ("random", Source::Random),
            ("device", Source::Intervals),
            ("compared", Source::Compared),
        ];
        let tags = match fields.choice("tags", &sources) {
            Some(Source::Random) => {
                fields.number("tag_bits", Optional, 1..=64).map(|bits| DcxTags::Random(bits as u32))
            }
            Some(source) => device_tags(&fields, source),
            None => None,
        };
        let max_latency = fields.span("max_latency", Optional, Span::us(1)..=Span::s(1));
        let fetch_max = fields.number("fetch_max", Optional, 1..=64);
        let anticipate = fields.boolean("anticipate");
        let sleep_after = fields.number("sleep_after", Optional, 0..=1 << 30);
        let poll_above =
            fields.given("poll_above", |key| fields.number(key, Optional, 1..=1_000_000_000));
        let writes = fields.choice("writes", &[("ordinary", false), ("polled", true)]);
        let mark = fields.cost("mark");
        let marks = [("each packet", false), ("last packet", true)];
        let marks_last = fields.choice_or("marks", false, &marks);
        fields.done();
        Some(Dcx {
            tags: tags?,
            max_latency: max_latency?,
            fetch_max: fetch_max? as u32,
            anticipate: anticipate?,
            sleep_after: Some(sleep_after? as u32).filter(|fetches| *fetches > 0),
            poll_above: poll_above?.map(|rate| rate as u32),
            writes: writes?,
            mark: mark?,
            marks_last: marks_last?,
        })
    }

    fn host_costs(&self) -> Vec<NamedCost> {
        vec![NamedCost { name: "mark", span: self.mark }]
    }
}
