//! Everything is erased, and the drive is as new but for its wear.
//!
//! The tasks are stopped first, those before which others wait last. Then a root says that nothing counts,
//! so that a mount in the midst of it finds an empty map and not half of the old one; then all blocks are
//! erased, superblock by superblock, those of one on all dies at the same time; and at last another root
//! keeps the wear, since no row is left that would, and the blocks of older roots are erased behind it.

use alloc::rc::Rc;
use alloc::vec::Vec;

use runtime::Span;

use crate::ftl::{Ftl, Inner};
use crate::layout::{NONE, WritePointer};
use crate::options::Error;
use crate::pages::{Erase, Page, Pages};
use crate::state::State;

/// Tasks by the order in which they are stopped: each waits for none of those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    Keeper,
    Mapper,
    Eraser,
    Collector,
    Die,
}

/// How many kinds there are.
pub(crate) const TASKS: usize = 5;

/// What [`Ftl::purge`] takes where nothing has to be waited for and nothing fails: the dies work at the same
/// time.
pub fn purge_time<P: Pages>(pages: &P) -> Option<Span> {
    pages.erase_time().map(|erase| erase * u64::from(pages.shape().blocks))
}

impl<P: Pages> Ftl<P> {
    /// Erases every block, retired ones as far as they can be: what the host sees then reads as zeros, and no
    /// page holds anything of it. `progress` is told how many superblocks of how many are done. Nobody else
    /// may use the drive meanwhile.
    ///
    /// If the power fails before it returns, a mount finds the drive in order, whatever blocks then hold:
    /// to be called again.
    ///
    /// # Errors
    /// [`Error::WornOut`]: there is no space any more; the drive can be read, and no more.
    pub async fn purge(&self, progress: &mut dyn FnMut(u32, u32)) -> Result<(), Error> {
        let inner = &self.0;
        inner.stop().await?;
        inner.write_empty_root().await;
        inner.begin_anew();
        let all = inner.layout.shape.blocks;
        for superblock in 0..all {
            inner.erase_whole(superblock).await;
            progress(superblock + 1, all);
        }
        inner.keep_wear().await;
        inner.stopped.set(None);
        inner.spawn_tasks();
        Ok(inner.pages.persist()?)
    }
}

impl<P: Pages> Inner<P> {
    /// Whether tasks of this kind are to end.
    #[inline]
    pub fn ends(&self, task: Task) -> bool {
        self.stopped.get().is_some_and(|last| task <= last)
    }

    /// A task begins; it counts until it ends.
    pub fn run(self: &Rc<Self>, task: Task, life: impl Future<Output = ()> + 'static) {
        let running = &self.running[task as usize];
        running.set(running.get() + 1);
        let inner = self.clone();
        self.rt.spawn(async move {
            life.await;
            let running = &inner.running[task as usize];
            running.set(running.get() - 1);
            inner.landed.notify(&inner.rt);
        });
    }

    /// Returns when no task runs any more.
    async fn stop(&self) -> Result<(), Error> {
        for task in [Task::Keeper, Task::Mapper, Task::Eraser, Task::Collector, Task::Die] {
            self.stopped.set(Some(task));
            self.collect.notify(&self.rt);
            self.mapped.notify(&self.rt);
            self.dies.iter().for_each(|die| die.notify(&self.rt));
            loop {
                let seen = self.landed.version();
                if self.state.borrow().worn_out {
                    return Err(Error::WornOut);
                }
                if self.running[task as usize].get() == 0 {
                    break;
                }
                self.landed.changed(&self.rt, seen).await;
            }
        }
        Ok(())
    }

    /// From now on a mount finds an empty map.
    async fn write_empty_root(&self) {
        self.free_slots();
        let root = {
            let mut state = self.state.borrow_mut();
            let from = state.next_sequence;
            let mut root = state.begin_checkpoint();
            root.from = from;
            root.chunks.resize(state.chunks.len(), NONE);
            root
        };
        if !self.write_root(&root).await {
            // An older one would lead to what is erased.
            self.erase_roots(None).await;
        }
    }

