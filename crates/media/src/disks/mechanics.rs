//! Disk mechanics: seeks, rotation, zones of different track lengths. Integers only.

use runtime::{Key, Span, Time};

/// Mechanics of one disk: the table `[medium.disks]` of a plan, which has the source of every number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mechanics {
    /// Duration of one revolution.
    pub revolution: Span,
    /// Number of surfaces: tracks that are reached without a seek.
    pub heads: u32,
    /// Number of cylinders (arm positions).
    pub cylinders: u64,
    /// Number of zones: groups of cylinders with tracks of one length.
    pub zones: u32,
    /// Bytes per outermost track.
    pub outer_track_bytes: u64,
    /// Bytes per innermost track.
    pub inner_track_bytes: u64,
    /// Seek to the next cylinder, and switch from one track to the next with either head.
    pub seek_one: Span,
    /// Seek over a third of the cylinders.
    pub seek_average: Span,
    /// Seek over all cylinders.
    pub seek_full: Span,
    /// Additional settling time of a seek before a write.
    pub write_settle: Span,
    /// Command overhead of the disk's electronics.
    pub overhead: Span,
}

/// Cylinders with one track length.
#[derive(Clone, Copy, Debug)]
struct Zone {
    first_byte: u64,
    first_track: u64,
    track_bytes: u64,
}

/// Precomputed layout of a disk.
#[derive(Debug)]
pub(super) struct Places {
    mechanics: Mechanics,
    zones: Vec<Zone>,
    bytes: u64,
}

/// The longest track, bytes.
const TRACK_BYTES_MAX: u64 = 64 << 20;

/// A minute in picoseconds, for revolutions per minute.
const MINUTE: u64 = 60_000_000_000_000;

impl Mechanics {
    /// Keys of the table.
    pub const KEYS: &[Key<Mechanics>] = &[
        Key::number(
            "rpm",
            1000..=100_000,
            |m| MINUTE / m.revolution.0,
            |m, n| m.revolution = Span(MINUTE / n),
        ),
        Key::number("heads", 1..=16, |m| m.heads.into(), |m, n| m.heads = n as u32),
        Key::number("cylinders", 64..=1_000_000, |m| m.cylinders, |m, n| m.cylinders = n),
        Key::number("zones", 1..=64, |m| m.zones.into(), |m, n| m.zones = n as u32),
        Key::multiple(
            "outer_track",
            1,
            4096..=TRACK_BYTES_MAX,
            |m| m.outer_track_bytes,
            |m, n| m.outer_track_bytes = n,
        ),
        Key::multiple(
            "inner_track",
            1,
            4096..=TRACK_BYTES_MAX,
            |m| m.inner_track_bytes,
            |m, n| m.inner_track_bytes = n,
        ),
        Key::span("seek_one", Span::s(1), |m| m.seek_one.0, |m, n| m.seek_one = Span(n)),
        Key::span(
            "seek_average",
            Span::s(1),
            |m| m.seek_average.0,
            |m, n| m.seek_average = Span(n),
        ),
        Key::span("seek_full", Span::s(1), |m| m.seek_full.0, |m, n| m.seek_full = Span(n)),
        Key::span(
            "write_settle",
            Span::s(1),
            |m| m.write_settle.0,
            |m, n| m.write_settle = Span(n),
        ),
        Key::span("overhead", Span::s(1), |m| m.overhead.0, |m, n| m.overhead = Span(n)),
    ];

    /// Returns true if the numbers describe a disk.
    pub fn is_sense(&self) -> bool {
        let tracks = self.inner_track_bytes > 0 && self.inner_track_bytes <= self.outer_track_bytes;
        let seeks = self.seek_one <= self.seek_average && self.seek_average <= self.seek_full;
        let counts = self.revolution > Span::ZERO && self.heads > 0 && self.zones > 0;
        tracks && seeks && counts && self.cylinders >= u64::from(self.zones).max(6)
    }

    /// Capacity of one disk in bytes.
    pub fn bytes(&self) -> u64 {
        Places::new(self).bytes
    }

    /// Seek time over this many cylinders: proportional to the root of the distance up to a third of them,
    /// linear beyond, because arms first accelerate and then coast.
    pub fn seek(&self, cylinders: u64) -> Span {
        let third = self.cylinders / 3;
        let part = |of: Span, share: u64, whole: u64| {
            Span((u128::from(of.0) * u128::from(share) / u128::from(whole.max(1))) as u64)
        };
        match cylinders {
            0 => Span::ZERO,
            near if near <= third => {
                let rise = self.seek_average - self.seek_one;
                let root = (((near - 1) << 32) / (third - 1).max(1)).isqrt();
                self.seek_one + part(rise, root, 1 << 16)
            }
            far => {
                let rise = self.seek_full - self.seek_average;
                let over = far.min(self.cylinders) - third;
                self.seek_average + part(rise, over, self.cylinders - third)
            }
        }
    }
}

