//! Flash software between two executors: what it knows, while none of its tasks runs.

use alloc::rc::Rc;

use runtime::Rt;

use crate::ftl::{Ftl, Inner};
use crate::options::{Error, MountError, Options};
use crate::pages::Pages;
use crate::purge::Task;
use crate::state::State;
use crate::stats::Counters;

/// All that flash software knows of its flash, with nothing on its way. Whoever prepares a drive hands it
/// over with the flash, so that the next device need not find out again what lies where.
pub struct Asleep(State);

/// Parts of a map that is cached, which are read and written at the same time.
const MAPPERS: u32 = 16;

impl<P: Pages> Inner<P> {
    /// Its tasks begin.
    pub fn start(self: Rc<Self>) -> Ftl<P> {
        self.spawn_tasks();
        Ftl(self)
    }

    pub fn spawn_tasks(self: &Rc<Self>) {
        for die in 0..self.layout.shape.dies {
            self.run(Task::Die, self.clone().die(die));
        }
        self.run(Task::Collector, self.clone().collector());
        self.run(Task::Eraser, self.clone().eraser());
        self.run(Task::Keeper, self.clone().keeper());
        if self.state.borrow().cached().is_some() {
            for _ in 0..MAPPERS {
                self.run(Task::Mapper, self.clone().mapper());
            }
        }
        self.form();
    }
}

impl<P: Pages> Ftl<P> {
    /// Returns when all that was written is on flash and nothing else is on its way there.
    ///
    /// # Errors
    /// [`Error::WornOut`]: there is no space any more.
    pub async fn settle(&self) -> Result<(), Error> {
        loop {
            let seen = self.0.landed.version();
            {
                let mut state = self.0.state.borrow_mut();
                if state.is_quiet() {
                    return Ok(());
                }
                if state.worn_out {
                    return Err(Error::WornOut);
                }
                state.seal_note();
                state.force = state.force.max(state.buffer.next_order() - 1);
            }
            self.0.form();
            self.0.close_all();
            self.0.hurry_parts();
            self.0.landed.changed(&self.0.rt, seen).await;
        }
    }

    /// Puts it to sleep. Its tasks have been dropped. None: something was on its way, or somebody else
    /// holds it; [`settle`](Ftl::settle) comes first.
    pub fn sleep(self) -> Option<Asleep> {
        let state = Rc::into_inner(self.0)?.state.into_inner();
        state.is_quiet().then_some(Asleep(state))
    }

    /// Wakes it up on the flash that it was put to sleep on: as after a mount, but at once. `options` are
    /// those of before.
    ///
    /// # Errors
    /// [`MountError::Shape`]: it knows other flash. [`MountError::Options`].
    pub fn wake(
        rt: &Rt,
        pages: Rc<P>,
        options: &Options,
        asleep: Asleep,
    ) -> Result<Ftl<P>, MountError> {
        let layout = crate::mount::check(pages.shape(), options)?;
        let Asleep(mut state) = asleep;
        if state.layout.shape != layout.shape {
            return Err(MountError::Shape);
        }
        let (mut inner, _) = Inner::new(rt, pages, options, layout);
        (state.counters, state.rows_at_checkpoint) = (Counters::default(), 0);
        if let Some(cached) = state.cached_mut() {
            cached.wake();
        }
        inner.state = state.into();
        Ok(Rc::new(inner).start())
    }
}

impl State {
    /// Nothing waits in the buffer and no row is on its way.
    fn is_quiet(&self) -> bool {
        let idle = |queue: &crate::state::Queue| queue.jobs.is_empty() && queue.flying.is_none();
        self.buffer.oldest_order().is_none()
            && self.note.is_none()
            && self.reserve_copy.is_none()
            && self.collection.rows == 0
            && self.closing.is_empty()
            && self.cached().is_none_or(|cached| cached.is_quiet())
            && self.queues.iter().all(idle)
    }
}
