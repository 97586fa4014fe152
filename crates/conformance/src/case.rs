//! What a case is, and what a table of them.

use crate::bench::Bench;
use crate::reach::Later;
use crate::verdict::Verdict;

/// What a case does to the data of a controller that others use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    None,
    /// It writes blocks, or takes them back.
    Writes,
    /// It erases or reshapes namespaces.
    Erases,
}

pub struct Case {
    /// Its name, which names no other.
    pub name: &'static str,
    /// What the specification asks, in a line.
    pub about: &'static str,
    /// What it does to data.
    pub harm: Harm,
    pub(crate) run: for<'a> fn(&'a mut Bench) -> Later<'a, Verdict>,
}

/// The cases of one section.
pub struct Section {
    pub of: &'static str,
    pub number: &'static str,
    pub title: &'static str,
    pub cases: &'static [Case],
}

/// A table of cases: what each does to data, its name, and what the specification asks.
macro_rules! cases {
    ($($harm:ident $name:ident $about:literal;)+) => {
        &[$($crate::case::Case {
            name: stringify!($name),
            about: $about,
            harm: $crate::case::Harm::$harm,
            run: |bench| Box::pin($name(bench)),
        }),+]
    };
}

pub(crate) use cases;
