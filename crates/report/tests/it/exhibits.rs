//! A document of `papers`, made by rule.

use report::model::paper::*;
use report::model::{Command, Document, Paper};

fn axis(label: &str, unit: &str, logarithmic: bool) -> Axis {
    Axis { label: label.into(), unit: unit.into(), logarithmic, places: Vec::new() }
}

fn series(name: &str, letter: char, whose: Whose, points: &[[f64; 2]]) -> Series {
    Series { name: name.into(), letter, whose, points: points.to_vec() }
}

/// Latency of reads by their length, with the paper's points: logarithmic across.
pub fn sizes() -> Figure {
    let lengths = [64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];
    let by = |fixed: f64, each: f64| lengths.map(|bytes| [bytes, fixed + each * bytes]);
    Figure {
        caption: "Average latency of a small random read at queue depth 1".into(),
        number: "figure 4".into(),
        form: Form::Lines,
        x: axis("a request", "B", true),
        y: axis("latency", "us", false),
        series: vec![
            series("fixed arrival", 'f', Whose::Ours, &by(0.98, 0.000_655)),
            series("random arrival", 'r', Whose::Ours, &by(1.27, 0.000_655)),
            series(
                "fixed arrival, as far as the text of the paper has numbers (section 4, table 5)",
                'F',
                Whose::Paper,
                &[[512.0, 1.4], [4096.0, 3.663]],
            ),
            series("data transfer", 't', Whose::Ours, &by(0.04, 0.000_585)),
        ],
    }
}

/// Curves by cores on a linear axis, one of which coincides with another.
pub fn cores() -> Figure {
    let by = |most: f64| {
        [1.0, 2.0, 3.0, 4.0, 6.0, 8.0].map(|cores: f64| [cores, f64::min(24.0 * cores, most)])
    };
    Figure {
        caption: "Figure 5.7: random reads by cores".into(),
        number: "Figure 5.7".into(),
        form: Form::Lines,
        x: axis("cores", "", false),
        y: axis("rate", "kIOPS", false),
        series: vec![
            series("queue per core", 'q', Whose::Ours, &by(70.0)),
            series("pool per core", 'p', Whose::Ours, &by(70.0)),
            series("one queue", 'o', Whose::Ours, &by(45.0)),
            series("the most with two cores", 'T', Whose::Paper, &[[2.0, 50.0]]),
        ],
    }
}

/// Bars of two systems at named places.
pub fn policies() -> Figure {
    let places = ["round robin", "queue per core", "pool per core", "one queue of 128"];
    let points = |values: [f64; 4]| [0.0, 1.0, 2.0, 3.0].map(|at| [at, values[at as usize]]);
    let mut across = axis("policy", "", false);
    across.places = places.map(String::from).into();
    Figure {
        caption: "Sustained read and write throughput with different arbitration policies".into(),
        number: "figure 5.6".into(),
        form: Form::Bars,
        x: across,
        y: axis("throughput", "MB/s", false),
        series: vec![
            series("read", 'r', Whose::Ours, &points([1880.0, 1921.0, 1920.0, 1650.0])),
            series("read", 'R', Whose::Paper, &points([1700.0, 1750.0, 1750.0, 1500.0])),
            series("write", 'w', Whose::Ours, &points([910.0, 1002.0, 1001.0, 880.0])),
        ],
    }
}

/// The parts of a latency, stacked.
pub fn stacked() -> Figure {
    let points = |values: [f64; 4]| [0.0, 1.0, 2.0, 3.0].map(|at| [at, values[at as usize]]);
    let mut across = axis("bytes", "", false);
    across.places = ["512", "1024", "2048", "4096"].map(String::from).into();
    Figure {
        caption: "Latency by part".into(),
        number: String::new(),
        form: Form::Stacked,
        x: across,
        y: axis("latency", "us", false),
        series: vec![
            series("protocol", 'p', Whose::Ours, &points([0.863, 0.863, 0.863, 0.863])),
            series("PCM read", 'm', Whose::Ours, &points([0.147, 0.178, 0.242, 0.368])),
            series("data transfer", 't', Whose::Ours, &points([0.304, 0.608, 1.216, 2.432])),
        ],
    }
}

fn subject(row: &str, title: &str, unit: &str) -> Subject {
    let claim = format!("{title}, in the words of the paper (section 4)");
    Subject { row: row.into(), title: title.into(), claim, unit: unit.into() }
}

