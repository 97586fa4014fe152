//! Metadata and protection information: NVM command set 1.0, 5.2.

use media::{BlockMetadata, Labels};
use runtime::Rng;
use wire::nvme::admin::{self, FormatNvm, Sanitize};
use wire::nvme::entry::{DataPointer, Sqe};
use wire::nvme::io::{self, Access, Command, CopyTo, Request, WriteZeroes};
use wire::nvme::log::SanitizeStatus;
use wire::nvme::pi::{Checks, Kind, Protection};
use wire::nvme::ranges::CopyRange;
use wire::nvme::sgl::Descriptor;
use wire::nvme::status::Status;
use wire::{BusAddr, Lba};
use zerocopy::IntoBytes;

use crate::nvme::sanitizes;
use crate::raw::nvme::world::{Setup, World};
use crate::raw::nvme::{NS, Pair, pattern};

const ACT: Protection = Protection { act: true, ..ALL };
const ALL: Protection =
    Protection { act: false, checks: Checks::ALL, reference: 0, application: 0, mask: 0xffff };

/// `of` with the reference tag of this block and this application tag.
fn pi_fields(of: Protection, reference: u64, application: u16) -> Protection {
    Protection { reference: reference as u32, application, ..of }
}

/// A bench whose namespace has metadata.
struct WithPi {
    w: World,
    pair: Pair,
    /// Addresses of data and metadata in host memory.
    data: BusAddr,
    beside: BusAddr,
    block: usize,
    /// True if SGLs describe the data.
    lists: bool,
    /// True if metadata follow each block's data, unless the controller `makes` (inserts and strips) them.
    inline: bool,
    makes: bool,
}

impl WithPi {
    async fn io(&mut self, command: Command, blocks: u32) -> Status {
        let act = |access: &Access| access.protection.act && self.makes;
        let alone = match &command {
            Command::Read(access) | Command::Write(access) | Command::Compare(access) => {
                act(access)
            }
            _ => true,
        };
        let bytes = blocks as usize * if alone { self.block } else { self.whole() };
        let data = match self.lists {
            true => DataPointer::Sgl(Descriptor::data(self.data, bytes as u32)),
            false => self.w.raw.data(self.data, bytes as u64),
        };
        let request = Request { cid: self.w.raw.cid(), nsid: NS, data, command };
        self.w.raw.run(&mut self.pair, &request.to_sqe()).await.status()
    }

    /// Bytes of a block in host memory, with its metadata if they are inline.
    fn whole(&self) -> usize {
        self.block + if self.inline { 8 } else { 0 }
    }

    /// Stores data and metadata in host memory.
    fn place(&self, data: &[u8], beside: &[u8]) {
        if self.inline && data.len() / self.block * 8 == beside.len() {
            let blocks = data.chunks(self.block).zip(beside.chunks(8));
            let all: Vec<u8> =
                blocks.flat_map(|(block, beside)| [block, beside].concat()).collect();
            self.w.raw.memory.write(self.data, &all).unwrap();
        } else {
            self.w.raw.memory.write(self.data, data).unwrap();
            self.w.raw.memory.write(self.beside, beside).unwrap();
        }
    }

    /// Loads data and metadata of `blocks` blocks from host memory.
    fn placed(&self, blocks: u32, alone: bool) -> (Vec<u8>, Vec<u8>) {
        let blocks = blocks as usize;
        if !self.inline || alone {
            let data = self.w.raw.bytes(self.data, blocks * self.block);
            return (data, self.w.raw.bytes(self.beside, blocks * 8));
        }
        let all = self.w.raw.bytes(self.data, blocks * self.whole());
        let parts = all.chunks(self.whole()).map(|whole| whole.split_at(self.block));
        let (data, beside): (Vec<_>, Vec<_>) = parts.unzip();
        (data.concat(), beside.concat())
    }

    fn access(&self, lba: u64, blocks: u32, protection: Protection) -> Access {
        // Inline metadata need no address: an invalid one must be ignored.
        let metadata = if self.inline { BusAddr(u64::MAX) } else { self.beside };
        Access { protection, metadata, ..Access::of(Lba(lba), blocks) }
    }