    /// Nothing waits to be written.
    fn free_slots(&self) {
        let slots = self.state.borrow().buffer.slots.len() as u32;
        for slot in (0..slots).filter(|slot| self.pages.kept(*slot).is_some()) {
            self.free_slot(slot);
        }
    }

    /// Nothing is known any more but wear, and what was counted.
    fn begin_anew(&self) {
        let mut state = self.state.borrow_mut();
        for superblock in 0..self.layout.shape.blocks {
            for die in 0..self.layout.shape.dies {
                let doomed = state.supers.doomed(superblock, die);
                self.retire(&mut state, superblock, die, doomed);
            }
        }
        state.empty(&*self.pages);
        drop(state);
        self.named.notify(&self.rt);
    }

    fn retire(&self, state: &mut State, superblock: u32, die: u32, planes: u32) {
        for plane in (0..self.layout.shape.planes).filter(|plane| planes >> plane & 1 != 0) {
            self.pages.mark_bad(Page { die, plane, block: superblock, page: 0 });
            state.counters.retired += 1;
        }
    }

    /// All blocks of this number but those of roots.
    async fn erase_whole(&self, superblock: u32) {
        let shape = self.layout.shape;
        let mut erases: Vec<Erase> = Vec::new();
        for die in 0..shape.dies {
            let planes = (u32::MAX >> (32 - shape.planes)) & !self.layout.of_roots(superblock, die);
            if planes != 0 {
                let blocks =
                    self.layout.row(WritePointer { superblock, group: 0, die }, planes).blocks;
                erases.push(Erase { blocks, failed: 0 });
            }
        }
        let is_used = self.state.borrow_mut().supers.take(superblock);
        if !erases.is_empty() {
            self.pages.erase(&mut erases).await;
        }
        let mut state = self.state.borrow_mut();
        for erase in erases {
            let die = erase.blocks.die;
            let failed = erase.failed & state.supers.members(superblock, die);
            self.retire(&mut state, superblock, die, failed);
            state.supers.drop_members(superblock, die, failed);
        }
        if is_used {
            state.erased(superblock);
        }
    }

    /// A root, in another block than the last, and nothing in any other.
    async fn keep_wear(&self) {
        let root = {
            let mut state = self.state.borrow_mut();
            state.root.group = self.layout.groups;
            let mut root = state.begin_checkpoint();
            root.chunks.resize(state.chunks.len(), NONE);
            root
        };
        if self.write_root(&root).await {
            self.state.borrow_mut().counters.checkpoints += 1;
            let at = self.state.borrow().root.block;
            self.erase_roots(Some(at)).await;
        }
    }

    /// Erases the blocks of roots, but for this one.
    async fn erase_roots(&self, but: Option<u32>) {
        let blocks = (0..self.layout.system_blocks()).filter(|at| Some(*at) != but);
        for block in blocks.map(|at| self.layout.system_block(at)) {
            if self.pages.is_bad(block) {
                continue;
            }
            let write_pointer = WritePointer { superblock: block.block, group: 0, die: block.die };
            let blocks = self.layout.row(write_pointer, 1 << block.plane).blocks;
            let mut erase = [Erase { blocks, failed: 0 }];
            self.pages.erase(&mut erase).await;
            if erase[0].failed != 0 {
                self.pages.mark_bad(block);
            }
        }
    }
}

impl State {
    /// As before the first mount, on this flash.
    fn empty<P: Pages>(&mut self, pages: &P) {
        let slots = self.buffer.slots.len() as u32;
        let mut new = State::new(pages, self.layout, &self.options, slots);
        for (one, old) in new.supers.all.iter_mut().zip(&self.supers.all) {
            one.erases = old.erases;
        }
        new.supers.most_erases = self.supers.most_erases;
        new.next_sequence = self.next_sequence;
        new.next_note = self.next_note;
        new.counters = self.counters;
        new.rows_at_checkpoint = self.counters.rows;
        new.root = self.root;
        new.rng = self.rng.clone();
        new.leader = self.leader;
        new.space.start = self.space.start;
        *self = new;
    }
}
