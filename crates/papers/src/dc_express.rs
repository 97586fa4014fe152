//! Vučinić et al., "DC Express" (FAST 2014): figure 4, table 5, figure 6 and the text around them.

use bus::link::Link;
use wire::dcx::command;

use super::measure::{Arrivals, Machine, Reads, reads, small_reads, writes as writes_of};
use super::{Exhibit, Row, Table, Validated};
use world::RunError;
use world::interfaces::{DCX, NVME};

/// Bytes per read in figure 4.
const SIZES: [u32; 7] = [64, 128, 256, 512, 1024, 2048, 4096];
/// A rate, in reads per second, so low that reads seldom overlap.
const SELDOM: Arrivals = Arrivals::Random(5_000);

type Shown = Result<Exhibit, RunError>;

pub(super) fn exhibits() -> Result<Vec<Exhibit>, RunError> {
    let user = Machine::of("dc-express");
    Ok(vec![
        figure_4(&user)?,
        small_block(&user)?,
        smallest(&user)?,
        transfer(&user)?,
        random_arrival(&user)?,
        polling_share(&user)?,
        table_5(&user)?,
        linux_nvme(&user)?,
        matrix(&user)?,
        removed(&user, 512)?,
        removed(&user, 4096)?,
        chipset(&user)?,
        writes(&user)?,
        figure_6(&user)?,
        sweet_spot(&user)?,
    ])
}

/// Formats with one decimal more than the paper.
fn us(value: f64) -> String {
    format!("{value:.3}")
}

fn looped(machine: &Machine, bytes: u32) -> Result<Reads, RunError> {
    reads(DCX, machine, bytes, Arrivals::Loop)
}

fn figure_4(user: &Machine) -> Shown {
    let mut lines = Vec::new();
    for bytes in SIZES {
        if bytes < 512 {
            let total = small_reads(user, bytes)?;
            let mut line = vec![bytes.to_string(), String::new(), String::new(), String::new()];
            line.extend([us(total), String::new(), format!("{:.0}", 1e6 / total)]);
            lines.push(line);
            continue;
        }
        let fixed = looped(user, bytes)?;
        let random = reads(DCX, user, bytes, SELDOM)?.total_us;
        let (media, transfer) = (fixed.part("media"), fixed.part("data transfer"));
        let protocol = fixed.total_us - media - transfer;
        let parts = [media, transfer, protocol, fixed.total_us, random].map(us);
        let mut line = vec![bytes.to_string()];
        line.extend(parts);
        line.push(format!("{:.0}", 1e6 / fixed.total_us));
        lines.push(line);
    }
    Ok(Exhibit::Table(Table {
        what: "Figure 4: reads at depth 1 from user space, us by bytes".into(),
        columns: ["bytes", "PCM read", "transfer", "protocol", "fixed", "random", "IOPS, fixed"]
            .map(String::from)
            .into(),
        lines,
        notes: vec![
            "fixed: in a tight loop, which the device anticipates; random: Poisson arrivals, 5,000 a \
             second"
                .into(),
        ],
    }))
}

fn small_block(user: &Machine) -> Shown {
    let number = |machine: &Machine| Ok(looped(machine, 512)?.total_us);
    let ours = looped(user, 512)?;
    Ok(Exhibit::Row(Row {
        what: "512 B in a tight loop from user space: 1.4 us, over 700,000 a second (section 4)",
        unit: "us",
        paper: 1.4,
        ours: ours.total_us,
        validated: Validated::Within(100),
        shape: "",
        assumed: user.swings(number)?,
        parts: ours.parts,
    }))
}

fn smallest(user: &Machine) -> Shown {
    let number = |machine: &Machine| small_reads(machine, 64);
    Ok(Exhibit::Row(Row {
        what: "64 B in a tight loop: \"just under a million reads per second\" (section 5)",
        unit: "us",
        paper: 1.0,
        ours: number(user)?,
        validated: Validated::Within(100),
        shape: "",
        parts: Vec::new(),
        assumed: Vec::new(),
    }))
}

fn transfer(user: &Machine) -> Shown {
    let number =
        |machine: &Machine| Ok(reads(NVME, machine, 4096, Arrivals::Loop)?.part("data transfer"));
    Ok(Exhibit::Row(Row {
        what: "Data transfer of 4 KiB on PCIe Gen2 x4, MPS 128 B (table 5)",
        unit: "us",
        paper: 2.432,
        ours: number(user)?,
        validated: Validated::Within(10),
        shape: "",
        parts: Vec::new(),
        assumed: user.swings(number)?,
    }))
}

