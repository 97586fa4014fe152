//! DC Express: commands fetched by device polling, and reads that end when tags vanish.
//!
//! The protocol of Dejan Vučinić et al., "DC Express: Shortest Latency Protocol for Reading Phase Change
//! Memory over PCI Express" (FAST 2014). The paper gives the mechanism and no layouts: those here are ours.
//!
//! ```text
//!   host memory                                    device
//!   command ring   64 B entries, last word: number ◄── fetched continuously
//!   receive buffer tags at the end of each packet  ◄── data: the tags vanish
//!   report ring    16 B entries, last word: number ◄── only if a vanishing tag does not suffice
//!   notice         asleep? which tag?              ◄── written when either changes
//! ```
//!
//! Entries of both rings are numbered from 1 through 32 bits, wrapping; entry *n* is at index *(n - 1) mod
//! entries*. An entry is present when its last word is its number, and that word is stored after the rest
//! and loaded before it.

pub mod command;
pub mod notice;
pub mod registers;
pub mod report;
pub mod tag;
