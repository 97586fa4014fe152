//! Time per access. In the suite the test is small and checks only sums. The timed version is large:
//! `cargo test --release -p doorbell-media --test it contents_speed -- --ignored --nocapture`

use media::contents::{Backing, Contents, Keep, Spec};
use runtime::Rng;
use std::hint::black_box;
use std::time::Instant;

const BLOCK: u64 = 4096;

/// Contents with this many blocks, each written with its number.
fn contents(keep: Keep, blocks: u64) -> Contents {
    let spec = Spec {
        capacity_bytes: blocks * BLOCK,
        block_bytes: BLOCK as u32,
        keep,
        backing: Backing::Memory,
    };
    let mut contents = Contents::new(spec).unwrap();
    for block in 0..blocks {
        contents.write_stamp(block, block.to_le_bytes()).unwrap();
    }
    contents
}

/// Reads each block once by `runs`, and sums their stamps.
fn lend(contents: &Contents, order: &[u64]) -> u64 {
    let mut sum = 0_u64;
    for block in order {
        let lent = contents.runs(black_box(block * BLOCK), BLOCK as u32, &mut |_, run| {
            let stamp = run.first_chunk().expect("a stamp at least");
            sum = sum.wrapping_add(u64::from_le_bytes(*stamp));
        });
        lent.unwrap();
    }
    sum
}

/// Block numbers in random order, drawn from the first `among`.
fn order(among: u64, length: usize) -> Vec<u64> {
    let mut rng = Rng::new(92);
    (0..length).map(|_| rng.below(among)).collect()
}

#[test]
fn runs_reach_every_block() {
    for keep in [Keep::Everything, Keep::Stamps] {
        let order = order(256, 10_000);
        assert_eq!(lend(&contents(keep, 256), &order), order.iter().sum());
    }
}

#[test]
#[ignore = "a measurement, to be made in release and by itself"]
fn contents_access_time() {
    let accesses = 4_000_000;
    for (keep, name) in [(Keep::Everything, "everything"), (Keep::Stamps, "stamps")] {
        let contents = contents(keep, 1 << 18); // 1 GiB of device
        for (among, heat) in [(4, "hot"), (1 << 18, "over 1 GiB")] {
            let order = order(among, accesses);
            let picoseconds = (0..5)
                .map(|_| {
                    let start = Instant::now();
                    assert_eq!(lend(&contents, &order), order.iter().sum());
                    start.elapsed().as_nanos() * 1000 / accesses as u128
                })
                .min()
                .unwrap();
            println!("runs of 4 KiB, {name}, {heat}: {picoseconds} ps an access");
        }
    }
    let mut contents = contents(Keep::Everything, 1 << 18);
    let order = order(4, accesses);
    let mut page = [0; BLOCK as usize];
    let start = Instant::now();
    for block in &order {
        contents.read_into(block * BLOCK, black_box(&mut page)).unwrap();
    }
    let read = start.elapsed().as_nanos() * 1000 / accesses as u128;
    let start = Instant::now();
    for block in &order {
        contents.write(block * BLOCK, black_box(&page)).unwrap();
    }
    let write = start.elapsed().as_nanos() * 1000 / accesses as u128;
    println!("read_into, write of 4 KiB, everything, hot: {read} ps, {write} ps an access");
}
