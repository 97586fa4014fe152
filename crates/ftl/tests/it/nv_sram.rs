//! NV-SRAM smaller than the write buffer, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{Fake, Medium, SMALL};
use ftl::{Cache, Ftl, MountError, Options};
use runtime::{Log, Rt, Span, Time};

fn options(nv_slots: Option<u32>) -> Options {
    Options { cache: Cache::Protected, slots: 48, nv_slots, ..Options::new(&SMALL) }
}

/// Times at which writes of one unit each, all begun at once, have returned, and superpages programmed.
fn burst(nv_slots: Option<u32>, writes: u32) -> (Vec<Span>, u64) {
    let rt = Rt::simulated(None, Log::Off);
    let medium = Medium::new(SMALL, 1);
    medium.borrow_mut().protected = true;
    let ends = Rc::new(RefCell::new(Vec::new()));
    rt.block_on(async {
        let ftl = Ftl::mount(&rt, Fake::new(&rt, &medium), &options(nv_slots)).await.unwrap();
        let begun = rt.now();
        for unit in 0..writes {
            let (ftl, ends, rt_) = (ftl.clone(), ends.clone(), rt.clone());
            rt.spawn(async move {
                ftl.write(u64::from(unit) * 2, &[unit as u8 + 1; 1024]).await.unwrap();
                ends.borrow_mut().push(rt_.now().since(begun));
            });
        }
        while ends.borrow().len() < writes as usize {
            rt.sleep(Span::us(1)).await;
            assert!(rt.now() < Time::ZERO + Span::s(1), "{} of {writes}", ends.borrow().len());
        }
    });
    rt.drop_tasks();
    let programs = medium.borrow().programs;
    (ends.take(), programs)
}

/// A superpage has 8 units, and takes 600 us to program.
#[test]
fn burst_that_exceeds_nv_sram_waits_for_flash() {
    let (ends, programs) = burst(Some(6), 6);
    assert_eq!((ends, programs), (vec![Span::ZERO; 6], 0), "all of them fit");
    let (ends, programs) = burst(Some(6), 7);
    assert_eq!(ends, [[Span::ZERO; 6].as_slice(), &[Span::us(600)]].concat(), "one does not");
    assert_eq!(programs, 1, "padded: no eighth write comes");
    // Two superpages fill, one a die; the last four units have room when these have left theirs.
    let (ends, programs) = burst(Some(6), 20);
    assert_eq!(ends[..6], [Span::ZERO; 6]);
    assert_eq!(ends[6..], [Span::us(600); 14], "{programs} superpages");
    assert_eq!(programs, 2);
    let (ends, _) = burst(None, 20);
    assert_eq!(ends, [Span::ZERO; 20], "the buffer is all NV-SRAM");
}

/// The buffer takes data beyond NV-SRAM: all dies work, with full superpages, whatever its size.
#[test]
fn buffer_beyond_nv_sram_keeps_dies_busy() {
    let last = |writes, nv_slots| burst(nv_slots, writes).0.pop().unwrap();
    assert_eq!(last(32, Some(1)), Span::us(1200), "four superpages on two dies");
}

#[test]
fn nv_sram_outside_of_a_protected_buffer_is_no_option() {
    let rt = Rt::simulated(None, Log::Off);
    let mount = |options: Options| {
        let medium = Medium::new(SMALL, 1);
        rt.block_on(Ftl::mount(&rt, Fake::new(&rt, &medium), &options)).map(drop)
    };
    for bad in [
        options(Some(0)),
        options(Some(49)),
        Options { cache: Cache::Volatile, ..options(Some(8)) },
        Options { cache: Cache::Through, ..options(Some(8)) },
    ] {
        assert_eq!(mount(bad), Err(MountError::Options));
    }
    rt.drop_tasks();
}
