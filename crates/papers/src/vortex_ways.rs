//! Elsebø (2015), beside its figures: throughput by the size of a request, schedulers in the controller
//! beside those of the host, and the SCSI resource beside a native driver.

use runtime::Span;

use super::ExhibitError;
use super::changes::{Change, set};
use super::check::{Expected, Mutation, Seen, Spec};
use super::measure::{Arrivals, Machine, rate_at, reads};
use super::setup::Setup;
use super::vortex::{CORES, hogged, ssd};
use super::vortex_tenants::{IDLE, NO_RATE, check, measured};
use campaign::diskhog::Hog;
use campaign::tenants::Way;
use host::nvme::Policy;
use report::model::paper::{Exhibit, Table};
use world::interfaces::{NVME, Row, SCSI};

const TIME: Span = Span::ms(50);
const SIZES: [u64; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Requests in flight of one core where its own time is what limits.
const DEPTH: u32 = 32;

/// Throughput of requests of this size, one at a time on each core, MB/s.
fn by_size(setup: &Setup, bytes: u64, cores: u32) -> Result<f64, ExhibitError> {
    let hog = Hog { bytes, time: TIME, interval: TIME, ..Hog::sequential(cores) };
    Ok(hogged(&ssd(setup), Policy::PerCore, &hog)?.megabytes_s())
}

/// Reads of 4 KiB a second from one core through the SCSI resource, or by a driver without it.
fn from_one_core(setup: &Setup, row: &'static Row) -> Result<f64, ExhibitError> {
    Ok(rate_at(row, &face(setup, row), 4096, DEPTH)? / 1e3)
}

/// The cost "block driver" of plan vortex is that of the SCSI resource.
fn face(setup: &Setup, row: &Row) -> Machine {
    match row.name == SCSI.name {
        true => ssd(setup),
        false => ssd(setup).with("host.costs.\"block driver\"", "\"0 ns\""),
    }
}

pub(super) const SIZE: Spec = check(
    ("D9", "one core: MB/s, 4 MiB requests over 4 KiB"),
    "throughput is measured with requests of 4 MB, operations with 4 KB (5.3)",
    (
        "the pieces of a request are in flight together; a request of one piece is alone",
        "each size gives more than the size before, and the largest at least ten times the smallest",
    ),
    "x",
    |setup| {
        let curve: Vec<_> =
            SIZES.iter().map(|bytes| by_size(setup, *bytes, 1)).collect::<Result<_, _>>()?;
        let ours = curve[SIZES.len() - 1] / curve[0];
        Ok(Seen::of(ours, curve.is_sorted_by(|one, next| one < next) && ours > 10.0))
    },
    &[Mutation { change: "pieces one after the other", settings: &[set("host.queue_depth", "1")] }],
);

pub(super) const SCHEDULERS: Spec = check(
    ("D7", "neighbour: MB/s beside urgent over a rate"),
    "schedulers of the host, or classes in the controller, give processes their shares (6.2.1)",
    (
        "a class reorders what waits at the drive and gives nothing up; a rate keeps it from waiting there",
        "at least twice the throughput with the class, and the victim's p99 lower with the rate",
    ),
    "x",
    |setup| {
        let (class, rate) = (measured(setup, Way::Urgent)?, measured(setup, Way::Rate)?);
        let ours = class.neighbour_mb_s / rate.neighbour_mb_s;
        let text = format!("p99 {:.0} and {:.0} us", class.p99_us, rate.p99_us);
        Ok(Seen::of(ours, ours > 2.0 && rate.p99_us < class.p99_us).with(text))
    },
    &[
        Mutation { change: "no rate", settings: &[Change::Switch(NO_RATE)] },
        Mutation { change: "an idle neighbour", settings: &[Change::Switch(IDLE)] },
    ],
);

pub(super) const FACES: Spec = Spec {
    expected: Expected::Departs(
        "the drive is what limits: its banks give 62,000 such reads a second to either driver. Of the \
         latency of a read alone 3.9 of 113.6 us are the SCSI resource's. With eight times the banks a core \
         limits, and the resource shows",
        &[Mutation {
            change: "a drive of 56 banks",
            settings: &[set("medium.timing.banks", "56")],
        }],
    ),
    ..check(
        ("D9", "one core: 4 KiB reads, NVMe over SCSI"),
        "the drive is shown to Vortex as a SCSI disk: what that costs is not measured",
        ("the SCSI resource takes a core's time for each command", "more by a twentieth at least"),
        "x",
        |setup| {
            let (native, scsi) = (from_one_core(setup, NVME)?, from_one_core(setup, SCSI)?);
            let text = format!("{native:.1} and {scsi:.1} kIOPS");
            Ok(Seen::of(native / scsi, native > 1.05 * scsi).with(text))
        },
        &[],
    )
};

pub(super) fn tables(setup: &Setup) -> Result<Vec<Exhibit>, ExhibitError> {
    Ok(vec![sizes(setup)?, schedulers(setup)?, faces(setup)?])
}

fn sizes(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let line = |cores: u32| -> Result<Vec<String>, ExhibitError> {
        let each = SIZES.iter().map(|bytes| Ok(format!("{:.0}", by_size(setup, *bytes, cores)?)));
        let each = each.collect::<Result<Vec<_>, ExhibitError>>()?;
        Ok(std::iter::once(cores.to_string()).chain(each).collect())
    };
    Ok(Table::exhibit(
        "Throughput by the size of a request, one at a time on each core, a queue for each: MB/s",
        &["cores", "4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB"],
        [1, 2, CORES].into_iter().map(line).collect::<Result<_, _>>()?,
        &["a request is in pieces of 32 KiB, all in flight at once"],
    ))
}

fn schedulers(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let of = |scheduler: &str, way: Way| -> Result<Vec<String>, ExhibitError> {
        let (seen, none) = (measured(setup, way)?, measured(setup, Way::OneQueue)?);
        Ok(vec![
            scheduler.into(),
            way.name().into(),
            format!("{:.0}", seen.p99_us),
            format!("{:.0}", 100.0 * seen.neighbour_mb_s / none.neighbour_mb_s),
        ])
    };
    Ok(Table::exhibit(
        "Schedulers of the controller and of the host (6.2.1): the victim's p99, the neighbour's throughput",
        &["scheduler", "the victim is", "p99 us", "neighbour %"],
        vec![
            of("none", Way::OneQueue)?,
            of("controller", Way::SmallBursts)?,
            of("controller", Way::Weighted)?,
            of("controller", Way::Urgent)?,
            of("host", Way::Rate)?,
        ],
        &["100 %: the neighbour's throughput where the victim waits in its queue"],
    ))
}

fn faces(setup: &Setup) -> Result<Exhibit, ExhibitError> {
    let line = |name: &str, row: &'static Row| -> Result<Vec<String>, ExhibitError> {
        let alone = reads(row, &face(setup, row), 4096, Arrivals::Loop)?;
        let own = alone.part("block driver");
        Ok(vec![
            name.into(),
            format!("{:.1}", alone.total_us),
            format!("{own:.1}"),
            format!("{:.1}", from_one_core(setup, row)?),
        ])
    };
    Ok(Table::exhibit(
        "SCSI beside native NVMe: reads of 4 KiB from one core",
        &["driver", "latency us", "of it SCSI", "kIOPS at depth 32"],
        vec![line("the SCSI resource", SCSI)?, line("native NVMe", NVME)?],
        &["the plan's cost of the SCSI resource is assumed, from cycles that Huffman (2013) gives"],
    ))
}
