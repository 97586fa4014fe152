//! DRAM and PCM: banks behind memory channels.
//!
//! A request is split into rows. Every row occupies its bank for the access and for its share of the stream.
//! The channel carries the rows of one request in sequence, with an overhead for each row after the first.
//! The latency to the first byte is the access plus those overheads; the stream itself is pipelined with its
//! consumer.
//!
//! A read returns when its first byte can leave, with the time at which its last can, so that medium and link
//! overlap. A write occupies the channels first, then its banks, [`Timing::write_factor`] times as long.
//! There is no refresh, no open row, no wear and no error; PCM differs from DRAM by its numbers.

use core::cell::{Cell, RefCell};
use core::ops::Range;

use runtime::{Key, Line, RATE_MAX, Rt, Span, Time, Waits, stage};

use crate::contents::{Contents, Fill, Keep, STAMP_BYTES};
use crate::{
    Blank, BlockMetadata, Capabilities, Extent, Head, Labels, Media, MediaError, Metadata, Soon,
    WriteThrough,
};

/// Stages that this medium records.
pub const STAGES: &[&str] = &["media wait", "media"];

/// Timing of a banked medium: the table `[medium.timing]` of a plan, which has the source of every number.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// Number of channels; consecutive rows are on consecutive channels.
    pub channels: u32,
    /// Banks per channel; rows are interleaved over them.
    pub banks: u32,
    /// Bytes of a row, the amount of one access.
    pub row_bytes: u32,
    /// From the start of the access to the first byte of its row.
    pub first_byte: Span,
    /// Overhead of each further row of a request, before the stream begins.
    pub next_row: Span,
    /// Channel throughput in bytes per second.
    pub bytes_per_s: u64,
    /// Limit of it for writes; 0: none.
    pub write_bytes_per_s: u64,
    /// Ratio of the time that a write occupies its bank to that of a read.
    pub write_factor: u64,
}

/// Timing mode of a medium.
#[derive(Clone, Debug)]
pub enum Pace {
    /// No time passes: as fast as the data can be copied.
    Immediate,
    /// Time passes according to the model.
    Modelled(Timing),
}

/// A DRAM or PCM medium.
pub struct Banked {
    rt: Rt,
    contents: RefCell<Contents>,
    blocks: u64,
    block_bytes: u32,
    waits: Waits,
    /// `None` if it takes no time.
    model: Option<Model>,
}

/// Timing model: its numbers, and its FIFO servers.
struct Model {
    timing: RefCell<Timing>,
    row: Divisor,
    round: Divisor,
    each: Divisor,
    channels: Vec<Channel>,
    /// Length of the last stream in bytes, and its duration: most requests have the same length. Of reads,
    /// and of writes.
    streamed: [Cell<(u64, Span)>; 2],
}

/// A frequent divisor. Most are powers of two, and a division would take longer than the rest of the access.
#[derive(Clone, Copy)]
struct Divisor {
    by: u64,
    log2: Option<u32>,
}

impl Divisor {
    fn new(by: u32) -> Divisor {
        Divisor { by: by.into(), log2: by.is_power_of_two().then(|| by.ilog2()) }
    }

    /// Quotient and remainder of `number` by this divisor.
    #[inline]
    fn of(self, number: u64) -> (u64, u64) {
        match self.log2 {
            Some(log2) => (number >> log2, number & (self.by - 1)),
            None => (number / self.by, number % self.by),
        }
    }

    /// Quotient of `number` by this divisor, rounded up.
    #[inline]
    fn ceil(self, number: u64) -> u64 {
        let (whole, left) = self.of(number);
        whole + u64::from(left > 0)
    }
}

#[derive(Default)]
struct Channel {
    bus: Line,
    banks: Vec<Line>,
}

impl Banked {
    /// Creates an idle medium with these contents.
    ///
    /// # Panics
    /// If the timing has no channel, bank, row or rate; the plan is checked before.
    pub fn new(rt: &Rt, contents: Contents, pace: Pace) -> Banked {
        let model = match pace {
            Pace::Immediate => None,
            Pace::Modelled(timing) => Some(Model::new(timing)),
        };
        Banked {
            rt: rt.clone(),
            blocks: contents.capacity_bytes() / u64::from(contents.block_bytes()),
            block_bytes: contents.block_bytes(),
            contents: RefCell::new(contents),
            waits: Waits {
                turn: stage!(rt, STAGES, "media wait"),
                service: stage!(rt, STAGES, "media"),
            },
            model,
        }
    }

