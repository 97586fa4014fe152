//! Setters of the supported keys, one function per key; the table in `keys` refers to them.

use runtime::Span;

use super::ini::Setting;
use super::keys::{Remark, closest, refused};
use super::value::{Value, bytes, range, time};
use super::{
    Amount, BlockSizes, Direction, Distribution, Job, JobError, Kind, Lifetime, Note, PerDirection,
    RateProcess, Skew, TraceSource, ValueError, Wrong, find,
};
use crate::limits::{BLOCK_SPLIT_MAX, IO_BYTES_MAX, IODEPTH_MAX, NUMJOBS_MAX, ZONES_MAX};

/// A byte takes at least a picosecond.
const RATE_BYTES_MAX: u64 = 1_000_000_000_000;

type Result = std::result::Result<Remark, ValueError>;

/// Applies the settings in order; a later one of the same key wins.
pub fn apply(
    job: &mut Job,
    settings: &[Setting],
    notes: &mut Vec<Note>,
    errors: &mut Vec<JobError>,
) {
    // As in fio, kb_base is read first, regardless of its position.
    let last = settings.iter().rev().find(|setting| setting.key == "kb_base");
    let kb_base =
        if last.is_some_and(|s| s.value.as_deref() == Some("1000")) { 1000 } else { 1024 };
    for setting in settings {
        let note = |why: &str| Note {
            file: setting.file.to_string(),
            line: setting.line,
            key: setting.key.clone(),
            why: why.to_owned(),
        };
        let wrong = match find(&setting.key).map(|key| key.kind) {
            None => Wrong::UnknownKey { key: setting.key.clone(), close: closest(&setting.key) },
            Some(Kind::Rejected(why)) => Wrong::Rejected { key: setting.key.clone(), why },
            Some(Kind::Ignored(why)) => {
                let value = setting.value.clone();
                let Some(why) = value.as_deref().and_then(|value| refused(&setting.key, value))
                else {
                    notes.push(note(why));
                    continue;
                };
                let (key, why) = (setting.key.clone(), ValueError::NotSupported(why));
                Wrong::Value { key, value, why, expects: "reads, writes or trims of a device" }
            }
            Some(Kind::Supported { expects, set, .. }) => {
                match set(job, Value { text: setting.value.as_deref(), kb_base }) {
                    Ok(None) => continue,
                    Ok(Some(remark)) => {
                        notes.push(note(remark));
                        continue;
                    }
                    Err(why) => Wrong::Value {
                        key: setting.key.clone(),
                        value: setting.value.clone(),
                        why,
                        expects,
                    },
                }
            }
        };
        errors.push(JobError::new(&setting.file, setting.line, wrong));
    }
}

pub fn name(job: &mut Job, value: Value<'_>) -> Result {
    job.name = value.required()?.to_owned();
    Ok(None)
}

pub fn description(job: &mut Job, value: Value<'_>) -> Result {
    job.description = value.required()?.to_owned();
    Ok(None)
}

pub fn kb_base(_: &mut Job, value: Value<'_>) -> Result {
    match value.required()? {
        "1000" | "1024" => Ok(None),
        other => Err(ValueError::Neither { text: other.to_owned() }),
    }
}

pub fn rw(job: &mut Job, value: Value<'_>) -> Result {
    let text = value.required()?;
    let (word, distance) = match text.split_once(':') {
        Some((word, distance)) => (word.trim_end(), Some(distance.trim())),
        None => (text, None),
    };
    let (direction, random) = match word {
        "read" => (Direction::Read, false),
        "write" => (Direction::Write, false),
        "randread" => (Direction::Read, true),
        "randwrite" => (Direction::Write, true),
        "rw" | "readwrite" => (Direction::Mixed, false),
        "randrw" => (Direction::Mixed, true),
        "trim" => (Direction::Trim, false),
        "randtrim" => (Direction::Trim, true),
        "trimwrite" => (Direction::TrimWrite, false),
        "randtrimwrite" => (Direction::TrimWrite, true),
        other => return Err(ValueError::Unknown { text: other.to_owned(), kind: "direction" }),
    };
    if random && distance.is_some() {
        return Err(ValueError::NotSupported(
            "a number behind a random direction is not supported: each operation has its own place",
        ));
    }
    job.distance = match distance {
        None => 0,
        Some(text) => {
            let (back, number) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
            let bytes = value.whole_of(number, 0, i64::MAX as u64)? as i64;
            if back { -bytes } else { bytes }
        }
    };
    (job.direction, job.random) = (direction, random);
    Ok(None)
}

