//! Views of documents: pages and letter plots.

mod exhibits;
mod letters;
mod page;
mod samples;
