//! Elsebø (2015), section 6.2: priority in the controller by weighted round robin and by the number of
//! queues, and tenants that share a drive. The thesis proposes them and has no number of them.

use runtime::Span;

use super::ExhibitError;
use super::changes::{Change, instead};
use super::check::{Expected, Mutation, Seen, Spec, Subject, Swung};
use super::measure::Machine;
use super::setup::Setup;
use super::vortex::ssd;
use campaign::tenants::{self, BY_QUEUES, BY_WEIGHT, Load, Tenants, Way, deviation};
use report::model::paper::{Exhibit, Rule, Table};

/// Duration of a run of tenants.
const TIME: Span = Span::ms(100);
/// Duration of a run of shares: at its end each tenant has as many commands in flight.
const LONG: Span = Span::ms(200);
/// Mutation: the neighbour does nothing.
pub(super) const IDLE: &str = "idle neighbour";
/// Mutation: the neighbour has no rate.
pub(super) const NO_RATE: &str = "no rate";

fn with(machine: &Machine, settings: &[(&str, &str)]) -> Machine {
    settings.iter().fold(machine.clone(), |machine, (key, value)| machine.with(key, value))
}

pub(super) fn measured(setup: &Setup, way: Way) -> Result<Tenants, ExhibitError> {
    let load = Load {
        neighbour_depth: if setup.is_switched(IDLE) { 0 } else { 32 },
        rate: if setup.is_switched(NO_RATE) { 0 } else { 1000 },
        time: TIME,
    };
    let machine = with(&ssd(setup), way.settings());
    machine.once(format!("{way:?} {load:?}"), |machine| {
        Ok(tenants::measure(&machine.open()?, way, load, false)?)
    })
}

/// The victim's p99 in one way over that in another.
fn ratio(setup: &Setup, over: Way, under: Way) -> Result<f64, ExhibitError> {
    Ok(measured(setup, over)?.p99_us / measured(setup, under)?.p99_us)
}

/// Deviation of the shares of tenants, which have these numbers of clones, from their weights.
fn off(
    setup: &Setup,
    by: &[(&str, &str)],
    clones: &[u32],
    weights: &[f64],
) -> Result<Seen, ExhibitError> {
    let machine = with(&ssd(setup), by);
    let shares = machine.once(format!("shares {clones:?}"), |machine| {
        Ok(tenants::shares(&machine.open()?, clones, LONG, false)?)
    })?;
    let off = deviation(&shares, weights);
    let words: Vec<_> = shares.iter().map(|share| format!("{share:.3}")).collect();
    Ok(Seen::of(100.0 * off, off < 0.05).with(format!("shares: {}", words.join(" "))))
}

/// A check of the plan "vortex" without a figure of the paper.
pub(super) const fn check(
    (row, title): (&'static str, &'static str),
    claim: &'static str,
    (mechanism, shape): (&'static str, &'static str),
    unit: &'static str,
    see: fn(&Setup) -> Result<Seen, ExhibitError>,
    mutations: &'static [Mutation],
) -> Spec {
    Spec {
        subject: Subject { row, title, claim, unit },
        mechanism,
        rule: Rule::Shape,
        shape,
        paper: None,
        see,
        swung: Swung { plans: &["vortex"], number: None },
        mutations,
        expected: Expected::Holds,
    }
}

pub(super) const NEIGHBOUR: Spec = check(
    ("D7", "p99 beside a neighbour over alone"),
    "processes that share a queue disturb each other: what isolation is for (6.2.3)",
    (
        "a queue of the host is served in its order: the victim waits behind all commands in it",
        "at least four times as long",
    ),
    "x",
    |setup| {
        let ours = ratio(setup, Way::OneQueue, Way::Alone)?;
        Ok(Seen::of(ours, ours > 4.0))
    },
    &[Mutation { change: "an idle neighbour", settings: &[Change::Switch(IDLE)] }],
);

