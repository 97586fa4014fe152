//! Statistics of a run other than its operations: host cores and flash.

use runtime::Span;
use serde_json::{Value, json};

use world::RunResult;
use world::device::FlashStats;

/// CPU time of the host, for hybrid polling.
pub(super) fn awake(run_result: &RunResult) -> Option<String> {
    if let Some(busy) = &run_result.busy {
        let share = |cores: &[Span]| {
            let sum = cores.iter().map(|core| core.0 as f64).sum::<f64>();
            100.0 * sum / (busy.of.0.max(1) as f64 * cores.len() as f64)
        };
        let (work, polling) = (share(&busy.cores), share(&busy.polling));
        return Some(format!("host cores: {work:.2} % work, {polling:.2} % polling"));
    }
    let elapsed =
        run_result.jobs.iter().map(|(_, job_result)| job_result.elapsed.0).sum::<u64>().max(1);
    let ms = run_result.host_thread?.0 as f64 * 1e3 / elapsed as f64;
    Some(format!("host thread: {ms:.0} ms of a processor in a second"))
}

/// Flash statistics as JSON.
pub(super) fn flash(stats: &FlashStats) -> Value {
    let chips = &stats.chips;
    let Some(software) = &stats.software else {
        return json!({
            "senses": chips.senses,
            "retries": chips.retries,
            "programs": chips.programs,
            "failures": chips.failures,
        });
    };
    let counters = &software.counters;
    json!({
        "write_amplification_per_mille": counters.write_amplification_per_mille(),
        "collector_share_per_mille": counters.collector_share_per_mille(),
        "host_units": counters.host_units,
        "copied_units": counters.copied_units,
        "mapped_units": software.mapped_units,
        "good_units": software.good_units,
        "left_units": software.left_units,
        "erases": { "least": software.erases_least, "most": software.erases_most },
        "collected": counters.collected,
        "senses": chips.senses,
        "retries": chips.retries,
        "programs": chips.programs,
        "failures": chips.failures,
        "memory_bytes": stats.memory_bytes + software.memory_bytes,
    })
}
