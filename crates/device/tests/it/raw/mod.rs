//! Hosts without a driver, one for each front end, shared with the fuzz targets and the tests of `rtl`.

// Each program that shares this module uses only a part of it.
#![allow(dead_code)]

pub mod block;
pub mod dcx;
pub mod nvme;
