//! Models of the protocol, searched state by state: see [`search`](mod@crate::search).

mod sleep;
mod tags;
