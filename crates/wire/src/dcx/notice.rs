//! The notice: two things that the device tells before anybody asks.
//!
//! Each is one posted write whose last word is its flag, and the host loads that word first.

/// Bytes of a notice: a cache line.
pub const BYTES: usize = 64;

/// Offset of the word that says whether the device sleeps: 1, or 0 while it polls.
pub const ASLEEP: usize = 0;

/// Offset of the tag in force, and of its version behind it. Version zero: there is none.
pub const TAG: usize = 8;

/// Offset of the tag's version.
pub const TAG_VERSION: usize = 12;
