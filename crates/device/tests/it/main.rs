//! Black-box tests of the device: a module for each front end, one for chips, one for endpoints.

mod block;
mod dcx;
mod flash;
mod flash_speed;
mod nvme;
mod pages;
mod raw;
mod search;
