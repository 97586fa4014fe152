//! Descriptor blocks: one ring of descriptors in host memory, which is both submission and completion
//! queue, exchanged in blocks of variable size, one block at a time.
//!
//! Eleni Bougioukou et al., "Prototyping and Performance Evaluation of a Dynamically Adaptable Block Device
//! Driver for PCIe-based SSDs" (RSP 2014), gives the mechanism; the layouts are ours.
//!
//! ```text
//!   host memory                      device
//!   ring: 32 B descriptors ◄── a block is fetched, worked on, and returned where it lay
//!   registers              ──► where the next block begins; how many descriptors, and which turn
//! ```
//!
//! Places in the ring are counted from 0, over and over through 32 bits; descriptor *n* lies at place
//! *n mod entries*, and carries the low half of *n*. The last word of a descriptor says whose it is. It
//! is stored after the rest and loaded before it. Each side changes only descriptors that are its own.

pub mod descriptor;
pub mod registers;
