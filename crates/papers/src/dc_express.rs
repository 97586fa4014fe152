//! Vučinić et al., "DC Express" (FAST 2014): its statements as checks.

use super::ExhibitError;
use super::changes::{Change, of, set};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::dcx_ways::{self, layers, looped, nvme_through_linux, through_linux};
use super::measure::{Arrivals, Machine, Reads, overtaken, rate_at, reads, small_reads};
use super::setup::Setup;
use report::model::paper::{Exhibit, Quotation, Rule};
use runtime::Rng;
use wire::dcx::tag::Tag;
use world::interfaces::{DCX, NVME};

/// A rate, in reads per second, so low that reads seldom overlap.
pub(super) const SELDOM: Arrivals = Arrivals::Random(5_000);

const USER: &[&str] = &["dc-express"];
const LINUX: &[&str] = &[dcx_ways::LINUX];

fn user(setup: &Setup) -> Machine {
    setup.machine("dc-express")
}

/// Why reads are shorter here than in the paper.
const PACKETS: Expected = Expected::Departs(
    "table 5 has 0.863 us of protocol and parsing, in which is all that the prototype's PCIe packet \
    handling takes, \
     and the paper does not take it apart; parsing is counted here in beats of its interface (32 \
     cycles), and the \
     remainder is unexplained",
    &[Mutation {
        change: "parsing of 298 ns, which would be what is left of 0.863 us",
        settings: &[of("dc-express", "device.costs.parse", "\"298 ns\"")],
    }],
);