    async fn write(
        &mut self,
        lba: u64,
        data: &[u8],
        beside: &[u8],
        pi_fields: Protection,
    ) -> Status {
        self.place(data, if self.inline && pi_fields.act && self.makes { &[] } else { beside });
        let blocks = (data.len() / self.block) as u32;
        self.io(Command::Write(self.access(lba, blocks, pi_fields)), blocks).await
    }

    async fn read(
        &mut self,
        lba: u64,
        blocks: u32,
        pi_fields: Protection,
    ) -> (Status, Vec<u8>, Vec<u8>) {
        let (bytes, beside) = (blocks as usize * self.whole(), blocks as usize * 8);
        self.w.raw.memory.write(self.data, &vec![0xc3; bytes]).unwrap();
        self.w.raw.memory.write(self.beside, &vec![0xc3; beside]).unwrap();
        let status = self.io(Command::Read(self.access(lba, blocks, pi_fields)), blocks).await;
        let (data, beside) = self.placed(blocks, pi_fields.act && self.makes);
        (status, data, beside)
    }

    async fn verify(&mut self, lba: u64, blocks: u32, pi_fields: Protection) -> Status {
        self.io(Command::Verify(self.access(lba, blocks, pi_fields)), blocks).await
    }

    /// The expected metadata of `data`.
    fn tuples(&self, kind: Kind, pi_fields: Protection, data: &[u8]) -> Vec<u8> {
        let blocks = (0..).zip(data.chunks(self.block));
        let of = |(number, block)| pi_fields.tuple(kind, number, block).as_bytes().to_vec();
        blocks.flat_map(of).collect()
    }
}

fn setup() -> Setup {
    Setup { metadata: true, blocks: 1 << 14, ..Setup::default() }
}

/// Formats the namespace with metadata and with PI of type `kind` (0: none).
async fn formatted(w: World, large: bool, kind: u8) -> WithPi {
    formatted_as(w, large, kind, false).await
}

/// The same, with metadata behind each block's data if `inline` is true.
async fn formatted_as(mut w: World, large: bool, kind: u8, inline: bool) -> WithPi {
    let pair = w.raw.up().await;
    let format = FormatNvm {
        format: 2 + u8::from(large),
        metadata_inline: inline,
        protection: kind,
        ..Default::default()
    };
    w.raw.admin_ok(&admin::format_nvm(w.raw.cid(), NS, format)).await;
    let (data, beside) = (w.raw.place((1 << 20) + (1 << 16), 4096), w.raw.place(1 << 16, 4096));
    let block = if large { 4096 } else { 512 };
    WithPi { w, pair, data, beside, block, lists: false, inline, makes: kind != 0 }
}

#[test]
fn identify_reports_pi_formats_and_chosen_format() {
    setup().run(async |mut w: World| {
        w.raw.up().await;
        let n = w.raw.identify_namespace().await;
        assert_eq!((n.nlbaf, n.mc, n.dpc, n.dps, n.flbas), (3, 3, 0x1f, 0, 0));
        let formats = [(9, 0), (12, 0), (9, 8), (12, 8)];
        for (format, (ds, ms)) in n.lbaf.iter().zip(formats) {
            assert_eq!((format.ds, format.ms.get()), (ds, ms));
        }
        let plain = FormatNvm::default();
        for (format, dps) in [
            (FormatNvm { format: 3, protection: 3, ..plain }, 3),
            (FormatNvm { format: 2, protection: 1, protection_first: true, ..plain }, 9),
            (FormatNvm { format: 2, ..plain }, 0),
            (FormatNvm { format: 2, metadata_inline: true, ..plain }, 0),
            (FormatNvm { format: 3, protection: 2, metadata_inline: true, ..plain }, 2),
        ] {
            w.raw.admin_ok(&admin::format_nvm(w.raw.cid(), NS, format)).await;
            let n = w.raw.identify_namespace().await;
            let inline = u8::from(format.metadata_inline) << 4;
            assert_eq!((n.flbas, n.dps), (format.format | inline, dps));
            assert_eq!(n.nsze.get(), if format.format == 3 { 1 << 11 } else { 1 << 14 });
        }
        for format in [
            FormatNvm { format: 2, protection: 4, ..plain },
            FormatNvm { format: 0, protection: 1, ..plain },
            FormatNvm { format: 1, metadata_inline: true, ..plain },
            FormatNvm { format: 4, ..plain },
        ] {
            let sqe = admin::format_nvm(w.raw.cid(), NS, format);
            let status = w.raw.admin(&sqe).await.status();
            assert_eq!(status, Status::INVALID_FORMAT.with_dnr(), "{format:?}");
        }
        // The chosen format survives the controller.
        let label = w.medium.label();
        let again = Setup { label: Some(label.clone()), ..setup() };
        again.run(async |mut w: World| {
            w.raw.up().await;
            let n = w.raw.identify_namespace().await;
            assert_eq!((n.flbas, n.dps), (0x13, 2));
        });
        // A label with metadata is invalid on a medium without metadata.
        let other = Setup { label: Some(label), metadata: false, ..setup() };
        other.run(async |mut w: World| {
            w.raw.up().await;
            let n = w.raw.identify_namespace().await;
            assert_eq!((n.nlbaf, n.mc, n.dpc, n.dps, n.flbas), (1, 0, 0, 0, 0));
        });
    });
}

