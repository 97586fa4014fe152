//! Tables and figures of the DC Express exhibits.

use super::ExhibitError;
use super::dc_express::SELDOM;
use super::dcx_kernel;
use super::dcx_ways::{looped, nvme_through_linux, through_linux};
use super::measure::{Arrivals, Machine, reads, small_reads, writes as writes_of};
use super::setup::Setup;
use report::model::paper::{Axis, Exhibit, Figure, Series, Table};
use world::interfaces::{DCX, NVME};

/// Bytes per read in figure 4.
const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

type Shown = Result<Exhibit, ExhibitError>;

pub(super) fn all(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let user = &setup.machine("dc-express");
    let mut exhibits = figure_4(user)?;
    exhibits.extend([
        dcx_kernel::table_5(setup)?,
        matrix(setup, user)?,
        removed(user, 512)?,
        removed(user, 4096)?,
        chipset(user)?,
        writes(user)?,
        figure_6(user)?,
        asymptote(user)?,
    ]);
    Ok(exhibits)
}

/// Formats with one decimal more than the paper.
fn us(value: f64) -> String {
    format!("{value:.3}")
}

fn figure_4(user: &Machine) -> Result<Vec<Exhibit>, ExhibitError> {
    let mut lines = Vec::new();
    let mut curves: [Vec<(f64, f64)>; 4] = Default::default();
    for bytes in SIZES {
        let x = f64::from(bytes);
        if bytes < 512 {
            let total = small_reads(user, bytes)?;
            curves[0].push((x, total));
            let mut line = vec![bytes.to_string(), String::new(), String::new(), String::new()];
            line.extend([us(total), String::new(), format!("{:.0}", 1e6 / total)]);
            lines.push(line);
            continue;
        }
        let fixed = looped(user, bytes)?;
        let random = reads(DCX, user, bytes, SELDOM)?.total_us;
        let (media, transfer) = (fixed.part("media"), fixed.part("data transfer"));
        let protocol = fixed.total_us - media - transfer;
        for (curve, y) in curves.iter_mut().zip([fixed.total_us, random, media, media + transfer]) {
            curve.push((x, y));
        }
        let mut line = vec![bytes.to_string()];
        line.extend([media, transfer, protocol, fixed.total_us, random].map(us));
        line.push(format!("{:.0}", 1e6 / fixed.total_us));
        lines.push(line);
    }
    let [fixed, random, media, both] = curves;
    let columns = ["bytes", "PCM read", "transfer", "protocol", "fixed", "random", "IOPS, fixed"];
    Ok(vec![
        Table::exhibit(
            "Figure 4: reads at depth 1 from user space, us by bytes",
            &columns,
            lines,
            &[
                "fixed: in a tight loop, which the device anticipates; random: Poisson arrivals, 5,000 \
                a second",
            ],
        ),
        Figure::exhibit(
            "Figure 4",
            "Figure 4: reads at depth 1 from user space",
            (Axis::logarithmic("bytes", "B"), Axis::linear("latency", "us")),
            vec![
                Series::ours('f', "in a tight loop", fixed),
                Series::ours('r', "at random arrival", random),
                Series::ours('m', "PCM read", media),
                Series::ours('t', "PCM read and transfer", both),
                Series::paper(
                    'P',
                    "in a tight loop, as far as its text has numbers (section 4, table 5)",
                    vec![(512.0, 1.4), (4096.0, 2.432 + 0.368 + 0.863)],
                ),
            ],
        ),
    ])
}

/// Comparison with equal software above the driver and equal completion detection.
fn matrix(setup: &Setup, user: &Machine) -> Shown {
    let interrupt = user
        .with("host.completion", "interrupt")
        .with("host.costs.\"context switch\"", "\"550 ns\"");
    let ways = [
        ("user space, polled", user.clone()),
        ("user space, interrupt", interrupt),
        ("block driver and read(), polled", through_linux(setup)),
        ("block driver and read(), interrupt", setup.machine("dc-express-linux")),
    ];
    // The Linux driver of NVMe copies nothing.
    let polled = nvme_through_linux(setup).with("host.completion", "polled");
    let by_nvme = [None, None, Some(polled), Some(nvme_through_linux(setup))];
    let mut lines = Vec::new();
    for ((way, machine), by_nvme) in ways.iter().zip(&by_nvme) {
        for bytes in [512, 4096] {
            let nvme = by_nvme.as_ref().unwrap_or(machine);
            let nvme = reads(NVME, nvme, bytes, Arrivals::Loop)?.total_us;
            let dcx = looped(machine, bytes)?.total_us;
            let gain = format!("{:.1} %", 100.0 * (nvme - dcx) / nvme);
            lines.push(vec![
                (*way).into(),
                bytes.to_string(),
                us(nvme),
                us(dcx),
                us(nvme - dcx),
                gain,
            ]);
        }
    }
    Ok(Table::exhibit(
        "The same reads by NVMe and by DC Express, depth 1, us",
        &["way in", "bytes", "NVMe", "DC Express", "less", ""],
        lines,
        &[],
    ))
}

