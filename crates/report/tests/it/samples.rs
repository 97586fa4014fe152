//! Documents made by rule: the same on every call, with the shapes that real ones have.

use std::collections::BTreeMap;

use report::model::*;

/// A generator of numbers, so that the documents need no other crate.
pub struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// From 0 to 1.
    fn part(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 31) as f64
    }
}

/// A kind of operation: its stages with their mean times in nanoseconds, and how its latency varies.
struct Shape {
    stages: &'static [(&'static str, f64, &'static str)],
    /// Standard deviation of the latency, as a share.
    jitter: f64,
    /// Share of the operations that wait, and for how long.
    tail: (f64, f64),
}

const NVME: Shape = Shape {
    stages: &[
        ("system call", 1170.0, "host"),
        ("block driver", 990.0, "host"),
        ("submit", 150.0, "host"),
        ("doorbell", 162.0, "link down"),
        ("fetch", 604.0, "link up"),
        ("parse", 298.0, "device"),
        ("media", 368.0, "medium"),
        ("link wait", 41.0, "link up"),
        ("data transfer", 2432.0, "link up"),
        ("post completion", 32.0, "link up"),
        ("completion", 170.0, "link up"),
        ("interrupt", 1400.0, "host"),
        ("context switch", 4300.0, "host"),
        ("complete", 250.0, "host"),
    ],
    jitter: 0.04,
    tail: (0.004, 9000.0),
};

const DCX: Shape = Shape {
    stages: &[
        ("submit", 50.0, "host"),
        ("pickup", 320.0, "link up"),
        ("parse", 298.0, "device"),
        ("media", 368.0, "medium"),
        ("data transfer", 2432.0, "link up"),
        ("arrival", 150.0, "link up"),
        ("poll", 45.0, "host"),
        ("complete", 50.0, "host"),
    ],
    jitter: 0.02,
    tail: (0.0004, 700.0),
};

const FASTPATH: Shape = Shape {
    stages: &[
        ("submit", 90.0, "host"),
        ("dispatch", 120.0, "device"),
        ("doorbell", 162.0, "link down"),
        ("fetch", 604.0, "link up"),
        ("parse", 298.0, "device"),
        ("media", 368.0, "medium"),
        ("data transfer", 2432.0, "link up"),
        ("post completion", 32.0, "link up"),
        ("completion", 170.0, "link up"),
        ("poll", 60.0, "host"),
    ],
    jitter: 0.03,
    tail: (0.001, 2500.0),
};

const BLOCK: Shape = Shape {
    stages: &[
        ("submit", 110.0, "host"),
        ("announce", 190.0, "link down"),
        ("take block", 1900.0, "device"),
        ("dma start", 420.0, "device"),
        ("media", 368.0, "medium"),
        ("data transfer", 2432.0, "link up"),
        ("return", 1250.0, "link up"),
        ("interrupt", 1400.0, "host"),
        ("complete", 300.0, "host"),
    ],
    jitter: 0.05,
    tail: (0.002, 5200.0),
};

const FLASH_READ: Shape = Shape {
    stages: &[
        ("submit", 50.0, "host"),
        ("doorbell", 162.0, "link down"),
        ("fetch", 604.0, "link up"),
        ("parse", 298.0, "device"),
        ("map read", 900.0, "device"),
        ("die wait", 21_000.0, "device"),
        ("collector at die", 34_000.0, "device"),
        ("die", 58_000.0, "die 3"),
        ("channel wait", 1900.0, "device"),
        ("channel", 5400.0, "die 3"),
        ("data transfer", 2432.0, "link up"),
        ("completion", 170.0, "link up"),
        ("poll", 60.0, "host"),
    ],
    jitter: 0.35,
    tail: (0.03, 1_900_000.0),
};

const FLASH_WRITE: Shape = Shape {
    stages: &[
        ("submit", 50.0, "host"),
        ("doorbell", 162.0, "link down"),
        ("fetch", 604.0, "link up"),
        ("parse", 298.0, "device"),
        ("host read", 1700.0, "link down"),
        ("buffer wait", 9000.0, "device"),
        ("collector at buffer", 41_000.0, "device"),
        ("completion", 170.0, "link up"),
        ("poll", 60.0, "host"),
    ],
    jitter: 0.5,
    tail: (0.05, 2_600_000.0),
};

