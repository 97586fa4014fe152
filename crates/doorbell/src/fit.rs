//! `doorbell fit`: a plan that agrees with measurements of a drive.

use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use campaign::fit::{self, Key, Options};
use campaign::validate::{self, Length, built_in};
use clap::builder::{RangedI64ValueParser, RangedU64ValueParser};
use clap::{Args, value_parser};

use super::Sets;
use super::output::{Page, Sink, bar};

#[derive(Args)]
pub(super) struct Fit {
    /// Measurements: a built-in table, a table file (TSV), or the JSON output of fio
    #[arg(value_name = "DRIVE", required_unless_present = "jobs")]
    drive: Option<String>,
    /// Plan to begin with: built-in name or TOML file [default: the plan with the drive's name]
    #[arg(long)]
    plan: Option<String>,
    /// Key of the plan to search, and its range; repeat it for several [default: times of the chips and of
    /// the flash software, number of dies, spare space, costs of commands]
    #[arg(long = "key", value_name = "KEY=FROM..TO")]
    keys: Vec<String>,
    /// Most plans to try, about; the search may end before
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = tries())]
    tries: u32,
    /// Operations of each run, about: `validate` has 20,000; a rate that a drive keeps only while it has free
    /// space shows in long runs
    #[arg(long, value_name = "N", default_value_t = fit::LENGTH.operations, value_parser = operations())]
    operations: u64,
    /// Part of the loads to hold out, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = percent())]
    hold: u64,
    /// Fit only rows whose workload begins with this word, as `randread`
    #[arg(long, value_name = "WORKLOAD", default_value = "", hide_default_value = true)]
    rows: String,
    /// Seed that chooses the loads that are held out
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write the plan to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write the report to this file as JSON; `-` prints it instead of the text
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print a job file for fio that measures reads of a drive, and end
    #[arg(long, exclusive = true)]
    jobs: bool,
    #[command(flatten)]
    sets: Sets,
}

pub(super) fn fit(typed: &Fit) -> Result<bool, String> {
    if typed.jobs {
        Page::beside(&[])?.text(&validate::jobs());
        return Ok(true);
    }
    let drive = typed.drive.as_deref().expect("clap requires it without --jobs");
    let table = built_in::open(drive).and_then(|table| table.with_only(&typed.rows));
    let table = table.map_err(|error| error.to_string())?;
    let name = typed.plan.as_deref().unwrap_or(table.plan());
    let plan = typed.sets.open(name)?;
    let keys = typed.keys.iter().map(|text| Key::parse(text)).collect::<Result<_, _>>();
    let options = Options {
        keys: keys.map_err(|error| error.to_string())?,
        length: Length { operations: typed.operations, ..fit::LENGTH },
        tries: typed.tries as usize,
        held_percent: typed.hold,
        seed: typed.seed,
        threads: available_parallelism().map_or(1, usize::from),
    };
    let is_index = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let indexed = plan.sets.iter().find(|(key, _)| key.split('.').any(is_index));
    if let (Some((key, _)), Some(_)) = (indexed, &typed.out) {
        return Err(format!(
            "--set {key}: found a place in a list, expected a plan with it by --plan"
        ));
    }
    // Before minutes of work: files that cannot be written.
    let mut out = typed.out.as_ref().map(Sink::open).transpose()?;
    let mut json = typed.json.as_ref().map(Sink::open).transpose()?;
    let page = Page::beside(&[&out, &json])?;
    let bar = bar(typed.tries.into(), "{bar:40} {pos} of about {len} plans, {eta} left");
    let result = fit::fit(&plan, &table, &options, &|tried| bar.set_position(tried as u64));
    bar.finish_and_clear();
    let result = result.map_err(|error| error.to_string())?;
    page.text(&fit::text::of(&result));
    if let Some(out) = &mut out {
        out.put(&fit::of_fit(&plan, &base(name), &result))?;
    }
    if let Some(json) = &mut json {
        let text = serde_json::to_string_pretty(&result).expect("a report is plain data");
        json.put(&(text + "\n"))?;
    }
    Ok(true)
}

fn tries() -> RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=100_000)
}

fn operations() -> RangedU64ValueParser {
    value_parser!(u64).range(100..=10_000_000)
}

fn percent() -> RangedU64ValueParser {
    value_parser!(u64).range(0..=90)
}

/// The plan as a file in any directory can name it.
fn base(name: &str) -> String {
    let whole = Path::new(name).canonicalize().ok();
    whole.map_or(name.to_owned(), |path| path.display().to_string())
}