/// Time of an entry from host memory to the device, and of a whole empty fetch, us.
fn fetch_us(machine: &Machine) -> Result<(f64, f64), RunError> {
    let plan = machine.open()?;
    let link = Link::new(plan.link.clone(), 0);
    let (at, bytes) = (plan.host.memory_base.0, command::BYTES as u32);
    let down = link.time_of(link.completions(at, bytes).wire_bytes) + plan.link.latency;
    let up = link.time_of(link.read_requests(at, bytes).wire_bytes) + plan.link.latency;
    Ok((down.as_us_f64(), (up + plan.link.host_read + down).as_us_f64()))
}

/// The wait for the next fetch, which random arrival adds. The paper gives no number: the comparison is with
/// continuous polling, where it is half the time of an empty fetch.
fn random_arrival(user: &Machine) -> Shown {
    let number = |machine: &Machine| {
        let pickup = reads(DCX, machine, 512, SELDOM)?.part("pickup");
        Ok(pickup - fetch_us(machine)?.0)
    };
    Ok(Exhibit::Row(Row {
        what: "512 B at random arrival: the wait for the next fetch, beside half the time of an empty \
               fetch (section 4)",
        unit: "us",
        paper: fetch_us(user)?.1 / 2.0,
        ours: number(user)?,
        validated: Validated::Within(100),
        shape: "",
        parts: Vec::new(),
        assumed: Vec::new(),
    }))
}

fn polling_share(user: &Machine) -> Shown {
    let number = |machine: &Machine| {
        // One command per fetch, fetches back to back, and almost never a command.
        let idle = machine.with("dcx.fetch_max", "1").with("dcx.anticipate", "false");
        let busy = reads(DCX, &idle, 512, Arrivals::Random(500))?.busy;
        Ok(100.0 * busy.up.0 as f64 / busy.of.0 as f64)
    };
    Ok(Exhibit::Row(Row {
        what: "Upstream bandwidth taken by polling, 64 B a fetch (section 4.1)",
        unit: "%",
        paper: 6.0,
        ours: number(user)?,
        validated: Validated::Below,
        shape: "",
        parts: Vec::new(),
        assumed: user.swings(number)?,
    }))
}

/// The block driver and read() of table 5, which poll as in the paper.
fn through_linux() -> Machine {
    Machine::of("dc-express-linux").with("host.completion", "polled")
}

fn table_5(user: &Machine) -> Shown {
    let (bare, whole) = (looped(user, 4096)?, looped(&through_linux(), 4096)?);
    let (transfer, media) = (bare.part("data transfer"), bare.part("media"));
    let protocol = bare.total_us - transfer - media;
    let rows = [
        ("data transfer (4 KiB)", 2.432, transfer),
        ("PCM read", 0.368, media),
        ("protocol + command parsing", 0.863, protocol),
        ("= user space", 3.663, bare.total_us),
        ("block driver", 0.99, whole.part("block driver")),
        ("read() call", 1.17, whole.part("system call")),
        ("fio", 0.506, whole.part("benchmark")),
        ("= fio on the block device", 6.329, whole.total_us),
    ];
    let lines = rows
        .iter()
        .map(|(what, paper, ours)| vec![(*what).into(), us(*paper), us(*ours), us(paper - ours)]);
    let mut lines: Vec<Vec<String>> = lines.collect();
    for (what, paper, ours) in
        [("kIOPS, user space", 273.0, bare.total_us), ("kIOPS, fio", 158.0, whole.total_us)]
    {
        let ours = 1e3 / ours;
        let cells = [paper, ours, paper - ours].map(|value| format!("{value:.1}"));
        lines.push(std::iter::once(what.to_owned()).chain(cells).collect());
    }
    Ok(Exhibit::Table(Table {
        what: "Table 5: 4 KiB random reads at depth 1, us".into(),
        columns: ["component", "paper", "ours", "unexplained"].map(String::from).into(),
        lines,
        notes: vec![
            "PCM read, protocol, block driver, read() and fio are the paper's own numbers, put in: no \
             check"
                .into(),
        ],
    }))
}

fn linux_nvme(user: &Machine) -> Shown {
    let linux = Machine::of("dc-express-linux");
    let number = |machine: &Machine| Ok(reads(NVME, machine, 4096, Arrivals::Loop)?.total_us);
    let polled = number(user)?;
    let ours = reads(NVME, &linux, 4096, Arrivals::Loop)?;
    let paper = 1e3 / 78.0;
    Ok(Exhibit::Row(Row {
        what: "4 KiB random reads at depth 1 through the Linux NVMe driver, 78 kIOPS (section 4)",
        unit: "us",
        paper,
        ours: ours.total_us,
        validated: Validated::Shape(ours.total_us > polled && ours.total_us <= paper),
        shape: "slower than NVMe polled from user space, and our sum of known costs stays below",
        assumed: linux.swings(number)?,
        parts: ours.parts,
    }))
}

