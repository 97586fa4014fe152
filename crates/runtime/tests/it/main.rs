//! Integration tests of the runtime, in one binary.

mod executor;
mod idle;
mod resources;
