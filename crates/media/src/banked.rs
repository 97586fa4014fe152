//! DRAM and PCM: banks behind memory channels.
//!
//! A request is cut into rows. Every row occupies its bank for the access and for its share of the
//! stream; the channel carries one request's rows after the other, with an overhead for each row after
//! the first. What a reader waits for before its first byte is the access and those overheads; the
//! stream itself is pipelined with whatever takes the bytes away.

use core::cell::RefCell;

use runtime::{Line, Rt, Span, Time, Waits};

use crate::contents::{Contents, Keep, STAMP_BYTES};
use crate::{Extent, Head, Media, MediaError, Metadata};

/// The stages that this medium marks.
pub const STAGES: &[&str] = &["media wait", "media"];

/// Timing of a banked medium. Every number has its source in the plan.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Channels; rows go round them.
    pub channels: u32,
    /// Banks of each channel; rows go round them.
    pub banks: u32,
    /// Bytes of a row: what one access brings.
    pub row_bytes: u32,
    /// From the access to the first byte of its row.
    pub first_byte: Span,
    /// What each further row of a request adds before the stream begins.
    pub next_row: Span,
    /// What a channel streams, in bytes per second.
    pub bytes_per_s: u64,
    /// A write occupies its bank so many times as long as a read does.
    pub write_factor: u64,
}

/// How a medium keeps time.
#[derive(Clone, Debug)]
pub enum Pace {
    /// It takes no time: as fast as the data go.
    Immediate,
    /// It takes the time of its model.
    Modelled(Timing),
}

/// DRAM or PCM, as its numbers say.
pub struct Banked {
    rt: Rt,
    contents: RefCell<Contents>,
    blocks: u64,
    block_bytes: u32,
    waits: Waits,
    pace: Pace,
    channels: Vec<Channel>,
}

#[derive(Default)]
struct Channel {
    bus: Line,
    banks: Vec<Line>,
}

impl Banked {
    /// A medium with these contents, all of it idle.
    ///
    /// # Panics
    /// If the timing has no channel, bank, row or rate: the plan's check comes first.
    pub fn new(rt: &Rt, contents: Contents, pace: Pace) -> Banked {
        let channels = match &pace {
            Pace::Immediate => Vec::new(),
            Pace::Modelled(t) => {
                assert!(t.channels > 0 && t.banks > 0 && t.row_bytes > 0 && t.bytes_per_s > 0);
                let banks = || (0..t.banks).map(|_| Line::default()).collect();
                (0..t.channels).map(|_| Channel { bus: Line::default(), banks: banks() }).collect()
            }
        };
        Banked {
            rt: rt.clone(),
            blocks: contents.capacity_bytes() / u64::from(contents.block_bytes()),
            block_bytes: contents.block_bytes(),
            contents: RefCell::new(contents),
            waits: Waits { turn: rt.stage("media wait"), service: rt.stage("media") },
            pace,
            channels,
        }
    }

    /// Gives the contents back, as after a power cut or for another device.
    pub fn into_contents(self) -> Contents {
        self.contents.into_inner()
    }

    /// Occupies the banks of a request's rows from now on; returns when the first access begins and
    /// when the last is over.
    fn access(&self, timing: &Timing, rows: Rows, factor: u64) -> (Time, Time) {
        let now = self.rt.now();
        let (mut begin, mut over) = (Time::NEVER, now);
        for (row, bytes) in rows.each(timing) {
            let access = timing.first_byte * factor;
            let (channel, bank) = self.place(row, timing);
            let turn = channel.banks[bank].reserve(now, access + timing.stream(bytes));
            begin = begin.min(turn.begin);
            over = over.max(turn.begin + access);
        }
        (begin, over)
    }

    /// Occupies the channels of a request's rows from now on; returns when the stream may begin and
    /// when it is over.
    fn stream(&self, timing: &Timing, rows: Rows) -> (Time, Time) {
        let now = self.rt.now();
        let used = rows.count(timing).min(u64::from(timing.channels));
        let overhead = timing.next_row * (rows.count(timing) - 1).div_ceil(used);
        let span = overhead + timing.stream((rows.end - rows.begin).div_ceil(used));
        let (mut begin, mut end) = (now, now);
        for row in 0..used {
            let (channel, _) = self.place(rows.begin / u64::from(timing.row_bytes) + row, timing);
            let turn = channel.bus.reserve(now, span);
            begin = begin.max(turn.begin);
            end = end.max(turn.end);
        }
        (begin + overhead, end)
    }

    fn place(&self, row: u64, timing: &Timing) -> (&Channel, usize) {
        let channels = u64::from(timing.channels);
        let channel = &self.channels[(row % channels) as usize];
        (channel, (row / channels % u64::from(timing.banks)) as usize)
    }

    fn rows(&self, at: Extent) -> Rows {
        let begin = at.block * u64::from(self.block_bytes);
        Rows { begin, end: begin + u64::from(at.blocks) * u64::from(self.block_bytes) }
    }

    /// Banks first, then the channel: it is asked for when the rows are there, so that a busy bank
    /// holds up nobody else's stream.
    async fn read_time(&self, rows: Rows) -> Time {
        let Pace::Modelled(timing) = &self.pace else { return Time::ZERO };
        let (begin, over) = self.access(timing, rows, 1);
        self.rt.mark_at(self.waits.turn, begin);
        self.rt.sleep_until(over).await;
        self.rt.mark(self.waits.service);
        let (first, last) = self.stream(timing, rows);
        self.rt.sleep_until(first).await;
        self.rt.mark(self.waits.service);
        last
    }

