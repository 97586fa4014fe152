//! Power cuts at every moment of every operation.

use std::rc::Rc;

use flash::chips::{Chips, Options};
use ftl::{PageRead, Pages, Source, Tag, Unit};
use media::nand::{Nand, Spec, Suspend, Timing};
use runtime::{Log, Rt, Span};

use super::{chips, erase, fill, header, page, part, row, spec, timing};

/// After a cut: read results of the pages of a block of die 0, by plane, and the next programmable page.
fn after(remains: flash::chips::ChipState) -> (Vec<Vec<PageRead>>, Vec<Option<u32>>) {
    let next = [0, 1].map(|plane| remains.nand().next_page(plane * 8)).to_vec();
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, remains, None);
    let seen = (0..2).map(|plane| {
        let mut parts: Vec<_> = (0..12).map(|n| part(page(0, plane, 0, n), 0b11)).collect();
        rt.block_on(chips.read(&mut parts));
        parts.iter().map(|part| part.seen).collect()
    });
    (seen.collect(), next)
}

/// Writes two rows, begins the operation, and cuts the power after `ns`.
fn cut(
    seed: u64,
    timing: Timing,
    ns: u64,
    begin: impl AsyncFnOnce(&Rt, &Chips) + 'static,
) -> flash::chips::ChipState {
    let nand = Nand::new(Spec { seed, ..spec() }).unwrap();
    let rt = Rt::simulated(None, Log::Off);
    let untimed = chips(&rt, nand, None);
    rt.block_on(async {
        fill(&untimed, row(0, 0, 0b11, 0)).await;
        fill(&untimed, row(0, 0, 0b11, 3)).await;
    });
    let nand = Rc::into_inner(untimed).unwrap().cut();
    let chips = chips(&rt, nand, Some(timing));
    let (rt_, chips_) = (rt.clone(), chips.clone());
    rt.spawn(async move { begin(&rt_, &chips_).await });
    rt.block_on(rt.sleep(Span::ns(ns)));
    rt.drop_tasks();
    Rc::into_inner(chips).expect("nobody else has them").cut()
}

const GOOD: PageRead = PageRead::Good { corrected: 0, retries: 0 };

/// Checks the planes after a program of the third row was cut at `ns`.
fn check_program(timing: &Timing, ns: u64, begin: u64, end: u64) -> (bool, Vec<Vec<PageRead>>) {
    let program = async |_: &Rt, chips: &Chips| fill(chips, row(0, 0, 0b11, 6)).await;
    let (seen, next) = after(cut(7, timing.clone(), ns, program));
    assert_eq!((seen.clone(), next.clone()), after(cut(7, timing.clone(), ns, program)));
    let expected = if ns <= begin { Some(6) } else { Some(9) };
    assert_eq!(next, [expected; 2], "at {ns} ns");
    let mut whole = true;
    for plane in &seen {
        assert_eq!(plane[..6], [GOOD; 6], "what was written before is there, at {ns} ns");
        assert_eq!(plane[9..], [PageRead::Erased; 3]);
        for seen in &plane[6..9] {
            match *seen {
                PageRead::Erased => assert!(ns <= begin, "at {ns} ns"),
                PageRead::Good { .. } => assert!(ns > end - (end - begin) / 10, "at {ns} ns"),
                PageRead::Unreadable => assert!(begin < ns && ns < end, "at {ns} ns"),
            }
            whole &= *seen == GOOD;
        }
    }
    (whole, seen)
}

#[test]
fn program_cut_by_power_loss_is_absent_torn_or_done() {
    for ns in (0..=1_100_000).step_by(20_000).chain([50_920, 50_921, 1_050_919, 1_050_920]) {
        let (whole, _) = check_program(&timing(), ns, 50_920, 1_050_920);
        assert_eq!(whole, ns >= 1_050_919, "at {ns} ns");
    }
}

#[test]
fn power_cut_tears_single_plane_programs_in_turn() {
    let single = Timing { multi_plane: false, ..timing() };
    let program = async |_: &Rt, chips: &Chips| fill(chips, row(0, 0, 0b11, 6)).await;
    // The first plane is done after 1,050.92 us, when the second begins.
    for (ns, second) in [(1_050_920, PageRead::Erased), (1_060_000, PageRead::Unreadable)] {
        let (seen, next) = after(cut(7, single.clone(), ns, program));
        assert_eq!(seen[0][6..9], [GOOD; 3]);
        assert_eq!(seen[1][6..9], [second; 3]);
        assert_eq!(next, [Some(9), Some(if second == PageRead::Erased { 6 } else { 9 })]);
    }
    let (seen, _) = after(cut(7, single, 500_000, program));
    assert_eq!(seen[0][6..9], [PageRead::Unreadable; 3]);
}

