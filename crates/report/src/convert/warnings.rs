//! Warnings of a run: what changes how its numbers must be read.

use media::contents::Backing;
use plan::Plan;
use world::RunResult;

use crate::model::{Run, Warning, WarningKind, World};

pub(super) fn of(run: &Run, plan: &Plan, result: &RunResult) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |kind, text: String| warnings.push(Warning { kind, text });
    let errors: u64 = run.jobs.iter().map(|job| job.errors).sum();
    if errors > 0 {
        warn(WarningKind::Errors, format!("{errors} errors: {}", first_message(run)));
    }
    for warning in &result.warnings {
        let kind = match warning {
            world::Warning::Disturbed { .. } => WarningKind::DisturbedCores,
            world::Warning::FreshFlash { .. } => WarningKind::FreshFlash,
            world::Warning::NothingCollected { .. } => WarningKind::NothingCollected,
            world::Warning::StillFalls { .. } => WarningKind::FallingRate,
            world::Warning::UnwrittenReads { .. } => WarningKind::UnwrittenReads,
            world::Warning::UntypicalBreakdown { .. } => WarningKind::SampledBreakdown,
        };
        warn(kind, warning.to_string());
    }
    if let Some(file) = outside_state(plan).filter(|_| run.world == World::Simulated) {
        let text = format!("depends on {file}, which is not in the result: no exact replay");
        warn(WarningKind::OutsideState, text);
    }
    warnings
}

fn first_message(run: &Run) -> String {
    let first = run.jobs.iter().find_map(|job| job.messages.first());
    first.cloned().unwrap_or_else(|| "operations failed".to_owned())
}

/// A file that has the state of the drive between runs.
fn outside_state(plan: &Plan) -> Option<String> {
    let state = plan.medium.flash.as_ref().and_then(|flash| flash.state.as_ref());
    match (&plan.medium.contents.backing, state) {
        (_, Some(path)) | (Backing::File(path) | Backing::Bounded { path, .. }, _) => {
            Some(path.display().to_string())
        }
        (Backing::Memory | Backing::Random(_), None) => None,
    }
}