pub fn rwmixread(job: &mut Job, value: Value<'_>) -> Result {
    job.read_percent = value.whole(0, 100)? as u8;
    Ok(None)
}

pub fn rwmixwrite(job: &mut Job, value: Value<'_>) -> Result {
    job.read_percent = 100 - value.whole(0, 100)? as u8;
    Ok(None)
}

/// The size of an operation, in bytes.
fn io_bytes(text: &str, value: Value<'_>) -> std::result::Result<u32, ValueError> {
    value.whole_of(text, 1, IO_BYTES_MAX).map(|n| n as u32)
}

pub fn bs(job: &mut Job, value: Value<'_>) -> Result {
    job.block_size = value.per_direction(&job.block_size, &[','], |text| {
        io_bytes(text, value).map(BlockSizes::One)
    })?;
    Ok(None)
}

pub fn bsrange(job: &mut Job, value: Value<'_>) -> Result {
    job.block_size = value.per_direction(&job.block_size, &[',', '/'], |text| {
        let (min, max) = range(text, value.kb_base)?;
        if min == 0 || max > IO_BYTES_MAX {
            return Err(ValueError::OperationBytes { text: text.to_owned() });
        }
        Ok(BlockSizes::Range { min: min as u32, max: max as u32 })
    })?;
    Ok(None)
}

pub fn bssplit(job: &mut Job, value: Value<'_>) -> Result {
    job.block_size = value.per_direction(&job.block_size, &[','], |text| {
        let mut sizes = Vec::new();
        for entry in entries(text, BLOCK_SPLIT_MAX)? {
            let (size, percent) = entry.split_once('/').unwrap_or((entry, ""));
            let percent = match percent.trim() {
                "" => None,
                text => Some(value.whole_of(text, 0, 100)? as u8),
            };
            sizes.push((io_bytes(size, value)?, percent));
        }
        Ok(BlockSizes::Split(fill_blanks(sizes)?))
    })?;
    Ok(None)
}

fn entries(text: &str, most: usize) -> std::result::Result<Vec<&str>, ValueError> {
    let entries: Vec<&str> = text.split(':').map(str::trim).collect();
    if entries.len() > most {
        return Err(ValueError::Entries { found: entries.len(), most });
    }
    Ok(entries)
}

/// Entries without a percentage share the remainder; if it does not divide evenly, the first get more.
fn fill_blanks<T>(entries: Vec<(T, Option<u8>)>) -> std::result::Result<Vec<(T, u8)>, ValueError> {
    let given: u32 = entries.iter().filter_map(|&(_, percent)| percent).map(u32::from).sum();
    let blanks = entries.iter().filter(|(_, percent)| percent.is_none()).count() as u32;
    if given > 100 || (given < 100 && blanks == 0) {
        return Err(ValueError::Percentages { sum: given });
    }
    let mut left = 100 - given;
    let mut blanks_left = blanks;
    let filled = entries.into_iter().map(|(item, percent)| {
        let percent = percent.unwrap_or_else(|| {
            let share = left.div_ceil(blanks_left);
            left -= share;
            blanks_left -= 1;
            share as u8
        });
        (item, percent)
    });
    Ok(filled.collect())
}

