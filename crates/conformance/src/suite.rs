//! The list of all cases, and their execution.

use std::fmt::Write as _;
use std::rc::Rc;

use crate::bench::Bench;
use crate::case::{Case, Section};
use crate::cases;
use crate::reach::Reach;
use crate::verdict::{Stop, Verdict};

/// All sections, in the order of the specifications.
pub fn sections() -> impl Iterator<Item = &'static Section> {
    let mut all: Vec<&Section> = cases::ALL.iter().flat_map(|part| part.iter()).collect();
    let numbers = |section: &Section| -> Vec<u32> {
        section.number.split('.').map(|number| number.parse().expect("a number")).collect()
    };
    // The base specification comes before the command set's.
    all.sort_by_key(|section| (std::cmp::Reverse(section.of), numbers(section)));
    all.into_iter()
}

/// Result of one case of the suite.
pub struct CaseRun {
    /// Section that contains the case.
    pub section: &'static Section,
    /// The case that was run.
    pub case: &'static Case,
    /// Its verdict; `None` if it was not run, as the controller no longer responded.
    pub verdict: Option<Verdict>,
}

/// Results of a run of the suite.
#[derive(Default)]
pub struct Table {
    /// Results of the cases, in order.
    pub runs: Vec<CaseRun>,
}

/// Numbers of cases by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Cases that the controller passed.
    pub passed: usize,
    /// Cases that the controller failed.
    pub failed: usize,
    /// Cases about features that the controller lacks.
    pub lacking: usize,
    /// Cases not run.
    pub left: usize,
}

impl Table {
    /// Runs the cases that `wanted` selects, each on a controller that was just reset.
    pub async fn run(
        reach: Rc<dyn Reach>,
        wanted: impl Fn(&Case) -> bool,
        mut each: impl FnMut(&CaseRun),
    ) -> Table {
        let mut table = Table::default();
        let mut beyond_help = false;
        for section in sections() {
            for case in section.cases.iter().filter(|case| wanted(case)) {
                let verdict = if beyond_help { None } else { Some(one(&reach, case).await) };
                // If no case can be started on the controller, the remaining ones are not run.
                beyond_help |= matches!(&verdict, Some((_, true)));
                let verdict = verdict.map(|(verdict, _)| verdict);
                let case_run = CaseRun { section, case, verdict };
                each(&case_run);
                table.runs.push(case_run);
            }
        }
        // Leave the controller disabled.
        if let Ok(bench) = Bench::of(&reach).await {
            let _ = bench.disable().await;
        }
        table
    }

    /// Numbers of cases by verdict.
    pub fn counts(&self) -> Counts {
        Table::count(self.runs.iter())
    }

    fn count<'a>(case_run: impl Iterator<Item = &'a CaseRun>) -> Counts {
        let mut counts = Counts::default();
        for case_run in case_run {
            let place = match &case_run.verdict {
                Some(Ok(())) => &mut counts.passed,
                Some(Err(Stop::Failed(_))) => &mut counts.failed,
                Some(Err(Stop::Lacks(_))) => &mut counts.lacking,
                None => &mut counts.left,
            };
            *place += 1;
        }
        counts
    }

    /// The table by section, then each failed case with its failure.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut of = "";
        for section in sections() {
            let here = self.runs.iter().filter(|case_run| std::ptr::eq(case_run.section, section));
            let counts = Table::count(here);
            if counts == Counts::default() {
                continue;
            }
            if of != section.of {
                of = section.of;
                let heads = ("passed", "failed", "lacking");
                let _ = writeln!(text, "{of:<50} {:>7} {:>7} {:>7}", heads.0, heads.1, heads.2);
            }
            let Counts { passed, failed, lacking, left } = counts;
            let _ = write!(text, "  {:<10} {:<37} ", section.number, section.title);
            let _ = write!(text, "{passed:>7} {failed:>7} {lacking:>7}");
            let not_run = if left > 0 { format!("  {left} not run") } else { String::new() };
            let _ = writeln!(text, "{not_run}");
        }
        for case_run in &self.runs {
            if let Some(Err(Stop::Failed(words))) = &case_run.verdict {
                let CaseRun { section, case, .. } = case_run;
                let _ =
                    writeln!(text, "failed: {} ({}, {})", case.name, section.of, section.number);
                let _ = writeln!(text, "  expected: {}", case.about);
                let _ = writeln!(text, "  found: {words}");
            }
        }
        let Counts { passed, failed, lacking, left } = self.counts();
        let all = self.runs.len();
        let _ = write!(text, "{all} cases: {passed} passed, {failed} failed, ");
        let _ = write!(text, "{lacking} about what this controller does not have");
        if left > 0 {
            let _ = write!(text, ", {left} not run as it no longer answers");
        }
        text.push('\n');
        text
    }

    /// The features that the controller lacks, one line per case.
    pub fn lacking(&self) -> String {
        let mut text = String::new();
        for case_run in &self.runs {
            if let Some(Err(Stop::Lacks(words))) = &case_run.verdict {
                let _ = writeln!(text, "lacking: {}: {words}", case_run.case.name);
            }
        }
        text
    }
}

/// Runs one case; the flag is true if the controller could not be brought up.
async fn one(reach: &Rc<dyn Reach>, case: &Case) -> (Verdict, bool) {
    let mut bench = match Bench::fresh(reach).await {
        Ok(bench) => bench,
        Err(stop) => return (Err(stop), true),
    };
    let verdict = (case.run)(&mut bench).await;
    if reach.is_gone() {
        return (Stop::failed("the controller is gone"), true);
    }
    (verdict, false)
}
