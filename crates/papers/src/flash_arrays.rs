//! Outlook of the flash paper (section 5): several such SSDs as an array, their use of host resources by
//! array size, and the tail latency through the slowest member.

use std::path::Path;

use workload::pattern::OpKind;
use workload::trace::Mapping;

use super::ExhibitError;
use super::changes::Change;
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::flash_ssds::{IN_DEVICE, Load, Measured, Ssd, run};
use super::measure::Machine;
use super::setup::Setup;
use report::model::paper::{Exhibit, Rule, Table};
use world::interfaces::{HOST_FLASH_ARRAY, NVME_ARRAY, Row};
use world::work::Work;
use world::{self, Options};

/// Size of the paper's array.
pub(super) const FIVE: u32 = 5;
/// Array sizes for the host resource exhibit.
const GROWING: [u32; 5] = [1, 2, 3, FIVE, 8];
/// Bytes per chunk, a member's part of a full-stripe request.
const CHUNK: u32 = 16 << 10;
/// Blocks per chip for members that are overwritten several times: half as many as in the plans.
const BLOCKS: &str = "16";
/// Cost of a parity; sixteen lanes are above the switch.
const PARITY: &str = "{ parity = { value = \"80 ns\", source = \"assumed: 512 bytes read twice and written \
    once at 19.2 GB/s, DDR3-1333 in two channels\" } }";

/// Windows of members that control their collection themselves: longer than an erase and the copies of a
/// superblock, and early by one.
const WINDOWS: &str = ", window = \"20 ms\", early = 1";

/// Mutation: requests as long as one member's part.
const ONE_MEMBER: &str = "requests of one member";

/// Array level, and coordination of garbage collection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    layout: &'static str,
    collections: &'static str,
}

pub(super) const STRIPED: Kind = Kind { layout: "striped", collections: "free" };
pub(super) const PARITIES: Kind = Kind { layout: "parity", collections: "free" };

impl Kind {
    pub fn agreed(self, collections: &'static str) -> Kind {
        Kind { collections, ..self }
    }

    /// Number of members with data in a stripe.
    pub fn data(self, devices: u32) -> u32 {
        devices - u32::from(self.layout == "parity")
    }
}

fn array(setup: &Setup, ssd: Ssd, devices: u32, kind: Kind) -> Machine {
    array_of(&ssd.machine(setup), devices, kind)
}

/// An array of such devices.
pub(super) fn array_of(machine: &Machine, devices: u32, kind: Kind) -> Machine {
    let Kind { layout, collections } = kind;
    let windows = if collections == "windows" { WINDOWS } else { "" };
    let table = format!(
        "{{ devices = {devices}, layout = \"{layout}\", chunk = \"{CHUNK} B\", lanes = 16, \
         collections = \"{collections}\"{windows}, costs = {PARITY} }}"
    );
    machine.with("array", &table).with("host.memory", "1 GiB")
}

const LOAD: Load = Load { rw: "randwrite", bytes: 512, depth: 128, workers: 4, amount: 6 << 20 };

fn loaded(setup: &Setup, ssd: Ssd, devices: u32, kind: Kind) -> Result<Measured, ExhibitError> {
    run(&array(setup, ssd, devices, kind), &LOAD)
}

/// Host memory with arrays of growing size, of drives in full size, bytes.
fn growing(setup: &Setup, ssd: Ssd) -> Result<Vec<f64>, ExhibitError> {
    let of = |devices: &u32| Ok(loaded(setup, ssd, *devices, STRIPED)?.memory_in_full());
    GROWING.iter().map(of).collect()
}

/// Increase per member: callers' buffers are in all of them, and constant.
fn each(memory: &[f64]) -> f64 {
    (memory[4] - memory[0]) / f64::from(GROWING[4] - GROWING[0])
}

