//! Generator of a job's operations. The same job, seed and target always give the same operations.
//!
//! Draws are from named streams of [`runtime::Rng`], one each for offsets, directions, sizes and arrivals,
//! so that a changed mix leaves the offsets unchanged. Operations may overlap in
//! flight if the job allows it; nothing here prevents that.
//!
//! Semantics of the job settings:
//! - *Random with the map* (the default): every block of the smallest size is the beginning of
//!   exactly one operation per pass, and passes differ. Operations larger than the smallest size
//!   overlap their neighbours and are cut at the region's end.
//! - *Random without the map* (`norandommap`, `blockalign`, zones, skews): independent draws.
//! - *Trims* before writes (`trimwrite`): each is followed by a write of the same offset and length.
//!   Only the trims count towards the end; at a depth above one both may be in flight, as in fio.
//! - *Sequential*: reads and writes of a mixed job have a position each, as in fio; an operation
//!   that no longer fits begins again at the region's start. With a distance, each begins that far from the
//!   end of the one before; a negative one begins from the region's end.
//! - *Rates*: operation `k` of a direction is due at `k / rate`, or after as many bytes as its
//!   predecessors have, or by a Poisson process. If both
//!   directions have a rate, the earlier due time comes first, so the rates determine the mix; else
//!   the mix is drawn, and only the direction with a rate has due times.
//! - *The end*: after `io_size` bytes (default: the region's length), or `number_ios` operations,
//!   whichever comes first; flushes count for neither. `time_based` removes the limit in bytes, and
//!   the engine calls [`Ops::stop`] when the time is up.

mod arrival;
mod place;
mod size;
mod skew;

use runtime::{Rng, Span};

use crate::job::{Amount, BlockSizes, Direction, Distribution, Job};
use arrival::{Arrivals, Rate};
use place::{Map, Places};
use size::Sizes;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpKind {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Makes all completed writes durable.
    Flush,
    /// Deallocates blocks.
    Trim,
}

impl OpKind {
    /// All kinds, in the order of reports.
    pub const ALL: [OpKind; 4] = [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Trim];

    pub fn name(self) -> &'static str {
        match self {
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Flush => "flush",
            OpKind::Trim => "trim",
        }
    }
}

/// Demands of a write on the device's cache, beside the transfer of its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Durability {
    /// A flush completes before the write begins.
    pub preflush: bool,
    /// The data are on the medium when the write completes.
    pub fua: bool,
}

impl Durability {
    pub const NONE: Durability = Durability { preflush: false, fua: false };
}

/// One operation to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub kind: OpKind,
    /// First byte, from the device's beginning; 0 for a flush.
    pub offset_bytes: u64,
    /// Length in bytes; 0 for a flush.
    pub bytes: u32,
    /// Only writes have any.
    pub durability: Durability,
    /// Due time, from the job's start. The latency counts from here even if the operation is submitted
    /// later. `None`: as soon as the queue depth allows.
    pub not_before: Option<Span>,
}

/// Capacity and block size of the device under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub capacity_bytes: u64,
    /// The size of a logical block: every offset and length is a multiple.
    pub block_bytes: u32,
}

/// A job's part of the device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub from: u64,
    pub bytes: u64,
}

/// A job that does not fit the target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum PatternError {
    /// A setting that is not a multiple of the logical block.
    #[error(
        "{key}: {bytes} bytes: expected a multiple of the device's block of {block} bytes \
         (of a plan: medium.block)"
    )]
    Unaligned { key: &'static str, bytes: u64, block: u32 },
    /// A region that ends beyond the capacity.
    #[error(
        "the region of clone {clone} is {from}..{to}: expected it to end within the capacity of \
         {capacity} bytes"
    )]
    BeyondCapacity { clone: u32, from: u64, to: u64, capacity: u64 },
    /// A region without room for one operation.
    #[error("the region has {region} bytes: expected room for one operation of {bytes} bytes")]
    TooSmall { region: u64, bytes: u64 },
    /// Zones that end beyond the region.
    #[error(
        "random_distribution: the zones end at {to}: expected them within the region's {region} \
         bytes"
    )]
    ZonesTooLong { to: u64, region: u64 },
    /// A zone without an aligned offset.
    #[error(
        "random_distribution: a zone of {bytes} bytes: expected room for a place every {align} \
         bytes"
    )]
    ZoneTooSmall { bytes: u64, align: u64 },
    /// A recorded workload, which has no pattern.
    #[error("read_iolog: the job plays a recording: expected a job with a pattern")]
    Recorded,
}

