//! Both SSDs of the flash paper under random writes of 512 bytes, by queue mode and number of workers: rows
//! C6 to C9, and C11.

use super::ExhibitError;
use super::changes::{Change, of, set};
use super::check::{Expected, Mutation, Seen, Spec, Swung};
use super::flash_ssds::{
    Load, Measured, NO_SWINGS, ONE_ENTRY, ONE_PATH, SHARED_ENTRIES, Ssd, run, subject,
};
use super::setup::Setup;
use report::model::paper::Rule;

/// Workers, as in figures 7 and 8.
pub(super) const WORKERS: [u32; 4] = [1, 2, 4, 8];

/// Queue mode and legacy mode, random writes of 512 bytes.
pub(super) fn modes(setup: &Setup, ssd: Ssd) -> Result<(Measured, Measured), ExhibitError> {
    let queued = run(&ssd.machine(setup), &Load::queued("randwrite", 512))?;
    Ok((queued, run(&ssd.legacy(setup), &Load::legacy("randwrite", 512))?))
}

pub(super) const CORES_BY_MODE: Spec = Spec {
    subject: subject(
        "C7",
        "host CPU, queue over legacy mode",
        "host CPU, from-scratch, queue over legacy mode: 50 % more (section 4.2)",
        "x",
    ),
    mechanism: "more requests in flight keep more of the host busy",
    rule: Rule::Shape,
    shape: "queue mode takes more of the cores",
    paper: Some(1.5),
    see: |setup| {
        let (queued, one) = modes(setup, Ssd::Closer)?;
        let ours = queued.cores / one.cores;
        Ok(Seen::of(ours, ours > 1.05))
    },
    swung: NO_SWINGS,
    mutations: &[],
    expected: Expected::Departs(
        "one worker has one core, and takes all of it in either mode: what it writes is in the buffer before \
        the \
         next is asked for",
        &[Mutation {
            change: "no write buffer to speak of",
            settings: &[of("flash-closer", "medium.flash.cache", "through")],
        }],
    ),
};

/// The from-scratch SSD or the bridge by number of workers, random writes of 512 bytes.
pub(super) fn by_workers(setup: &Setup, ssd: Ssd) -> Result<Vec<Measured>, ExhibitError> {
    let load = |workers: &u32| Load::queued("randwrite", 512).by(*workers);
    WORKERS.iter().map(|workers| run(&ssd.machine(setup), &load(workers))).collect()
}

pub(super) const CORES_BY_WORKERS: Spec = Spec {
    subject: subject(
        "C7",
        "host CPU by 8 workers over 1",
        "host CPU of the from-scratch SSD by 8 workers over 1: 160 % more (section 1)",
        "x",
    ),
    mechanism: "the flash software runs on every worker's core",
    rule: Rule::Shape,
    shape: "more of the cores",
    paper: Some(2.6),
    see: |setup| {
        let all = by_workers(setup, Ssd::Closer)?;
        let ours = all[3].cores / all[0].cores;
        Ok(Seen::of(ours, ours > 1.05))
    },
    swung: NO_SWINGS,
    mutations: &[Mutation { change: "a host of one core", settings: &[set("host.cores", "1")] }],
    expected: Expected::Holds,
};

pub(super) const MEMORY_BY_WORKERS: Spec = Spec {
    subject: subject(
        "C6",
        "host memory by 8 workers over 1",
        "host memory of the from-scratch SSD by 8 workers over 1: 32 % more (section 1)",
        "x",
    ),
    mechanism: "each worker has buffers of its own",
    rule: Rule::Shape,
    shape: "more memory in full size, by 2 % at least",
    paper: Some(1.32),
    see: |setup| {
        let all = by_workers(setup, Ssd::Closer)?;
        let ours = all[3].memory_in_full() / all[0].memory_in_full();
        let model = all[3].memory / all[0].memory;
        let seen = Seen::of(ours, ours > 1.02);
        Ok(seen.with(format!("with the model's capacity and buffer, a 1024th: {model:.3}")))
    },
    swung: NO_SWINGS,
    mutations: &[],
    expected: Expected::Departs(
        "a worker adds the buffers of its 128 entries, 64 KiB, to gigabytes that all workers \
         share; what else the paper's driver has for each worker it does not say",
        &[],
    ),
};

