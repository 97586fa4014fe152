//! The conformance suite on this project's controller, simulated and live, and on deliberately broken
//! controllers.

use campaign::conformance::{Controller, run};
use conformance::{Counts, Stop, Table};
use plan::Plan;
use testing::plan;

/// Asserts that no case has failed, and that most cases were applicable.
fn clean(plan: &Plan, controller: Controller<'_>) -> Table {
    let table = run(plan, controller, |_| true, |_| {}).unwrap_or_else(|error| panic!("{error}"));
    let Counts { passed, failed, left, .. } = table.counts();
    assert!(failed == 0 && left == 0, "{}", table.text());
    assert!(passed > 150, "{}", table.text());
    table
}

#[test]
fn conformance_suite_passes_simulated() {
    clean(&plan("live", &[]), Controller::Simulated);
}

#[test]
fn conformance_suite_passes_live() {
    clean(&plan("live", &[]), Controller::Thread);
}

#[test]
fn conformance_suite_passes_on_flash_simulated() {
    clean(&plan("small-flash", &[("host.memory", "64 MiB")]), Controller::Simulated);
}

#[test]
fn conformance_suite_passes_on_flash_live() {
    clean(&plan("small-flash", &[("host.memory", "64 MiB")]), Controller::Thread);
}

/// Each listed case must detect the fault of an otherwise correct controller.
#[test]
fn conformance_cases_detect_injected_faults() {
    let broken = [
        (r#"what = "corrupt-data", command = "read", every = 2"#, "a_list_that_just_fits"),
        (r#"what = "corrupt-data", command = "write", every = 3"#, "write_then_read"),
        (r#"what = "corrupt-medium", command = "write", every = 2"#, "last_write_counts"),
        (r#"what = "corrupt-medium", command = "read", every = 2"#, "made_by_the_controller"),
        (r#"what = "corrupt-data", command = "write", nth = 1"#, "brought_by_the_host"),
        (r#"what = "drop", command = "flush", nth = 30"#, "identifiers_come_back_once"),
        (r#"what = "hang", command = "flush", nth = 2"#, "same_identifier_in_two_queues"),
        (r#"what = "lost-interrupt", command = "flush", nth = 1"#, "interrupts_come"),
        (
            r#"what = "status", status = "Write Fault", command = "flush", nth = 2"#,
            "queues_made_again",
        ),
        (
            r#"what = "status", status = "Write Fault", command = 9, queue = 0"#,
            "features_read_back",
        ),
        (r#"what = "drop", command = 6, queue = 0, nth = 3"#, "active_list_rises"),
        (r#"what = "drop", command = 24, queue = 0"#, "keep_alive_without_a_timer"),
        (r#"what = "hang", command = 24, queue = 0"#, "keep_alive_begins_anew"),
        (r#"what = "fatal", command = 9, queue = 0"#, "keep_alive_expires"),
        (
            r#"what = "status", status = "Write Fault", command = 9, queue = 0"#,
            "host_behavior_reads_back",
        ),
        (r#"what = "fatal", command = "read""#, "reads_at_once"),
    ];
    let mut missed = Vec::new();
    for (fault, case) in broken {
        let faults = format!(r#"[{{ name = "broken", {fault} }}]"#);
        let plan = plan("live", &[("faults", &faults)]);
        let table = run(&plan, Controller::Simulated, |one| one.name.contains(case), |_| {});
        let table = table.unwrap_or_else(|error| panic!("{error}"));
        let [case_run] = &table.runs[..] else { panic!("{case}: {} cases", table.runs.len()) };
        if !matches!(case_run.verdict, Some(Err(Stop::Failed(_)))) {
            missed.push((fault, case_run.case.name));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// A removed controller does not respond, and the suite ends nevertheless.
#[test]
fn conformance_suite_ends_after_link_down() {
    let faults = r#"[{ name = "gone", what = "link-down", command = "flush", nth = 40 }]"#;
    let plan = plan("live", &[("faults", faults)]);
    let table = run(&plan, Controller::Simulated, |_| true, |_| {});
    let table = table.unwrap_or_else(|error| panic!("{error}"));
    let Counts { passed, failed, left, .. } = table.counts();
    assert!(passed > 10 && failed == 1 && left > 100, "{}", table.text());
}
