//! Random operations on the contents, compared with an oracle that maps blocks to bytes.

use crate::common::Scratch;
use media::contents::{Backing, Contents, Error, Keep, Spec};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// An operation at a block over some blocks, which may reach past the end.
#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64, u8),
    WriteRuns(u64, u64, u8),
    WriteStamp(u64, [u8; 8]),
    Read(u64, u64),
    Discard(u64, u64),
    Flush,
    Reopen,
}

/// A medium and its oracle. Zero blocks are absent from the oracle.
struct Pair {
    contents: Option<Contents>,
    spec: Spec,
    oracle: BTreeMap<u64, Vec<u8>>,
}

/// Bytes that identify block, offset in the block and seed, and are sometimes all zero.
fn data(block: u64, blocks: u64, block_bytes: u32, seed: u8) -> Vec<u8> {
    let mut bytes = vec![seed; (blocks * u64::from(block_bytes)) as usize];
    for (i, bytes) in bytes.chunks_mut(256).enumerate() {
        if seed != 0 {
            let place = block * u64::from(block_bytes) + i as u64 * 256;
            bytes[..8].copy_from_slice(&place.to_le_bytes());
        }
    }
    bytes
}

impl Pair {
    fn new(spec: Spec) -> Pair {
        Pair { contents: Some(Contents::new(spec.clone()).unwrap()), spec, oracle: BTreeMap::new() }
    }

    fn blocks(&self) -> u64 {
        self.spec.capacity_bytes / u64::from(self.spec.block_bytes)
    }

    /// Applies an accepted write to the oracle.
    fn remember(&mut self, block: u64, bytes: &[u8]) {
        for (i, bytes) in bytes.chunks(self.spec.block_bytes as usize).enumerate() {
            let mut bytes = bytes.to_vec();
            if self.spec.keep == Keep::Stamps {
                bytes[8..].fill(0);
            }
            self.oracle.insert(block + i as u64, bytes);
        }
    }

    fn expected(&self, block: u64, blocks: u64) -> Vec<u8> {
        let zeros = vec![0; self.spec.block_bytes as usize];
        (block..block + blocks)
            .flat_map(|block| self.oracle.get(&block).unwrap_or(&zeros).clone())
            .collect()
    }

    /// Reads the range by every method, and compares.
    fn compare(&self, block: u64, blocks: u64) -> Result<(), TestCaseError> {
        let contents = self.contents.as_ref().unwrap();
        let size = self.spec.block_bytes;
        let expected = self.expected(block, blocks);
        let offset = block * u64::from(size);
        let mut seen = vec![0xee; expected.len()];
        contents.read_into(offset, &mut seen).unwrap();
        prop_assert!(seen == expected, "read_into at block {}", block);

        seen.fill(0);
        let (mut next, mut lent) = (0, 0);
        contents
            .runs(offset, expected.len() as u32, &mut |at, run| {
                assert_eq!(at as usize, next, "in order, and every block");
                seen[at as usize..][..run.len()].copy_from_slice(run);
                next = at as usize + if run.len() == 8 { size as usize } else { run.len() };
                lent += run.len();
            })
            .unwrap();
        prop_assert!(seen == expected, "runs at block {}", block);
        let kept = if self.spec.keep == Keep::Stamps { 8 } else { u64::from(size) };
        prop_assert_eq!(lent as u64, blocks * kept);
        for block in block..block + blocks {
            let stamp = contents.read_stamp(block).unwrap();
            prop_assert_eq!(&stamp[..], &self.expected(block, 1)[..8]);
        }
        Ok(())
    }

