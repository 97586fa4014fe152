//! Time that flash software on the device takes, worked out by hand; the chips take none.

use std::cell::RefCell;
use std::rc::Rc;

use flash::chips::{Chips, Options};
use flash::drive::Drive;
use ftl::{Pages, Processing};
use media::contents::Keep;
use media::nand::{Geometry, Nand, Spec};
use media::{Extent, Media};
use runtime::{Log, Rng, Rt, Span};

use super::{ns, spec};

/// Two blocks are a unit.
const BLOCK_BYTES: u32 = 2048;

fn drive(rt: &Rt, processing: Processing) -> Rc<Drive<Chips>> {
    let options = Options { timing: None, protected_buffer: false, nv_slots: None, held_up: false };
    let spec = spec();
    let geometry = Geometry { blocks: 32, ..spec.geometry };
    let nand = Nand::new(Spec { block_bytes: BLOCK_BYTES, geometry, ..spec }).unwrap();
    let chips = Rc::new(Chips::new(rt, nand, options).unwrap());
    let shape = chips.shape();
    let units = ftl::Options::units_for(&shape, 150, 2, 3);
    let own = ftl::Options { block_bytes: BLOCK_BYTES, units, ..ftl::Options::new(&shape) };
    let own = ftl::Options { processing, ..own };
    Drive::start(rt, chips, own, Keep::Everything, Vec::new())
}

/// Ends of reads and writes that all begin at time 0, in nanoseconds.
fn ends(processing: Processing, calls: &[(u64, u32, bool)]) -> Vec<u64> {
    let rt = Rt::simulated(None, Log::Off);
    let drive = drive(&rt, processing);
    rt.block_on(async { drive.software().await.map(drop) }).unwrap();
    assert_eq!(ns(rt.now()), 0, "the mount takes no time");
    let ends = Rc::new(RefCell::new(vec![0; calls.len()]));
    for (number, (block, blocks, writes)) in calls.iter().copied().enumerate() {
        let (rt_, drive, ends) = (rt.clone(), drive.clone(), ends.clone());
        rt.spawn(async move {
            let at = Extent { block, blocks };
            let data = vec![1; (blocks * BLOCK_BYTES) as usize];
            match writes {
                true => drive.write(at, &data).await.unwrap(),
                false => drop(drive.read(at).await.unwrap()),
            }
            ends.borrow_mut()[number] = ns(rt_.now());
        });
    }
    rt.block_on(rt.sleep(Span::s(1)));
    ends.take()
}

#[test]
fn units_of_reads_and_writes_take_the_processor_in_turn() {
    let (us, ns) = (Span::us, Span::ns);
    let free = Processing::default();
    assert_eq!(ends(free, &[(0, 2, false), (0, 8, true)]), [0, 0]);
    let some = Processing { lookup: us(2), update: ns(600), ..free };
    // One unit, though it is half of one; then four units; then one that begins and ends within two.
    let calls = [(1, 1, false), (0, 8, true), (3, 2, true)];
    assert_eq!(ends(some, &calls), [2_000, 4_400, 5_600]);
    // Reads of several units.
    let split = Processing { split_lookup: us(3), ..some };
    let calls = [(0, 4, false), (1, 2, false), (0, 2, false)];
    assert_eq!(ends(split, &calls), [6_000, 12_000, 14_000]);
}

/// End of random overwrites of a full drive, in nanoseconds, and units that the collector copied meanwhile.
fn overwritten(collect: Span) -> (u64, u64) {
    let rt = Rt::simulated(None, Log::Off);
    let drive = drive(&rt, Processing { collect, ..Processing::default() });
    let (rt_, drive_) = (rt.clone(), drive.clone());
    let end = rt.block_on(async move {
        let units = drive_.software().await.unwrap().blocks() / 2;
        let mut rng = Rng::new(1);
        let overwrites = (0..5 * units).map(|_| rng.below(units));
        let data = vec![1; 2 * BLOCK_BYTES as usize];
        for unit in (0..units).chain(overwrites) {
            drive_.write(Extent { block: 2 * unit, blocks: 2 }, &data).await.unwrap();
        }
        drive_.flush().await.unwrap();
        ns(rt_.now())
    });
    (end, drive.mounted().unwrap().stats().counters.copied_units)
}

#[test]
fn writes_wait_for_the_processor_that_collects() {
    let (free, copied) = overwritten(Span::ZERO);
    assert_eq!(free, 0);
    assert!(copied > 0);
    let ends = [1, 2].map(|us| overwritten(Span::us(us)).0);
    assert!(ends[0] > 0);
    assert_eq!(ends[1], 2 * ends[0]);
}