    /// Returns the contents, for use after a power cut or by another device.
    pub fn into_contents(self) -> Contents {
        let mut contents = self.contents.into_inner();
        contents.abandon_copy();
        contents
    }

    /// Accesses the contents, beside the commands.
    pub fn with_contents<T>(&self, access: impl FnOnce(&mut Contents) -> T) -> T {
        access(&mut self.contents.borrow_mut())
    }

    /// Changes the timing, while the medium runs: [`Timing::LIVE`]. Accesses in progress end by the old one.
    ///
    /// # Errors
    /// The key that differs and cannot change; or the medium takes no time.
    pub fn retime(&self, timing: &Timing) -> Result<(), &'static str> {
        let Some(model) = &self.model else { return Err("pace") };
        let mut current = model.timing.borrow_mut();
        let fixed = |key: &&Key<Timing>| !Timing::LIVE.contains(&key.name);
        for key in Timing::KEYS.iter().filter(fixed) {
            if key.get(&current) != key.get(timing) {
                return Err(key.name);
            }
        }
        *current = timing.clone();
        model.streamed.iter().for_each(|last| last.set((0, Span::ZERO)));
        Ok(())
    }

    fn rows(&self, at: Extent) -> Rows {
        let begin = at.block * u64::from(self.block_bytes);
        Rows { begin, end: begin + u64::from(at.blocks) * u64::from(self.block_bytes) }
    }

    // Banks first, then the channel, which is reserved when the rows are available, so that a busy bank
    // delays no other request's stream.
    async fn read_time(&self, rows: Rows) -> Time {
        let Some(model) = &self.model else { return Time::ZERO };
        let (begin, over) = model.access(self.rt.now(), rows, Way::Read);
        self.rt.record_at(self.waits.turn, begin);
        self.rt.sleep_until(over).await;
        self.rt.record(self.waits.service);
        let stream = model.stream(self.rt.now(), rows, Way::Read);
        self.rt.record_at(self.waits.turn, stream.begin);
        self.rt.sleep_until(stream.first).await;
        self.rt.record(self.waits.service);
        stream.last
    }

    async fn write_time(&self, at: Extent) {
        let Some(model) = &self.model else { return };
        let rows = self.rows(at);
        let stream = model.stream(self.rt.now(), rows, Way::Write);
        self.rt.record_at(self.waits.turn, stream.begin);
        self.rt.sleep_until(stream.last).await;
        self.rt.record(self.waits.service);
        let (begin, over) = model.access(self.rt.now(), rows, Way::Write);
        self.rt.record_at(self.waits.turn, begin);
        self.rt.sleep_until(over).await;
        self.rt.record(self.waits.service);
    }

    #[inline]
    fn check(&self, at: Extent) -> Result<u64, MediaError> {
        let inside = at.blocks > 0
            && at.block <= self.blocks
            && u64::from(at.blocks) <= self.blocks - at.block;
        if inside { Ok(at.block * u64::from(self.block_bytes)) } else { Err(MediaError::Range) }
    }
}

impl Model {
    fn new(timing: Timing) -> Model {
        let t = &timing;
        assert!(t.channels > 0 && t.banks > 0 && t.row_bytes > 0 && t.bytes_per_s > 0);
        let banks = || (0..t.banks).map(|_| Line::default()).collect();
        let channel = |_| Channel { bus: Line::default(), banks: banks() };
        Model {
            row: Divisor::new(t.row_bytes),
            round: Divisor::new(t.channels),
            each: Divisor::new(t.banks),
            channels: (0..t.channels).map(channel).collect(),
            streamed: Default::default(),
            timing: RefCell::new(timing),
        }
    }

    /// Occupies the banks of a request's rows from now on; returns the start of the first access and the end
    /// of the last.
    fn access(&self, now: Time, rows: Rows, way: Way) -> (Time, Time) {
        let access = self.timing.borrow().access(way);
        let (mut begin, mut over) = (Time::NEVER, now);
        for row in self.numbers(rows) {
            let low = (row * self.row.by).max(rows.begin);
            let high = ((row + 1) * self.row.by).min(rows.end);
            let (channel, bank) = self.place(row);
            let turn = channel.banks[bank].reserve(now, access + self.streams(high - low, way));
            begin = begin.min(turn.begin);
            over = over.max(turn.begin + access);
        }
        (begin, over)
    }

