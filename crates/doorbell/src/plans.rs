//! `doorbell plans` and `doorbell check`.

use std::path::PathBuf;

use plan::Plan;
use report::model::{Document, PlanFound};

use super::Sets;
use super::call::Call;
use super::output::{Page, Sink, in_columns};

pub(super) fn plans(
    name: Option<&str>,
    json: Option<&PathBuf>,
    call: &Call,
) -> Result<bool, String> {
    let mut json = json.map(Sink::open).transpose()?;
    let page = Page::beside(&[&json])?;
    let open = |name: &str| Plan::open(name, &[]).map_err(|errors| errors.to_string());
    let built_in = plan::built_in();
    let mut found = Vec::new();
    match name {
        None => {
            for (name, _) in built_in {
                let plan = open(name)?;
                page.text(&in_columns(&format!("{name:<19}  {}", plan.about)));
                found.push(of(name, &plan));
            }
        }
        Some(name) => {
            let plan = open(name)?;
            let text = built_in.iter().find(|(known, _)| *known == name);
            page.text(text.map_or(plan.text.as_str(), |(_, text)| text));
            found.push(of(name, &plan));
        }
    }
    put(&mut json, found, call)?;
    Ok(true)
}

pub(super) fn check(
    plans: &[String],
    sets: &Sets,
    json: Option<&PathBuf>,
    call: &Call,
) -> Result<bool, String> {
    let mut json = json.map(Sink::open).transpose()?;
    let page = Page::beside(&[&json])?;
    let (mut good, mut found) = (true, Vec::new());
    for typed in plans {
        match sets.open(typed) {
            Ok(plan) => {
                let report = plan.report();
                page.line(in_columns(&report));
                found.push(PlanFound { report: Some(report), ..of(typed, &plan) });
            }
            Err(errors) => {
                eprintln!("{errors}");
                good = false;
                let errors = errors.lines().map(str::to_owned).collect();
                found.push(PlanFound { typed: typed.clone(), plan: None, report: None, errors });
            }
        }
    }
    put(&mut json, found, call)?;
    Ok(good)
}

fn of(typed: &str, plan: &Plan) -> PlanFound {
    let plan = Some(report::plan_of(plan));
    PlanFound { typed: typed.to_owned(), plan, report: None, errors: Vec::new() }
}

fn put(json: &mut Option<Sink>, plans: Vec<PlanFound>, call: &Call) -> Result<(), String> {
    let Some(json) = json else { return Ok(()) };
    json.put(&report::to_json(&Document { plans, ..call.document(Vec::new()) }))
}
