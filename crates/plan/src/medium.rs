//! The table `[medium]`: what the device keeps its data in, and how long that takes.

use std::path::PathBuf;

use media::contents::{Backing, CAPACITY_BYTES_MAX, Keep, Spec};
use media::disks::Array;
use media::{Pace, Timing};
use runtime::Span;

use super::bridge::{self, BridgeOf};
use super::disks;
use super::fields::{Fields, Source::Due, Source::Welcome};
use super::flash::{self, Flash, Start};
use super::units::size_text;

#[derive(Clone, Debug)]
pub struct Medium {
    /// What it is made of.
    pub kind: MediumKind,
    /// How much it holds, what of it is kept, and where.
    pub contents: Spec,
    /// How the plan chooses what is kept.
    pub keep: KeepRule,
    /// How it keeps time in the live world. In virtual time it always takes that of its model.
    pub pace: MediumPace,
    /// The times of its model. Always there if the pace is modelled and it is memory.
    pub timing: Option<Timing>,
    /// Chips and software, if it is flash.
    pub flash: Option<Flash>,
    /// Several of them behind a bridge, if it has one.
    pub bridge: Option<BridgeOf>,
    /// The array, if it is disks that rotate.
    pub disks: Option<Array>,
}

/// What a medium is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumKind {
    Dram,
    Pcm,
    Flash,
    Disks,
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
    /// The pace in the live world.
    pub fn live_pace(&self) -> Pace {
        match (self.pace, &self.timing) {
            (MediumPace::Modelled, Some(timing)) => Pace::Modelled(timing.clone()),
            _ => Pace::Immediate,
        }
    }
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
        matches!(self.kind, MediumKind::Dram | MediumKind::Pcm)
            && self.contents.keep == Keep::Everything
            && self.contents.backing == Backing::Memory
    }
}

/// How each rule is written.
const KEEP_RULES: [(&str, KeepRule); 3] =
    [("everything", KeepRule::Everything), ("stamps", KeepRule::Stamps), ("auto", KeepRule::Auto)];

pub(super) fn read(fields: Fields<'_>) -> Option<Medium> {
    let kinds = [
        ("dram", MediumKind::Dram),
        ("pcm", MediumKind::Pcm),
        ("flash", MediumKind::Flash),
        ("disks", MediumKind::Disks),
    ];
    let kind = fields.choice("kind", &kinds);
    let blocks = |bytes| bytes == 512 || bytes == 4096;
    let block_bytes = fields.size("block", Welcome, blocks, "\"512 B\" or \"4 KiB\"");
    let rule = fields.choice("keep", &KEEP_RULES);
    let keep = rule.map(KeepRule::keep);
    let pace = fields.choice(
        "pace",
        &[("modelled", MediumPace::Modelled), ("immediate", MediumPace::Immediate)],
    );
    if kind == Some(MediumKind::Flash) {
        return of_flash(fields, block_bytes, rule, pace);
    }
    let capacity_bytes = capacity_bytes(&fields, block_bytes);
    let backing = backing(&fields, rule);
    let array = match kind {
        Some(MediumKind::Disks) => Some(array(&fields, capacity_bytes)?),
        _ => None,
    };
    let timing = if array.is_some() {
        Some(None)
    } else if fields.has("timing") {
        fields.table("timing").and_then(timing).map(Some)
    } else if pace == Some(MediumPace::Modelled) {
        let expected = "the table [medium.timing], since medium.pace is \"modelled\"";
        fields.error("timing", "nothing", expected);
        None
    } else {
        Some(None)
    };
    fields.done();
    let contents = Spec {
        capacity_bytes: capacity_bytes?,
        block_bytes: block_bytes? as u32,
        keep: keep?,
        backing: backing?,
    };
    let (kind, keep, pace, timing) = (kind?, rule?, pace?, timing?);
    let mut medium =
        Medium { kind, contents, keep, pace, timing, flash: None, bridge: None, disks: array };
    if keep == KeepRule::Auto && medium.contents.backing != Backing::Memory {
        medium.keep_everything();
    }
    Some(medium)
}