    /// Occupies the channels of a request's rows from now on.
    fn stream(&self, now: Time, rows: Rows, way: Way) -> Stream {
        let (numbers, bytes) = (self.numbers(rows), rows.end - rows.begin);
        let count = numbers.end - numbers.start;
        let (used, later, each) = match count.min(self.round.by) {
            1 => (1, count - 1, bytes),
            used => (used, (count - 1).div_ceil(used), bytes.div_ceil(used)),
        };
        let overhead = self.timing.borrow().next_row * later;
        let span = overhead + self.streams(each, way);
        let (mut begin, mut end) = (now, now);
        for row in 0..used {
            let (channel, _) = self.place(numbers.start + row);
            let turn = channel.bus.reserve(now, span);
            begin = begin.max(turn.begin);
            end = end.max(turn.end);
        }
        Stream { begin, first: begin + overhead, last: end }
    }

    #[inline]
    fn place(&self, row: u64) -> (&Channel, usize) {
        let (lap, channel) = self.round.of(row);
        (&self.channels[channel as usize], self.each.of(lap).1 as usize)
    }

    /// Row numbers of a request.
    #[inline]
    fn numbers(&self, rows: Rows) -> Range<u64> {
        self.row.of(rows.begin).0..self.row.ceil(rows.end)
    }

