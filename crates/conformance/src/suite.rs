//! All cases, and how they are run one after the other.

use std::fmt::Write as _;
use std::rc::Rc;

use crate::bench::Bench;
use crate::case::{Case, Section};
use crate::cases;
use crate::reach::Reach;
use crate::verdict::{Stop, Verdict};

/// All cases, in the order of the specifications' sections.
pub fn sections() -> impl Iterator<Item = &'static Section> {
    let mut all: Vec<&Section> = cases::ALL.iter().flat_map(|part| part.iter()).collect();
    let numbers = |section: &Section| -> Vec<u32> {
        section.number.split('.').map(|number| number.parse().expect("a number")).collect()
    };
    // The base specification comes before the command set's.
    all.sort_by_key(|section| (std::cmp::Reverse(section.of), numbers(section)));
    all.into_iter()
}

pub struct CaseRun {
    pub section: &'static Section,
    pub case: &'static Case,
    /// How it ended; none: it was not run, as the controller was beyond help.
    pub verdict: Option<Verdict>,
}

/// What a run of the suite gave.
#[derive(Default)]
pub struct Table {
    /// How each case went, in order.
    pub runs: Vec<CaseRun>,
}

/// How many cases of some ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    /// About what the controller does not have.
    pub lacking: usize,
    /// Never.
    pub left: usize,
}

impl Table {
    /// Runs the cases that `wanted` picks, each on a controller that was just reset.
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
                // A controller that no case can be begun on answers no other either.
                beyond_help |= matches!(&verdict, Some((_, true)));
                let verdict = verdict.map(|(verdict, _)| verdict);
                let case_run = CaseRun { section, case, verdict };
                each(&case_run);
                table.runs.push(case_run);
            }
        }
        // Whoever comes next finds a controller that is off.
        if let Ok(bench) = Bench::of(&reach).await {
            let _ = bench.disable().await;
        }
        table
    }

    /// How all of them ended.
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

    /// The table by section, then each case that failed, with what was found.
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

    /// What the controller says it does not have, a line for each case about it.
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

/// Runs one case, and says whether there was no beginning it.
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
