//! Stratikopoulos et al., "FastPath" (2018): table III, and the text about figures 2, 4 and 5.

use super::ExhibitError;
use super::changes::{Change, instead, of, set};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::fastpath_ways::{
    BOARD, Core, DEEP, DEVICE, FREE, LINUX, ROOT, Route, Way, baseline_table, route, run,
    ways_table,
};
use super::setup::Setup;
use report::model::paper::{Axis, Exhibit, Figure, Rule, Series, Table};

/// A kind of access: its job-file keyword, and table III: the baseline and FastPath, us.
struct Kind {
    rw: &'static str,
    baseline: f64,
    paper: f64,
}

const KINDS: [Kind; 4] = [
    Kind { rw: "read", baseline: 328.9, paper: 105.4 },
    Kind { rw: "randread", baseline: 321.8, paper: 105.7 },
    Kind { rw: "write", baseline: 350.6, paper: 100.0 },
    Kind { rw: "randwrite", baseline: 352.3, paper: 100.67 },
];

/// Block sizes of figures 4 and 5, KiB.
const SIZES: [u32; 6] = [4, 8, 16, 32, 64, 128];
/// Stages of a request by the columns of the first table, with [`DEVICE`] and [`ROOT`].
const ENGINE: &[&str] =
    &["control", "turn wait", "submit", "poll", "complete", "respond", "core wait"];
const CALLER: &[&str] = &["request", "take response"];
const PLANS: &[&str] = &[BOARD];
const BOTH: &[&str] = &[BOARD, LINUX];

fn engine(setup: &Setup) -> Route {
    route(setup, Core::A9, Way::Engine)
}

fn kernel(setup: &Setup) -> Route {
    route(setup, Core::A9, Way::Kernel)
}

pub(super) fn figures(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let mut exhibits = vec![ways_table(setup)?, baseline_table(setup)?, table_iii(setup)?];
    exhibits.extend(figure_4(setup)?);
    exhibits.push(figure_5(setup)?);
    exhibits.push(blocks_in_one_fpga(setup)?);
    Ok(exhibits)
}

fn cells(values: &[f64]) -> Vec<String> {
    values.iter().map(|value| format!("{value:.2}")).collect()
}

/// Latency of 4 KiB at depth 1, without the creation of the request.
fn latency(route: &Route, kind: &Kind) -> Result<f64, ExhibitError> {
    Ok(run(&route.given_requests(), kind.rw, 4096, 1)?.us)
}

fn table_iii(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for kind in &KINDS {
        let done = run(&engine(setup).given_requests(), kind.rw, 4096, 1)?;
        let root: Vec<_> = ROOT.iter().copied().filter(|stage| *stage != "poll").collect();
        let parts = [DEVICE, &root, ENGINE, CALLER].map(|stages| done.of(stages));
        let mut line = vec![kind.rw.to_owned()];
        line.extend(cells(&parts));
        line.extend(cells(&[done.us, kind.paper, kind.paper - done.us]));
        line.push(format!("{:.0}", done.of(&["control", "submit", "complete", "respond"]) * 125.0));
        lines.push(line);
    }
    Ok(Table::exhibit(
        "Table III: 4 KiB through FastPath at depth 1, us",
        &[
            "",
            "device",
            "root complex",
            "engine",
            "caller",
            "ours",
            "paper",
            "unexplained",
            "cycles",
        ],
        lines,
        &[
            "device: the paper's own share of its baseline, put in (C). root complex: the link, the bridge \
             to AXI, and DDR3 behind it; engine: with its polling; both assumed, in cycles of 125 MHz",
            "caller: the words of a request and of a response over AXI, assumed. Nothing is chosen to meet \
             the paper's totals",
            "cycles: those of Control, Submit and Complete for one command, without waiting",
        ],
    ))
}

const NOT_IN_THE_TEXT: &str = "the paper's software takes 290 us of a read (90 %), 193,000 cycles of 667 \
         MHz, and \
    its text does not divide them; the path is counted here in instructions that are assumed, a few \
    thousand for \
    each layer, and in cache lines, and the remainder is unexplained";