    /// Executes the operation; returns the result of the contents.
    fn act(&mut self, op: &Op) -> Result<Result<(), Error>, TestCaseError> {
        let size = self.spec.block_bytes;
        let offset = |block: u64| block * u64::from(size);
        let all = self.blocks();
        let contents = self.contents.as_mut().unwrap();
        Ok(match *op {
            Op::Write(block, blocks, seed) => {
                let bytes = data(block, blocks, size, seed);
                let done = contents.write(offset(block), &bytes);
                done.map(|()| self.remember(block, &bytes))
            }
            Op::WriteRuns(block, blocks, seed) => {
                let bytes = data(block, blocks, size, seed);
                let done =
                    contents.write_runs(offset(block), bytes.len() as u32, &mut |at, run| {
                        run.copy_from_slice(&bytes[at as usize..][..run.len()]);
                    });
                done.map(|()| self.remember(block, &bytes))
            }
            Op::WriteStamp(block, stamp) => {
                let mut bytes = vec![0; size as usize];
                bytes[..8].copy_from_slice(&stamp);
                contents.write_stamp(block, stamp).map(|()| self.remember(block, &bytes))
            }
            Op::Read(block, blocks) if block + blocks <= all => {
                self.compare(block, blocks)?;
                Ok(())
            }
            Op::Read(block, blocks) => {
                contents.read_into(offset(block), &mut vec![0; offset(blocks) as usize])
            }
            Op::Discard(block, blocks) => {
                contents.discard(offset(block), offset(blocks)).map(|()| {
                    self.oracle.retain(|at, _| !(block..block + blocks).contains(at));
                })
            }
            Op::Flush => contents.flush(),
            Op::Reopen => {
                if self.spec.backing != Backing::Memory {
                    self.contents = None;
                    self.contents = Some(Contents::new(self.spec.clone()).unwrap());
                }
                Ok(())
            }
        })
    }

    fn run(&mut self, ops: &[Op]) -> Result<(), TestCaseError> {
        let empty = self.contents.as_ref().unwrap().allocated_bytes();
        let all = self.blocks();
        for op in ops {
            let reach = match *op {
                Op::Write(block, blocks, _) | Op::WriteRuns(block, blocks, _) => block + blocks,
                Op::Read(block, blocks) | Op::Discard(block, blocks) => block + blocks,
                Op::WriteStamp(block, _) => block + 1,
                Op::Flush | Op::Reopen => 0,
            };
            match self.act(op)? {
                Ok(()) => prop_assert!(reach <= all, "{:?} reaches past {} blocks", op, all),
                Err(Error::OutOfRange { .. }) => prop_assert!(reach > all, "{:?} fits", op),
                Err(error) => return Err(TestCaseError::fail(format!("{op:?}: {error}"))),
            }
        }
        let written: Vec<u64> = self.oracle.keys().copied().collect();
        for block in written {
            self.compare(block, 1)?;
        }
        let contents = self.contents.as_mut().unwrap();
        contents.discard(0, self.spec.capacity_bytes).unwrap();
        if self.spec.backing == Backing::Memory {
            prop_assert_eq!(contents.allocated_bytes(), empty, "everything was freed");
        }
        self.oracle.clear();
        for op in ops {
            if let Op::Write(block, blocks, _) | Op::WriteRuns(block, blocks, _) = *op {
                self.compare(block.min(all), blocks.min(all - block.min(all)))?;
            }
        }
        Ok(())
    }
}

/// Blocks near boundaries, so that operations overlap each other and boundaries.
fn block(edges: Vec<u64>) -> impl Strategy<Value = u64> {
    (prop::sample::select(edges), 0..40_u64)
        .prop_map(|(edge, near)| (edge + near).saturating_sub(20))
}

fn op(edges: Vec<u64>, lengths: Range<u64>) -> impl Strategy<Value = Op> {
    let at = block(edges);
    let some = prop_oneof![9 => 0..8_u64, 1 => lengths];
    (0..13_u8, at, some, any::<u8>(), any::<[u8; 8]>()).prop_map(
        move |(kind, block, blocks, seed, stamp)| match kind {
            0..3 => Op::Write(block, blocks, seed),
            3..5 => Op::WriteRuns(block, blocks, seed),
            5 => Op::WriteStamp(block, stamp),
            6..9 => Op::Read(block, blocks),
            9 | 10 => Op::Discard(block, blocks),
            11 => Op::Flush,
            _ => Op::Reopen,
        },
    )
}

/// Bytes of contents in a leaf and on a shelf of the sparse array, and in a region of an image, used to
/// generate boundaries.
const LEAF: u64 = 64 << 10;
const SHELF: u64 = LEAF * 2048;
const REGION: u64 = 64 << 20;

