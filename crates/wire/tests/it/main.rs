//! Bytes and their meaning, in one program.

mod commands;
mod fastpath;
mod prp;
mod scsi;
