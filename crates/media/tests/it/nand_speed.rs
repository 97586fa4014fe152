//! Time and memory of flash. In the suite the test is small and checks only results. The timed version has
//! 512 GiB:
//! `cargo test --release -p doorbell-media --test it nand_speed -- --ignored --nocapture`

use std::time::Instant;

use crate::common::Scratch;
use media::contents::Keep;
use media::nand::{Data, Geometry, Nand, PageAt, Profile, Sense, Spec};
use runtime::Rng;

/// TLC with this many blocks per plane, on 16 dies of four planes.
fn flash(blocks: u32) -> Nand {
    let Profile { geometry, errors, .. } = Profile::tlc();
    let geometry = Geometry { blocks, ..geometry };
    Nand::new(Spec { geometry, keep: Keep::Stamps, block_bytes: 4096, errors, seed: 3 }).unwrap()
}

/// Fills every good block as a translation layer would after random overwrites: a random stamp and a logical
/// number of `bits` bits for each unit, a sequence number for each row. Returns the number of pages.
fn fill(nand: &mut Nand, bits: u32) -> u64 {
    let geometry = nand.geometry().clone();
    let mut rng = Rng::for_part(1, "fill");
    let mut pages = 0_u64;
    for block in 0..geometry.all_blocks() {
        if nand.is_bad(block) {
            continue;
        }
        for page in 0..geometry.pages() {
            let (mut stamps, mut spare) = ([0; 32], [0; 28]);
            spare[..8].copy_from_slice(&(pages / 12).to_le_bytes());
            for unit in 0..4 {
                stamps[unit * 8..][..8].copy_from_slice(&rng.next_u64().to_le_bytes());
                let logical = rng.next_u64() as u32 >> (32 - bits);
                spare[12 + unit * 4..][..4].copy_from_slice(&logical.to_le_bytes());
            }
            // One program in 10^8 fails, which is expected here.
            let _ = nand.program(PageAt { block, page }, Data::Kept(&stamps), &spare);
            pages += 1;
        }
    }
    pages
}

/// Senses units in all blocks; returns the number of readable ones.
fn sense(nand: &mut Nand, count: u64) -> u64 {
    let geometry = nand.geometry().clone();
    let mut rng = Rng::for_part(2, "sense");
    let mut good = 0;
    let mut stamp = [0; 8];
    for _ in 0..count {
        let block = rng.below(geometry.all_blocks().into()) as u32;
        let at = PageAt { block, page: rng.below(geometry.pages().into()) as u32 };
        let unit = rng.below(geometry.units().into()) as u32;
        let sensed = nand.sense(at, 1 << unit, 0).unwrap();
        good += u64::from(matches!(sensed, Sense::Good { .. }) && nand.kept(at, unit, &mut stamp));
    }
    good
}

#[test]
fn filled_nand_save_load_and_sense() {
    let mut nand = flash(1);
    let empty = nand.allocated_bytes();
    let units = 4 * fill(&mut nand, 27);
    let held = nand.allocated_bytes() - empty;
    assert!(held < units * 14, "{held} bytes for {units} units");
    let good = sense(&mut nand, 1000);
    assert!(good > 900);
    let scratch = Scratch::new("nand-speed");
    let path = scratch.join("drive.nand");
    nand.save(&path, b"").unwrap();
    let (mut loaded, _) = Nand::load_from(&path).unwrap();
    assert_eq!(loaded.allocated_bytes(), empty);
    assert_eq!(sense(&mut loaded, 1000), good);
}

#[test]
#[ignore = "a measurement, to be made in release and by itself; takes 2 GiB of memory and of disk"]
fn nand_512_gib_speed_and_memory() {
    // 552 GB of cells, a little more than 512 GiB of them for the host.
    let mut nand = flash(480);
    let bytes = nand.geometry().bytes() as f64;
    let empty = nand.allocated_bytes();
    let begun = Instant::now();
    let pages = fill(&mut nand, 27);
    let took = begun.elapsed();
    let held = nand.allocated_bytes();
    println!(
        "{:.1} GiB of cells: {:.1} MiB of memory before the first write, {:.2} GiB filled",
        bytes / f64::from(1 << 30),
        empty as f64 / f64::from(1 << 20),
        held as f64 / f64::from(1 << 30),
    );
    println!("{:.2} GB for each TB of cells", held as f64 / bytes * 1e3);
    println!("{:.2} bytes a unit", (held - empty) as f64 / (pages * 4) as f64);
    let each = |took: std::time::Duration, count: u64| took.as_nanos() as f64 / count as f64;
    println!("program: {:.0} ns a page of four units, {took:.2?} in all", each(took, pages));
    let begun = Instant::now();
    let good = sense(&mut nand, 4_000_000);
    println!("sense: {:.0} ns a unit, {good} good", each(begun.elapsed(), 4_000_000));
    let begun = Instant::now();
    let fork = nand.fork();
    println!("fork: {:.2?}", begun.elapsed());
    drop(fork);
    let scratch = Scratch::new("nand-speed");
    let path = scratch.join("drive.nand");
    let begun = Instant::now();
    nand.save(&path, b"").unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    println!("save: {:.2?} for {:.2} GB", begun.elapsed(), length as f64 / 1e9);
    drop(nand);
    let begun = Instant::now();
    let (mut nand, _) = Nand::load_from(&path).unwrap();
    println!("load: {:.2?}", begun.elapsed());
    let begun = Instant::now();
    let blocks = nand.geometry().all_blocks();
    for block in 0..blocks {
        nand.sense(PageAt { block, page: 0 }, 1, 0).unwrap();
    }
    println!("a page of every block from the file: {:.2?}", begun.elapsed());
    let begun = Instant::now();
    for block in (0..blocks).filter(|block| !nand.is_bad(*block)).collect::<Vec<_>>() {
        let _ = nand.erase(block);
    }
    println!("erase: {:.0} ns a block", each(begun.elapsed(), blocks.into()));
}