pub fn blockalign(job: &mut Job, value: Value<'_>) -> Result {
    job.block_align = value.per_direction(&job.block_align, &[','], |text| {
        value.whole_of(text, 1, u64::from(u32::MAX)).map(|n| Some(n as u32))
    })?;
    Ok(None)
}

pub fn size(job: &mut Job, value: Value<'_>) -> Result {
    job.size = value.amount_or_zero()?;
    Ok(None)
}

pub fn io_size(job: &mut Job, value: Value<'_>) -> Result {
    job.io_size = value.amount_or_zero()?;
    Ok(None)
}

pub fn offset(job: &mut Job, value: Value<'_>) -> Result {
    job.offset = value.amount_or_zero()?.unwrap_or(Amount::Bytes(0));
    Ok(None)
}

pub fn offset_increment(job: &mut Job, value: Value<'_>) -> Result {
    job.offset_increment = value.amount_or_zero()?.unwrap_or(Amount::Bytes(0));
    Ok(None)
}

pub fn number_ios(job: &mut Job, value: Value<'_>) -> Result {
    let number = value.whole(0, u64::MAX)?;
    job.number_ios = (number > 0).then_some(number);
    Ok(None)
}

pub fn loops(job: &mut Job, value: Value<'_>) -> Result {
    job.loops = value.whole(1, u64::from(u32::MAX))? as u32;
    Ok(None)
}

pub fn sync(job: &mut Job, value: Value<'_>) -> Result {
    job.sync = match value.text {
        None | Some("1" | "sync" | "dsync" | "true") => true,
        Some("0" | "none" | "false") => false,
        Some(other) => return Err(ValueError::Flag { text: other.to_owned() }),
    };
    Ok(None)
}

pub fn randseed(job: &mut Job, value: Value<'_>) -> Result {
    job.seed = Some(value.whole(0, u64::MAX)?);
    Ok(None)
}

pub fn norandommap(job: &mut Job, value: Value<'_>) -> Result {
    job.no_random_map = value.flag()?;
    Ok(None)
}

pub fn random_distribution(job: &mut Job, value: Value<'_>) -> Result {
    let text = value.required()?;
    let (model, rest) = text.split_once([':', '=']).unwrap_or((text, ""));
    let rest = Value { text: Some(rest), kb_base: value.kb_base };
    job.distribution = match model {
        "random" => PerDirection::all(Distribution::Uniform),
        "zoned" => rest.per_direction(&job.distribution, &[','], |text| {
            // As in fio, zones without a size share the remainder.
            let zones = zones(text, |size| match size {
                "" => Ok(None),
                size => rest.whole_of(size, 1, 100).map(|n| Some(n as u8)),
            })?;
            let (accesses, sizes): (Vec<u8>, Vec<_>) = zones.into_iter().unzip();
            let zones = fill_zones(accesses, sizes)?;
            let sizes: u32 = zones.iter().map(|&(_, size)| u32::from(size)).sum();
            if sizes != 100 {
                return Err(ValueError::ZoneSizes { sum: sizes });
            }
            Ok(Distribution::Zoned(zones))
        })?,
        "zoned_abs" => rest.per_direction(&job.distribution, &[','], |text| {
            zones(text, |size| match bytes(size, rest.kb_base)? {
                0 => Err(ValueError::EmptyZone),
                n => Ok(n),
            })
            .map(Distribution::ZonedBytes)
        })?,
        "zipf" | "pareto" | "normal" => PerDirection::all(Distribution::Skewed(skew(text)?)),
        other => return Err(ValueError::Unknown { text: other.to_owned(), kind: "distribution" }),
    };
    Ok(None)
}