impl Places {
    pub fn new(mechanics: &Mechanics) -> Places {
        let m = mechanics;
        let (zones, last) = (u64::from(m.zones), u64::from(m.zones - 1));
        let (mut table, mut first_byte) = (Vec::new(), 0);
        for zone in 0..zones {
            let first_track = m.cylinders * zone / zones * u64::from(m.heads);
            let end = m.cylinders * (zone + 1) / zones * u64::from(m.heads);
            let loss = (m.outer_track_bytes - m.inner_track_bytes) * zone / last.max(1);
            // Whole sectors.
            let track_bytes = ((m.outer_track_bytes - loss) / 512).max(1) * 512;
            table.push(Zone { first_byte, first_track, track_bytes });
            first_byte += (end - first_track) * track_bytes;
        }
        Places { mechanics: mechanics.clone(), zones: table, bytes: first_byte }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn zone(&self, byte: u64) -> &Zone {
        let after = self.zones.partition_point(|zone| zone.first_byte <= byte);
        &self.zones[after - 1]
    }

    fn cylinder(&self, byte: u64) -> u64 {
        let zone = self.zone(byte);
        let track = zone.first_track + (byte - zone.first_byte) / zone.track_bytes;
        track / u64::from(self.mechanics.heads)
    }

    /// Rotation time from byte 0 to this byte if all are read in sequence: tracks are skewed so that the next
    /// begins under its head when the switch to it is done. The remainder modulo whole revolutions is the
    /// byte's angle.
    fn position(&self, byte: u64) -> u64 {
        let m = &self.mechanics;
        let zone = self.zone(byte);
        let inside = byte - zone.first_byte;
        let (track, offset) = (inside / zone.track_bytes, inside % zone.track_bytes);
        let along = u128::from(offset) * u128::from(m.revolution.0) / u128::from(zone.track_bytes);
        (zone.first_track + track) * (m.revolution.0 + m.seek_one.0) + along as u64
    }

    /// Duration of reading or writing from one byte to another without a pause.
    pub fn stream(&self, from: u64, to: u64) -> Span {
        Span(self.position(to) - self.position(from))
    }

    /// Time at which the first of these bytes is under the head, which was left behind byte `at` at time
    /// `now`.
    pub fn reach(&self, at: u64, from: u64, now: Time, write: bool) -> Time {
        let m = &self.mechanics;
        let away = self.cylinder(at).abs_diff(self.cylinder(from));
        let settled = match (away, write) {
            (0, _) => now,
            (_, false) => now + m.seek(away),
            (_, true) => now + m.seek(away) + m.write_settle,
        };
        let turn = m.revolution.0;
        let wait = (self.position(from) % turn + turn - settled.0 % turn) % turn;
        settled + Span(wait)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Seagate, "Savvio SAS Product Manual", Rev. D, ST973401SS: 4.1 and 4.2.1.
    pub fn savvio() -> Mechanics {
        Mechanics {
            revolution: Span::ms(6),
            heads: 4,
            cylinders: 51_052,
            zones: 16,
            outer_track_bytes: 430_600,
            inner_track_bytes: 289_400,
            seek_one: Span::us(200),
            seek_average: Span::ms(4),
            seek_full: Span::us(8100),
            write_settle: Span::us(400),
            overhead: Span::us(200),
        }
    }

    #[test]
    fn savvio_disk_matches_manual_capacity_and_rates() {
        let disk = savvio();
        assert!(disk.is_sense());
        let bytes = disk.bytes() / 100_000_000;
        assert!((730..740).contains(&bytes), "{bytes}, in tenths of GB");
        let places = Places::new(&disk);
        // 16 MB at the outside and at the inside, in MB per second.
        let rate =
            |from: u64| 16_000_000_000_000_000 / places.stream(from, from + 16_000_000).0 / 1000;
        assert_eq!((rate(0), rate(places.bytes() - 17_000_000)), (69, 46));
    }

    #[test]
    fn disk_seek_times_match_manual_and_are_monotonic() {
        let disk = savvio();
        assert_eq!(disk.seek(0), Span::ZERO);
        assert_eq!(disk.seek(1), Span::us(200));
        assert_eq!(disk.seek(51_052 / 3), Span::ms(4));
        assert_eq!(disk.seek(51_052), Span::us(8100));
        let mut before = Span::ZERO;
        for distance in (1..=51_052).step_by(97) {
            assert!(disk.seek(distance) >= before, "{distance}");
            before = disk.seek(distance);
        }
    }

    #[test]
    fn disk_missed_sector_costs_one_revolution() {
        let places = Places::new(&savvio());
        let begin = places.reach(0, 4096, Time(12_345), false);
        let end = begin + places.stream(4096, 1 << 20);
        assert_eq!(places.reach(1 << 20, 1 << 20, end, false), end, "across tracks too");
        let late = end + Span::ns(1);
        assert_eq!(places.reach(1 << 20, 1 << 20, late, false), end + Span::ms(6));
    }
}