pub(super) const SMALL_BLOCK: Spec = Spec {
    subject: Subject {
        row: "B7",
        title: "512 B reads in a tight loop, user space",
        claim: "512 B in a tight loop from user space: 1.4 us, over 700,000 a second (section 4)",
        unit: "us",
    },
    mechanism: "anticipatory polling: the fetch reaches host memory just after the next command",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(1.4),
    see: |setup| {
        let ours = looped(&user(setup), 512)?;
        Ok(Seen::number(ours.total_us).parts(&ours.parts))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[],
    expected: PACKETS,
};

pub(super) const SMALLEST: Spec = Spec {
    subject: Subject {
        row: "B7",
        title: "64 B reads in a tight loop, user space",
        claim: "smaller transfers: \"just under a million reads per second\" (section 5)",
        unit: "us",
    },
    mechanism: "no completion entry: the data themselves end the read",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(1.0),
    see: |setup| Ok(Seen::number(small_reads(&user(setup), 64)?)),
    swung: Swung { plans: USER, number: None },
    mutations: &[],
    expected: PACKETS,
};

pub(super) const TRANSFER: Spec = Spec {
    subject: Subject {
        row: "B8",
        title: "data transfer of 4 KiB",
        claim: "data transfer of 4 KiB on PCIe Gen2 x4, MPS 128 B (table 5)",
        unit: "us",
    },
    mechanism: "packets of 128 bytes with 24 bytes of overhead each",
    rule: Rule::Within { per_mille: 10 },
    shape: "",
    paper: Some(2.432),
    see: |setup| {
        let read = reads(NVME, &user(setup), 4096, Arrivals::Loop)?;
        Ok(Seen::number(read.part("data transfer")))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[
        Mutation { change: "packets of 256 bytes", settings: &[set("link.mps", "256 B")] },
        Mutation {
            change: "a digest of 4 bytes in each packet",
            settings: &[set("link.ecrc", "true")],
        },
    ],
    expected: Expected::Holds,
};

/// Figure 1c: transfers follow one another without a gap.
pub(super) const GAPLESS: Spec = Spec {
    subject: Subject {
        row: "B1",
        title: "4 KiB at depth 2: share of the link",
        claim: "at higher depth the next fetch leaves before the data of the last command, for seamless \
                transmission (figure 1c)",
        unit: "%",
    },
    mechanism: "anticipatory polling: a fetch among the data, timed by the measured round trip",
    rule: Rule::Shape,
    shape: "transfers take at least 97 % of the time",
    paper: None,
    see: |setup| {
        let machine = user(setup);
        let each = reads(NVME, &machine, 4096, Arrivals::Loop)?.part("data transfer");
        let share = 100.0 * each * rate_at(DCX, &machine, 4096, 2)? / 1e6;
        Ok(Seen::of(share, share >= 97.0))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[Mutation {
        change: "no anticipation",
        settings: &[set("dcx.anticipate", "false")],
    }],
    expected: Expected::Holds,
};

/// Latency that anticipation spares a read in a tight loop, us.
fn spared(setup: &Setup) -> Result<f64, ExhibitError> {
    let without = user(setup).with("dcx.anticipate", "false");
    Ok(looped(&without, 512)?.total_us - looped(&user(setup), 512)?.total_us)
}

pub(super) const ANTICIPATED: Spec = Spec {
    subject: Subject {
        row: "B1",
        title: "512 B, tight loop: spared by anticipation",
        claim: "with predictable timing a new command is picked up soon after its arrival (section 4); \
            ours: a read \
                without anticipation less one with it",
        unit: "us",
    },
    mechanism: "anticipatory polling: the fetch reaches host memory just after the next command",
    rule: Rule::Shape,
    shape: "at least a third of a round trip of 0.6 us",
    paper: None,
    see: |setup| {
        let spared = spared(setup)?;
        Ok(Seen::of(spared, spared >= 0.2))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[Mutation {
        change: "no anticipation",
        settings: &[set("dcx.anticipate", "false")],
    }],
    expected: Expected::Holds,
};

/// Figure 1d. Of reads whose packets overtake one another, each is compared with what was written.
pub(super) const OUT_OF_ORDER: Spec = Spec {
    subject: Subject {
        row: "B2",
        title: "packets out of order: reads with old data",
        claim: "packets may arrive out of order; one tag left means a longer wait (section 3, figure 1d)",
        unit: "%",
    },
    mechanism: "a tag at the end of each packet's part of the buffer",
    rule: Rule::Shape,
    shape: "none, where one packet in eight is delayed by 2 us and later ones overtake it",
    paper: None,
    see: |setup| {
        let all = overtaken(&user(setup))?;
        let share = 100.0 * all.stale as f64 / all.reads as f64;
        Ok(Seen::of(share, all.stale == 0).with(format!("of {} reads of 4 KiB", all.reads)))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[Mutation {
        change: "one tag, at the end of the buffer",
        settings: &[set("dcx.marks", "last packet")],
    }],
    expected: Expected::Holds,
};

/// Mutation: tags of two bits more.
const LONGER_TAGS: &str = "longer tags";

/// Scaled down: 2^10 packets that all end differently, and tags of 12 bits, are to one another as 2^30 and
/// 32.
fn present(setup: &Setup) -> f64 {
    const PACKETS: u32 = 1 << 10;
    const DRAWS: u32 = 20_000;
    let bits = if setup.is_switched(LONGER_TAGS) { 14 } else { 12 };
    let mut rng = Rng::for_part(1, "tags");
    // An odd factor: no two of the first 2^12 multiples have the same last 12 bits.
    let ends: Vec<u32> = (0..PACKETS).map(|n| n.wrapping_mul(2_654_435_761) << 20).collect();
    let meets = |tag: Tag| ends.iter().any(|end| tag.is_in(*end));
    let met = (0..DRAWS).filter(|_| meets(Tag::new(rng.next_u64(), bits))).count();
    100.0 * met as f64 / f64::from(DRAWS)
}

pub(super) const COLLISIONS: Spec = Spec {
    subject: Subject {
        row: "B3",
        title: "random tags that occur in the contents",
        claim: "a random tag of 32 bits occurs somewhere on a device of 2^30 packets with a chance of \
            at most 25 % \
                (section 3.1); here 2^10 packets and tags of 12 bits",
        unit: "%",
    },
    mechanism: "a tag is compared in its own bits with the end of each packet",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(25.0),
    see: |setup| Ok(Seen::number(present(setup))),
    swung: Swung { plans: USER, number: None },
    mutations: &[Mutation {
        change: "tags of two bits more",
        settings: &[Change::Switch(LONGER_TAGS)],
    }],
    expected: Expected::Holds,
};

/// The dashed curve of figure 4 has no numbers in the text. Its distance to the solid one is the average
/// wait for
/// the next fetch: with a fetch always under way, half of a round trip of "well over 0.6 us" (section 2).
pub(super) const RANDOM_ARRIVAL: Spec = Spec {
    subject: Subject {
        row: "B11",
        title: "512 B: random arrival over a tight loop",
        claim: "random arrival adds the average delay until the next fetch (section 4, figure 4): half of a \
                round trip of over 0.6 us (section 2)",
        unit: "us",
    },
    mechanism: "a fetch is always under way, and the next leaves when it returns",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(0.3),
    see: |setup| {
        let machine = user(setup);
        let random = reads(DCX, &machine, 512, SELDOM)?.total_us;
        let fixed = looped(&machine, 512)?.total_us;
        Ok(Seen::number(random - fixed).with(format!("{random:.3} us less {fixed:.3} us")))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[],
    expected: Expected::Departs(
        "in the tight loop the device's fetch finds the command 0.08 us later than it could, so that the two \
         curves are closer; and the paper's round trip is well over 0.6 us",
        &[Mutation {
            change: "a round trip of 0.75 us (\"well over 0.6 us\")",
            settings: &[set("link.latency", "\"225 ns\"")],
        }],
    ),
};

/// Share of each direction that an idle device takes, percent: one command per fetch, fetches back to
/// back, and
/// almost never a command.
fn polling(machine: &Machine) -> Result<(f64, f64), ExhibitError> {
    let idle = machine.with("dcx.fetch_max", "1").with("dcx.anticipate", "false");
    let busy = reads(DCX, &idle, 512, Arrivals::Random(500))?.busy;
    let share = |busy_for: runtime::Span| 100.0 * busy_for.0 as f64 / busy.of.0 as f64;
    Ok((share(busy.up), share(busy.down)))
}

pub(super) const UPSTREAM: Spec = Spec {
    subject: Subject {
        row: "B12",
        title: "polling: share of the upstream link",
        claim: "fetching one 64 B command at a time, a request always in flight, ties up less than six \
            percent \
                of the upstream bandwidth (section 4.1)",
        unit: "%",
    },
    mechanism: "one fetch in flight: the next waits for a round trip",
    rule: Rule::Below,
    shape: "",
    paper: Some(6.0),
    see: |setup| Ok(Seen::number(polling(&user(setup))?.0)),
    swung: Swung { plans: USER, number: None },
    mutations: &[Mutation {
        change: "a round trip of 0.1 us: as many fetches as with six in flight",
        settings: &[set("link.host_read", "\"0 ns\""), set("link.latency", "\"20 ns\"")],
    }],
    expected: Expected::Holds,
};

pub(super) const DOWNSTREAM: Spec = Spec {
    subject: Subject {
        row: "B12",
        title: "polling: share of the downstream link",
        claim: "the same in the other direction, on which the paper has nothing: its six percent are of the \
                upstream bandwidth (section 4.1)",
        unit: "%",
    },
    mechanism: "one fetch in flight: the next waits for a round trip",
    rule: Rule::Below,
    shape: "",
    paper: Some(6.0),
    see: |setup| Ok(Seen::number(polling(&user(setup))?.1)),
    swung: Swung { plans: USER, number: None },
    mutations: &[],
    expected: Expected::Departs(
        "a request is a header, and its answer a header and the 64 bytes of an entry: what polling takes \
         downstream is more than it takes upstream, in any round trip",
        &[Mutation {
            change: "a round trip of 0.8 us (\"well over 0.6 us\")",
            settings: &[set("link.host_read", "\"450 ns\"")],
        }],
    ),
};

pub(super) const LINUX_NVME: Spec = Spec {
    subject: Subject {
        row: "B10",
        title: "4 KiB by NVMe through Linux",
        claim: "4 KiB random reads at depth 1 through the Linux NVMe driver: 78 kIOPS, nearly 13 us \
            (section 4)",
        unit: "us",
    },
    mechanism: "an interrupt, two context switches, and the kernel's layers",
    rule: Rule::Shape,
    shape: "slower than polled NVMe from user space by more than the kernel's layers alone, and below the \
            paper's",
    paper: Some(1e3 / 78.0),
    see: |setup| {
        let ours = reads(NVME, &nvme_through_linux(setup), 4096, Arrivals::Loop)?;
        let polled = reads(NVME, &user(setup), 4096, Arrivals::Loop)?.total_us;
        let holds = ours.total_us > polled + layers(&ours) + 1.0 && ours.total_us <= 1e3 / 78.0;
        Ok(Seen::of(ours.total_us, holds).parts(&ours.parts))
    },
    swung: Swung { plans: LINUX, number: None },
    mutations: &[Mutation {
        change: "completions polled, no interrupt and no context switch",
        settings: &[of("dc-express-linux", "host.completion", "polled")],
    }],
    expected: Expected::Holds,
};

/// Reads of 4 KiB through read() and fio: by NVMe with interrupts, and by DC Express, which polls.
fn both_ways(setup: &Setup) -> Result<(Reads, Reads), ExhibitError> {
    let nvme = reads(NVME, &nvme_through_linux(setup), 4096, Arrivals::Loop)?;
    Ok((nvme, looped(&through_linux(setup), 4096)?))
}

pub(super) const HEADLINE: Spec = Spec {
    subject: Subject {
        row: "B10",
        title: "DC Express over NVMe through Linux, IOPS",
        claim: "158 kIOPS by DC Express and 78 by NVMe, 4 KiB at depth 1 through the block layer (table 5, \
                section 4): 2.03 times",
        unit: "x",
    },
    mechanism: "no doorbell, no completion entry, no interrupt, no context switch",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(158.0 / 78.0),
    see: |setup| {
        let (nvme, dcx) = both_ways(setup)?;
        let missing = (1e3 / 78.0 - nvme.total_us, 1e3 / 158.0 - dcx.total_us);
        Ok(Seen::number(nvme.total_us / dcx.total_us)
            .with(format!(
                "kIOPS: DC Express {:.1} (the paper 158), NVMe {:.1} (the paper 78)",
                1e3 / dcx.total_us,
                1e3 / nvme.total_us
            ))
            .with(format!(
                "missing from ours: {:.3} us of the paper's NVMe read, {:.3} us of its DC Express read",
                missing.0, missing.1
            )))
    },
    swung: Swung { plans: LINUX, number: None },
    mutations: &[],
    expected: THIRTEEN,
};

/// Why a read through Linux is shorter here than in the paper.
const THIRTEEN: Expected = Expected::Departs(
    "of nearly 13 us, whose parts the paper does not give, ours accounts for 6.4: the rest has no \
     source, so that it is in no cost; and the kernel's layers are counted here as work, less than \
     half of table 5's 2.666 us",
    &[Mutation {
        change: "layers that take about the sums of table 5, and an interrupt of what is left of 13 us",
        settings: &[
            of("dc-express-linux", "host.path.costs.\"file layer\"", "\"1.1 us\""),
            of("dc-express-linux", "host.path.costs.\"block layer\"", "\"650 ns\""),
            of("dc-express-linux", "host.costs.benchmark", "\"500 ns\""),
            of("dc-express-linux", "host.interrupt", "\"5.6 us\""),
        ],
    }],
);

pub(super) const SPARED: Spec = Spec {
    subject: Subject {
        row: "B10",
        title: "spared by DC Express through Linux",
        claim: "two context switches on the same core take no less than 1.1 us (section 3); ours: \
            a read of 4 KiB \
                by NVMe less one by DC Express",
        unit: "us",
    },
    mechanism: "no doorbell, no completion entry, no interrupt, no context switch",
    rule: Rule::Shape,
    shape: "more than the two context switches alone (1.1 us)",
    paper: Some(1e3 / 78.0 - 1e3 / 158.0),
    see: |setup| {
        let (nvme, dcx) = both_ways(setup)?;
        let less = nvme.total_us - dcx.total_us;
        Ok(Seen::of(less, less > 1.1))
    },
    swung: Swung { plans: LINUX, number: None },
    mutations: &[Mutation {
        change: "interrupts and context switches that cost nothing",
        settings: &[
            set("host.interrupt", "\"0 ns\""),
            set("host.costs.\"context switch\"", "\"0 ns\""),
        ],
    }],
    expected: Expected::Holds,
};

/// All but the transfer and the medium.
fn protocol(read: &Reads) -> f64 {
    read.total_us - read.part("data transfer") - read.part("media")
}

pub(super) const TENFOLD: Spec = Spec {
    subject: Subject {
        row: "B10",
        title: "protocol latency: NVMe over DC Express",
        claim: "protocol latency of just over 1 us, a tenfold improvement over the authors' NVMe \
            (section 1); by its \
                numbers 13 us less transfer and medium over 0.863 us, 11.6 times",
        unit: "x",
    },
    mechanism: "user space, polled at both ends, against a kernel's driver with interrupts",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some((1e3 / 78.0 - 2.432 - 0.368) / 0.863),
    see: |setup| {
        let nvme = reads(NVME, &nvme_through_linux(setup), 4096, Arrivals::Loop)?;
        let (nvme, dcx) = (protocol(&nvme), protocol(&looped(&user(setup), 4096)?));
        Ok(Seen::number(nvme / dcx).with(format!(
            "NVMe {nvme:.3} us (the paper's 13 less 2.8: {:.3}), DC Express {dcx:.3} us (table 5: 0.863)",
            1e3 / 78.0 - 2.432 - 0.368
        )))
    },
    swung: Swung { plans: LINUX, number: None },
    mutations: &[],
    expected: THIRTEEN,
};

pub(super) fn quoted(_: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let quotation = |row, title, claim, unit, paper, why: &str| {
        let subject = Subject { row, title, claim, unit }.into();
        Exhibit::Quotation(Quotation { subject, paper, ours: None, why: why.into() })
    };
    Ok(vec![
        quotation(
            "B9",
            "table 5: PCM read",
            "PCM read 0.368 us (table 5)",
            "us",
            Some(0.368),
            "it is an input of the plans, and comes out as it was put in",
        ),
        quotation(
            "B13",
            "power: polling over idle",
            "polling costs about six percent of the idle power of the server (section 4.1)",
            "%",
            Some(6.0),
            "the model has no power; of the server the paper states no watt in its text",
        ),
        quotation(
            "B13",
            "clock with the least energy a read",
            "the least energy a read lies near 2 GHz (figure 6)",
            "GHz",
            Some(2.0),
            "it rests on the power of the server and of one core, which have no source; the table below \
            shows \
             what two assumed numbers give",
        ),
    ])
}
