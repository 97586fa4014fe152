//! Elsebø, "Improving Disk Performance in Vortex With NVMe" (2015): statements of its text about figures 5.1
//! to 5.7.
//!
//! Values of the bars and curves are not in the text: the paper's numbers here are those stated in words.

use host::nvme::Policy;
use runtime::Span;

use super::ExhibitError;
use super::changes::{Change, instead, of, set};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::measure::Machine;
use super::setup::Setup;
use campaign::diskhog::{self, Hog, HogStats, simulated};
use plan::POLICIES;
use report::model::paper::Rule;

/// Cores of the blade server.
pub(super) const CORES: u32 = 8;
/// Measurement time for the SSD; the disks are about ten times slower and take longer.
const WINDOW: Span = Span::ms(100);
pub(super) const DISKS_WINDOW: Span = Span::s(2);
/// Measurement time for exhibits that vary many costs.
const SHORT: Span = Span::ms(20);

const SSD: &[&str] = &["vortex"];

pub(super) fn ssd(setup: &Setup) -> Machine {
    setup.machine("vortex")
}

pub(super) fn disks(setup: &Setup) -> Machine {
    setup.machine("vortex-disks")
}

pub(super) fn word(policy: Policy) -> &'static str {
    POLICIES.iter().find(|(_, known)| *known == policy).expect("all have words").0
}

pub(super) fn hogged(
    machine: &Machine,
    policy: Policy,
    hog: &Hog,
) -> Result<HogStats, ExhibitError> {
    let machine = machine.with("host.sharing.policy", word(policy));
    machine.once(format!("{hog:?}"), |machine| Ok(simulated(&machine.open()?, hog)?))
}

/// Sequential requests of 4 MiB, one at a time per core.
pub(super) fn sequential(cores: u32, write: bool, time: Span) -> Hog {
    Hog { write, time, interval: time, ..Hog::sequential(cores) }
}

pub(super) fn read(
    machine: &Machine,
    policy: Policy,
    cores: u32,
) -> Result<HogStats, ExhibitError> {
    hogged(machine, policy, &sequential(cores, false, WINDOW))
}

/// Throughput of random 4 KiB reads, in kIOPS.
pub(super) fn kiops(
    machine: &Machine,
    policy: Policy,
    cores: u32,
    time: Span,
) -> Result<f64, ExhibitError> {
    let hog = Hog { time, interval: time, ..Hog::operations(cores) };
    Ok(hogged(machine, policy, &hog)?.kiops())
}

/// The lowest number of cores whose result is within a twentieth of the highest.
pub(super) fn knee(by_cores: &[f64]) -> usize {
    let highest = by_cores.iter().copied().fold(0.0, f64::max);
    1 + by_cores.iter().position(|value| *value >= 0.95 * highest).expect("the highest")
}

/// Throughput of 4 MiB reads by number of cores from one, MB/s.
pub(super) fn by_cores(machine: &Machine, policy: Policy) -> Result<Vec<f64>, ExhibitError> {
    (1..=CORES).map(|cores| Ok(read(machine, policy, cores)?.megabytes_s())).collect()
}

/// Throughput of the SSD and of the disks, each with one queue of 128, for this number of cores, MB/s.
pub(super) fn pair(setup: &Setup, cores: u32, write: bool) -> Result<(f64, f64), ExhibitError> {
    let ssd = hogged(&ssd(setup), Policy::Single, &sequential(cores, write, WINDOW))?;
    let disks = hogged(&disks(setup), Policy::Single, &sequential(cores, write, DISKS_WINDOW))?;
    Ok((ssd.megabytes_s(), disks.megabytes_s()))
}

