//! `doorbell papers`: statements, figures and tables of papers beside those of this model.

use std::path::PathBuf;

use clap::Args;
use papers::{self, Compared, Options, Paper};
use report::exhibits::{Details, Verdicts};
use report::model;

use super::call::Call;
use super::key_and_value;
use super::output::{Page, Sink, create, put};

#[derive(Args)]
pub(super) struct Papers {
    /// Only this paper, with all its exhibits [default: the verdicts of all]
    name: Option<String>,
    /// Leave out what takes long: swings of assumed costs, and runs of minutes
    #[arg(long, conflicts_with = "mutations")]
    quick: bool,
    /// Print all exhibits of all papers
    #[arg(long, conflicts_with = "mutations")]
    verbose: bool,
    /// Run each check with each change of the model that must reverse its verdict
    #[arg(long)]
    mutations: bool,
    /// Write the result to this file as JSON; - is standard output, and then the only thing there
    #[arg(long, value_name = "FILE", conflicts_with = "mutations")]
    json: Option<PathBuf>,
    /// Write the result to this file as one page, with the figures and the data
    #[arg(long, value_name = "FILE", conflicts_with = "mutations")]
    html: Option<PathBuf>,
    /// Run each check also with this value of a key, beneath the settings of the exhibits: what changes is
    /// printed first. Keys of medium.flash are set in plans that have it (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_and_value)]
    #[arg(conflicts_with_all = ["mutations", "json", "html", "verbose"])]
    sets: Vec<(String, String)>,
}

/// Returns false if a verdict is not the one on record.
pub(super) fn papers(typed: &Papers, call: &Call) -> Result<bool, String> {
    let papers = chosen(typed.name.as_deref())?;
    if typed.mutations {
        return Ok(mutations(&papers));
    }
    let long = typed.name.is_some() && !typed.quick;
    if !typed.sets.is_empty() {
        return compare(&papers, &typed.sets, long).map(|()| true);
    }
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let mut html = typed.html.as_ref().map(create).transpose()?;
    let page = Page::beside(&[&json])?;
    let options = Options { swings: !typed.quick, long };
    let computed = papers::run(&papers, options).map_err(|error| error.to_string())?;
    for paper in &computed {
        page.line(Verdicts(paper));
    }
    if typed.name.is_some() || typed.verbose {
        computed.iter().for_each(|paper| page.text(&Details(paper).to_string()));
    }
    let is_as_expected = computed.iter().all(model::Paper::is_as_expected);
    if typed.json.is_some() || typed.html.is_some() {
        let mut document = call.document(Vec::new());
        document.papers = computed;
        if let (Some(file), Some(path)) = (&mut html, &typed.html) {
            put(file, path, &report::page::html(&document))?;
            page.line(format_args!("page: {}", path.display()));
        }
        if let Some(json) = &mut json {
            json.put(&report::to_json(&document))?;
        }
    }
    Ok(is_as_expected)
}

fn chosen(name: Option<&str>) -> Result<Vec<&'static Paper>, String> {
    let all = papers::all();
    let chosen: Vec<_> = all.iter().filter(|p| name.is_none_or(|name| p.name == name)).collect();
    if chosen.is_empty() {
        let known: Vec<_> = all.iter().map(|paper| paper.name).collect();
        let name = name.unwrap_or_default();
        return Err(format!("no paper {name:?}: expected one of {}", known.join(", ")));
    }
    Ok(chosen)
}

/// Prints the checks with and without these keys: those whose verdict or number changes first.
fn compare(papers: &[&'static Paper], sets: &[(String, String)], long: bool) -> Result<(), String> {
    let all = papers::compare(papers, sets, long).map_err(|error| error.to_string())?;
    let reversed = all.iter().filter(|one| one.is_reversed()).count();
    let changed = all.iter().filter(|one| one.is_changed()).count();
    println!("{} checks: {changed} numbers change, {reversed} verdicts", all.len());
    let print = |title, which: fn(&Compared) -> bool| {
        let mut rows = all.iter().filter(|one| which(one)).peekable();
        if rows.peek().is_some() {
            println!("{title}:");
        }
        rows.for_each(|one| println!("  {one}"));
    };
    print("other verdict", |one| one.is_reversed());
    print("other number", |one| one.is_changed() && !one.is_reversed());
    print("unchanged", |one| !one.is_changed());
    Ok(())
}

fn mutations(papers: &[&'static Paper]) -> bool {
    let all = papers::mutations(papers, true);
    for mutated in &all {
        print!("{mutated}");
    }
    let wrong = all.iter().filter(|mutated| !mutated.is_as_expected()).count();
    println!("{} changes, {wrong} of them not as on record", all.len());
    wrong == 0
}
