//! Data read equal data written: from slots and from flash, as stamps and in full, timed and untimed.

use ftl::{META, Page, PageRead, Pages, Place, Source, Tag, Unit};
use media::contents::Keep;
use media::nand::{Errors, Geometry, Nand, Spec};
use runtime::{Log, Rt};

use super::{chips, erase, header, page, part, row, spec, timing};

fn read_slot(chips: &flash::chips::Chips, slot: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    chips.lend_slot(slot, &mut |at, run| bytes[at as usize..][..run.len()].copy_from_slice(run));
    bytes
}

fn read_unit(chips: &flash::chips::Chips, at: Place) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    let put = &mut |from: u32, run: &[u8]| {
        bytes[from as usize..][..run.len()].copy_from_slice(run);
    };
    chips.lend(at, put).then_some(bytes)
}

/// The part of blocks of 512 bytes that `keep` retains.
fn remembered(keep: Keep, mut bytes: Vec<u8>) -> Vec<u8> {
    if keep == Keep::Stamps {
        bytes.chunks_mut(512).for_each(|block| block[8..].fill(0));
    }
    bytes
}

fn bytes(salt: u8) -> Vec<u8> {
    (0..4096_u32).map(|at| (at / 512) as u8 ^ (at as u8) ^ salt).collect()
}

#[test]
fn slot_data_survive_staging_program_and_copy() {
    for (keep, timed) in [
        (Keep::Everything, false),
        (Keep::Everything, true),
        (Keep::Stamps, false),
        (Keep::Stamps, true),
    ] {
        let rt = Rt::simulated(None, Log::Off);
        let nand = Nand::new(Spec { keep, block_bytes: 512, ..spec() }).unwrap();
        let chips = chips(&rt, nand, timed.then(timing));
        let tag = |logical| Tag { logical, order: 1 };
        chips.slots(4);
        chips.stage(0, tag(5), 0, &bytes(1));
        chips.stage(1, tag(6), 512, &bytes(2)[512..1536]);
        chips.stage(2, tag(META | 7), 100, &[9; 33]);
        let mut middle = vec![0; 4096];
        middle[512..1536].copy_from_slice(&bytes(2)[512..1536]);
        let mut meta = vec![0; 4096];
        meta[100..133].fill(9);
        assert_eq!(read_slot(&chips, 0), remembered(keep, bytes(1)));
        assert_eq!(read_slot(&chips, 1), remembered(keep, middle.clone()));
        assert_eq!(read_slot(&chips, 2), meta, "what the translation layer writes is whole");
        // One plane, three pages of two units.
        let from = [Source::Slot(0), Source::Slot(1), Source::Slot(2), Source::Nothing];
        let logical = [5, 6, META | 7, 8, 9, 10];
        let mut units: Vec<Unit> = (0..6)
            .map(|at| Unit {
                logical: logical[at],
                from: from.get(at).copied().unwrap_or(Source::Nothing),
            })
            .collect();
        rt.block_on(chips.program(row(1, 3, 0b10, 0), header(77), &units)).unwrap();
        chips.stage(0, tag(5), 0, &bytes(8));
        let place = |number: u32, unit| Place { page: page(1, 1, 3, number), unit };
        let mut parts = [0, 1, 2, 3].map(|number| part(page(1, 1, 3, number), 0b11));
        rt.block_on(chips.read(&mut parts));
        let good = PageRead::Good { corrected: 0, retries: 0 };
        assert_eq!(parts.map(|part| part.seen), [good, good, good, PageRead::Erased]);
        assert_eq!(read_unit(&chips, place(0, 0)), Some(remembered(keep, bytes(1))));
        assert_eq!(read_unit(&chips, place(0, 1)), Some(remembered(keep, middle)));
        assert_eq!(read_unit(&chips, place(1, 0)), Some(meta.clone()));
        assert_eq!(read_unit(&chips, place(1, 1)), Some(vec![0; 4096]));
        assert_eq!(read_unit(&chips, place(3, 0)), None);
        assert_eq!(chips.header(page(1, 1, 3, 2)), Some(header(77)));
        assert_eq!(chips.header(page(1, 1, 3, 3)), None);
        assert_eq!(
            (0..2).map(|unit| chips.logical(place(1, unit))).collect::<Vec<_>>(),
            [META | 7, 8]
        );

        // Copied within flash, and back into the buffer.
        let copied = [place(0, 0), place(1, 0), place(0, 1)];
        for (unit, from) in units.iter_mut().zip(copied) {
            let logical = chips.logical(from);
            *unit = Unit { logical, from: Source::Flash(from) };
        }
        rt.block_on(chips.program(row(0, 2, 0b01, 0), header(78), &units)).unwrap();
        let copy = |number, unit| Place { page: page(0, 0, 2, number), unit };
        assert_eq!(read_unit(&chips, copy(0, 0)), Some(remembered(keep, bytes(1))));
        assert_eq!(read_unit(&chips, copy(0, 1)), Some(meta.clone()));
        rt.block_on(chips.erase(&mut [erase(1, 3, 0b10)]));
        assert_eq!(read_unit(&chips, place(1, 0)), None);
        chips.release(3);
        chips.stage_copy(3, tag(META | 7), Some(copy(0, 1)));
        assert_eq!(read_slot(&chips, 3), meta);
        chips.stage_slot(1, tag(META | 7), 3);
        assert_eq!(read_slot(&chips, 1), meta);
        chips.stage_slot(1, tag(5), 0);
        assert_eq!(read_slot(&chips, 1), remembered(keep, bytes(8)));
        chips.stage_copy(1, tag(5), None);
        assert_eq!(read_slot(&chips, 1), [0; 4096]);
        assert_eq!(chips.kept(3), Some(tag(META | 7)));
        chips.release(3);
        assert_eq!(chips.kept(3), None);
        chips.stage(3, tag(9), 512, &bytes(3)[512..1024]);
        let mut one = vec![0; 4096];
        one[512..1024].copy_from_slice(&bytes(3)[512..1024]);
        assert_eq!(read_slot(&chips, 3), remembered(keep, one), "nothing is left of what it held");
    }
}

