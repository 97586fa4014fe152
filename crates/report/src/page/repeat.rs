//! Costs of the plans with their sources, and how to repeat the command.

use maud::{Markup, html};

use super::parts::{Grid, Section, details, quoted, text};
use crate::model::{Document, Plan, Setting, Sourced, World};

pub(super) fn sections(document: &Document) -> Vec<Section> {
    let plans = plans(document);
    let mut sections = Vec::new();
    if plans.iter().any(|plan| !plan.sources.is_empty()) {
        let body = html! { @for plan in &plans { (costs(plan, plans.len() > 1)) } };
        sections.push(Section::new("costs", "Costs and their sources", body));
    }
    sections.push(Section::new("repeat", "How to repeat it", repeat(document, &plans)));
    sections
}

/// The different plans of a document.
fn plans(document: &Document) -> Vec<&Plan> {
    let found = document.plans.iter().filter_map(|found| found.plan.as_ref());
    let mut plans: Vec<&Plan> = Vec::new();
    for plan in document.runs.iter().map(|run| &run.plan).chain(found) {
        if !plans.contains(&plan) {
            plans.push(plan);
        }
    }
    plans
}

fn costs(plan: &Plan, many: bool) -> Markup {
    let assumed = plan.sources.iter().filter(|sourced| sourced.assumed).count();
    let fitted = plan.sources.iter().filter(|sourced| kind(sourced) == Some(FITTED)).count();
    let mut grid = Grid::new(&["key", "value", "source"]).of_text();
    for sourced in &plan.sources {
        grid.row([
            html! { code { (sourced.key) } },
            text(&sourced.value),
            html! {
                @if let Some(kind) = kind(sourced) { span.badge.departs { (kind) } " " }
                (source_alone(&sourced.source))
            },
        ]);
    }
    html! {
        @if many { h3 { (plan.name) } }
        p {
            (plan.sources.len()) " values have a source; " strong { (assumed) " of them are assumed" }
            ", that is, not measured."
            @if fitted > 0 { " Of these, " (fitted) " are fitted to measurements of the drive." }
        }
        (grid)
    }
}

const FITTED: &str = "fitted";

/// The mark of a value that was not measured.
fn kind(sourced: &Sourced) -> Option<&'static str> {
    let is_fitted = sourced.source.starts_with(FITTED);
    sourced.assumed.then_some(if is_fitted { FITTED } else { "assumed" })
}

/// A source without the word that the mark before it says.
fn source_alone(source: &str) -> &str {
    let rest = source.strip_prefix("assumed").or(source.strip_prefix(FITTED)).unwrap_or(source);
    rest.trim_start_matches([':', ',', ' '])
}

fn repeat(document: &Document, plans: &[&Plan]) -> Markup {
    let arguments = document.command.arguments.iter().map(|word| quoted(word));
    let words = [document.program.name.clone(), document.command.name.clone()];
    let command = words.into_iter().chain(arguments).collect::<Vec<_>>().join(" ");
    let simulated = document.runs.iter().any(|run| run.world == World::Simulated);
    let mut works = Vec::new();
    for run in &document.runs {
        if !works.contains(&&run.work) {
            works.push(&run.work);
        }
    }
    html! {
        pre.command { code { (command) } }
        @if simulated {
            p {
                "A simulated run gives the same result on any machine. This page has the whole result, with \
                 plan and jobs, as JSON in its element " code { "script#document" } "."
            }
        } @else {
            p { "This page has the whole result as JSON in its element " code { "script#document" } "." }
        }
        @for work in works {
            @for recording in &work.recordings {
                p { "Recording " code { (recording.path) } ", SHA-256 " code.long { (recording.sha256) } }
            }
            @if !work.variables.is_empty() { (settings("Variables of the environment", &work.variables)) }
            @if !work.text.is_empty() {
                (details(&format!("Job file {}", work.file), &html! { pre { code { (work.text) } } }))
            }
        }
        @for plan in plans {
            @if !plan.sets.is_empty() { (settings(&format!("Settings over plan {}", plan.name), &plan.sets)) }
            (details(
                &format!("Plan {}, seed {}, of {}", plan.name, plan.seed, plan.origin),
                &html! { pre { code { (plan.text) } } },
            ))
        }
    }
}

fn settings(title: &str, settings: &[Setting]) -> Markup {
    html! {
        p { (title) ": " @for setting in settings { code { (setting.key) "=" (setting.value) } " " } }
    }
}
