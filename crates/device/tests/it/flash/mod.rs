//! Flash chips in virtual time: schedules worked out by hand, power cuts at every moment, and the contents of
//! the buffer after a cut.

mod contents;
mod cuts;
mod full;
mod layer;
mod live;
mod mounts;
mod processing;
mod schedules;

use std::rc::Rc;

use flash::chips::{ChipState, Chips, Options};
use ftl::{Blocks, Erase, Header, Page, PageRead, Pages, Part, Row, Source, Unit};
use media::contents::Keep;
use media::nand::{Nand, Profile, Spec, Timing};
use runtime::{Log, Rt, Span, Time};

/// The test profile: two dies of two planes on one channel of 1 GB/s.
fn spec() -> Spec {
    let Profile { geometry, errors, .. } = Profile::test();
    Spec { geometry, keep: Keep::Stamps, block_bytes: 4096, errors, seed: 7 }
}

fn timing() -> Timing {
    Profile::test().timing
}

fn chips(rt: &Rt, remains: impl Into<ChipState>, timing: Option<Timing>) -> Rc<Chips> {
    Rc::new(
        Chips::new(
            rt,
            remains,
            Options { timing, protected_buffer: true, nv_slots: None, held_up: false },
        )
        .unwrap(),
    )
}

/// A runtime, and new chips in it.
fn world(timing: Timing) -> (Rt, Rc<Chips>) {
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, Nand::new(spec()).unwrap(), Some(timing));
    (rt, chips)
}

fn page(die: u32, plane: u32, block: u32, page: u32) -> Page {
    Page { die, plane, block, page }
}

fn part(page: Page, units: u32) -> Part {
    Part { page, units, seen: PageRead::Unreadable }
}

fn row(die: u32, block: u32, planes: u32, page: u32) -> Row {
    Row { blocks: Blocks { die, block, planes }, page }
}

fn erase(die: u32, block: u32, planes: u32) -> Erase {
    Erase { blocks: Blocks { die, block, planes }, failed: 0 }
}

fn header(sequence: u64) -> Header {
    Header { sequence, erases: 3 }
}

/// Units without a source, numbered from `first`.
fn units(chips: &Chips, planes: u32, first: u32) -> Vec<Unit> {
    let count = chips.shape().row_units(planes);
    (first..first + count).map(|logical| Unit { logical, from: Source::Nothing }).collect()
}

/// Programs a whole row of the block.
async fn fill(chips: &Chips, row: Row) {
    let units = units(chips, row.blocks.planes, 100);
    chips.program(row, header(1), &units).await.unwrap();
}

/// Time in nanoseconds.
fn ns(at: Time) -> u64 {
    assert_eq!(at.0 % 1000, 0);
    at.0 / 1000
}

/// Does `work` at `us`; returns its end in nanoseconds.
async fn from<F: Future>(rt: &Rt, us: u64, work: impl FnOnce() -> F) -> u64 {
    rt.sleep_until(Time::ZERO + Span::us(us)).await;
    work().await;
    ns(rt.now())
}
