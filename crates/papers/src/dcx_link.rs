//! DC Express and the link: a threshold on load, credits under strict ordering, more lanes.

use world::interfaces::DCX;

use super::ExhibitError;
use super::changes::{instead, set};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::measure::{Arrivals, Machine, Reads, rate_at, reads, small_reads};
use super::setup::Setup;
use report::model::paper::{Exhibit, Rule, Table};

const USER: &[&str] = &["dc-express"];

/// Load below which the device is rung, reads a second: assumed, a quarter of the rate of the loop at 4 KiB.
const THRESHOLD: &str = "70_000";

fn by_load(setup: &Setup) -> Machine {
    setup.machine("dc-express").with("dcx.poll_above", THRESHOLD)
}

/// Reads of 512 B at random arrival, and the shares of the link that they and the polling take: percent,
/// up and down.
fn loaded(machine: &Machine, rate: u32) -> Result<(Reads, f64, f64), ExhibitError> {
    let all = reads(DCX, machine, 512, Arrivals::Random(rate))?;
    let share = |busy_for: runtime::Span| 100.0 * busy_for.0 as f64 / all.busy.of.0 as f64;
    let (up, down) = (share(all.busy.up), share(all.busy.down));
    Ok((all, up, down))
}

/// Loads well below the threshold, and well above.
const LOW: u32 = 2_000;
const HIGH: u32 = 300_000;

