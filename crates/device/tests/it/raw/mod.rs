//! Hosts without a driver, one for each front end. The fuzz targets and the tests of `rtl` have them too.

// Each of the programs that share this module uses a part of it.
#![allow(dead_code)]

pub mod block;
pub mod dcx;
pub mod nvme;
