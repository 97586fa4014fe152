//! Both SSDs of the flash paper by kind and size of access, one worker: latency, throughput, host memory and
//! host CPU (rows C5 to C7).

use super::ExhibitError;
use super::changes::of;
use super::check::{Expected, Mutation, Seen, Spec, Swung};
use super::flash_ssds::{IN_DEVICE, Load, Measured, NO_SWINGS, Ssd, run, subject};
use super::setup::Setup;
use report::model::paper::Rule;

/// Request sizes in bytes: from the default block to more than a flash page.
const SIZES: [u32; 4] = [512, 4096, 16_384, 65_536];
/// Largest size for which the paper gives the host core usage of small accesses.
const SMALL: u32 = 16_384;

/// Results of one kind of access at one size, on both SSDs.
pub(super) struct Pair {
    pub load: Load,
    pub bridge: Measured,
    pub closer: Measured,
}

impl Pair {
    pub fn of(setup: &Setup, load: Load) -> Result<Pair, ExhibitError> {
        let on = |ssd: Ssd| run(&ssd.machine(setup), &load);
        Ok(Pair { bridge: on(Ssd::Bridge)?, closer: on(Ssd::Closer)?, load })
    }

    fn is_read(&self) -> bool {
        self.load.rw.ends_with("read")
    }
}

/// Every kind of access at every size, in queue mode with one worker.
pub(super) fn sweep(setup: &Setup) -> Result<Vec<Pair>, ExhibitError> {
    let mut pairs = Vec::new();
    for rw in ["read", "randread", "write", "randwrite"] {
        for bytes in SIZES {
            pairs.push(Pair::of(setup, Load::queued(rw, bytes))?);
        }
    }
    Ok(pairs)
}

/// Mean over sizes and patterns of the ratio of closer to bridge.
fn mean(pairs: &[Pair], reads: bool, of: impl Fn(&Measured) -> f64) -> f64 {
    let pairs = || pairs.iter().filter(|pair| pair.is_read() == reads);
    pairs().map(|pair| of(&pair.closer) / of(&pair.bridge)).sum::<f64>() / pairs().count() as f64
}

fn shorter(setup: &Setup, reads: bool) -> Result<Seen, ExhibitError> {
    let ours = 100.0 * (1.0 - mean(&sweep(setup)?, reads, |measured| measured.us));
    Ok(Seen::of(ours, ours > 0.0))
}

fn more(setup: &Setup, reads: bool) -> Result<Seen, ExhibitError> {
    let ours = 100.0 * (mean(&sweep(setup)?, reads, |measured| measured.iops) - 1.0);
    Ok(Seen::of(ours, ours > 0.0))
}

const BETTER: &str = "the from-scratch SSD is the better";
const DIRECT: &str = "no bridge, no conversion of protocols, and no SSD controller in between";
/// [`IN_DEVICE`] takes it away as one. Without the time of conversion and controllers reads keep their sign
/// (docs/flash-closer.md), so that it is not these alone.
const PLACEMENT: &str = "flash software on the host, by a map of 512 B, above endpoints, as a whole: \
    reads keep the sign by a bridge that takes no time";

pub(super) const READ_LATENCY: Spec = Spec {
    subject: subject(
        "C5",
        "reads: latency below the bridge's",
        "latency of reads, from-scratch below bridge (section 4.3)",
        "%",
    ),
    mechanism: PLACEMENT,
    rule: Rule::Shape,
    shape: BETTER,
    paper: Some(29.0),
    see: |setup| shorter(setup, true),
    swung: NO_SWINGS,
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};

pub(super) const WRITE_LATENCY: Spec = Spec {
    subject: subject(
        "C5",
        "writes: latency below the bridge's",
        "latency of writes, from-scratch below bridge (section 4.3)",
        "%",
    ),
    mechanism: DIRECT,
    rule: Rule::Shape,
    shape: BETTER,
    paper: Some(39.0),
    see: |setup| shorter(setup, false),
    swung: NO_SWINGS,
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};

pub(super) const READ_RATE: Spec = Spec {
    subject: subject(
        "C5",
        "reads: throughput above the bridge's",
        "throughput of reads, from-scratch above bridge (section 4.3)",
        "%",
    ),
    mechanism: PLACEMENT,
    rule: Rule::Shape,
    shape: BETTER,
    paper: Some(21.0),
    see: |setup| more(setup, true),
    swung: NO_SWINGS,
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};

pub(super) const WRITE_RATE: Spec = Spec {
    subject: subject(
        "C5",
        "writes: throughput above the bridge's",
        "throughput of writes, from-scratch above bridge (section 4.3)",
        "%",
    ),
    mechanism: DIRECT,
    rule: Rule::Shape,
    shape: BETTER,
    paper: Some(81.0),
    see: |setup| more(setup, false),
    swung: NO_SWINGS,
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};

/// Host memory that the from-scratch SSD takes more than the bridge under the same load, at most, in full
/// size, GiB.
fn memory(setup: &Setup) -> Result<f64, ExhibitError> {
    let drive = |pair: &Pair| pair.closer.memory_in_full() - pair.bridge.memory_in_full();
    let most = sweep(setup)?.iter().map(drive).fold(0.0, f64::max);
    Ok(most / f64::from(1 << 30))
}

pub(super) const MEMORY: Spec = Spec {
    subject: subject(
        "C6",
        "host memory, more than the bridge's",
        "what the from-scratch SSD takes more, in full size: about 10 GB less 0.6 GB (section 4.1)",
        "GiB",
    ),
    mechanism: "the map, its tables, the write buffer and read pages are in the host's memory",
    rule: Rule::Shape,
    shape: "more than the bridge's, by gigabytes",
    paper: Some(9.4),
    see: |setup| {
        let ours = memory(setup)?;
        Ok(Seen::of(ours, ours > 1.0))
    },
    swung: NO_SWINGS,
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};