const BASELINE_SUBJECT: Subject = Subject {
    row: "E6",
    title: "baseline: random reads of 4 KiB, Linux",
    claim: "random reads of 4 KiB through Linux 4.4 on the Cortex-A9 (table III, baseline)",
    unit: "us",
};

fn baseline(setup: &Setup, kind: &Kind) -> Result<Seen, ExhibitError> {
    let done = run(&kernel(setup).given_requests(), kind.rw, 4096, 1)?;
    Ok(Seen::number(done.us).parts(&done.parts))
}

pub(super) const BASELINE: Spec = Spec {
    subject: BASELINE_SUBJECT,
    mechanism: "system calls, file layer, block layer, driver, cache maintenance, interrupt and context \
             switch are \
        work of the core",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(KINDS[1].baseline),
    see: |setup| baseline(setup, &KINDS[1]),
    swung: Swung { plans: &[LINUX], number: None },
    mutations: &[],
    expected: Expected::Departs(
        NOT_IN_THE_TEXT,
        &[Mutation {
            change: "a file layer of 230 us, which would be about what is left of 321.8 us",
            settings: &[of(LINUX, "host.path.costs.\"file layer\"", "\"230 us\"")],
        }],
    ),
};

pub(super) const BASELINE_WRITES: Spec = Spec {
    subject: Subject {
        title: "baseline: random writes of 4 KiB, Linux",
        claim: "random writes of 4 KiB through Linux 4.4 on the Cortex-A9 (table III, baseline)",
        ..BASELINE_SUBJECT
    },
    paper: Some(KINDS[3].baseline),
    see: |setup| baseline(setup, &KINDS[3]),
    expected: Expected::Departs(
        NOT_IN_THE_TEXT,
        &[Mutation {
            change: "a file layer of 270 us, which would be about what is left of 352.3 us",
            settings: &[of(LINUX, "host.path.costs.\"file layer\"", "\"270 us\"")],
        }],
    ),
    ..BASELINE
};

/// A latency of table III, below that of the kernel's way.
fn below_kernel(setup: &Setup, kind: &Kind) -> Result<Seen, ExhibitError> {
    let done = run(&engine(setup).given_requests(), kind.rw, 4096, 1)?;
    let through_kernel = latency(&kernel(setup), kind)?;
    Ok(Seen::of(done.us, done.us < through_kernel)
        .parts(&done.parts)
        .with(format!("through the kernel: {through_kernel:.2} us")))
}

pub(super) const RANDOM_READS: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "random reads of 4 KiB",
        claim: "random reads of 4 KiB through FastPath are shorter than through the kernel (table III)",
        unit: "us",
    },
    mechanism: "requests go to the engine, past the kernel's work",
    rule: Rule::Shape,
    shape: "below this model's way through the kernel",
    paper: Some(KINDS[1].paper),
    see: |setup| below_kernel(setup, &KINDS[1]),
    swung: Swung { plans: PLANS, number: None },
    mutations: &[FREE],
    expected: Expected::Holds,
};

pub(super) const RANDOM_WRITES: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "random writes of 4 KiB",
        claim: "random writes of 4 KiB through FastPath are shorter than through the kernel (table III)",
        unit: "us",
    },
    paper: Some(KINDS[3].paper),
    see: |setup| below_kernel(setup, &KINDS[3]),
    ..RANDOM_READS
};

fn shorter(setup: &Setup, kind: &Kind) -> Result<f64, ExhibitError> {
    Ok(100.0 * (1.0 - latency(&engine(setup), kind)? / latency(&kernel(setup), kind)?))
}

const SHORTER_CAUSE: &str = "both ways are shorter here than in the paper, the kernel's by more: of its 290 \
         us of \
    software the path counts a fifth";

