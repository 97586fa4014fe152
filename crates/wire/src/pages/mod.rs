//! Physical pages over the bus: commands to an endpoint with bare flash, and its answers.
//!
//! ```text
//!   host                                                    endpoint
//!   Command ── 64 bytes in a ring, then a count ──────────► parse, validate
//!              program: a list of units, then their bytes ─► downstream buffer ─► chips
//!              read: spare bytes and units              ◄── upstream buffer   ◄── chips
//!   Answer  ◄── 16 bytes in a second ring, its lap last ──
//! ```
//!
//! After the from-scratch SSD of Myoungsoo Jung and Mahmut Kandemir, "Challenges in Getting Flash Drives
//! Closer to CPU": endpoints behind a PCIe switch, "each with independent upstream and downstream buffers",
//! and all flash software on the host. The paper defines no commands; these are ours.
//!
//! An endpoint enforces the rules of flash: a violation gets an error status. It has no mapping table and
//! no GC.

mod answer;
mod command;
mod registers;

pub use answer::{ANSWER_BYTES, Answer, Status};
pub use command::{
    COMMAND_BYTES, Command, ITEM_BYTES, Item, NO_TRACE, Operation, PageAt, RowAt, SPARE_BYTES_MAX,
    Source, Spare,
};
pub use registers::{
    ANSWERS, BLOCKS, CONTROL, Control, DIES, DIES_MAX, ENDPOINT, ENDPOINTS_MAX, ENTRIES_LOG2_MAX,
    Endpoint, GROUP, ID, LIMITS, Limits, MAGIC, PAGES, PLANES, REACH, RING, RINGS, ROW, STATUS,
    STRIDE, Shape, State, TAIL, UNIT_BYTES, UNITS,
};
