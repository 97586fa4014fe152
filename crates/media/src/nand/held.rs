//! Contents of all blocks, in chunks that forks share until they change: a run on a copy of a large drive
//! changes few of its blocks, or none.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::Held;

/// Blocks of a chunk.
const CHUNK: usize = 64;

#[derive(Clone)]
pub(super) struct Contents {
    chunks: Vec<Arc<[Held]>>,
    len: u32,
}

impl Contents {
    pub(super) fn new(blocks: impl IntoIterator<Item = Held>) -> Contents {
        let all: Vec<Held> = blocks.into_iter().collect();
        Contents { len: all.len() as u32, chunks: all.chunks(CHUNK).map(Arc::from).collect() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }

    pub(super) fn bytes(&self) -> usize {
        self.len as usize * size_of::<Held>()
    }
}

impl Index<u32> for Contents {
    type Output = Held;

    #[inline]
    fn index(&self, block: u32) -> &Held {
        &self.chunks[block as usize / CHUNK][block as usize % CHUNK]
    }
}

impl IndexMut<u32> for Contents {
    #[inline]
    fn index_mut(&mut self, block: u32) -> &mut Held {
        &mut Arc::make_mut(&mut self.chunks[block as usize / CHUNK])[block as usize % CHUNK]
    }
}
