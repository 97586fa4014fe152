//! The plan of a fit: its values over the plan that the search began with.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plan::Plan;

use super::{Fit, Precision, Value};

/// The text of a plan of the drive. `base` is the plan that the fit began with: a built-in name or a path, as
/// the new file will find it. Settings of that plan are in the text as well.
pub fn of_fit(plan: &Plan, base: &str, fit: &Fit) -> String {
    let Fit { table, seed, fitted, held, .. } = fit;
    let median =
        |percent: Option<f64>| percent.map_or("none".to_owned(), |of| format!("{of:.1} %"));
    let mut text = format!(
        "# {table}, fitted to {} rows by `doorbell fit`; {} rows were held out with seed {seed}.\n\
         # Half of the errors are below {} of the rows that were fitted, and below {} of those held out.\n\
         version = 1\nbase = {}\nname = {}\nabout = {}\ndrive = {}\n",
        fitted.rows,
        held.rows,
        median(fitted.median_after),
        median(held.median_after),
        quoted(base),
        quoted(table),
        quoted(&format!("{table}, fitted to measurements.")),
        quoted(table),
    );
    let mut tables: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut put = |key: &str, value: &str, source: &str| {
        let (path, last) = key.rsplit_once('.').unwrap_or(("", key));
        // A number stays a number; all else is text, whatever form it was given in.
        let is_plain = toml_value(value);
        let value = if is_plain { value.to_owned() } else { quoted(value) };
        let is_table = value.starts_with(['{', '[']);
        let line = match is_table {
            true => format!("{} = {value}", name(last)),
            false => format!("{} = {{ value = {value}, source = {} }}", name(last), quoted(source)),
        };
        let path: Vec<String> = path.split('.').map(name).collect();
        tables.entry(path.join(".")).or_default().push(line);
    };
    for (key, value) in &plan.sets {
        if fit.keys.iter().all(|of| of.key != *key) {
            put(key, value, "assumed: given to the fit");
        }
    }
    for Value { key, to, precision, .. } in
        fit.keys.iter().filter(|of| of.precision != Precision::NoEffect)
    {
        put(key, to, &format!("fitted: to {table}, {}", precision.in_words()));
    }
    for (path, lines) in tables {
        writeln!(text, "\n[{path}]\n{}", lines.join("\n")).expect("a string");
    }
    text
}

/// Whether a setting is a value of TOML as it is.
fn toml_value(value: &str) -> bool {
    let first = value.chars().next().unwrap_or('"');
    value.parse::<f64>().is_ok()
        || ["true", "false"].contains(&value)
        || matches!(first, '"' | '\'' | '{' | '[')
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// A key as TOML has it: in quotes if it has other characters than letters, digits, `_` and `-`.
fn name(key: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(is_bare) { key.to_owned() } else { quoted(key) }
}