pub(super) const BY_LOAD: Spec = Spec {
    subject: Subject {
        row: "B5",
        title: "downstream link at low load, rung",
        claim: "in settings with high load variability the device may switch to DC Express at a \
            load threshold, and \
                revert to the doorbell at low load (section 5, future work)",
        unit: "%",
    },
    mechanism: "the device polls while commands come more often than at the threshold, and sleeps otherwise",
    rule: Rule::Shape,
    shape: "at 2,000 reads a second less than a tenth of polling's, at 300,000 reads as fast as \
        by polling, within 3 %",
    paper: None,
    see: |setup| {
        let (by_load, polled) = (by_load(setup), setup.machine("dc-express"));
        let (rung, _, down) = loaded(&by_load, LOW)?;
        let (low, _, polling) = loaded(&polled, LOW)?;
        let (at, of) = (loaded(&by_load, HIGH)?.0.total_us, loaded(&polled, HIGH)?.0.total_us);
        Ok(Seen::of(down, down < polling / 10.0 && at <= 1.03 * of)
            .with(format!("polling takes {polling:.2} % downstream at any load"))
            .with(format!(
                "a read at low load: {:.3} us, polled {:.3} us",
                rung.total_us, low.total_us
            ))
            .with(format!("a read at high load: {at:.3} us, polled {of:.3} us")))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[
        Mutation {
            change: "polled at any load",
            settings: &[instead("dcx.poll_above", THRESHOLD, "1")],
        },
        Mutation {
            change: "rung at any load",
            settings: &[instead("dcx.poll_above", THRESHOLD, "1_000_000_000")],
        },
    ],
    expected: Expected::Holds,
};

/// Reads of 4 KiB at depth 8, thousands a second, with one packet in 32 delayed by 1 us in the root complex.
fn delayed(machine: &Machine, credits: Option<&str>, relaxed: &str) -> Result<f64, ExhibitError> {
    let held_up = machine.with("link.held_up", "{ one_in = 32, span = \"1 us\" }");
    let machine = match credits {
        Some(credits) => {
            held_up.with("link.credits", &format!("{{ {credits}, return_after = \"150 ns\" }}"))
        }
        None => held_up,
    };
    Ok(rate_at(DCX, &machine.with("link.relaxed_ordering", relaxed), 4096, 8)? / 1e3)
}

const SCARCE: &str = "posted_headers = 8, posted_data = 64";

pub(super) const CREDITS: Spec = Spec {
    subject: Subject {
        row: "B2",
        title: "relaxed over strict, credits scarce",
        claim: "under strict ordering a delayed packet and all its successors hold up the \
            credits, which can slow \
                the rest of the traffic (section 3); ours: 4 KiB at depth 8, credits for 8 packets",
        unit: "x",
    },
    mechanism: "a relaxed packet returns its credits when it lands, a strict one when all before \
        it have landed",
    rule: Rule::Shape,
    shape: "reads at least a tenth faster; without a limit of credits no more than a hundredth",
    paper: None,
    see: |setup| {
        let user = setup.machine("dc-express");
        let gain = |credits| -> Result<f64, ExhibitError> {
            Ok(delayed(&user, credits, "true")? / delayed(&user, credits, "false")?)
        };
        let (scarce, none) = (gain(Some(SCARCE))?, gain(None)?);
        Ok(Seen::of(scarce, scarce >= 1.1 && (none - 1.0).abs() <= 0.01)
            .with(format!("without a limit of credits: {none:.3}")))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[
        Mutation {
            change: "packets that are not relaxed",
            settings: &[instead("link.relaxed_ordering", "true", "false")],
        },
        Mutation {
            change: "no packet delayed for long",
            settings: &[instead(
                "link.held_up",
                "{ one_in = 32, span = \"1 us\" }",
                "{ one_in = 32, span = \"1 ns\" }",
            )],
        },
    ],
    expected: Expected::Holds,
};

/// A read less its medium, us.
fn bus_and_protocol(machine: &Machine, bytes: u32) -> Result<f64, ExhibitError> {
    let read = reads(DCX, machine, bytes, Arrivals::Loop)?;
    Ok(read.total_us - read.part("media"))
}

/// The machine with this link, and a medium that keeps up with it, as the paper's does.
fn faster(setup: &Setup, generation: &str, lanes: &str) -> Machine {
    let machine = setup.machine("dc-express").with("link.generation", generation);
    machine.with("link.lanes", lanes).with("medium.timing.bandwidth", FAST_MEDIUM)
}

const FAST_MEDIUM: &str = "64 GB/s";

pub(super) const ASYMPTOTE: Spec = Spec {
    subject: Subject {
        row: "B7",
        title: "4 KiB on gen5 x16 over 512 B on gen2 x4",
        claim: "more lanes or more bandwidth of each approach the hard limit of bus and protocol latency \
                asymptotically with larger transfers (section 5); ours: reads less their medium",
        unit: "x",
    },
    mechanism: "of bus and protocol latency only the transfer depends on lanes and rate",
    rule: Rule::Shape,
    shape: "below 1; by lanes alone and by rate alone it falls too, and not as far",
    paper: None,
    see: |setup| {
        let small = bus_and_protocol(&faster(setup, "gen2", "4"), 512)?;
        let at = |generation, lanes| -> Result<f64, ExhibitError> {
            Ok(bus_and_protocol(&faster(setup, generation, lanes), 4096)? / small)
        };
        let (first, both) = (at("gen2", "4")?, at("gen5", "16")?);
        let (lanes, rate) = (at("gen2", "16")?, at("gen5", "4")?);
        let least = both < lanes.min(rate) && lanes.max(rate) < first;
        Ok(Seen::of(both, both < 1.0 && least).with(format!(
            "gen2 x4 {first:.3}, with 16 lanes {lanes:.3}, with gen5 {rate:.3}, with both {both:.3}"
        )))
    },
    swung: Swung { plans: USER, number: None },
    mutations: &[Mutation {
        change: "a root complex of 2 us, whatever its lanes",
        settings: &[set("link.host_read", "\"2 us\""), instead("link.lanes", "16", "4")],
    }],
    expected: Expected::Holds,
};

pub(super) fn tables(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    Ok(vec![threshold(setup)?, credits(setup)?, limits(setup)?])
}

/// Latency and use of the link by load: polled, rung, and by a threshold.
fn threshold(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let polled = setup.machine("dc-express");
    let machines = [polled.clone(), polled.with("dcx.poll_above", "1_000_000_000"), by_load(setup)];
    let mut lines = Vec::new();
    for rate in [500, LOW, 10_000, 50_000, 100_000, HIGH] {
        let mut line = vec![rate.to_string()];
        for machine in &machines {
            let (all, up, down) = loaded(machine, rate)?;
            line.extend([format!("{:.3}", all.total_us), format!("{up:.2}"), format!("{down:.2}")]);
        }
        lines.push(line);
    }
    Ok(Table::exhibit(
        "Beyond the paper: polling, or the doorbell below 70,000 commands a second; 512 B at random arrival",
        &[
            "reads/s",
            "polled, us",
            "up, %",
            "down, %",
            "rung, us",
            "up, %",
            "down, %",
            "by load, us",
            "up, %",
            "down, %",
        ],
        lines,
        &[
            "the link's use is that of the data, of polling and of doorbells; the model has no power",
        ],
    ))
}

/// Section 3: with strict ordering a delayed packet holds up the credits of those behind it.
fn credits(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let user = setup.machine("dc-express");
    let mut lines = Vec::new();
    for (what, credits) in [
        ("no limit", None),
        ("32 headers, 4 KiB", Some("posted_headers = 32, posted_data = 256")),
        ("16 headers, 2 KiB", Some("posted_headers = 16, posted_data = 128")),
        ("8 headers, 1 KiB", Some(SCARCE)),
    ] {
        let mut line = vec![what.to_owned()];
        for relaxed in ["false", "true"] {
            line.push(format!("{:.1}", delayed(&user, credits, relaxed)?));
        }
        lines.push(line);
    }
    Ok(Table::exhibit(
        "Credits and ordering: 4 KiB reads at depth 8, one packet in 32 delayed by 1 us, kIOPS (section 3)",
        &["credits of the root complex", "strict", "relaxed"],
        lines,
        &[],
    ))
}

/// Section 5: what lanes and rate give, one at a time, and both.
fn limits(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let mut lines = Vec::new();
    for (link, generation, lanes) in [
        ("gen2 x4", "gen2", "4"),
        ("lanes: gen2 x16", "gen2", "16"),
        ("rate: gen5 x4", "gen5", "4"),
        ("both: gen5 x16", "gen5", "16"),
    ] {
        let machine = faster(setup, generation, lanes);
        let mut line = vec![link.to_owned(), format!("{:.3}", small_reads(&machine, 64)?)];
        for bytes in [512, 4096] {
            line.push(format!("{:.3}", bus_and_protocol(&machine, bytes)?));
        }
        lines.push(line);
    }
    Ok(Table::exhibit(
        "Lanes and rate, one at a time: reads in a tight loop, us (section 5)",
        &["link", "64 B, in all", "512 B less medium", "4 KiB less medium"],
        lines,
        &[],
    ))
}
