//! Data of a live diskhog: every byte that a thread reads is compared with what it has written.

use std::cell::{Cell, RefCell};

use bus::Buffer;
use wire::Lba;

use super::HogError;

/// Rounds of the blocks of a thread's region.
pub(super) struct Data {
    core: u32,
    block_bytes: usize,
    /// For each request of the region, the round in which it was last written.
    rounds: RefCell<Vec<u32>>,
    /// Bytes of each request that are being written: two writes of the same bytes could end in any order.
    writing: RefCell<Vec<u64>>,
    request_bytes: u64,
    scratch: RefCell<(Vec<u8>, Vec<u8>)>,
    verified: Cell<u64>,
}

impl Data {
    pub fn new(core: u32, places: u64, request_bytes: u64, block_bytes: u64) -> Data {
        let places = places as usize;
        Data {
            core,
            block_bytes: block_bytes as usize,
            rounds: RefCell::new(vec![0; places]),
            writing: RefCell::new(vec![0; places]),
            request_bytes,
            scratch: RefCell::default(),
            verified: Cell::new(0),
        }
    }

    pub fn places(&self) -> u64 {
        self.rounds.borrow().len() as u64
    }

    pub fn verified_bytes(&self) -> u64 {
        self.verified.get()
    }

    /// Begins a round of a request: the drawn one, or the next that is not being written.
    pub fn begin_write(&self, drawn: u64) -> u64 {
        let (mut rounds, mut writing) = (self.rounds.borrow_mut(), self.writing.borrow_mut());
        let count = rounds.len();
        let free = (0..count).map(|n| (drawn as usize + n) % count).find(|at| writing[*at] == 0);
        // The workload was checked: a batch has no more requests than the region.
        let place = free.expect("a request of the region that is not being written");
        rounds[place] += 1;
        writing[place] = self.request_bytes;
        place as u64
    }

    /// Fills the buffer of a write; overwrites that of a read, so that a read without a transfer is found.
    pub fn prepare(&self, write: bool, place: u64, lba: Lba, buffer: &Buffer) {
        if !write {
            let blocks = (0..buffer.bytes()).step_by(self.block_bytes);
            return blocks.for_each(|at| buffer.store_u64(at, u64::MAX));
        }
        let (expected, _) = &mut *self.scratch.borrow_mut();
        expected.resize(buffer.bytes(), 0);
        fill(expected, lba.0, self.rounds.borrow()[place as usize]);
        buffer.copy_in(0, expected);
    }

    /// Ends a write, or compares what was read.
    pub fn ended(
        &self,
        write: bool,
        place: u64,
        lba: Lba,
        buffer: &Buffer,
    ) -> Result<(), HogError> {
        if write {
            self.writing.borrow_mut()[place as usize] -= buffer.bytes() as u64;
            return Ok(());
        }
        let round = self.rounds.borrow()[place as usize];
        let (expected, seen) = &mut *self.scratch.borrow_mut();
        expected.resize(buffer.bytes(), 0);
        seen.resize(buffer.bytes(), 0);
        fill(expected, lba.0, round);
        buffer.copy_out(0, seen);
        if seen == expected {
            self.verified.set(self.verified.get() + seen.len() as u64);
            return Ok(());
        }
        let byte = seen.iter().zip(expected.iter()).position(|(seen, expected)| seen != expected);
        let byte = byte.expect("they differ");
        let (core, lba, found, expected) = (self.core, lba.0, seen[byte], expected[byte]);
        Err(HogError::Data { core, lba, byte, found, expected, round })
    }
}

/// Fills a piece: each word depends on its first block, the round and its place.
fn fill(bytes: &mut [u8], first: u64, round: u32) {
    let seed = (first << 24 ^ u64::from(round)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for (index, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = seed ^ (index as u64).wrapping_mul(0xd6e8_feb8_6659_fd93);
        word.copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bus::{Arena, Memory};
    use wire::BusAddr;

    fn buffer() -> Buffer {
        Arena::new(Memory::private(16 << 10, BusAddr(0x10_0000))).buffer(4096).unwrap()
    }

    #[test]
    fn data_of_another_round_place_or_no_transfer_is_found() {
        let (data, lba, buffer) = (Data::new(3, 4, 4096, 512), Lba(80), buffer());
        let place = data.begin_write(2);
        data.prepare(true, place, lba, &buffer);
        data.ended(true, place, lba, &buffer).unwrap();
        data.ended(false, place, lba, &buffer).unwrap();
        assert_eq!(data.verified_bytes(), 4096);

        assert!(data.ended(false, place, Lba(88), &buffer).is_err(), "of another place");
        let byte = 4095;
        let mut one = [0];
        buffer.copy_out(byte, &mut one);
        buffer.copy_in(byte, &[one[0] ^ 1]);
        let error = data.ended(false, place, lba, &buffer).unwrap_err().to_string();
        assert!(error.starts_with("diskhog: core 3: byte 4095 from LBA 80 on is 0x"), "{error}");
        buffer.copy_in(byte, &one);
        data.begin_write(2);
        assert!(data.ended(false, place, lba, &buffer).is_err(), "of an earlier round");
        data.prepare(false, place, lba, &buffer);
        assert!(data.ended(false, place, lba, &buffer).is_err(), "a read without a transfer");
        assert_eq!(data.verified_bytes(), 4096);
    }

    #[test]
    fn requests_being_written_are_not_begun_again() {
        let data = Data::new(0, 3, 4096, 512);
        assert_eq!([1, 1, 1].map(|drawn| data.begin_write(drawn)), [1, 2, 0]);
        data.ended(true, 2, Lba(0), &buffer()).unwrap();
        assert_eq!(data.begin_write(0), 2);
    }
}
