//! The register map of the engine in hardware: words of 32 bits behind AXI4-Lite, 4 KiB of addresses.
//!
//! `rtl/fastpath_registers.sv` has the same map, and the test of this module reads it there. A
//! request and a handle take effect with their last word, whole; a response goes when its last word
//! is read. What can't be done is answered with the bus error SLVERR and changes nothing.

use bitfield_struct::bitfield;

use super::Request;

/// The word at [`ID`]: the ASCII letters `FTPH`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"FTPH");

/// Offset of the word that holds [`MAGIC`].
pub const ID: u32 = 0x000;
/// Offset of the version of this map: 1.
pub const VERSION: u32 = 0x004;
/// Offset of the entries of its largest queue (low half), and the bits of its bus (high half).
pub const WIDTHS: u32 = 0x008;
/// Offset of the requests that it works on at once (low half), and the entries of its table of handles.
pub const TABLES: u32 = 0x00c;
/// Offset of the responses that it holds (low half), and the requests that wait.
pub const DEPTHS: u32 = 0x010;
/// Offset of [`Control`].
pub const CONTROL: u32 = 0x014;
/// Offset of [`Status`].
pub const STATUS: u32 = 0x018;
/// Offset of the requests that it has room for (low half), and the responses that wait.
pub const ROOM: u32 = 0x01c;

/// Offset of the address of the submission queue, low word first: whole pages. What follows up to
/// [`TIMEOUT`] is written while the engine is disabled and quiet.
pub const SUBMISSION_QUEUE: u32 = 0x040;
/// Offset of the address of the completion queue, low word first: whole pages.
pub const COMPLETION_QUEUE: u32 = 0x048;
/// Offset of the address of the tail doorbell, low word first.
pub const TAIL_DOORBELL: u32 = 0x050;
/// Offset of the address of the head doorbell, low word first.
pub const HEAD_DOORBELL: u32 = 0x058;
/// Offset of the entries of both queues: 2 to what [`WIDTHS`] says.
pub const QUEUE_DEPTH: u32 = 0x060;
/// Offset of the namespace.
pub const NAMESPACE: u32 = 0x064;
/// Offset of the size of an LBA as a power of two: 9 to 13.
pub const LBA_SHIFT: u32 = 0x068;
/// Offset of the number of the submission queue, which completions must bear.
pub const QUEUE_ID: u32 = 0x06c;
/// Offset of the number of completions after which the drive is told the head: 1 to 65535. It is
/// told too when a poll finds nothing.
pub const BATCH: u32 = 0x070;
/// Offset of the cycles between a poll that found nothing and the next: 0 to 65535.
pub const POLL_INTERVAL: u32 = 0x074;
/// Offset of the cycles that a request may take, low word first, 48 bits.
pub const TIMEOUT: u32 = 0x078;

/// Offset of the counters, of 32 bits each, since the engine was enabled: in the order of [`Counter`].
pub const COUNTERS: u32 = 0x080;

/// Offset of the window for a request: 8 words, of which the last commits it.
pub const REQUEST: u32 = 0x100;
/// Offset of the window for a response: 4 words, of which reading the last takes it.
pub const RESPONSE: u32 = 0x140;
/// Offset of the window for an entry of the table of handles: [`handle_words`], of which the last
/// commits it.
pub const HANDLE: u32 = 0x180;

/// What the engine is to do.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// It works. Cleared, it ends what it has begun on the bus, and forgets the rest, but for its
    /// handles.
    pub enable: bool,
    /// Its interrupt line is high while a response waits.
    pub interrupt: bool,
    #[bits(30)]
    __: u32,
}

/// What the engine is at.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Status {
    /// As in [`Control`].
    pub enabled: bool,
    /// Something is on its way on the bus.
    pub on_the_bus: bool,
    /// It has halted: nothing goes on until it is disabled.
    pub halted: bool,
    /// A request waits or is in flight.
    pub working: bool,
    #[bits(4)]
    __: u8,
    /// Why it has halted, as [`super::Refusal`] numbers it: `TimeOut`, `Bus` or `Controller`.
    #[bits(4)]
    pub cause: u8,
    #[bits(20)]
    __: u32,
}

