//! FastPath: what is asked of an engine that forms NVMe commands, and what it answers.
//!
//! The system of Athanasios Stratikopoulos et al., "FastPath: Towards Wire-speed NVMe SSDs" (2018). The
//! paper names what a request carries and gives no layout: these are ours. An engine in software and one
//! in hardware take the same bytes.
//!
//! ```text
//!   caller                        engine                               drive
//!   Request, 32 bytes ──────────► judged against its table of handles
//!                                 size / block_size commands ────────► NVMe submission queue
//!   Response, 16 bytes ◄───────── counted down                  ◄───── NVMe completion queue
//! ```
//!
//! A request carries no address and no LBA: a handle names an area of the drive and a buffer, and the
//! request says where in each. An engine judges in this order, and answers with the first thing that is
//! wrong: the opcode and the reserved byte; sizes, and what must be a multiple of them; the handle; its
//! generation; the area; the buffer. After a command has failed no more of its request are submitted.

pub mod registers;
mod request;
mod response;

pub use request::{Direction, Request, SIZE_MAX, Transfer, Work, is_block_size};
pub use response::{Refusal, Response, Status};
