//! Placements of flash software: the side of the link on which each of its modules runs, and the interface
//! that places them so.

use std::fmt;

use super::row::Row;
use super::{host_flash, host_gc, host_map, nvme};

/// Modules of flash software, as a [`Placement`] names them.
pub const MODULES: [&str; 4] = ["map", "buffer", "collector", "wear"];

/// Modules on the host, in the order of [`MODULES`]; the others are on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pub on_host: [bool; MODULES.len()],
}

/// The placements that there are. A map on the host needs `medium.flash.map_cache`, which is the device's
/// memory for its own part of it.
pub const PLACEMENTS: &[(Placement, &Row)] = &[
    (Placement { on_host: [false, false, false, false] }, &nvme::ROW),
    (Placement { on_host: [false, false, true, false] }, &host_gc::ROW),
    (Placement { on_host: [true, false, false, false] }, &host_map::ROW),
    (Placement { on_host: [true, true, true, true] }, &host_flash::ROW),
];

impl Placement {
    /// Parses `map=host,collector=device`: a module that is not named is on the device. `None` if that is no
    /// placement.
    pub fn parse(text: &str) -> Option<Placement> {
        let mut placement = Placement::default();
        for part in text.split(',') {
            let (module, side) = part.split_once('=')?;
            let at = MODULES.iter().position(|one| *one == module.trim())?;
            placement.on_host[at] = match side.trim() {
                "host" => true,
                "device" => false,
                _ => return None,
            };
        }
        Some(placement)
    }

    /// The interface of this placement.
    pub fn row(self) -> Option<&'static Row> {
        PLACEMENTS.iter().find(|(placement, _)| *placement == self).map(|(_, row)| *row)
    }
}

/// As [`Placement::parse`] takes it.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (module, host)) in MODULES.iter().zip(self.on_host).enumerate() {
            let side = if host { "host" } else { "device" };
            write!(f, "{}{module}={side}", if at > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}
