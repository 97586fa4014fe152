//! SCSI tests: each command, and random bytes.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use bus::{Arena, Buffer, Memory, OutOfMemory};
use host::{BlockDevice, Deallocated, Geometry, IoError, Kind};
use proptest::prelude::*;
use runtime::{Log, Rt};
use scsi::{AttachError, Disk, Reply, Target, Transport, Unit};
use wire::scsi::cdb::Cdb;
use wire::scsi::inquiry::{Identity, Rotation};
use wire::scsi::lun::Lun;
use wire::scsi::sense::{Additional, Field, Key, Sense};
use wire::scsi::status::Status;
use wire::{BusAddr, Lba};

const BLOCK: usize = 512;
const BLOCKS: u64 = 64;
const TRANSFER: u32 = 8 * BLOCK as u32;

/// A RAM disk that counts its requests.
struct Ram {
    arena: Arena,
    bytes: RefCell<Vec<u8>>,
    geometry: Geometry,
    flushes: Cell<u32>,
    fua: Cell<u32>,
    fails: Cell<Option<IoError>>,
    trims: Cell<u32>,
}

impl Ram {
    fn new(blocks: u64, volatile_cache: bool) -> Ram {
        Ram {
            arena: Arena::new(Memory::private(1 << 20, BusAddr(1 << 32))),
            bytes: RefCell::new(vec![0; (blocks as usize).min(1 << 12) * BLOCK]),
            geometry: Geometry {
                blocks,
                block_bytes: BLOCK as u32,
                transfer_bytes_max: TRANSFER,
                buffer_align: 4,
                volatile_cache,
            },
            flushes: Cell::new(0),
            fua: Cell::new(0),
            fails: Cell::new(None),
            trims: Cell::new(0),
        }
    }

    fn place(&self, lba: Lba, buffer: &Buffer) -> std::ops::Range<usize> {
        // The unit must have validated the range.
        self.geometry.validate(lba, buffer).unwrap();
        let at = lba.0 as usize * BLOCK;
        at..at + buffer.bytes()
    }
}

impl BlockDevice for Ram {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.arena.buffer(bytes)
    }

    async fn read(&self, lba: Lba, into: Buffer) -> (Buffer, Result<(), IoError>) {
        let place = self.place(lba, &into);
        into.copy_in(0, &self.bytes.borrow()[place]);
        (into, self.fails.get().map_or(Ok(()), Err))
    }

    async fn write(&self, lba: Lba, from: Buffer, fua: bool) -> (Buffer, Result<(), IoError>) {
        let place = self.place(lba, &from);
        from.copy_out(0, &mut self.bytes.borrow_mut()[place]);
        self.fua.set(self.fua.get() + u32::from(fua));
        (from, self.fails.get().map_or(Ok(()), Err))
    }

    async fn flush(&self) -> Result<(), IoError> {
        self.flushes.set(self.flushes.get() + 1);
        self.fails.get().map_or(Ok(()), Err)
    }

    fn deallocated(&self) -> Deallocated {
        if self.geometry.volatile_cache { Deallocated::Zeros } else { Deallocated::Unsupported }
    }

    async fn deallocate(&self, lba: Lba, blocks: u32) -> Result<(), IoError> {
        self.geometry.validate_range(lba, u64::from(blocks)).unwrap();
        let place = lba.0 as usize * BLOCK..(lba.0 as usize + blocks as usize) * BLOCK;
        self.bytes.borrow_mut()[place].fill(0);
        self.trims.set(self.trims.get() + 1);
        self.fails.get().map_or(Ok(()), Err)
    }
}

fn identity(serial: u8) -> Identity {
    let mut identity = Identity {
        vendor: *b"NVMe    ",
        product: *b"doorbell test   ",
        revision: *b"1   ",
        serial: [b' '; 20],
        eui64: None,
        nguid: None,
        rotation: Rotation::None,
    };
    identity.serial[0] = serial;
    identity
}

/// A target of two units.
struct World {
    rt: Rt,
    target: Rc<Target<Rc<Ram>>>,
    ram: Rc<Ram>,
}