/// Zones with a size, in percent, for each.
fn fill_zones(
    accesses: Vec<u8>,
    sizes: Vec<Option<u8>>,
) -> std::result::Result<Vec<(u8, u8)>, ValueError> {
    if sizes.iter().all(Option::is_some) {
        return Ok(accesses.into_iter().zip(sizes.into_iter().flatten()).collect());
    }
    let zones = fill_blanks(accesses.into_iter().zip(sizes).collect())?;
    match zones.iter().any(|&(_, size)| size == 0) {
        true => Err(ValueError::EmptyZone),
        false => Ok(zones),
    }
}

pub fn write_hint(job: &mut Job, value: Value<'_>) -> Result {
    job.write_hint = match value.required()? {
        "none" => None,
        "short" => Some(Lifetime::Short),
        "medium" => Some(Lifetime::Medium),
        "long" => Some(Lifetime::Long),
        "extreme" => Some(Lifetime::Extreme),
        other => return Err(ValueError::Unknown { text: other.to_owned(), kind: "lifetime" }),
    };
    Ok(None)
}

fn skew(text: &str) -> std::result::Result<Skew, ValueError> {
    text.parse()
}

fn zones<T>(
    text: &str,
    mut size: impl FnMut(&str) -> std::result::Result<T, ValueError>,
) -> std::result::Result<Vec<(u8, T)>, ValueError> {
    let percent = |text: &str| Value { text: Some(text), kb_base: 1024 }.whole(0, 100);
    let mut zones = Vec::new();
    for entry in entries(text, ZONES_MAX)? {
        let Some((access, length)) = entry.split_once('/') else {
            return Err(ValueError::Zone { text: entry.to_owned() });
        };
        zones.push((percent(access)? as u8, size(length.trim())?));
    }
    let accesses: u32 = zones.iter().map(|&(access, _)| u32::from(access)).sum();
    if accesses != 100 {
        return Err(ValueError::ZoneAccesses { sum: accesses });
    }
    Ok(zones)
}

pub fn iodepth(job: &mut Job, value: Value<'_>) -> Result {
    job.iodepth = value.whole(1, IODEPTH_MAX)? as u32;
    Ok(None)
}

pub fn numjobs(job: &mut Job, value: Value<'_>) -> Result {
    job.numjobs = value.whole(1, NUMJOBS_MAX)? as u32;
    Ok(None)
}

pub fn rate_iops(job: &mut Job, value: Value<'_>) -> Result {
    job.rate_iops = value.per_direction(&job.rate_iops, &[','], |text| {
        // A second has 10^12 picoseconds: at a higher rate the interarrival time would round to zero.
        value.whole_of(text, 0, 1_000_000_000_000).map(|n| (n > 0).then_some(n))
    })?;
    Ok(None)
}

pub fn rate(job: &mut Job, value: Value<'_>) -> Result {
    job.rate_bytes = value.per_direction(&job.rate_bytes, &[','], |text| {
        value.whole_of(text, 0, RATE_BYTES_MAX).map(|n| (n > 0).then_some(n))
    })?;
    Ok(None)
}

pub fn rate_process(job: &mut Job, value: Value<'_>) -> Result {
    job.rate_process = match value.required()? {
        "linear" => RateProcess::Linear,
        "poisson" => RateProcess::Poisson,
        other => return Err(ValueError::Neither { text: other.to_owned() }),
    };
    Ok(None)
}

pub fn thinktime(job: &mut Job, value: Value<'_>) -> Result {
    job.thinktime = value.time(Span::us(1))?;
    Ok(None)
}

pub fn thinktime_blocks(job: &mut Job, value: Value<'_>) -> Result {
    job.thinktime_blocks = value.whole(1, u64::from(u32::MAX))? as u32;
    Ok(None)
}

pub fn runtime(job: &mut Job, value: Value<'_>) -> Result {
    let span = value.time(Span::s(1))?;
    job.runtime = (span != Span::ZERO).then_some(span);
    Ok(None)
}

pub fn time_based(job: &mut Job, value: Value<'_>) -> Result {
    job.time_based = value.flag()?;
    Ok(None)
}

