//! The table `[fastpath]`: parameters of the FastPath interface. It is optional: without it a machine does
//! not have the interface.

use bus::sim::NamedCost;
use runtime::Span;

use super::fields::{Fields, Source::Optional};
use super::host::costs;
use super::table::Table;

/// Costs of FastPath, in addition to those of every interface. The first and the last are on the caller's
/// core, the others on the FastPath engines.
const COSTS: &[&str] = &["request", "control", "function", "respond", "take response"];

/// Parameters of the FastPath interface.
#[derive(Clone, Debug)]
pub struct Fastpath {
    /// Number of pairs of Submit and Complete engines.
    pub engines: u32,
    /// Size in bytes of the blocks into which a request is split.
    pub block_bytes: u32,
    /// The data function that blocks pass through, by its name in [`functions::named`].
    pub function: String,
    /// Time of an engine to build a command, write it and ring the doorbell. It replaces the driver's cost.
    pub submit: Span,
    /// Time of an engine to process a completion.
    pub complete: Span,
    /// Time of one poll of the completion queue.
    pub poll: Span,
    pub costs: Vec<NamedCost>,
}

impl Table for Fastpath {
    const NAME: &'static str = "fastpath";
    const EXAMPLE: &'static str = "plans/fastpath.toml";

    fn read(fields: Fields<'_>) -> Option<Fastpath> {
        let engines = fields.number("engines", Optional, 1..=8);
        let sized = |bytes: u64| u32::try_from(bytes).is_ok_and(wire::fastpath::is_block_size);
        let expected = "\"512 B\", \"1 KiB\", \"2 KiB\", \"4 KiB\" or \"8 KiB\"";
        let block_bytes = fields.size("block", Optional, sized, expected);
        let function = fields.text("function", functions::EXPECTED).filter(|word| {
            let known = functions::named(word);
            if let Err(error) = &known {
                fields.error("function", error.word(), functions::EXPECTED);
            }
            known.is_ok()
        });
        let submit = fields.cost("submit");
        let complete = fields.cost("complete");
        let poll = fields.cost("poll");
        let costs = costs(&fields, COSTS);
        fields.done();
        Some(Fastpath {
            engines: engines? as u32,
            block_bytes: block_bytes? as u32,
            function: function?,
            submit: submit?,
            complete: complete?,
            poll: poll?,
            costs: costs?,
        })
    }

    fn host_costs(&self) -> Vec<NamedCost> {
        self.costs.clone()
    }
}
