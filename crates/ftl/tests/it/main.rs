//! The flash software from outside, in one program.

mod amplification;
mod common;
mod cuts;
mod fill;
mod policy;
mod purge;
mod space;
mod speed;