impl Shape {
    fn mean_ns(&self) -> f64 {
        self.stages.iter().map(|stage| stage.1).sum()
    }

    fn latency_ns(&self, random: &mut Random) -> f64 {
        // The sum of six is bell-shaped enough.
        let bell: f64 = (0..6).map(|_| random.part()).sum::<f64>() / 3.0 - 1.0;
        let mut ns = self.mean_ns() * (1.0 + self.jitter * 2.4 * bell);
        if random.part() < self.tail.0 {
            ns += self.tail.1 * (0.2 - random.part().max(1e-4).ln() * 0.5);
        }
        ns.max(self.mean_ns() * 0.3)
    }

    /// Stages of an operation of this latency: waits grow, the others stay.
    fn shares(&self, total_ns: f64) -> Shares {
        let waits = |name: &str| {
            name.contains("wait") || name.contains("collector") || name == "context switch"
        };
        let fixed: f64 =
            self.stages.iter().filter(|stage| !waits(stage.0)).map(|stage| stage.1).sum();
        let waiting: f64 =
            self.stages.iter().filter(|stage| waits(stage.0)).map(|stage| stage.1).sum();
        let unexplained_ns = total_ns * 0.013;
        let left = total_ns - unexplained_ns - fixed;
        let scale = |name: &str| match waits(name) {
            true if left > 0.0 => left / waiting,
            true => 0.0,
            false if left > 0.0 && waiting > 0.0 => 1.0,
            false => (total_ns - unexplained_ns) / fixed,
        };
        let stages_ns = self.stages.iter().map(|(name, ns, _)| ns * scale(name)).collect();
        Shares { total_ns, stages_ns, unexplained_ns }
    }
}

/// The upper bound of the bin of a latency: a thousandth wide.
fn bound(ns: f64) -> u64 {
    let step = 10f64.powf((ns.log10() - 3.0).floor().max(0.0)).round();
    ((ns / step).ceil() * step) as u64
}

fn histogram(latencies: &[f64]) -> Histogram {
    let mut bins = BTreeMap::new();
    for ns in latencies {
        *bins.entry(bound(*ns)).or_insert(0) += 1;
    }
    let count = latencies.len() as f64;
    let mean_ns = latencies.iter().sum::<f64>() / count;
    let variance = latencies.iter().map(|ns| (ns - mean_ns).powi(2)).sum::<f64>() / count;
    let mut histogram = Histogram {
        count: latencies.len() as u64,
        min_ns: latencies.iter().copied().fold(f64::INFINITY, f64::min) as u64,
        max_ns: latencies.iter().copied().fold(0.0, f64::max) as u64,
        mean_ns,
        stddev_ns: variance.sqrt(),
        percentiles: Vec::new(),
        bins: bins.into_iter().map(|(bound, count)| Bin(bound, count)).collect(),
    };
    let quantiles = [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999];
    histogram.percentiles =
        quantiles.map(|quantile| Percentile { quantile, ns: histogram.at(quantile) }).into();
    histogram
}

fn breakdown(shape: &Shape, latency: &Histogram, sampled_one_in: u32) -> Breakdown {
    let around = |quantile: f64| {
        let ns = latency.at(quantile);
        Around {
            quantile,
            from_ps: ns * 992,
            to_ps: ns * 1008,
            count: (latency.count / 400 / u64::from(sampled_one_in)).max(1),
            shares: shape.shares(ns as f64),
        }
    };
    Breakdown {
        traced: latency.count / u64::from(sampled_one_in),
        sampled_one_in,
        stages: shape.stages.iter().map(|stage| stage.0.to_owned()).collect(),
        mean: shape.shares(latency.mean_ns),
        at: [0.5, 0.99, 0.999].map(around).into(),
    }
}

