//! Times and switches of a thread.

use runtime::Span;
use world::processor::{Counts, ThreadUse, timed};

#[test]
fn counts_are_read_where_the_system_gives_them() {
    let status = "Threads:\t1\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t7\n";
    let all = Counts { cpu: Some(Span::us(12)), waited: Some(Span::ns(345)), switches: Some(7) };
    assert_eq!(Counts::of(Some("12000 345 6\n"), Some(status)), all);
    // A system without schedstat, as many virtual ones are, still counts the switches.
    let switches = Counts { switches: Some(7), ..Counts::default() };
    assert_eq!(Counts::of(None, Some(status)), switches);
    assert_eq!(Counts::of(Some(""), Some("Threads:\t1\n")), Counts::default());
}

#[test]
fn counts_of_a_thread_never_shrink() {
    let ((), first) = timed(|| ());
    let before = Counts::now();
    std::thread::sleep(std::time::Duration::from_millis(1));
    let after = Counts::now();
    assert!(first.cpu.is_some() && before.cpu.is_some());
    assert!(before.cpu <= after.cpu && before.switches <= after.switches);
}

#[test]
fn thread_that_waits_for_its_core_is_disturbed() {
    let of = |waited: Option<Span>, switches| ThreadUse {
        elapsed: Span::s(1),
        cpu: None,
        waited,
        switches,
    };
    assert!(!of(Some(Span::ms(20)), Some(500)).is_disturbed());
    assert!(of(Some(Span::ms(21)), Some(0)).is_disturbed());
    assert!(!of(None, Some(10)).is_disturbed());
    assert!(of(None, Some(11)).is_disturbed());
    assert!(!of(None, None).is_disturbed());
}
