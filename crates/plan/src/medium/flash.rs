//! NAND flash, with the table `[medium.flash]`: the chips, their number, and the FTL.

use std::fmt;
use std::path::PathBuf;

use flash::chips::{self, shape, spare_bytes};
use ftl::policy::Choice;
use ftl::{Cache, Options, Processing, Shape, space};
use media::contents::{Backing, Keep};
use media::nand::{Errors, Geometry, Profile, Spec, Suspend, Timing};
use runtime::Span;

use super::bridge::{self, BridgeOf};
use super::chip_times;
use super::{Common, KeepRule, MediumKind, Parts};
use crate::fields::{Fields, Source::Optional, Source::Required};
use crate::report::line;
use crate::units::{parse_size, size_text};

pub(super) static FLASH: MediumKind = MediumKind {
    name: "flash",
    title: "flash",
    technology: 3,
    has_metadata: false,
    read: of_chips,
};

/// Flash chips and the FTL on them.
#[derive(Clone, Debug)]
pub struct Flash {
    /// Name of the chip profile.
    pub profile: &'static str,
    /// The chips. Their seed is set by the run.
    pub spec: Spec,
    pub timing: Timing,
    /// Options of the FTL. Its seed is set by the run.
    pub software: Options,
    /// Capacitors let the chips finish operations in progress at power loss.
    pub held_up: bool,
    pub start: Start,
    /// Pattern of the overwrites before [`Start::Steady`].
    pub steady_for: Overwrites,
    /// File that stores the drive's state between runs; none: the state is not saved.
    pub state: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Fresh,
    /// Every block has been written once, sequentially.
    Filled,
    /// Each unit has been written once, in random order.
    Scattered,
    /// As `Filled`, this many units in each plane in turn.
    Striped {
        units: u32,
    },
    /// Overwritten until garbage collection has reached its steady rate.
    Steady,
}

/// Pattern of the overwrites of a whole drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overwrites {
    Uniform,
    Sequential,
    /// As `random_distribution` of a job: `zipf:1.2`.
    Skewed(String),
}

impl Flash {
    /// The chips as the FTL sees them.
    pub fn shape(&self) -> Shape {
        shape(&self.spec.geometry, self.held_up)
    }

    /// Capacity for the host in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.software.units) * u64::from(self.spec.geometry.unit_bytes)
    }

    /// The options of the chips, with the times of their model or without delays.
    pub fn options(&self, modelled: bool) -> chips::Options {
        chips::Options {
            timing: modelled.then(|| self.timing.clone()),
            protected_buffer: self.software.cache == Cache::Protected,
            nv_slots: self.software.nv_slots,
            held_up: self.held_up,
        }
    }

    /// Times of the chips as keys of a plan and their values, those of zero left out. A plan that sets one
    /// has the chips with that time.
    pub fn chip_times(&self) -> Vec<(String, String)> {
        let profile = Profile::named(self.profile).expect("a profile of this name");
        chip_times::listed(&self.timing, &profile.timing, self.spec.geometry.cell)
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
        line(out, "die", layout)?;
        line(out, "raw capacity", size_text(geometry.bytes()))?;
        let bytes = |slots: u32| size_text(u64::from(slots) * u64::from(geometry.unit_bytes));
        let cache = format!("{:?}", self.software.cache).to_lowercase();
        let (buffer, nv_slots) = (bytes(self.software.slots), self.software.nv_slots);
        let nv_sram = nv_slots.map_or(String::new(), |most| format!(", NV-SRAM {}", bytes(most)));
        line(out, "write buffer", format_args!("{buffer}, {cache}{nv_sram}"))
    }
}

