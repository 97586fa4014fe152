//! Whether a rate still falls.

use ftl::Counters;
use runtime::Span;
use world::trend::{Falling, SAMPLES_MAX, Samples};

/// Samples of these numbers of units, with that many copies each, in thousandths.
fn samples(units: impl Iterator<Item = (u64, u64)>) -> Samples {
    let mut now = Counters::default();
    let mut samples = Samples::new(now);
    for (units, copies) in units {
        now.programmed_units += units;
        now.copied_units += units * copies / 1000;
        samples.push(now);
    }
    samples
}

#[test]
fn rate_that_falls_as_amplification_rises_is_a_trend() {
    let falling = samples((0..40).map(|at| (1000 - 10 * at, 1000 + 50 * at))).falling();
    assert_eq!(falling, Some(Falling { first: 905_000, second: 705_000 }));
    let noise = samples((0..40).map(|at| (1000 + at * 7919 % 300, 3000)));
    assert_eq!(noise.falling(), None, "noise");
    let load = samples((0..40).map(|at| (1000 - 10 * at, 3000)));
    assert_eq!(load.falling(), None, "the load becomes less");
    let short = samples((0..7).map(|at| (1000 - 100 * at, 1000 + 500 * at)));
    assert_eq!(short.falling(), None, "too few intervals");
}

#[test]
fn many_samples_are_thinned_to_longer_intervals() {
    let (mut now, mut long) = (Counters::default(), Samples::new(Counters::default()));
    for ms in 0..1000 {
        now.programmed_units += 10_000 - ms;
        now.copied_units += (10_000 - ms) * (1000 + 5 * ms) / 1000;
        if (ms + 1) % (long.interval().0 / Span::ms(1).0) == 0 {
            long.push(now);
        }
    }
    let all: Vec<_> = long.intervals().iter().map(|one| one.programmed_units).collect();
    assert!(all.len() + 1 < SAMPLES_MAX && long.interval() == Span::ms(16));
    assert!(long.falling().is_some());
    assert!(all.windows(2).all(|pair| pair[0] - pair[1] == 256), "{all:?}");
}