/// The counters, by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Requests begun.
    Begun = 0,
    /// Requests refused.
    Refused = 1,
    /// Commands given to the bus.
    Commands = 2,
    /// Commands completed.
    Completed = 3,
    /// Of those, with a status that is not zero.
    BadStatuses = 4,
    /// Errors on the bus.
    BusErrors = 5,
    /// Completions of no sense.
    NoSense = 6,
    /// Requests that found no room, or a disabled engine.
    Overruns = 7,
    /// Tail doorbells.
    TailDoorbells = 8,
    /// Head doorbells.
    HeadDoorbells = 9,
    /// Polls of the completion queue.
    Polls = 10,
    /// The shortest time of a request, cycles; all ones if there was none.
    LatencyMin = 11,
    /// The longest, cycles.
    LatencyMax = 12,
    /// How many were timed.
    LatencyCount = 13,
    /// Their sum, low word. Reading it keeps the high word.
    LatencySum = 14,
    /// The high word of the sum, as it was then.
    LatencySumHigh = 15,
}

impl Counter {
    /// Its offset.
    pub const fn offset(self) -> u32 {
        COUNTERS + 4 * self as u32
    }
}

/// An entry of the table of handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handle {
    /// Whether requests may name it.
    pub live: bool,
    /// Which use of the number this is.
    pub generation: u16,
    /// The first LBA of its area.
    pub area_lba: u64,
    /// The length of its area, LBAs.
    pub area_lbas: u64,
    /// The address of its buffer: whole pages.
    pub buffer: u64,
    /// The length of its buffer, bytes.
    pub buffer_bytes: u64,
}

/// The words of the window at [`HANDLE`] that make `handle` the entry of this number.
pub fn handle_words(fp_id: u16, handle: &Handle) -> [u32; 10] {
    let (low, high) = (|value: u64| value as u32, |value: u64| (value >> 32) as u32);
    [
        u32::from(fp_id),
        u32::from(handle.generation) | u32::from(handle.live) << 16,
        low(handle.area_lba),
        high(handle.area_lba),
        low(handle.area_lbas),
        high(handle.area_lbas),
        low(handle.buffer),
        high(handle.buffer),
        low(handle.buffer_bytes),
        high(handle.buffer_bytes),
    ]
}

/// The words of the window at [`REQUEST`].
pub fn request_words(request: &Request) -> [u32; 8] {
    zerocopy::transmute!(*request)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// `localparam logic [9:0] NAME = 10'hNNN;` in the block's own map: numbers of words.
    fn word(source: &str, name: &str) -> u32 {
        let wanted = std::format!(" {name} = 10'h");
        let line = source.lines().find(|line| line.contains(&wanted)).expect("the map names it");
        let digits = line.split("10'h").nth(1).expect("a number").trim_end_matches(';');
        4 * u32::from_str_radix(digits, 16).expect("hexadecimal")
    }

    #[test]
    fn the_block_has_the_same_map() {
        let source = include_str!("../../../../rtl/fastpath_registers.sv");
        let map = [
            ("CONTROL", CONTROL),
            ("SETUP", SUBMISSION_QUEUE),
            ("COUNTERS", COUNTERS),
            ("LATENCY", Counter::LatencyMin.offset()),
            ("REQUEST", REQUEST),
            ("RESPONSE", RESPONSE),
            ("HANDLE", HANDLE),
        ];
        for (name, offset) in map {
            assert_eq!(word(source, name), offset, "{name}");
        }
        assert!(source.contains(&std::format!(
            "MAGIC = 32'h{:04x}_{:04x}",
            MAGIC >> 16,
            MAGIC & 0xffff
        )));
    }

    #[test]
    fn a_handle_is_ten_words() {
        let handle = Handle {
            live: true,
            generation: 0x1234,
            area_lba: 0x1_0000_0002,
            area_lbas: 0x3_0000_0004,
            buffer: 0x5_0000_6000,
            buffer_bytes: 0x7_0000_0008,
        };
        let words = handle_words(9, &handle);
        assert_eq!(words, [9, 0x1_1234, 2, 1, 4, 3, 0x6000, 5, 8, 7]);
    }

    #[test]
    fn words_are_little_endian() {
        let request = Request { opcode: 2, tag: 0x1234.into(), ..Request::default() };
        assert_eq!(request_words(&request)[0], 0x1234_0002);
    }
}
