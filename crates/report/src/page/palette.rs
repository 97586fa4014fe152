//! Colours of stages: one name has one colour on a whole page.
//!
//! There are eight hues, in an order in which neighbours differ for all kinds of colour vision; the same
//! eight with stripes; and grey for the others. The colours are in the style sheet, for light and dark.

use std::collections::BTreeMap;

use maud::{Markup, html};

use crate::model::{Document, Job, Operations, Run, Shares};

const HUES: usize = 8;
/// Stages with less than this share of every bar are grey.
const LEAST_SHARE: f64 = 0.004;

/// Class of time that no stage names.
pub(super) const UNEXPLAINED: &str = "unexplained";
/// Class of the stages without a colour of their own.
pub(super) const OTHER: &str = "other";

/// The classes of the stages that have one.
pub(super) struct Palette {
    classes: BTreeMap<String, usize>,
}

/// All operations of a run with the jobs that they belong to.
fn operations(run: &Run) -> impl Iterator<Item = (&Job, &Operations)> {
    run.jobs.iter().flat_map(|job| job.operations.values().map(move |of_kind| (job, of_kind)))
}

impl Palette {
    /// Colours for the stages of a document: hues for those with the largest shares.
    pub fn of(document: &Document) -> Palette {
        // In the order of the stages, which is that of the parts of a bar.
        let mut names: Vec<&str> = Vec::new();
        let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
        let mut add = |name, share: f64| {
            let most = shares.entry(name).or_insert_with(|| {
                names.push(name);
                0.0
            });
            *most = most.max(share);
        };
        for run in &document.runs {
            let breakdowns = operations(run).filter_map(|(_, of_kind)| of_kind.breakdown.as_ref());
            for breakdown in breakdowns {
                let bars = breakdown.at.iter().map(|around| &around.shares);
                for bar in bars.chain([&breakdown.mean]) {
                    for (name, share) in breakdown.stages.iter().zip(shares_of(bar)) {
                        add(name, share);
                    }
                }
            }
            for request in &run.timeline {
                let all =
                    request.spans.iter().map(|span| span.to_ps - span.from_ps).sum::<u64>().max(1);
                for span in &request.spans {
                    add(&span.stage, (span.to_ps - span.from_ps) as f64 / all as f64);
                }
            }
        }
        let share = |name: &str| shares.get(name).copied().unwrap_or_default();
        let mut largest: Vec<&str> =
            names.iter().copied().filter(|name| share(name) >= LEAST_SHARE).collect();
        largest.sort_by(|a, b| share(b).total_cmp(&share(a)));
        largest.truncate(2 * HUES);
        let (plain, striped) = largest.split_at(largest.len().min(HUES));
        let place = |name: &&str| names.iter().position(|other| other == name);
        let mut classes = BTreeMap::new();
        for (first, group) in [(1, plain), (1 + HUES, striped)] {
            let mut group = group.to_vec();
            group.sort_by_key(place);
            for (number, name) in group.into_iter().enumerate() {
                classes.insert(name.to_owned(), first + number);
            }
        }
        Palette { classes }
    }

    /// The class of a stage.
    pub fn class(&self, stage: &str) -> String {
        match self.classes.get(stage) {
            Some(number) => format!("s{number}"),
            None => OTHER.to_owned(),
        }
    }

    /// True if the stage has a colour of its own.
    pub fn has(&self, stage: &str) -> bool {
        self.classes.contains_key(stage)
    }

    /// A legend of some stages, and of the two kinds of rest where they occur.
    pub fn legend<'a>(
        &self,
        stages: impl Iterator<Item = &'a str>,
        rests: &[&'static str],
    ) -> Markup {
        let mut shown: Vec<&str> = Vec::new();
        for stage in stages {
            if self.has(stage) && !shown.contains(&stage) {
                shown.push(stage);
            }
        }
        html! {
            ul.legend {
                @for stage in &shown { (entry(&self.class(stage), stage)) }
                @for rest in rests { (entry(rest, rest_name(rest))) }
            }
        }
    }
}

fn rest_name(class: &'static str) -> &'static str {
    if class == OTHER { "other stages" } else { class }
}

/// An entry of a legend.
pub(super) fn entry(class: &str, name: &str) -> Markup {
    html! {
        li {
            svg.key.square viewBox="0 0 12 12" aria-hidden="true" {
                rect class={ "part " (class) } width="12" height="12" rx="2" {}
            }
            (name)
        }
    }
}

/// The parts of a mean latency, as shares of it.
fn shares_of(shares: &Shares) -> impl Iterator<Item = f64> {
    let total = shares.total_ns.max(1e-3);
    shares.stages_ns.iter().map(move |stage| stage / total)
}

/// Stripes for the second eight. Shapes that refer to them get their colours from the style sheet.
pub(super) fn patterns() -> Markup {
    html! {
        svg.patterns aria-hidden="true" {
            defs {
                @for number in 1..=HUES {
                    pattern id={ "stripes" (number) } width="6" height="6" patternUnits="userSpaceOnUse"
                        patternTransform="rotate(45)" {
                        rect class={ "s" (number) } width="6" height="6" {}
                        rect.gap width="2.4" height="6" {}
                    }
                }
                pattern id="unexplained" width="5" height="5" patternUnits="userSpaceOnUse"
                    patternTransform="rotate(-45)" {
                    rect.ground width="5" height="5" {}
                    rect.ink width="1.6" height="5" {}
                }
            }
        }
    }
}
