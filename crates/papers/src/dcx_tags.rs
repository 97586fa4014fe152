//! Tags at the paper's own scale: 128 GiB of random contents, reads compared with them, collisions
//! counted beside the formula (sections 3 and 3.1 of Vučinić et al., FAST 2014).

use bus::sim::SimHost;
use host::BlockDevice;
use media::contents::Fill;
use runtime::{Log, Rng};
use wire::Lba;
use wire::dcx::tag::{Tag, collision_chance};
use world::interfaces::{DCX, DcxDriver};

use super::ExhibitError;
use super::changes::{Change, always, instead, set};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::measure::{Machine, writes};
use super::setup::Setup;
use report::model::paper::{Exhibit, Rule, Table};

const USER: &[&str] = &["dc-express"];

/// Seed of the contents; random contents are those of encrypted data too.
const FILL: u64 = 1;
const BLOCK: usize = 512;
/// Payload of a packet, bytes: `link.mps` of the plan.
const PACKET: u64 = 128;
/// Capacity of the paper's example (section 3.1), bytes.
const CAPACITY: u64 = 128 << 30;

/// Mutation: random tags of the host in place of those of the device.
const RANDOM: &str = "random tags of 12 bits";

/// Mutation: a run of minutes is cut to a thousandth.
const SHORT: &str = "a thousandth of the reads";

/// The machine of the paper with 128 GiB of random contents.
fn random(setup: &Setup) -> Machine {
    let machine = setup.machine("dc-express");
    // The time-out is the depth times the longest latency; the plan's 1 ms would make each collision
    // take 64 ms of polling.
    machine
        .with("medium.capacity", "\"128 GiB\"")
        .with("medium.fill_seed", "1")
        .with("dcx.max_latency", "\"20 us\"")
}

/// With tags of the device, picked at random and compared.
fn compared(setup: &Setup) -> Machine {
    let machine = random(setup).with("dcx.grain", "\"128 B\"").with("dcx.candidates", "64");
    machine.with("dcx.tags", "compared").with("dcx.tag_bits", "48")
}

/// Reads of random blocks, compared with the contents.
#[derive(Clone, Copy)]
struct Collided {
    reads: u64,
    /// Reads that ended with other bytes than the block has.
    wrong: u64,
    /// Reads that timed out because their data end with their tag.
    timeouts: u64,
}

fn read_random(machine: &Machine, reads: u64) -> Result<Collided, ExhibitError> {
    machine.once(format!("random contents {reads}"), |machine| read_random_once(machine, reads))
}

fn read_random_once(machine: &Machine, reads: u64) -> Result<Collided, ExhibitError> {
    let plan = machine.open()?;
    let blocks = plan.medium.contents.capacity_bytes / BLOCK as u64;
    world::in_virtual_time(DCX, &plan, Log::Off, 1, async |_, _, driver| {
        let disk = driver.disk(0);
        let mut rng = Rng::for_part(plan.run.seed, "blocks");
        let mut buffer = disk.buffer(BLOCK)?;
        let (mut wrong, mut found, mut expected) = (0, [0; BLOCK], [0; BLOCK]);
        for _ in 0..reads {
            let lba = rng.below(blocks);
            let (back, done) = disk.read(Lba(lba), buffer).await;
            done?;
            back.copy_out(0, &mut found);
            Fill::new(FILL).write(lba * BLOCK as u64, &mut expected);
            wrong += u64::from(found != expected);
            buffer = back;
        }
        let timeouts = driver.typed::<DcxDriver<SimHost>>().timeouts();
        Ok::<_, ExhibitError>(Collided { reads, wrong, timeouts })
    })?
}

/// Collisions that the formula expects of reads with random tags of these bits.
fn expected(reads: u64, bits: u32) -> f64 {
    reads as f64 * collision_chance(BLOCK as u64 / PACKET, bits)
}

/// Tags so short that reads collide, beneath the mutations.
const BITS: u32 = 12;
const READS: u64 = 20_000;

