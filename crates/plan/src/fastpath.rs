//! The table `[fastpath]`: what FastPath needs beside the tables of every machine. A plan may be without
//! it; its machine then has no such interface.

use bus::sim::NamedCost;
use runtime::Span;

use super::fields::{Fields, Source::Welcome};
use super::host::costs;
use super::section::Table;

/// What FastPath costs beside what every interface costs: the caller's core the first and the last, its
/// own engines the others.
const COSTS: &[&str] = &["request", "control", "function", "respond", "take response"];

/// How a machine speaks FastPath.
#[derive(Clone, Debug)]
pub struct Fastpath {
    /// Submit and Complete, so many times.
    pub engines: u32,
    /// What a request is cut into, bytes.
    pub block_bytes: u32,
    /// The function that blocks pass, as a word of [`functions::named`].
    pub function: String,
    /// What an engine takes for a command: to form it, write it and ring. In the place of a driver's.
    pub submit: Span,
    /// And to take in its completion.
    pub complete: Span,
    /// One turn of its polling of the completion queue.
    pub poll: Span,
    /// What it costs beside that.
    pub costs: Vec<NamedCost>,
}

impl Table for Fastpath {
    const NAME: &'static str = "fastpath";
    const EXAMPLE: &'static str = "plans/fastpath.toml";

    fn read(fields: Fields<'_>) -> Option<Fastpath> {
        let engines = fields.number("engines", Welcome, 1..=8);
        let sized = |bytes: u64| u32::try_from(bytes).is_ok_and(wire::fastpath::is_block_size);
        let expected = "\"512 B\", \"1 KiB\", \"2 KiB\", \"4 KiB\" or \"8 KiB\"";
        let block_bytes = fields.size("block", Welcome, sized, expected);
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