impl World {
    fn new() -> World {
        World::of(BLOCKS)
    }

    fn of(blocks: u64) -> World {
        let ram = Rc::new(Ram::new(blocks, true));
        let other = Rc::new(Ram::new(BLOCKS, false));
        let units = vec![Unit::new(ram.clone(), identity(b'0')), Unit::new(other, identity(b'1'))];
        World { rt: Rt::simulated(None, Log::Off), target: Rc::new(Target::new(units)), ram }
    }

    /// Sends a command to unit 0 with a buffer of `room` bytes, filled with ones.
    fn send(&self, cdb: &[u8], room: usize) -> (Status, Sense, Vec<u8>) {
        self.send_to(Lun::of(0), cdb, &vec![0xff; room])
    }

    fn send_to(&self, lun: Lun, cdb: &[u8], data: &[u8]) -> (Status, Sense, Vec<u8>) {
        let buffer = (!data.is_empty()).then(|| {
            let buffer = self.ram.buffer(data.len()).unwrap();
            buffer.copy_in(0, data);
            buffer
        });
        let reply = self.rt.block_on(self.target.execute(lun, cdb, buffer));
        let Reply { buffer, status, sense, moved } = reply;
        assert_eq!(buffer.is_some(), !data.is_empty(), "{cdb:x?}: the buffer comes back");
        let mut seen = vec![0; data.len()];
        if let Some(buffer) = buffer {
            buffer.copy_out(0, &mut seen);
            if status == Status::Good {
                assert_eq!(seen[moved..], data[moved..], "beyond what was moved nothing changes");
            }
        }
        seen.truncate(moved);
        (status, sense, seen)
    }

    fn good(&self, cdb: &[u8], room: usize) -> Vec<u8> {
        let (status, sense, data) = self.send(cdb, room);
        assert_eq!((status, sense), (Status::Good, Sense::NONE), "{cdb:x?}");
        data
    }

    fn refused(&self, cdb: &[u8], room: usize) -> Sense {
        let (status, sense, data) = self.send(cdb, room);
        assert_eq!((status, data.len()), (Status::CheckCondition, 0), "{cdb:x?}");
        sense
    }
}

const OUT_OF_RANGE: Sense = Sense::new(Key::IllegalRequest, Additional::LBA_OUT_OF_RANGE);

#[test]
fn test_unit_ready() {
    let world = World::new();
    world.good(&[0x00, 0, 0, 0, 0, 0], 0);
}