/// Parses flash, and the bridge if there is one.
fn of_chips(fields: &Fields<'_>, common: &Common) -> Option<Parts> {
    let (block_bytes, keep) = (common.block_bytes, common.rule.map(KeepRule::keep));
    let flash = fields.table("flash").and_then(|table| read(table, block_bytes, keep));
    let bridge = fields.table_if("bridge", |table| bridge::read(table, block_bytes));
    let (flash, mut bridge) = (flash?, bridge?);
    if let Some(unchecked) = bridge {
        bridge = Some(checked(fields, unchecked, &flash)?);
    }
    Some(Parts {
        // The capacity follows from the chips.
        capacity_bytes: capacity_behind(bridge.as_ref(), flash.capacity_bytes()),
        backing: Backing::Memory,
        model: None,
        flash: Some(flash),
        bridge,
    })
}

/// Capacity behind a bridge, in whole stripes of each controller. `bytes` is that of one controller.
fn capacity_behind(bridge: Option<&BridgeOf>, bytes: u64) -> u64 {
    bridge.map_or(bytes, |bridge| {
        let stripe = u64::from(bridge.stripe_bytes);
        bytes / stripe * stripe * u64::from(bridge.controllers)
    })
}

/// Flash behind a bridge must be fresh, without a state file and without hints.
fn checked(fields: &Fields<'_>, bridge: BridgeOf, flash: &Flash) -> Option<BridgeOf> {
    let expected = "medium.flash.start = \"fresh\" and no medium.flash.state behind a bridge";
    if flash.start != Start::Fresh || flash.state.is_some() {
        fields.error("bridge", "flash that has been used", expected);
        return None;
    }
    if flash.software.hints {
        let found = "medium.flash.hints = true";
        fields.error("bridge", found, "false: a bridge passes no hints to its controllers");
        return None;
    }
    if u64::from(bridge.stripe_bytes) > flash.capacity_bytes() {
        fields.error("bridge", "a stripe longer than a controller's flash", "a shorter one");
        return None;
    }
    Some(bridge)
}

/// Parses the table. `block_bytes` and `keep` are none if their keys are invalid.
fn read(fields: Fields<'_>, block_bytes: Option<u64>, keep: Option<Keep>) -> Option<Flash> {
    let known: Vec<_> = Profile::all().into_iter().map(|one| (one.name, one.name)).collect();
    let profile = fields.choice("profile", &known).and_then(Profile::named);
    // An invalid profile has been reported; the other keys are validated with a default one.
    let stand_in = profile.clone().unwrap_or_else(Profile::tlc);
    let geometry = geometry(&fields, &stand_in, block_bytes).filter(|_| profile.is_some());
    let timing = chip_times::read(&fields, &stand_in.geometry, &stand_in.timing);
    let independent_planes = fields.boolean_or("independent_planes", false);
    let suspensions = suspensions(&fields, stand_in.timing.suspend);
    let errors = fields.choice("errors", &[("profile", true), ("none", false)]);
    let held_up = fields.boolean_or("held_up", false);
    let shape = geometry.as_ref().zip(held_up).map(|(one, held_up)| shape(one, held_up));
    let processing = fields.table_if("processing", processing).map(Option::unwrap_or_default);
    let software = software(&fields, geometry.as_ref().zip(shape), block_bytes);
    let start = read_start(&fields, geometry.as_ref().unwrap_or(&stand_in.geometry));
    let steady_for = overwrites(&fields, start);
    let state =
        fields.given("state", |key| fields.text(key, "the path of a file for the drive's state"));
    let lost = state.as_ref().is_some_and(Option::is_some)
        && software.as_ref().is_some_and(|software| software.cache == Cache::Protected);
    if lost {
        // The buffer is in the memory of this process, so its data would be lost at exit although a protected
        // buffer survives power loss.
        let expected = "volatile or through: medium.flash.state does not include the write buffer";
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
        timing: timed(timing?, suspensions?, independent_planes?),
        software: Options { processing: processing?, ..software? },
        held_up: held_up?,
        start: start?,
        steady_for: steady_for?,
        state: state?.map(PathBuf::from),
    })
}

/// The key `suspensions`, which chips that suspend nothing do not have.
fn suspensions(fields: &Fields<'_>, own: Option<Suspend>) -> Option<Option<u32>> {
    let Some(own) = own else { return Some(None) };
    let most = fields.number_or("suspensions", own.most.into(), 0..=255);
    most.map(|most| Some(most as u32))
}