/// Operations of one kind with `depth` in flight, and the time that they take.
fn operations(
    shape: &Shape,
    count: usize,
    bytes: u64,
    depth: u64,
    random: &mut Random,
) -> (Operations, u64) {
    let latencies: Vec<f64> = (0..count).map(|_| shape.latency_ns(random)).collect();
    let measured_ps = (latencies.iter().sum::<f64>() * 1e3) as u64 / depth;
    let width_ps = measured_ps / 60;
    let mut windows = vec![Window::default(); 61];
    let mut at_ps = 0.0;
    for ns in &latencies {
        at_ps += ns * 1e3 / depth as f64;
        let window = &mut windows[((at_ps / width_ps as f64) as usize).min(60)];
        window.count += 1;
        window.bytes += bytes;
        window.latency_sum_ps += (ns * 1e3) as u64;
        window.latency_max_ps = window.latency_max_ps.max((ns * 1e3) as u64);
    }
    let latency = histogram(&latencies);
    let (count, seconds) = (count as u64, measured_ps as f64 / 1e12);
    let operations = Operations {
        count,
        bytes: count * bytes,
        errors: 0,
        iops: count as f64 / seconds,
        bytes_per_second: (count * bytes) as f64 / seconds,
        breakdown: Some(breakdown(shape, &latency, 1)),
        submission: None,
        completion: None,
        latency,
        windows: Windows { width_ps, windows },
    };
    (operations, measured_ps)
}

fn job(name: &str, operations: BTreeMap<Kind, Operations>, measured_ps: u64) -> Job {
    let setting = |key: &str, value: &str| Setting { key: key.into(), value: value.into() };
    Job {
        name: name.into(),
        group: 0,
        after_previous: false,
        description: String::new(),
        options: vec![setting("rw", "randread"), setting("bs", "4k"), setting("iodepth", "4")],
        errors: 0,
        messages: Vec::new(),
        measured_ps,
        elapsed_ps: measured_ps + 1_000_000,
        blocks_verified: 0,
        operations,
        depth: vec![
            Level { level: "1".into(), percent: 0.1 },
            Level { level: "2".into(), percent: 0.2 },
            Level { level: "4".into(), percent: 99.7 },
        ],
        submitted: Vec::new(),
        completed: Vec::new(),
    }
}

fn plan(name: &str) -> Plan {
    let sourced = |key: &str, value: &str, source: &str, assumed| Sourced {
        key: key.into(),
        value: value.into(),
        source: source.into(),
        assumed,
    };
    Plan {
        name: name.into(),
        about: "PCM behind PCIe Gen2 x4, as in \"DC Express\" (FAST 2014)".into(),
        origin: format!("plans/{name}.toml"),
        seed: 1,
        text: format!(
            "name = \"{name}\"\n\n[link]\ngeneration = 2\nlanes = 4 # <script>alert(1)</script>\n"
        ),
        sets: vec![Setting { key: "host.completion".into(), value: "polled".into() }],
        sources: vec![
            sourced(
                "link.latency",
                "150 ns",
                "Neugebauer et al., \"Understanding PCIe performance\"",
                false,
            ),
            sourced("medium.timing.first_byte", "110 ns", "Vucinic et al., section 3", false),
            sourced("device.costs.parse", "298 ns", "assumed", true),
            sourced(
                "host.costs.interrupt",
                "1400 ns",
                "assumed: between two published numbers",
                true,
            ),
        ],
    }
}

/// Commands of the timeline, `depth` of them in flight.
fn timeline(shape: &Shape, depth: u64, random: &mut Random) -> Vec<Request> {
    let request = |number: u64, random: &mut Random| {
        let begun_ps = 1_000_000 + number * (shape.mean_ns() * 1e3) as u64 / depth;
        let total = shape.latency_ns(random);
        let shares = shape.shares(total);
        let mut at_ps = begun_ps;
        let spans = shape.stages.iter().zip(&shares.stages_ns).map(|((stage, _, lane), ns)| {
            let from_ps = at_ps;
            at_ps += (ns * 1e3) as u64;
            let lane = match *lane {
                "die 3" => format!("die {}", number * 5 % 4),
                lane => lane.to_owned(),
            };
            StageSpan { stage: (*stage).into(), lane, from_ps, to_ps: at_ps }
        });
        Request {
            queue: 1,
            request: number as u32,
            kind: Kind::Read,
            begun_ps,
            offset_bytes: Some(4096 * random.next() % (1 << 30)),
            bytes: Some(4096),
            spans: spans.collect(),
        }
    };
    (0..24).map(|number| request(number, random)).collect()
}

