//! Descriptor blocks: one ring of descriptors in host memory, which is both submission and completion
//! queue, exchanged in blocks of variable size, one block at a time.
//!
//! Eleni Bougioukou et al., "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device
//! Driver for PCIe-based SSDs" (RSP 2014), gives the mechanism; the layouts are ours.
//!
//! ```text
//!   host memory                      device
//!   ring: 32 B descriptors ◄── a block is fetched, executed, and returned in place
//!   registers              ──► start of the next block, number of descriptors, and turn
//! ```
//!
//! Entries of the ring are counted from 0 through 32 bits, wrapping; descriptor *n* is at entry *n mod
//! entries*, and carries the low half of *n*. The last word of a descriptor names its owner. It is stored
//! after the rest and loaded before it. Each side changes only descriptors that it owns.

pub mod descriptor;
pub mod registers;