pub(super) const OWN_QUEUE: Spec = check(
    ("D7", "p99 in a neighbour's queue over its own"),
    "namespaces and queues of a process's own support isolation (6.2.3)",
    (
        "round robin with bursts of one takes the victim's command after one of each other queue",
        "at least twice as long in the neighbour's queue",
    ),
    "x",
    |setup| {
        let ours = ratio(setup, Way::OneQueue, Way::SmallBursts)?;
        Ok(Seen::of(ours, ours > 2.0))
    },
    &[
        Mutation {
            change: "bursts of 64",
            settings: &[instead("device.arbitration_burst", "1", "64")],
        },
        Mutation { change: "one queue", settings: &[instead("host.queues", "4", "1")] },
        Mutation { change: "an idle neighbour", settings: &[Change::Switch(IDLE)] },
    ],
);

const EQUAL: Mutation = Mutation {
    change: "all queues in one class",
    settings: &[
        instead("arbitration.classes", "urgent low low low", "low low low low"),
        instead("arbitration.classes", "high low low low", "low low low low"),
        instead("arbitration.classes", "high medium low", "low low low"),
    ],
};

const ROOM: Mutation = Mutation {
    change: "a drive that takes all commands at once",
    settings: &[instead("device.command_slots", "8", "128")],
};

pub(super) const URGENT: Spec = check(
    ("D7", "p99 in a queue of its own over urgent"),
    "the urgent class is always prioritized over weighted queues (6.2.1)",
    (
        "arbitration takes the urgent queue before the rest of another queue's burst of 64",
        "at least half as long again without the class",
    ),
    "x",
    |setup| {
        let ours = ratio(setup, Way::OwnQueues, Way::Urgent)?;
        Ok(Seen::of(ours, ours > 1.5))
    },
    &[
        EQUAL,
        ROOM,
        Mutation {
            change: "bursts of one",
            settings: &[instead("device.arbitration_burst", "64", "1")],
        },
    ],
);

pub(super) const RATE: Spec = check(
    ("D7", "p99 beside a limited neighbour over alone"),
    "schedulers of the host give each process its share (6.2.1)",
    (
        "the host holds the neighbour's requests back, so that none wait in the drive",
        "less than four times as long as alone",
    ),
    "x",
    |setup| {
        let ours = ratio(setup, Way::Rate, Way::Alone)?;
        Ok(Seen::of(ours, ours < 4.0))
    },
    &[Mutation { change: "no rate", settings: &[Change::Switch(NO_RATE)] }],
);

pub(super) const WEIGHTS: Spec = check(
    ("D7", "shares by weights 4, 2 and 1: most off"),
    "weighted round robin assigns priority to processes (6.2.1)",
    ("a class is served as often as its weight says", "each share within 5 % of its weight"),
    "%",
    |setup| off(setup, BY_WEIGHT, &[1, 1, 1], &[4.0, 2.0, 1.0]),
    &[EQUAL, ROOM],
);

pub(super) const BY_NUMBER: Spec = check(
    ("D7", "shares by three queues and one: most off"),
    "more queues give a process more of the drive, without weights (6.2.2, figure 6.1)",
    ("round robin serves each queue as often", "each share within 5 % of its number of queues"),
    "%",
    |setup| off(setup, BY_QUEUES, &[3, 1], &[3.0, 1.0]),
    &[
        Mutation { change: "one queue for both", settings: &[instead("host.queues", "4", "1")] },
        ROOM,
    ],
);

pub(super) fn tables(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    let line = |way: Way| -> Result<Vec<String>, ExhibitError> {
        let seen = measured(setup, way)?;
        Ok(vec![
            way.name().into(),
            format!("{:.0}", seen.p50_us),
            format!("{:.0}", seen.p99_us),
            format!("{:.0}", seen.neighbour_mb_s),
        ])
    };
    Ok(vec![Table::exhibit(
        "Tenants (6.2): a victim's reads of 4 KiB beside three queues of 32 KiB reads",
        &["the victim is", "p50 us", "p99 us", "neighbour MB/s"],
        Way::ALL.into_iter().map(line).collect::<Result<_, _>>()?,
        &["a drive of eight command slots: where it takes all commands at once, no class helps"],
    )])
}