/// D6: the most commands that the device had at a time, of eight cores that issue this many each before they
/// wait: tail doorbells that arrived at it, less completions.
fn outstanding(setup: &Setup, policy: Policy, batch: u32) -> Result<Seen, ExhibitError> {
    let hog = Hog {
        bytes: 512,
        batch,
        time: Span::us(1),
        interval: Span::us(1),
        ..Hog::operations(CORES)
    };
    // So slow a drive that it completes nothing before all cores have issued what they can.
    let slow = ssd(setup).with("medium.timing.first_byte", "\"150 ms\"");
    let machine = slow.with("host.timeout", "\"3600 s\"");
    let machine = machine.with("host.sharing.policy", word(policy));
    let most = machine.once(format!("outstanding {batch}"), |machine| {
        Ok(diskhog::outstanding(&machine.open()?, &hog)?.1)
    })?;
    Ok(Seen::number(most as f64))
}

const fn count(
    title: &'static str,
    claim: &'static str,
    paper: u64,
    see: fn(&Setup) -> Result<Seen, ExhibitError>,
    mutations: &'static [Mutation],
) -> Spec {
    Spec {
        subject: Subject { row: "D6", title, claim, unit: "" },
        mechanism: "a core fills the queues that its policy lets it use, and no others",
        rule: Rule::Within { per_mille: 0 },
        shape: "",
        paper: Some(paper as f64),
        see,
        swung: Swung { plans: &[], number: None },
        mutations,
        expected: Expected::Holds,
    }
}

const FEWER: Mutation = Mutation { change: "seven queues", settings: &[set("host.queues", "7")] };

const OTHERS: [[Change; 1]; 3] = [
    [instead("host.sharing.policy", "round-robin", "per-core")],
    [instead("host.sharing.policy", "per-core", "single")],
    [instead("host.sharing.policy", "pool", "per-core")],
];

pub(super) const ROUND_ROBIN_COUNT: Spec = count(
    "outstanding commands, round robin",
    "round robin over all queues: commands outstanding (4.5.1)",
    126_945,
    |setup| outstanding(setup, Policy::RoundRobin, 15_900),
    &[FEWER, Mutation { change: "another policy", settings: &OTHERS[0] }],
);

pub(super) const PER_CORE_COUNT: Spec = count(
    "outstanding commands, per core",
    "a queue for each core: commands outstanding (4.5.2)",
    32_760,
    |setup| outstanding(setup, Policy::PerCore, 4200),
    &[FEWER, Mutation { change: "another policy", settings: &OTHERS[1] }],
);

pub(super) const POOL_COUNT: Spec = count(
    "outstanding commands, pool per core",
    "a pool of queues for each core: commands outstanding (4.5.3)",
    98_280,
    |setup| outstanding(setup, Policy::Pool, 12_400),
    &[FEWER, Mutation { change: "another policy", settings: &OTHERS[2] }],
);

pub(super) const SINGLE_COUNT: Spec = count(
    "outstanding commands, one queue of 128",
    "one queue like the RAID controller's: commands outstanding (5.4)",
    128,
    |setup| outstanding(setup, Policy::Single, 64),
    &[Mutation { change: "queues of 64", settings: &[set("host.queue_depth", "64")] }],
);

const SLOW_DRIVE: Mutation = Mutation {
    change: "a drive that takes as long to a first byte as a disk",
    settings: &[of("vortex", "medium.timing.first_byte", "\"7 ms\"")],
};

pub(super) const ONE_CORE: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "SSD over disks, one core reading",
        claim: "one queue of 128: the SSD gives almost three times what the disks do, one core reading (5.4, \
                figure 5.1)",
        unit: "x",
    },
    mechanism: "flash works on several pieces at a time, disks turn",
    rule: Rule::Shape,
    shape: "the SSD above the disks",
    paper: Some(3.0),
    see: |setup| {
        let (ssd, disks) = pair(setup, 1, false)?;
        Ok(Seen::of(ssd / disks, ssd > disks).with(format!("{ssd:.0} and {disks:.0} MB/s")))
    },
    swung: Swung { plans: SSD, number: None },
    mutations: &[SLOW_DRIVE],
    expected: Expected::Holds,
};

