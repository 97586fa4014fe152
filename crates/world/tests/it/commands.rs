//! Driver commands Write Zeroes, Compare, Verify, Copy, Write Uncorrectable and fused Compare and Write.

use std::rc::Rc;

use bus::sim::SimHost;
use host::nvme::Queue;
use host::{BlockDevice, Kind};
use runtime::{Log, Rng};
use testing::{controller, in_sim, plan, queue};
use wire::Lba;
use world::interfaces::NVME;

type Disk = Rc<Queue<SimHost>>;

/// A plan with a namespace of 16 MiB that keeps all bytes, with this type of protection information.
fn small(protection: &str) -> plan::Plan {
    let sets = [
        ("device.protection", protection),
        ("medium.keep", "everything"),
        ("medium.capacity", "16 MiB"),
    ];
    plan("gen4", &sets)
}

/// A buffer of blocks, each filled with its byte of `fills`.
fn blocks_of(disk: &Disk, fills: &[u8]) -> host::Buffer {
    let block = disk.geometry().block_bytes as usize;
    let buffer = disk.buffer(fills.len() * block).expect("host memory");
    for (place, fill) in fills.iter().enumerate() {
        buffer.copy_in(place * block, &vec![*fill; block]);
    }
    buffer
}

async fn write(disk: &Disk, lba: u64, fills: &[u8]) {
    disk.write(Lba(lba), blocks_of(disk, fills), false).await.1.expect("a write");
}

/// Reads blocks and returns the fill byte of each.
async fn read(disk: &Disk, lba: u64, blocks: usize) -> Result<Vec<u8>, Kind> {
    let (buffer, result) = disk.read(Lba(lba), blocks_of(disk, &vec![0xee; blocks])).await;
    result.map_err(|error| error.kind)?;
    let mut bytes = vec![0; buffer.bytes()];
    buffer.copy_out(0, &mut bytes);
    let block = disk.geometry().block_bytes as usize;
    let fill = |bytes: &[u8]| {
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a block of several fills");
        bytes[0]
    };
    Ok(bytes.chunks(block).map(fill).collect())
}

/// Fill bytes of blocks, and whether they are marked uncorrectable.
struct Model {
    fills: Vec<u8>,
    lost: Vec<bool>,
}

impl Model {
    fn set(&mut self, at: std::ops::Range<usize>, fills: &[u8]) {
        self.fills[at.clone()].copy_from_slice(fills);
        self.lost[at].fill(false);
    }

    fn is_lost(&self, at: std::ops::Range<usize>) -> bool {
        self.lost[at].iter().any(|lost| *lost)
    }
}

const BLOCKS: usize = 32;

/// Runs one random command on the device and the model.
async fn step(disk: &Disk, model: &mut Model, rng: &mut Rng, protected: bool) {
    let below = |rng: &mut Rng, most: usize| rng.below(most as u64) as usize;
    let first = below(rng, BLOCKS);
    let blocks = 1 + below(rng, (BLOCKS - first).min(9));
    let at = first..first + blocks;
    let (lba, count) = (Lba(first as u64), blocks as u32);
    let lost = model.is_lost(at.clone());
    match rng.below(8) {
        0 => {
            let fills: Vec<u8> = at.clone().map(|_| 1 + rng.below(255) as u8).collect();
            write(disk, lba.0, &fills).await;
            model.set(at, &fills);
        }
        1 => {
            disk.write_zeroes(lba, count, rng.below(2) == 0).await.expect("zeros");
            model.set(at, &vec![0; blocks]);
        }
        2 => {
            let mut fills = model.fills[at].to_vec();
            let differ = rng.below(2) == 0;
            fills[below(rng, blocks)] ^= u8::from(differ);
            let (_, equal) = disk.compare(lba, blocks_of(disk, &fills)).await;
            match equal {
                Ok(equal) => assert!(!lost && equal != differ, "{lba}, {blocks}"),
                Err(error) if protected => assert_eq!(error.kind, Kind::Unsupported),
                Err(error) => assert!(lost && error.kind == Kind::MediaFailed, "{error}"),
            }
        }
        3 => {
            let verified = disk.verify(lba, count).await.map_err(|error| error.kind);
            assert_eq!(verified, if lost { Err(Kind::MediaFailed) } else { Ok(()) });
        }
        6 => {
            // The fused pair has one block.
            let (expected, new) = (model.fills[first], 1 + rng.below(255) as u8);
            let differ = rng.below(2) == 0;
            let with = blocks_of(disk, &[expected ^ u8::from(differ)]);
            let pair = disk.compare_and_write(lba, with, blocks_of(disk, &[new]), false).await;
            let lost = model.is_lost(first..first + 1);
            match pair.1 {
                Ok(written) => {
                    assert!(!lost && written != differ, "{lba}");
                    model.fills[first] = if written { new } else { expected };
                }
                Err(error) if protected => assert_eq!(error.kind, Kind::Unsupported),
                Err(error) => assert!(lost && error.kind == Kind::MediaFailed, "{error}"),
            }
        }
        4 => {
            disk.write_uncorrectable(lba, count).await.expect("marks");
            model.lost[at].fill(true);
        }
        5 => {
            let to = below(rng, BLOCKS - blocks + 1);
            let copied = disk.copy(lba, count, Lba(to as u64)).await.map_err(|error| error.kind);
            let expected = match (protected, to.abs_diff(first) < blocks, lost) {
                (true, ..) => Err(Kind::Unsupported),
                (_, true, _) => Err(Kind::Refused),
                (.., true) => Err(Kind::MediaFailed),
                _ => Ok(()),
            };
            assert_eq!(copied, expected, "{blocks} from {first} to {to}");
            if copied.is_ok() {
                let fills = model.fills[at].to_vec();
                model.set(to..to + blocks, &fills);
            }
        }
        _ => {
            let expected = if lost { Err(Kind::MediaFailed) } else { Ok(model.fills[at].to_vec()) };
            assert_eq!(read(disk, lba.0, blocks).await, expected, "{blocks} from {first}");
        }
    }
}