/// Host memory with the from-scratch SSD in full size, bytes: by the plan's map, and by a map by 4 KiB.
fn by_map(setup: &Setup) -> Result<(f64, f64), ExhibitError> {
    let load = Load::queued("randwrite", 4096);
    let fine = run(&Ssd::Closer.machine(setup), &load)?;
    let coarse = Ssd::Closer.machine(setup).with("medium.flash.unit", "4 KiB");
    Ok((fine.memory_in_full(), run(&coarse, &load)?.memory_in_full()))
}

pub(super) const FINE: Spec = Spec {
    subject: subject(
        "C6",
        "host memory by 512 B over 4 KiB maps",
        "fine-grained mapping is a large part of it (section 4.1)",
        "x",
    ),
    mechanism: "the map has an entry for each unit",
    rule: Rule::Shape,
    shape: "by 512 B a fifth more at least than by 4 KiB, in full size",
    paper: None,
    see: |setup| {
        let (fine, coarse) = by_map(setup)?;
        let gib = |bytes: f64| bytes / f64::from(1 << 30);
        let seen = Seen::of(fine / coarse, fine >= 1.2 * coarse);
        Ok(seen.with(format!("{:.2} GiB and {:.2}", gib(fine), gib(coarse))))
    },
    swung: Swung {
        plans: &["flash-closer"],
        number: Some(|setup| by_map(setup).map(|(fine, coarse)| fine / coarse)),
    },
    mutations: &[Mutation {
        change: "the map by 4 KiB",
        settings: &[of("flash-closer", "medium.flash.unit", "4 KiB")],
    }],
    expected: Expected::Holds,
};

/// Share of the host's cores, mean over all kinds and sizes of access: from-scratch, bridge.
fn cores_over_all(setup: &Setup) -> Result<(f64, f64), ExhibitError> {
    let all = sweep(setup)?;
    let mean = |of: fn(&Pair) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    Ok((mean(|pair| pair.closer.cores), mean(|pair| pair.bridge.cores)))
}

pub(super) const CORES_OVER_ALL: Spec = Spec {
    subject: subject(
        "C7",
        "host CPU over all accesses",
        "host CPU over all kinds and sizes of access, from-scratch over bridge: 80 % and 23 % (section 1)",
        "x",
    ),
    mechanism: "the flash software takes the host's cores",
    rule: Rule::Shape,
    shape: "the from-scratch SSD takes more of the host's cores",
    paper: Some(80.0 / 23.0),
    see: |setup| {
        let (closer, bridge) = cores_over_all(setup)?;
        let (closer_is, bridge_is) = (100.0 * closer, 100.0 * bridge);
        Ok(Seen::of(closer / bridge, closer > bridge).with(format!(
            "from-scratch {closer_is:.1} % (the paper: 80), bridge {bridge_is:.1} % (the paper: 23): one \
             worker has one core of four, 25 % is all that it can take"
        )))
    },
    swung: NO_SWINGS,
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};

/// Small accesses: mean ratio of the share of the host's cores.
fn cores(setup: &Setup) -> Result<f64, ExhibitError> {
    let all = sweep(setup)?;
    let small = || all.iter().filter(|pair| pair.load.bytes < SMALL);
    let ratios = small().map(|pair| pair.closer.cores / pair.bridge.cores);
    Ok(ratios.sum::<f64>() / small().count() as f64)
}

pub(super) const CORES: Spec = Spec {
    subject: subject(
        "C7",
        "host CPU below 16 KiB over the bridge's",
        "host CPU, from-scratch over bridge below 16 KiB: about three times (section 4.2)",
        "x",
    ),
    mechanism: "the flash software takes the host's cores",
    rule: Rule::Shape,
    shape: "the from-scratch SSD takes more of the host's cores",
    paper: Some(3.0),
    see: |setup| {
        let ours = cores(setup)?;
        Ok(Seen::of(ours, ours > 1.0))
    },
    swung: NO_SWINGS,
    mutations: &[],
    expected: Expected::Departs(
        "the bridge's requests go through SCSI, at 7.5 us of a core by what Huffman (2013) counted; what \
        the flash \
         software takes of the host is assumed, and the paper does not take it apart",
        &[Mutation {
            change: "a bridge whose driver costs what NVMe's does",
            settings: &[of("flash-bridge", "host.costs.\"block driver\"", "\"1 us\"")],
        }],
    ),
};

/// Core time of a request, from-scratch over bridge: the least below 16 KiB, and the least above.
fn by_size(setup: &Setup) -> Result<(f64, f64), ExhibitError> {
    let all = sweep(setup)?;
    let least = |of: fn(u32) -> bool| {
        let pairs = all.iter().filter(|pair| of(pair.load.bytes));
        pairs.map(|pair| pair.closer.core_us / pair.bridge.core_us).fold(f64::INFINITY, f64::min)
    };
    Ok((least(|bytes| bytes < SMALL), least(|bytes| bytes > SMALL)))
}

pub(super) const CORES_BY_SIZE: Spec = Spec {
    subject: subject(
        "C7",
        "core time of 64 KiB over the bridge's",
        "what a request takes of a core, below 16 KiB and above (section 4.2)",
        "x",
    ),
    mechanism: "each page is a command of the host's",
    rule: Rule::Shape,
    shape: "by the from-scratch SSD more, the longer it is: at least twice the ratio of small ones",
    paper: None,
    see: |setup| {
        let (small, long) = by_size(setup)?;
        Ok(Seen::of(long, long > 2.0 * small).with(format!("below 16 KiB: {small:.3}")))
    },
    swung: NO_SWINGS,
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};