/// Difference of two reads, stage by stage, and in packets.
fn removed(user: &Machine, bytes: u32) -> Shown {
    let nvme = reads(NVME, user, bytes, Arrivals::Loop)?;
    let dcx = looped(user, bytes)?;
    let mut lines = Vec::new();
    for stage in DCX.stages {
        let (one, other) = (nvme.part(stage), dcx.part(stage));
        if one != other {
            lines.push(vec![(*stage).into(), us(one), us(other), us(one - other)]);
        }
    }
    let (one, other) = (nvme.total_us, dcx.total_us);
    lines.push(vec!["in all".into(), us(one), us(other), us(one - other)]);
    let (up, down) = (nvme.tlps().0 - dcx.tlps().0, nvme.tlps().1 - dcx.tlps().1);
    for (what, one, other, less) in [
        ("TLPs up", nvme.tlps().0, dcx.tlps().0, up),
        ("TLPs down", nvme.tlps().1, dcx.tlps().1, down),
    ] {
        let cells = [one, other, less].map(|value| format!("{value:.2}"));
        lines.push(std::iter::once(what.to_owned()).chain(cells).collect());
    }
    Ok(Table::exhibit(
        &format!("What is left out of a read of {bytes} B, polled from user space, us"),
        &["stage", "NVMe", "DC Express", "less"],
        lines,
        &[
            "stages that are alike are left out; the others' differences add up to the whole",
            "TLPs by read, with those of polling in between",
        ],
    ))
}

fn chipset(user: &Machine) -> Shown {
    let hop = "[{ name = \"Z77\", latency = { value = \"1 us\", source = \"section 4\" } }]";
    let behind = user.with("link.hops", hop);
    let mut lines = Vec::new();
    for bytes in [512, 4096] {
        let nvme = [user, &behind].map(|m| reads(NVME, m, bytes, Arrivals::Loop));
        let dcx = [user, &behind].map(|m| looped(m, bytes));
        for (name, pair) in [("NVMe", nvme), ("DC Express", dcx)] {
            let [direct, behind] = pair;
            let (direct, behind) = (direct?.total_us, behind?.total_us);
            let added = behind - direct;
            let trips = format!("{:.2}", added / 2.0);
            lines.push(vec![
                name.into(),
                bytes.to_string(),
                us(direct),
                us(behind),
                us(added),
                trips,
            ]);
        }
    }
    Ok(Table::exhibit(
        "Behind a chipset, about 2 us a round trip (section 4), us",
        &["interface", "bytes", "processor's lanes", "chipset's", "more", "round trips"],
        lines,
        &[],
    ))
}

/// Beyond the paper, which does not change writes: with writes 55 times slower than reads there is nothing to
/// gain.
fn writes(user: &Machine) -> Shown {
    let polled = user.with("dcx.writes", "polled");
    let mut lines = Vec::new();
    for (medium, factor) in [("PCM, 55 times a read", "55"), ("as fast as reads", "1")] {
        for bytes in [512, 4096] {
            let set = |machine: &Machine| machine.with("medium.timing.write_factor", factor);
            let nvme = writes_of(NVME, &set(user), bytes)?.total_us;
            let ours = writes_of(DCX, &set(&polled), bytes)?.total_us;
            lines.push(vec![
                medium.into(),
                bytes.to_string(),
                us(nvme),
                us(ours),
                us(nvme - ours),
                format!("{:.1} %", 100.0 * (nvme - ours) / nvme),
            ]);
        }
    }
    Ok(Table::exhibit(
        "Beyond the paper: writes through the polled queue, depth 1, us",
        &["medium", "bytes", "NVMe", "polled queue", "less", ""],
        lines,
        &[],
    ))
}