/// Mutation: one core reads in place of eight.
const ONE_STREAM: &str = "one stream";

pub(super) const EIGHT_CORES: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "SSD over disks, eight cores reading",
        claim: "almost five times, eight cores reading (5.4, figure 5.2)",
        unit: "x",
    },
    mechanism: "streams of several cores cost the disks seeks, and the SSD nothing",
    rule: Rule::Shape,
    shape: "the SSD further above the disks than with one core",
    paper: Some(5.0),
    see: |setup| {
        let cores = if setup.is_switched(ONE_STREAM) { 1 } else { CORES };
        let (one, eight) = (pair(setup, 1, false)?, pair(setup, cores, false)?);
        let ours = eight.0 / eight.1;
        Ok(Seen::of(ours, ours > one.0 / one.1))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "the stream of one core in place of eight",
        settings: &[Change::Switch(ONE_STREAM)],
    }],
    expected: Expected::Holds,
};

fn shares(setup: &Setup, policy: Policy) -> Result<(f64, f64), ExhibitError> {
    Ok(read(&ssd(setup), policy, CORES)?.shares())
}

pub(super) const FAVOURED: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "one queue: share of the favoured core",
        claim: "with one queue and a spin lock, one core gets more than the other seven (5.4, figure 5.3)",
        unit: "x",
    },
    mechanism: "a spin lock goes to the core that has its cache line",
    rule: Rule::Shape,
    shape: "the favoured core has at least twice an even share",
    paper: None,
    see: |setup| {
        let (_, most) = shares(setup, Policy::Single)?;
        Ok(Seen::of(most, most > 2.0))
    },
    swung: Swung { plans: SSD, number: None },
    mutations: &[Mutation {
        change: "a queue for each core in its place",
        settings: &[instead("host.sharing.policy", "single", "per-core")],
    }],
    expected: Expected::Holds,
};

pub(super) const EVEN: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "round robin: most that a core gets",
        claim: "round robin over all queues spreads load evenly (5.5, figure 5.4)",
        unit: "x",
    },
    mechanism: "a core that finds a queue taken uses the next",
    rule: Rule::Shape,
    shape: "every core within a quarter of an even share, and the most favoured below half the single \
        queue's",
    paper: None,
    see: |setup| {
        let (least, most) = shares(setup, Policy::RoundRobin)?;
        let single = shares(setup, Policy::Single)?.1;
        Ok(Seen::of(most, least > 0.75 && most < 1.25 && most < single / 2.0))
    },
    swung: Swung { plans: SSD, number: Some(|setup| Ok(shares(setup, Policy::RoundRobin)?.1)) },
    mutations: &[Mutation {
        change: "one queue in its place",
        settings: &[instead("host.sharing.policy", "round-robin", "single")],
    }],
    expected: Expected::Holds,
};

/// Throughput of eight cores in all, MB/s.
fn all(setup: &Setup, policy: Policy) -> Result<f64, ExhibitError> {
    Ok(read(&ssd(setup), policy, CORES)?.megabytes_s())
}

pub(super) const NOT_MUCH_MORE: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "round robin over one queue, eight cores",
        claim: "round robin gives not much more than one queue (5.5)",
        unit: "x",
    },
    mechanism: "128 commands in flight are enough for the drive",
    rule: Rule::Shape,
    shape: "within a fifth of it",
    paper: None,
    see: |setup| {
        let ours = all(setup, Policy::RoundRobin)? / all(setup, Policy::Single)?;
        Ok(Seen::of(ours, (ours - 1.0).abs() < 0.2))
    },
    swung: Swung { plans: SSD, number: None },
    mutations: &[Mutation {
        change: "queues of two commands",
        settings: &[set("host.queue_depth", "2")],
    }],
    expected: Expected::Holds,
};