/// Reads a medium of flash, which has no timing of its own, behind a bridge or not.
fn of_flash(
    fields: Fields<'_>,
    block_bytes: Option<u64>,
    rule: Option<KeepRule>,
    pace: Option<MediumPace>,
) -> Option<Medium> {
    let keep = rule.map(KeepRule::keep);
    let flash = fields.table("flash").and_then(|table| flash::read(table, block_bytes, keep));
    let bridged = fields.has("bridge");
    let bridge = match bridged {
        true => fields.table("bridge").and_then(|table| bridge::read(table, block_bytes)),
        false => None,
    };
    let bridge = match (bridged, bridge, &flash) {
        (true, Some(bridge), Some(flash)) => Some(Some(checked(&fields, bridge, flash)?)),
        (bridged, _, _) => (!bridged).then_some(None),
    };
    fields.done();
    let (flash, bridge, pace) = (flash?, bridge?, pace?);
    let contents = Spec {
        // It follows from the chips.
        capacity_bytes: capacity_behind(bridge.as_ref(), flash.capacity_bytes()),
        block_bytes: block_bytes? as u32,
        keep: keep?,
        backing: Backing::Memory,
    };
    let kind = MediumKind::Flash;
    let has_state = flash.state.is_some();
    let (flash, keep) = (Some(flash), rule?);
    let mut medium =
        Medium { kind, contents, keep, pace, timing: None, flash, bridge, disks: None };
    if has_state && keep == KeepRule::Auto {
        // A state is also for a server to open.
        medium.keep_everything();
    }
    Some(medium)
}

/// What a bridge makes of controllers of so many bytes: whole stripes of each.
fn capacity_behind(bridge: Option<&BridgeOf>, bytes: u64) -> u64 {
    bridge.map_or(bytes, |bridge| {
        let stripe = u64::from(bridge.stripe_bytes);
        bytes / stripe * stripe * u64::from(bridge.controllers)
    })
}

/// Behind a bridge flash is new, and kept nowhere.
fn checked(fields: &Fields<'_>, bridge: BridgeOf, flash: &Flash) -> Option<BridgeOf> {
    let expected = "medium.flash.start = \"fresh\" and no medium.flash.state behind a bridge";
    if flash.start != Start::Fresh || flash.state.is_some() {
        fields.error("bridge", "flash that has been used", expected);
        return None;
    }
    if u64::from(bridge.stripe_bytes) > flash.capacity_bytes() {
        fields.error("bridge", "a stripe longer than a controller's flash", "a shorter one");
        return None;
    }
    Some(bridge)
}

/// The array, which has room for the capacity.
fn array(fields: &Fields<'_>, capacity_bytes: Option<u64>) -> Option<Array> {
    let array = fields.table("disks").and_then(disks::read)?;
    let room = array.bytes();
    if let Some(bytes) = capacity_bytes.filter(|bytes| *bytes > room) {
        let expected = format!("at most the {room} bytes that the disks of medium.disks hold");
        fields.error("capacity", size_text(bytes), expected);
    }
    Some(array)
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

fn timing(fields: Fields<'_>) -> Option<Timing> {
    let channels = fields.number("channels", Due, 1..=64);
    let banks = fields.number("banks", Due, 1..=1024);
    let rows = |bytes: u64| bytes.is_power_of_two() && (64..=1 << 20).contains(&bytes);
    let row_bytes = fields.size("row", Due, rows, "a power of two from \"64 B\" to \"1 MiB\"");
    let first_byte = fields.span("first_byte", Due, Span::ZERO..=Span::s(1));
    let next_row = fields.span("next_row", Due, Span::ZERO..=Span::s(1));
    let bytes_per_s = fields.rate("bandwidth", Due);
    let write_factor = fields.number("write_factor", Due, 1..=1_000_000);
    fields.done();
    Some(Timing {
        channels: channels? as u32,
        banks: banks? as u32,
        row_bytes: row_bytes? as u32,
        first_byte: first_byte?,
        next_row: next_row?,
        bytes_per_s: bytes_per_s?,
        write_factor: write_factor?,
    })
}
