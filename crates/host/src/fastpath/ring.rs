//! Ring between a caller and an engine, in the caller's memory: a page of words and entries, followed by the
//! memory of the caller's handles.
//!
//! ```text
//!   byte    0  requests sent by the caller               caller: release   engine: acquire
//!          64  requests taken by the engine              for observers
//!         128  responses sent by the engine              engine: release   caller: acquire
//!         256  64 requests of 32 bytes
//!        2304  64 responses of 16 bytes
//! ```
//!
//! Counts are 32 bits and wrap; entry *n* is at index *n mod 64*. A caller has at most 64 requests without a
//! response, so neither side ever waits for space. A caller that sends more overwrites its own entries.

use bus::{Memory, OutOfRange};
use wire::BusAddr;
use wire::fastpath::{Request, Response};
use zerocopy::{FromZeros, IntoBytes};

/// Most requests without a response.
pub const ENTRIES: u32 = 64;

/// Bytes of a ring in its memory.
pub const BYTES: usize = 4096;

const SENT: u64 = 0;
const TAKEN: u64 = 64;
const GIVEN: u64 = 128;
const REQUESTS: u64 = 256;
const RESPONSES: u64 = REQUESTS + ENTRIES as u64 * size_of::<Request>() as u64;

const _: () = assert!(RESPONSES as usize + ENTRIES as usize * size_of::<Response>() <= BYTES);

/// A page of a caller's memory.
#[derive(Clone)]
struct Page {
    memory: Memory,
    at: BusAddr,
}

impl Page {
    fn new(memory: &Memory, at: BusAddr) -> Result<Page, OutOfRange> {
        if !memory.holds(at, BYTES) || !at.0.is_multiple_of(BYTES as u64) {
            return Err(OutOfRange { at, bytes: BYTES });
        }
        Ok(Page { memory: memory.clone(), at })
    }

    fn place(&self, offset: u64) -> BusAddr {
        BusAddr(self.at.0 + offset)
    }

    fn load(&self, word: u64) -> u32 {
        self.memory.load_u32(self.place(word)).expect("inside the page")
    }

    fn store(&self, word: u64, value: u32) {
        self.memory.store_u32(self.place(word), value).expect("inside the page");
    }

    fn request(&self, number: u32) -> BusAddr {
        self.place(REQUESTS + u64::from(number % ENTRIES) * size_of::<Request>() as u64)
    }

    fn response(&self, number: u32) -> BusAddr {
        self.place(RESPONSES + u64::from(number % ENTRIES) * size_of::<Response>() as u64)
    }
}

/// Caller's side of a ring.
pub struct Caller {
    page: Page,
    sent: u32,
    received: u32,
}

impl Caller {
    /// Creates an empty ring in the zeroed page at `at`.
    ///
    /// # Errors
    /// The memory does not hold the page.
    pub fn new(memory: &Memory, at: BusAddr) -> Result<Caller, OutOfRange> {
        let page = Page::new(memory, at)?;
        Ok(Caller { page, sent: 0, received: 0 })
    }

    /// Requests without a response.
    pub fn outstanding(&self) -> u32 {
        self.sent.wrapping_sub(self.received)
    }

    /// Sends a request; returns false if [`ENTRIES`] requests have no response yet.
    #[inline]
    pub fn send(&mut self, request: &Request) -> bool {
        if self.outstanding() == ENTRIES {
            return false;
        }
        let place = self.page.request(self.sent);
        self.page.memory.write(place, request.as_bytes()).expect("inside the page");
        self.sent = self.sent.wrapping_add(1);
        self.page.store(SENT, self.sent);
        true
    }

    /// Takes the next response, if it has arrived. Unsolicited responses are ignored.
    #[inline]
    pub fn receive(&mut self) -> Option<Response> {
        let given = self.page.load(GIVEN);
        if given == self.received || self.outstanding() == 0 {
            return None;
        }
        let mut response = Response::new_zeroed();
        let place = self.page.response(self.received);
        self.page.memory.read(place, response.as_mut_bytes()).expect("inside the page");
        self.received = self.received.wrapping_add(1);
        Some(response)
    }
}

/// Error: the caller has sent more requests than a ring holds. The ring is not usable any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrun;

/// Engine's side of a ring. Shared values are read once.
pub(super) struct Taker {
    page: Page,
    taken: u32,
    given: u32,
}