    /// The channel first, then the banks.
    async fn write_time(&self, at: Extent) {
        let Pace::Modelled(timing) = &self.pace else { return };
        let rows = self.rows(at);
        let (_, last) = self.stream(timing, rows);
        self.rt.sleep_until(last).await;
        self.rt.mark(self.waits.service);
        let (begin, over) = self.access(timing, rows, timing.write_factor);
        self.rt.mark_at(self.waits.turn, begin);
        self.rt.sleep_until(over).await;
        self.rt.mark(self.waits.service);
    }

    #[inline]
    fn check(&self, at: Extent) -> Result<u64, MediaError> {
        let inside = at.blocks > 0
            && at.block <= self.blocks
            && u64::from(at.blocks) <= self.blocks - at.block;
        if inside { Ok(at.block * u64::from(self.block_bytes)) } else { Err(MediaError::Range) }
    }
}

/// The bytes of a request, to be cut into rows.
#[derive(Clone, Copy)]
struct Rows {
    begin: u64,
    end: u64,
}

impl Rows {
    fn count(self, timing: &Timing) -> u64 {
        let row_bytes = u64::from(timing.row_bytes);
        self.end.div_ceil(row_bytes) - self.begin / row_bytes
    }

    /// The number of each row, and how many of its bytes are wanted.
    fn each(self, timing: &Timing) -> impl Iterator<Item = (u64, u64)> {
        let row_bytes = u64::from(timing.row_bytes);
        (self.begin / row_bytes..self.end.div_ceil(row_bytes)).map(move |row| {
            let (low, high) = (row * row_bytes, (row + 1) * row_bytes);
            (row, high.min(self.end) - low.max(self.begin))
        })
    }
}

impl Timing {
    #[inline]
    fn stream(&self, bytes: u64) -> Span {
        const PS_PER_S: u64 = 1_000_000_000_000;
        match bytes.checked_mul(PS_PER_S) {
            Some(ps) => Span(ps.div_ceil(self.bytes_per_s)),
            None => {
                let ps = u128::from(bytes) * u128::from(PS_PER_S);
                Span(ps.div_ceil(u128::from(self.bytes_per_s)) as u64)
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
        matches!(self.pace, Pace::Immediate)
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

    async fn write(&self, at: Extent, data: &[u8]) -> Result<(), MediaError> {
        let offset = self.check(at)?;
        self.write_time(at).await;
        self.contents.borrow_mut().write(offset, data).map_err(|error| MediaError::of_write(&error))
    }

    /// Takes no time: the table in which a real medium would note it is not modelled.
    async fn deallocate(&self, at: Extent) -> Result<(), MediaError> {
        let offset = self.check(at)?;
        let bytes = u64::from(at.blocks) * u64::from(self.block_bytes);
        let done = self.contents.borrow_mut().discard(offset, bytes);
        done.map_err(|error| MediaError::of_write(&error))
    }

    fn keeps_metadata(&self) -> bool {
        self.contents.borrow().keeps_metadata()
    }

    fn metadata(&self, block: u64) -> Result<Metadata, MediaError> {
        self.contents.borrow().metadata(block).map_err(|_| MediaError::Range)
    }

    fn set_metadata(&self, block: u64, metadata: Metadata) -> Result<(), MediaError> {
        let done = self.contents.borrow_mut().set_metadata(block, metadata);
        done.map_err(|_| MediaError::Range)
    }

    fn label(&self) -> Option<Vec<u8>> {
        Some(self.contents.borrow().label().to_vec())
    }

    /// Takes no time either: it is once in a namespace's life.
    fn set_label(&self, label: &[u8]) -> Result<(), MediaError> {
        self.contents.borrow_mut().set_label(label).map_err(|error| MediaError::of_write(&error))
    }

    async fn flush(&self) -> Result<(), MediaError> {
        self.contents.borrow_mut().flush().map_err(|error| MediaError::of_write(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::{Backing, Spec};
    use runtime::Log;

    /// The PCM of Vučinić et al., "DC Express" (FAST 2014): 110 ns to the first byte, 0.368 us at 4 KiB.
    fn pcm() -> Timing {
        Timing {
            channels: 1,
            banks: 16,
            row_bytes: 512,
            first_byte: Span::ns(110),
            next_row: Span::ps(36_857),
            bytes_per_s: 2_000_000_000,
            write_factor: 55,
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
    fn a_read_alone_waits_for_the_access_and_the_rows() {
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
    fn reads_of_one_bank_queue_and_reads_of_two_do_not() {
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
        // The futures begin when they are first awaited: each of these starts after the last.
        assert_eq!(done, [110, 220, 330]);
    }

    #[test]
    fn a_busy_bank_makes_its_next_reader_wait() {
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
        // A write takes its bank for 55 reads, and the other bank's reader does not mind.
        assert_eq!(other.0 / 1000, 110);
        assert_eq!(same.0 / 1000, 56 * 110);
    }

    #[test]
    fn what_is_taken_back_reads_as_zeros_and_its_neighbours_stay() {
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
    fn beyond_the_end_is_an_error() {
        let rt = world();
        let medium = medium(&rt, pcm());
        let past = Extent { block: 2047, blocks: 2 };
        assert_eq!(rt.block_on(medium.read(past)), Err(MediaError::Range));
        assert_eq!(medium.check(Extent { block: u64::MAX, blocks: 1 }), Err(MediaError::Range));
    }
}