/// Inserted and stripped by the controller, or written and returned by the host: all PI types, one block and
/// several pieces, PRPs and SGLs.
#[test]
fn write_and_read_with_pi_of_every_type() {
    let kinds = [(Kind::One, false), (Kind::Two, true), (Kind::Three, false), (Kind::One, true)];
    for ((kind, large), inline) in kinds.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        setup().run(async |w: World| {
            let mut g = formatted_as(w, large, kind as u8, inline).await;
            let most = 300.min((1 << 20) / g.whole() as u32);
            for (lba, blocks) in [(7, 1), (100, most), (9, 2)] {
                let data = pattern(lba, blocks as usize * g.block);
                let checks = Checks { reference: kind != Kind::Three, ..Checks::ALL };
                let act = Protection { checks, ..pi_fields(ACT, lba, 0xbeef) };
                let plain = Protection { act: false, ..act };
                let tuples = g.tuples(kind, act, &data);
                assert_eq!(g.write(lba, &data, &[0; 8], act).await, Status::SUCCESS);
                let (status, found, beside) = g.read(lba, blocks, plain).await;
                assert_eq!(status, Status::SUCCESS, "{kind:?}");
                assert!(found == data && beside == tuples, "{kind:?}: made by the controller");
                let (status, found, beside) = g.read(lba, blocks, act).await;
                assert!(status.is_ok() && found == data);
                assert!(beside.iter().all(|byte| *byte == 0xc3), "taken away");

                g.lists ^= true;
                let data = pattern(lba + 1, data.len());
                let tuples = g.tuples(kind, plain, &data);
                assert_eq!(g.write(lba, &data, &tuples, plain).await, Status::SUCCESS);
                let (status, found, beside) = g.read(lba, blocks, plain).await;
                assert!(status.is_ok() && found == data && beside == tuples);
                assert_eq!(g.verify(lba, blocks, plain).await, Status::SUCCESS);
            }
        });
    }
}

/// Corrupt data, metadata or PI, on the medium and in the transfer.
#[test]
fn corrupt_pi_fails_write_read_and_verify() {
    differs(false);
    differs(true);
}

fn differs(inline: bool) {
    setup().run(async |w: World| {
        let mut g = formatted_as(w, false, 1, inline).await;
        let (lba, blocks) = (40, 200);
        let data = pattern(3, 200 * 512);
        let plain = pi_fields(ALL, lba, 0x1234);
        let tuples = g.tuples(Kind::One, plain, &data);
        let refused = [
            (0, Status::GUARD_CHECK_ERROR),
            (3, Status::APPLICATION_TAG_CHECK_ERROR),
            (7, Status::REFERENCE_TAG_CHECK_ERROR),
        ];
        for (byte, status) in refused {
            let mut bad = tuples.clone();
            bad[150 * 8 + byte] ^= 1;
            assert_eq!(g.write(lba, &data, &bad, plain).await, status.with_dnr());
        }
        assert_eq!(g.write(lba, &data, &tuples, plain).await, Status::SUCCESS);
        for (byte, status) in refused {
            // A block in the second piece, changed behind the controller's back.
            let mut bad: [u8; 8] = tuples[150 * 8..][..8].try_into().unwrap();
            bad[byte] ^= 1;
            g.w.medium.set_metadata(lba + 150, bad).unwrap();
            let (found, first, _) = g.read(lba, blocks, plain).await;
            assert_eq!(found, status.with_dnr());
            assert!(first[128 * 512..].iter().all(|byte| *byte == 0xc3), "the piece is not sent");
            assert_eq!(g.verify(lba, blocks, plain).await, status.with_dnr());
            assert_eq!(g.read(lba, 150, plain).await.0, Status::SUCCESS, "the blocks before");
            let act = Protection { act: true, ..plain };
            assert_eq!(g.read(lba, blocks, act).await.0, status.with_dnr());
            let unchecked = Protection { checks: Checks::default(), ..plain };
            let (found, _, beside) = g.read(lba, blocks, unchecked).await;
            assert_eq!(found, Status::SUCCESS);
            assert_eq!(beside[150 * 8..][..8], bad);
            g.w.medium.set_metadata(lba + 150, tuples[150 * 8..][..8].try_into().unwrap()).unwrap();
        }
        // Changed data with the PI of the old data.
        let mut block = data[150 * 512..][..512].to_vec();
        block[77] ^= 0x10;
        g.w.medium.poke(lba + 150, &block);
        g.w.medium.set_metadata(lba + 150, tuples[150 * 8..][..8].try_into().unwrap()).unwrap();
        assert_eq!(g.read(lba, blocks, plain).await.0, Status::GUARD_CHECK_ERROR.with_dnr());
    });
}

