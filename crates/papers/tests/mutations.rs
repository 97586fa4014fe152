//! Every check of every paper: its verdict is the one on record, a change of its mechanism makes it fail,
//! and the change that explains a departure makes it hold.
//!
//! Those that run papers do so with `DOORBELL_HEAVY=1`: `tools/test papers` has `doorbell papers --quick` and
//! `doorbell papers --mutations`, which say the same by the optimised command.

use papers::{Options, Paper};
use report::model::paper::{Exhibit, Verdict};

/// The papers, unless this is a short run.
fn wanted() -> Option<Vec<&'static Paper>> {
    std::env::var_os("DOORBELL_HEAVY").map(|_| papers::all().iter().collect())
}

#[test]
fn verdicts_are_those_on_record() {
    let Some(papers) = wanted() else { return };
    let computed = papers::run(&papers, Options { swings: false, long: true }).expect("runs");
    for paper in computed {
        for exhibit in &paper.exhibits {
            if let Exhibit::Check(check) = exhibit {
                assert!(check.is_as_expected(), "{}: {check}", paper.name);
            }
        }
    }
}

#[test]
fn each_check_fails_with_its_mutations_and_each_departure_holds_with_a_swap() {
    let Some(papers) = wanted() else { return };
    let all = papers::mutations(&papers, true);
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
