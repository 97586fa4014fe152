//! Cost of a mount, in pages sensed, independent of the machine's speed.

use std::rc::Rc;

use flash::chips::{ChipState, Chips, Options as ChipOptions};
use ftl::{Ftl, Options, Pages, Shape};
use media::contents::Keep;
use media::nand::{Errors, Geometry, Nand, Spec};
use runtime::{Log, Rt, Span};

use super::{spec, timing};

const CHIPS: ChipOptions =
    ChipOptions { timing: None, protected_buffer: false, nv_slots: None, held_up: false };

fn nand() -> Nand {
    let geometry = Geometry { blocks: 64, ..spec().geometry };
    Nand::new(Spec { geometry, errors: Errors::none(), keep: Keep::Stamps, ..spec() }).unwrap()
}

fn options(shape: &Shape) -> Options {
    let units = Options::units_for(shape, 150, 2, 3);
    Options { block_bytes: 4096, units, ..Options::new(shape) }
}

/// Mounts, runs `work`, cuts the power. Returns the remains, the shape, and the number of pages that the
/// mount sensed.
fn life(
    remains: impl Into<ChipState>,
    work: impl AsyncFnOnce(&Rt, &Ftl<Chips>),
) -> (ChipState, Shape, u64) {
    let rt = Rt::simulated(None, Log::Off);
    let chips = ChipOptions { timing: Some(timing()), ..CHIPS };
    let chips = Rc::new(Chips::new(&rt, remains, chips).unwrap());
    let shape = chips.shape();
    let senses = rt.block_on(async {
        let ftl = Ftl::mount(&rt, chips.clone(), &options(&shape)).await.unwrap();
        let senses = chips.counts().senses;
        work(&rt, &ftl).await;
        senses
    });
    rt.drop_tasks();
    (Rc::into_inner(chips).expect("the tasks are gone").cut(), shape, senses)
}

/// Writes the whole drive `times` times, and flushes.
async fn write(ftl: &Ftl<Chips>, times: u64) {
    let blocks = u64::from(options(&ftl_shape()).units);
    for version in 0..times {
        for block in 0..blocks {
            let mut bytes = [0; 4096];
            bytes[..8].copy_from_slice(&(version << 32 | block | 1 << 31).to_le_bytes());
            ftl.write(block * 7919 % blocks, &bytes).await.unwrap();
        }
    }
    ftl.flush().await.unwrap();
}

fn ftl_shape() -> Shape {
    flash::chips::shape(nand().geometry(), CHIPS.held_up)
}

fn pages_of_row(shape: &Shape) -> u64 {
    u64::from(shape.dies * shape.planes * shape.group)
}

/// On a new drive the mount senses the first row of each superblock, and the first page of each root block.
#[test]
fn mount_of_new_drive_senses_one_row_per_superblock() {
    let (_, shape, senses) = life(nand(), async |_, _| {});
    let rows = u64::from(shape.blocks) * pages_of_row(&shape);
    assert!(senses <= rows + 16, "{senses} pages sensed, {rows} are the first of superblocks");
}

/// After a cut at any moment, a mount senses no more pages than there are, apart from those it senses from
/// both ends.
#[test]
fn mount_senses_each_page_once_and_open_superblocks_twice() {
    let (mut remains, mut most, mut least) = (nand().into(), 0, u64::MAX);
    for number in 0..6 {
        let (left, shape, senses) = life(remains, async |rt, ftl| {
            write(ftl, 2).await;
            rt.sleep(Span::us(37 * number)).await;
        });
        remains = left;
        let superblock = u64::from(shape.rows()) * pages_of_row(&shape);
        // Open superblocks, and the remains of the map and of trims.
        let bound = superblock * (u64::from(shape.blocks) + 4);
        assert!(senses <= bound, "life {number}: {senses} pages sensed, at most {bound} expected");
        (most, least) = (most.max(senses), least.min(senses));
    }
    assert!(most > 2 * least, "{least} to {most}: no mount found anything written");
}
