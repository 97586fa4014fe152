//! The table `[medium]`: the storage medium and its timing.
//!
//! [`KINDS`] lists the kinds of medium. Each has a file below `medium/` with its keys, its lines of the
//! report and the construction of its model. The keys common to all kinds are parsed here.

pub(super) mod bridge;
mod chip_times;
mod disks;
pub(super) mod flash;
mod memory;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use media::contents::{Backing, CAPACITY_BYTES_MAX, Contents, Keep, Spec};
use media::{Blocks, Timing};
use runtime::{Rt, Span};

use super::fields::{Fields, Source::Optional};
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
    /// Technology number in the registers of descriptor blocks: `wire::block::registers`.
    pub technology: u8,
    /// Its blocks have room for metadata.
    pub has_metadata: bool,
    /// Parses the keys of this kind and reports every error in them.
    pub(super) read: fn(&Fields<'_>, &Common) -> Option<Parts>,
}

/// Model of a medium over [`Contents`], as described by the table of its kind.
trait Model: fmt::Debug + Send + Sync {
    /// Writes its lines of the report, by [`line`](super::report::line).
    fn report(&self, out: &mut String) -> fmt::Result;

    /// Latency to the first byte of 4 KiB on an idle medium, for the report. None: not reported.
    fn first_of_4k(&self) -> Option<Span> {
        None
    }

    /// Channels and latencies that descriptor blocks report to the host. None: not reported.
    fn timing(&self) -> Option<&Timing> {
        None
    }

    /// Builds the medium, with the times of its model or without delays.
    fn start(&self, rt: &Rt, contents: Contents, modelled: bool) -> Result<Blocks, Missing>;
}

/// A key that is only required to build a model.
struct Missing {
    key: &'static str,
    expected: &'static str,
}

/// The keys common to all kinds. None: an error in the key has been reported.
pub(super) struct Common {
    block_bytes: Option<u64>,
    rule: Option<KeepRule>,
    pace: Option<MediumPace>,
}

/// Result of the keys of a kind.
pub(super) struct Parts {
    capacity_bytes: u64,
    backing: Backing,
    model: Option<Arc<dyn Model>>,
    flash: Option<Flash>,
    bridge: Option<BridgeOf>,
}

#[derive(Clone, Debug)]
pub struct Medium {
    pub kind: &'static MediumKind,
    /// Capacity, retained data and backing store.
    pub contents: Spec,
    /// Choice of the data that the medium retains.
    pub keep: KeepRule,
    /// Timing in a live world. A simulated world always uses the model.
    pub pace: MediumPace,
    /// The model; none for flash.
    model: Option<Arc<dyn Model>>,
    /// Flash chips and FTL, if the medium is flash.
    pub flash: Option<Flash>,
    /// Several controllers behind a bridge, if there is one.
    pub bridge: Option<BridgeOf>,
    /// Most memory for contents that are in a file, in bytes. None: flash is in memory as a whole, and
    /// accesses to a raw image are system calls.
    pub resident_bytes: Option<u64>,
}

/// Least value of `medium.resident`: a few sets of frames.
const RESIDENT_BYTES_MIN: u64 = 1 << 20;

/// The data of each block that a medium retains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepRule {
    /// Every byte.
    Everything,
    /// The first eight bytes of each block.
    Stamps,
    /// Stamps in runs of this program's own jobs, whose block contents follow from the stamps. Every byte for
    /// a served drive and in a file.
    Auto,
}

impl KeepRule {
    /// The retained data, unless the drive is served to clients.
    fn keep(self) -> Keep {
        match self {
            KeepRule::Everything => Keep::Everything,
            KeepRule::Stamps | KeepRule::Auto => Keep::Stamps,
        }
    }
}

/// Timing of a medium in a live world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumPace {
    Modelled,
    Immediate,
}

impl Medium {
    /// Switches to full data if the rule is not `Stamps`. Returns whether every byte is retained.
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

    /// Names the files of one of several equal drives: from the second on, number 1, they have its number
    /// from 1 as a suffix.
    pub fn number_files(&mut self, number: u32) {
        let name = |path: &mut PathBuf| {
            let mut numbered = std::mem::take(path).into_os_string();
            numbered.push(format!(".{}", number + 1));
            *path = numbered.into();
        };
        if number == 0 {
            return;
        }
        if let Backing::File(path) | Backing::Bounded { path, .. } = &mut self.contents.backing {
            name(path);
        }
        if let Some(path) = self.flash.as_mut().and_then(|flash| flash.state.as_mut()) {
            name(path);
        }
    }

    /// The file that the drive's contents are in, if there is one: an image, or a state of flash.
    pub fn file(&self) -> Option<&Path> {
        match (&self.flash, &self.contents.backing) {
            (Some(flash), _) => flash.state.as_deref(),
            (None, Backing::File(path) | Backing::Bounded { path, .. }) => Some(path),
            (None, _) => None,
        }
    }

    /// Whether blocks have room for metadata.
    pub fn keeps_metadata(&self) -> bool {
        self.kind.has_metadata
            && self.contents.keep == Keep::Everything
            && self.contents.backing == Backing::Memory
    }

    /// Channels and latencies, as descriptor blocks report them to the host, if the kind has them.
    pub fn timing(&self) -> Option<&Timing> {
        self.model.as_ref()?.timing()
    }

    /// Latency to the first byte of 4 KiB on an idle medium, if it is known.
    pub fn first_of_4k(&self) -> Option<Span> {
        self.model.as_ref()?.first_of_4k()
    }

