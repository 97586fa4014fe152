//! A document as a page: one HTML file that needs nothing else.
//!
//! ```text
//!   Document ─► streams, palette ─► sections: pictures (svg), tables ─► html
//! ```
//!
//! The page has no script, and its policy lets none run: a pointer reads values off the pictures by the style
//! sheet alone. It requests nothing. The document itself is in the page, so that the page can be replayed:
//! [`embedded`] finds it.
//!
//! Numbers carry the place of their origin in the document (`data-of`): an operation, and JSON pointers. A
//! test in a browser compares them.

mod bars;
mod breakdown;
mod cdf;
pub mod drive;
mod flash;
mod lanes;
mod number;
mod others;
mod over_time;
mod palette;
mod papers;
mod parts;
mod plot;
mod repeat;
mod resources;
mod runs;
mod streams;
mod summary;
mod svg;
mod sweep;
mod swings;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::model::{Document, Program, Warning, WarningKind, World};
use parts::{Section, quoted};
pub use sweep::of_sweep;

const STYLE: &str = include_str!("page/style.css");
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
const OPENING: &str = "<script type=\"application/json\" id=\"document\">";
const CLOSING: &str = "</script>";

/// The page of a document.
pub fn html(document: &Document) -> String {
    let title = title(document);
    let sections = sections(document);
    let body = html! {
        header {
            h1 { (title) }
            (subtitle(document))
            (warnings(document))
        }
        nav aria-label="Contents" {
            @for section in &sections { a href={ "#" (section.id) } { (section.title) } " " }
        }
        main { @for section in &sections { (section) } }
        footer { (footer(document)) }
        (PreEscaped(OPENING)) (PreEscaped(json(document))) (PreEscaped(CLOSING))
    };
    whole(&title, &document.program, &body)
}

/// A page of this title and body, which needs nothing else.
fn whole(title: &str, program: &Program, body: &Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ (program.name) " " (program.version) };
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (palette::patterns())
                (body)
            }
        }
    };
    page.into_string()
}

/// The JSON of the document that is in a page; absent if the text is no such page.
pub fn embedded(page: &str) -> Option<&str> {
    let (_, from) = page.rsplit_once(OPENING)?;
    from.split_once(CLOSING).map(|(json, _)| json)
}

/// The document as JSON. No text in it can end the element that holds it.
fn json(document: &Document) -> String {
    let json = serde_json::to_string(document).expect("a document has string keys only");
    // Outside strings JSON has no such character.
    json.replace('<', "\\u003c")
}

fn sections(document: &Document) -> Vec<Section> {
    let mut sections = Vec::new();
    sections.extend(papers::sections(document));
    sections.extend(runs::sections(document));
    sections.extend(others::sections(document));
    sections.extend(repeat::sections(document));
    sections
}

/// Flags that name a file of the output.
const OUTPUTS: [&str; 5] = ["--html", "--json", "--csv", "--series", "--trace"];

/// The command without its output files, which do not change what the page shows.
fn title(document: &Document) -> String {
    let mut words = vec![document.program.name.clone(), document.command.name.clone()];
    let mut arguments = document.command.arguments.iter();
    while let Some(word) = arguments.next() {
        if OUTPUTS.contains(&word.as_str()) {
            arguments.next();
        } else if !OUTPUTS.iter().any(|flag| word.starts_with(&format!("{flag}="))) {
            words.push(quoted(word));
        }
    }
    words.join(" ")
}

fn subtitle(document: &Document) -> Markup {
    let mut plans: Vec<(&str, &str)> = Vec::new();
    for run in &document.runs {
        let plan = (run.plan.name.as_str(), run.plan.about.as_str());
        if !plans.contains(&plan) {
            plans.push(plan);
        }
    }
    let has = |world| document.runs.iter().any(|run| run.world == world);
    let worlds = match (has(World::Live), has(World::Simulated)) {
        (true, true) => "Live and simulated",
        (true, false) => "Live",
        _ => "Simulated",
    };
    html! {
        @for (number, (name, about)) in plans.into_iter().enumerate() {
            p {
                @if number == 0 { (worlds) ", plan " } @else { "Plan " }
                strong { (name) }
                @if !about.is_empty() { ": " (about) }
            }
        }
    }
}

/// Warnings of the whole, and of the runs with their names.
fn warnings(document: &Document) -> Markup {
    let names = streams::run_names(document);
    let mut found: Vec<(String, &Warning)> =
        document.warnings.iter().map(|warning| (String::new(), warning)).collect();
    for (run, name) in document.runs.iter().zip(&names) {
        found.extend(run.warnings.iter().map(|warning| (name.clone(), warning)));
    }
    let (left_out, found): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(_, warning)| warning.kind == WarningKind::LeftOut);
    html! {
        @if !found.is_empty() {
            ul.warnings {
                @for (name, warning) in found {
                    li { strong { "Warning" } @if !name.is_empty() { ", " (name) } ": " (warning.text) "." }
                }
            }
        }
        @if !left_out.is_empty() {
            details.note {
                summary { "Left out: " (left_out.len()) " interfaces that the plan lacks" }
                @for (_, warning) in left_out { p.note { (warning.text) "." } }
            }
        }
    }
}

fn footer(document: &Document) -> Markup {
    html! {
        p {
            (document.program.name) " " (document.program.version)
            @if let Some(machine) = &document.machine {
                " on " (machine.system)
                @if !machine.processor.is_empty() { ", " (machine.processor) }
                ", " (machine.cores) " cores"
            }
            @if document.unix_ms > 0 { ", " (date(document.unix_ms)) " UTC" }
            "."
        }
    }
}

/// Year, month, day, hours and minutes of a time in milliseconds from 1970.
fn date(unix_ms: u64) -> String {
    let minutes = unix_ms / 60_000;
    let days = (minutes / 1440) as i64;
    // Days in eras of 400 years that begin in March, as in Hinnant's `civil_from_days`.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hours, minutes) = (minutes / 60 % 24, minutes % 60);
    format!("{year}-{month:02}-{day:02} {hours:02}:{minutes:02}")
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_of_the_gregorian_calendar() {
        let days = |days: u64| date(days * 86_400_000);
        assert_eq!(days(0), "1970-01-01 00:00");
        assert_eq!(days(11_016), "2000-02-29 00:00");
        assert_eq!(days(20_782), "2026-11-25 00:00");
        assert_eq!(date(951_868_740_000), "2000-02-29 23:59");
    }
}