fn link(operations: u64, of_ps: u64) -> Link {
    let direction = |share: u64, kinds: &[(&str, u64, u64, u64)]| Direction {
        busy_ps: of_ps / 100 * share,
        tlps: kinds.iter().filter(|kind| kind.0 != "DLLP").map(|kind| kind.1 * operations).sum(),
        packets: kinds
            .iter()
            .map(|(kind, count, bytes, payload_bytes)| Packets {
                kind: (*kind).into(),
                count: count * operations,
                bytes: bytes * operations,
                payload_bytes: payload_bytes * operations,
            })
            .collect(),
    };
    Link {
        of_ps,
        up: direction(
            62,
            &[
                ("memory write", 33, 4904, 4112),
                ("memory read request", 1, 24, 0),
                ("DLLP", 4, 32, 0),
            ],
        ),
        down: direction(
            9,
            &[
                ("memory write", 1, 24, 4),
                ("completion with data", 1, 84, 64),
                ("DLLP", 20, 160, 0),
            ],
        ),
    }
}

struct Made<'a> {
    interface: &'a str,
    world: World,
    shape: &'a Shape,
    count: usize,
    depth: u64,
}

fn run(made: &Made<'_>, random: &mut Random) -> Run {
    let (read, measured_ps) = operations(made.shape, made.count, 4096, made.depth, random);
    let simulated = made.world == World::Simulated;
    let of_ps = measured_ps + 90_000_000;
    let core = Core { busy_ps: of_ps / 100 * 31, polling_ps: of_ps / 100 * 64 };
    Run {
        world: made.world,
        device: if simulated { Device::Modelled } else { Device::Thread },
        interface: made.interface.into(),
        plan: plan("dc-express"),
        work: Work {
            file: "jobs/randread-4k.fio".into(),
            text: "[randread-4k]\nrw=randread\nbs=4k\niodepth=4\nnumber_ios=40000\n".into(),
            globals: Vec::new(),
            settings: Vec::new(),
            variables: Vec::new(),
            recordings: Vec::new(),
            mapping: Mapping::Concatenate,
            notes: Vec::new(),
        },
        resets: Resets::default(),
        threads: 1,
        notes: Vec::new(),
        warnings: Vec::new(),
        jobs: vec![job("randread-4k", BTreeMap::from([(Kind::Read, read)]), measured_ps)],
        link: simulated.then(|| link(made.count as u64, of_ps)),
        cores: simulated.then(|| Cores {
            of_ps,
            each: vec![core, Core { busy_ps: of_ps / 50, polling_ps: 0 }],
        }),
        host_thread_ps: (!simulated).then_some(measured_ps),
        flash: None,
        faults: Vec::new(),
        energy: None,
        series: None,
        timeline: timeline(made.shape, made.depth, random),
        recorded: None,
        timed_events: simulated.then_some(13 * made.count as u64),
        log: simulated.then(|| EventLog { lines: 400_000, digest: "91f0c2aa54b7d1e3".into() }),
    }
}

fn document(name: &str, arguments: &[&str]) -> Document {
    Document {
        schema: SCHEMA.into(),
        schema_version: SCHEMA_VERSION,
        program: Program { name: "doorbell".into(), version: "0.1.0".into() },
        command: Command {
            name: name.into(),
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
        },
        machine: None,
        unix_ms: 0,
        warnings: Vec::new(),
        runs: Vec::new(),
        plans: Vec::new(),
        papers: Vec::new(),
        conformance: Vec::new(),
        diskhog: Vec::new(),
        bench: None,
        calibration: None,
    }
}

fn warning(kind: WarningKind, text: &str) -> Warning {
    Warning { kind, text: text.into() }
}