    /// Writes the lines of its kind.
    pub(super) fn report(&self, out: &mut String) -> fmt::Result {
        self.model.as_ref().map_or(Ok(()), |model| model.report(out))?;
        self.flash.as_ref().map_or(Ok(()), |flash| flash.report(out))
    }
}

impl Plan {
    /// Builds the medium over these contents, with the times of its model or without delays.
    ///
    /// # Errors
    /// The plan has no timing table, which is only optional in a live world.
    ///
    /// # Panics
    /// If the medium is flash, which stores its contents in chips.
    pub fn start_blocks(
        &self,
        rt: &Rt,
        contents: Contents,
        modelled: bool,
    ) -> Result<Blocks, PlanErrors> {
        let model = self.medium.model.as_ref().expect("a medium with contents has a model");
        let started = model.start(rt, contents, modelled);
        started.map_err(|Missing { key, expected }| self.lacks(key, "nothing", expected))
    }
}

/// The rules by their name in a plan.
const KEEP_RULES: [(&str, KeepRule); 3] =
    [("everything", KeepRule::Everything), ("stamps", KeepRule::Stamps), ("auto", KeepRule::Auto)];

pub(super) fn read(fields: Fields<'_>) -> Option<Medium> {
    let kind = fields.choice("kind", &KINDS.map(|kind| (kind.name, kind)));
    let blocks = |bytes| bytes == 512 || bytes == 4096;
    let block_bytes = fields.size("block", Optional, blocks, "\"512 B\" or \"4 KiB\"");
    let rule = fields.choice("keep", &KEEP_RULES);
    let pace = fields.choice(
        "pace",
        &[("modelled", MediumPace::Modelled), ("immediate", MediumPace::Immediate)],
    );
    // An unknown kind has been reported; the other keys are validated as for DRAM.
    let read = kind.unwrap_or(&memory::DRAM).read;
    let parts = read(&fields, &Common { block_bytes, rule, pace });
    let sized = |bytes: u64| (RESIDENT_BYTES_MIN..=CAPACITY_BYTES_MAX).contains(&bytes);
    let resident =
        fields.given("resident", |key| fields.size(key, Optional, sized, "a size from \"1 MiB\""));
    let in_file = parts.as_ref().is_none_or(|parts| {
        let state = parts.flash.as_ref().and_then(|flash| flash.state.as_ref());
        state.is_some() || matches!(parts.backing, Backing::File(_))
    });
    let in_full = matches!(rule, Some(KeepRule::Everything | KeepRule::Auto) | None);
    if fields.has("resident") && !(in_file && in_full) {
        let expected = "contents in a file, every byte: medium.file or medium.flash.state";
        fields.error("resident", "memory for contents", expected);
        return None;
    }
    fields.done();
    let (mut parts, keep, resident_bytes) = (parts?, rule?, resident?);
    if let (Backing::File(path), Some(resident_bytes)) = (&parts.backing, resident_bytes) {
        parts.backing = Backing::Bounded { path: path.clone(), resident_bytes };
    }
    let contents = Spec {
        capacity_bytes: parts.capacity_bytes,
        block_bytes: block_bytes? as u32,
        keep: keep.keep(),
        backing: parts.backing,
    };
    let Parts { model, flash, bridge, .. } = parts;
    let mut medium =
        Medium { kind: kind?, contents, keep, pace: pace?, model, flash, bridge, resident_bytes };
    let has_state = medium.flash.as_ref().is_some_and(|flash| flash.state.is_some());
    if keep == KeepRule::Auto && (has_state || medium.contents.backing != Backing::Memory) {
        // A server may open the file later.
        medium.keep_everything();
    }
    Some(medium)
}

impl Common {
    /// Parses the remaining keys of a kind with a [`Model`]: capacity and file, then the keys that `model`
    /// reads.
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
    // An invalid block size has been reported; the capacity is then checked for the smallest block size.
    let block_bytes = block_bytes.unwrap_or(512);
    let good =
        |bytes: u64| bytes.is_multiple_of(block_bytes) && (1..=CAPACITY_BYTES_MAX).contains(&bytes);
    let (block, most) = (size_text(block_bytes), size_text(CAPACITY_BYTES_MAX));
    let expected = format!("whole blocks of {block}, at least one, up to {most}");
    fields.size("capacity", Optional, good, &expected)
}

/// The backing store: memory, empty or with random contents, or a file. The path is taken as it is.
fn backing(fields: &Fields<'_>, keep: Option<KeepRule>) -> Option<Backing> {
    if fields.has("fill_seed") {
        let seed = fields.number("fill_seed", Optional, 0..=u64::MAX >> 1)?;
        if fields.has("file") || keep == Some(KeepRule::Stamps) {
            let expected = "no medium.file, and medium.keep = \"everything\": random contents are \
                            generated in memory, whole";
            fields.error("fill_seed", seed.to_string(), expected);
            return None;
        }
        return Some(Backing::Random(seed));
    }
    if !fields.has("file") {
        return Some(Backing::Memory);
    }
    let path = fields.text("file", "the path of a raw image")?;
    if keep == Some(KeepRule::Stamps) {
        let expected = "no file, or medium.keep = \"everything\": a raw image stores every byte";
        fields.error("file", format!("{path:?}"), expected);
        return None;
    }
    Some(Backing::File(PathBuf::from(path)))
}
