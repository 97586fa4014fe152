//! The table `[medium]`: what the device keeps its data in, and how long that takes.
//!
//! [`KINDS`] lists the kinds of medium. Each has a file below `medium/`: its own keys, its lines of the
//! report, and how its model is built. The keys that all kinds have are read here.

pub(super) mod bridge;
mod disks;
pub(super) mod flash;
mod memory;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use media::contents::{Backing, CAPACITY_BYTES_MAX, Contents, Keep, Spec};
use media::{Blocks, Timing};
use runtime::{Rt, Span};

use super::fields::{Fields, Source::Welcome};
use super::units::size_text;
use super::{Plan, PlanErrors};
use bridge::BridgeOf;
use flash::Flash;

/// The kinds of medium, in the order in which errors name them.
const KINDS: [&MediumKind; 4] = [&memory::DRAM, &memory::PCM, &flash::FLASH, &disks::DISKS];

#[derive(Debug)]
pub struct MediumKind {
    /// The value of `medium.kind`.
    pub name: &'static str,
    pub title: &'static str,
    /// The number by which descriptor blocks report it: `wire::block::registers`.
    pub technology: u8,
    /// Its blocks have room for metadata.
    pub has_metadata: bool,
    /// Reads the keys of this kind, and reports every error in them.
    pub(super) read: fn(&Fields<'_>, &Common) -> Option<Parts>,
}

/// What the table of a kind describes: a model over [`Contents`].
trait Model: fmt::Debug + Send + Sync {
    /// Writes its lines of the report, by [`line`](super::report::line).
    fn report(&self, out: &mut String) -> fmt::Result;

    /// The wait for the first byte of 4 KiB while the medium is idle, for the report. None: not reported.
    fn first_of_4k(&self) -> Option<Span> {
        None
    }

    /// Channels and latencies that descriptor blocks report to the host. None: not reported.
    fn timing(&self) -> Option<&Timing> {
        None
    }

    /// Builds the medium: with the times of its model, or as fast as the data are copied.
    fn start(&self, rt: &Rt, contents: Contents, modelled: bool) -> Result<Blocks, Missing>;
}

/// A key that a plan may lack until its model is built.
struct Missing {
    key: &'static str,
    expected: &'static str,
}

/// The keys that all kinds have. None: an error in it has been reported.
pub(super) struct Common {
    block_bytes: Option<u64>,
    rule: Option<KeepRule>,
    pace: Option<MediumPace>,
}

/// What the keys of a kind give.
pub(super) struct Parts {
    capacity_bytes: u64,
    backing: Backing,
    model: Option<Arc<dyn Model>>,
    flash: Option<Flash>,
    bridge: Option<BridgeOf>,
}

#[derive(Clone, Debug)]
pub struct Medium {
    /// What it is made of.
    pub kind: &'static MediumKind,
    /// How much it holds, what of it is kept, and where.
    pub contents: Spec,
    /// How the plan chooses what is kept.
    pub keep: KeepRule,
    /// How it keeps time in the live world. In virtual time it always takes that of its model.
    pub pace: MediumPace,
    /// Its model; none for flash.
    model: Option<Arc<dyn Model>>,
    /// Chips and software, if it is flash.
    pub flash: Option<Flash>,
    /// Several of them behind a bridge, if it has one.
    pub bridge: Option<BridgeOf>,
}

/// How a plan chooses how much of each block its medium remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepRule {
    /// Every byte.
    Everything,
    /// The first eight bytes of each block.
    Stamps,
    /// Stamps in runs of this program's own jobs, whose contents follow from them. Every byte where clients
    /// of a served drive write, and in a file.
    Auto,
}

impl KeepRule {
    /// What is kept, unless clients are served.
    fn keep(self) -> Keep {
        match self {
            KeepRule::Everything => Keep::Everything,
            KeepRule::Stamps | KeepRule::Auto => Keep::Stamps,
        }
    }
}

/// How a medium keeps time in the live world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumPace {
    Modelled,
    /// As fast as the data go.
    Immediate,
}

impl Medium {
    /// Keeps every byte, if the plan leaves that open; false if it says stamps.
    pub(super) fn keep_everything(&mut self) -> bool {
        if self.keep == KeepRule::Stamps {
            return false;
        }
        self.contents.keep = Keep::Everything;
        if let Some(flash) = &mut self.flash {
            flash.spec.keep = Keep::Everything;
        }
        true
    }

    /// Whether it can keep metadata beside its blocks.
    pub fn keeps_metadata(&self) -> bool {
        self.kind.has_metadata
            && self.contents.keep == Keep::Everything
            && self.contents.backing == Backing::Memory
    }