pub(super) const FIVE_SSDS: Spec = Spec {
    subject: Subject {
        row: "C12",
        title: "host memory of five from-scratch SSDs",
        claim: "host memory that five from-scratch SSDs take, in full size: about 50 GB (section 5)",
        unit: "GiB",
    },
    mechanism: "each member's map, tables and buffer are in the host's memory",
    rule: Rule::Shape,
    shape: "each member adds as much as the others, to 5 %, and at least 1 GiB",
    paper: Some(50.0),
    see: |setup| {
        let closer = growing(setup, Ssd::Closer)?;
        let each = each(&closer);
        let five = f64::from(FIVE) * each / f64::from(1 << 30);
        let straight = (closer[3] - closer[0]) / (f64::from(FIVE - 1) * each);
        Ok(Seen::of(five, (straight - 1.0).abs() < 0.05 && five >= f64::from(FIVE)))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};

pub(super) const OF_ITS_OWN: Spec = Spec {
    subject: Subject {
        row: "C12",
        title: "memory that a bridge-based member adds",
        claim: "an array of bridge-based SSDs has its flash software to itself (section 5)",
        unit: "KiB",
    },
    mechanism: "each member's map, tables and buffer are in the host's memory",
    rule: Rule::Shape,
    shape: "a member adds less than a tenth of what a from-scratch SSD adds",
    paper: None,
    see: |setup| {
        let bridge = each(&growing(setup, Ssd::Bridge)?);
        let closer = each(&growing(setup, Ssd::Closer)?);
        Ok(Seen::of(bridge / 1024.0, bridge < closer / 10.0))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[IN_DEVICE],
    expected: Expected::Holds,
};

/// The 99th percentile of reads by one SSD and by five, us.
fn of_one_and_five(setup: &Setup, ssd: Ssd) -> Result<Seen, ExhibitError> {
    let (one, five) = (tail(setup, ssd, 1, STRIPED)?, tail(setup, ssd, FIVE, STRIPED)?);
    let (one, five) = (one.reads[P99], five.reads[P99]);
    let seen = Seen::of(five / one, five > one);
    Ok(seen.with(format!("99 % of reads take at most {one:.0} us by one, {five:.0} by five")))
}

const PARTS_OF_ONE: Mutation = Mutation {
    change: "requests that reach one member each",
    settings: &[Change::Switch(ONE_MEMBER)],
};

pub(super) const STRAGGLER: Spec = Spec {
    subject: Subject {
        row: "C12",
        title: "99 % of reads, five bridges over one",
        claim: "a straggler is likelier among five bridge-based SSDs (section 5)",
        unit: "x",
    },
    mechanism: "a request ends with the slowest of its parts",
    rule: Rule::Shape,
    shape: "the 99th percentile is longer",
    paper: None,
    see: |setup| {
        let seen = of_one_and_five(setup, Ssd::Bridge)?;
        let parity = tail(setup, Ssd::Bridge, FIVE, PARITIES)?.reads[P99];
        let one = tail(setup, Ssd::Bridge, 1, STRIPED)?.reads[P99];
        let ratio = parity / one;
        Ok(seen.with(format!(
            "striped members get the same requests and collect in step; with a parity they do not: {ratio:.2}"
        )))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[PARTS_OF_ONE],
    expected: Expected::Holds,
};

pub(super) const STRAGGLER_CLOSER: Spec = Spec {
    subject: Subject {
        row: "C12",
        title: "99 % of reads, five from-scratch over one",
        claim: "a straggler is likelier among five from-scratch SSDs",
        unit: "x",
    },
    mechanism: "a request ends with the slowest of its parts",
    rule: Rule::Shape,
    shape: "the 99th percentile is longer",
    paper: None,
    see: |setup| of_one_and_five(setup, Ssd::Closer),
    swung: Swung { plans: &[], number: None },
    mutations: &[PARTS_OF_ONE],
    expected: Expected::Holds,
};

pub(super) const IN_TURN: Spec = Spec {
    subject: Subject {
        row: "C12",
        title: "99 % of reads, collections in turn",
        claim: "collections that are agreed on make reads shorter (section 5: manage them globally)",
        unit: "x",
    },
    mechanism: "one member collects at a time",
    rule: Rule::Shape,
    shape: "the 99th percentile is shorter, striped and with a parity",
    paper: None,
    see: |setup| {
        let ratio = |kind: Kind| -> Result<f64, ExhibitError> {
            let turn = tail(setup, Ssd::Closer, FIVE, kind.agreed("in turn"))?;
            Ok(turn.reads[P99] / tail(setup, Ssd::Closer, FIVE, kind)?.reads[P99])
        };
        let (striped, parity) = (ratio(STRIPED)?, ratio(PARITIES)?);
        let seen = Seen::of(striped, striped < 1.0 && parity < 1.0);
        Ok(seen.with(format!("with a parity {parity:.2}")))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[],
    expected: Expected::Departs(
        "a member that waits for its turn has less space left, of few superblocks: of writes 99 % take \
        longer. \
         By plan small-flash with 64 blocks of each chip reads gain (docs/flash-closer.md)",
        &[],
    ),
};

pub(super) fn tables(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    Ok(vec![hosts(setup)?, stragglers(setup)?])
}

/// Host memory and cores taken by arrays.
fn hosts(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for ssd in [Ssd::Closer, Ssd::Bridge] {
        let arrays = GROWING.iter().map(|devices| (*devices, STRIPED)).chain([(FIVE, PARITIES)]);
        for (devices, kind) in arrays {
            let measured = loaded(setup, ssd, devices, kind)?;
            lines.push(vec![
                format!("{} x {devices}, {}", ssd.name(), kind.layout),
                format!("{:.2}", measured.memory / f64::from(1 << 20)),
                format!("{:.1}", 100.0 * measured.cores),
                format!("{:.2}", measured.core_us),
                format!("{:.0}", measured.iops),
                format!("{:.0}", measured.us),
            ]);
        }
    }
    Ok(Table::exhibit(
        "Arrays: random writes of 512 B by four workers, 128 entries each, on new drives",
        &["", "memory MiB", "cores %", "core us", "IOPS", "us"],
        lines,
        &[
            "cores: of the time of all four; core us: for each write; a parity reads and writes for each \
             write data and parity of it",
        ],
    ))
}

/// Latency of full-stripe requests, us, at each of [`PERCENTILES`].
#[derive(Clone)]
pub(super) struct Tail {
    pub reads: [f64; 5],
    pub writes: [f64; 5],
    pub collected: u64,
}

/// Thousandths of a percent.
pub(super) const PERCENTILES: [u32; 5] = [50_000, 90_000, 99_000, 99_900, 100_000];

/// Full-stripe requests, half reads and half writes, on full members under garbage collection.
fn tail(setup: &Setup, ssd: Ssd, devices: u32, kind: Kind) -> Result<Tail, ExhibitError> {
    let row = if ssd.is_bridge(setup) { NVME_ARRAY } else { HOST_FLASH_ARRAY };
    tail_of(&array(setup, ssd, devices, kind), row, kind.data(devices))
}

/// The same by this interface; `data` members have data of each stripe.
pub(super) fn tail_of(
    machine: &Machine,
    row: &'static Row,
    data: u32,
) -> Result<Tail, ExhibitError> {
    // Requests of whole units: a finer map would place them equally.
    let machine = machine.with("medium.flash.unit", "4 KiB");
    let machine = machine.with("medium.flash.blocks", BLOCKS);
    machine.once(format!("tail by {}", row.name), |machine| tail_once(machine, row, data))
}

fn tail_once(machine: &Machine, row: &'static Row, data: u32) -> Result<Tail, ExhibitError> {
    let plan = machine.open()?;
    let parts = if machine.is_switched(ONE_MEMBER) { 1 } else { data };
    let (bytes, of_each) = (CHUNK * parts, u64::from(data) << 20);
    let job = format!(
        "[fill]\nrw=write\nbs={bytes}\niodepth=8\nsize=100%\n\n\
         [age]\nstonewall\nrw=randwrite\nbs={bytes}\niodepth=8\nsize=100%\nio_size={}\nnorandommap=1\n\n\
         [load]\nstonewall\nrw=randrw\nbs={bytes}\niodepth=4\nsize=100%\nio_size={}\nnorandommap=1\n",
        AGE_MIB * of_each,
        LOAD_MIB * of_each,
    );
    let work = Work::parse(Path::new("papers"), &job, Mapping::default())?;
    let mut run_result = world::simulate(row, &plan, &work, Options::default())?;
    let software = run_result.flash.and_then(|stats| stats.software);
    let (_, measured) = run_result.jobs.pop().expect("the load is the last");
    if measured.errors() > 0 {
        return Err(ExhibitError::Job(measured.messages));
    }
    let of = |kind| {
        let total = &measured.stats.of(kind).total;
        let at = |percentile| match percentile {
            100_000 => total.max_ns(),
            percentile => total.percentile_ns(percentile),
        };
        PERCENTILES.map(|percentile| at(percentile) as f64 / 1e3)
    };
    Ok(Tail {
        reads: of(OpKind::Read),
        writes: of(OpKind::Write),
        collected: software.map_or(0, |software| software.counters.collected),
    })
}

/// Place of the 99th percentile.
pub(super) const P99: usize = 2;

/// MiB written to each member before the load, and transferred by the load.
const AGE_MIB: u64 = 48;
const LOAD_MIB: u64 = 96;

fn stragglers(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for ssd in [Ssd::Closer, Ssd::Bridge] {
        let mut arrays = vec![(1, STRIPED), (FIVE, STRIPED), (FIVE, PARITIES)];
        if ssd == Ssd::Closer {
            arrays.extend([STRIPED, PARITIES].map(|kind| (FIVE, kind.agreed("in turn"))));
        }
        for (devices, kind) in arrays {
            let tail = tail(setup, ssd, devices, kind)?;
            let Kind { layout, collections } = kind;
            let mut line = vec![format!("{} x {devices}, {layout}, {collections}", ssd.name())];
            line.extend(tail.reads.iter().chain(&tail.writes).map(|us| format!("{us:.0}")));
            line.push(tail.collected.to_string());
            lines.push(line);
        }
    }
    Ok(Table::exhibit(
        "Half reads, half writes of 16 KiB of each member, four at a time, on full drives: us",
        &[
            "",
            "read 50 %",
            "90 %",
            "99 %",
            "99.9 %",
            "max",
            "write 50 %",
            "90 %",
            "99 %",
            "99.9 %",
            "max",
            "collected",
        ],
        lines,
        &[
            "free: each collects when it has to; in turn: one at a time begins early, the others when their \
             writes would wait",
            "both map by 4 KiB; a bridge-based SSD does not report when it collects: those are free here",
        ],
    ))
}