pub(super) const ALIKE: Spec = Spec {
    subject: Subject {
        row: "D10",
        title: "per core over pool, eight cores",
        claim: "both policies with queues of each core's own give the same (5.5.1, figure 5.6)",
        unit: "x",
    },
    mechanism: "queues of a core's own need no lock",
    rule: Rule::Shape,
    shape: "within a twentieth of each other",
    paper: None,
    see: |setup| {
        let ours = all(setup, Policy::PerCore)? / all(setup, Policy::Pool)?;
        Ok(Seen::of(ours, (ours - 1.0).abs() < 0.05))
    },
    swung: Swung { plans: SSD, number: None },
    mutations: &[Mutation {
        change: "one queue in the pool's place, whose lock takes 50 us",
        settings: &[
            instead("host.sharing.policy", "pool", "single"),
            set("host.sharing.lock", "\"50 us\""),
        ],
    }],
    expected: Expected::Holds,
};

pub(super) const ABOVE: Spec = Spec {
    subject: Subject {
        row: "D10",
        title: "per core over round robin, eight cores",
        claim: "both give more than round robin, which pays for sharing (5.5.1, figure 5.6)",
        unit: "x",
    },
    mechanism: "round robin takes a lock for each command",
    rule: Rule::Shape,
    shape: "both more than a hundredth above it, whichever core takes in the first queue's completions",
    paper: None,
    see: |setup| {
        let mut shared = 0_f64;
        for home in ["0", "3", "6"] {
            let machine = ssd(setup).with("host.sharing.home", home);
            shared = shared.max(read(&machine, Policy::RoundRobin, CORES)?.megabytes_s());
        }
        let (each, pool) = (all(setup, Policy::PerCore)?, all(setup, Policy::Pool)?);
        Ok(Seen::of(each / shared, each.min(pool) > 1.01 * shared))
    },
    swung: Swung { plans: SSD, number: None },
    mutations: &[],
    expected: Expected::Departs(
        "at eight cores the drive's banks are what limits, and not the cores: neither a lock of 50 us nor a \
         drive of 56 banks, which the link limits, moves it. With the copy with which three cores give the \
         most, the cores limit, and what sharing costs shows",
        &[SLOW_COPY],
    ),
};

/// The change with which both knees and gains are the thesis's.
const SLOW_COPY: Mutation = Mutation {
    change: "4 KiB copied in 7 us, 0.59 GB/s",
    settings: &[set("host.kernel.copy", "\"7 us\"")],
};

pub(super) const SATURATION: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "4 MiB reads: cores for the most",
        claim: "the most is reached with three cores (5.5, figure 5.5)",
        unit: "cores",
    },
    mechanism: "one core's copies, interrupts and requests do not fill the link",
    rule: Rule::Shape,
    shape: "the fewest cores within a twentieth of the highest are three",
    paper: Some(3.0),
    see: |setup| {
        let curve = by_cores(&ssd(setup), Policy::RoundRobin)?;
        let text: Vec<_> = curve.iter().map(|value| format!("{value:.0}")).collect();
        let knee = knee(&curve);
        Ok(Seen::of(knee as f64, knee == 3).with(format!("MB/s by cores: {}", text.join(" "))))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[],
    expected: Expected::Departs(
        "one core keeps this link and these banks busy. With PCIe 1.x the most is reached with two \
        cores, with a copy at 1 GB/s with two, and with one at 0.59 GB/s with the thesis's three",
        &[SLOW_COPY],
    ),
};

/// Throughput of random 4 KiB reads by number of cores, kIOPS.
pub(super) fn operations(machine: &Machine) -> Result<Vec<f64>, ExhibitError> {
    (1..=CORES).map(|cores| kiops(machine, Policy::RoundRobin, cores, WINDOW)).collect()
}