pub(super) const LESS: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "random reads: less than the baseline",
        claim: "67 % less latency of reads (section IV.A): FastPath against the kernel, both of this model",
        unit: "%",
    },
    mechanism: "requests go to the engine, past the kernel's work",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(67.0),
    see: |setup| Ok(Seen::number(shorter(setup, &KINDS[1])?)),
    swung: Swung { plans: BOTH, number: None },
    mutations: &[],
    expected: Expected::Departs(
        SHORTER_CAUSE,
        &[Mutation {
            change: "a file layer 25 us longer",
            settings: &[of(LINUX, "host.path.costs.\"file layer\"", "\"36.25 us\"")],
        }],
    ),
};

pub(super) const LESS_WRITES: Spec = Spec {
    subject: Subject {
        title: "random writes: less than the baseline",
        claim: "71 % less latency of writes (section IV.A): FastPath against the kernel, both of this model",
        ..LESS.subject
    },
    paper: Some(71.0),
    see: |setup| Ok(Seen::number(shorter(setup, &KINDS[3])?)),
    expected: Expected::Departs(
        SHORTER_CAUSE,
        &[Mutation {
            change: "a file layer 60 us longer",
            settings: &[of(LINUX, "host.path.costs.\"file layer\"", "\"71.25 us\"")],
        }],
    ),
    ..LESS
};

/// The engine's latency over that of a polled driver in user space.
fn over_polled(setup: &Setup, core: Core) -> Result<Seen, ExhibitError> {
    let engine = latency(&route(setup, core, Way::Engine), &KINDS[1])?;
    let polled = latency(&route(setup, core, Way::Polled), &KINDS[1])?;
    Ok(Seen::of(engine - polled, engine < polled)
        .with(format!("FastPath {engine:.2} us, polled in user space {polled:.2} us")))
}

pub(super) const OVER_POLLED: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "FastPath less polled user space, A9",
        claim: "that user space drivers need extra code for commands, which FastPath takes from them \
                 (section V)",
        unit: "us",
    },
    mechanism: "the engine forms the command and polls, in place of the core",
    rule: Rule::Shape,
    shape: "FastPath has the shorter reads of 4 KiB",
    paper: None,
    see: |setup| over_polled(setup, Core::A9),
    swung: Swung { plans: PLANS, number: None },
    mutations: &[],
    expected: Expected::Departs(
        "a core writes a request and reads a response word by word over AXI, and that is as much work as a \
         command and its completion in memory; the engine's own work comes on top",
        &[
            Mutation {
                change: "a driver of 2,000 cycles for a command and 2,000 for its completion",
                settings: &[
                    of(BOARD, "host.costs.submit", "\"3 us\""),
                    of(BOARD, "host.costs.complete", "\"3 us\""),
                ],
            },
            Mutation {
                change: "requests and responses that cost the core nothing",
                settings: &[
                    of(BOARD, "fastpath.costs.request", "\"0 ns\""),
                    of(BOARD, "fastpath.costs.\"take response\"", "\"0 ns\""),
                ],
            },
        ],
    ),
};

pub(super) const ON_X86: Spec = Spec {
    subject: Subject {
        row: "E9",
        title: "x86: share of the kernel in 4 KiB reads",
        claim: "on x86 software is up to 50 % of the time of a request (section II.C)",
        unit: "%",
    },
    mechanism: "the same layers at 3.4 GHz, with coherent DMA",
    rule: Rule::Shape,
    shape: "more than nothing, and at most 50 %: FastPath's gain there is no more",
    paper: Some(50.0),
    see: |setup| {
        let kernel = latency(&route(setup, Core::X86, Way::Kernel), &KINDS[1])?;
        let polled = latency(&route(setup, Core::X86, Way::Polled), &KINDS[1])?;
        let engine = latency(&route(setup, Core::X86, Way::Engine), &KINDS[1])?;
        let share = 100.0 * (1.0 - polled / kernel);
        let gain = 100.0 * (1.0 - engine / kernel);
        Ok(Seen::of(share, share > 0.5 && share <= 50.0 && gain <= share)
            .with(format!("FastPath's gain over the kernel: {gain:.1} %")))
    },
    swung: Swung { plans: &[super::fastpath_ways::X86], number: None },
    mutations: &[super::fastpath_ways::FREE_X86],
    expected: Expected::Holds,
};

