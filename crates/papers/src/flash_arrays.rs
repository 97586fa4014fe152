//! Outlook of the flash paper (section 5): several such SSDs as an array, their use of host resources by
//! array size, and the tail latency through the slowest member.

use std::path::Path;

use workload::pattern::OpKind;
use workload::trace::Mapping;

use super::flash_closer::{SCALE, row, table};
use super::flash_ssds::{Load, Measured, Ssd, run, simulate};
use super::measure::Machine;
use super::{Claim, Exhibit};
use world::work::Work;
use world::{Options, RunError};

/// Size of the paper's array.
const FIVE: u32 = 5;
/// Array sizes for the host resource exhibit.
const GROWING: [u32; 5] = [1, 2, 3, FIVE, 8];
/// Bytes per chunk, a member's part of a full-stripe request.
const CHUNK: u32 = 16 << 10;
/// Blocks per chip for members that are overwritten several times: half as many as in the plans.
const BLOCKS: &str = "16";
/// Cost of a parity; sixteen lanes are above the switch.
const PARITY: &str = "{ parity = { value = \"80 ns\", source = \"assumed: 512 bytes read twice and written \
    once at 19.2 GB/s, DDR3-1333 in two channels\" } }";

/// Reason for which coordinated garbage collection does not shorten reads here.
const WAITED: &str = "a member that waits for its turn has less space left, of few superblocks: of \
    writes 99 % take longer. By plan small-flash with 64 blocks of each chip reads gain \
    (docs/flash-closer.md)";

/// Array level, and coordination of garbage collection.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    layout: &'static str,
    collections: &'static str,
}

const STRIPED: Kind = Kind { layout: "striped", collections: "free" };
const PARITIES: Kind = Kind { layout: "parity", collections: "free" };

impl Kind {
    fn agreed(self, collections: &'static str) -> Kind {
        Kind { collections, ..self }
    }

    /// Number of members with data in a stripe.
    fn data(self, devices: u32) -> u32 {
        devices - u32::from(self.layout == "parity")
    }
}

fn array(ssd: Ssd, devices: u32, kind: Kind) -> Machine {
    let Kind { layout, collections } = kind;
    let table = format!(
        "{{ devices = {devices}, layout = \"{layout}\", chunk = \"{CHUNK} B\", lanes = 16, \
         collections = \"{collections}\", costs = {PARITY} }}"
    );
    ssd.machine().with("array", &table).with("host.memory", "1 GiB")
}

pub(super) fn exhibits() -> Result<Vec<Exhibit>, RunError> {
    let mut exhibits = hosts()?;
    exhibits.extend(stragglers()?);
    Ok(exhibits)
}

/// Host memory and cores taken by arrays.
fn hosts() -> Result<Vec<Exhibit>, RunError> {
    let load = Load { amount: 6 << 20, ..Load::queued("randwrite", 512).by(4) };
    let mut lines = Vec::new();
    let mut of = |ssd: Ssd, devices, kind: Kind| -> Result<Measured, RunError> {
        let measured = run(ssd, &array(ssd, devices, kind), &load)?;
        lines.push(vec![
            format!("{} x {devices}, {}", ssd.name(), kind.layout),
            format!("{:.2}", measured.memory / f64::from(1 << 20)),
            format!("{:.1}", 100.0 * measured.cores),
            format!("{:.2}", measured.core_us),
            format!("{:.0}", measured.iops),
            format!("{:.0}", measured.us),
        ]);
        Ok(measured)
    };
    let mut memory = Vec::new();
    for ssd in [Ssd::Closer, Ssd::Bridge] {
        let grown = GROWING.iter().map(|devices| Ok(of(ssd, *devices, STRIPED)?.memory));
        memory.push(grown.collect::<Result<Vec<f64>, RunError>>()?);
        of(ssd, FIVE, PARITIES)?;
    }
    let [closer, bridge] = [&memory[0], &memory[1]];
    // Increase per member: callers' buffers are in all of them, and constant.
    let each = |memory: &[f64]| (memory[4] - memory[0]) / f64::from(GROWING[4] - GROWING[0]);
    let five = SCALE * f64::from(FIVE) * each(closer) / f64::from(1 << 30);
    let straight = (closer[3] - closer[0]) / (f64::from(FIVE - 1) * each(closer));
    Ok(vec![
        table(
            "Arrays: random writes of 512 B by four workers, 128 entries each, on new drives",
            &["", "memory MiB", "cores %", "core us", "IOPS", "us"],
            lines,
            &[
                "cores: of the time of all four; core us: for each write; a parity reads and writes for each \
                 write data and parity of it",
            ],
        ),
        row(
            "C12: host memory that five from-scratch SSDs take, by 1024 (section 5: approximately 50 GB)",
            "GiB",
            50.0,
            five,
            ("each member adds as much as the others", (straight - 1.0).abs() < 0.05),
        ),
        Exhibit::Claim(Claim {
            what: "C12: an array of bridge-based SSDs has its flash software to itself",
            shape: "a member adds less than a tenth of what a from-scratch SSD adds".into(),
            holds: each(bridge) < each(closer) / 10.0,
            number: "KiB that a bridge-based member adds",
            ours: each(bridge) / 1024.0,
            assumed: Vec::new(),
        }),
    ])
}

/// Latency of full-stripe requests: median, 99 %, 99.9 % and maximum, us.
struct Tail {
    reads: [f64; 4],
    writes: [f64; 4],
    collected: u64,
}