const SHARED: Mutation = Mutation {
    change: "the workers share the 128 entries of one",
    settings: &[Change::Switch(SHARED_ENTRIES)],
};

/// Latency with 8 workers over that with the number at this place, percent more.
fn longer(setup: &Setup, ssd: Ssd, from: usize, least: f64) -> Result<Seen, ExhibitError> {
    let all = by_workers(setup, ssd)?;
    let ours = 100.0 * (all[3].us / all[from].us - 1.0);
    Ok(Seen::of(ours, ours > least))
}

const OWN_ENTRIES: &str = "each worker has 128 entries of its own, and all share the drive";
const HALF_AGAIN: &str = "at least half as long again";
const TWICE: &str = "at least twice as long";

pub(super) const CLOSER_8_OVER_4: Spec = Spec {
    subject: subject(
        "C8",
        "latency by 8 workers over 4, from-scratch",
        "latency by 8 workers over 4, from-scratch (section 4.3)",
        "%",
    ),
    mechanism: OWN_ENTRIES,
    rule: Rule::Shape,
    shape: HALF_AGAIN,
    paper: Some(118.0),
    see: |setup| longer(setup, Ssd::Closer, 2, 5e+01),
    swung: NO_SWINGS,
    mutations: &[SHARED],
    expected: Expected::Holds,
};

pub(super) const BRIDGE_8_OVER_4: Spec = Spec {
    subject: subject(
        "C8",
        "latency by 8 workers over 4, bridge",
        "latency by 8 workers over 4, bridge (section 4.3)",
        "%",
    ),
    mechanism: OWN_ENTRIES,
    rule: Rule::Shape,
    shape: HALF_AGAIN,
    paper: Some(108.0),
    see: |setup| longer(setup, Ssd::Bridge, 2, 5e+01),
    swung: NO_SWINGS,
    mutations: &[SHARED],
    expected: Expected::Holds,
};

pub(super) const CLOSER_8_OVER_1: Spec = Spec {
    subject: subject(
        "C8",
        "latency by 8 workers over 1, from-scratch",
        "latency by 8 workers over 1, from-scratch (section 4.3)",
        "%",
    ),
    mechanism: OWN_ENTRIES,
    rule: Rule::Shape,
    shape: TWICE,
    paper: Some(289.0),
    see: |setup| longer(setup, Ssd::Closer, 0, 1e+02),
    swung: NO_SWINGS,
    mutations: &[SHARED],
    expected: Expected::Holds,
};

pub(super) const BRIDGE_8_OVER_1: Spec = Spec {
    subject: subject(
        "C8",
        "latency by 8 workers over 1, bridge",
        "latency by 8 workers over 1, bridge (section 4.3)",
        "%",
    ),
    mechanism: OWN_ENTRIES,
    rule: Rule::Shape,
    shape: TWICE,
    paper: Some(704.0),
    see: |setup| longer(setup, Ssd::Bridge, 0, 1e+02),
    swung: NO_SWINGS,
    mutations: &[SHARED],
    expected: Expected::Holds,
};

/// IOPS by 4 workers over 1.
fn gain(setup: &Setup, ssd: Ssd) -> Result<f64, ExhibitError> {
    let all = by_workers(setup, ssd)?;
    Ok(all[2].iops / all[0].iops)
}

pub(super) const CLOSER_IOPS: Spec = Spec {
    subject: subject(
        "C8",
        "IOPS by 4 workers over 1, from-scratch",
        "IOPS by 4 workers over 1, from-scratch (section 4.3)",
        "x",
    ),
    mechanism: "the flash software runs on every worker's core",
    rule: Rule::Shape,
    shape: "workers bring it more IOPS: a fifth at least",
    paper: Some(2.2),
    see: |setup| {
        let ours = gain(setup, Ssd::Closer)?;
        Ok(Seen::of(ours, ours > 1.2))
    },
    swung: NO_SWINGS,
    mutations: &[Mutation { change: "a host of one core", settings: &[set("host.cores", "1")] }],
    expected: Expected::Holds,
};