pub(super) const SHORT_TAGS: Spec = Spec {
    subject: Subject {
        row: "B3",
        title: "reads that meet their tag, 12 bits",
        claim: "a read whose data end with its tag times out, a new tag is chosen at random and the read \
                retried (section 3.1); here tags of 12 bits over 128 GiB of random contents",
        unit: "reads",
    },
    mechanism: "a tag of random bits, compared with the end of each packet, and another after a time-out",
    rule: Rule::Shape,
    shape: "no read with other data, and as many time-outs as the formula has, within three deviations",
    paper: None,
    see: |setup| {
        let machine = random(setup);
        let machine = match setup.is_switched(LONGER) {
            true => machine.with("dcx.tag_bits", "14"),
            false => machine.with("dcx.tag_bits", "12"),
        };
        let all = read_random(&machine, READS)?;
        let mean = expected(READS, BITS);
        let holds = all.wrong == 0 && (all.timeouts as f64 - mean).abs() <= 3.0 * mean.sqrt();
        Ok(Seen::of(all.timeouts as f64, holds).with(format!(
            "of {} reads of 512 B; the formula: {mean:.1}; reads with other data: {}",
            all.reads, all.wrong
        )))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[
        Mutation { change: "tags of two bits more", settings: &[Change::Switch(LONGER)] },
        Mutation {
            change: "tags of the device, which end none of its data",
            settings: &[
                always("dcx.tags", "compared"),
                always("dcx.grain", "\"128 B\""),
                always("dcx.candidates", "64"),
                always("dcx.tag_bits", "48"),
            ],
        },
    ],
    expected: Expected::Holds,
};

const LONGER: &str = "tags of two bits more";

pub(super) const WIDE_TAGS: Spec = Spec {
    subject: Subject {
        row: "B3",
        title: "reads that meet their tag, 48 bits",
        claim: "the length of the tag is picked such that the probability of a collision is low enough \
                (section 3.1); here tags of 48 bits over 128 GiB of random contents",
        unit: "reads",
    },
    mechanism: "tags of more than a word, stored and compared at once",
    rule: Rule::Shape,
    shape: "none, and no read with other data",
    paper: None,
    see: |setup| none_meets(&random(setup).with("dcx.tag_bits", "48"), READS),
    swung: Swung { plans: USER, number: None },
    mutations: &[Mutation {
        change: "tags of 12 bits",
        settings: &[instead("dcx.tag_bits", "48", "12")],
    }],
    expected: Expected::Holds,
};

fn none_meets(machine: &Machine, reads: u64) -> Result<Seen, ExhibitError> {
    let all = read_random(machine, reads)?;
    Ok(Seen::of(all.timeouts as f64, all.timeouts == 0 && all.wrong == 0)
        .with(format!("of {} reads of 512 B; with other data: {}", all.reads, all.wrong)))
}

/// A device of 2^30 packets: 2^30 ends of generated contents, and tags drawn as the driver draws them.
fn present_at_scale(bits: u32, packets: u64) -> f64 {
    const TAGS: u64 = 20_000;
    let mut rng = Rng::for_part(1, "tags");
    let mut values: Vec<u64> =
        (0..TAGS).map(|_| Tag::new(rng.next_u64(), bits).doubleword()).collect();
    values.sort_unstable();
    // A bit for each value of the last 16 bits, so that most ends are dismissed by one load.
    let mut filter = vec![0u64; 1 << 10];
    let hash = |value: u64| (value >> 48) as usize;
    values.iter().for_each(|value| filter[hash(*value) / 64] |= 1 << (hash(*value) % 64));
    let (fill, mut met) = (Fill::new(FILL), vec![false; values.len()]);
    for packet in 0..packets {
        let end = fill.word(((packet + 1) * PACKET - 8) / 8) & !0 << (64 - bits);
        if filter[hash(end) / 64] >> (hash(end) % 64) & 1 != 0
            && let Ok(place) = values.binary_search(&end)
        {
            met[place] = true;
        }
    }
    100.0 * met.iter().filter(|met| **met).count() as f64 / TAGS as f64
}

/// With `packets` ends drawn at random, not each different, as the formula's worst case is.
fn present_in_random(packets: u64, bits: u32) -> f64 {
    -100.0 * (-(packets as f64) / (bits as f64).exp2()).exp_m1()
}

pub(super) const PRESENT: Spec = Spec {
    subject: Subject {
        row: "B3",
        title: "32-bit tags that occur in 128 GiB",
        claim: "128 GiB in packets of 128 B: a random tag of 32 bits occurs somewhere on the \
            device with a chance \
                of at most 25 % (section 3.1); of random contents it is 1 - exp(-1/4), 22.1 %",
        unit: "%",
    },
    mechanism: "a tag of 32 bits against the ends of 2^30 packets",
    rule: Rule::Shape,
    shape: "22.1 %, within three deviations of 20,000 tags, and below 25 %",
    paper: Some(25.0),
    see: |setup| {
        let (bits, packets) = match setup.is_switched(LONGER) {
            true => (34, CAPACITY / PACKET),
            false => (32, CAPACITY / PACKET),
        };
        let (share, formula) = (present_at_scale(bits, packets), present_in_random(packets, 32));
        let deviation = (formula * (100.0 - formula) / 20_000.0).sqrt();
        Ok(Seen::of(share, (share - formula).abs() <= 3.0 * deviation && share < 25.0))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation { change: "tags of two bits more", settings: &[Change::Switch(LONGER)] }],
    expected: Expected::Holds,
};

/// Number of reads of the run of minutes.
const MANY: u64 = 100_000_000;

fn many(setup: &Setup) -> u64 {
    if setup.is_switched(SHORT) { MANY / 1000 } else { MANY }
}

pub(super) const ALL_READS: Spec = Spec {
    subject: Subject {
        row: "B3",
        title: "10^8 reads of 128 GiB, 32-bit tags",
        claim: "random tags of 32 bits are adequate for the vast majority of applications \
            (section 3.1); here 10^8 \
                reads of 512 B over 128 GiB of random contents",
        unit: "reads",
    },
    mechanism: "a tag of 32 random bits, compared with the end of each packet",
    rule: Rule::Shape,
    shape: "no read with other data; time-outs within three of the formula's 0.09",
    paper: None,
    see: |setup| {
        let machine = random(setup);
        let (reads, bits) = (many(setup), 32);
        let all = read_random(&machine, reads)?;
        let mean = expected(reads, bits);
        let holds = all.wrong == 0 && all.timeouts <= 3;
        Ok(Seen::of(all.timeouts as f64, holds).with(format!(
            "of {} reads of 512 B; the formula: {mean:.3}; reads with other data: {}",
            all.reads, all.wrong
        )))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "tags of 12 bits",
        settings: &[set("dcx.tag_bits", "12"), Change::Switch(SHORT)],
    }],
    expected: Expected::Holds,
};