fn figure_4(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    const WAYS: [(char, &str, Way, &str); 4] = [
        ('r', "FastPath, read", Way::Engine, "randread"),
        ('w', "FastPath, write", Way::Engine, "randwrite"),
        ('k', "kernel, read", Way::Kernel, "randread"),
        ('v', "kernel, write", Way::Kernel, "randwrite"),
    ];
    let mut lines = Vec::new();
    let mut series: Vec<_> = WAYS.map(|way| Series::ours(way.0, way.1, [])).into();
    for size in SIZES {
        let mut line = vec![format!("{size}")];
        for ((_, _, way, rw), series) in WAYS.iter().zip(&mut series) {
            let done = run(&route(setup, Core::A9, *way), rw, size << 10, DEEP)?;
            line.push(format!("{:.0}", done.megabytes));
            series.points.push([f64::from(size << 10), done.megabytes]);
        }
        lines.push(line);
    }
    let ends = vec![(4096.0, 160.0), (f64::from(128 << 10), 575.0)];
    series.push(Series::paper('P', "the least (random write) and the most (random read)", ends));
    Ok(vec![
        Table::exhibit(
            "Figure 4: bandwidth by KiB of a request, 32 in flight, with their creation, MB/s",
            &["KiB", "FastPath, read", "FastPath, write", "kernel, read", "kernel, write"],
            lines,
            &[
                "the paper: from 160 MB/s (random write) to 575 MB/s (random read) through fio on its ARM \
                 cores, from 4 KiB to 128 KiB; depth and points are not in the text",
                "put in: the drive's advertised limits, 1 GB/s for reads, 800 MB/s for writes",
            ],
        ),
        Figure::exhibit(
            "Figure 4",
            "Figure 4: bandwidth",
            (Axis::logarithmic("a request", "B"), Axis::linear("bandwidth", "MB/s")),
            series,
        ),
    ])
}

fn by_size(route: &Route, rw: &str) -> Result<Vec<f64>, ExhibitError> {
    SIZES.iter().map(|size| Ok(run(route, rw, size << 10, DEEP)?.megabytes)).collect()
}

pub(super) const BANDWIDTH: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "figure 4: FastPath over kernel, 4 KiB",
        claim: "FastPath has more bandwidth than the baseline at every size, and the more the larger \
                 (figure 4)",
        unit: "x",
    },
    mechanism: "a core that is not in the kernel creates more requests",
    rule: Rule::Shape,
    shape: "above the kernel by at least 1 % and never falling, reads and writes, from 4 KiB to 128 KiB",
    paper: None,
    see: |setup| {
        let (mut holds, mut ratio) = (true, 0.0);
        let mut narrowest = f64::INFINITY;
        for rw in ["randwrite", "randread"] {
            let (ours, theirs) = (by_size(&engine(setup), rw)?, by_size(&kernel(setup), rw)?);
            let over: Vec<_> = ours.iter().zip(&theirs).map(|(fast, slow)| fast / slow).collect();
            narrowest = over.iter().copied().fold(narrowest, f64::min);
            holds &= over.iter().all(|over| *over > 1.01);
            // The curve is flat if the drive is the limit, but for its start and its end.
            holds &= ours.windows(2).all(|pair| pair[1] > 0.97 * pair[0]);
            ratio = over[0];
        }
        Ok(Seen::of(ratio, holds).with(format!("the least at any size: {narrowest:.2} x")))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[FREE],
    expected: Expected::Holds,
};

/// A bandwidth of figure 4.
fn megabytes(setup: &Setup, rw: &str, bytes: u32) -> Result<Seen, ExhibitError> {
    Ok(Seen::number(run(&engine(setup), rw, bytes, DEEP)?.megabytes))
}