#[test]
fn invalid_pi_fields_and_metadata_pointers_are_rejected() {
    setup().run(async |w: World| {
        let mut g = formatted(w, false, 1).await;
        let invalid = Status::INVALID_PROTECTION_INFORMATION.with_dnr();
        let data = pattern(1, 512);
        assert_eq!(
            g.write(8, &data, &[0; 8], pi_fields(ACT, 9, 0)).await,
            invalid,
            "another's tag"
        );
        assert_eq!(g.read(8, 1, pi_fields(ALL, 9, 0)).await.0, invalid);
        assert_eq!(
            g.verify(8, 1, pi_fields(ACT, 8, 0)).await,
            invalid,
            "a verify takes nothing away"
        );
        let compare = Command::Compare(g.access(8, 1, pi_fields(ACT, 8, 0)));
        assert_eq!(g.io(compare, 1).await, invalid);
        let format = FormatNvm { format: 2, protection: 3, ..Default::default() };
        g.w.raw.admin_ok(&admin::format_nvm(g.w.raw.cid(), NS, format)).await;
        assert_eq!(g.write(8, &data, &[0; 8], pi_fields(ACT, 8, 0)).await, invalid, "of type 3");
        // Invalid metadata addresses.
        let unchecked = Protection { checks: Checks::default(), ..ALL };
        let invalid = Status::INVALID_FIELD.with_dnr();
        let cases = [(2, invalid), (u64::MAX - 3, invalid), (0x7000, Status::DATA_TRANSFER_ERROR)];
        for (at, status) in cases {
            g.beside = BusAddr(at);
            for make in [Command::Write, Command::Read, Command::Compare] {
                let command = make(g.access(8, 1, unchecked));
                assert_eq!(g.io(command, 1).await, status, "{command:?}");
            }
        }
        let act = Protection { act: true, ..unchecked };
        assert_eq!(g.io(Command::Write(g.access(8, 1, act)), 1).await, Status::SUCCESS, "unused");
    });
}

/// Blocks that were never written, or were deallocated, have metadata of all ones and are not checked.
#[test]
fn deallocated_blocks_are_not_pi_checked() {
    setup().run(async |w: World| {
        let mut g = formatted(w, true, 1).await;
        let ones = vec![0xff; 16];
        let plain = pi_fields(ALL, 20, 0);
        assert_eq!(g.read(20, 2, plain).await, (Status::SUCCESS, vec![0; 8192], ones.clone()));
        let data = pattern(4, 8192);
        for deallocate in [true, false] {
            let tuples = g.tuples(Kind::One, plain, &data);
            assert_eq!(g.write(20, &data, &tuples, plain).await, Status::SUCCESS);
            let access = g.access(20, 2, plain);
            let zeroes = Command::WriteZeroes(WriteZeroes { access, deallocate });
            assert_eq!(g.io(zeroes, 2).await, Status::SUCCESS);
            let unchecked = Protection { checks: Checks::default(), ..plain };
            let (status, found, beside) = g.read(20, 2, unchecked).await;
            assert_eq!((status, found), (Status::SUCCESS, vec![0; 8192]));
            assert_eq!(beside, if deallocate { ones.clone() } else { vec![0; 16] });
        }
        // Zeros with PI.
        let act = pi_fields(ACT, 20, 7);
        let access = g.access(20, 2, act);
        let zeroes = Command::WriteZeroes(WriteZeroes { access, deallocate: false });
        assert_eq!(g.io(zeroes, 2).await, Status::SUCCESS);
        let (status, found, beside) = g.read(20, 2, pi_fields(ALL, 20, 7)).await;
        assert_eq!((status, found), (Status::SUCCESS, vec![0; 8192]));
        assert_eq!(beside, g.tuples(Kind::One, act, &[0; 8192]));
    });
}