pub(super) const BRIDGE_IOPS: Spec = Spec {
    subject: subject(
        "C8",
        "IOPS by 4 workers over 1, bridge",
        "IOPS by 4 workers over 1, bridge: unchanged (section 4.3)",
        "x",
    ),
    mechanism: "one worker's 128 entries keep all behind the bridge busy",
    rule: Rule::Shape,
    shape: "workers bring it none: within a fifth",
    paper: Some(1.0),
    see: |setup| {
        let ours = gain(setup, Ssd::Bridge)?;
        Ok(Seen::of(ours, (ours - 1.0).abs() < 0.2))
    },
    swung: NO_SWINGS,
    mutations: &[OF_ONE],
    expected: Expected::Holds,
};

/// Latency in queue mode over that in legacy mode.
fn queued(setup: &Setup, ssd: Ssd) -> Result<Seen, ExhibitError> {
    let (queued, one) = modes(setup, ssd)?;
    let ours = queued.us / one.us;
    Ok(Seen::of(ours, ours > 2.0 && ours <= 128.0 * 1.2))
}

const ENTRIES: &str = "a request of queue mode waits for those before it";
const LONGER: &str = "queue mode waits at least twice as long, at most by its 128 entries";

const OF_ONE: Mutation =
    Mutation { change: "one entry in place of 128", settings: &[Change::Switch(ONE_ENTRY)] };

pub(super) const CLOSER_QUEUED: Spec = Spec {
    subject: subject(
        "C9",
        "writes, queue over legacy, from-scratch",
        "write latency, queue over legacy mode, from-scratch (section 4.3)",
        "x",
    ),
    mechanism: ENTRIES,
    rule: Rule::Shape,
    shape: LONGER,
    paper: Some(106.0),
    see: |setup| queued(setup, Ssd::Closer),
    swung: NO_SWINGS,
    mutations: &[OF_ONE],
    expected: Expected::Holds,
};

pub(super) const BRIDGE_QUEUED: Spec = Spec {
    subject: subject(
        "C9",
        "writes, queue over legacy, bridge",
        "write latency, queue over legacy mode, bridge (section 4.3)",
        "x",
    ),
    mechanism: ENTRIES,
    rule: Rule::Shape,
    shape: LONGER,
    paper: Some(99.0),
    see: |setup| queued(setup, Ssd::Bridge),
    swung: NO_SWINGS,
    mutations: &[OF_ONE],
    expected: Expected::Holds,
};

/// Random writes of 512 bytes over sequential ones on the bridge, by IOPS: with two paths, a request of the
/// default block size to the buffer and a longer one to flash, or with the buffer for all.
fn random_over_sequential(setup: &Setup, two_paths: bool) -> Result<f64, ExhibitError> {
    let machine = match two_paths {
        true => Ssd::Bridge.machine(setup).with("medium.bridge.small", "512 B"),
        false => Ssd::Bridge.machine(setup),
    };
    let by = |rw| run(&machine, &Load::queued(rw, 512).by(2));
    Ok(by("randwrite")?.iops / by("write")?.iops)
}

pub(super) const RANDOM_OVER_SEQUENTIAL: Spec = Spec {
    subject: subject(
        "C11",
        "512 B writes, random over sequential",
        "random writes of 512 B over sequential ones, bridge (section 4.3)",
        "x",
    ),
    mechanism: "requests of 512 B go to the buffer, longer ones to flash, and adjacent ones are one (as the \
        authors believe)",
    rule: Rule::Shape,
    shape: "random ones are the faster, and sequential ones where the buffer takes all",
    paper: Some(7.2),
    see: |setup| {
        let ours = random_over_sequential(setup, !setup.is_switched(ONE_PATH))?;
        let all = random_over_sequential(setup, false)?;
        let seen = Seen::of(ours, ours > 1.0 && all < 1.0);
        Ok(seen.with(format!("with the buffer for all: {all:.2}")))
    },
    swung: Swung {
        plans: &["flash-bridge"],
        number: Some(|setup| random_over_sequential(setup, true)),
    },
    mutations: &[Mutation {
        change: "the buffer for requests of any length",
        settings: &[Change::Switch(ONE_PATH)],
    }],
    expected: Expected::Holds,
};
