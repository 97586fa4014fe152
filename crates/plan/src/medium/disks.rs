//! Rotating disks as an array, with the table `[medium.disks]`.

use std::fmt;
use std::rc::Rc;

use media::disks::{Array, Mechanics};
use media::{Blocks, Contents, Disks};
use runtime::{Rt, Span};

use super::{MediumKind, Missing, Model};
use crate::fields::{Fields, Source::Due};
use crate::report::line;
use crate::units::{size_text, span_text};

pub(super) static DISKS: MediumKind = MediumKind {
    name: "disks",
    title: "disks that rotate",
    technology: 4,
    has_metadata: false,
    read: |fields, common| common.with_model(fields, |capacity| sized(fields, capacity)),
};

/// The longest track, and the longest stripe element, in bytes.
const BYTES_MAX: u64 = 64 << 20;

impl Model for Array {
    fn report(&self, out: &mut String) -> fmt::Result {
        let (turn, stripe) = (self.mechanics.revolution, size_text(self.stripe_bytes));
        let ahead = if self.read_ahead { ", read ahead" } else { "" };
        line(out, "disks", format_args!("{}, {stripe} each in turn{ahead}", self.disks))?;
        line(out, "a turn", span_text(turn))?;
        line(out, "seek, third of all", span_text(self.mechanics.seek_average))
    }

    fn start(&self, rt: &Rt, contents: Contents, modelled: bool) -> Result<Blocks, Missing> {
        Ok(Blocks::Disks(Rc::new(Disks::new(rt, contents, self.clone(), modelled))))
    }
}

/// The array, which has room for the capacity.
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
    let disks = fields.number("number", Due, 1..=64);
    let whole = |bytes: u64| bytes.is_multiple_of(4096) && (4096..=BYTES_MAX).contains(&bytes);
    let expected = "a multiple of 4 KiB, at most \"64 MiB\"";
    let stripe_bytes = fields.size("stripe", Due, whole, expected);
    let read_ahead = fields.boolean("read_ahead");
    let streams = fields.number("streams", Due, 1..=1024);
    let turns = fields.number("rpm", Due, 1000..=100_000);
    let heads = fields.number("heads", Due, 1..=16);
    let cylinders = fields.number("cylinders", Due, 64..=1_000_000);
    let zones = fields.number("zones", Due, 1..=64);
    let track = |bytes: u64| (4096..=BYTES_MAX).contains(&bytes);
    let expected = "from \"4 KiB\" to \"64 MiB\"";
    let outer_track_bytes = fields.size("outer_track", Due, track, expected);
    let inner_track_bytes = fields.size("inner_track", Due, track, expected);
    let [seek_one, seek_average, seek_full, write_settle, overhead] =
        ["seek_one", "seek_average", "seek_full", "write_settle", "overhead"]
            .map(|key| fields.cost(key));
    if let (Some(outer), Some(inner)) = (outer_track_bytes, inner_track_bytes)
        && inner > outer
    {
        fields.error("inner_track", format!("{inner} B"), "no longer than the outer track");
    }
    if let (Some(one), Some(average), Some(full)) = (seek_one, seek_average, seek_full)
        && !(one <= average && average <= full)
    {
        let expected = "no less than seek_one and no more than seek_full";
        fields.error("seek_average", average.to_string(), expected);
    }
    fields.done();
    let mechanics = Mechanics {
        revolution: Span(60_000_000_000_000 / turns?),
        heads: heads? as u32,
        cylinders: cylinders?,
        zones: zones? as u32,
        outer_track_bytes: outer_track_bytes?,
        inner_track_bytes: inner_track_bytes?,
        seek_one: seek_one?,
        seek_average: seek_average?,
        seek_full: seek_full?,
        write_settle: write_settle?,
        overhead: overhead?,
    };
    let array = Array {
        disks: disks? as u32,
        stripe_bytes: stripe_bytes?,
        read_ahead: read_ahead?,
        streams: streams? as u32,
        mechanics,
    };
    (array.mechanics.is_sense()).then_some(array)
}
