//! FastPath: requests to an engine that forms NVMe commands, and its responses.
//!
//! The system of Athanasios Stratikopoulos et al., "FastPath: Towards Wire-speed NVMe SSDs" (2018). The
//! paper names the fields of a request and gives no layout: these layouts are ours. Software and hardware
//! engines use the same bytes.
//!
//! ```text
//!   caller                        engine                               drive
//!   Request, 32 bytes ──────────► validated against its table of handles
//!                                 size / block_size commands ────────► NVMe submission queue
//!   Response, 16 bytes ◄───────── counted down                  ◄───── NVMe completion queue
//! ```
//!
//! A request carries no address and no LBA: a handle names an area of the drive and a buffer, and the
//! request gives an offset in each. An engine validates in this order and responds with the first error:
//! the opcode and the reserved byte; sizes and their alignment; the handle; its generation; the area; the
//! buffer. After a command has failed, no more commands of its request are submitted.

pub mod registers;
mod request;
mod response;

pub use request::{Direction, Request, SIZE_MAX, Transfer, Work, is_block_size};
pub use response::{Refusal, Response, Status};
