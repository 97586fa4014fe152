//! The table of verbs and their parameters, and its parser: the only place where parameters are read.

use serde_json::{Map, Value};

use super::answer::{Failed, rejected};

/// A verb, as `doorbell ctl` and docs/control.md have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verb {
    /// Its method, with a point for a space on the command line.
    pub method: &'static str,
    /// Its parameters in order, those that are required first.
    pub parameters: &'static [Parameter],
    /// Has the parameter `drive` too, the address of one of several drives.
    pub of_drive: bool,
    pub help: &'static str,
}

/// A parameter of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    pub required: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// A whole number up to this one, as a number or as text.
    Number(u32),
}

const YEARS_MAX: u32 = 100;
/// Program/erase cycles that a request adds.
pub(super) const CYCLES_MAX: u32 = 10_000_000;

const DRIVE: Parameter = optional("drive", Kind::Text);

const fn required(name: &'static str, kind: Kind) -> Parameter {
    Parameter { name, kind, required: true }
}

const fn optional(name: &'static str, kind: Kind) -> Parameter {
    Parameter { name, kind, required: false }
}

const fn verb(method: &'static str, parameters: &'static [Parameter], help: &'static str) -> Verb {
    Verb { method, parameters, of_drive: true, help }
}

/// All verbs, in the order of the documentation.
pub const VERBS: &[Verb] = &[
    verb("stats", &[], "Counts since the start; rates and latencies of the last seconds"),
    verb("clients", &[], "Connected clients"),
    verb("faults.list", &[], "Faults, and the number of injections of each"),
    verb(
        "faults.inject",
        &[required("fault", Kind::Text)],
        "Add faults: { name = \"late\", what = \"delay\", span = \"40 us\" }",
    ),
    verb("faults.clear", &[optional("name", Kind::Text)], "Remove a fault, or all"),
    verb("pause", &[], "Stop executing commands"),
    verb("resume", &[], "Continue after a pause"),
    verb(
        "timing.set",
        &[required("key", Kind::Text), required("value", Kind::Text)],
        "Change a key of medium.timing",
    ),
    verb("power.cut", &[], "Cut the power: clients are disconnected, what is not durable is lost"),
    verb("power.restore", &[], "Switch the drive on again"),
    verb("save", &[], "Make everything that was written durable"),
    verb(
        "fork",
        &[required("file", Kind::Text)],
        "Copy the drive's state to a new file while it runs",
    ),
    verb(
        "wear",
        &[required("years", Kind::Number(YEARS_MAX)), optional("cycles", Kind::Number(CYCLES_MAX))],
        "Wear flash by years, and by program/erase cycles of each block",
    ),
    Verb { of_drive: false, ..verb("stop", &[], "Stop the server in order, as SIGTERM does") },
];

impl Verb {
    /// The verb of this method.
    #[must_use]
    pub fn of(method: &str) -> Option<&'static Verb> {
        VERBS.iter().find(|verb| verb.method == method)
    }

    /// The verb as it is typed: `wear YEARS [CYCLES]`.
    #[must_use]
    pub fn usage(&self) -> String {
        let mut usage = self.method.replace('.', " ");
        for parameter in self.parameters {
            let name = parameter.name.to_uppercase();
            usage += &if parameter.required { format!(" {name}") } else { format!(" [{name}]") };
        }
        usage
    }

    /// The parameters, the drive's among them.
    pub fn all_parameters(&self) -> impl Iterator<Item = &'static Parameter> + use<> {
        self.parameters.iter().chain(self.of_drive.then_some(&DRIVE))
    }
}

