//! Memory of points: estimates, and a limit on what runs at once.

use std::sync::{Condvar, Mutex, PoisonError};

use media::contents::{Keep, STAMP_BYTES};
use plan::Plan;
use workload::job::{Amount, Direction, Job};
use world::work::Work;

/// Of any run: code, stacks, queues, histograms.
const EACH: u64 = 24 << 20;
/// Bytes of flash for each block of a plane, and for each mapping unit: its entry in the map, its valid bit.
const FLASH: [u64; 2] = [64, 5];
/// Bytes that a programmed mapping unit takes beside the stamps of its blocks: its spare bytes.
const SPARE: u64 = 24;
/// Units that the collector programs for one of the host, at most, as far as memory is concerned: blocks are
/// erased too.
const AMPLIFIED: u64 = 3;

/// Bytes of an entry of a whole map, and of those that a point copies when one of them changes: it shares the
/// map of the saved state that it begins from in chunks of this length.
const ENTRY: u64 = 4;
const CHUNK: u64 = 256 << 10;

/// Estimate of the memory of a point, bytes, without the saved state that it begins from. `shares`: it begins
/// from one.
pub(super) fn of_point(plan: &Plan, work: &Work, shares: bool) -> u64 {
    let (capacity, block) =
        (plan.medium.contents.capacity_bytes, u64::from(plan.medium.contents.block_bytes).max(1));
    let written = work.jobs.iter().map(|job| written(job, capacity)).fold(0, u64::saturating_add);
    let kept_of = |bytes: u64| match plan.medium.contents.keep {
        Keep::Stamps => bytes / block * STAMP_BYTES as u64,
        Keep::Everything => bytes,
    };
    let buffers = work.jobs.iter().map(|job| {
        let largest = job.block_size.each().iter().map(|sizes| u64::from(sizes.max())).max();
        u64::from(job.numjobs) * u64::from(job.iodepth) * 2 * largest.unwrap_or(0)
    });
    let buffers = buffers.fold(0, u64::saturating_add).min(plan.host.memory_bytes);
    let medium = match &plan.medium.flash {
        None => kept_of(written.min(capacity)),
        Some(flash) => {
            let unit = u64::from(flash.spec.geometry.unit_bytes);
            let programmed = (written.saturating_mul(AMPLIFIED)).min(flash.spec.geometry.bytes());
            let shared = if shares { whole_map(plan) } else { 0 };
            let copied = (programmed / unit).saturating_mul(CHUNK).min(shared);
            of_flash(plan) - shared + copied + kept_of(programmed) + programmed / unit * SPARE
        }
    };
    let devices = plan.array.as_ref().map_or(1, |array| u64::from(array.devices));
    EACH + buffers + medium.saturating_mul(devices)
}

/// Estimate of the memory of a saved state, bytes.
pub(super) fn of_state(plan: &Plan) -> u64 {
    let Some(flash) = &plan.medium.flash else { return 0 };
    // A drive that was filled by writes has the spare bytes of all of its units.
    let filled = match flash.start {
        plan::Start::Filled => u64::from(flash.software.units) * (SPARE + STAMP_BYTES as u64),
        _ => 0,
    };
    // Preconditioning has a second map for a while.
    let made = if flash.start == plan::Start::Fresh { 1 } else { 2 };
    made * of_flash(plan) + filled
}

/// Bytes of the entries of a map that is in memory as a whole.
fn whole_map(plan: &Plan) -> u64 {
    let flash = plan.medium.flash.as_ref().filter(|flash| flash.software.map_cache.is_none());
    flash.map_or(0, |flash| u64::from(flash.software.units) * ENTRY)
}

fn of_flash(plan: &Plan) -> u64 {
    let Some(flash) = &plan.medium.flash else { return 0 };
    let controllers = plan.medium.bridge.map_or(1, |bridge| u64::from(bridge.controllers));
    let geometry = &flash.spec.geometry;
    let units = geometry.bytes() / u64::from(geometry.unit_bytes);
    let map = flash.software.map_cache.unwrap_or(u64::from(flash.software.units) * FLASH[1]);
    controllers * (u64::from(geometry.all_blocks()) * FLASH[0] + map + units / 8)
}

/// Most bytes that a job writes.
fn written(job: &Job, capacity: u64) -> u64 {
    let amount = |amount: &Amount| match amount {
        Amount::Bytes(bytes) => *bytes,
        Amount::Percent(percent) => capacity / 100 * u64::from(*percent),
    };
    let writes = match job.direction {
        _ if job.trace.is_some() => true,
        Direction::Read | Direction::Trim => false,
        Direction::Write | Direction::Mixed | Direction::TrimWrite => true,
    };
    if !writes {
        return 0;
    }
    let region = job.size.as_ref().map_or(capacity, amount);
    let moved = job.io_size.as_ref().map_or(region, amount);
    let limited = job.number_ios.map(|number| {
        let largest = job.block_size.write.max();
        number.saturating_mul(largest.into())
    });
    let one = limited.unwrap_or(u64::MAX).min(if job.time_based { u64::MAX } else { moved });
    one.min(region).saturating_mul(job.numjobs.into()).min(capacity)
}