pub(super) const TWO_CORES: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "4 KiB random reads, two cores",
        claim: "close to 50,000 of at most 70,000 reads a second, with two cores (5.5.2, figure 5.7)",
        unit: "kIOPS",
    },
    mechanism: "a core's own time for each request",
    rule: Rule::Shape,
    shape: "below the drive's own 70",
    paper: Some(50.0),
    see: |setup| {
        let two = operations(&ssd(setup))?[1];
        Ok(Seen::of(two, two < 70.0))
    },
    swung: Swung {
        plans: SSD,
        number: Some(|setup| kiops(&ssd(setup), Policy::RoundRobin, 2, SHORT)),
    },
    mutations: &[Mutation {
        change: "a drive of 14 banks",
        settings: &[set("medium.timing.banks", "14")],
    }],
    expected: Expected::Holds,
};

pub(super) const ENOUGH: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "4 KiB random reads: cores for the most",
        claim: "two cores are enough for the most (5.5.2, figure 5.7)",
        unit: "cores",
    },
    mechanism: "a core's own time for each request, beside the drive's",
    rule: Rule::Shape,
    shape: "the fewest cores within a twentieth of the highest are at most two",
    paper: Some(2.0),
    see: |setup| {
        let knee = knee(&operations(&ssd(setup))?);
        Ok(Seen::of(knee as f64, knee <= 2))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "a request that takes four times as long of a core",
        settings: &[set("host.costs.\"block driver\"", "\"40 us\"")],
    }],
    expected: Expected::Holds,
};

pub(super) const WRITES: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "writes over reads, one core, 4 MiB",
        claim: "one core writes much faster than it reads (5.4, figure 5.1)",
        unit: "x",
    },
    mechanism: "a writer waits for the copy only",
    rule: Rule::Shape,
    shape: "by a tenth at least",
    paper: None,
    see: |setup| {
        let one = |write| hogged(&ssd(setup), Policy::Single, &sequential(1, write, WINDOW));
        let (read, write) = (one(false)?.megabytes_s(), one(true)?.megabytes_s());
        Ok(Seen::of(write / read, write > 1.1 * read))
    },
    swung: Swung { plans: SSD, number: None },
    mutations: &[],
    expected: Expected::Departs(
        "a queue of 128 pieces of 32 KB holds one request: from the second on, a copy waits for the drive. A \
         drive that writes as fast as it reads gives 1.06 times, 4,095 buffers in place of 128 give 1.03",
        &[],
    ),
};

/// Writes of 4 KiB by two cores, in samples of 20 ms from empty queues on, kIOPS.
pub(super) fn enqueued(setup: &Setup) -> Result<Vec<f64>, ExhibitError> {
    let interval = Span::ms(20);
    let hog = Hog { write: true, time: interval * 10, interval, ..Hog::operations(2) };
    let stats = hogged(&ssd(setup), Policy::PerCore, &hog)?;
    let at = |sample: usize| -> f64 {
        let bytes: u64 =
            stats.cores.iter().map(|core| core.series.get(sample).copied().unwrap_or(0)).sum();
        bytes as f64 / 4096.0 / interval.as_us_f64() * 1e3
    };
    Ok((0..10).map(at).collect())
}

pub(super) const ENQUEUED: Spec = Spec {
    subject: Subject {
        row: "D9",
        title: "4 KiB writes, the first 20 ms",
        claim: "writes count far above the drive's 30,000, as fast as they are enqueued (5.5.2, figure 5.7)",
        unit: "kIOPS",
    },
    mechanism: "a writer waits for the copy only, while there are buffers",
    rule: Rule::Shape,
    shape: "more than twice that while there are buffers, and the drive's when they are full",
    paper: None,
    see: |setup| {
        let samples = enqueued(setup)?;
        Ok(Seen::of(samples[0], samples[0] > 60.0 && samples[9] < 40.0))
    },
    swung: Swung { plans: SSD, number: None },
    mutations: &[Mutation {
        change: "a writer waits for the drive",
        settings: &[set("host.kernel.write_behind", "false")],
    }],
    expected: Expected::Holds,
};
