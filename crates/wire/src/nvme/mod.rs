//! NVM Express: registers, queue entries, commands, and the structures they move.

mod access;
pub mod admin;
pub mod collect;
pub mod dsm;
pub mod entry;
pub mod event;
pub mod features;
pub mod host_map;
pub mod identify;
pub mod io;
pub mod log;
pub mod opcode;
pub mod pi;
pub mod prp;
pub mod ranges;
pub mod registers;
pub mod reservation;
pub mod sgl;
pub mod status;

/// Asserts a structure's size and field offsets at compile time.
macro_rules! layout {
    ($structure:ty, $bytes:literal, { $($field:ident @ $offset:literal),+ $(,)? }) => {
        const _: () = {
            assert!(size_of::<$structure>() == $bytes);
            $(assert!(core::mem::offset_of!($structure, $field) == $offset);)+
        };
    };
}
pub(crate) use layout;
