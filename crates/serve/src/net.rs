//! Front ends on a network: addresses, sockets, and clients within limits.

pub(crate) mod address;
pub(crate) mod clients;
pub(crate) mod socket;