pub(super) const LEAST: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "figure 4, the least: 4 KiB random writes",
        claim: "from 160 MB/s, random writes (section IV.A), through fio and libaio",
        unit: "MB/s",
    },
    mechanism: "the core creates a request, hands it to the engine and takes its response",
    rule: Rule::Within { per_mille: 100 },
    shape: "",
    paper: Some(160.0),
    see: |setup| megabytes(setup, "randwrite", 4096),
    swung: Swung { plans: PLANS, number: None },
    mutations: &[],
    expected: Expected::Departs(
        "160 MB/s of 4 KiB are 25.6 us, 17,000 cycles, for each request of a core; the paper names the \
                 creation of \
         requests on that core as the cause, and counts nothing: here it is 2,000 cycles, assumed",
        &[Mutation {
            change: "24 us for the creation of a request, which would be about what is left of 25.6 us",
            settings: &[of(BOARD, "host.costs.benchmark", "\"24 us\"")],
        }],
    ),
};

pub(super) const MOST: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "figure 4, the most: 128 KiB random reads",
        claim: "up to 575 MB/s, random reads (section IV.A), through fio and libaio",
        unit: "MB/s",
    },
    paper: Some(575.0),
    see: |setup| megabytes(setup, "randread", 128 << 10),
    expected: Expected::Departs(
        "575 MB/s of 128 KiB are 228 us for each request; of a core that creates 4 KiB in 25.6 us that is a \
                 tenth, so \
         that what the paper names does not explain it either. Work for each 4 KiB would: 7 us are as much \
         as a \
         copy at 575 MB/s, which a caller without FP_DIRECT makes (section III.C), and the paper does not \
         say which fio is",
        &[Mutation {
            change: "224 us for the creation of a request of 128 KiB, as 7 us for each 4 KiB",
            settings: &[of(BOARD, "host.costs.benchmark", "\"224 us\"")],
        }],
    ),
    ..LEAST
};

const ONE_AT_A_TIME: &str = "one request at a time";

/// Bandwidth of the engine and the root complex behind requests that are there already, MB/s.
fn given(setup: &Setup) -> Result<f64, ExhibitError> {
    let depth = if setup.is_switched(ONE_AT_A_TIME) { 1 } else { DEEP };
    let fast = engine(setup)
        .given_requests()
        .with("medium.timing.bandwidth", "8 GB/s")
        .with("medium.timing.write_bandwidth", "8 GB/s");
    Ok(run(&fast, "randwrite", 4096, depth)?.megabytes)
}

pub(super) const BEFORE: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "engine and root complex, 4 KiB writes",
        claim: "requests generated before reach \"close to 800 MBps\", the drive's limit (section IV.A): \
                 engine \
                and root complex carry it; ours without the drive's limit",
        unit: "MB/s",
    },
    mechanism: "the engine has many commands under way at a time, and takes little for each",
    rule: Rule::Shape,
    shape: "more than the drive's 800 MB/s",
    paper: Some(800.0),
    see: |setup| given(setup).map(|ours| Seen::of(ours, ours > 800.0)),
    swung: Swung { plans: PLANS, number: None },
    mutations: &[
        Mutation { change: "one request at a time", settings: &[Change::Switch(ONE_AT_A_TIME)] },
        Mutation {
            change: "an engine of 11.25 us a command, as block layer and driver take on the core",
            settings: &[set("fastpath.submit", "\"11.25 us\"")],
        },
    ],
    expected: Expected::Holds,
};

