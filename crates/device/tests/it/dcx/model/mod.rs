//! State-space models of the protocol: see [`search`](mod@crate::search).

mod sleep;
mod tags;