/// Clock frequencies of figure 6, MHz.
const CLOCKS: [u32; 9] = [1200, 1600, 1800, 2000, 2200, 2400, 2800, 3300, 3800];
/// Clock frequency at which the plan's host costs were measured, MHz: the processor's maximum (section 4).
const CLOCK_MAX: u32 = 3800;
/// Idle power of the server, W: assumed; the paper's figure has no number in its text.
const IDLE_W: f64 = 100.0;
/// Power of one core at its highest clock, W: assumed, as is its cubic dependence on the clock.
const CORE_W: f64 = 30.0;
/// Increase over idle power through polling by the device (section 4.1).
const POLLING: f64 = 0.06;

struct Energy {
    mhz: u32,
    us: f64,
    watt: f64,
    microjoule: f64,
}

fn energy(user: &Machine) -> Result<Vec<Energy>, ExhibitError> {
    CLOCKS
        .iter()
        .map(|&mhz| {
            let mut slower = user.clone();
            let plan = user.open()?;
            let costs = plan.host.costs.iter().map(|cost| (cost.name, cost.span));
            for (name, span) in costs {
                let ps = span.0 * u64::from(CLOCK_MAX) / u64::from(mhz);
                slower = slower.with(&format!("host.costs.\"{name}\""), &format!("\"{} ps\"", ps));
            }
            let mark = plan.required_section::<plan::Dcx>().mark.0;
            let mark = mark * u64::from(CLOCK_MAX) / u64::from(mhz);
            slower = slower.with("dcx.mark", &format!("\"{mark} ps\""));
            let poll = plan.host.poll.0 * u64::from(CLOCK_MAX) / u64::from(mhz);
            slower = slower.with("host.poll", &format!("\"{poll} ps\""));
            let us = looped(&slower, 512)?.total_us;
            let clock = f64::from(mhz) / f64::from(CLOCK_MAX);
            let watt = IDLE_W * (1.0 + POLLING) + CORE_W * clock.powi(3);
            Ok(Energy { mhz, us, watt, microjoule: watt * us })
        })
        .collect()
}

fn figure_6(user: &Machine) -> Shown {
    let points = energy(user)?;
    let line = |point: &Energy| {
        vec![
            format!("{:.1} GHz", f64::from(point.mhz) / 1e3),
            us(point.us),
            format!("{:.1}", point.watt),
            format!("{:.1}", point.microjoule),
        ]
    };
    Ok(Table::exhibit(
        "Figure 6: 512 B reads and the server's power by the clock of the polling core",
        &["clock", "us", "W", "uJ a read"],
        points.iter().map(line).collect(),
        &[
            &format!(
                "assumed: {IDLE_W} W idle; {CORE_W} W for the core at 3.8 GHz, by the cube of its clock"
            ),
            "from the paper: polling adds 6 % of idle power; a device that sleeps adds none",
        ],
    ))
}

/// Section 5: more lanes, or more bandwidth of each, approach the limit of bus and protocol latency.
fn asymptote(user: &Machine) -> Shown {
    let mut series = Vec::new();
    for (letter, generation, lanes) in
        [('4', "gen2", "4"), ('8', "gen2", "8"), ('s', "gen3", "16"), ('g', "gen5", "16")]
    {
        let machine = user.with("link.generation", generation).with("link.lanes", lanes);
        // The medium keeps up, as in the paper.
        let machine = machine.with("medium.timing.bandwidth", "64 GB/s");
        let total = |bytes: u32| match bytes {
            ..512 => small_reads(&machine, bytes),
            _ => Ok(looped(&machine, bytes)?.total_us),
        };
        let points = SIZES.iter().map(|bytes| Ok((f64::from(*bytes), total(*bytes)?)));
        let points = points.collect::<Result<Vec<_>, ExhibitError>>()?;
        series.push(Series::ours(letter, format!("{generation} x{lanes}"), points));
    }
    Ok(Figure::exhibit(
        "",
        "More lanes and bandwidth, in a tight loop (section 5)",
        (Axis::logarithmic("bytes", "B"), Axis::linear("latency", "us")),
        series,
    ))
}
