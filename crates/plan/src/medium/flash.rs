//! NAND flash, with the table `[medium.flash]`: which chips, how many, and the flash software on them.

use std::fmt;
use std::path::PathBuf;

use device::flash::{self as chips, shape, spare_bytes};
use ftl::policy::Choice;
use ftl::{Cache, Options, Shape, space};
use media::contents::{Backing, Keep};
use media::nand::{Errors, Geometry, Profile, Spec, Timing};

use super::bridge::{self, BridgeOf};
use super::{Common, KeepRule, MediumKind, Parts};
use crate::fields::{Fields, Source::Welcome};
use crate::report::line;
use crate::units::size_text;

pub(super) static FLASH: MediumKind = MediumKind {
    name: "flash",
    title: "flash",
    technology: 3,
    has_metadata: false,
    read: of_chips,
};

/// Flash, and the software that makes blocks of it.
#[derive(Clone, Debug)]
pub struct Flash {
    /// The name of its chips.
    pub profile: &'static str,
    /// The chips, but for their seed, which is the run's.
    pub spec: Spec,
    pub timing: Timing,
    /// The software, but for its seed.
    pub software: Options,
    /// Capacitors carry the chips to the end of what they have begun when the power fails.
    pub held_up: bool,
    /// What the drive has been through before it is used.
    pub start: Start,
    /// Where its state is kept from run to run.
    pub state: Option<PathBuf>,
}

/// What a drive has been through before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Fresh,
    /// Every block was written once, in order.
    Filled,
    /// Overwritten at random until the collector works at its steady rate.
    Steady,
}

impl Flash {
    /// How flash software sees its chips.
    pub fn shape(&self) -> Shape {
        shape(&self.spec.geometry, self.held_up)
    }

    /// Bytes that the host sees.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.software.units) * u64::from(self.spec.geometry.unit_bytes)
    }

    /// The options of its chips: with the times of their model, or as fast as the data are copied.
    pub fn options(&self, modelled: bool) -> chips::Options {
        chips::Options {
            timing: modelled.then(|| self.timing.clone()),
            protected_buffer: self.software.cache == Cache::Protected,
            held_up: self.held_up,
        }
    }

    /// Writes its lines of the report.
    pub(super) fn report(&self, out: &mut String) -> fmt::Result {
        let geometry = &self.spec.geometry;
        let (dies, channels) = (geometry.all_dies(), geometry.channels);
        let chips = format_args!("{}, {dies} dies on {channels} channels", self.profile);
        line(out, "chips", chips)?;
        let (planes, blocks, pages) = (geometry.planes, geometry.blocks, geometry.pages());
        let page = size_text(geometry.page_bytes.into());
        let layout = format_args!("{planes} planes of {blocks} blocks of {pages} pages of {page}");
        line(out, "a die", layout)?;
        line(out, "all of it", size_text(geometry.bytes()))?;
        let buffer = u64::from(self.software.slots) * u64::from(geometry.unit_bytes);
        let cache = format!("{:?}", self.software.cache).to_lowercase();
        line(out, "write buffer", format_args!("{}, {cache}", size_text(buffer)))
    }
}

