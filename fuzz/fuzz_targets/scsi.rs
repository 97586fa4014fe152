//! A SCSI target against command blocks of arbitrary bytes: a status, sense data if one is due, and the
//! buffer returned.

use std::cell::RefCell;

use bus::{Arena, Buffer, Memory, OutOfMemory};
use host::{BlockDevice, Deallocated, Geometry, IoError};
use runtime::{Log, Rt};
use scsi::{Target, Unit};
use wire::scsi::inquiry::{Identity, Rotation};
use wire::scsi::lun::Lun;
use wire::scsi::sense::Key;
use wire::scsi::status::Status;
use wire::{BusAddr, Lba};

use crate::raw::nvme::choice::{Bytes, Choice};

const BLOCK: usize = 512;
const BLOCKS: u64 = 64;
/// Operation codes of supported commands, of every group.
const CODES: [u8; 20] = [
    0x00, 0x03, 0x08, 0x0a, 0x12, 0x1a, 0x1b, 0x25, 0x28, 0x2a, 0x35, 0x42, 0x5a, 0x88, 0x8a, 0x91,
    0x9e, 0xa0, 0xa8, 0xaa,
];

/// A disk in memory that panics on requests that the target should have rejected.
struct Ram(Arena, RefCell<Vec<u8>>);

impl Ram {
    fn place(&self, lba: Lba, buffer: &Buffer) -> std::ops::Range<usize> {
        self.geometry().validate(lba, buffer).expect("judged before");
        let at = lba.0 as usize * BLOCK;
        at..at + buffer.bytes()
    }
}

impl BlockDevice for Ram {
    fn geometry(&self) -> Geometry {
        Geometry {
            blocks: BLOCKS,
            block_bytes: BLOCK as u32,
            transfer_bytes_max: 8 * BLOCK as u32,
            buffer_align: 4,
            volatile_cache: true,
        }
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.0.buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let place = self.place(lba, &into);
        into.copy_in(0, &self.1.borrow()[place]);
        (into, Ok(()))
    }

    async fn write(&self, lba: Lba, from: Buffer, _: bool) -> (Buffer, Result<(), IoError>) {
        let place = self.place(lba, &from);
        from.copy_out(0, &mut self.1.borrow_mut()[place]);
        (from, Ok(()))
    }

    async fn flush(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn deallocated(&self) -> Deallocated {
        Deallocated::Zeros
    }

    async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        self.geometry().validate_range(lba, u64::from(blocks)).expect("judged before");
        let at = lba.0 as usize * BLOCK;
        self.1.borrow_mut()[at..at + blocks as usize * BLOCK].fill(0);
        Ok(())
    }
}

pub fn run(data: &[u8]) {
    let mut choice = Bytes(data);
    let identity = Identity {
        vendor: *b"NVMe    ",
        product: *b"doorbell fuzz   ",
        revision: *b"1   ",
        serial: [b'0'; 20],
        eui64: None,
        nguid: None,
        rotation: Rotation::None,
    };
    let arena = Arena::new(Memory::private(1 << 20, BusAddr(1 << 32)));
    let ram = std::rc::Rc::new(Ram(arena, RefCell::new(vec![0; BLOCKS as usize * BLOCK])));
    let target = Target::new(vec![Unit::new(ram.clone(), identity)]);
    let rt = Rt::simulated(None, Log::Off);
    while !choice.is_over() {
        let mut cdb: Vec<u8> = (0..choice.below(20)).map(|_| choice.below(256) as u8).collect();
        if let (Some(code), false) = (cdb.first_mut(), choice.one_in(4)) {
            *code = choice.of(&CODES);
        }
        let lun =
            if choice.one_in(8) { Lun(choice.word()) } else { Lun::of(choice.below(2) as u16) };
        let room = choice.of(&[0, 1, 4, 8, 24, 36, 255, 512, 513, 4096, 5000]);
        let buffer = (room > 0).then(|| {
            let buffer = ram.buffer(room).expect("memory");
            let fill = choice.below(256) as u8;
            buffer.copy_in(0, &vec![fill; room]);
            buffer
        });
        let had = buffer.is_some();
        let reply = rt.block_on(target.execute(lun, &cdb, buffer));
        assert_eq!(reply.status == Status::Good, reply.sense.key == Key::NoSense, "{cdb:x?}");
        assert_eq!(reply.buffer.is_some(), had, "{cdb:x?}: the buffer");
        assert!(reply.moved as usize <= room, "{cdb:x?}");
        assert!(reply.sense.fixed().len() == 18 && reply.sense.descriptors().len() >= 8);
    }
}
