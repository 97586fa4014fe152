//! Rules of the sources and pages.

mod book;
mod workspace;