#[test]
fn erase_cut_by_power_loss_leaves_block_unreadable() {
    let begin = async |_: &Rt, chips: &Chips| chips.erase(&mut [erase(0, 0, 0b11)]).await;
    for ns in (0..=3_100_000).step_by(100_000).chain([1, 3_000_999, 3_001_000]) {
        let (seen, next) = after(cut(7, timing(), ns, begin));
        for plane in seen {
            match ns {
                0 => assert_eq!(plane[..6], [GOOD; 6]),
                3_001_000.. => assert_eq!(plane, [PageRead::Erased; 12]),
                _ => {
                    assert!(plane[6..].iter().all(|seen| *seen == PageRead::Unreadable), "{ns} ns")
                }
            }
            if (300_000..3_000_000).contains(&ns) {
                assert_eq!(plane, [PageRead::Unreadable; 12], "at {ns} ns");
            }
        }
        let expected = match ns {
            0 => Some(6),
            3_001_000.. => Some(0),
            _ => None,
        };
        assert_eq!(next, [expected; 2], "at {ns} ns");
    }
}

#[test]
fn power_cut_of_suspended_program_tears_by_progress() {
    let us = Span::us;
    let suspend = Suspend { program: us(10), erase: us(20), resume: us(5), most: 1 };
    let timing = Timing { suspend: Some(suspend), ..timing() };
    let begin = async |rt: &Rt, chips: &Chips| {
        let program = async { fill(chips, row(0, 0, 0b11, 6)).await };
        let read = async {
            rt.sleep(Span::us(1_000)).await;
            chips.read(&mut [part(page(0, 0, 1, 0), 1)]).await;
            std::future::pending::<()>().await;
        };
        runtime::race(program, read).await;
    };
    // Suspended at 1,000 us after 949.08 us, resumed at 1,066 us, done at 1,116.92 us.
    let still = after(cut(7, timing.clone(), 1_000_000, begin));
    for ns in [1_010_000, 1_050_000, 1_066_000] {
        assert_eq!(after(cut(7, timing.clone(), ns, begin)), still, "nothing is done meanwhile");
    }
    let (seen, _) = after(cut(7, timing.clone(), 1_116_000, begin));
    assert!(seen[0][6..9].iter().all(|seen| matches!(seen, PageRead::Good { .. })), "{seen:?}");
    let (seen, _) = after(cut(7, timing, 1_116_920, begin));
    assert_eq!(seen[0][6..9], [GOOD; 3]);
}

#[test]
fn power_cut_drops_queued_program_and_erase() {
    let begin = async |rt: &Rt, chips: &Chips| {
        let first = async { fill(chips, row(0, 0, 0b11, 6)).await };
        let second = async { fill(chips, row(0, 0, 0b11, 9)).await };
        let erase = async { chips.erase(&mut [erase(0, 1, 0b11)]).await };
        runtime::race(first, runtime::race(second, erase)).await;
        rt.sleep(Span::s(1)).await;
    };
    // The first program is torn; the second, which would have filled the block, is taken back.
    let (seen, next) = after(cut(7, timing(), 700_000, begin));
    assert_eq!(seen[0][6..9], [PageRead::Unreadable; 3]);
    assert_eq!(seen[0][9..], [PageRead::Erased; 3]);
    assert_eq!(next, [Some(9); 2]);
}

#[test]
fn power_cut_keeps_buffer_only_if_protected() {
    for protected_buffer in [true, false] {
        let rt = Rt::simulated(None, Log::Off);
        let options =
            Options { timing: Some(timing()), protected_buffer, nv_slots: None, held_up: false };
        let chips = Chips::new(&rt, Nand::new(spec()).unwrap(), options.clone()).unwrap();
        chips.slots(2);
        let tag = Tag { logical: 4, order: 9 };
        chips.stage(1, tag, 0, &[5; 4096]);
        let chips = Chips::new(&rt, chips.cut().fork(), options).unwrap();
        chips.slots(2);
        assert_eq!(chips.kept(0), None);
        assert_eq!(chips.kept(1), protected_buffer.then_some(tag));
        let mut first = 0;
        chips.lend_slot(1, &mut |_, run| first = run[0]);
        assert_eq!(first, if protected_buffer { 5 } else { 0 });
    }
}