/// The parameters of a request: all of them are known and have their types.
#[derive(Debug, Default)]
pub(super) struct Given {
    texts: Vec<(&'static str, String)>,
    numbers: Vec<(&'static str, u32)>,
}

impl Given {
    /// Reads the member `params` of a request.
    ///
    /// # Errors
    /// A parameter is unknown, missing, or of another type.
    pub fn parse(verb: &Verb, parameters: Option<&Value>) -> Result<Given, Failed> {
        let none = Map::new();
        let given = match parameters {
            None => &none,
            Some(Value::Object(given)) => given,
            Some(other) => {
                let found = in_words(other);
                return Err(rejected(format!("params: found {found}, expected an object")));
            }
        };
        let names: Vec<_> = verb.all_parameters().map(|parameter| parameter.name).collect();
        if let Some(unknown) = given.keys().find(|name| !names.contains(&name.as_str())) {
            let expected = match &names[..] {
                [] => "none".to_owned(),
                names => format!("one of {}", names.join(", ")),
            };
            let method = verb.method;
            let message =
                format!("{method}: found the unknown parameter {unknown:?}, expected {expected}");
            return Err(rejected(message));
        }
        let mut read = Given::default();
        for parameter in verb.all_parameters() {
            match given.get(parameter.name) {
                Some(value) => read.take(parameter, value)?,
                None if parameter.required => return Err(parameter.not("none")),
                None => {}
            }
        }
        Ok(read)
    }

    fn take(&mut self, parameter: &Parameter, value: &Value) -> Result<(), Failed> {
        let name = parameter.name;
        match parameter.kind {
            Kind::Text => {
                let text = value.as_str().ok_or_else(|| parameter.not(&in_words(value)))?;
                self.texts.push((name, text.to_owned()));
            }
            Kind::Number(most) => {
                let found = value.as_u64().or_else(|| value.as_str()?.parse().ok());
                let found = found.and_then(|number| u32::try_from(number).ok());
                let found = found.filter(|number| *number <= most);
                self.numbers.push((name, found.ok_or_else(|| parameter.not(&in_words(value)))?));
            }
        }
        Ok(())
    }

    /// The text of a parameter, if it is given.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.texts.iter().find(|(of, _)| *of == name).map(|(_, text)| text.as_str())
    }

    /// The text of a required parameter.
    pub fn required(&self, name: &str) -> &str {
        self.text(name).expect("the parser has rejected a request without it")
    }

    /// The number of a parameter, if it is given.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.numbers.iter().find(|(of, _)| *of == name).map(|(_, number)| *number)
    }
}

impl Parameter {
    fn not(&self, found: &str) -> Failed {
        let expected = match self.kind {
            Kind::Text => "text".to_owned(),
            Kind::Number(most) => format!("a whole number from 0 to {most}"),
        };
        rejected(format!("{}: found {found}, expected {expected}", self.name))
    }
}

/// A value for an error: short ones whole.
pub(super) fn in_words(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.len() > 80 => "a longer text".into(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Parameters that are complete and right.
    fn right(verb: &Verb) -> Map<String, Value> {
        let value = |kind| match kind {
            Kind::Text => json!("some"),
            Kind::Number(most) => json!(most),
        };
        verb.all_parameters().map(|one| (one.name.to_owned(), value(one.kind))).collect()
    }

    fn error(verb: &Verb, given: &Value) -> String {
        let failed = Given::parse(verb, Some(given)).expect_err("it is wrong");
        assert_eq!(failed.code, -32602, "{}: {given}", verb.method);
        failed.message
    }

    #[test]
    fn every_method_refuses_unknown_missing_and_mistyped_parameters() {
        for verb in VERBS {
            let whole = Value::Object(right(verb));
            Given::parse(verb, Some(&whole)).unwrap_or_else(|error| panic!("{error:?}"));
            for odd in [json!(null), json!([]), json!(["some"]), json!("some"), json!(1)] {
                let message = error(verb, &odd);
                assert!(message.starts_with("params: found "), "{}: {message}", verb.method);
            }
            let mut unknown = right(verb);
            unknown.insert("nonsense".into(), json!("some"));
            assert!(
                error(verb, &Value::Object(unknown)).contains("unknown parameter \"nonsense\"")
            );
            for parameter in verb.all_parameters() {
                let name = parameter.name;
                let mut misspelt = right(verb);
                let value = misspelt.remove(name).expect("it is there");
                misspelt.insert(format!("{name}s"), value);
                let message = error(verb, &Value::Object(misspelt));
                assert!(message.contains(&format!("unknown parameter \"{name}s\"")), "{message}");
                let mut wrong = vec![json!(null), json!(true), json!([]), json!({}), json!(1.5)];
                wrong.push(match parameter.kind {
                    Kind::Text => json!(5),
                    Kind::Number(_) => json!("some"),
                });
                for value in wrong {
                    let mut mistyped = right(verb);
                    mistyped.insert(name.into(), value.clone());
                    let message = error(verb, &Value::Object(mistyped));
                    assert!(message.starts_with(&format!("{name}: found ")), "{value}: {message}");
                }
                let mut without = right(verb);
                without.remove(name);
                let parsed = Given::parse(verb, Some(&Value::Object(without)));
                assert_eq!(parsed.is_err(), parameter.required, "{}: {name}", verb.method);
            }
        }
    }

    #[test]
    fn usage_has_brackets_around_optional_parameters() {
        let usage = |method| Verb::of(method).expect("a verb").usage();
        assert_eq!(usage("wear"), "wear YEARS [CYCLES]");
        assert_eq!(usage("timing.set"), "timing set KEY VALUE");
        assert_eq!(usage("stop"), "stop");
    }
}
