//! The runtime from outside, in one program.

mod executor;
mod resources;