/// Three quarters of the memory that the system says is available, or 1 GiB.
pub fn available_memory_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(1 << 30, |kib| kib * 1024 / 4 * 3)
}

/// A limit on the memory of what runs at once. One point always runs, whatever it takes.
pub(super) struct Limit {
    bytes: u64,
    used: Mutex<Used>,
    freed: Condvar,
}

#[derive(Default)]
struct Used {
    bytes: u64,
    running: usize,
}

impl Limit {
    pub fn new(bytes: u64) -> Limit {
        Limit { bytes, used: Mutex::default(), freed: Condvar::new() }
    }

    /// Waits until a point of this estimate may run. `kept` stays in use until it is [freed](Limit::free).
    pub fn enter(&self, point: u64, kept: u64) {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = point.saturating_add(kept);
        let waits =
            |used: &mut Used| used.running > 0 && used.bytes.saturating_add(wanted) > self.bytes;
        let mut used = self.freed.wait_while(used, waits).unwrap_or_else(PoisonError::into_inner);
        used.bytes = used.bytes.saturating_add(wanted);
        used.running += 1;
    }

    pub fn leave(&self, point: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.bytes = used.bytes.saturating_sub(point);
        used.running -= 1;
        drop(used);
        self.freed.notify_all();
    }

    pub fn free(&self, kept: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.bytes = used.bytes.saturating_sub(kept);
        drop(used);
        self.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Points of 1 to 7 bytes under a limit of 10, from eight threads: never more at once, unless alone.
    #[test]
    fn points_that_run_at_once_stay_below_the_limit() {
        let limit = Limit::new(10);
        let (now, alone) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (limit, now, alone) = (&limit, &now, &alone);
                scope.spawn(move || {
                    for turn in 0..200 {
                        let bytes = if turn % 50 == 0 { 30 } else { 1 + (thread + turn) % 7 };
                        limit.enter(bytes, 0);
                        let used = now.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(used <= 10 || used == bytes, "{used} bytes at once");
                        alone.fetch_add(u64::from(used == bytes && bytes > 10), Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(bytes, Ordering::SeqCst);
                        limit.leave(bytes);
                    }
                });
            }
        });
        assert_eq!(alone.into_inner(), 8 * 4, "a point above the limit runs alone");
    }

    #[test]
    fn estimates_grow_with_written_and_kept_bytes() {
        let work = |text: &str| {
            Work::parse(std::path::Path::new("w.fio"), text, workload::trace::Mapping::Modulo)
                .unwrap()
        };
        let reads = work("[a]\nrw=randread\nsize=1g\n");
        let writes = work("[a]\nrw=randwrite\nbs=4k\nsize=1g\n");
        let few = work("[a]\nrw=randwrite\nbs=4k\nsize=1g\nnumber_ios=100\n");
        let gen4 = Plan::open("gen4", &[("medium.capacity", "2 GiB")]).unwrap();
        let [read, write, less] = [&reads, &writes, &few].map(|work| of_point(&gen4, work, false));
        assert!(read < less && less < write, "{read} {less} {write}");
        let tlc = Plan::open("tlc", &[("medium.flash.start", "steady")]).unwrap();
        assert!(of_state(&tlc) > 2 * whole_map(&tlc));
    }

    /// A point that only reads has no map of its own; one that writes copies the chunks that it changes, and
    /// no more than the map.
    #[test]
    fn points_of_a_saved_state_share_its_map() {
        let work = |text: &str| {
            Work::parse(std::path::Path::new("w.fio"), text, workload::trace::Mapping::Modulo)
                .unwrap()
        };
        let reads = work("[a]\nrw=randread\nsize=1g\n");
        let few = work("[a]\nrw=randwrite\nbs=4k\nnumber_ios=10\n");
        let many = work("[a]\nrw=randwrite\nbs=4k\nnumber_ios=1000000\n");
        let tlc = Plan::open("tlc", &[("medium.flash.start", "steady")]).unwrap();
        let map = whole_map(&tlc);
        assert!((400 << 20..600 << 20).contains(&map), "{map}");
        let [own, shared] = [false, true]
            .map(|shares| [&reads, &few, &many].map(|work| of_point(&tlc, work, shares)));
        assert_eq!(own[0] - shared[0], map);
        assert_eq!(own[1] - shared[1], map - 10 * AMPLIFIED * CHUNK);
        assert_eq!(own[2], shared[2], "all of the map");
        // A part of the map in memory is copied with the state.
        let set = [("medium.flash.start", "steady"), ("medium.flash.map_cache", "64 MiB")];
        let cached = Plan::open("tlc", &set).unwrap();
        assert_eq!(of_point(&cached, &reads, true), of_point(&cached, &reads, false));
    }
}