/// The operations of one clone of a job, in order. Also an [`Iterator`].
#[derive(Clone, Debug)]
pub struct Ops {
    direction: Direction,
    read_percent: u8,
    region: Region,
    places: [Places; 3],
    map: Option<Map>,
    sizes: [Sizes; 3],
    arrivals: [Arrivals; 3],
    /// Offset in the region and length of the last trim, to be written next.
    trimmed: Option<(u64, u32)>,
    place_rng: Rng,
    mix_rng: Rng,
    size_rng: Rng,
    start_delay: Span,
    bytes_left: Option<u64>,
    ops_left: Option<u64>,
    flush_every: u32,
    writes_since_flush: u32,
    end_flush: bool,
    fua: bool,
    stopped: bool,
}

const READ: usize = 0;
const WRITE: usize = 1;
const TRIM: usize = 2;

fn used(direction: Direction) -> &'static [usize] {
    match direction {
        Direction::Read => &[READ],
        Direction::Write => &[WRITE],
        Direction::Mixed => &[READ, WRITE],
        Direction::Trim | Direction::TrimWrite => &[TRIM],
    }
}

impl Ops {
    /// The operations of clone `clone` (from 0) of `job`. The job's own seed, if it has one, replaces
    /// `seed`. The streams are named by the job's name and the clone's number, so two jobs of the
    /// same name have the same offsets, like two runs of one job.
    ///
    /// # Errors
    /// If the job does not fit the target.
    pub fn new(job: &Job, clone: u32, seed: u64, target: Target) -> Result<Ops, PatternError> {
        if job.trace.is_some() {
            return Err(PatternError::Recorded);
        }
        let region = region(job, clone, target)?;
        let seed = job.seed.unwrap_or(seed);
        let rng = |part: &str| Rng::for_part(seed, &format!("{}/{clone}/{part}", job.name));
        let mut place_rng = rng("place");
        let has_map = job.random
            && !job.no_random_map
            && job.block_align.each().iter().all(|align| align.is_none())
            && job.distribution.each().iter().all(|one| **one == Distribution::Uniform);
        let map = has_map.then(|| Map::new(region, min_used(job), &mut place_rng));
        // Jobs of one distribution, their clones, reads and writes share the hot places, which belong to the
        // data: so do the overwrites that have preceded a run.
        let hot = Rng::for_part(seed, "hot").next_u64();
        let places = |at: usize| {
            if !job.random {
                return Ok(Places::Sequential { next: 0, distance: job.distance });
            }
            let align = job.block_align.each()[at].unwrap_or(job.block_size.each()[at].min());
            Places::random(job.distribution.each()[at], region, u64::from(align), hot)
        };
        let arrivals = |at: usize, name: &str| {
            let bytes = job.rate_bytes.each()[at].map(Rate::Bytes);
            let rate = job.rate_iops.each()[at].map(Rate::Ops).or(bytes);
            Arrivals::new(rate, job.rate_process, rng(&format!("arrival/{name}")))
        };
        let mut delay_rng = rng("start");
        let (low, high) = job.start_delay;
        let extra = delay_rng.below((high.0 - low.0).saturating_add(1));
        let io_size = job.io_size.map_or(region.bytes, |amount| bytes_of(amount, target));
        Ok(Ops {
            direction: job.direction,
            read_percent: job.read_percent,
            region,
            places: [places(READ)?, places(WRITE)?, places(TRIM)?],
            map,
            sizes: job.block_size.each().map(Sizes::new),
            arrivals: [arrivals(READ, "read"), arrivals(WRITE, "write"), arrivals(TRIM, "trim")],
            trimmed: None,
            place_rng,
            mix_rng: rng("mix"),
            size_rng: rng("size"),
            start_delay: Span(low.0 + extra),
            bytes_left: (!job.time_based).then_some(io_size.saturating_mul(job.loops.into())),
            ops_left: job.number_ios,
            flush_every: job.flush_every,
            writes_since_flush: 0,
            end_flush: job.end_flush,
            fua: job.sync,
            stopped: false,
        })
    }

    /// Delay before this clone's first operation.
    pub fn start_delay(&self) -> Span {
        self.start_delay
    }

    /// The region of the device that this clone uses.
    pub fn region(&self) -> Region {
        self.region
    }

    /// Ends the data operations. Only the flush at the end may follow, if the job has one.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    fn flush(&mut self) -> Op {
        self.writes_since_flush = 0;
        let durability = Durability::NONE;
        Op { kind: OpKind::Flush, offset_bytes: 0, bytes: 0, durability, not_before: None }
    }

    fn op(&mut self, which: usize, place: u64, bytes: u32) -> Op {
        if which == WRITE {
            self.writes_since_flush = self.writes_since_flush.saturating_add(1);
        }
        Op {
            kind: [OpKind::Read, OpKind::Write, OpKind::Trim][which],
            offset_bytes: self.region.from + place,
            bytes,
            durability: Durability { preflush: false, fua: self.fua && which == WRITE },
            not_before: self.arrivals[which].take(bytes),
        }
    }

    fn which(&mut self) -> usize {
        match self.direction {
            Direction::Read => READ,
            Direction::Write => WRITE,
            Direction::Trim | Direction::TrimWrite => TRIM,
            Direction::Mixed => match (self.arrivals[READ].peek(), self.arrivals[WRITE].peek()) {
                (Some(read), Some(write)) => usize::from(write < read),
                _ if self.mix_rng.chance(u64::from(self.read_percent), 100) => READ,
                _ => WRITE,
            },
        }
    }
}

