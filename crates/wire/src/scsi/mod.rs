//! SCSI block commands: command descriptor blocks, and the data that a disk returns.
//!
//! ```text
//!   initiator                               logical unit
//!   cdb::Command::cdb() ── 6 to 16 bytes ►  cdb::parse(..): a Command, or the error in it
//!   a buffer            ◄ data::Data ─────  inquiry, mode, capacity: pages of the unit's own
//!   Sense::parse        ◄ 18 or more bytes  status::Status, sense::Sense
//! ```
//!
//! A command descriptor block is parsed once, to a [`cdb::Command`] or a [`cdb::Invalid`] with the byte and
//! the bit for a field pointer. This module is independent of devices: the properties of a logical unit are
//! passed in as an [`inquiry::Identity`] and a [`capacity::Shape`].
//!
//! Sections cited as "SPC-4" and "SBC-3" are those of SCSI Primary Commands and SCSI Block Commands,
//! "translation" the NVM Express: SCSI Translation Reference.

pub mod capacity;
pub mod cdb;
pub mod data;
pub mod inquiry;
pub mod lun;
pub mod mode;
pub mod sense;
pub mod status;
pub mod unmap;