pub(super) const IOPS: Spec = Spec {
    subject: Subject {
        row: "E7",
        title: "IOPS over the kernel's, the least",
        claim: "at least five times more IOPS, reads and writes (figure 5; \"up to\" in the abstract)",
        unit: "x",
    },
    mechanism: "a core that is not in the kernel creates more requests",
    rule: Rule::Shape,
    shape: "five times at every size from 4 KiB to 128 KiB",
    paper: Some(5.0),
    see: |setup| {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for rw in ["randread", "randwrite"] {
            let (ours, theirs) = (by_size(&engine(setup), rw)?, by_size(&kernel(setup), rw)?);
            for (fast, slow) in ours.iter().zip(&theirs) {
                least = least.min(fast / slow);
                most = most.max(fast / slow);
            }
        }
        Ok(Seen::of(least, least >= 5.0).with(format!("the most: {most:.2} x")))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[],
    expected: Expected::Departs(
        "the kernel's path is shorter here than the paper's 290 us of software; at large requests the drive \
                 is \
         the engine's limit, and the kernel's work is shared by more bytes",
        &[Mutation {
            change: "a file layer of 1 ms, with which the kernel is far below the drive at every size",
            settings: &[of(LINUX, "host.path.costs.\"file layer\"", "\"1 ms\"")],
        }],
    ),
};

fn figure_5(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let points = |way: Way| -> Result<Vec<_>, ExhibitError> {
        let all = by_size(&route(setup, Core::A9, way), "randread")?;
        let kiops = |(size, megabytes): (&u32, f64)| {
            let bytes = f64::from(size << 10);
            (bytes, megabytes * 1e3 / bytes)
        };
        Ok(SIZES.iter().zip(all).map(kiops).collect())
    };
    Ok(Figure::exhibit(
        "Figure 5",
        "Figure 5: random reads, 32 in flight",
        (Axis::logarithmic("a request", "B"), Axis::linear("rate", "kIOPS")),
        vec![
            Series::ours('f', "FastPath", points(Way::Engine)?),
            Series::ours('k', "kernel", points(Way::Kernel)?),
        ],
    ))
}

/// Commands of 512 bytes of requests of 64 KiB, with this many engines: thousands a second. Link and drive
/// have room.
fn commands(setup: &Setup, engines: &str) -> Result<f64, ExhibitError> {
    let wide = engine(setup)
        .given_requests()
        .with("fastpath.engines", engines)
        .with("fastpath.block", "512 B")
        .with("link.generation", "gen4")
        .with("link.lanes", "16")
        .with("device.fetchers", "4")
        .with("device.fetch_max", "32")
        .with("medium.timing.first_byte", "1 us")
        .with("medium.timing.bandwidth", "16 GB/s");
    Ok(run(&wide, "randread", 64 << 10, 64)?.iops * 128.0 / 1e3)
}

pub(super) const SCALING: Spec = Spec {
    subject: Subject {
        row: "E9",
        title: "four engines over one, 512 B commands",
        claim: "several FastPath blocks in one FPGA (sections III.D and IV: not measured there)",
        unit: "x",
    },
    mechanism: "each engine forms its own commands, and Control gives them out in turn",
    rule: Rule::Shape,
    shape: "two engines at least 1.8 times one, four at least 3.2 times, where the engine is the limit",
    paper: None,
    see: |setup| {
        let [one, two, four] =
            [commands(setup, "1")?, commands(setup, "2")?, commands(setup, "4")?];
        Ok(Seen::of(four / one, two >= 1.8 * one && four >= 3.2 * one)
            .with(format!("thousand commands a second: {one:.0}, {two:.0}, {four:.0}")))
    },
    swung: Swung { plans: &[], number: None },
    mutations: &[Mutation {
        change: "the link of the board in its place",
        settings: &[instead("link.lanes", "16", "4"), instead("link.generation", "gen4", "gen2")],
    }],
    expected: Expected::Holds,
};

fn blocks_in_one_fpga(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for engines in ["1", "2", "4", "8"] {
        let rate = commands(setup, engines)?;
        lines.push(vec![engines.into(), format!("{rate:.0}"), format!("{:.0}", rate * 0.512)]);
    }
    Ok(Table::exhibit(
        "Beyond the paper: several engines where the engine is the limit; requests of 64 KiB in commands of \
                 512 B",
        &["engines", "thousand commands/s", "MB/s"],
        lines,
        &["Gen4 x16, a drive of 1 us and 16 GB/s with four fetchers: neither limits four engines"],
    ))
}
