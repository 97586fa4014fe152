//! Cases, and tables of cases.

use crate::bench::Bench;
use crate::reach::Later;
use crate::verdict::Verdict;

/// Effect of a case on the data of a controller in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// It changes no user data.
    None,
    /// It writes or deallocates blocks.
    Writes,
    /// It formats, sanitizes, creates or deletes namespaces.
    Erases,
}

/// A test case of the suite.
pub struct Case {
    /// Name, unique among all cases.
    pub name: &'static str,
    /// The requirement of the specification, in one line.
    pub about: &'static str,
    /// Effect of the case on data.
    pub harm: Harm,
    pub(crate) run: for<'a> fn(&'a mut Bench) -> Later<'a, Verdict>,
}

/// A section of a specification, with its cases.
pub struct Section {
    /// Name of the specification, such as "NVMe base 2.0".
    pub of: &'static str,
    /// Section number, such as `5.17`.
    pub number: &'static str,
    /// Title of the section in the specification.
    pub title: &'static str,
    /// Cases in the order of the table.
    pub cases: &'static [Case],
}

/// A table of cases: effect on data, name, and requirement of the specification.
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
