//! Rows of all blocks at once, for a mount, which looks at a page of each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::rows::{Form, Memory, Packed};
use super::state::Source;
use super::{Held, Nand};
use crate::huge;

/// Most bytes of the file whose rows share a piece of memory.
const PIECE_BYTES: u64 = 64 << 20;

impl Nand {
    /// Reads the packed rows of all blocks that are in the state's file, on all cores, into huge pages. A
    /// piece of memory is freed with the last of its blocks, so this is for flash that others are copied
    /// from. Blocks that cannot be read stay in the file: a later access says why.
    pub fn load_rows(&mut self) {
        let Some(source) = self.source.clone() else { return };
        let stored = (0..).zip(self.held.iter()).filter(|(_, held)| matches!(held, Held::Stored));
        let stored = stored.map(|(block, _)| block);
        let stored: Vec<u32> = stored.filter(|block| source.place(*block).packed).collect();
        let (pieces, next) = (pieces(&source, &stored), AtomicUsize::new(0));
        let width = self.tables.width;
        let work = || {
            let (mut loaded, mut bytes) = (Vec::new(), Vec::new());
            while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                load(&source, piece, width, &mut bytes, &mut loaded);
            }
            loaded
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
        let loaded: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        for (block, packed) in loaded {
            self.held[block] = Held::Packed(packed);
        }
    }
}

/// The blocks of each piece.
fn pieces<'b>(source: &Source, mut blocks: &'b [u32]) -> Vec<&'b [u32]> {
    let mut pieces = Vec::new();
    while !blocks.is_empty() {
        let mut left = PIECE_BYTES;
        let fits = |block: &&u32| {
            let rest = left.checked_sub(source.place(**block).bytes);
            left = rest.unwrap_or(0);
            rest.is_some()
        };
        let count = blocks.iter().take_while(fits).count().max(1);
        let (piece, rest) = blocks.split_at(count);
        pieces.push(piece);
        blocks = rest;
    }
    pieces
}

/// Appends the blocks of a piece whose rows are valid. `bytes` is scratch memory, which the CPU caches keep.
fn load(
    source: &Source,
    piece: &[u32],
    width: usize,
    bytes: &mut Vec<u8>,
    loaded: &mut Vec<(u32, Packed)>,
) {
    let most: u64 = piece.iter().map(|block| source.place(*block).bytes).sum();
    let (mut memory, mut end) = huge::zeros(most as usize);
    let mut forms = Vec::new();
    for block in piece {
        if source.read_bytes(*block, bytes).is_ok()
            && let Some((form, packed)) = Form::of(bytes, width, source.place(*block).rows)
        {
            memory[end..end + packed.len()].copy_from_slice(packed);
            forms.push((*block, end as u32, form));
            end += packed.len();
        }
    }
    let memory = Arc::new(Memory::Shared(memory));
    let packed = |(block, begin, form)| (block, Packed::new(Arc::clone(&memory), begin, form));
    loaded.extend(forms.into_iter().map(packed));
}
