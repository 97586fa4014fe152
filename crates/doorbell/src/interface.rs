//! `--interface NAME`: a name in the registry of interfaces.

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use world::interfaces::{self, Row};

/// Parses the name of an interface.
#[derive(Clone)]
pub(super) struct Named;

impl TypedValueParser for Named {
    type Value = &'static Row;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<&'static Row, clap::Error> {
        let found = value.to_string_lossy();
        interfaces::named(&found).map_err(|_| {
            let mut error = clap::Error::new(ErrorKind::InvalidValue).with_cmd(command);
            let arg = arg.map_or_else(String::new, ToString::to_string);
            error.insert(ContextKind::InvalidArg, ContextValue::String(arg));
            error.insert(ContextKind::InvalidValue, ContextValue::String(found.into_owned()));
            let names = interfaces::all().iter().map(|row| row.name.to_owned()).collect();
            error.insert(ContextKind::ValidValue, ContextValue::Strings(names));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let each = |row: &'static Row| PossibleValue::new(row.name).help(row.summary);
        Some(Box::new(interfaces::all().into_iter().map(each)))
    }
}