#[test]
fn held_up_chips_finish_begun_operations_at_power_cut() {
    for (us, expected) in [(40, PageRead::Erased), (60, GOOD), (500, GOOD)] {
        let rt = Rt::simulated(None, Log::Off);
        let options = Options {
            timing: Some(timing()),
            protected_buffer: false,
            nv_slots: None,
            held_up: true,
        };
        let chips = Rc::new(Chips::new(&rt, Nand::new(spec()).unwrap(), options).unwrap());
        let chips_ = chips.clone();
        rt.spawn(async move { fill(&chips_, row(0, 0, 0b11, 0)).await });
        let chips_ = chips.clone();
        rt.spawn(async move { chips_.erase(&mut [erase(1, 0, 0b11)]).await });
        rt.block_on(rt.sleep(Span::us(us)));
        rt.drop_tasks();
        let remains = Rc::into_inner(chips).unwrap().cut();
        assert_eq!(remains.nand().wear(16).cycles, 1, "the erase of die 1 has begun and ends");
        let (seen, _) = after(remains);
        assert_eq!(seen[0][..3], [expected; 3], "after {us} us");
    }
}

#[test]
fn flash_retention_age_follows_clock() {
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, Nand::new(spec()).unwrap(), Some(timing()));
    rt.block_on(async {
        let units = [Unit { logical: 1, from: Source::Nothing }; 6];
        chips.program(row(0, 0, 0b01, 0), header(1), &units).await.unwrap();
        rt.sleep(Span::s(100)).await;
        chips.read(&mut [part(page(0, 0, 0, 0), 1)]).await;
    });
    assert_eq!(chips.with_nand(|nand| nand.wear(0).age_s), 100);
}

#[test]
fn fork_equals_power_cut_at_same_time() {
    for us in (0..1_200).step_by(50) {
        let rt = Rt::simulated(None, Log::Off);
        let chips = chips(&rt, Nand::new(Spec { seed: 7, ..spec() }).unwrap(), Some(timing()));
        let (chips_, done) = (chips.clone(), Rc::new(std::cell::Cell::new(false)));
        let ended = done.clone();
        rt.spawn(async move {
            fill(&chips_, row(0, 0, 0b11, 0)).await;
            ended.set(true);
        });
        let chips_ = chips.clone();
        rt.spawn(async move { chips_.erase(&mut [erase(1, 0, 0b11)]).await });
        rt.block_on(rt.sleep(Span::us(us)));
        let fork = flash::chips::ChipState::from(chips.fork().unwrap());
        // The chips go on, as if there were no copy.
        let before = done.get();
        rt.block_on(rt.sleep(Span::ms(20)));
        assert!(done.get(), "{us} us");
        let other = cut_at(us);
        assert_eq!(fork.nand().wear(16), other.nand().wear(16), "{us} us");
        let (fork, other) = (after(fork), after(other));
        assert_eq!(fork, other, "{us} us");
        assert!(!before || fork.0[0][..3] == [GOOD; 3], "{us} us");
    }
}

/// The same work, cut at that time.
fn cut_at(us: u64) -> flash::chips::ChipState {
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, Nand::new(Spec { seed: 7, ..spec() }).unwrap(), Some(timing()));
    let chips_ = chips.clone();
    rt.spawn(async move { fill(&chips_, row(0, 0, 0b11, 0)).await });
    let chips_ = chips.clone();
    rt.spawn(async move { chips_.erase(&mut [erase(1, 0, 0b11)]).await });
    rt.block_on(rt.sleep(Span::us(us)));
    rt.drop_tasks();
    Rc::into_inner(chips).unwrap().cut()
}

#[test]
fn wear_adds_cycles_and_age_and_die_views_show_operations() {
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, Nand::new(spec()).unwrap(), Some(timing()));
    let view = |die: usize| chips.dies()[die];
    assert_eq!((chips.dies().len(), view(0).doing, view(0).cycles_most), (2, "idle", 0));
    chips.wear_out(300, 2);
    assert_eq!((view(0).cycles_mean, view(1).cycles_most), (300, 300));
    let years = media::nand::YEAR_S * 2;
    assert_eq!(chips.with_nand(Nand::age_s), years);
    let chips_ = chips.clone();
    rt.spawn(async move { fill(&chips_, row(0, 0, 0b11, 0)).await });
    let chips_ = chips.clone();
    rt.spawn(async move { chips_.erase(&mut [erase(1, 0, 0b11)]).await });
    rt.block_on(rt.sleep(Span::us(400)));
    assert_eq!([view(0).doing, view(1).doing], ["program", "erase"]);
    rt.block_on(rt.sleep(Span::s(10)));
    assert_eq!([view(0).doing, view(1).doing], ["idle", "idle"]);
    // The age goes on from there.
    chips.wear_out(0, 0);
    assert_eq!(chips.with_nand(Nand::age_s), years + 10);
}
