//! The text of a sweep file.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toml::Value;

use super::error::SweepError;

/// Most bytes of a sweep file.
const BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileText {
    #[serde(default)]
    pub about: String,
    /// Built-in name, or a path from the sweep file.
    pub plan: Option<String>,
    /// Job file or recording, from the sweep file.
    pub file: Option<String>,
    pub interface: Option<String>,
    pub seed: Option<u64>,
    #[serde(default)]
    pub method: Method,
    /// Number of points of random and Latin hypercube sweeps.
    pub points: Option<u64>,
    pub draw_seed: Option<u64>,
    /// Recordings are mapped modulo the capacity.
    #[serde(default)]
    pub modulo: bool,
    /// Points whose interface does not support the plan are left out.
    #[serde(default)]
    pub leave_out_unsupported: bool,
    #[serde(default)]
    pub set: toml::Table,
    #[serde(default)]
    pub job: toml::Table,
    #[serde(default)]
    pub axis: Vec<AxisText>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Method {
    #[default]
    Grid,
    /// The values of all axes at the same place.
    List,
    Random,
    LatinHypercube,
}

impl Method {
    pub fn name(self) -> &'static str {
        match self {
            Method::Grid => "grid",
            Method::List => "list",
            Method::Random => "random",
            Method::LatinHypercube => "latin-hypercube",
        }
    }

    pub fn is_drawn(self) -> bool {
        matches!(self, Method::Random | Method::LatinHypercube)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AxisText {
    /// Its name in results; otherwise its key.
    pub name: Option<String>,
    /// Key of the plan, or several that get the same value.
    pub set: Option<Keys>,
    pub job: Option<Keys>,
    pub over: Option<Over>,
    pub cases: Option<Vec<CaseText>>,
    pub values: Option<Vec<Value>>,
    pub from: Option<Value>,
    pub to: Option<Value>,
    pub steps: Option<usize>,
    #[serde(default)]
    pub scale: Scale,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Keys {
    One(String),
    Several(Vec<String>),
}

impl Keys {
    pub fn all(&self) -> Vec<String> {
        match self {
            Keys::One(key) => vec![key.clone()],
            Keys::Several(keys) => keys.clone(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Over {
    Interface,
    Plan,
    File,
    Seed,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Scale {
    #[default]
    Linear,
    Log,
}

/// A named bundle of settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CaseText {
    pub name: String,
    pub plan: Option<String>,
    pub file: Option<String>,
    pub interface: Option<String>,
    pub seed: Option<u64>,
    #[serde(default)]
    pub set: toml::Table,
    #[serde(default)]
    pub job: toml::Table,
}

impl FileText {
    pub fn parse(path: &Path, text: &str) -> Result<FileText, SweepError> {
        let syntax = |line, why: String| SweepError::Syntax { path: path.to_owned(), line, why };
        if text.len() > BYTES_MAX {
            return Err(syntax(
                1,
                format!("found {} bytes, expected {BYTES_MAX} at most", text.len()),
            ));
        }
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start).min(text.len());
            let line = 1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
            syntax(line, error.message().replace('\n', " "))
        })
    }
}

/// Settings of a table as `--set` and `--job` take them, nested tables as dotted keys. A table
/// with `value` is one value.
pub fn settings(table: &toml::Table) -> Vec<(String, String)> {
    let mut all = BTreeMap::new();
    flatten("", table, &mut all);
    all.into_iter().collect()
}

fn flatten(prefix: &str, table: &toml::Table, all: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            Value::Table(inner) if !inner.contains_key("value") => flatten(&key, inner, all),
            value => drop(all.insert(key, text_of(value))),
        }
    }
}

/// A value as `--set` and `--job` take it: text without quotes.
pub(super) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Boolean(true) => "true".to_owned(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_tables_are_dotted_keys() {
        let text = "a.b = 1\n\"c.d\" = \"2 ns\"\n[e]\nf = { value = \"3 ns\", source = \"x\" }\n";
        let table: toml::Table = toml::from_str(text).unwrap();
        let all = settings(&table);
        assert_eq!(all[0], ("a.b".into(), "1".into()));
        assert_eq!(all[1], ("c.d".into(), "2 ns".into()));
        assert_eq!(all[2], ("e.f".into(), "{ source = \"x\", value = \"3 ns\" }".into()));
    }

    #[test]
    fn syntax_errors_name_the_line_and_the_key() {
        let error = |text| FileText::parse(Path::new("s.toml"), text).unwrap_err().to_string();
        assert!(
            error("about = \"x\"\nmethods = \"grid\"\n")
                .starts_with("s.toml:2: unknown field `methods`")
        );
        assert!(error("[[axis]]\nsets = \"x\"\n").starts_with("s.toml:2: unknown field `sets`"));
        assert!(error("method = \"sobol\"\n").contains("unknown variant `sobol`"));
    }
}