impl Iterator for Ops {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        if self.flush_every > 0 && self.writes_since_flush == self.flush_every {
            return Some(self.flush());
        }
        if let Some((place, bytes)) = self.trimmed.take() {
            return Some(self.op(WRITE, place, bytes));
        }
        if self.stopped || self.bytes_left == Some(0) || self.ops_left == Some(0) {
            if self.end_flush && self.writes_since_flush > 0 {
                return Some(self.flush());
            }
            return None;
        }
        let which = self.which();
        let wanted = self.sizes[which].next(&mut self.size_rng);
        let (place, bytes) = match &mut self.map {
            Some(map) => map.next(&mut self.place_rng, self.region, wanted),
            None => self.places[which].next(&mut self.place_rng, self.region, wanted),
        };
        if self.direction == Direction::TrimWrite {
            self.trimmed = Some((place, bytes));
        }
        self.bytes_left = self.bytes_left.map(|left| left.saturating_sub(u64::from(bytes)));
        self.ops_left = self.ops_left.map(|left| left - 1);
        Some(self.op(which, place, bytes))
    }
}

fn bytes_of(amount: Amount, target: Target) -> u64 {
    match amount {
        Amount::Bytes(bytes) => bytes,
        Amount::Percent(percent) => {
            (u128::from(target.capacity_bytes) * u128::from(percent) / 100) as u64
        }
    }
}

/// Smallest block size of the directions in use.
fn min_used(job: &Job) -> u32 {
    let sizes = used(job.direction).iter().map(|at| job.block_size.each()[*at].min());
    sizes.min().expect("one direction at least")
}

/// The clone's region. Percentages are rounded down to the smallest block size, as in fio, and a
/// percentage of size is cut at the capacity.
fn region(job: &Job, clone: u32, target: Target) -> Result<Region, PatternError> {
    check_alignment(job, target)?;
    let unit = u64::from(min_used(job));
    let rounded = |amount| match amount {
        Amount::Bytes(bytes) => bytes,
        percent @ Amount::Percent(_) => bytes_of(percent, target) / unit * unit,
    };
    let capacity = target.capacity_bytes;
    let step = rounded(job.offset_increment).saturating_mul(u64::from(clone));
    let from = rounded(job.offset).saturating_add(step);
    let rest = capacity.saturating_sub(from);
    let bytes = match job.size {
        None => rest,
        Some(Amount::Bytes(bytes)) => bytes,
        Some(percent) => rounded(percent).min(rest),
    };
    let to = from.saturating_add(bytes);
    if from >= capacity || to > capacity {
        return Err(PatternError::BeyondCapacity { clone, from, to, capacity });
    }
    // An incomplete unit at the end is not used.
    let bytes = bytes / unit * unit;
    let sizes = used(job.direction).iter().map(|at| job.block_size.each()[*at].max());
    let largest = sizes.max().expect("one direction at least");
    if bytes < u64::from(largest) {
        return Err(PatternError::TooSmall { region: bytes, bytes: u64::from(largest) });
    }
    Ok(Region { from, bytes })
}

fn check_alignment(job: &Job, target: Target) -> Result<(), PatternError> {
    let block = target.block_bytes;
    let check = |key: &'static str, bytes: u64| match bytes % u64::from(block) {
        0 => Ok(()),
        _ => Err(PatternError::Unaligned { key, bytes, block }),
    };
    for at in used(job.direction) {
        let (sizes, align) = (job.block_size.each()[*at], *job.block_align.each()[*at]);
        match sizes {
            BlockSizes::One(size) => check("bs", u64::from(*size))?,
            BlockSizes::Range { min, .. } => check("bsrange", u64::from(*min))?,
            BlockSizes::Split(sizes) => {
                for &(size, _) in sizes {
                    check("bssplit", u64::from(size))?;
                }
            }
        }
        check("blockalign", u64::from(align.unwrap_or(block)))?;
    }
    for (key, amount) in [("offset", job.offset), ("offset_increment", job.offset_increment)] {
        if let Amount::Bytes(bytes) = amount {
            check(key, bytes)?;
        }
    }
    check("rw", job.distance.unsigned_abs())?;
    if let Some(Amount::Bytes(bytes)) = job.size {
        check("size", bytes)?;
    }
    Ok(())
}
