//! End times of operations, against schedules worked out by hand.
//!
//! The test profile: a command takes 1 us, lower, middle and upper pages take 50, 60 and 70 us to sense and
//! 200, 300 and 500 us to program, an erase 3,000 us; a unit and its share of the spare bytes are 4,160
//! bytes, so 4.16 us; a page twice that.

use std::cell::RefCell;
use std::rc::Rc;

use flash::chips::{Chips, DieFault};
use ftl::{PageRead, Pages, Part};
use media::nand::{Errors, Nand, Spec, Suspend, Timing, YEAR_S};
use runtime::{Log, Rt, Span, Traces};

use super::{chips, erase, fill, from, ns, page, part, row, spec, timing, world};

/// Starts each call at its microsecond; returns the end of each, in nanoseconds.
fn run(timing: Timing, calls: &[(u64, Call)]) -> Vec<u64> {
    let (rt, chips) = world(timing);
    run_on(&rt, &chips, calls)
}

#[derive(Clone)]
enum Call {
    Read(Vec<Part>),
    Program(ftl::Row),
    Erase(Vec<ftl::Erase>),
}

fn run_on(rt: &Rt, chips: &Rc<Chips>, calls: &[(u64, Call)]) -> Vec<u64> {
    let ends = Rc::new(RefCell::new(vec![0; calls.len()]));
    for (number, (us, call)) in calls.iter().cloned().enumerate() {
        let (rt_, chips, ends) = (rt.clone(), chips.clone(), ends.clone());
        rt.spawn(async move {
            let end = from(&rt_, us, || async {
                match call {
                    Call::Read(mut parts) => chips.read(&mut parts).await,
                    Call::Program(row) => fill(&chips, row).await,
                    Call::Erase(mut blocks) => chips.erase(&mut blocks).await,
                }
            });
            let end = end.await;
            ends.borrow_mut()[number] = end;
        });
    }
    rt.block_on(rt.sleep(Span::s(1)));
    ends.take()
}

fn read(die: u32, plane: u32, number: u32) -> Call {
    Call::Read(vec![part(page(die, plane, 0, number), 1)])
}

fn program(die: u32, block: u32, planes: u32) -> Call {
    Call::Program(row(die, block, planes, 0))
}

#[test]
fn read_time_is_command_sense_transfer_and_decode() {
    assert_eq!(run(timing(), &[(0, read(0, 0, 0))]), [55_160]);
    assert_eq!(run(timing(), &[(0, read(0, 0, 1))]), [65_160], "a middle page");
    assert_eq!(run(timing(), &[(0, read(0, 0, 2))]), [75_160], "an upper page");
    let both = Call::Read(vec![part(page(0, 0, 0, 0), 0b11)]);
    assert_eq!(run(timing(), &[(0, both)]), [59_320]);
    let spare = Call::Read(vec![part(page(0, 0, 0, 0), 0)]);
    assert_eq!(run(timing(), &[(0, spare)]), [51_064], "64 free spare bytes");
    // Of one unit alone, whichever it is.
    let part_of_page = Timing { read_unit: Some([Span::us(30); 4]), ..timing() };
    assert_eq!(run(part_of_page.clone(), &[(0, read(0, 0, 1))]), [35_160]);
    let both = Call::Read(vec![part(page(0, 0, 0, 0), 0b11)]);
    assert_eq!(run(part_of_page, &[(0, both)]), [59_320]);
    let decode = Timing { decode: Span::us(7), ..timing() };
    assert_eq!(run(decode, &[(0, read(0, 0, 0))]), [62_160]);
}

#[test]
fn dies_sense_in_parallel_and_share_channel() {
    let calls = [(0, read(0, 0, 0)), (0, read(1, 0, 0))];
    assert_eq!(run(timing(), &calls), [55_160, 59_320]);
    let one = Call::Read(vec![part(page(0, 0, 0, 0), 1), part(page(1, 0, 0, 2), 1)]);
    assert_eq!(run(timing(), &[(0, one)]), [75_160], "one call, two dies");
    // With two channels, neither die waits.
    let mut two = spec();
    (two.geometry.channels, two.geometry.dies) = (2, 1);
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, Nand::new(two).unwrap(), Some(timing()));
    assert_eq!(run_on(&rt, &chips, &calls), [55_160, 55_160]);
}

