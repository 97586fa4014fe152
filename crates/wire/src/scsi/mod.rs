//! SCSI block commands: what an initiator asks a disk for, and what the disk says of itself.
//!
//! ```text
//!   initiator                               logical unit
//!   cdb::Command::cdb() ── 6 to 16 bytes ►  cdb::parse(..): a Command, or what is wrong with it
//!   a buffer            ◄ data::Data ─────  inquiry, mode, capacity: pages of the unit's own
//!   Sense::parse        ◄ 18 or more bytes  status::Status, sense::Sense
//! ```
//!
//! A command descriptor block is parsed once, and then is a [`cdb::Command`] or a [`cdb::Invalid`], which
//! says the byte and the bit that a field pointer is to name. Nothing here knows a device: what a logical
//! unit has is handed in as an [`inquiry::Identity`] and a [`capacity::Shape`].
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
