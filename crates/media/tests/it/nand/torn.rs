//! Every operation of a tiny chip, torn at every moment.

use media::contents::Keep;
use media::nand::{Cell, Error, Geometry, Nand, Order, PageAt, Sense, Spec, TORN_OF};

use super::{GOOD, at, program, read, spec};

/// Four word lines of planar MLC: the pages of a word line are programmed far apart.
fn mlc(seed: u64) -> Nand {
    let geometry = Geometry {
        cell: Cell::Mlc,
        order: Order::Diagonal,
        group: 1,
        ..spec(Keep::Stamps).geometry
    };
    Nand::new(Spec { geometry, seed, ..spec(Keep::Stamps) }).unwrap()
}

/// Lower pages of a page's word line.
fn shared(nand: &Nand, page: u32) -> Vec<u32> {
    let line = nand.cells(page).word_line;
    (0..page).filter(|other| nand.cells(*other).word_line == line).collect()
}

/// Programs a block up to `page`, which is torn after `done`; returns the read result of each page.
fn torn(seed: u64, page: u32, done: u32) -> Vec<Sense> {
    let mut nand = mlc(seed);
    for page in 0..=page {
        program(&mut nand, at(0, page), 1).unwrap();
    }
    nand.tear_program(at(0, page), done).unwrap();
    assert_eq!(nand.next_page(0), if page == 7 { None } else { Some(page + 1) });
    (0..8).map(|page| nand.sense(at(0, page), 0b11, 0).unwrap()).collect()
}

#[test]
fn torn_program_damages_only_pages_of_shared_cells() {
    let (mut lost, mut spared, mut whole) = (0, 0, 0);
    for page in 0..8 {
        let lower = shared(&mlc(0), page);
        for (seed, done) in (0..64).map(|n| (n, n as u32 * (TORN_OF / 63))) {
            let seen = torn(seed, page, done);
            assert_eq!(seen, torn(seed, page, done), "the same seed, the same harm");
            for other in 0..8 {
                let sense = seen[other as usize];
                if other == page {
                    assert_ne!(sense, Sense::Erased, "a torn page is not an erased one");
                    whole += u32::from(matches!(sense, Sense::Good { .. }));
                    let late = done > TORN_OF / 100 * 95;
                    assert!(late || sense == Sense::Uncorrectable, "{done} parts of it");
                } else if other > page {
                    assert_eq!(sense, Sense::Erased);
                } else if lower.contains(&other) {
                    lost += u32::from(sense == Sense::Uncorrectable);
                    spared += u32::from(matches!(sense, Sense::Good { .. }));
                } else {
                    assert_eq!(sense, GOOD, "page {other} has nothing to do with page {page}");
                }
            }
        }
    }
    assert!(lost > 50 && spared > 50, "{lost} lower pages lost, {spared} spared");
    assert!(whole > 4, "{whole} got there nevertheless");
}

#[test]
fn torn_erase_leaves_block_unreadable_until_erased() {
    let mut readable = 0;
    for done in (0..16).map(|part| part * 64).chain((1..=32).map(|part| part * (TORN_OF / 32))) {
        for filled in [0, 1, 5, 8] {
            let mut nand = mlc(5);
            for page in 0..filled {
                program(&mut nand, at(0, page), 1).unwrap();
                program(&mut nand, at(1, page), 1).unwrap();
            }
            nand.tear_erase(0, done).unwrap();
            assert_eq!((nand.next_page(0), nand.wear(0).cycles), (None, 1));
            let refused = program(&mut nand, at(0, filled), 2).unwrap_err();
            assert!(matches!(refused, Error::Order { next: None, .. } | Error::Range { .. }));
            for page in 0..8 {
                let sense = nand.sense(at(0, page), 0b11, 0).unwrap();
                assert_ne!(sense, Sense::Erased, "half-erased cells are not erased ones");
                readable += u32::from(sense != Sense::Uncorrectable && done > 0);
                let early = page < filled && done < TORN_OF / 20;
                assert!(early || sense == Sense::Uncorrectable, "{done} parts of it");
                let expected = if page < filled { GOOD } else { Sense::Erased };
                assert_eq!(nand.sense(at(1, page), 0b11, 0).unwrap(), expected);
            }
            nand.erase(0).unwrap();
            program(&mut nand, at(0, 0), 3).unwrap();
            assert_eq!(read(&mut nand, at(0, 0)).0, GOOD);
        }
    }
    assert!(readable > 0, "early cuts leave something");
}

#[test]
fn undo_program_restores_erased_page() {
    for keep in [Keep::Everything, Keep::Stamps] {
        let mut nand = Nand::new(spec(keep)).unwrap();
        let empty = nand.next_page(0);
        for page in 0..12 {
            program(&mut nand, at(0, page), 1).unwrap();
            nand.keep_whole(at(0, page), 0, &[9; 4096]).unwrap();
            nand.undo_program(at(0, page)).unwrap();
            assert_eq!(nand.sense(at(0, page), 1, 0).unwrap(), Sense::Erased);
            program(&mut nand, at(0, page), 2).unwrap();
            let (sense, _, spare) = read(&mut nand, at(0, page));
            assert_eq!((sense, spare), (GOOD, [2; 20]));
            assert!(nand.whole(at(0, page), 0).is_none());
        }
        let first = PageAt { block: 0, page: 0 };
        assert!(matches!(nand.undo_program(first), Err(Error::Order { .. })));
        assert!(matches!(nand.tear_program(first, 0), Err(Error::Order { .. })));
        for page in (0..12).rev() {
            nand.undo_program(at(0, page)).unwrap();
        }
        assert_eq!(nand.next_page(0), empty);
    }
}