#[test]
fn compare_checks_data_metadata_and_pi() {
    for (kind, inline) in [(0, false), (1, false), (0, true), (1, true)] {
        setup().run(async |w: World| {
            let mut g = formatted_as(w, false, kind, inline).await;
            let (data, plain) = (pattern(6, 140 * 512), pi_fields(ALL, 5, 9));
            let tuples = g.tuples(Kind::One, plain, &data);
            assert_eq!(g.write(5, &data, &tuples, plain).await, Status::SUCCESS);
            let compare = Command::Compare(g.access(5, 140, plain));
            assert_eq!(g.io(compare, 140).await, Status::SUCCESS);
            let failure = Status::COMPARE_FAILURE.with_dnr();
            let byte = BusAddr(g.data.0 + 135 * g.whole() as u64);
            g.w.raw.memory.write(byte, &[data[135 * 512] ^ 1]).unwrap();
            assert_eq!(g.io(compare, 140).await, failure);
            g.w.raw.memory.write(byte, &[data[135 * 512]]).unwrap();
            // Metadata without PI are compared as well.
            let own = BusAddr(g.beside.0 + 8 * 135);
            let tuple = if inline { BusAddr(byte.0 + 512) } else { own };
            g.w.raw.memory.write(tuple, &[1; 8]).unwrap();
            let expected = if kind == 0 { failure } else { Status::SUCCESS };
            assert_eq!(g.io(compare, 140).await, expected);
            if kind == 1 {
                g.w.medium.set_metadata(5 + 135, [1; 8]).unwrap();
                assert_eq!(g.io(compare, 140).await, Status::GUARD_CHECK_ERROR.with_dnr());
            }
        });
    }
}

#[test]
fn metadata_without_pi_are_stored_unchanged() {
    for inline in [false, true] {
        setup().run(async |w: World| {
            let mut g = formatted_as(w, true, 0, inline).await;
            let (data, beside) = (pattern(8, 3 * 4096), pattern(9, 24));
            // The controller inserts nothing and checks nothing.
            assert_eq!(g.write(1, &data, &beside, pi_fields(ACT, 77, 1)).await, Status::SUCCESS);
            assert_eq!(g.read(1, 3, pi_fields(ACT, 78, 2)).await, (Status::SUCCESS, data, beside));
        });
    }
}

/// The longest transfer includes inline metadata.
#[test]
fn inline_metadata_count_towards_mdts() {
    for inline in [false, true] {
        setup().run(async |w: World| {
            let mut g = formatted_as(w, true, 1, inline).await;
            let (most, plain, act) = (256, pi_fields(ALL, 0, 0), pi_fields(ACT, 0, 0));
            let limit = if inline { Status::INVALID_FIELD.with_dnr() } else { Status::SUCCESS };
            assert_eq!(g.read(0, most, plain).await.0, limit);
            assert_eq!(g.read(0, most - 1, plain).await.0, Status::SUCCESS);
            assert_eq!(g.read(0, most, act).await.0, Status::SUCCESS, "taken away");
        });
    }
}

