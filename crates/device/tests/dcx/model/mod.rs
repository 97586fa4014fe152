//! Models of the protocol, searched state by state: see [`search`](mod@search).

mod search;
mod sleep;
mod tags;

pub use search::{Model, search};