fn timed(timing: Timing, most: Option<u32>, independent_planes: bool) -> Timing {
    let with = |own: Suspend| Suspend { most: most.unwrap_or(own.most), ..own };
    Timing { suspend: timing.suspend.map(with), independent_planes, ..timing }
}

/// The table `processing`.
fn processing(fields: Fields<'_>) -> Option<Processing> {
    let time = |key| {
        let span = || fields.span(key, Required, Span::ZERO..=Span::s(1));
        if fields.has(key) { span() } else { Some(Span::ZERO) }
    };
    let (lookup, update) = (time("lookup"), time("update"));
    let (split_lookup, collect) = (time("split_lookup"), time("collect"));
    fields.done();
    Some(Processing {
        lookup: lookup?,
        update: update?,
        split_lookup: split_lookup?,
        collect: collect?,
    })
}

/// The key `start`.
fn read_start(fields: &Fields<'_>, geometry: &Geometry) -> Option<Start> {
    const EXPECTED: &str = "\"fresh\", \"filled\", \"scattered\", \"steady\", or \"striped:\" and whole \
        mapping units, of which a page has a whole number";
    let unit_bytes = u64::from(geometry.unit_bytes);
    let divides = |bytes: &u64| {
        let page_bytes = u64::from(geometry.page_bytes);
        *bytes > 0 && bytes.is_multiple_of(unit_bytes) && page_bytes.is_multiple_of(*bytes)
    };
    fields.word("start", EXPECTED, |text| match text.split_once(':') {
        None => match text {
            "fresh" => Some(Start::Fresh),
            "filled" => Some(Start::Filled),
            "scattered" => Some(Start::Scattered),
            "steady" => Some(Start::Steady),
            _ => None,
        },
        Some(("striped", size)) => {
            let bytes = parse_size(size.trim()).ok().filter(divides)?;
            Some(Start::Striped { units: (bytes / unit_bytes) as u32 })
        }
        Some(_) => None,
    })
}

/// The key `steady_for`.
fn overwrites(fields: &Fields<'_>, start: Option<Start>) -> Option<Overwrites> {
    const EXPECTED: &str = "\"uniform\", \"sequential\", or a random_distribution of a job, such as \
        \"zipf:1.2\"";
    if !fields.has("steady_for") {
        return Some(Overwrites::Uniform);
    }
    let text = fields.text("steady_for", EXPECTED)?;
    if start.is_some_and(|start| start != Start::Steady) {
        fields.error("steady_for", format!("{text:?}"), "no such key, or start = \"steady\"");
        return None;
    }
    match text.as_str() {
        "uniform" => Some(Overwrites::Uniform),
        "sequential" => Some(Overwrites::Sequential),
        skew if ["zipf", "pareto", "normal"].contains(&skew.split(':').next().unwrap_or("")) => {
            Some(Overwrites::Skewed(text))
        }
        _ => {
            fields.error("steady_for", format!("{text:?}"), EXPECTED);
            None
        }
    }
}

/// The geometry of the profile, with the values that the plan overrides.
fn geometry(fields: &Fields<'_>, profile: &Profile, block_bytes: Option<u64>) -> Option<Geometry> {
    let own = &profile.geometry;
    let number =
        |key, own: u32, most| fields.number_or(key, own.into(), 1..=most).map(|n| n as u32);
    let channels = number("channels", own.channels, 64);
    let packages = number("packages", own.packages, 64);
    let dies = number("dies", own.dies, 16);
    let planes = number("planes", own.planes, 16);
    let blocks = number("blocks", own.blocks, 1 << 20);
    let word_lines = number("word_lines", own.word_lines, 4096);
    let least = block_bytes.unwrap_or(512).max(512);
    let sized = |bytes: u64| bytes.is_power_of_two() && (least..=16_384).contains(&bytes);
    let expected = "a power of two from \"512 B\" to \"16 KiB\", whole blocks";
    let unit =
        fields.or("unit", own.unit_bytes.into(), |key| fields.size(key, Optional, sized, expected));
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
            fields.error("blocks", error.to_string(), "a valid geometry");
            None
        }
    }
}