#[test]
fn laid_row_takes_no_time_and_reads_zeros() {
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, Nand::new(spec()).unwrap(), Some(timing()));
    let logicals: Vec<u32> = (40..52).collect();
    chips.lay(row(0, 5, 0b11, 0), header(9), &logicals);
    assert_eq!(rt.now().0, 0);
    let at = |plane, number, unit| Place { page: page(0, plane, 5, number), unit };
    let places = (0..12).map(|at| (at / 6, at / 2 % 3, at % 2));
    for (logical, (plane, number, unit)) in (40..).zip(places) {
        let place = at(plane, number, unit);
        assert_eq!(chips.logical(place), logical, "plane by plane, page by page, unit by unit");
        assert_eq!(read_unit(&chips, place), Some(vec![0; 4096]));
    }
    assert_eq!(chips.header(page(0, 1, 5, 2)), Some(header(9)));
}

#[test]
fn bad_block_mark_survives_power_cut() {
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, Nand::new(spec()).unwrap(), None);
    let block = page(1, 0, 4, 9);
    assert!(!chips.is_bad(block));
    chips.mark_bad(block);
    let remains = std::rc::Rc::into_inner(chips).unwrap().cut();
    let chips = super::chips(&rt, remains, None);
    assert!(chips.is_bad(block));
    assert!(!chips.is_bad(Page { plane: 1, ..block }));
}

#[test]
fn geometry_without_spare_bytes_is_rejected() {
    let rt = Rt::simulated(None, Log::Off);
    let made = |geometry: Geometry| {
        let options = flash::chips::Options {
            timing: None,
            protected_buffer: false,
            nv_slots: None,
            held_up: false,
        };
        let errors = Errors { codeword_bytes: 512, ..spec().errors };
        let nand = Nand::new(Spec { geometry, errors, block_bytes: 512, ..spec() }).unwrap();
        flash::chips::Chips::new(&rt, nand, options).err().map(|error| error.to_string())
    };
    let good = spec().geometry;
    assert_eq!(made(good.clone()), None);
    let said = made(Geometry { free_bytes: 19, ..good.clone() }).unwrap();
    assert_eq!(said, "flash: free_bytes is 19, expected 12, and 4 for each unit of a page");
    let many = Geometry { unit_bytes: 512, page_bytes: 33 * 512, free_bytes: 128, ..good };
    assert_eq!(made(many).unwrap(), "flash: units of a page is 33, expected at most 32");
}