#[test]
fn cache_read_senses_next_page_during_transfer() {
    let calls = [(0, read(0, 0, 0)), (0, read(0, 0, 3)), (0, read(0, 0, 6))];
    assert_eq!(run(timing(), &calls), [55_160, 106_160, 157_160]);
    // With one page register the array stands still until the register is empty.
    let plain = Timing { cache: false, ..timing() };
    assert_eq!(run(plain.clone(), &calls), [55_160, 110_320, 165_480]);
    // It also waits for the bus, which carries the other die's page.
    let calls = [(0, read(0, 0, 0)), (0, read(1, 0, 0)), (0, read(1, 0, 3))];
    assert_eq!(run(plain, &calls), [55_160, 59_320, 59_320 + 51_000 + 4_160]);
}

#[test]
fn multi_plane_read_needs_same_page_number() {
    let parts = |number| vec![part(page(0, 0, 0, 0), 1), part(page(0, 1, 0, number), 1)];
    assert_eq!(run(timing(), &[(0, Call::Read(parts(0)))]), [59_320]);
    assert_eq!(run(timing(), &[(0, Call::Read(parts(3)))]), [106_160]);
    let single = Timing { multi_plane: false, ..timing() };
    assert_eq!(run(single, &[(0, Call::Read(parts(0)))]), [106_160]);
}

#[test]
fn independent_planes_sense_any_pages_at_the_same_time() {
    let independent = Timing { independent_planes: true, ..timing() };
    let two = [(0, read(0, 0, 0)), (0, read(0, 1, 3))];
    assert_eq!(run(timing(), &two), [55_160, 106_160]);
    assert_eq!(run(independent.clone(), &two), [55_160, 59_320], "the wires in turn");
    let same = [(0, read(0, 1, 0)), (0, read(0, 1, 3))];
    assert_eq!(run(independent.clone(), &same), [55_160, 106_160]);
    let one = Call::Read(vec![part(page(0, 0, 0, 0), 1), part(page(0, 1, 0, 3), 1)]);
    assert_eq!(run(independent.clone(), &[(0, one)]), [59_320]);
    // A program takes all planes, whichever it is for.
    let begun = [(0, program(0, 0, 0b01)), (100, read(0, 1, 0)), (100, read(0, 0, 0))];
    assert_eq!(run(independent.clone(), &begun), [1_025_960, 1_081_120, 1_085_280]);
    let behind = [(0, read(0, 0, 0)), (0, read(0, 1, 2)), (0, Call::Erase(vec![erase(0, 1, 1)]))];
    assert_eq!(run(independent.clone(), &behind), [55_160, 75_160, 3_072_000]);
    // With one page register a plane waits for the transfer of its own page alone.
    let plain = Timing { cache: false, ..independent };
    let calls = [(0, read(0, 0, 0)), (0, read(0, 1, 0)), (0, read(0, 0, 3))];
    assert_eq!(run(plain, &calls), [55_160, 59_320, 110_320]);
}

#[test]
fn multi_plane_program_loads_then_programs_together() {
    // Three pages a plane: 24.96 us on the bus, and a command.
    assert_eq!(run(timing(), &[(0, program(0, 0, 0b01))]), [1_025_960]);
    assert_eq!(run(timing(), &[(0, program(0, 0, 0b11))]), [1_050_920]);
    let single = Timing { multi_plane: false, ..timing() };
    assert_eq!(run(single, &[(0, program(0, 0, 0b11))]), [2_050_920]);
    let two = [(0, program(0, 0, 0b11)), (0, program(1, 0, 0b11))];
    assert_eq!(run(timing(), &two), [1_050_920, 1_101_840], "the wires in turn");
}

#[test]
fn cache_program_loads_next_row_during_program() {
    let calls = [(0, program(0, 0, 0b11)), (0, program(0, 1, 0b11))];
    assert_eq!(run(timing(), &calls), [1_050_920, 2_050_920]);
    let plain = Timing { cache: false, ..timing() };
    assert_eq!(run(plain, &calls), [1_050_920, 2_101_840]);
}

#[test]
fn multi_plane_erase_takes_one_erase_time() {
    let blocks = |planes| Call::Erase(vec![erase(0, 0, planes)]);
    assert_eq!(run(timing(), &[(0, blocks(0b01))]), [3_001_000]);
    assert_eq!(run(timing(), &[(0, blocks(0b11))]), [3_001_000]);
    let single = Timing { multi_plane: false, ..timing() };
    assert_eq!(run(single, &[(0, blocks(0b11))]), [6_001_000]);
    let dies = Call::Erase(vec![erase(0, 0, 1), erase(1, 0, 1), erase(0, 1, 1)]);
    assert_eq!(run(timing(), &[(0, dies)]), [6_002_000], "two of one die");
}

