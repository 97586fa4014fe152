//! A large device takes memory only for data that were written.

use media::contents::{Backing, Contents, Keep, Spec};
use runtime::Rng;

const CAPACITY: u64 = 4 << 40;
const TOUCHED: u64 = 100;
const LEAF: u64 = 64 << 10;

fn touched(keep: Keep) -> Contents {
    let spec = Spec { capacity_bytes: CAPACITY, block_bytes: 4096, keep, backing: Backing::Memory };
    let mut contents = Contents::new(spec).unwrap();
    let mut rng = Rng::new(4);
    for stamp in 0..TOUCHED {
        let block = rng.below(CAPACITY / 4096);
        contents.write_stamp(block, stamp.to_le_bytes()).unwrap();
        assert_eq!(contents.read_stamp(block).unwrap(), stamp.to_le_bytes());
        // Reading elsewhere takes no memory.
        let before = contents.allocated_bytes();
        contents.read_stamp(rng.below(CAPACITY / 4096)).unwrap();
        assert_eq!(contents.allocated_bytes(), before);
    }
    contents
}

#[test]
fn sparse_4_tib_memory_bound() {
    let mut contents = touched(Keep::Everything);
    // A pointer for each 128 MiB of device; for each written place a leaf, and a shelf of 2,048 pointers and
    // a count.
    let root = CAPACITY / (128 << 20) * 8;
    assert_eq!(root, 256 << 10);
    let bound = root + TOUCHED * (LEAF + 16392);
    assert!(contents.allocated_bytes() <= bound, "{} > {bound}", contents.allocated_bytes());
    assert!(contents.allocated_bytes() >= TOUCHED * LEAF);
    contents.discard(0, CAPACITY).unwrap();
    assert_eq!(contents.allocated_bytes(), root);
}

#[test]
fn sparse_4_tib_stamps_memory_bound() {
    let mut contents = touched(Keep::Stamps);
    // Stamps of 8 GiB: a pointer for each 64 GiB of device.
    let root = 64 * 8;
    let bound = root + TOUCHED * LEAF + 64 * 16392;
    assert!(contents.allocated_bytes() <= bound, "{} > {bound}", contents.allocated_bytes());
    contents.discard(0, CAPACITY).unwrap();
    assert_eq!(contents.allocated_bytes(), root);
}

#[test]
fn write_stamp_zeroes_rest_of_block() {
    for keep in [Keep::Everything, Keep::Stamps] {
        let (capacity_bytes, backing) = (1 << 20, Backing::Memory);
        let spec = Spec { capacity_bytes, block_bytes: 4096, keep, backing };
        let mut contents = Contents::new(spec).unwrap();
        contents.write(4096, &[9; 4096]).unwrap();
        contents.write_stamp(1, *b"stamped!").unwrap();
        let mut seen = [0xee; 4096];
        contents.read_into(4096, &mut seen).unwrap();
        assert_eq!(seen[..8], *b"stamped!");
        assert_eq!(seen[8..], [0; 4088]);
    }
}