#[test]
fn copy_carries_or_regenerates_pi() {
    setup().run(async |w: World| {
        let mut g = formatted(w, false, 1).await;
        let (data, plain) = (pattern(8, 4 * 512), pi_fields(ALL, 30, 5));
        let tuples = g.tuples(Kind::One, plain, &data);
        assert_eq!(g.write(30, &data, &tuples, plain).await, Status::SUCCESS);
        // Two ranges, the second first.
        let ranges = [(32, 2), (30, 2)].map(|(lba, blocks)| CopyRange {
            eilbrt: (lba as u32).into(),
            elbat: 5.into(),
            elbatm: 0xffff.into(),
            ..CopyRange::new(Lba(lba), blocks)
        });
        let at = g.w.raw.place(64, 64);
        g.w.raw.memory.write(at, ranges.as_bytes()).unwrap();
        let copy = async |g: &mut WithPi, source: u8, protection: Protection| {
            let command = Command::Copy(CopyTo {
                to: Lba(50),
                ranges: 2,
                format: 0,
                fua: false,
                limited_retry: false,
                source,
                protection,
            });
            let data = g.w.raw.data(at, 64);
            let request = Request { cid: g.w.raw.cid(), nsid: NS, data, command };
            let cqe = g.w.raw.run(&mut g.pair, &request.to_sqe()).await;
            (cqe.status(), cqe.dw0.get())
        };
        let anew = pi_fields(ACT, 50, 6);
        assert_eq!(copy(&mut g, 0xf, anew).await, (Status::SUCCESS, 0));
        let swapped = [&data[1024..], &data[..1024]].concat();
        let (status, found, beside) = g.read(50, 4, pi_fields(ALL, 50, 6)).await;
        assert!(status.is_ok() && found == swapped);
        assert_eq!(beside, g.tuples(Kind::One, anew, &swapped));
        // Copied unchanged, the PI carries another block's reference tag.
        let carried = pi_fields(ALL, 50, 5);
        let wrong = Status::REFERENCE_TAG_CHECK_ERROR.with_dnr();
        assert_eq!(copy(&mut g, 7, carried).await, (wrong, 0));
        let unchecked = Protection { checks: Checks::default(), ..carried };
        assert_eq!(copy(&mut g, 7, unchecked).await, (Status::SUCCESS, 0));
        let (status, _, beside) = g.read(50, 4, unchecked).await;
        assert!(status.is_ok());
        assert_eq!(beside, [&tuples[16..], &tuples[..16]].concat());
        assert_eq!(copy(&mut g, 0xf, carried).await, (Status::INVALID_FIELD.with_dnr(), 0));
        let invalid = Status::INVALID_PROTECTION_INFORMATION.with_dnr();
        assert_eq!(copy(&mut g, 0xf, pi_fields(ACT, 51, 5)).await, (invalid, 0));
        // The second range has corrupt PI.
        g.w.medium.set_metadata(31, [0; 8]).unwrap();
        assert_eq!(copy(&mut g, 0xf, anew).await, (Status::GUARD_CHECK_ERROR.with_dnr(), 1));
    });
}

/// A fused pair works on blocks with PI as on others.
#[test]
fn fused_compare_and_write_with_pi() {
    setup().run(async |w: World| {
        let mut g = formatted(w, true, 1).await;
        let (old, new) = (pattern(1, 4096), pattern(2, 4096));
        let plain = pi_fields(ALL, 3, 1);
        let tuples = g.tuples(Kind::One, plain, &old);
        assert_eq!(g.write(3, &old, &tuples, plain).await, Status::SUCCESS);
        let (second, act) = (g.w.raw.place(4096, 4096), pi_fields(ACT, 3, 2));
        g.w.raw.memory.write(second, &new).unwrap();
        let part = |g: &WithPi, fuse, at, command| {
            let data = g.w.raw.data(at, 4096);
            let sqe = Request { cid: g.w.raw.cid(), nsid: NS, data, command }.to_sqe();
            Sqe { flags: sqe.flags.with_fuse(fuse), ..sqe }
        };
        let first = part(&g, 1, g.data, Command::Compare(g.access(3, 1, plain)));
        let last = part(&g, 2, second, Command::Write(g.access(3, 1, act)));
        g.w.raw.store(&mut g.pair.sq, &first);
        g.w.raw.submit(&mut g.pair.sq, &last);
        for _ in 0..2 {
            assert_eq!(g.w.raw.next(&mut g.pair.cq).await.status(), Status::SUCCESS);
        }
        let (status, found, beside) = g.read(3, 1, pi_fields(ALL, 3, 2)).await;
        assert!(status.is_ok() && found == new);
        assert_eq!(beside, g.tuples(Kind::One, act, &new));
    });
}