#[test]
fn read_waits_for_program_unless_still_loading() {
    let begun = [(0, program(0, 0, 0b11)), (100, read(0, 0, 0))];
    assert_eq!(run(timing(), &begun), [1_050_920, 1_106_080]);
    // The array would stand still until 50.92 us: the read has it from 10 to 61 us.
    let early = [(0, program(0, 0, 0b11)), (10, read(0, 0, 0))];
    assert_eq!(run(timing(), &early), [1_061_000, 65_160]);
}

fn stoppable(most: u32) -> Timing {
    let us = Span::us;
    let suspend = Suspend { program: us(10), erase: us(20), resume: us(5), most };
    Timing { suspend: Some(suspend), ..timing() }
}

#[test]
fn read_suspends_program_and_later_reads_join() {
    // Suspended at 100 us after 49.08 us, sensing from 110 to 161 us, resumed at 166 us.
    let one = [(0, program(0, 0, 0b11)), (100, read(0, 0, 0))];
    assert_eq!(run(stoppable(1), &one), [166_000 + 950_920, 165_160]);
    let joined = [(0, program(0, 0, 0b11)), (100, read(0, 0, 0)), (120, read(0, 0, 3))];
    assert_eq!(run(stoppable(1), &joined), [217_000 + 950_920, 165_160, 216_160]);
    // Of another plane that is independent it need not wait: from 120 to 171 us, resumed at 176 us.
    let independent = Timing { independent_planes: true, ..stoppable(1) };
    let joined = [(0, program(0, 0, 0b11)), (100, read(0, 0, 0)), (120, read(0, 1, 3))];
    assert_eq!(run(independent, &joined), [176_000 + 950_920, 165_160, 175_160]);
    // The program is suspended at most once; the next read waits for its end.
    let end = 166_000 + 950_920;
    let late = [(0, program(0, 0, 0b11)), (100, read(0, 0, 0)), (500, read(0, 0, 3))];
    assert_eq!(run(stoppable(1), &late), [end, 165_160, end + 55_160]);
    // Twice: at 500 us it has done 383.08 us, and resumes at 566 us.
    let twice = [566_000 + 616_920, 165_160, 565_160];
    assert_eq!(run(stoppable(2), &late), twice);
}

#[test]
fn read_suspends_erase_and_delays_queued_program() {
    let erase = Call::Erase(vec![erase(0, 0, 1)]);
    let calls = [(0, erase), (0, program(0, 1, 0b01)), (1000, read(0, 0, 0))];
    // Suspended at 1,000 us, sensing from 1,020 to 1,071 us, resumed at 1,076 us for 2,001 us.
    assert_eq!(run(stoppable(4), &calls), [3_077_000, 4_077_000, 1_075_160]);
    // With one page register the erase waits until it is empty.
    let plain = Timing { cache: false, ..stoppable(4) };
    let (_, end) = (0, 3_077_000 + 4_160);
    let (load, array) = (25_960, 1_000_000);
    // The program was to be loaded behind the erase as first planned, at 3,026.96 us.
    assert_eq!(run(plain, &calls), [end, end.max(3_001_000 + load) + array, 1_075_160]);
}

#[test]
fn read_retry_costs_another_read() {
    let errors = Errors {
        rated_cycles: 1000,
        fresh: 10_000_000,
        aged: 9_000_000_000,
        codeword_bytes: 1024,
        corrects: 40,
        retries: 5,
        retry_keeps: 25,
        ..Errors::none()
    };
    let rt = Rt::simulated(None, Log::Off);
    let chips = chips(&rt, Nand::new(Spec { errors, ..spec() }).unwrap(), None);
    rt.block_on(fill(&chips, row(0, 0, 0b11, 0)));
    let mut nand = Rc::into_inner(chips).unwrap().cut().into_nand();
    nand.wear_out(0, 1000);
    nand.age_to(YEAR_S);
    let rt = Rt::simulated(None, Log::Off);
    let slow = Timing { decode: Span::us(2), ..timing() };
    let chips = super::chips(&rt, nand, Some(slow));
    let seen = rt.block_on(async {
        // Plane 0 is worn out, plane 1 is not: only plane 0 is retried.
        let mut parts = [part(page(0, 0, 0, 0), 1), part(page(0, 1, 0, 0), 1)];
        chips.read(&mut parts).await;
        parts.map(|part| part.seen)
    });
    assert!(matches!(seen[0], PageRead::Good { retries: 1, corrected: 5..=40 }), "{seen:?}");
    assert!(matches!(seen[1], PageRead::Good { retries: 0, .. }), "{seen:?}");
    assert_eq!(ns(rt.now()), 51_000 + 8_320 + 2_000 + 51_000 + 4_160 + 2_000);
    let counts = chips.counts();
    assert_eq!((counts.senses, counts.retries, counts.uncorrectable), (3, 1, 0));
}

