//! Tests of the flash translation layer through its public interface, in one program.

mod amplification;
mod common;
mod cuts;
mod fill;
mod hints;
mod nv_sram;
mod placed;
mod placement;
mod policy;
mod purge;
mod space;
mod speed;