/// Comparison with equal software above the driver and equal completion detection.
fn matrix(user: &Machine) -> Shown {
    let interrupt = user
        .with("host.completion", "interrupt")
        .with("host.costs.\"context switch\"", "\"550 ns\"");
    let ways = [
        ("user space, polled", user.clone()),
        ("user space, interrupt", interrupt),
        ("block driver and read(), polled", through_linux()),
        ("block driver and read(), interrupt", Machine::of("dc-express-linux")),
    ];
    let mut lines = Vec::new();
    for (way, machine) in &ways {
        for bytes in [512, 4096] {
            let nvme = reads(NVME, machine, bytes, Arrivals::Loop)?.total_us;
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
    Ok(Exhibit::Table(Table {
        what: "The same reads by NVMe and by DC Express, depth 1, us".into(),
        columns: ["way in", "bytes", "NVMe", "DC Express", "less", ""].map(String::from).into(),
        lines,
        notes: Vec::new(),
    }))
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
    Ok(Exhibit::Table(Table {
        what: format!("What is left out of a read of {bytes} B, polled from user space, us"),
        columns: ["stage", "NVMe", "DC Express", "less"].map(String::from).into(),
        lines,
        notes: vec![
            "stages that are alike are left out; the others' differences add up to the whole"
                .into(),
            "TLPs by read, with those of polling in between".into(),
        ],
    }))
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
    Ok(Exhibit::Table(Table {
        what: "Behind a chipset, about 2 us a round trip (section 4), us".into(),
        columns: ["interface", "bytes", "processor's lanes", "chipset's", "more", "round trips"]
            .map(String::from)
            .into(),
        lines,
        notes: Vec::new(),
    }))
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
    Ok(Exhibit::Table(Table {
        what: "Beyond the paper: writes through the polled queue, depth 1, us".into(),
        columns: ["medium", "bytes", "NVMe", "polled queue", "less", ""].map(String::from).into(),
        lines,
        notes: Vec::new(),
    }))
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

fn energy(user: &Machine, idle: f64, core: f64) -> Result<Vec<Energy>, RunError> {
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
            let poll = plan.host.poll.0 * u64::from(CLOCK_MAX) / u64::from(mhz);
            slower = slower.with("host.poll", &format!("\"{poll} ps\""));
            let us = looped(&slower, 512)?.total_us;
            let clock = f64::from(mhz) / f64::from(CLOCK_MAX);
            let watt = idle * (1.0 + POLLING) + core * clock.powi(3);
            Ok(Energy { mhz, us, watt, microjoule: watt * us })
        })
        .collect()
}

fn figure_6(user: &Machine) -> Shown {
    let points = energy(user, IDLE_W, CORE_W)?;
    let line = |point: &Energy| {
        vec![
            format!("{:.1} GHz", f64::from(point.mhz) / 1e3),
            us(point.us),
            format!("{:.1}", point.watt),
            format!("{:.1}", point.microjoule),
        ]
    };
    Ok(Exhibit::Table(Table {
        what: "Figure 6: 512 B reads and the server's power by the clock of the polling core"
            .into(),
        columns: ["clock", "us", "W", "uJ a read"].map(String::from).into(),
        lines: points.iter().map(line).collect(),
        notes: vec![
            format!(
                "assumed: {IDLE_W} W idle; {CORE_W} W for the core at 3.8 GHz, by the cube of its clock"
            ),
            "from the paper: polling adds 6 % of idle power; a device that sleeps adds none".into(),
        ],
    }))
}

fn sweet_spot(user: &Machine) -> Shown {
    let best = |idle, core| -> Result<f64, RunError> {
        let points = energy(user, idle, core)?;
        let least = points.iter().min_by(|a, b| a.microjoule.total_cmp(&b.microjoule));
        Ok(f64::from(least.expect("some clocks").mhz) / 1e3)
    };
    let ours = best(IDLE_W, CORE_W)?;
    let inside = ours > 1.2 && ours < 3.8;
    Ok(Exhibit::Row(Row {
        what: "The clock at which a read takes the least energy (figure 6)",
        unit: "GHz",
        paper: 2.0,
        ours,
        validated: Validated::Shape(inside),
        shape: "the least energy a read lies at neither end of the range",
        parts: Vec::new(),
        assumed: vec![
            (
                "power of the idle server".into(),
                best(IDLE_W / 2.0, CORE_W)?,
                best(IDLE_W * 1.5, CORE_W)?,
            ),
            ("power of the core".into(), best(IDLE_W, CORE_W / 2.0)?, best(IDLE_W, CORE_W * 1.5)?),
        ],
    }))
}
