//! One file in one world, with its progress and its errors on standard error.

use campaign::event_log::Digest;
use campaign::run::RunSpec;
use report::model;
use world::RunResult;

use crate::quoted;
use crate::watch::Watch;

/// Runs with a progress bar.
pub(super) fn watched(spec: &RunSpec<'_>, log: Option<&Digest>) -> Result<RunResult, String> {
    let watch = Watch::begin(&spec.work.file.display().to_string(), spec.progress.clone());
    let run_result = spec.run(log);
    drop(watch);
    run_result.map_err(|error| error.to_string())
}

/// World, plan and interface.
pub(super) fn how(spec: &RunSpec<'_>, run: &model::Run) -> String {
    let world = report::summary::world_words(run);
    format!("{world}, plan {}, {}", spec.plan.name, spec.interface.name)
}

/// Prints the errors of a run on standard error. Returns false if there are any. `repro_arguments` are those
/// of `doorbell replay` after the file's name that repeat the run.
pub(super) fn print_errors(spec: &RunSpec<'_>, run: &model::Run, repro_arguments: &str) -> bool {
    let mut good = true;
    for job in &run.jobs {
        for message in &job.messages {
            eprintln!("error: {message}");
        }
        if job.errors > 0 {
            eprintln!("error: {}: {} errors in all", job.name, job.errors);
            good = false;
        }
    }
    if !good && spec.simulated {
        let variables = spec.work.variables.iter();
        let variables: String =
            variables.map(|(name, value)| format!("{name}={} ", quoted(value))).collect();
        let file = spec.work.file.display();
        eprintln!("to repeat: {variables}doorbell replay {file} {repro_arguments}");
    }
    good
}