/// Reads flash, behind a bridge or not.
fn of_chips(fields: &Fields<'_>, common: &Common) -> Option<Parts> {
    let (block_bytes, keep) = (common.block_bytes, common.rule.map(KeepRule::keep));
    let flash = fields.table("flash").and_then(|table| read(table, block_bytes, keep));
    let bridged = fields.has("bridge");
    let bridge = match bridged {
        true => fields.table("bridge").and_then(|table| bridge::read(table, block_bytes)),
        false => None,
    };
    let flash = flash?;
    let bridge = match bridged {
        true => Some(checked(fields, bridge?, &flash)?),
        false => None,
    };
    Some(Parts {
        // It follows from the chips.
        capacity_bytes: capacity_behind(bridge.as_ref(), flash.capacity_bytes()),
        backing: Backing::Memory,
        model: None,
        flash: Some(flash),
        bridge,
    })
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

/// Reads the table, for blocks of so many bytes, of which this is kept.
fn read(fields: Fields<'_>, block_bytes: Option<u64>, keep: Option<Keep>) -> Option<Flash> {
    let known: Vec<_> = Profile::all().into_iter().map(|one| (one.name, one.name)).collect();
    let profile = fields.choice("profile", &known).and_then(Profile::named);
    // A bad profile has been told; the other keys are judged all the same.
    let stand_in = profile.clone().unwrap_or_else(Profile::tlc);
    let geometry = geometry(&fields, &stand_in, block_bytes).filter(|_| profile.is_some());
    let errors = fields.choice("errors", &[("profile", true), ("none", false)]);
    let held_up = if fields.has("held_up") { fields.boolean("held_up") } else { Some(false) };
    let shape = geometry.as_ref().zip(held_up).map(|(one, held_up)| shape(one, held_up));
    let software = software(&fields, geometry.as_ref().zip(shape), block_bytes);
    let start = fields.choice(
        "start",
        &[("fresh", Start::Fresh), ("filled", Start::Filled), ("steady", Start::Steady)],
    );
    let state = match fields.has("state") {
        true => fields.text("state", "the path of a file that keeps the drive's state").map(Some),
        false => Some(None),
    };
    let lost = state.as_ref().is_some_and(Option::is_some)
        && software.as_ref().is_some_and(|software| software.cache == Cache::Protected);
    if lost {
        // The buffer is in this process's memory, and no capacitor keeps that: what was written last would
        // be lost, and what the collector had moved there.
        let expected =
            "volatile or through with medium.flash.state, where what a buffer holds is not kept";
        fields.error("cache", "protected", expected);
        return None;
    }
    fields.done();
    let (profile, geometry) = (profile?, geometry?);
    let errors = if errors? { profile.errors } else { Errors::none() };
    let spec = Spec { geometry, keep: keep?, block_bytes: block_bytes? as u32, errors, seed: 0 };
    Some(Flash {
        profile: profile.name,
        spec,
        timing: profile.timing,
        software: software?,
        held_up: held_up?,
        start: start?,
        state: state?.map(PathBuf::from),
    })
}

/// The layout of the named chip, with those numbers that the plan gives in the place of its own.
fn geometry(fields: &Fields<'_>, profile: &Profile, block_bytes: Option<u64>) -> Option<Geometry> {
    let own = &profile.geometry;
    let number = |key, own: u32, most: u64| match fields.has(key) {
        true => fields.number(key, Welcome, 1..=most).map(|n| n as u32),
        false => Some(own),
    };
    let channels = number("channels", own.channels, 64);
    let packages = number("packages", own.packages, 64);
    let dies = number("dies", own.dies, 16);
    let planes = number("planes", own.planes, 16);
    let blocks = number("blocks", own.blocks, 1 << 20);
    let word_lines = number("word_lines", own.word_lines, 4096);
    let unit = match fields.has("unit") {
        true => {
            let least = block_bytes.unwrap_or(512).max(512);
            let sized = |bytes: u64| bytes.is_power_of_two() && (least..=16_384).contains(&bytes);
            let expected = "a power of two from \"512 B\" to \"16 KiB\", whole blocks";
            fields.size("unit", Welcome, sized, expected)
        }
        false => Some(own.unit_bytes.into()),
    };
    let geometry = Geometry {
        channels: channels?,
        packages: packages?,
        dies: dies?,
        planes: planes?,
        blocks: blocks?,
        word_lines: word_lines?,
        unit_bytes: unit? as u32,
        free_bytes: own.free_bytes.max(spare_bytes(own.page_bytes / unit? as u32)),
        ..own.clone()
    };
    match geometry.check() {
        Ok(()) => Some(geometry),
        Err(error) => {
            fields.error("blocks", error.to_string(), "a layout that makes sense");
            None
        }
    }
}

fn software(
    fields: &Fields<'_>,
    chips: Option<(&Geometry, Shape)>,
    block_bytes: Option<u64>,
) -> Option<Options> {
    let spare = fields.number("spare_per_mille", Welcome, 1..=1000);
    let cache = fields.choice(
        "cache",
        &[
            ("volatile", Cache::Volatile),
            ("protected", Cache::Protected),
            ("through", Cache::Through),
        ],
    );
    let sized = |bytes: u64| (4096..=1 << 32).contains(&bytes);
    let buffer = fields.size("buffer", Welcome, sized, "a size from \"4 KiB\" to \"4 GiB\"");
    let collector = fields.choice(
        "collector",
        &[
            ("greedy", Choice::Greedy),
            ("cost-benefit", Choice::CostBenefit),
            ("sample", Choice::Sample(10)),
            ("oldest", Choice::Oldest),
        ],
    );
    let streams = fields.choice("streams", &[("separate", true), ("mixed", false)]);
    let reserve = optional(fields, "reserve", 4, 2..=64);
    let wear_spread = optional(fields, "wear_spread", 64, 1..=1 << 20);
    let map_cache = match fields.has("map_cache") {
        true => Some(fields.size("map_cache", Welcome, |_| true, "a size such as \"4 MiB\"")?),
        false => None,
    };
    let (geometry, shape) = chips?;
    let (spare, reserve) = (spare? as u32, reserve? as u32);
    check_map_cache(fields, &shape, map_cache)?;
    // Of a chip that has bad blocks from the factory, so many a plane that more will hardly be met.
    let bad = geometry.blocks / 50;
    let for_data = if map_cache.is_some() { space::without_map(&shape) } else { shape };
    let units = Options::units_for(&for_data, spare, reserve, bad);
    if units == 0 {
        let found = format!("chips of {}", size_text(geometry.bytes()));
        fields.error("blocks", found, "more of them: none are left for data");
        return None;
    }
    check_spare(fields, &for_data, spare, reserve, bad)?;
    let slots = (buffer? / u64::from(shape.unit_bytes)) as u32;
    let least = shape.row_units(u32::MAX >> (32 - shape.planes));
    if slots < least {
        let row = size_text(u64::from(least) * u64::from(shape.unit_bytes));
        fields.error(
            "buffer",
            size_text(buffer?),
            format!("at least {row}, what one program writes"),
        );
        return None;
    }
    Some(Options {
        block_bytes: block_bytes? as u32,
        units,
        cache: cache?,
        slots,
        separate_streams: streams?,
        choice: collector?,
        map_cache,
        reserve,
        wear_spread: wear_spread? as u32,
        ..Options::new(&shape)
    })
}

/// With fewer rows in a superblock more must be spare: `ftl::space` has the proof.
fn check_spare(
    fields: &Fields<'_>,
    shape: &ftl::Shape,
    spare: u32,
    reserve: u32,
    bad: u32,
) -> Option<()> {
    let least = Options::least_spare(shape, reserve, bad);
    if least.is_some_and(|least| least <= spare) {
        return Some(());
    }
    let rows = shape.rows() * shape.dies;
    let least = least.map_or("more blocks".to_owned(), |least| format!("at least {least}"));
    let expected = format!("{least}: superblocks have {rows} rows, and a reserve of {reserve}");
    fields.error("spare_per_mille", spare.to_string(), expected);
    None
}

/// A cache of the map has room for what a mapper has in hand.
fn check_map_cache(fields: &Fields<'_>, shape: &Shape, bytes: Option<u64>) -> Option<()> {
    let least = space::least_map_cache(shape);
    match bytes {
        Some(bytes) if bytes < least => {
            let expected = format!("at least {}", size_text(least));
            fields.error("map_cache", size_text(bytes), expected);
            None
        }
        _ => Some(()),
    }
}

fn optional(
    fields: &Fields<'_>,
    key: &'static str,
    none: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Option<u64> {
    if fields.has(key) { fields.number(key, Welcome, range) } else { Some(none) }
}
