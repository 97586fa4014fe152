//! What a command may say: NVMe base 2.0, 3.3.3.1 and 5, and NVM command set 1.0, 3.2.

use wire::nvme::entry::{DataPointer, Sqe, SqeFlags};
use wire::nvme::status::Status;
use wire::nvme::{admin, io};
use wire::{BusAddr, Lba, Nsid};

use crate::raw::nvme::world::{Setup, World, on_a_bench};
use crate::raw::nvme::{NS, pattern};

/// 3.3.3.2.1: what is not in the command sets is an Invalid Opcode, and never will be another.
#[test]
fn unknown_opcodes() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let invalid = Status::INVALID_OPCODE.with_dnr();
        let (mut unknown_admin, mut unknown_io) = (0, 0);
        for opcode in 0..=u8::MAX {
            let (cid, prp1) = (w.raw.cid().0.into(), at.0.into());
            // What Write Uncorrectable marks, the others leave alone.
            let cdw10 = if opcode == 4 { 9000.into() } else { 0.into() };
            let sqe = Sqe { opcode, cid, nsid: 1.into(), prp1, cdw10, ..Sqe::default() };
            if ![0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 20, 21, 24, 0x7c, 0x80, 0x84].contains(&opcode)
            {
                assert_eq!(w.raw.admin(&sqe).await.status(), invalid, "admin {opcode:#x}");
                unknown_admin += 1;
            }
            let status = w.raw.run(&mut pair, &sqe).await.status();
            // Those about reservations, which have to say more.
            if [0x0d, 0x0e, 0x11, 0x15].contains(&opcode) {
                assert_ne!(status, invalid, "I/O {opcode:#x}");
            } else if [0, 1, 2, 4, 5, 8, 9, 0x0c, 0x19].contains(&opcode) {
                assert_eq!(status, Status::SUCCESS, "I/O {opcode:#x}");
            } else {
                assert_eq!(status, invalid, "I/O {opcode:#x}");
                unknown_io += 1;
            }
        }
        assert_eq!((unknown_admin, unknown_io), (239, 243));
    });
}

/// 3.3.3.1: no other fused commands than pairs of I/O commands; of scatter gather lists those that describe
/// the data of I/O commands, and no metadata (bit 19 of SGLS).
#[test]
fn fused_commands_and_scatter_gather_lists() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let before = w.medium.peek(0, 4096);
        for flags in [3, 0x80, 0xc0].map(SqeFlags::from_bits) {
            for make in [io::read, io::write] {
                let sqe = make(w.raw.cid(), NS, Lba(0), 8, false, w.raw.data(at, 4096));
                let status = w.raw.run(&mut pair, &Sqe { flags, ..sqe }).await.status();
                assert_eq!(status, Status::INVALID_FIELD.with_dnr(), "{flags:?}");
            }
        }
        for flags in [1, 2, 3, 0x40, 0x80, 0xc0, 0x41].map(SqeFlags::from_bits) {
            let sqe = admin::get_feature(w.raw.cid(), 1);
            let status = w.raw.admin(&Sqe { flags, ..sqe }).await.status();
            assert_eq!(status, Status::INVALID_FIELD.with_dnr(), "{flags:?}");
        }
        assert_eq!(w.medium.peek(0, 4096), before);
    });
}

/// 3.2.1: numbers that there can't be, and one where no namespace is.
/// Flush alone may name all (VWC of Identify).
#[test]
fn namespaces_that_there_are_not() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let data = w.raw.data(at, 512);
        let invalid = Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr();
        for nsid in [0, 2, 17, 0xffff_fffe, 0xffff_ffff].map(Nsid) {
            let invalid = if nsid.0 == 2 { Status::INVALID_FIELD.with_dnr() } else { invalid };
            for make in [io::read, io::write] {
                let sqe = make(w.raw.cid(), nsid, Lba(0), 1, false, data);
                assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), invalid, "{nsid:?}");
            }
            let sqe = io::flush(w.raw.cid(), nsid);
            let wanted = if nsid == Nsid::BROADCAST { Status::SUCCESS } else { invalid };
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), wanted, "{nsid:?}");
        }
        assert_eq!(w.medium.flushes.get(), 1);
        assert!(w.medium.read.borrow().is_empty() && w.medium.written.borrow().is_empty());
    });
}

/// NVM command set 1.0, 3.2.4 and 3.2.6: the last block, the one past it, and the end of all numbers.
#[test]
fn blocks_past_the_end() {
    for (blocks, block_bytes) in [(1000, 512), (1 << 20, 4096)] {
        let setup = Setup { blocks, block_bytes, ..Setup::default() };
        setup.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let at = w.raw.place(64 << 10, 4096);
            let data = w.raw.data(at, 64 << 10);
            let cases = [
                (blocks - 1, 1, true),
                (blocks - 8, 8, true),
                (blocks - 8, 9, false),
                (blocks, 1, false),
                (blocks + 1, 1, false),
                (1 << 32, 1, false),
                (1 << 63, 16, false),
                (u64::MAX, 1, false),
                (u64::MAX, 2, false),
                (u64::MAX - 7, 8, false),
                (u64::MAX - 7, 16, false),
                (u64::MAX / 512, 16, false),
                (0, 65_536, false),
            ];
            for (lba, count, inside) in cases {
                for make in [io::read, io::write] {
                    let sqe = make(w.raw.cid(), NS, Lba(lba), count, false, data);
                    let status = w.raw.run(&mut pair, &sqe).await.status();
                    let wanted = match (inside, u64::from(count) > blocks) {
                        (true, _) => Status::SUCCESS,
                        (false, false) if lba == 0 => Status::INVALID_FIELD.with_dnr(),
                        _ => Status::LBA_OUT_OF_RANGE.with_dnr(),
                    };
                    assert_eq!(status, wanted, "{count} blocks at {lba}");
                }
            }
        });
    }
}