pub fn ramp_time(job: &mut Job, value: Value<'_>) -> Result {
    job.ramp_time = value.time(Span::s(1))?;
    Ok(None)
}

pub fn startdelay(job: &mut Job, value: Value<'_>) -> Result {
    let text = value.required()?;
    let (low, high) = text.split_once(['-', ':']).unwrap_or((text, text));
    let (low, high) = (time(low, Span::s(1))?, time(high, Span::s(1))?);
    job.start_delay = (low.min(high), low.max(high));
    Ok(None)
}

pub fn wait_for(job: &mut Job, value: Value<'_>) -> Result {
    value.required()?;
    job.wait_for_previous = true;
    Ok(Some("this job and those below it start when all jobs above have ended"))
}

pub fn stonewall(job: &mut Job, value: Value<'_>) -> Result {
    job.wait_for_previous = value.flag()?;
    Ok(None)
}

pub fn fsync(job: &mut Job, value: Value<'_>) -> Result {
    job.flush_every = value.whole(0, u64::from(u32::MAX))? as u32;
    Ok(None)
}

pub fn end_fsync(job: &mut Job, value: Value<'_>) -> Result {
    job.end_flush = value.flag()?;
    Ok(None)
}

/// fio's checksums. None is computed: each of them enables verification by stamps.
const CHECKSUMS: &[&str] = &[
    "md5",
    "crc64",
    "crc32",
    "crc32c",
    "crc32c-intel",
    "crc16",
    "crc7",
    "sha1",
    "sha256",
    "sha512",
    "sha3-224",
    "sha3-256",
    "sha3-384",
    "sha3-512",
    "xxhash",
    "meta",
];

pub fn verify(job: &mut Job, value: Value<'_>) -> Result {
    match value.required()? {
        "0" | "none" | "null" => {
            job.verify.on = false;
            Ok(None)
        }
        name if CHECKSUMS.contains(&name) => {
            job.verify.on = true;
            Ok(Some(
                "contents are checked by this program's own stamps (LBA and version in every \
                 block), whichever checksum is named",
            ))
        }
        "pattern" => {
            Err(ValueError::NotSupported("a fixed pattern cannot show stale or misplaced data"))
        }
        other => Err(ValueError::Unknown { text: other.to_owned(), kind: "checksum" }),
    }
}

pub fn do_verify(job: &mut Job, value: Value<'_>) -> Result {
    job.verify.read_back = value.flag()?;
    Ok(None)
}

pub fn verify_fatal(job: &mut Job, value: Value<'_>) -> Result {
    job.verify.fatal = value.flag()?;
    Ok(None)
}

/// The trace that a `replay_` key configures; `read_iolog` may follow it.
fn trace(job: &mut Job) -> &mut TraceSource {
    job.trace.get_or_insert(TraceSource {
        paths: Vec::new(),
        no_stall: false,
        time_scale_percent: 100,
    })
}

pub fn read_iolog(job: &mut Job, value: Value<'_>) -> Result {
    let paths: Vec<String> = value.required()?.split(':').map(str::to_owned).collect();
    if paths.iter().any(String::is_empty) {
        return Err(ValueError::EmptyPath);
    }
    trace(job).paths = paths;
    Ok(None)
}

pub fn replay_no_stall(job: &mut Job, value: Value<'_>) -> Result {
    trace(job).no_stall = value.flag()?;
    Ok(None)
}

pub fn replay_time_scale(job: &mut Job, value: Value<'_>) -> Result {
    trace(job).time_scale_percent = value.whole(1, 1_000_000)? as u32;
    Ok(None)
}

pub fn group_reporting(job: &mut Job, value: Value<'_>) -> Result {
    job.group_reporting = value.flag()?;
    Ok(None)
}

pub fn new_group(job: &mut Job, value: Value<'_>) -> Result {
    job.new_group = value.flag()?;
    Ok(None)
}