/// Random scripts compared with a model, with and without protection information, with a reset.
#[test]
fn random_commands_match_model() {
    for (seed, protection) in [(1, "0"), (2, "0"), (3, "1"), (4, "2"), (5, "3")] {
        in_sim(NVME, &small(protection), Log::Off, async |_, driver, _| {
            let disk = queue(&driver);
            let mut rng = Rng::new(seed);
            let mut model = Model { fills: vec![0; BLOCKS], lost: vec![false; BLOCKS] };
            write(&disk, 0, &[0; BLOCKS]).await;
            for number in 0..400 {
                if number == 200 {
                    controller(&driver).reset().await.expect("a reset");
                }
                step(&disk, &mut model, &mut rng, protection != "0").await;
            }
        });
    }
}

/// Commands above the length limit are split, and an error names the LBA of the piece.
#[test]
fn long_commands_are_split() {
    in_sim(NVME, &small("0"), Log::Off, async |_, driver, _| {
        let disk = queue(&driver);
        let all = disk.geometry().blocks;
        let (half, last) = (all / 2, all - 1);
        write(&disk, 0, &[7]).await;
        write(&disk, half - 1, &[8]).await;
        disk.copy(Lba(0), half as u32, Lba(half)).await.expect("half of it, to the other half");
        assert_eq!(read(&disk, half, 1).await, Ok(vec![7]));
        assert_eq!(read(&disk, last, 1).await, Ok(vec![8]));
        disk.write_uncorrectable(Lba(last), 1).await.expect("a mark");
        let error = disk.verify(Lba(0), all as u32).await.expect_err("the last is marked");
        let piece = error.lba.expect("which piece").0;
        assert!(error.kind == Kind::MediaFailed && piece > 0 && piece <= last, "{error}");
        disk.write_zeroes(Lba(0), all as u32, true).await.expect("zeros");
        disk.verify(Lba(0), all as u32).await.expect("marks go with a write");
        for lba in [0, half - 1, half, last] {
            assert_eq!(read(&disk, lba, 1).await, Ok(vec![0]));
        }
    });
}

#[test]
fn invalid_commands_are_rejected_before_submission() {
    in_sim(NVME, &small("0"), Log::Off, async |_, driver, _| {
        let disk = queue(&driver);
        let end = disk.geometry().blocks;
        let before = disk.counters();
        let kind = |result: Result<(), host::IoError>| result.expect_err("refused").kind;
        assert_eq!(kind(disk.write_zeroes(Lba(end - 1), 2, false).await), Kind::OutOfRange);
        assert_eq!(kind(disk.verify(Lba(u64::MAX), 2).await), Kind::OutOfRange);
        assert_eq!(kind(disk.write_uncorrectable(Lba(0), 0).await), Kind::Refused);
        assert_eq!(kind(disk.copy(Lba(0), 2, Lba(end - 1)).await), Kind::OutOfRange);
        assert_eq!(kind(disk.copy(Lba(4), 2, Lba(5)).await), Kind::Refused);
        let (_, compared) = disk.compare(Lba(end), blocks_of(&disk, &[1])).await;
        assert_eq!(kind(compared.map(drop)), Kind::OutOfRange);
        let pair = async |lba, with: &[u8], from: &[u8]| {
            let (with, from) = (blocks_of(&disk, with), blocks_of(&disk, from));
            kind(disk.compare_and_write(Lba(lba), with, from, false).await.1.map(drop))
        };
        assert_eq!(pair(end, &[1], &[2]).await, Kind::OutOfRange);
        assert_eq!(pair(0, &[1], &[2, 3]).await, Kind::Refused);
        assert_eq!(pair(0, &[1, 1], &[2, 3]).await, Kind::Unsupported, "ACWU is of one block");
        assert_eq!(format!("{before:?}"), format!("{:?}", disk.counters()), "nothing was sent");
    });
}
