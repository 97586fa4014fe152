//! Results as data, and their views.
//!
//! ```text
//!   RunResult ─► RunContext ─► model::Document ─┬─► json      the document, and back: rebuild
//!   findings of other commands ─────────────┤─► fio       fio's object
//!                                           ├─► csv       tables
//!                                           ├─► page      one HTML file
//!                                           ├─► exhibits  of papers, as text; letters: figures as text
//!                                           └─► summary, compare, text
//! ```
//!
//! A [`model::Document`] has everything that a command found. Every output of a command is a view of it, so
//! that no two outputs derive a number differently. The document of a simulated run has what is needed to
//! repeat it: [`rebuild()`].
//!
//! The model is plain data, without knowledge of worlds, devices or the command line. The views are functions
//! from it to text; nothing here prints.
//!
//! ```
//! let error = report::from_json(r#"{"schema": "of another program"}"#).unwrap_err().to_string();
//! assert!(error.contains("of another program"), "{error}");
//! ```

mod calendar;
pub mod compare;
mod convert;
pub mod csv;
pub mod exhibits;
mod fio;
mod json;
pub mod letters;
pub mod model;
mod number;
pub mod page;
mod pool;
mod rebuild;
mod scale;
mod style;
pub mod summary;
pub mod sweep;
mod text;

pub use convert::{RunContext, plan_of};
pub use fio::to_fio;
pub use json::{DocumentError, from_json, schema, sweep_header, sweep_point, to_json};
pub use pool::Pool;
pub use rebuild::{RebuildError, Rebuilt, digest, rebuild, recordings};
pub use style::Style;
pub use text::details;
