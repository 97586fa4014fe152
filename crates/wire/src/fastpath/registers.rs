//! Register map of the engine in hardware: words of 32 bits behind AXI4-Lite, 4 KiB of addresses.
//!
//! `rtl/fastpath_registers.sv` has the same map, and the test of this module reads it there. A request and
//! a handle take effect, whole, with the write of their last word; a response is removed when its last word
//! is read. An invalid access is answered with the bus error SLVERR and has no effect.

use bitfield_struct::bitfield;

use super::Request;

/// The word at [`ID`]: the ASCII letters `FTPH`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"FTPH");

/// Offset of the word that holds [`MAGIC`].
pub const ID: u32 = 0x000;
/// Offset of the version of this map: 1.
pub const VERSION: u32 = 0x004;
/// Offset of the maximum queue depth in entries (low half), and the width of its bus in bits (high half).
pub const WIDTHS: u32 = 0x008;
/// Offset of the maximum number of requests in progress (low half), and the entries of the handle table.
pub const TABLES: u32 = 0x00c;
/// Offset of the capacity of the response FIFO (low half) and of the request FIFO.
pub const DEPTHS: u32 = 0x010;
/// Offset of [`Control`].
pub const CONTROL: u32 = 0x014;
/// Offset of [`Status`].
pub const STATUS: u32 = 0x018;
/// Offset of the free entries of the request FIFO (low half), and the waiting responses.
pub const ROOM: u32 = 0x01c;

/// Offset of the address of the submission queue, low word first: whole pages. This and the registers up to
/// [`TIMEOUT`] are written while the engine is disabled and idle.
pub const SUBMISSION_QUEUE: u32 = 0x040;
/// Offset of the address of the completion queue, low word first: whole pages.
pub const COMPLETION_QUEUE: u32 = 0x048;
/// Offset of the address of the tail doorbell, low word first.
pub const TAIL_DOORBELL: u32 = 0x050;
/// Offset of the address of the head doorbell, low word first.
pub const HEAD_DOORBELL: u32 = 0x058;
/// Offset of the entries of both queues: 2 to the maximum in [`WIDTHS`].
pub const QUEUE_DEPTH: u32 = 0x060;
/// Offset of the namespace identifier.
pub const NAMESPACE: u32 = 0x064;
/// Offset of the size of an LBA as a power of two: 9 to 13.
pub const LBA_SHIFT: u32 = 0x068;
/// Offset of the submission queue identifier expected in completions.
pub const QUEUE_ID: u32 = 0x06c;
/// Offset of the number of completions per head doorbell write: 1 to 65535. The head is also written when a
/// poll finds no completion.
pub const BATCH: u32 = 0x070;
/// Offset of the cycles between polls while there is no completion: 0 to 65535.
pub const POLL_INTERVAL: u32 = 0x074;
/// Offset of the timeout of a request in cycles, low word first, 48 bits.
pub const TIMEOUT: u32 = 0x078;

/// Offset of the counters, 32 bits each, reset when the engine is enabled: in the order of [`Counter`].
pub const COUNTERS: u32 = 0x080;

/// Offset of the request window: 8 words; writing the last commits the request.
pub const REQUEST: u32 = 0x100;
/// Offset of the response window: 4 words; reading the last removes the response.
pub const RESPONSE: u32 = 0x140;
/// Offset of the handle window: [`handle_words`]; writing the last commits the handle.
pub const HANDLE: u32 = 0x180;

/// Control register.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Control {
    /// Enables the engine. When cleared, the engine completes its bus transfers and drops all other state
    /// except its handles.
    pub enable: bool,
    /// Enables the interrupt line, which is high while a response waits.
    pub interrupt: bool,
    #[bits(30)]
    __: u32,
}

/// Status register.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Status {
    /// Same as [`Control::enable`].
    pub enabled: bool,
    /// A bus transfer is in progress.
    pub on_the_bus: bool,
    /// The engine has halted, until it is disabled.
    pub halted: bool,
    /// A request waits or is in flight.
    pub working: bool,
    #[bits(4)]
    __: u8,
    /// Cause of the halt, as numbered by [`super::Refusal`]: `TimeOut`, `Bus` or `Controller`.
    #[bits(4)]
    pub cause: u8,
    #[bits(20)]
    __: u32,
}

/// Counters, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Requests begun.
    Begun = 0,
    /// Requests rejected.
    Refused = 1,
    /// Commands submitted on the bus.
    Commands = 2,
    /// Commands completed.
    Completed = 3,
    /// Completions with a nonzero status.
    BadStatuses = 4,
    /// Errors on the bus.
    BusErrors = 5,
    /// Invalid completions.
    NoSense = 6,
    /// Requests that overran the FIFO, or met a disabled engine.
    Overruns = 7,
    /// Tail doorbell writes.
    TailDoorbells = 8,
    /// Head doorbell writes.
    HeadDoorbells = 9,
    /// Polls of the completion queue.
    Polls = 10,
    /// Minimum latency of a request, cycles; all ones if there was none.
    LatencyMin = 11,
    /// Maximum latency of a request, cycles.
    LatencyMax = 12,
    /// Number of requests timed.
    LatencyCount = 13,
    /// Sum of latencies in cycles, low word. Reading it latches the high word.
    LatencySum = 14,
    /// High word of the sum, latched with the low word.
    LatencySumHigh = 15,
}

impl Counter {
    /// Register offset of the counter, bytes.
    pub const fn offset(self) -> u32 {
        COUNTERS + 4 * self as u32
    }
}

/// An entry of the table of handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handle {
    /// True if requests may use the handle.
    pub live: bool,
    /// Use count of the handle number.
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

/// Words for the window at [`HANDLE`] that set the handle with number `fp_id`.
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

/// Words for the window at [`REQUEST`].
pub fn request_words(request: &Request) -> [u32; 8] {
    zerocopy::transmute!(*request)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    /// Parses `localparam logic [9:0] NAME = 10'hNNN;` in the RTL's map: word numbers.
    fn word(source: &str, name: &str) -> u32 {
        let wanted = std::format!(" {name} = 10'h");
        let line = source.lines().find(|line| line.contains(&wanted)).expect("the map names it");
        let digits = line.split("10'h").nth(1).expect("a number").trim_end_matches(';');
        4 * u32::from_str_radix(digits, 16).expect("hexadecimal")
    }

    #[test]
    fn register_map_matches_rtl() {
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
    fn handle_encodes_as_ten_words() {
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
    fn request_words_are_little_endian() {
        let request = Request { opcode: 2, tag: 0x1234.into(), ..Request::default() };
        assert_eq!(request_words(&request)[0], 0x1234_0002);
    }
}
