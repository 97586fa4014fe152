//! Rotating disks as an array, with the table `[medium.disks]`.

use std::fmt;
use std::rc::Rc;

use media::disks::{Array, Mechanics};
use media::{Blocks, Contents, Disks};
use runtime::Rt;

use super::{MediumKind, Missing, Model};
use crate::declared;
use crate::fields::Fields;
use crate::report::line;
use crate::units::{size_text, span_text};

pub(super) static DISKS: MediumKind = MediumKind {
    name: "disks",
    title: "rotating disks",
    technology: 4,
    has_metadata: false,
    read: |fields, common| common.with_model(fields, |capacity| sized(fields, capacity)),
};

impl Model for Array {
    fn report(&self, out: &mut String) -> fmt::Result {
        let (turn, stripe) = (self.mechanics.revolution, size_text(self.stripe_bytes));
        let ahead = if self.read_ahead { ", read ahead" } else { "" };
        line(out, "disks", format_args!("{}, striped by {stripe}{ahead}", self.disks))?;
        line(out, "revolution", span_text(turn))?;
        line(out, "average seek", span_text(self.mechanics.seek_average))?;
        declared::report(out, Array::KEYS, self)?;
        declared::report(out, Mechanics::KEYS, &self.mechanics)
    }

    fn start(&self, rt: &Rt, contents: Contents, modelled: bool) -> Result<Blocks, Missing> {
        Ok(Blocks::Disks(Rc::new(Disks::new(rt, contents, self.clone(), modelled))))
    }
}

/// Parses the array and checks that it has room for the capacity.
fn sized(fields: &Fields<'_>, capacity_bytes: Option<u64>) -> Option<Array> {
    let array = fields.table("disks").and_then(array)?;
    let room = array.bytes();
    if let Some(bytes) = capacity_bytes.filter(|bytes| *bytes > room) {
        let expected = format!("at most the {room} bytes that the disks of medium.disks hold");
        fields.error("capacity", size_text(bytes), expected);
    }
    Some(array)
}

fn array(fields: Fields<'_>) -> Option<Array> {
    let array = fields.declared(Array::KEYS);
    let mechanics = fields.declared(Mechanics::KEYS);
    if let Some(found) = &mechanics {
        check(&fields, found);
    }
    fields.done();
    let array = Array { mechanics: mechanics?, ..array? };
    array.mechanics.is_sense().then_some(array)
}

fn check(fields: &Fields<'_>, found: &Mechanics) {
    let (inner, average) = (found.inner_track_bytes, found.seek_average);
    if inner > found.outer_track_bytes {
        fields.error("inner_track", format!("{inner} B"), "no longer than the outer track");
    }
    if !(found.seek_one..=found.seek_full).contains(&average) {
        let expected = "no less than seek_one and no more than seek_full";
        fields.error("seek_average", average.to_string(), expected);
    }
}