impl Taker {
    pub fn new(memory: &Memory, at: BusAddr) -> Result<Taker, OutOfRange> {
        Ok(Taker { page: Page::new(memory, at)?, taken: 0, given: 0 })
    }

    /// Address of the word that signals a request.
    pub fn word(&self) -> BusAddr {
        self.page.place(SENT)
    }

    /// Returns true if there is a request, or the caller has overrun its ring.
    #[inline]
    pub fn has_next(&self) -> bool {
        self.page.load(SENT) != self.taken && self.taken.wrapping_sub(self.given) < ENTRIES
    }

    /// Takes the next request, copied once.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Request>, Overrun> {
        let sent = self.page.load(SENT);
        if sent.wrapping_sub(self.given) > ENTRIES {
            return Err(Overrun);
        }
        if sent == self.taken {
            return Ok(None);
        }
        let mut request = Request::new_zeroed();
        let place = self.page.request(self.taken);
        self.page.memory.read(place, request.as_mut_bytes()).expect("inside the page");
        self.taken = self.taken.wrapping_add(1);
        self.page.store(TAKEN, self.taken);
        Ok(Some(request))
    }

    /// Sends a response; once per request taken.
    #[inline]
    pub fn give(&mut self, response: &Response) {
        let place = self.page.response(self.given);
        self.page.memory.write(place, response.as_bytes()).expect("inside the page");
        self.given = self.given.wrapping_add(1);
        self.page.store(GIVEN, self.given);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::fastpath::Status;

    const AT: BusAddr = BusAddr(0x10_0000);

    fn ends() -> (Memory, Caller, Taker) {
        let memory = Memory::private(2 * BYTES, AT);
        let caller = Caller::new(&memory, AT).unwrap();
        let taker = Taker::new(&memory, AT).unwrap();
        (memory, caller, taker)
    }

    #[test]
    fn ring_delivers_requests_and_responses_across_count_wrap() {
        let (_, mut caller, mut taker) = ends();
        // Both counts wrap at 32 bits.
        (caller.sent, caller.received) = (u32::MAX - 70, u32::MAX - 70);
        (taker.taken, taker.given) = (u32::MAX - 70, u32::MAX - 70);
        caller.page.store(SENT, caller.sent);
        caller.page.store(GIVEN, taker.given);
        for round in 0..200_u16 {
            let burst = round % 64 + 1;
            for tag in 0..burst {
                assert!(caller.send(&Request::flush(tag, round, 1)));
            }
            assert_eq!(caller.outstanding(), u32::from(burst));
            for tag in 0..burst {
                assert!(taker.has_next());
                assert_eq!(taker.take(), Ok(Some(Request::flush(tag, round, 1))));
                taker.give(&Response::new(tag, Status::Good, 1, 0));
            }
            assert_eq!(taker.take(), Ok(None));
            for tag in 0..burst {
                assert_eq!(caller.receive().unwrap().tag.get(), tag);
            }
            assert!(caller.receive().is_none());
        }
    }

    #[test]
    fn full_ring_rejects_send_until_response() {
        let (_, mut caller, mut taker) = ends();
        for tag in 0..ENTRIES as u16 {
            assert!(caller.send(&Request::flush(tag, 0, 1)));
        }
        assert!(!caller.send(&Request::flush(0, 0, 1)));
        taker.take().unwrap().unwrap();
        assert!(!caller.send(&Request::flush(0, 0, 1)), "taken is not answered");
        taker.give(&Response::default());
        caller.receive().unwrap();
        assert!(caller.send(&Request::flush(0, 0, 1)));
    }

    #[test]
    fn ring_overrun_by_caller_detected() {
        let (memory, _, mut taker) = ends();
        memory.store_u32(AT, ENTRIES + 1).unwrap();
        assert!(taker.has_next());
        assert_eq!(taker.take(), Err(Overrun));
        memory.store_u32(AT, u32::MAX).unwrap();
        assert_eq!(taker.take(), Err(Overrun));
    }

    #[test]
    fn unsolicited_response_ignored() {
        let (memory, mut caller, _) = ends();
        memory.store_u32(BusAddr(AT.0 + GIVEN), 5).unwrap();
        assert!(caller.receive().is_none());
    }

    #[test]
    fn ring_outside_memory_rejected() {
        let memory = Memory::private(BYTES, AT);
        assert!(Caller::new(&memory, BusAddr(AT.0 + 8)).is_err());
        assert!(Taker::new(&memory, BusAddr(AT.0 + BYTES as u64)).is_err());
    }
}