#[test]
fn request_sense() {
    let world = World::new();
    let fixed = world.good(&[0x03, 0, 0, 0, 252, 0], 252);
    assert_eq!(fixed, [0x70, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(world.good(&[0x03, 1, 0, 0, 252, 0], 252), [0x72, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(world.good(&[0x03, 0, 0, 0, 3, 0], 252).len(), 3, "no more than is allowed");
    // To a missing unit (SPC-4, 5.12), and to a stopped one.
    let (status, _, data) = world.send_to(Lun::of(9), &[0x03, 0, 0, 0, 18, 0], &[0; 18]);
    assert_eq!((status, data[2], data[12]), (Status::Good, 5, 0x25));
    world.good(&[0x1b, 0, 0, 0, 0, 0], 0);
    let data = world.good(&[0x03, 0, 0, 0, 18, 0], 18);
    assert_eq!((data[2], data[12], data[13]), (2, 0x04, 0x02));
}

const PAGES: [u8; 10] = [0, 0, 0, 6, 0, 0x80, 0x83, 0xb0, 0xb1, 0xb2];

#[test]
fn inquiry() {
    let world = World::new();
    let standard = world.good(&[0x12, 0, 0, 0, 96, 0], 96);
    assert_eq!((standard.len(), standard[0], &standard[8..16]), (96, 0, &b"NVMe    "[..]));
    assert_eq!(world.good(&[0x12, 0, 0, 0, 5, 0], 96).len(), 5);
    assert_eq!(world.good(&[0x12, 0, 0, 0, 96, 0], 36).len(), 36, "no more than there is room");
    assert_eq!(world.good(&[0x12, 1, 0, 0, 255, 0], 255), PAGES);
    let limits = world.good(&[0x12, 1, 0xb0, 0, 255, 0], 255);
    assert_eq!(limits[8..12], [0, 0, 0, 8], "the longest transfer of the device");
    assert_eq!(
        world.refused(&[0x12, 1, 0xc0, 0, 255, 0], 255),
        Sense::invalid_field(Field::byte(2))
    );
    let (status, _, data) = world.send_to(Lun::of(9), &[0x12, 0, 0, 0, 96, 0], &[0; 96]);
    assert_eq!((status, data[0]), (Status::Good, 0x7f), "no unit there, and so it says");
}

#[test]
fn report_luns() {
    let world = World::new();
    let list = world.good(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], 64);
    assert_eq!(list, [0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let known = world.good(&[0xa0, 0, 1, 0, 0, 0, 0, 0, 0, 64, 0, 0], 64);
    assert_eq!(known, [0; 8], "no well known units");
    assert_eq!(world.good(&[0xa0, 0, 2, 0, 0, 0, 0, 0, 0, 16, 0, 0], 64).len(), 16);
    let sense = world.refused(&[0xa0, 0, 3, 0, 0, 0, 0, 0, 0, 64, 0, 0], 64);
    assert_eq!(sense, Sense::invalid_field(Field::byte(2)));
    let sense = world.refused(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 15, 0, 0], 64);
    assert_eq!(sense, Sense::invalid_field(Field::byte(6)));
    // Valid for any unit, even a missing one.
    let list = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0];
    assert_eq!(world.send_to(Lun::of(9), &list, &[0; 16]).0, Status::Good);
    let (status, sense, _) = world.send_to(Lun::of(9), &[0x00, 0, 0, 0, 0, 0], &[]);
    assert_eq!(
        (status, sense.additional),
        (Status::CheckCondition, Additional::UNIT_NOT_SUPPORTED)
    );
}

#[test]
fn read_capacity_10() {
    let world = World::new();
    let data = world.good(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8);
    assert_eq!(data, [0, 0, 0, 63, 0, 0, 2, 0]);
    let data = World::of(1 << 40).good(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8);
    assert_eq!(data[..4], [0xff; 4]);
}

#[test]
fn read_capacity_16() {
    let cdb = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    let data = World::of(1 << 40).good(&cdb, 32);
    assert_eq!((&data[..8], data.len()), (&[0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff][..], 32));
    assert_eq!(data[8..12], [0, 0, 2, 0]);
    assert_eq!(data[14], 0xc0, "blocks can be taken back, and are zeros then");
}

/// Sends an UNMAP with these ranges to unit `lun`.
fn unmap(world: &World, lun: u16, ranges: &[(u64, u32)]) -> (Status, Sense) {
    let mut list = vec![0; 8];
    list[..2].copy_from_slice(&(ranges.len() as u16 * 16 + 6).to_be_bytes());
    list[2..4].copy_from_slice(&(ranges.len() as u16 * 16).to_be_bytes());
    for (lba, blocks) in ranges {
        list.extend([&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat());
    }
    let [high, low] = (list.len() as u16).to_be_bytes();
    let (status, sense, _) =
        world.send_to(Lun::of(lun), &[0x42, 0, 0, 0, 0, 0, 0, high, low, 0], &list);
    (status, sense)
}

#[test]
fn unmap_deallocates_all_ranges_or_none() {
    let world = World::new();
    world.ram.bytes.borrow_mut().fill(7);
    assert_eq!(unmap(&world, 0, &[(3, 2), (9, 0), (60, 4)]).0, Status::Good);
    let left = |block: usize| world.ram.bytes.borrow()[block * BLOCK] == 7;
    let taken: Vec<_> = (0..BLOCKS as usize).filter(|block| !left(*block)).collect();
    assert_eq!(taken, [3, 4, 60, 61, 62, 63]);
    // A range past the end: no range is deallocated.
    assert_eq!(unmap(&world, 0, &[(10, 1), (60, 5)]).1, OUT_OF_RANGE);
    assert_eq!(unmap(&world, 0, &[(u64::MAX, 2)]).1, OUT_OF_RANGE);
    assert!(left(10));
    let sense = |additional| Sense::new(Key::IllegalRequest, additional);
    assert_eq!(unmap(&world, 0, &[(0, 1); 15]).0, Status::Good);
    assert_eq!(unmap(&world, 0, &[(0, 1); 16]).1, sense(Additional::INVALID_FIELD_IN_LIST));
    // No list, a partial header, a list longer than the buffer, and ANCHOR.
    world.good(&[0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0);
    let short = world.refused(&[0x42, 0, 0, 0, 0, 0, 0, 0, 7, 0], 24);
    assert_eq!(short, sense(Additional::LIST_LENGTH_ERROR));
    let longer = world.refused(&[0x42, 0, 0, 0, 0, 0, 0, 0, 25, 0], 24);
    assert_eq!(longer, sense(Additional::INVALID_INFORMATION_UNIT));
    let anchored = world.refused(&[0x42, 1, 0, 0, 0, 0, 0, 0, 24, 0], 24);
    assert_eq!(anchored, Sense::invalid_field(Field::bit(1, 0)));
    // A list longer than its length field is cut to that length.
    let mut list = [0; 24];
    list[2..4].copy_from_slice(&u16::MAX.to_be_bytes());
    list[19] = 1;
    let (status, ..) = world.send_to(Lun::of(0), &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list);
    assert_eq!((status, left(0)), (Status::Good, false));
    // Pages of limits and of provisioning; a unit without UNMAP has neither.
    let limits = world.good(&[0x12, 1, 0xb0, 0, 255, 0], 255);
    assert_eq!(limits[20..28], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 15]);
    let page = world.good(&[0x12, 1, 0xb2, 0, 255, 0], 255);
    assert_eq!(page, [0, 0xb2, 0, 4, 0, 0x84, 1, 0]);
    assert_eq!(unmap(&world, 1, &[(0, 1)]).1, sense(Additional::INVALID_OPCODE));
    let (status, ..) = world.send_to(Lun::of(1), &[0x12, 1, 0xb2, 0, 255, 0], &[0; 255]);
    assert_eq!(status, Status::CheckCondition);
}

/// Every form of READ and WRITE transfers exactly the addressed blocks.
#[test]
fn read_and_write_6_10_12_16() {
    let forms: [(u8, &[u8]); 4] = [
        (0x08, &[0, 0, 5, 2, 0]),
        (0x28, &[0, 0, 0, 0, 5, 0, 0, 2, 0]),
        (0xa8, &[0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0]),
        (0x88, &[0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0]),
    ];
    for (number, (read, rest)) in forms.into_iter().enumerate() {
        let world = World::new();
        let data: Vec<u8> = (0..2 * BLOCK).map(|n| (n * 7 + number) as u8).collect();
        let (status, ..) = world.send_to(Lun::of(0), &[&[read + 2], rest].concat(), &data);
        assert_eq!(status, Status::Good);
        assert_eq!(world.good(&[&[read], rest].concat(), 3 * BLOCK), data);
        let bytes = world.ram.bytes.borrow();
        assert_eq!(bytes[5 * BLOCK..7 * BLOCK], data);
        assert!(bytes[..5 * BLOCK].iter().chain(&bytes[7 * BLOCK..]).all(|byte| *byte == 0));
    }
}

#[test]
fn invalid_or_empty_reads_and_writes() {
    let world = World::new();
    // Zero blocks: no transfer, but the LBA is still validated.
    assert!(world.good(&[0x28, 0, 0, 0, 0, 64, 0, 0, 0, 0], 0).is_empty());
    assert_eq!(world.refused(&[0x28, 0, 0, 0, 0, 65, 0, 0, 0, 0], 0), OUT_OF_RANGE);
    // The last block, one more, and overflows.
    world.good(&[0x28, 0, 0, 0, 0, 63, 0, 0, 1, 0], BLOCK);
    assert_eq!(world.refused(&[0x28, 0, 0, 0, 0, 63, 0, 0, 2, 0], 2 * BLOCK), OUT_OF_RANGE);
    let far = [0x88, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 1, 0, 0];
    assert_eq!(world.refused(&far, BLOCK), OUT_OF_RANGE);
    // Longer than the transfer limit, and longer than the buffer.
    let long = world.refused(&[0x28, 0, 0, 0, 0, 0, 0, 0, 9, 0], 9 * BLOCK);
    assert_eq!(long, Sense::invalid_field(Field::byte(7)));
    let narrow = world.refused(&[0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0], BLOCK);
    assert_eq!(narrow.additional, Additional::INVALID_INFORMATION_UNIT);
    assert_eq!(
        world.refused(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 2, 0], 0).additional,
        Additional::INVALID_INFORMATION_UNIT
    );
    // Protection information, which no unit has.
    let protected = world.refused(&[0x28, 0x20, 0, 0, 0, 0, 0, 0, 1, 0], BLOCK);
    assert_eq!(protected, Sense::invalid_field(Field::bit(1, 7)));
}

#[test]
fn fua_writes_through_and_read_fua_flushes() {
    let world = World::new();
    world.send_to(Lun::of(0), &[0x2a, 8, 0, 0, 0, 0, 0, 0, 1, 0], &[1; BLOCK]);
    assert_eq!((world.ram.fua.get(), world.ram.flushes.get()), (1, 0));
    world.good(&[0x28, 8, 0, 0, 0, 0, 0, 0, 1, 0], BLOCK);
    assert_eq!(world.ram.flushes.get(), 1, "what a read by way of the medium finds is on it");
    world.good(&[0x28, 0x10, 0, 0, 0, 0, 0, 0, 1, 0], BLOCK);
    assert_eq!(world.ram.flushes.get(), 1, "DPO asks for nothing");
}

#[test]
fn synchronize_cache_10_and_16() {
    let world = World::new();
    world.good(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0);
    world.good(&[0x91, 0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 4, 0, 0], 0);
    assert_eq!(world.ram.flushes.get(), 2);
    assert_eq!(world.refused(&[0x35, 0, 0, 0, 0, 60, 0, 0, 5, 0], 0), OUT_OF_RANGE);
    assert_eq!(world.ram.flushes.get(), 2);
}

#[test]
fn mode_sense_6_and_10() {
    let world = World::new();
    let data = world.good(&[0x1a, 0, 0x08, 0, 255, 0], 255);
    assert_eq!(data[..12], [31, 0, 0x10, 8, 0, 0, 0, 64, 0, 0, 2, 0]);
    assert_eq!(data[12..15], [0x08, 18, 0x04], "a cache that may be lost");
    assert_eq!(data.len(), 32);
    let all = world.good(&[0x1a, 8, 0x3f, 0, 255, 0], 255);
    assert_eq!((all.len(), all[3], all[4], all[24]), (36, 0, 0x08, 0x0a), "no descriptor");
    let changeable = world.good(&[0x1a, 8, 0x48, 0, 255, 0], 255);
    assert!(changeable[6..].iter().all(|byte| *byte == 0), "nothing can be changed");
    let long = world.good(&[0x5a, 0x10, 0x0a, 0, 0, 0, 0, 0, 255, 0], 255);
    assert_eq!(long[..8], [0, 34, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(long[8..24], [0, 0, 0, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 2, 0]);
    let cut = world.good(&[0x1a, 0, 0x3f, 0, 4, 0], 255);
    assert_eq!(cut[..], [43, 0, 0x10, 8], "the length is that of all");
    let saved = world.refused(&[0x1a, 0, 0xc8, 0, 255, 0], 255);
    assert_eq!(saved.additional, Additional::SAVING_NOT_SUPPORTED);
    assert_eq!(
        world.refused(&[0x1a, 0, 0x02, 0, 255, 0], 255),
        Sense::invalid_field(Field::bit(2, 5))
    );
    assert_eq!(
        world.refused(&[0x1a, 0, 0x08, 1, 255, 0], 255),
        Sense::invalid_field(Field::byte(3))
    );
    let (.., data) = world.send_to(Lun::of(1), &[0x1a, 8, 0x08, 0, 255, 0], &[0; 255]);
    assert_eq!(data[6], 0, "a device without such a cache");
}

#[test]
fn start_stop_unit() {
    let world = World::new();
    world.good(&[0x1b, 0, 0, 0, 0, 0], 0);
    assert_eq!(world.ram.flushes.get(), 1, "what is in the cache is made durable first");
    let stopped = Sense::new(Key::NotReady, Additional::START_REQUIRED);
    for cdb in [
        &[0x00, 0, 0, 0, 0, 0][..],
        &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        assert_eq!(world.refused(cdb, BLOCK), stopped);
    }
    world.good(&[0x12, 0, 0, 0, 36, 0], 36);
    world.good(&[0x1b, 0, 0, 0, 1, 0], 0);
    world.good(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], BLOCK);
    world.good(&[0x1b, 0, 0, 0, 4, 0], 0);
    assert_eq!(world.ram.flushes.get(), 1, "NO_FLUSH");
}

#[test]
fn device_errors_map_to_sense() {
    let world = World::new();
    let read = |blocks: u8| [0x28, 0, 0, 0, 0, 7, 0, 0, blocks, 0];
    let nvme = wire::nvme::status::Status::UNRECOVERED_READ_ERROR;
    world.ram.fails.set(Some(IoError::answered(nvme, Some(Lba(7)))));
    let sense = world.refused(&read(1), BLOCK);
    assert_eq!(
        (sense.key, sense.additional),
        (Key::MediumError, Additional::UNRECOVERED_READ_ERROR)
    );
    assert_eq!(sense.information, Some(7), "of one block it is known which");
    assert_eq!(world.refused(&read(2), 2 * BLOCK).information, None);
    world.ram.fails.set(Some(IoError::of(Kind::Gone, None)));
    let flush = world.refused(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0);
    assert_eq!((flush.key, flush.additional), (Key::NotReady, Additional::NO_RESPONSE));
}

proptest! {
    /// Any bytes, unit and buffer length: a status, with sense if required, and the buffer.
    #[test]
    fn random_cdb_bytes_get_status(
        commands in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..20), any::<u64>(), 0..5000_usize),
            1..20,
        ),
        known in prop::collection::vec(any::<prop::sample::Index>(), 20),
    ) {
        const CODES: [u8; 20] = [
            0x00, 0x03, 0x08, 0x0a, 0x12, 0x1a, 0x1b, 0x25, 0x28, 0x2a, 0x35, 0x42, 0x5a, 0x88, 0x8a, 0x91,
            0x9e, 0xa0, 0xa8, 0xaa,
        ];
        let world = World::new();
        for ((mut cdb, lun, room), code) in commands.into_iter().zip(known) {
            // Random operation codes are mostly unknown: half of them are real ones.
            if room % 2 == 0 && !cdb.is_empty() {
                cdb[0] = *code.get(&CODES);
            }
            let lun = if room % 3 == 0 { Lun(lun) } else { Lun::of((lun % 3) as u16) };
            let (status, sense, data) = world.send_to(lun, &cdb, &vec![0xff; room]);
            prop_assert_eq!(status == Status::Good, sense.key == Key::NoSense, "{:x?}", cdb);
            prop_assert!(data.len() <= room);
            prop_assert!(sense.fixed().len() == 18 && sense.descriptors().len() >= 8);
        }
    }
}

#[test]
fn class_driver_attaches_and_does_io() {
    let world = World::new();
    world.rt.block_on(async {
        let disk = Disk::attach(world.target.clone(), Lun::of(0)).await.unwrap();
        assert_eq!(disk.geometry(), world.ram.geometry);
        assert_eq!(&disk.seen().product, b"doorbell test   ");
        let from = disk.buffer(3 * BLOCK).unwrap();
        from.copy_in(0, &[7; 3 * BLOCK]);
        let (_, written) = disk.write(Lba(9), from, true).await;
        written.unwrap();
        disk.flush().await.unwrap();
        let (into, read) = disk.read(Lba(9), disk.buffer(3 * BLOCK).unwrap()).await;
        read.unwrap();
        let mut seen = [0; 3 * BLOCK];
        into.copy_out(0, &mut seen);
        assert_eq!(seen, [7; 3 * BLOCK]);
        assert_eq!((world.ram.fua.get(), world.ram.flushes.get()), (1, 1));
        assert_eq!(disk.deallocated(), Deallocated::Zeros);
        disk.deallocate(Lba(8), 3).await.unwrap();
        assert_eq!(disk.deallocate(Lba(BLOCKS - 1), 2).await.unwrap_err().kind, Kind::OutOfRange);
        assert_eq!(world.ram.trims.get(), 1);
        let other = Disk::attach(world.target.clone(), Lun::of(1)).await.unwrap();
        assert_eq!(other.deallocated(), Deallocated::Unsupported);
        assert_eq!(other.deallocate(Lba(0), 1).await.unwrap_err().kind, Kind::Unsupported);
        // A failure keeps its kind, and holds the unit's sense.
        world.ram.fails.set(Some(IoError::of(Kind::MediaFailed, Some(Lba(1)))));
        let (_, read) = disk.read(Lba(1), disk.buffer(BLOCK).unwrap()).await;
        let error = read.unwrap_err();
        assert_eq!(error.kind, Kind::MediaFailed);
        assert!(error.to_string().contains("UNRECOVERED READ ERROR (11h/00h), LBA 1"), "{error}");
        let none = Disk::attach(world.target.clone(), Lun::of(5)).await.map(|_| ()).unwrap_err();
        assert!(matches!(none, AttachError::Refused { command: "TEST UNIT READY", .. }), "{none}");
    });
}

/// Status and code, sense key, bytes transferred, data.
type Lie = (u8, u8, usize, Vec<u8>);

/// A target with random replies.
struct Liar {
    ram: Ram,
    replies: RefCell<Vec<Lie>>,
}

impl Transport for Liar {
    fn execute(&self, _: Lun, _: &Cdb, buffer: Option<Buffer>) -> impl Future<Output = Reply> {
        let (status, key, moved, data) =
            self.replies.borrow_mut().pop().unwrap_or((0, 0, usize::MAX, Vec::new()));
        if let Some(buffer) = &buffer {
            buffer.copy_in(0, &data[..data.len().min(buffer.bytes())]);
        }
        let sense =
            Sense::parse(&[0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, status, 0, 0, 0, 0, 0]);
        let status = Status::of(status & 0x0a).unwrap_or(Status::Good);
        core::future::ready(Reply { buffer, status, sense: sense.unwrap(), moved })
    }

    fn buffer(&self, bytes: usize) -> Result<Buffer, OutOfMemory> {
        self.ram.buffer(bytes)
    }
}

proptest! {
    /// With a malformed target the class driver fails to attach or works; it does not panic or loop, and
    /// accepts no invalid capacity.
    #[test]
    fn malformed_target_cannot_crash_class_driver(
        replies in prop::collection::vec(
            (any::<u8>(), any::<u8>(), 0..300_usize, prop::collection::vec(any::<u8>(), 0..100)),
            0..12,
        ),
        honest in any::<bool>(),
    ) {
        let mut replies = replies;
        if honest {
            replies.iter_mut().for_each(|reply| reply.0 = 0);
        }
        let liar = Rc::new(Liar { ram: Ram::new(BLOCKS, false), replies: RefCell::new(replies) });
        let rt = Rt::simulated(None, Log::Off);
        rt.block_on(async {
            if let Ok(disk) = Disk::attach(liar.clone(), Lun::of(0)).await {
                let geometry = disk.geometry();
                assert!(geometry.blocks > 0 && geometry.transfer_bytes_max >= geometry.block_bytes);
                let buffer = disk.buffer(geometry.block_bytes as usize).unwrap();
                let _ = disk.read(Lba(0), buffer).await;
                let _ = disk.deallocate(Lba(0), 1).await;
            }
        });
    }
}