/// A medium of a little over two shelves, ending in the middle of a leaf, and operations near its boundaries.
fn cases(keep: Keep, block_bytes: u32) -> (u64, impl Strategy<Value = Vec<Op>>) {
    let kept = if keep == Keep::Stamps { 8 } else { u64::from(block_bytes) };
    let blocks = (2 * SHELF + LEAF) / kept + 5;
    let edges = [0, LEAF, REGION, SHELF, SHELF + LEAF, 2 * SHELF, 2 * SHELF + LEAF]
        .map(|edge| edge / kept)
        .into_iter()
        .chain([blocks])
        .collect();
    // Up to more than two leaves at once, unless that takes millions of blocks.
    let longest = if keep == Keep::Stamps { 300 } else { (5 * LEAF / 2) / kept };
    let ops = prop::collection::vec(op(edges, 0..longest), 1..40);
    (blocks * u64::from(block_bytes), ops)
}

fn check(
    keep: Keep,
    block_bytes: u32,
    backing: impl Fn() -> (Backing, Option<Scratch>),
    times: u32,
) {
    let (capacity_bytes, ops) = cases(keep, block_bytes);
    let config = ProptestConfig { cases: times, failure_persistence: None, ..Default::default() };
    proptest!(config, |(ops in ops)| {
        let (backing, scratch) = backing();
        let spec = Spec { capacity_bytes, block_bytes, keep, backing };
        let result = Pair::new(spec).run(&ops);
        drop(scratch);
        result?;
    });
}

fn memory() -> (Backing, Option<Scratch>) {
    (Backing::Memory, None)
}

fn file() -> (Backing, Option<Scratch>) {
    let scratch = Scratch::new("oracle");
    (Backing::File(scratch.join("image")), Some(scratch))
}

/// With the least memory: sectors leave it all the time.
fn bounded() -> (Backing, Option<Scratch>) {
    let scratch = Scratch::new("oracle");
    (Backing::Bounded { path: scratch.join("image"), resident_bytes: 0 }, Some(scratch))
}

#[test]
fn memory_contents_match_oracle() {
    check(Keep::Everything, 4096, memory, 96);
    check(Keep::Everything, 512, memory, 96);
}

#[test]
fn memory_stamps_match_oracle() {
    check(Keep::Stamps, 4096, memory, 96);
    check(Keep::Stamps, 512, memory, 96);
}

#[test]
fn file_contents_match_oracle() {
    check(Keep::Everything, 4096, file, 12);
    check(Keep::Everything, 512, file, 12);
}

#[test]
fn bounded_file_contents_match_oracle() {
    check(Keep::Everything, 4096, bounded, 12);
    check(Keep::Everything, 512, bounded, 12);
}

/// Bytes of whole 512-byte blocks.
fn blocks(max: u64) -> impl Strategy<Value = u64> {
    (0..=max).prop_map(|blocks| blocks * 512)
}

proptest! {
    #[test]
    fn arbitrary_offsets_and_lengths_succeed_or_fail_cleanly(
        offset in prop_oneof![any::<u64>(), blocks(u64::MAX / 512), blocks(500)],
        bytes in prop_oneof![0..300_000_u64, blocks(u64::from(u32::MAX) / 512), blocks(300)],
        stamps in any::<bool>(),
    ) {
        let keep = if stamps { Keep::Stamps } else { Keep::Everything };
        let (capacity_bytes, block_bytes) = (200_704, 512);
        let backing = Backing::Memory;
        let mut contents =
            Contents::new(Spec { capacity_bytes, block_bytes, keep, backing }).unwrap();
        let aligned = offset % 512 == 0 && bytes % 512 == 0;
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= capacity_bytes);
        let mut lent = 0;
        let answers = [
            contents.runs(offset, bytes as u32, &mut |_, run| lent += run.len()),
            contents.write_runs(offset, bytes as u32, &mut |_, run| run.fill(1)),
            contents.discard(offset, bytes),
        ];
        for answer in answers {
            match answer {
                Ok(()) => prop_assert!(aligned && fits),
                Err(Error::Unaligned { .. }) => prop_assert!(!aligned),
                Err(Error::OutOfRange { .. }) => prop_assert!(aligned && !fits),
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
        let kept = if stamps { bytes / 64 } else { bytes };
        prop_assert_eq!(lent as u64, if aligned && fits { kept } else { 0 });
    }
}
