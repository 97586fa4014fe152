//! Integration tests of `wire`, in one binary.

mod commands;
mod fastpath;
mod prp;
mod scsi;