/// Random PI fields and metadata addresses: every command ends, and data written afterwards read back.
#[test]
fn random_pi_fields_end_and_data_stay_readable() {
    for seed in 0..16 {
        setup().run(async |w: World| {
            let mut rng = Rng::for_part(seed, "protection");
            let inline = seed >= 8;
            let mut g = formatted_as(w, seed % 2 == 1, (seed % 4) as u8, inline).await;
            let (beside, mut well) = (g.beside, 0);
            for _ in 0..300 {
                let word = rng.next_u64();
                let (tag, mask) = ((word >> 32) as u16, (word >> 48) as u16);
                let lba = rng.below(64);
                let reference = if rng.below(2) == 0 { lba } else { word } as u32;
                let pi_fields = Protection::of_range(word as u8 & 0xf, reference, tag, mask);
                g.beside = match rng.below(4) {
                    0 => BusAddr(rng.next_u64()),
                    1 => BusAddr(beside.0 + rng.below(64)),
                    _ => beside,
                };
                let blocks = 1 + rng.below(20) as u32;
                let access = g.access(lba, blocks, pi_fields);
                let commands = [Command::Read, Command::Write, Command::Compare, Command::Verify];
                let command = commands[rng.below(4) as usize](access);
                well += u32::from(g.io(command, blocks).await.is_ok());
            }
            assert!(well > 20, "{well} commands went well");
            g.beside = beside;
            let act = Protection { checks: Checks::default(), ..pi_fields(ACT, 9, 1) };
            let data = pattern(seed, 4 * g.block);
            let beside: &[u8] = if g.makes { &[] } else { &[0; 32] };
            assert_eq!(g.write(9, &data, beside, act).await, Status::SUCCESS);
            let (status, found, _) = g.read(9, 4, act).await;
            assert!(status.is_ok() && found == data);
        });
    }
}

/// Namespaces without metadata ignore PI fields.
#[test]
fn pi_fields_are_ignored_without_metadata() {
    setup().run(async |mut w: World| {
        let pair = w.raw.up().await;
        let (data, beside) = (w.raw.place(4096, 4096), BusAddr(3));
        let (lists, inline, makes) = (false, false, true);
        let mut g = WithPi { w, pair, data, beside, block: 512, lists, inline, makes };
        let odd = Protection { act: true, ..pi_fields(ALL, 99, 1) };
        for make in [Command::Write, Command::Read, Command::Compare, Command::Verify] {
            let command = make(g.access(8, 1, odd));
            assert_eq!(g.io(command, 1).await, Status::SUCCESS, "{command:?}");
        }
        let sqe = io::read(g.w.raw.cid(), NS, Lba(8), 1, false, g.w.raw.data(data, 512));
        assert_eq!(g.w.raw.run(&mut g.pair, &sqe).await.status(), Status::SUCCESS);
    });
}

/// A sanitize erases all metadata, and any later block write clears Global Data Erased.
#[test]
fn sanitize_erases_metadata_until_next_write() {
    const ERASED: u16 = SanitizeStatus::GLOBAL_DATA_ERASED;
    Setup { sanitizes: true, ..setup() }.run(async |w: World| {
        let mut g = formatted(w, false, Kind::One as u8).await;
        let data = pattern(5, g.block);
        for zeroes in [false, true] {
            let act = pi_fields(ACT, 5, 0xbeef);
            assert_eq!(g.write(5, &data, &[0; 8], act).await, Status::SUCCESS);
            assert_eq!(sanitizes::ask(&mut g.w, Sanitize::default()).await, Status::SUCCESS);
            assert_ne!(sanitizes::ended(&mut g.w).await.status.get() & ERASED, 0);
            let (status, found, beside) = g.read(5, 1, pi_fields(ALL, 5, 0xbeef)).await;
            assert_eq!((status, found, beside), (Status::SUCCESS, vec![0; g.block], vec![0xff; 8]));
            assert_ne!(sanitizes::log(&mut g.w).await.status.get() & ERASED, 0, "only read");
            let status = if zeroes {
                let access = g.access(5, 1, act);
                g.io(Command::WriteZeroes(WriteZeroes { access, deallocate: false }), 0).await
            } else {
                g.write(5, &data, &[0; 8], act).await
            };
            assert_eq!(status, Status::SUCCESS);
            assert_eq!(sanitizes::log(&mut g.w).await.status.get() & ERASED, 0, "{zeroes}");
        }
    });
}
