//! The table `[medium.disks]`: disks that rotate, as an array.

use media::disks::{Array, Mechanics};
use runtime::Span;

use super::fields::{Fields, Source::Due};

/// The longest track, and the longest stripe element, in bytes.
const BYTES_MAX: u64 = 64 << 20;

pub(super) fn read(fields: Fields<'_>) -> Option<Array> {
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