    /// Duration of a stream of this length.
    #[inline]
    fn streams(&self, bytes: u64, way: Way) -> Span {
        let last = &self.streamed[way as usize];
        match last.get() {
            (known, span) if known == bytes => span,
            _ => {
                let span = self.timing.borrow().stream(bytes, way);
                last.set((bytes, span));
                span
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Way {
    Read,
    Write,
}

/// Use of the channels by a request: from when it has them all, and when its first and last byte have passed.
struct Stream {
    begin: Time,
    first: Time,
    last: Time,
}

/// Bytes of a request, as an iterator over rows.
#[derive(Clone, Copy)]
struct Rows {
    begin: u64,
    end: u64,
}

impl Timing {
    /// Keys that can change while the medium runs.
    pub const LIVE: &[&str] =
        &["first_byte", "next_row", "bandwidth", "write_bandwidth", "write_factor"];

    /// The keys of its table.
    pub const KEYS: &[Key<Timing>] = &[
        Key::number("channels", 1..=64, |t| t.channels.into(), |t, n| t.channels = n as u32),
        Key::number("banks", 1..=1024, |t| t.banks.into(), |t, n| t.banks = n as u32),
        Key::power_of_two(
            "row",
            64..=1 << 20,
            |t| t.row_bytes.into(),
            |t, n| t.row_bytes = n as u32,
        ),
        Key::span("first_byte", Span::s(1), |t| t.first_byte.0, |t, n| t.first_byte = Span(n)),
        Key::span("next_row", Span::s(1), |t| t.next_row.0, |t, n| t.next_row = Span(n)),
        Key::rate("bandwidth", |t| t.bytes_per_s, |t, n| t.bytes_per_s = n),
        // As fast as any rate: the bandwidth of reads limits writes too.
        Key::or(
            RATE_MAX,
            Key::rate("write_bandwidth", |t| t.write_bytes_per_s, |t, n| t.write_bytes_per_s = n),
        ),
        Key::number("write_factor", 1..=1_000_000, |t| t.write_factor, |t, n| t.write_factor = n),
    ];

    fn access(&self, way: Way) -> Span {
        match way {
            Way::Read => self.first_byte,
            Way::Write => self.first_byte * self.write_factor,
        }
    }

    #[inline]
    fn stream(&self, bytes: u64, way: Way) -> Span {
        const PS_PER_S: u64 = 1_000_000_000_000;
        let rate = match (way, self.write_bytes_per_s) {
            (Way::Read, _) | (Way::Write, 0) => self.bytes_per_s,
            (Way::Write, limit) => self.bytes_per_s.min(limit),
        };
        match bytes.checked_mul(PS_PER_S) {
            Some(ps) => Span(ps.div_ceil(rate)),
            None => {
                let ps = u128::from(bytes) * u128::from(PS_PER_S);
                Span(ps.div_ceil(u128::from(rate)) as u64)
            }
        }
    }
}

impl Media for Banked {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn head(&self) -> Option<Head> {
        match self.contents.borrow().keep() {
            Keep::Everything => None,
            Keep::Stamps => Some(Head { bytes: STAMP_BYTES as u32, of: self.block_bytes }),
        }
    }

    #[inline]
    fn is_immediate(&self) -> bool {
        self.model.is_none()
    }

    async fn read(&self, at: Extent) -> Result<Time, MediaError> {
        self.check(at)?;
        Ok(self.read_time(self.rows(at)).await)
    }

    async fn read_head(&self, at: Extent, bytes: u32) -> Result<Time, MediaError> {
        self.check(at)?;
        let Rows { begin, end } = self.rows(at);
        Ok(self.read_time(Rows { begin, end: end.min(begin + u64::from(bytes)) }).await)
    }

    fn runs(&self, at: Extent, put: &mut dyn FnMut(u32, &[u8])) -> Result<(), MediaError> {
        let offset = self.check(at)?;
        let bytes = at.blocks * self.block_bytes;
        let contents = self.contents.borrow();
        contents.runs(offset, bytes, &mut { put }).map_err(|_| MediaError::Unreadable)
    }

    #[inline]
    fn prefetch(&self, at: Extent, soon: Soon) {
        if let Ok(contents) = self.contents.try_borrow() {
            let first = at.block.saturating_mul(self.block_bytes.into());
            let from = first.saturating_add(soon.from.into());
            contents.prefetch(from, soon.bytes as usize, soon.to_write);
        }
    }

    fn write_at_once(
        &self,
        at: Extent,
        fill: &mut dyn FnMut(u32, &mut [u8]),
    ) -> Result<bool, MediaError> {
        let offset = self.check(at)?;
        let mut contents = self.contents.borrow_mut();
        if self.model.is_some() || contents.keep() != Keep::Everything {
            return Ok(false);
        }
        let done = contents.write_runs(offset, at.blocks * self.block_bytes, &mut { fill });
        done.map_err(|error| MediaError::of_write(&error)).map(|()| true)
    }

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        let offset = self.check(at)?;
        self.write_time(at).await;
        self.contents.borrow_mut().write(offset, data).map_err(|error| MediaError::of_write(&error))
    }

    // Takes no time: the update of a real medium's table is not modelled.
    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        let offset = self.check(at)?;
        let bytes = u64::from(at.blocks) * u64::from(self.block_bytes);
        let done = self.contents.borrow_mut().discard(offset, bytes);
        done.map_err(|error| MediaError::of_write(&error))
    }

    async fn flush(&self) -> Result<(), MediaError> {
        self.contents.borrow_mut().flush().map_err(|error| MediaError::of_write(&error))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let metadata = self.contents.borrow().keeps_metadata().then_some(self as _);
        let (labels, blank) = (Some(self as _), Some(self as _));
        Capabilities { labels, metadata, blank, ..Capabilities::default() }
    }
}

impl WriteThrough for Banked {}

impl Blank for Banked {
    fn blank_from(&self, block: u64) -> u64 {
        self.contents.borrow().blank_from(block)
    }

    fn fill(&self) -> Option<Fill> {
        self.contents.borrow().fill()
    }
}

// Takes no time: it happens once in the life of a namespace.
impl Labels for Banked {
    fn label(&self) -> Vec<u8> {
        self.contents.borrow().label().to_vec()
    }

    fn set_label(&self, label: &[u8]) -> Result<(), MediaError> {
        self.contents.borrow_mut().set_label(label).map_err(|error| MediaError::of_write(&error))
    }
}

impl BlockMetadata for Banked {
    fn metadata_of(&self, block: u64) -> Result<Metadata, MediaError> {
        self.contents.borrow().metadata(block).map_err(|_| MediaError::Range)
    }

    fn set_metadata(&self, block: u64, metadata: Metadata) -> Result<(), MediaError> {
        let done = self.contents.borrow_mut().set_metadata(block, metadata);
        done.map_err(|_| MediaError::Range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::{Backing, Spec};
    use runtime::Log;

    /// PCM of Vučinić et al., "DC Express" (FAST 2014): 110 ns to the first byte, 0.368 us at 4 KiB.
    fn pcm() -> Timing {
        Timing {
            channels: 1,
            banks: 16,
            row_bytes: 512,
            first_byte: Span::ns(110),
            next_row: Span::ps(36_857),
            bytes_per_s: 2_000_000_000,
            write_factor: 55,
            ..Timing::default()
        }
    }

    fn medium(rt: &Rt, timing: Timing) -> Banked {
        let spec = Spec {
            capacity_bytes: 1 << 20,
            block_bytes: 512,
            keep: Keep::Everything,
            backing: Backing::Memory,
        };
        Banked::new(rt, Contents::new(spec).unwrap(), Pace::Modelled(timing))
    }

    fn world() -> Rt {
        Rt::simulated(None, Log::Off)
    }

    #[test]
    fn banked_single_read_takes_access_and_row_overheads() {
        let rt = world();
        let medium = medium(&rt, pcm());
        let (first, last) = rt.block_on(async {
            let last = medium.read(Extent { block: 8, blocks: 8 }).await.unwrap();
            (rt.now(), last)
        });
        assert_eq!(first.0, 110_000 + 7 * 36_857);
        assert_eq!(last.since(first), Span::ns(2_048));
    }

    #[test]
    fn banked_reads_queue_per_bank() {
        let rt = world();
        let timing = Timing { next_row: Span::ZERO, bytes_per_s: 1 << 50, ..pcm() };
        let medium = medium(&rt, timing);
        let done = rt.block_on(async {
            let one = medium.read(Extent { block: 0, blocks: 1 });
            let same_bank = medium.read(Extent { block: 16, blocks: 1 });
            let other_bank = medium.read(Extent { block: 1, blocks: 1 });
            let mut ends = Vec::new();
            one.await.unwrap();
            ends.push(rt.now().0 / 1000);
            other_bank.await.unwrap();
            ends.push(rt.now().0 / 1000);
            same_bank.await.unwrap();
            ends.push(rt.now().0 / 1000);
            ends
        });
        // A future starts when it is first awaited: each of these starts after the last.
        assert_eq!(done, [110, 220, 330]);
    }

    #[test]
    fn banked_write_delays_reads_of_same_bank_only() {
        let rt = world();
        let timing = Timing { next_row: Span::ZERO, bytes_per_s: 1 << 50, ..pcm() };
        let medium = std::rc::Rc::new(medium(&rt, timing));
        let write = medium.clone();
        rt.spawn(
            async move { write.write(Extent { block: 0, blocks: 1 }, &[7; 512]).await.unwrap() },
        );
        let (same, other) = rt.block_on(async {
            rt.yield_now().await;
            medium.read(Extent { block: 1, blocks: 1 }).await.unwrap();
            let other = rt.now();
            medium.read(Extent { block: 16, blocks: 1 }).await.unwrap();
            (rt.now(), other)
        });
        // A write takes its bank for 55 reads, and does not delay the reader of the other bank.
        assert_eq!(other.0 / 1000, 110);
        assert_eq!(same.0 / 1000, 56 * 110);
    }

    #[test]
    fn deallocated_blocks_read_zeros_and_neighbours_stay() {
        let rt = world();
        let medium = medium(&rt, pcm());
        rt.block_on(async {
            medium.write(Extent { block: 0, blocks: 4 }, &[7; 4 * 512]).await.unwrap();
            let before = rt.now();
            medium.deallocate(Extent { block: 1, blocks: 2 }).await.unwrap();
            assert_eq!(rt.now(), before, "no time");
            let mut seen = [1; 4 * 512];
            medium
                .runs(Extent { block: 0, blocks: 4 }, &mut |at, run| {
                    seen[at as usize..][..run.len()].copy_from_slice(run);
                })
                .unwrap();
            assert_eq!(seen[..512], [7; 512]);
            assert_eq!(seen[512..3 * 512], [0; 1024]);
            assert_eq!(seen[3 * 512..], [7; 512]);
            let past = Extent { block: 2047, blocks: 2 };
            assert_eq!(medium.deallocate(past).await, Err(MediaError::Range));
        });
    }

    #[test]
    fn access_beyond_end_of_medium_is_range_error() {
        let rt = world();
        let medium = medium(&rt, pcm());
        let past = Extent { block: 2047, blocks: 2 };
        assert_eq!(rt.block_on(medium.read(past)), Err(MediaError::Range));
        assert_eq!(medium.check(Extent { block: u64::MAX, blocks: 1 }), Err(MediaError::Range));
    }
}