    /// Channels and latencies, as descriptor blocks report them to the host, if its table gives them.
    pub fn timing(&self) -> Option<&Timing> {
        self.model.as_ref()?.timing()
    }

    /// The wait for the first byte of 4 KiB while it is idle, if it is known.
    pub fn first_of_4k(&self) -> Option<Span> {
        self.model.as_ref()?.first_of_4k()
    }

    /// Writes what its kind reports.
    pub(super) fn report(&self, out: &mut String) -> fmt::Result {
        self.model.as_ref().map_or(Ok(()), |model| model.report(out))?;
        self.flash.as_ref().map_or(Ok(()), |flash| flash.report(out))
    }
}

impl Plan {
    /// Builds the medium over these contents: with the times of its model, or as fast as the data are copied.
    ///
    /// # Errors
    /// The plan gives no times, which it need not for the live world.
    ///
    /// # Panics
    /// If it is flash, which has no contents but its chips.
    pub fn start_blocks(
        &self,
        rt: &Rt,
        contents: Contents,
        modelled: bool,
    ) -> Result<Blocks, PlanErrors> {
        let model = self.medium.model.as_ref().expect("contents are of a medium that has a model");
        let started = model.start(rt, contents, modelled);
        started.map_err(|Missing { key, expected }| self.lacks(key, "nothing", expected))
    }
}

/// How each rule is written.
const KEEP_RULES: [(&str, KeepRule); 3] =
    [("everything", KeepRule::Everything), ("stamps", KeepRule::Stamps), ("auto", KeepRule::Auto)];

pub(super) fn read(fields: Fields<'_>) -> Option<Medium> {
    let kind = fields.choice("kind", &KINDS.map(|kind| (kind.name, kind)));
    let blocks = |bytes| bytes == 512 || bytes == 4096;
    let block_bytes = fields.size("block", Welcome, blocks, "\"512 B\" or \"4 KiB\"");
    let rule = fields.choice("keep", &KEEP_RULES);
    let pace = fields.choice(
        "pace",
        &[("modelled", MediumPace::Modelled), ("immediate", MediumPace::Immediate)],
    );
    // An unknown kind has been reported; the other keys are validated as those of memory.
    let read = kind.unwrap_or(&memory::DRAM).read;
    let parts = read(&fields, &Common { block_bytes, rule, pace });
    fields.done();
    let (parts, keep) = (parts?, rule?);
    let contents = Spec {
        capacity_bytes: parts.capacity_bytes,
        block_bytes: block_bytes? as u32,
        keep: keep.keep(),
        backing: parts.backing,
    };
    let Parts { model, flash, bridge, .. } = parts;
    let mut medium = Medium { kind: kind?, contents, keep, pace: pace?, model, flash, bridge };
    let has_state = medium.flash.as_ref().is_some_and(|flash| flash.state.is_some());
    if keep == KeepRule::Auto && (has_state || medium.contents.backing != Backing::Memory) {
        // A file is also for a server to open.
        medium.keep_everything();
    }
    Some(medium)
}

impl Common {
    /// The rest of the keys of a kind with a [`Model`]: its capacity and its file, then what `model` reads
    /// for that capacity.
    fn with_model<M: Model + 'static>(
        &self,
        fields: &Fields<'_>,
        model: impl FnOnce(Option<u64>) -> Option<M>,
    ) -> Option<Parts> {
        let capacity_bytes = capacity_bytes(fields, self.block_bytes);
        let backing = backing(fields, self.rule);
        let model = model(capacity_bytes);
        Some(Parts {
            capacity_bytes: capacity_bytes?,
            backing: backing?,
            model: Some(Arc::new(model?)),
            flash: None,
            bridge: None,
        })
    }
}

fn capacity_bytes(fields: &Fields<'_>, block_bytes: Option<u64>) -> Option<u64> {
    // A bad block size has been told; then a capacity is as good as its smallest block.
    let block_bytes = block_bytes.unwrap_or(512);
    let good =
        |bytes: u64| bytes.is_multiple_of(block_bytes) && (1..=CAPACITY_BYTES_MAX).contains(&bytes);
    let expected = format!("whole blocks of {}, at least one, up to 1 PiB", size_text(block_bytes));
    fields.size("capacity", Welcome, good, &expected)
}

/// Where the contents are: in memory, or in a file at a path as it is written.
fn backing(fields: &Fields<'_>, keep: Option<KeepRule>) -> Option<Backing> {
    if !fields.has("file") {
        return Some(Backing::Memory);
    }
    let path = fields.text("file", "the path of a raw image")?;
    if keep == Some(KeepRule::Stamps) {
        let expected = "no file, or medium.keep = \"everything\": a raw image has every byte";
        fields.error("file", format!("{path:?}"), expected);
        return None;
    }
    Some(Backing::File(PathBuf::from(path)))
}
