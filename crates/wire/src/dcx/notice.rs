//! Notice: sleep state and tag of the device, written without a request.
//!
//! Each is one posted write whose last word is its flag, and the host loads that word first.

/// Bytes of a notice: a cache line.
pub const BYTES: usize = 64;

/// Offset of the sleep word: 1 while the device sleeps, 0 while it polls.
pub const ASLEEP: usize = 0;

/// Offset of the tag in force, eight bytes: the tag is in the last of them. Its version follows. Version
/// zero: there is none.
pub const TAG: usize = 8;

/// Offset of the tag's version.
pub const TAG_VERSION: usize = 16;
