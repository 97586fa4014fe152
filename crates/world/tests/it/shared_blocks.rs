//! Blocks that several threads read and write at the same time.

use std::sync::atomic::{AtomicBool, Ordering};

use media::{Extent, Media, MediaError};
use proptest::prelude::*;
use runtime::{Log, Rt};
use world::shared_blocks::{SharedBlocks, SharedMedium};

const BLOCK: u32 = 512;
const BLOCKS: u64 = 40;

fn contents(medium: &SharedMedium, at: Extent) -> Vec<u8> {
    let mut found = vec![0xee; (at.blocks * BLOCK) as usize];
    let put = &mut |offset: u32, run: &[u8]| {
        found[offset as usize..][..run.len()].copy_from_slice(run);
    };
    medium.runs(at, put).expect("blocks of the medium");
    found
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u32, u8),
    AtOnce(u64, u32, u8),
    Deallocate(u64, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let extent = || (0..BLOCKS - 20, 1..=20_u32);
    let step = prop_oneof![
        (extent(), 1..=255_u8).prop_map(|((at, blocks), byte)| Step::Write(at, blocks, byte)),
        (extent(), 1..=255_u8).prop_map(|((at, blocks), byte)| Step::AtOnce(at, blocks, byte)),
        extent().prop_map(|(at, blocks)| Step::Deallocate(at, blocks)),
    ];
    prop::collection::vec(step, 1..30)
}

proptest! {
    /// One thread writes and another one reads, in turns.
    #[test]
    fn shared_blocks_are_an_array(steps in steps()) {
        let rt = Rt::simulated(None, Log::Off);
        let blocks = SharedBlocks::new(BLOCKS, BLOCK).expect("addresses");
        let (writer, reader) = (blocks.medium(), blocks.medium());
        let mut expected = vec![0; BLOCKS as usize * BLOCK as usize];
        for step in steps {
            let (block, blocks, byte) = match step {
                Step::Write(block, blocks, byte) | Step::AtOnce(block, blocks, byte) => {
                    (block, blocks, byte)
                }
                Step::Deallocate(block, blocks) => (block, blocks, 0),
            };
            let at = Extent { block, blocks };
            let data = vec![byte; (blocks * BLOCK) as usize];
            let done = match step {
                Step::Write(..) => rt.block_on(writer.write(at, &data)),
                Step::AtOnce(..) => {
                    writer.write_at_once(at, &mut |_, run| run.fill(byte)).map(|_| ())
                }
                Step::Deallocate(..) => rt.block_on(writer.deallocate(at)),
            };
            prop_assert!(done.is_ok());
            let begin = block as usize * BLOCK as usize;
            expected[begin..begin + data.len()].fill(byte);
        }
        let all = Extent { block: 0, blocks: BLOCKS as u32 };
        prop_assert!(contents(&reader, all) == expected);
    }
}

#[test]
fn blocks_past_the_end_are_refused() {
    let medium = SharedBlocks::new(BLOCKS, BLOCK).expect("addresses").medium();
    for (block, blocks) in [(BLOCKS, 1), (BLOCKS - 1, 2), (u64::MAX, 2), (0, 0)] {
        let at = Extent { block, blocks };
        assert_eq!(medium.runs(at, &mut |_, _| ()), Err(MediaError::Range), "{at:?}");
    }
}

#[test]
fn data_that_is_not_filled_in_is_not_of_an_earlier_command() {
    let medium = SharedBlocks::new(BLOCKS, BLOCK).expect("addresses").medium();
    let (first, second) = (Extent { block: 0, blocks: 8 }, Extent { block: 8, blocks: 8 });
    assert_eq!(medium.write_at_once(first, &mut |_, run| run.fill(7)), Ok(true));
    assert_eq!(medium.write_at_once(second, &mut |_, _| ()), Ok(true));
    assert!(contents(&medium, second).iter().all(|byte| *byte == 0));
}

/// Two threads write pages of one value each, and two read them: every page is of one write. Without the
/// second look at the version, or without the odd one, pages of two values are read.
#[test]
fn page_is_read_as_one_write_left_it() {
    let (writes, pages) = if cfg!(miri) { (20, 1) } else { (300_000, 1) };
    let blocks = SharedBlocks::new(8 * pages, BLOCK).expect("addresses");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let (medium, mut seen) = (blocks.medium(), 0_u64);
                    while !done.load(Ordering::Relaxed) {
                        for page in 0..pages {
                            let found = contents(&medium, Extent { block: 8 * page, blocks: 8 });
                            assert!(found.iter().all(|byte| *byte == found[0]), "a torn page");
                            seen += u64::from(found[0] > 0);
                        }
                    }
                    seen
                })
            })
            .collect();
        let writers: Vec<_> = (0..2_u8)
            .map(|writer| {
                let blocks = &blocks;
                scope.spawn(move || {
                    let medium = blocks.medium();
                    for number in 0..writes {
                        let byte = 1 + 2 * (number % 100) as u8 + writer;
                        let at = Extent { block: 8 * (number % pages), blocks: 8 };
                        let wrote = medium.write_at_once(at, &mut |_, run| run.fill(byte));
                        assert_eq!(wrote, Ok(true));
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
        done.store(true, Ordering::Relaxed);
        let seen: u64 =
            readers.into_iter().map(|reader| reader.join().expect("no torn page")).sum();
        assert!(cfg!(miri) || seen > 0, "written pages were read");
    });
}
