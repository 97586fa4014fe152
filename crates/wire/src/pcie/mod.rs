//! Cost of a transfer on a PCI Express link: packets, bytes, and time per byte. Sizes and arithmetic only;
//! `bus` models queues, credits and time.
//!
//! ```text
//!             framing   header   payload                ECRC   framing
//!   Gen1, 2:  STP+seq  12 or 16  whole dwords           4 or 0 LCRC+END     3 + ... + 5
//!   Gen3 on:  token    12 or 16  whole dwords           4 or 0 LCRC         4 + ... + 4
//! ```

mod frame;
mod rate;
mod split;

pub use frame::{COMPLETION_HEADER_BYTES, DLLP_BYTES, TlpFormat, memory_header_bytes};
pub use rate::{Generation, byte_time};
pub use split::{
    Completions, Piece, Pieces, ReadRules, Traffic, completions, posted_write, read_requests,
};