fn software(
    fields: &Fields<'_>,
    chips: Option<(&Geometry, Shape)>,
    block_bytes: Option<u64>,
) -> Option<Options> {
    let spare = fields.number("spare_per_mille", Optional, 1..=1000);
    let cache = fields.choice(
        "cache",
        &[
            ("volatile", Cache::Volatile),
            ("protected", Cache::Protected),
            ("through", Cache::Through),
        ],
    );
    let sized = |bytes: u64| (4096..=1 << 32).contains(&bytes);
    let buffer = fields.size("buffer", Optional, sized, "a size from \"4 KiB\" to \"4 GiB\"");
    let nv_sram = size_given(fields, "nv_sram", |_| true, "a size such as \"8 MiB\"")?;
    let collector = fields.choice(
        "collector",
        &[
            ("greedy", Choice::Greedy),
            ("cost-benefit", Choice::CostBenefit),
            ("sample", Choice::Sample(10)),
            ("oldest", Choice::Oldest),
        ],
    );
    let collector_reads = fields.number_or("collector_reads", 1, 1..=256);
    let run_bytes = collector_run(fields)?;
    let streams = fields.choice("streams", &[("separate", true), ("mixed", false)]);
    let hints = fields.boolean_or("hints", false);
    let reserve = fields.number_or("reserve", 4, 2..=64);
    let wear_spread = fields.number_or("wear_spread", 64, 1..=1 << 20);
    let map_cache = size_given(fields, "map_cache", |_| true, "a size such as \"4 MiB\"")?;
    let limit = size_given(fields, "capacity", |n| n > 0, "a size such as \"400 GiB\"")?;
    let (geometry, shape) = chips?;
    let (spare, reserve, streams, hints) = (spare? as u32, reserve? as u32, streams?, hints?);
    check_map_cache(fields, &shape, map_cache)?;
    // Allowance for factory bad blocks: 2 % of the blocks of a plane.
    let bad = geometry.blocks / 50;
    let for_data = if map_cache.is_some() { space::without_map(&shape) } else { shape };
    let units = match limit {
        Some(bytes) => limited(fields, &for_data, bytes, reserve, bad)?,
        None => of_spare(fields, geometry, &for_data, (spare, reserve, bad))?,
    };
    let slots = (buffer? / u64::from(shape.unit_bytes)) as u32;
    if hints {
        check_hints(fields, &shape, streams, reserve, slots)?;
    }
    check_buffer(fields, &shape, buffer?)?;
    let nv_slots = match nv_sram {
        Some(bytes) => Some(nv_slots(fields, &shape, cache?, (bytes, slots))?),
        None => None,
    };
    Some(Options {
        block_bytes: block_bytes? as u32,
        units,
        cache: cache?,
        slots,
        nv_slots,
        separate_streams: streams,
        hints,
        choice: collector?,
        gc_reads: collector_reads? as u32,
        gc_run: run_bytes.div_ceil(u64::from(shape.unit_bytes)) as u32,
        map_cache,
        reserve,
        wear_spread: wear_spread? as u32,
        ..Options::new(&shape)
    })
}

/// Bytes that the collector frees in one run; 0: no runs.
fn collector_run(fields: &Fields<'_>) -> Option<u64> {
    let sized = |bytes: u64| (1 << 16..=1 << 30).contains(&bytes);
    let expected = "a size from \"64 KiB\" to \"1 GiB\"";
    Some(size_given(fields, "collector_run", sized, expected)?.unwrap_or(0))
}

