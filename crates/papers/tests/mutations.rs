//! Every check of every paper: its verdict is the one on record, a change of its mechanism makes it fail,
//! and the change that explains a departure makes it hold.
//!
//! Without `DOORBELL_HEAVY=1` the papers are run that take seconds in a debug build.

use papers::{Exhibit, Options, Paper, Verdict};

const SHORT: [&str; 1] = ["dc-express"];

fn wanted() -> (Vec<&'static Paper>, bool) {
    let heavy = std::env::var_os("DOORBELL_HEAVY").is_some();
    let is_wanted = |paper: &&Paper| heavy || SHORT.contains(&paper.name);
    (papers::all().iter().filter(is_wanted).collect(), heavy)
}

#[test]
fn verdicts_are_those_on_record() {
    let (papers, long) = wanted();
    let reports = papers::run(&papers, Options { swings: false, long }).expect("runs");
    for report in reports {
        for exhibit in &report.exhibits {
            if let Exhibit::Check(check) = exhibit {
                assert!(check.is_as_expected(), "{}: {check}", report.paper.name);
            }
        }
    }
}

#[test]
fn each_check_fails_with_its_mutations_and_each_departure_holds_with_a_swap() {
    let (papers, long) = wanted();
    let all = papers::mutations(&papers, long);
    assert!(all.len() > 10, "{} changes", all.len());
    let wrong: Vec<_> = all.iter().filter(|mutated| !mutated.is_as_expected()).collect();
    let text: String = wrong.iter().map(ToString::to_string).collect();
    assert!(wrong.is_empty(), "{text}");
}

/// A check that holds and that nothing can break would prove nothing: it must be a quotation.
#[test]
fn each_check_that_holds_has_a_mutation() {
    for check in papers::all().iter().flat_map(Paper::checks) {
        let can_fail = !check.mutations().is_empty() || check.expected() == Verdict::Departs;
        assert!(can_fail, "{} has no mutation", check.name());
    }
}

/// The table of verdicts fits 80 columns.
#[test]
fn titles_fit_the_table_of_verdicts() {
    for paper in papers::all() {
        for check in paper.checks() {
            let title = check.subject().title;
            assert!(title.chars().count() <= 41, "{}: {title:?}", paper.name);
        }
    }
}
