//! Data structures on the wire: NVMe, DC Express, FastPath, SCSI, PCI Express and NBD.
//!
//! Two layers. A *structure* ([`nvme::entry::Sqe`], [`nvme::identify::IdentifyController`]) is a layout
//! that can hold any bits; its size and offsets are asserted at compile time. A *request*
//! ([`nvme::io::Request`], [`nvme::admin::Request`]) is the result of parsing a structure, and is always
//! valid. Values that are 0-based in NVMe are 1-based in a request.
//!
//! This crate has no clock, no memory of its own and no I/O. It has no list of namespaces or queues; it
//! validates one structure at a time. It does not allocate.
//!
//! ```text
//!   host                                                        device
//!   io::read(..) -> Sqe ── 64 bytes in a submission queue ──► io::parse(&Sqe) -> Request
//!   prp::build(..)      ── prp1, prp2, list pages         ──► prp::PrpWalk -> segments
//!   Cqe::status()      ◄── 16 bytes in a completion queue ──  Cqe::new(..)
//!                            └─ pcie::Traffic gives the cost of each on the link ─┘
//! ```
//!
//! ```
//! use wire::nvme::{entry::DataPointer, io};
//! use wire::{BusAddr, CommandId, Lba, Nsid};
//!
//! let page = DataPointer::Prp { prp1: BusAddr(0x7000), prp2: BusAddr(0) };
//! let sqe = io::read(CommandId(7), Nsid(1), Lba(64), 8, false, page);
//!
//! let request = io::parse(&sqe).unwrap();
//! assert_eq!(request.cid, CommandId(7));
//! assert_eq!(request.data, page);
//! let io::Command::Read(access) = request.command else { panic!("a read was built") };
//! assert_eq!((access.lba, access.blocks), (Lba(64), 8));
//! ```
//!
//! Sections cited as "NVMe base 2.0" and "NVM command set 1.0" are those of the NVM Express
//! revision 2.0 family of specifications, "PCIe base" those of the PCI Express Base Specification.
#![no_std]
#![warn(missing_docs)]

pub mod block;
pub mod dcx;
pub mod fastpath;
pub mod mp;
pub mod nbd;
pub mod nvme;
pub mod pages;
pub mod pci;
pub mod pcie;
pub mod sas;
pub mod scsi;
mod units;
pub mod vfio_user;

pub use units::{BusAddr, CommandId, Lba, Nsid, QueueId};
