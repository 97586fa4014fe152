//! Intervals of a run over time.

use std::cell::Cell;

use ftl::Counters;
use runtime::Log;
use runtime::{Rt, Span};
use workload::pattern::OpKind;
use world::series::{Recorder, Sample};

/// Each interval of 10 ms has the operations that completed and the counters that changed in it.
#[test]
fn operations_and_samples_belong_to_the_same_interval() {
    let rt = Rt::simulated(None, Log::Off);
    let (recorder, steps) = (Recorder::new(Span::ms(10)), Cell::new(0_u64));
    let sample = || {
        let step = steps.replace(steps.get() + 1);
        let counters =
            Counters { host_units: 10 * step, programmed_units: 30 * step, ..Counters::default() };
        Sample {
            software: Some(counters),
            memory_bytes: 100 + step,
            cores: Some(vec![Span::ms(5 * step), Span::ZERO]),
        }
    };
    rt.block_on(async {
        let work = async {
            rt.sleep(Span::ms(12)).await;
            recorder.note(OpKind::Write, rt.now(), 512, Span::us(4));
            recorder.note(OpKind::Flush, rt.now(), 0, Span::us(4));
            rt.sleep(Span::ms(13)).await;
        };
        runtime::race(work, recorder.watch(&rt, sample)).await;
    });
    let series = recorder.series();
    assert_eq!(series.points.len(), 2, "whole intervals only");
    let [first, second] = series.points[..] else { panic!("two") };
    assert_eq!((first.both().ops, second.writes.ops, second.writes.took), (0, 1, Span::us(4)));
    assert_eq!((first.memory_bytes, second.memory_bytes), (101, 102));
    assert_eq!(second.amplification_per_mille(), Some(3000));
    assert_eq!(second.cores_per_mille, Some(250), "half of one core of two");
    let text = series.to_string();
    assert!(text.lines().nth(2).is_some_and(|line| line.trim().starts_with("20.000")), "{text}");
}