/// Full-stripe requests, half reads and half writes, on full members under garbage collection.
fn tail(ssd: Ssd, devices: u32, kind: Kind) -> Result<Tail, RunError> {
    // Requests of whole units: a finer map would place them equally.
    let machine = array(ssd, devices, kind).with("medium.flash.unit", "4 KiB");
    let plan = machine.with("medium.flash.blocks", BLOCKS).open()?;
    let data = kind.data(devices);
    let (bytes, of_each) = (CHUNK * data, u64::from(data) << 20);
    let job = format!(
        "[fill]\nrw=write\nbs={bytes}\niodepth=8\nsize=100%\n\n\
         [age]\nstonewall\nrw=randwrite\nbs={bytes}\niodepth=8\nsize=100%\nio_size={}\nnorandommap=1\n\n\
         [load]\nstonewall\nrw=randrw\nbs={bytes}\niodepth=4\nsize=100%\nio_size={}\nnorandommap=1\n",
        AGE_MIB * of_each,
        LOAD_MIB * of_each,
    );
    let work = Work::parse(Path::new("papers"), &job, Mapping::default()).map_err(RunError::of)?;
    let mut run_result = simulate(ssd, &plan, &work, Options::default())?;
    let software = run_result.flash.and_then(|stats| stats.software);
    let (_, measured) = run_result.jobs.pop().expect("the load is the last");
    if measured.errors() > 0 {
        return Err(RunError(measured.messages.join("; ")));
    }
    let of = |kind| {
        let total = &measured.stats.of(kind).total;
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |thousandths| us(total.percentile_ns(thousandths));
        [at(50_000), at(99_000), at(99_900), us(total.max_ns())]
    };
    Ok(Tail {
        reads: of(OpKind::Read),
        writes: of(OpKind::Write),
        collected: software.map_or(0, |software| software.counters.collected),
    })
}

/// MiB written to each member before the load, and transferred by the load.
const AGE_MIB: u64 = 48;
const LOAD_MIB: u64 = 96;

/// Tail latencies of one SSD's arrays, and their table lines.
fn tails(ssd: Ssd, lines: &mut Vec<Vec<String>>) -> Result<Vec<(u32, Kind, Tail)>, RunError> {
    let mut arrays = vec![(1, STRIPED), (FIVE, STRIPED), (FIVE, PARITIES)];
    if ssd == Ssd::Closer {
        arrays.extend([STRIPED, PARITIES].map(|kind| (FIVE, kind.agreed("in turn"))));
    }
    let one = |(devices, kind): (u32, Kind)| {
        let tail = tail(ssd, devices, kind)?;
        let mut line =
            vec![format!("{} x {devices}, {}, {}", ssd.name(), kind.layout, kind.collections)];
        line.extend(tail.reads.iter().chain(&tail.writes).map(|us| format!("{us:.0}")));
        line.push(tail.collected.to_string());
        lines.push(line);
        Ok((devices, kind, tail))
    };
    arrays.into_iter().map(one).collect()
}

fn stragglers() -> Result<Vec<Exhibit>, RunError> {
    let mut lines = Vec::new();
    let closer = tails(Ssd::Closer, &mut lines)?;
    let bridge = tails(Ssd::Bridge, &mut lines)?;
    let mut exhibits = vec![table(
        "Half reads, half writes of 16 KiB of each member, four at a time, on full drives: us",
        &[
            "",
            "read 50 %",
            "99 %",
            "99.9 %",
            "max",
            "write 50 %",
            "99 %",
            "99.9 %",
            "max",
            "collected",
        ],
        lines,
        &[
            "free: each collects when it has to; in turn: one at a time begins early, the others when their \
             writes would wait",
            "both map by 4 KiB; a bridge-based SSD does not report when it collects: those are free",
        ],
    )];
    let of = |all: &[(u32, Kind, Tail)], devices: u32, kind: Kind| {
        let found = all.iter().find(|(d, k, _)| (*d, *k) == (devices, kind));
        found.expect("just run").2.reads
    };
    for (what, all) in [
        ("C12: a straggler is likelier among five bridge-based SSDs (section 5)", &bridge),
        ("C12: a straggler is likelier among five from-scratch SSDs", &closer),
    ] {
        let (one, five) = (of(all, 1, STRIPED), of(all, FIVE, STRIPED));
        exhibits.push(Exhibit::Claim(Claim {
            what,
            shape: format!(
                "of reads 99 % take longer: {:.0} us by one, {:.0} by five",
                one[1], five[1]
            ),
            holds: five[1] > one[1],
            number: "99 % of reads, five over one",
            ours: five[1] / one[1],
            assumed: Vec::new(),
        }));
    }
    let turn = [STRIPED, PARITIES]
        .map(|kind| of(&closer, FIVE, kind.agreed("in turn"))[1] / of(&closer, FIVE, kind)[1]);
    let shorter = Exhibit::Claim(Claim {
        what: "C12: collections that are agreed on make reads shorter (section 5: manage them globally)",
        shape: format!("99 % of reads, in turn over free: {:.2} with a parity", turn[1]),
        holds: turn.iter().all(|ratio| *ratio < 1.0),
        number: "the same, striped",
        ours: turn[0],
        assumed: Vec::new(),
    });
    exhibits.push(Exhibit::Departure(Box::new(shorter), WAITED));
    Ok(exhibits)
}
