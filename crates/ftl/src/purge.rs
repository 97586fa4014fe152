//! Purge: erases everything; only the wear state remains.
//!
//! First the tasks are stopped, each before those that it waits for. Then a root with an empty map is
//! written, so that a mount after an interruption finds an empty map and not half of the old one. Then all
//! blocks are erased, superblock by superblock, in parallel on all dies. Finally another root stores the
//! wear, because no superpage is left that would, and the blocks of older roots are erased.

use alloc::rc::Rc;
use alloc::vec::Vec;

use runtime::Span;

use crate::ftl::{Ftl, Inner, Task};
use crate::layout::{NONE, WritePointer};
use crate::options::Error;
use crate::pages::{Erase, Page, Pages};
use crate::state::State;

/// Duration of [`Ftl::purge`] without waits and failures: the dies work in parallel.
pub fn purge_time<P: Pages>(pages: &P) -> Option<Span> {
    pages.erase_time().map(|erase| erase * u64::from(pages.shape().blocks))
}

impl<P: Pages> Ftl<P> {
    /// Erases every block, retired ones as far as possible: the host then reads zeros, and no page holds old
    /// data. `progress` receives the number of superblocks done and the total. No other operation may run
    /// meanwhile.
    ///
    /// If the power fails before the return, a mount finds a consistent drive whose blocks may still hold old
    /// data: purge it again.
    ///
    /// # Errors
    /// [`Error::WornOut`] if there is no space left; the drive is then read-only.
    pub async fn purge(&self, progress: &mut dyn FnMut(u32, u32)) -> Result<(), Error> {
        let inner = &self.0;
        inner.stop().await?;
        inner.write_empty_root().await;
        inner.reset_state();
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
    /// Returns true if tasks of this kind are to stop.
    #[inline]
    pub fn ends(&self, task: Task) -> bool {
        self.stopped.get().is_some_and(|last| task <= last)
    }

    /// Runs a task, counted until it ends.
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

    /// Stops all tasks; returns when none is running.
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

    /// After this a mount finds an empty map.
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
            // An older root would point to erased data.
            self.erase_roots(None).await;
        }
    }

    fn free_slots(&self) {
        let slots = self.state.borrow().buffer.slots.len() as u32;
        for slot in (0..slots).filter(|slot| self.pages.kept(*slot).is_some()) {
            self.free_slot(slot);
        }
    }

    /// Resets the state except wear and counters.
    fn reset_state(&self) {
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

    /// Erases all blocks of this number except root blocks.
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

    /// Writes a root to a block other than the last, and erases all other root blocks.
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

    /// Erases the root blocks except this one.
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
    /// Resets to the state before the first mount on this flash.
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
