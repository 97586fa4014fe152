//! Parts of the machine: link, cores, flash, faults, time series.

use plan::{Plan, Start};
use runtime::Span;
use workload::stats::Counts;
use workload::trace::Recorded;
use world::device::{FlashStats, StateUse};
use world::series::{self, TimeSeries};
use world::{Busy, Packets};

use super::{latencies, model_kind};
use crate::model;

pub(super) fn link(busy: &Busy) -> model::Link {
    let direction = |span: Span, of: &Packets| model::Direction {
        busy_ps: span.0,
        tlps: of.tlps(),
        packets: packets(of),
    };
    model::Link {
        of_ps: busy.of.0,
        up: direction(busy.up, &busy.packets.0),
        down: direction(busy.down, &busy.packets.1),
    }
}

/// The packets by kind; only kinds that occurred.
fn packets(of: &Packets) -> Vec<model::Packets> {
    let kinds = of.kinds().into_iter().filter(|(_, of)| of.tlps > 0);
    kinds
        .map(|(kind, of)| model::Packets {
            kind: kind.to_owned(),
            count: of.tlps,
            bytes: of.wire_bytes,
            payload_bytes: of.payload_bytes,
        })
        .collect()
}

pub(super) fn cores(busy: &Busy) -> model::Cores {
    let polling = busy.polling.iter().map(|span| span.0).chain(std::iter::repeat(0));
    let core = |(core, polling_ps): (&Span, u64)| model::Core { busy_ps: core.0, polling_ps };
    model::Cores { of_ps: busy.of.0, each: busy.cores.iter().zip(polling).map(core).collect() }
}

pub(super) fn fault((name, injected): &(String, u64)) -> model::Fault {
    model::Fault { name: name.clone(), injected: *injected }
}

pub(super) fn energy(used: &[StateUse], plan: &Plan) -> Option<model::Energy> {
    let states = &plan.power.as_ref()?.states;
    let states = states.iter().zip(used).map(|(state, used)| model::PowerState {
        milliwatts: state.milliwatts,
        time_ps: used.time.0,
        entries: used.entries,
    });
    let states: Vec<_> = states.collect();
    // A milliwatt for a picosecond is a femtojoule.
    let femtojoules =
        |state: &model::PowerState| u128::from(state.milliwatts) * u128::from(state.time_ps);
    let sum: u128 = states.iter().map(femtojoules).sum();
    (!states.is_empty())
        .then_some(model::Energy { microjoules: (sum / 1_000_000_000) as u64, states })
}

pub(super) fn flash(stats: &FlashStats, plan: &Plan) -> model::Flash {
    let chips = &stats.chips;
    let start = match plan.medium.flash.as_ref() {
        Some(flash) if flash.state.is_some() => "file",
        Some(flash) if flash.start == Start::Filled => "filled",
        Some(flash) if flash.start == Start::Scattered => "scattered",
        Some(flash) if matches!(flash.start, Start::Striped { .. }) => "striped",
        Some(flash) if flash.start == Start::Steady => "steady",
        _ => "fresh",
    };
    model::Flash {
        start: start.to_owned(),
        senses: chips.senses,
        retries: chips.retries,
        programs: chips.programs,
        failures: chips.failures,
        memory_bytes: stats.memory_bytes
            + stats.software.as_ref().map_or(0, |software| software.memory_bytes),
        software: stats.software.as_ref().map(software),
    }
}

fn software(stats: &ftl::Stats) -> model::FlashSoftware {
    let counters = &stats.counters;
    model::FlashSoftware {
        write_amplification_per_mille: counters.write_amplification_per_mille(),
        collector_share_per_mille: counters.collector_share_per_mille(),
        host_units: counters.host_units,
        hinted_units: counters.hinted_units,
        programmed_units: counters.programmed_units,
        copied_units: counters.copied_units,
        meta_units: counters.meta_units,
        padding_units: counters.padding_units,
        map_units: counters.map_units,
        map_reads: counters.map_reads,
        mapped_units: stats.mapped_units,
        good_units: stats.good_units,
        left_units: stats.left_units,
        erased: counters.erased,
        collected: counters.collected,
        retired: counters.retired,
        erases_least: stats.erases_least.into(),
        erases_most: stats.erases_most.into(),
        capacity_bytes: stats.capacity_bytes,
    }
}

pub(super) fn window(counts: &Counts) -> model::Window {
    model::Window {
        count: counts.ops,
        bytes: counts.bytes,
        latency_sum_ps: counts.took.0,
        latency_max_ps: counts.longest.0,
    }
}

pub(super) fn series(series: &TimeSeries) -> model::TimeSeries {
    let point = |point: &series::Point| model::Point {
        at_ps: point.at.0,
        read: window(&point.reads),
        write: window(&point.writes),
        host_units: point.units.map(|(host, _)| host),
        programmed_units: point.units.map(|(_, programmed)| programmed),
        host_memory_bytes: point.memory_bytes,
        host_cores_per_mille: point.cores_per_mille,
    };
    let points = series.points.iter().map(point).collect();
    model::TimeSeries { interval_ps: series.interval.0, points }
}

pub(super) fn recorded(live: &Recorded, replayed: u64) -> model::Recorded {
    let stage = |stage: &workload::trace::StageMean| model::RecordedStage {
        kind: model_kind(stage.kind),
        stage: stage.name.clone(),
        count: stage.count,
        mean_ps: stage.mean_ps,
    };
    model::Recorded {
        run: live.run.clone(),
        register_writes: live.register_writes,
        replayed_register_writes: replayed,
        latencies: latencies(&live.latencies),
        stages: live.stages.iter().map(stage).collect(),
    }
}

/// Sampled requests on a medium with blocks of this size.
pub(super) fn timeline(
    timeline: &world::timeline::Timeline,
    block_bytes: u64,
) -> Vec<model::Request> {
    let span = |span: &world::timeline::StageSpan| model::StageSpan {
        stage: span.stage.to_owned(),
        lane: span.lane.to_string(),
        from_ps: span.from.0,
        to_ps: span.to.0,
    };
    let request = |request: &world::timeline::SampledRequest| model::Request {
        queue: request.queue.into(),
        request: request.request.into(),
        kind: super::model_kind(request.kind),
        begun_ps: request.begun.0,
        offset_bytes: Some(request.lba * block_bytes),
        bytes: Some(request.bytes.into()),
        spans: request.spans.iter().map(span).collect(),
    };
    let mut requests: Vec<_> = timeline.requests.iter().map(request).collect();
    requests.sort_by_key(|request| request.begun_ps);
    requests
}