pub(super) const ALL_COMPARED: Spec = Spec {
    subject: Subject {
        row: "B4",
        title: "reads of 128 GiB, compared tags",
        claim: "the device picks values at random and compares them with its contents, so that no \
            collision is \
                possible (section 3.1); here 10^7 reads of 512 B over 128 GiB of random contents",
        unit: "reads",
    },
    mechanism: "tags of 48 bits that the device has compared with the ends of all its 2^30 packets",
    rule: Rule::Shape,
    shape: "no read meets its tag, and none has other data",
    paper: None,
    see: |setup| {
        let machine = match setup.is_switched(RANDOM) {
            true => random(setup).with("dcx.tag_bits", "12"),
            false => compared(setup),
        };
        none_meets(&machine, many(setup) / 10)
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "random tags of 12 bits",
        settings: &[Change::Switch(RANDOM), Change::Switch(SHORT)],
    }],
    expected: Expected::Holds,
};

/// The ways to choose a tag on the plan's own medium, and what they cost.
pub(super) fn schemes(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let user = setup.machine("dc-express");
    let granules = CAPACITY / PACKET;
    let medium = user.open()?;
    let bandwidth = medium.medium.timing().expect("PCM has its timing").bytes_per_s;
    let scan = format!("{:.1} s", CAPACITY as f64 / bandwidth as f64);
    let with_grain = user.with("dcx.grain", "\"128 B\"");
    let values = 64;
    let rows = [
        ("random, by the host", user.clone(), 0, "none".to_owned(), "drawn"),
        (
            "intervals, by the device",
            with_grain.with("dcx.tags", "device"),
            device::dcx::TagSource::Intervals.memory_bytes(granules),
            scan.clone(),
            "in a few steps; none if no interval is empty",
        ),
        (
            "compared, by the device",
            with_grain.with("dcx.tags", "compared").with("dcx.candidates", "64"),
            device::dcx::TagSource::Compared { values, seed: 0 }.memory_bytes(granules),
            scan,
            "one of 64 in reserve; a scan when 16 are left",
        ),
    ];
    let mut lines = Vec::new();
    for (scheme, machine, memory, scan, next) in rows {
        let write = writes(DCX, &machine, 512)?.total_us;
        let memory = if memory == 0 { "none".to_owned() } else { plan::units::size_text(memory) };
        lines.push(vec![scheme.into(), memory, scan, next.into(), format!("{write:.3}")]);
    }
    Ok(vec![Table::exhibit(
        "Where tags come from, 128 GiB of PCM in granules of 128 B (section 3.1)",
        &["scheme", "memory", "scan at power-up", "the next tag", "512 B write, us"],
        lines,
        &[
            "a scan reads the whole medium at its own bandwidth, without the link; writes at depth 1 in \
             virtual time",
            "intervals are 2^24 at most: of 2^30 random ends 64 are in each, and none is empty",
        ],
    )])
}