#[test]
fn stuck_die_delays_only_own_operations() {
    let (rt, chips) = world(stoppable(8));
    chips.fail_die(0, DieFault::Stuck(Span::us(400)));
    let calls = [(100, read(0, 0, 0)), (100, read(1, 0, 0)), (100, program(0, 1, 0b01))];
    assert_eq!(run_on(&rt, &chips, &calls), [455_160, 155_160, 1_451_000]);
}

#[test]
fn slow_die_stretches_array_time_until_fault_ends() {
    let (rt, chips) = world(stoppable(0));
    chips.fail_die(0, DieFault::Slow { percent: 300, span: Span::us(200) });
    // 51 us of the array and 4.16 us of the bus; die 0 takes three times the 51 us while it is slow.
    let calls = [(0, read(0, 0, 0)), (0, read(1, 0, 0)), (250, read(0, 0, 0))];
    assert_eq!(run_on(&rt, &chips, &calls), [157_160, 55_160, 305_160]);
}

#[test]
fn unreadable_die_fails_own_reads_until_fault_ends() {
    let (rt, chips) = world(timing());
    chips.fail_die(0, DieFault::Unreadable(Span::ms(1)));
    let look = || {
        let mut parts = [part(page(0, 0, 0, 0), 1), part(page(1, 0, 0, 0), 1)];
        let (chips, rt) = (&chips, &rt);
        rt.block_on(async {
            chips.read(&mut parts).await;
            parts.map(|part| part.seen)
        })
    };
    assert_eq!(look(), [PageRead::Unreadable, PageRead::Erased]);
    rt.block_on(rt.sleep(Span::ms(1)));
    assert_eq!(look(), [PageRead::Erased, PageRead::Erased]);
}

#[test]
fn stages_cover_whole_flash_read() {
    let names = flash::chips::STAGES;
    let rt = Rt::simulated(Some(Traces::new(1, 4, 10, 0, names)), Log::Off);
    let chips = chips(&rt, Nand::new(spec()).unwrap(), Some(timing()));
    let ends = Rc::new(RefCell::new(Vec::new()));
    for command in 0..2 {
        let (rt_, chips, ends) = (rt.clone(), chips.clone(), ends.clone());
        rt.spawn(async move {
            rt_.begin_trace(0, command, rt_.now());
            chips.read(&mut [part(page(0, 0, 0, 3 * u32::from(command)), 0b11)]).await;
            let done = rt_.finish_trace().unwrap();
            let stages: Vec<u64> = done.stages[..names.len()].iter().map(|ps| ps / 1000).collect();
            ends.borrow_mut().push((done.total, stages));
        });
    }
    rt.block_on(rt.sleep(Span::ms(1)));
    let expected = [
        (Span::ns(59_320), vec![0, 0, 51_000, 0, 8_320, 0]),
        (Span::ns(110_320), vec![51_000, 0, 51_000, 0, 8_320, 0]),
    ];
    assert_eq!(*ends.borrow(), expected);
}

#[test]
fn timed_events_are_2_per_read_and_1_per_program_or_erase() {
    let (rt, chips) = world(timing());
    rt.block_on(async {
        chips.read(&mut [part(page(0, 0, 0, 0), 1), part(page(0, 1, 0, 0), 1)]).await;
        assert_eq!(rt.timed_events(), 2);
        fill(&chips, row(0, 0, 0b11, 0)).await;
        assert_eq!(rt.timed_events(), 3);
        chips.erase(&mut [erase(0, 1, 0b11)]).await;
        assert_eq!(rt.timed_events(), 4);
    });
}