/// Units of NV-SRAM: some of a protected buffer.
fn nv_slots(
    fields: &Fields<'_>,
    shape: &Shape,
    cache: Cache,
    (bytes, slots): (u64, u32),
) -> Option<u32> {
    if cache != Cache::Protected {
        let expected = "no such key, or medium.flash.cache = \"protected\"";
        fields.error("nv_sram", size_text(bytes), expected);
        return None;
    }
    let unit = u64::from(shape.unit_bytes);
    if bytes.is_multiple_of(unit) && (1..=u64::from(slots)).contains(&(bytes / unit)) {
        return Some((bytes / unit) as u32);
    }
    let (unit, most) = (size_text(unit), size_text(u64::from(slots) * unit));
    let expected = format!("whole units of {unit}, at most {most}, the write buffer");
    fields.error("nv_sram", size_text(bytes), expected);
    None
}

/// The write buffer holds what one program operation writes.
fn check_buffer(fields: &Fields<'_>, shape: &Shape, bytes: u64) -> Option<()> {
    let unit = u64::from(shape.unit_bytes);
    let least = u64::from(shape.row_units(u32::MAX >> (32 - shape.planes)));
    if bytes / unit >= least {
        return Some(());
    }
    let expected =
        format!("at least {}, the size of one program operation", size_text(least * unit));
    fields.error("buffer", size_text(bytes), expected);
    None
}

/// Mapping units that the spare space leaves.
fn of_spare(
    fields: &Fields<'_>,
    geometry: &Geometry,
    shape: &ftl::Shape,
    (spare, reserve, bad): (u32, u32, u32),
) -> Option<u32> {
    let units = Options::units_for(shape, spare, reserve, bad);
    if units == 0 {
        let found = format!("chips of {}", size_text(geometry.bytes()));
        fields.error("blocks", found, "more blocks: none are left for data");
        return None;
    }
    check_spare(fields, shape, spare, reserve, bad)?;
    Some(units)
}

/// Mapping units of a capacity that is set instead of following from the spare space: at most what the least
/// spare space leaves.
fn limited(
    fields: &Fields<'_>,
    shape: &ftl::Shape,
    bytes: u64,
    reserve: u32,
    bad: u32,
) -> Option<u32> {
    let unit = u64::from(shape.unit_bytes);
    let least = Options::least_spare(shape, reserve, bad);
    let most = least.map_or(0, |least| Options::units_for(shape, least, reserve, bad));
    if bytes.is_multiple_of(unit) && bytes / unit <= u64::from(most) {
        return Some((bytes / unit) as u32);
    }
    let (unit, most) = (size_text(unit), size_text(u64::from(most) * unit));
    fields.error("capacity", size_text(bytes), format!("whole units of {unit}, at most {most}"));
    None
}

/// Superblocks with fewer rows need more spare space: `ftl::space` has the proof.
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

/// Placement by hints needs space for more open superblocks, and room in the buffer for a superpage of each
/// class.
fn check_hints(
    fields: &Fields<'_>,
    shape: &Shape,
    separate: bool,
    reserve: u32,
    slots: u32,
) -> Option<()> {
    if !separate {
        fields.error("streams", "mixed", "separate, with medium.flash.hints = true");
        return None;
    }
    let least = space::reserve_min(true);
    if reserve < least {
        let expected = format!("at least {least} with medium.flash.hints = true");
        fields.error("reserve", reserve.to_string(), expected);
        return None;
    }
    let (rows, least) = (shape.rows() * shape.dies, space::hinted_rows_min(shape));
    if rows < least {
        let found = format!("true, with superblocks of {rows} rows");
        fields.error("hints", found, format!("false, or superblocks of at least {least} rows"));
        return None;
    }
    let least = space::hinted_slots_min(shape);
    if slots < least {
        let unit = u64::from(shape.unit_bytes);
        let expected = format!(
            "at least {} with medium.flash.hints = true",
            size_text(u64::from(least) * unit)
        );
        fields.error("buffer", size_text(u64::from(slots) * unit), expected);
        return None;
    }
    Some(())
}

/// The map cache needs room for the segments that the mapper uses at a time.
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

/// A size in bytes, if the plan has the key.
fn size_given(
    fields: &Fields<'_>,
    key: &'static str,
    good: impl Fn(u64) -> bool,
    expected: &str,
) -> Option<Option<u64>> {
    fields.given(key, |key| fields.size(key, Optional, good, expected))
}