/// MDTS of Identify Controller (NVMe base 2.0, 5.17.2.1).
#[test]
fn transfers_above_the_limit() {
    for (most, block_bytes) in [(1 << 20, 512), (1 << 20, 4096), (4096, 512), (4096, 4096)] {
        let options = device::nvme::Options { transfer_bytes_max: most, ..Default::default() };
        let setup = Setup { options, block_bytes, blocks: 1 << 16, ..Setup::default() };
        setup.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let at = w.raw.place(u64::from(most), 4096);
            let data = w.raw.data(at, u64::from(most));
            let limit = most / block_bytes;
            for (count, wanted) in [
                (limit, Status::SUCCESS),
                (limit + 1, Status::INVALID_FIELD.with_dnr()),
                (65_536, Status::INVALID_FIELD.with_dnr()),
            ] {
                let sqe = io::read(w.raw.cid(), NS, Lba(0), count, false, data);
                let status = w.raw.run(&mut pair, &sqe).await.status();
                assert_eq!(status, wanted, "{count} blocks of {block_bytes}");
            }
        });
    }
}

/// NVM command set 1.0, 3.1.3: what the medium says becomes a status, and the next command goes well.
#[test]
fn media_errors_become_statuses() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        let data = w.raw.data(at, 4096);
        let cases: [(fn(_, _, _, _, _, _) -> Sqe, _, _); 4] = [
            (io::read, media::MediaError::Unreadable, Status::UNRECOVERED_READ_ERROR),
            (io::write, media::MediaError::WriteFault, Status::WRITE_FAULT),
            (io::write, media::MediaError::Full, Status::CAPACITY_EXCEEDED),
            (io::read, media::MediaError::Range, Status::LBA_OUT_OF_RANGE),
        ];
        for (make, error, wanted) in cases {
            w.medium.fails.set(Some(error));
            let sqe = make(w.raw.cid(), NS, Lba(3), 8, false, data);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status().kind(), wanted);
            let sqe = make(w.raw.cid(), NS, Lba(3), 8, false, data);
            assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
        }
        w.medium.fails.set(Some(media::MediaError::WriteFault));
        let sqe = io::flush(w.raw.cid(), NS);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::WRITE_FAULT);
    });
}

/// A write is of the bytes that lay there, a read returns them, and the blocks beside keep theirs.
#[test]
fn data_go_both_ways_and_nowhere_else() {
    for block_bytes in [512, 4096] {
        let setup = Setup { block_bytes, blocks: 4096, ..Setup::default() };
        setup.run(async |mut w: World| {
            let mut pair = w.raw.up().await;
            let block = block_bytes as usize;
            let (from, to) = (w.raw.place(256 << 10, 4096), w.raw.place(256 << 10, 4096));
            for (lba, count) in [(100_u64, 1_u32), (101, 7), (108, 16), (124, 17), (141, 40)] {
                let bytes = count as usize * block;
                let around = pattern(lba, bytes + 2 * block);
                w.medium.poke(lba - 1, &around);
                let data = pattern(lba + 1000, bytes);
                w.raw.memory.write(from, &data).unwrap();
                let prp = w.raw.data(from, bytes as u64);
                let sqe = io::write(w.raw.cid(), NS, Lba(lba), count, false, prp);
                assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
                let held = w.medium.peek(lba - 1, bytes + 2 * block);
                assert_eq!(held[..block], around[..block], "the block before {lba}");
                assert_eq!(held[block..][..bytes], data, "{count} blocks at {lba}");
                assert_eq!(held[block + bytes..], around[block + bytes..], "the block after");
                w.raw.memory.write(to, &vec![0x5a; bytes + 64]).unwrap();
                let prp = w.raw.data(to, bytes as u64);
                let sqe = io::read(w.raw.cid(), NS, Lba(lba), count, false, prp);
                assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS);
                assert_eq!(w.raw.bytes(to, bytes), data);
                assert_eq!(w.raw.bytes(BusAddr(to.0 + bytes as u64), 64), [0x5a; 64]);
            }
        });
    }
}

/// Reserved dwords and hints are ignored.
#[test]
fn reserved_fields_are_ignored() {
    on_a_bench(async |mut w: World| {
        let mut pair = w.raw.up().await;
        let at = w.raw.place(4096, 4096);
        w.raw.memory.write(at, &pattern(9, 4096)).unwrap();
        let sqe = io::write(w.raw.cid(), NS, Lba(1), 8, false, w.raw.data(at, 4096));
        let noise = u32::MAX.into();
        let noisy = Sqe {
            cdw2: noise,
            cdw3: noise,
            mptr: u64::MAX.into(),
            cdw13: noise,
            cdw14: noise,
            cdw15: noise,
            ..sqe
        };
        assert_eq!(w.raw.run(&mut pair, &noisy).await.status(), Status::SUCCESS);
        assert_eq!(w.medium.peek(1, 4096), pattern(9, 4096));
        let (prp1, _) = w.raw.data(at, 512).prps().expect("PRPs");
        let data = DataPointer::Prp { prp1, prp2: BusAddr(u64::MAX) };
        let sqe = io::read(w.raw.cid(), NS, Lba(1), 1, false, data);
        assert_eq!(w.raw.run(&mut pair, &sqe).await.status(), Status::SUCCESS, "PRP2 is not used");
    });
}