fn check(subject: Subject, paper: Option<f64>, ours: f64, verdict: Verdict) -> Check {
    let rule = paper.map_or(Rule::Shape, |_| Rule::Within { per_mille: 100 });
    Check {
        subject,
        mechanism: "the device anticipates the next fetch".into(),
        mutations: vec!["dcx.anticipate = false".into()],
        criterion: Criterion { rule, shape: "rising with the block".into() },
        ours,
        paper,
        parts: Vec::new(),
        swings: Vec::new(),
        details: Vec::new(),
        verdict,
        expected: verdict,
        cause: None,
    }
}

fn small() -> Check {
    let subject = subject("B7", "512 B in a tight loop from user space", "us");
    let mut small = check(subject, Some(1.4), 1.361, Verdict::Holds);
    let parts = [
        ("submit", 0.05),
        ("pickup", 0.32),
        ("parse", 0.298),
        ("media", 0.147),
        ("data transfer", 0.304),
        ("poll", 0.242),
    ];
    small.parts = parts.map(|(stage, value)| Part { stage: stage.into(), value }).into();
    let swing = |key: &str, low: f64, high: f64| Swing {
        key: key.into(),
        value: "100 ns".into(),
        low,
        high,
    };
    small.swings = vec![
        swing("device.costs.parse", 1.212, 1.51),
        swing("medium.timing.growth_per_byte_of_a_long_key", 1.34, 1.38),
        swing("host.costs.submit", 1.361, 1.361),
        swing("link.host_read", 1.22, 1.502),
    ];
    small
}

/// A check that departs, with its cause shown by changes of the model.
fn linux() -> Check {
    let subject = subject("B10", "NVMe through its Linux driver: nearly 13 us for 4 KiB", "us");
    let mut linux = check(subject, Some(12.8), 9.61, Verdict::Departs);
    linux.details = vec!["78 thousand reads a second in the paper, 104 here".into()];
    linux.cause = Some(Cause {
        text: "the paper gives no breakdown, and the costs of its kernel are not published".into(),
        swaps: vec![
            Changed {
                change: "two context switches more".into(),
                ours: Some(12.9),
                verdict: Verdict::Holds,
            },
            Changed { change: "no interrupts".into(), ours: None, verdict: Verdict::Departs },
        ],
    });
    linux
}

fn table() -> Table {
    let line = |cells: [&str; 4]| cells.map(String::from).into();
    Table {
        caption: "Table 5: a read of 4 KiB at depth 1, us".into(),
        columns: line(["part", "paper", "ours", "unexplained"]),
        lines: vec![
            line(["data transfer (4 KiB)", "2.432", "2.432", "0.000"]),
            line(["PCM read", "0.368", "0.368", "0.000"]),
            line(["protocol + command parsing", "0.863", "0.821", "0.042"]),
        ],
        notes: vec!["fixed: in a tight loop, which the device anticipates".into()],
    }
}

fn power() -> Quotation {
    Quotation {
        subject: subject("B13", "Power while polling", "%"),
        paper: Some(6.0),
        ours: None,
        why: "this model has no power".into(),
    }
}

pub fn papers() -> Document {
    let transfer =
        check(subject("B8", "Data transfer of 4 KiB", "us"), Some(2.432), 2.432, Verdict::Holds);
    let dc_express = Paper {
        name: "dc-express".into(),
        title: "DC Express: Shortest Latency Protocol for Reading Phase Change Memory (FAST 2014)"
            .into(),
        authors: "Vucinic, Wang, Guyot, Mateescu, Blagojevic, Franca-Neto, Le Moal, Bunker".into(),
        exhibits: vec![
            Exhibit::Figure(sizes()),
            Exhibit::Check(small()),
            Exhibit::Check(transfer),
            Exhibit::Figure(stacked()),
            Exhibit::Table(table()),
            Exhibit::Check(linux()),
            Exhibit::Quotation(power()),
        ],
    };
    let mut shape =
        check(subject("", "Larger blocks have a higher rate", ""), None, 3.2, Verdict::Departs);
    shape.expected = Verdict::Holds;
    let vortex = Paper {
        name: "vortex".into(),
        title: "Improving Disk Performance in Vortex With NVMe (master's thesis, 2015)".into(),
        authors: "Elsebø".into(),
        exhibits: vec![
            Exhibit::Figure(policies()),
            Exhibit::Figure(cores()),
            Exhibit::Check(shape),
        ],
    };
    let mut document = super::samples::comparison();
    document.command = Command { name: "papers".into(), arguments: vec!["--quick".into()] };
    document.runs.clear();
    document.papers = vec![dc_express, vortex];
    document
}