/// `run` in both worlds.
pub fn both_worlds() -> Document {
    let mut document = document(
        "run",
        &["jobs/randread-4k.fio", "--plan", "dc-express", "--html", "my page.html"],
    );
    let mut random = Random(11);
    for world in [World::Live, World::Simulated] {
        let shape = if world == World::Live { &FASTPATH } else { &NVME };
        let made = Made { interface: "nvme", world, shape, count: 16_000, depth: 4 };
        document.runs.push(run(&made, &mut random));
    }
    document.machine = Some(Machine {
        system: "Linux 6.1.0 x86_64".into(),
        processor: "A processor with a name, 2.60 GHz".into(),
        cores: 2,
        memory_bytes: 24 << 30,
    });
    document.unix_ms = 1_764_041_216_000;
    document.runs[0].warnings = vec![
        warning(
            WarningKind::DisturbedCores,
            "the host's thread had its core for 61 % of the time: rates are too low",
        ),
        warning(
            WarningKind::SampledBreakdown,
            "1 command in 64 was traced: the breakdown's mean is 21 us, that of all 87 us",
        ),
    ];
    if let Some(breakdown) = document.runs[0].jobs[0]
        .operations
        .get_mut(&Kind::Read)
        .and_then(|of| of.breakdown.as_mut())
    {
        breakdown.sampled_one_in = 64;
        breakdown.traced /= 64;
    }
    document
}

/// `compare` of four interfaces.
pub fn comparison() -> Document {
    let mut document = document("compare", &["jobs/randread-4k.fio", "--plan", "dc-express"]);
    let mut random = Random(12);
    for (interface, shape) in
        [("nvme", &NVME), ("dcx", &DCX), ("fastpath", &FASTPATH), ("block", &BLOCK)]
    {
        let made = Made { interface, world: World::Simulated, shape, count: 12_000, depth: 1 };
        document.runs.push(run(&made, &mut random));
    }
    document
}

/// A flash drive that falls off its write cliff, with a time series.
pub fn flash() -> Document {
    let mut document = document(
        "run",
        &["jobs/overwrite.fio", "--plan", "tlc", "--world", "sim", "--series", "100ms"],
    );
    let mut random = Random(13);
    let made = Made {
        interface: "nvme",
        world: World::Simulated,
        shape: &FLASH_READ,
        count: 12_000,
        depth: 16,
    };
    let mut run = run(&made, &mut random);
    let (write, _) = operations(&FLASH_WRITE, 12_000, 16_384, 16, &mut random);
    run.jobs[0].operations.insert(Kind::Write, write);
    run.jobs[0].name = "overwrite".into();
    run.plan = plan("tlc");
    run.work.file = "jobs/overwrite.fio".into();
    let interval_ps = 100_000_000_000;
    let points = (0..90).map(|number| {
        let cliff = if number < 41 { 1.0 } else { 0.22 + 0.05 * random.part() };
        let window = |rate: f64, latency_ns: f64, bytes: u64| {
            let count = (rate * cliff) as u64;
            Window {
                count,
                bytes: count * bytes,
                latency_sum_ps: (count as f64 * latency_ns / cliff * 1e3) as u64,
                latency_max_ps: (latency_ns / cliff * 1e3 * 22.0) as u64,
            }
        };
        let host_units = (5200.0 * cliff) as u64;
        Point {
            at_ps: (number + 1) * interval_ps,
            read: window(7800.0, 130_000.0, 4096),
            write: window(5200.0, 54_000.0, 16_384),
            host_units: Some(host_units),
            programmed_units: Some((host_units as f64 * (1.02 + 3.4 * (1.0 - cliff))) as u64),
            host_memory_bytes: 620_000_000 + number * 1_000_000,
            host_cores_per_mille: Some((240.0 * cliff) as u64 + 20),
        }
    });
    run.series = Some(TimeSeries { interval_ps, points: points.collect() });
    run.flash = Some(Flash {
        start: "filled".into(),
        senses: 730_112,
        retries: 41,
        programs: 512_008,
        failures: 0,
        memory_bytes: 210_000_000,
        software: Some(FlashSoftware {
            write_amplification_per_mille: Some(2870),
            collector_share_per_mille: Some(612),
            host_units: 312_000,
            hinted_units: 62_400,
            programmed_units: 312_400,
            copied_units: 548_120,
            meta_units: 31_000,
            padding_units: 4_100,
            map_units: 12_000,
            map_reads: 99_120,
            mapped_units: 1_840_000,
            good_units: 2_097_152,
            left_units: 31_000,
            erased: 901,
            collected: 880,
            retired: 0,
            erases_least: 2,
            erases_most: 9,
            capacity_bytes: 120_034_123_776,
        }),
    });
    run.warnings = vec![warning(
        WarningKind::FreshFlash,
        "the drive had not been written before: its times are those of an empty drive",
    )];
    document.runs.push(run);
    document
}
